"""Clients with parameters and sensitive regions of their own."""

from dataclasses import replace

import pytest
import torch

from engine_kit import OPTIONS, REGION, federation, images, tiny
from fedveil.accounting import Gaussian, ParticipationFilter, Poisson
from fedveil.accounting.bounds import GDP, PLD
from fedveil.accounting.guarantee import LIVENESS, of_round
from fedveil.calibration.local import gaussian_sigma
from fedveil.data import DataSet, federate
from fedveil.engines import Budgets
from fedveil.engines.history import worst_of
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, layer_scores
from fedveil.learning.learner import Learner
from fedveil.learning.scores import region_masks
from fedveil.learning.scoring import Scoring
from fedveil.methods import FedRE, build
from fedveil_lab.runs.promised import guarantees_of


def test_each_client_spends_by_its_own_parameters():
    common = build("sga-ldp", **OPTIONS["sga-ldp"])
    careful = replace(common.client, epsilon_min=0.1, epsilon_max=0.5)
    record = federation("sga-ldp", client_sides={2: careful}).run(1).rounds[0]
    plain = federation("sga-ldp").run(1).rounds[0]
    assert record.client_scales[2][0] == pytest.approx(
        gaussian_sigma(0.1, careful.delta, careful.clip)
    )
    assert plain.client_scales[2][0] == pytest.approx(
        gaussian_sigma(1.0, careful.delta, careful.clip)
    )
    assert [record.client_scales[p] for p in (0, 1, 3)] == [
        plain.client_scales[p] for p in (0, 1, 3)
    ]


def test_guarantees_are_each_clients_own():
    sound = replace(build("sga-ldp", **OPTIONS["sga-ldp"]).client, similarity="released")
    method = replace(build("sga-ldp"), client=sound)
    made = federation("x", method=method, client_sides={1: replace(sound, epsilon_max=50.0)})
    history = made.run(2)
    costs = {p: g.cost for p, g in history.guarantees.items()}
    assert costs["1"] > costs["0"] == costs["2"] == costs["3"]
    assert history.guarantee == history.guarantees["1"]


def test_a_client_without_a_proof_is_the_worst_whatever_the_others_promise():
    method = build("sga-ldp", epsilon_min=1.0, epsilon_max=1.0)
    unproven = build("sga-ldp", epsilon_min=0.5, epsilon_max=8.0).client
    made = federation("x", method=method, client_sides={2: unproven, 3: unproven})
    history = made.run(2)
    assert {p: g.status for p, g in history.guarantees.items()} == dict.fromkeys(
        "01", "conditional"
    ) | dict.fromkeys("23", "heuristic")
    assert history.guarantee.status == "heuristic"
    counts, told = guarantees_of(method, {str(p): made.party(p).ledger for p in range(4)}, 1e-5)
    assert counts.status == told["worst client"]["status"] == "heuristic"
    assert (
        told["median client"]["status"] == "conditional"
    )  # two of four: those without a proof come last


def test_promises_of_several_kinds_have_no_worst_one():
    method, laplace = build("group", radius=0.5, hypotheses=1), build("group", radius=2.0).client
    gaussian = build("group", radius=0.5, distribution="gaussian").client
    alike = federation("x", method=method, client_sides={2: laplace}).run(1)
    assert alike.guarantee.status == "conditional"  # one kind: its largest parameter holds for all
    assert alike.guarantee == alike.guarantees["0"]  # whose releases are louder, and no fewer
    made = federation("x", method=method, client_sides={2: gaussian})
    mixed = made.run(1)
    assert {g.status for g in mixed.guarantees.values()} == {"conditional"}
    assert (
        mixed.guarantee.status == "heuristic"
    )  # an epsilon and a mu a distance are not to be compared
    counts, shown = guarantees_of(method, {str(p): made.party(p).ledger for p in range(4)}, 1e-5)
    assert counts.status == shown["worst client"]["status"] == "heuristic"


def test_what_holds_for_every_client_holds_at_any_distance():
    loud = replace(build("group", radius=1.0).client, radius=0.055)
    once = Budgets(clients=lambda partition: ParticipationFilter(cap=1) if partition == 2 else None)
    run = federation(
        "x", method=build("group", radius=1.0, hypotheses=1), client_sides={2: loud}, budgets=once
    ).run(20)
    own = {p: g.epsilon_at(0.3, 1e-5) for p, g in run.guarantees.items()}
    assert run.guarantees["0"].cost > run.guarantees["2"].cost  # twenty times one against once 18.2
    assert own["2"] > own["0"]  # which tells more than twenty that compose
    assert run.guarantee.epsilon_at(0.3, 1e-5) >= max(own.values())
    assert run.guarantee.cost == run.guarantees["0"].cost


def test_what_holds_for_every_client_is_on_the_conditions_of_each():
    whole = of_round(GDP(2.0, 0.1), "local")
    small = of_round(GDP(1.0, 5.0), "local", "zero-out", LIVENESS)
    both = worst_of([whole, small])
    assert (both.cost, both.status, both.conditions) == (2.0, "conditional", (LIVENESS,))
    assert both.epsilon_at(1.0, 1e-5) == small.epsilon_at(1.0, 1e-5)
    assert worst_of([whole]) == whole
    many, other = (
        PLD(((Poisson(0.5, Gaussian(8.0)), 9),)),
        PLD(((Poisson(0.01, Gaussian(1.2)), 2),)),
    )
    joint = worst_of([replace(whole, bound=bound) for bound in (many, other)])
    assert other.cost < many.cost
    assert joint.epsilon(1e-5) >= max(b.epsilon(1e-5, "zero-out") for b in (many, other))


@pytest.mark.parametrize(
    ("partition", "side"),
    [(4, FedRE(clip=0.2)), (0, build("sga-ldp").client), (0, FedRE(clip=0.2, scores="public"))],
)
def test_a_side_that_the_server_does_not_understand_is_refused(partition, side):
    with pytest.raises(FieldError, match=r"client_sides\["):
        federation("fedre", client_sides={partition: side})


def masked(partition, top):
    data = images(partition)
    masks = torch.zeros(6, 4, 4, dtype=torch.bool)
    masks[:, top : top + 2, :2] = True
    return replace(data, masks=masks)


def test_layers_are_scored_on_each_clients_own_masks():
    module = tiny()
    layout = Layout.from_module(module)
    learner = Learner(module, layout, LocalTraining(), region=REGION)
    start = layout.read(module)
    data = [images(0), masked(0, 0), masked(0, 2)]
    found = learner.learn(
        start[None], data, [(0, 1, p) for p in range(3)], frozenset({"layer_scores"})
    )
    expected = [
        layer_scores(module, "cross_entropy", data[0].x, data[0].y, r)
        for r in (REGION, REGION, (2, 0, 4, 2))
    ]
    for outcome, scores in zip(found, expected, strict=True):
        assert outcome.layer_scores == pytest.approx(scores)
    assert found[1].layer_scores != found[2].layer_scores


def test_images_without_a_mark_are_passed_over_unless_there_is_no_other():
    module = tiny()
    learner = Learner(
        module, Layout.from_module(module), LocalTraining(), scoring=Scoring(images=2)
    )
    data = masked(0, 0)
    some = data.masks.clone()
    some[[0, 2, 4]] = False
    x, y = data.x[[1, 3]], data.y[[1, 3]]
    marked = layer_scores(module, "cross_entropy", x, y, REGION)
    assert scores(learner, replace(data, masks=some)) == pytest.approx(marked)
    nothing = replace(data, masks=torch.zeros_like(some))
    everything = layer_scores(module, "cross_entropy", data.x[:2], data.y[:2], (0, 0, 4, 4))
    assert scores(learner, nothing) == pytest.approx(everything)
    public = learner.public_scores(learner.layout.read(module)[None], replace(data, masks=some))
    assert public[0].tolist() == pytest.approx(list(marked.values()))


def scores(learner, data):
    start = learner.layout.read(learner.model)
    return learner.learn(start[None], [data], [(0, 1, 0)], frozenset({"layer_scores"}))[
        0
    ].layer_scores


@pytest.mark.parametrize("method", ["exact", "estimate"])
def test_a_mask_an_image_is_the_mean_of_each_images_own(method):
    module, data = tiny(), images(0)
    regions = [(0, 0, 2, 2), (1, 1, 4, 3)]
    masks = torch.cat([region_masks(r, 1, 4, 4) for r in regions])
    together = layer_scores(
        module, "cross_entropy", data.x[:2], data.y[:2], masks, method, probes=400
    )
    alone = [
        layer_scores(module, "cross_entropy", data.x[i : i + 1], data.y[i : i + 1], r)
        for i, r in enumerate(regions)
    ]
    for name, value in together.items():
        mean = (alone[0][name] + alone[1][name]) / 2
        assert value == pytest.approx(mean, rel=1e-5 if method == "exact" else 0.1)


def test_masks_are_checked_and_dealt_out_with_the_images():
    x = torch.rand(8, 1, 4, 4)
    with pytest.raises(FieldError, match="masks"):
        ClientData(
            x, torch.zeros(8, dtype=torch.int64), masks=torch.zeros(8, 4, 5, dtype=torch.bool)
        )
    with pytest.raises(FieldError, match="masks"):
        ClientData(
            x[:, 0], torch.zeros(8, dtype=torch.int64), masks=torch.zeros(8, 16, dtype=torch.bool)
        )
    with pytest.raises(FieldError, match="one mask for each of 3"):
        region_masks(torch.ones(2, 4, 4, dtype=torch.bool), 3, 4, 4)
    regions = (torch.arange(8 * 16).reshape(8, 4, 4) % 3).to(torch.uint8)
    x[:, 0] = regions.float() + 10 * torch.arange(8.0)[:, None, None]
    y, kinds = torch.arange(8) % 2, ("name", "date")
    dataset = DataSet(name="pages", x=x, y=y, regions=regions, region_names=kinds, classes=2)
    for client in federate(dataset, clients=2, scheme="iid", holdout=0.25, seed=0):
        assert torch.equal(client.masks, client.x[:, 0] % 10 > 0)


@pytest.mark.parametrize("unmarked", ["everything", "uniform", "refuse"])
def test_a_client_that_marks_nothing_does_what_it_chose(unmarked):
    module = tiny()
    layout, nothing = (
        Layout.from_module(module),
        replace(masked(0, 0), masks=torch.zeros(6, 4, 4, dtype=torch.bool)),
    )
    learner = Learner(
        module,
        layout,
        LocalTraining(),
        scoring=Scoring(unmarked="refuse"),
        unmarked={1: unmarked, 2: unmarked},
    )
    clients, keys = [nothing, nothing, masked(2, 0)], [(0, 1, p) for p in range(3)]
    default, own, marked = learner.learn(
        layout.read(module)[None], clients, keys, frozenset({"layer_scores"})
    )
    assert isinstance(default, FieldError)
    scored = scores(Learner(module, layout, LocalTraining()), clients[2])
    assert marked.layer_scores == pytest.approx(
        scored
    )  # who marks something is scored, whatever it chose
    if unmarked == "refuse":
        assert isinstance(own, FieldError)
        return
    whole = layer_scores(module, "cross_entropy", nothing.x, nothing.y, (0, 0, 4, 4))
    assert own.layer_scores == pytest.approx(
        {"1": 1.0, "3": 1.0} if unmarked == "uniform" else whole
    )
    with pytest.raises(FieldError, match=r"unmarked\[3\]"):
        Learner(module, layout, LocalTraining(), unmarked={3: "nothing"})


def test_an_even_split_for_lack_of_marks_shows_in_the_noise_as_a_failure_does():
    nothing = replace(images(0), masks=torch.zeros(6, 4, 4, dtype=torch.bool))
    module = tiny()
    learner = Learner(
        module,
        Layout.from_module(module),
        LocalTraining(),
        region=REGION,
        unmarked={0: "uniform", 1: "refuse"},
    )
    data = [nothing, nothing, masked(2, 0)]
    record = federation("fedre", clients=data, learner=learner).run(1).rounds[0]
    even, failed, marked = (record.client_scales[p] for p in range(3))
    assert even == failed == (even[0], even[0])
    assert marked[0] != marked[1]
    assert list(record.zeroed) == [1]
