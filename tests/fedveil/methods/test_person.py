"""Person-level privacy: one person moves a step's sum by at most C, whatever the number of her images."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.accounting import Policy
from fedveil.accounting.composition import epsilon
from fedveil.accounting.events import Gaussian, Poisson
from fedveil.accounting.guarantee import guarantee_values
from fedveil.accounting.policy import Limits
from fedveil.engines import EarlyStopping, Evaluation
from fedveil.errors import FieldError
from fedveil.gdp import epsilon_of_mu
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.learning.lots import Units
from fedveil.learning.per_example import PerExample
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import build

CLIP = 0.05
NETS = {
    "head": lambda: nn.Linear(6, 3),
    "chain": lambda: nn.Sequential(
        nn.Linear(6, 3)
    ),  # a head that is clipped by factors of its inputs
    "dense": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.Flatten(), nn.Linear(8, 3)
    ),
}


class Own(nn.Module):
    """A model with code of its own."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x):
        return torch.tanh(self.a(x)) * 2


NETS["own"] = Own


def silo(counts, seed=0, scale=1.0):
    n = sum(counts)
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(n, 6, generator=generator)
    person = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    order = torch.randperm(n, generator=generator)
    return ClientData(
        x[order], torch.randint(0, 3, (n,), generator=generator), person=person[order]
    )


def trainer(model, images, clip=CLIP, deviation=1e-12, **noisy):
    method = build(
        "record",
        unit="person",
        people=1,
        records_per_person=images,
        noise_multiplier=1.0,
        clip=clip,
    )
    steps = replace(method.noisy.noisy_steps, deviation=deviation, denominator=1.0, **noisy)
    return PrivateTrainer(model, Layout.from_module(model), LocalTraining(lr=1.0), steps)


def step(model, client, images, start=None, clip=CLIP, **noisy):
    """What one noiseless step of learning rate 1 takes off the model: the clipped sum."""
    layout = Layout.from_module(model)
    start = layout.read(model).to(torch.float32) if start is None else start
    made = trainer(model, images, clip, **noisy)._noisy(
        start, client, (0, 1, 2), ReproducibleSource(0)
    )
    if made.failure is not None:
        raise made.failure
    return start - made.model


def means(model, client, images):
    """Each person's clipped mean gradient over her first images, by plain autograd."""
    found = []
    for person in client.person.unique():
        rows = (client.person == person).nonzero()[:images, 0]
        model.zero_grad()
        nn.functional.cross_entropy(model(client.x[rows]), client.y[rows]).backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).double()
        found.append(gradient * min(1.0, CLIP / float(gradient.norm())))
    return torch.stack(found)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("images", [3, 9])
def test_a_step_is_the_sum_of_persons_clipped_means(net, images):
    torch.manual_seed(1)
    model, client = NETS[net](), silo([1, 2, 9, 3, 1])
    assert torch.allclose(
        step(model, client, images).double(), means(model, client, images).sum(0), atol=2e-7
    )


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("count", [1, 2, 400])
def test_one_person_moves_a_sum_by_at_most_the_clip_whatever_she_has(net, count):
    torch.manual_seed(2)
    model, most = NETS[net](), 400 if net != "own" else 40
    others = silo([2, 3, 1])
    hers = silo([count], seed=7, scale=50.0)
    both = ClientData(
        torch.cat([hers.x, others.x]),
        torch.cat([hers.y, others.y]),
        person=torch.cat([hers.person, others.person + 1]),
    )
    gone = ClientData(both.x.clone(), both.y, person=both.person)
    gone.x[: len(hers.x)] = math.nan  # what zero-out makes of her
    moved = (step(model, both, most).double() - step(model, gone, most).double()).norm()
    assert float(moved) <= CLIP * (1 + 1e-5)


def test_long_gradients_that_cancel_are_clipped_as_the_mean_that_they_form():
    model, layout = nn.Linear(6, 3, bias=False), None
    layout = Layout.from_module(model)
    sums = PerExample(model, layout, "mse")
    # two images whose gradients are 1e19 long and cancel but for their last digits: norms by products of norms,
    # or by Gram matrices, are rounding alone
    x = torch.zeros(4, 6)
    x[0], x[1], x[2], x[3] = 1e10, -1e10, 3e9, -3e9
    y = torch.full((4, 3), 1e9)
    found, _ = sums.clipped_sum(x, y, CLIP, each=4)
    assert float(found.norm()) <= CLIP


@pytest.mark.parametrize("net", NETS)
def test_a_persons_mean_has_the_bits_that_it_has_when_she_is_alone(net):
    torch.manual_seed(3)
    model, each, people = NETS[net](), 4, 6
    layout = Layout.from_module(model)
    x, y = torch.randn(people * each, 6), torch.randint(0, 3, (people * each,))
    present = torch.rand(people * each) < 0.7
    sums = PerExample(model, layout, "cross_entropy")
    for person in range(people):
        mine = torch.arange(person * each, (person + 1) * each)
        present[mine[0]] = True
        alone = torch.zeros_like(present)
        alone[mine] = present[mine]
        first = None
        for others in (0.0, 1.0, 1e38, math.nan, math.inf):
            company = torch.full_like(x, others)
            company[mine] = x[mine]
            found, _ = sums.clipped_sum(company, y, CLIP, alone, each=each)
            first = found if first is None else first
            assert torch.equal(found, first)


@pytest.mark.parametrize("elements", [None, 7])
def test_a_person_is_whole_in_every_chunk_and_every_lot(monkeypatch, elements):
    """Her three images cancel, the first twice as long: their mean is nothing, and any of them alone would leave C."""
    people = 20
    if elements:
        monkeypatch.setattr("fedveil.learning.per_example._ELEMENTS", elements * (people + 2))
    person = torch.cat([torch.arange(people), torch.arange(people // 2), torch.arange(people // 2)])
    x = torch.eye(people)[person] * -10
    x[: people // 2] *= -2
    model, start = (
        nn.Linear(people, 1, bias=True),
        torch.cat([torch.zeros(people), torch.tensor([1e3])]),
    )
    method = build(
        "record",
        unit="person",
        people=people,
        records_per_person=3,
        noise_multiplier=1.0,
        clip=CLIP,
    )
    steps = replace(method.noisy.noisy_steps, deviation=1e-12, denominator=1.0, rate=0.5)
    client = ClientData(x, torch.zeros(len(x), 1), person=person)
    made = PrivateTrainer(
        model, Layout.from_module(model), LocalTraining(lr=1.0, loss="mse"), steps
    )
    drawn = torch.zeros(people)
    for seed in range(40):
        found = (start - made._noisy(start, client, (0, 1, 2), ReproducibleSource(seed)).model)[
            :people
        ]
        drawn += found.abs() > CLIP / 100
        assert float(found[: people // 2].abs().max()) < 1e-6
    assert 10 * 40 * 0.4 < float(drawn.sum()) < 10 * 40 * 0.6  # the others, each by her own coin
    assert (drawn[people // 2 :] > 5).all()


@pytest.mark.parametrize("net", ["head", "conv"])
@pytest.mark.parametrize("others", [0, 5])
def test_a_step_in_which_nobody_is_drawn_is_noise_alone(net, others):
    torch.manual_seed(0)
    model, client = NETS[net](), silo([3, 1, 2])
    layout = Layout.from_module(model)
    start = layout.read(model)
    method = build(
        "record",
        unit="person",
        people=3,
        records_per_person=4,
        noise_multiplier=1.0,
        clip=CLIP,
        rate=1e-9,
    )
    made = PrivateTrainer(model, layout, LocalTraining(lr=1.0), method.noisy.noisy_steps)
    found, none = (
        made._noisy(start, one, (0, 1, 2), ReproducibleSource(others)).model
        for one in (client, silo([1] * 3, seed=others))
    )
    assert torch.equal(found, none)
    assert not torch.equal(found, start)


class Mixing(nn.Module):
    """Compares an image with the others of its batch."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x):
        return self.a(x - x.mean(0, keepdim=True))


def test_a_model_that_mixes_images_is_refused():
    with pytest.raises(FieldError) as refused:
        fv.Federation(model=Mixing(), clients=[silo([2, 3])] * 2, method=person()).run(1)
    assert refused.value.field == "model"


@pytest.mark.parametrize("sum_", ["none", "trusted", "secure"])
@pytest.mark.parametrize("rule", [fv.FedAvg, fv.aggregation.FedAvgM])
def test_nothing_that_leaves_a_silo_tells_how_many_images_a_person_has(sum_, rule):
    """She has one image, or it forty times: the same mean, and the same of everything that the server receives."""
    shared = silo([2, 3, 1, 4], seed=3)
    seen = []
    for copies in (1, 40):
        x = torch.cat([shared.x, torch.ones(copies, 6)])
        y = torch.cat([shared.y, torch.ones(copies, dtype=torch.int64)])
        hers = ClientData(x, y, person=torch.cat([shared.person, torch.full((copies,), 9)]))
        clients = [hers, *(silo([1, 2, 3, 1, 1], seed=i) for i in range(1, 4))]
        watch = Watch()
        own = {"none": {}, "trusted": {"silos": 4}, "secure": {"least_sites": 4, "colluding": 1}}[
            sum_
        ]
        values = {
            "unit": "person",
            "people": 5,
            "records_per_person": 40,
            "noise_multiplier": 2.0,
            "clip": CLIP,
        }
        method = build("record", rule(), sum=sum_, rounds=2, **values, **own)
        fed = fv.Federation(
            model=nn.Linear(6, 3),
            clients=clients,
            method=method,
            seed=0,
            evaluation=Evaluation(probes=[watch]),
        )
        fed.models = torch.zeros_like(fed.models)
        fed.run(2)
        seen.append((watch.received, fed.models))
    (first, model), (second, other) = seen
    assert first.keys() == second.keys()
    for key, releases in first.items():
        assert [(r.kind, r.name) for r in releases] == [(r.kind, r.name) for r in second[key]]
        assert not {"count", "loss"} & {r.kind for r in releases}
        for one, two in zip(releases, second[key], strict=True):
            if one.value.dtype.is_floating_point:
                torch.testing.assert_close(one.value, two.value, rtol=1e-5, atol=1e-6)
            assert one.value.shape == two.value.shape
    torch.testing.assert_close(model, other, rtol=1e-4, atol=1e-5)


class Watch:
    """Keeps what the server receives."""

    name, figures = "watch", ()

    def __init__(self):
        self.received = {}

    def __call__(self, seen):
        number = seen.broadcast.public.round
        self.received |= {
            (number, partition): releases for partition, releases in seen.received.items()
        }
        return {}


def test_images_beyond_the_declared_number_are_left_out_by_her_own_order_alone():
    client = silo([5, 1, 3])
    units = Units.of(client, 2)
    assert len(units) == 3
    assert units.present.sum(1).tolist() == [2, 1, 2]
    for person in range(3):
        rows = (client.person == person).nonzero()[:, 0]
        kept = units.rows[person][units.present[person]]
        assert kept.tolist() == rows[: len(kept)].tolist()
    fewer = ClientData(
        client.x[client.person != 1],
        client.y[client.person != 1],
        person=client.person[client.person != 1],
    )
    for a, b in ((0, 0), (2, 1)):
        before = client.x[units.rows[a]][units.present[a]]
        after = Units.of(fewer, 2)
        assert torch.equal(before, fewer.x[after.rows[b]][after.present[b]])


def test_everybody_and_nobody():
    one = silo([30])
    assert Units.of(one, 30).rows.shape == (1, 30)
    nobody = ClientData(
        torch.zeros(0, 6),
        torch.zeros(0, dtype=torch.int64),
        person=torch.zeros(0, dtype=torch.int64),
    )
    assert len(Units.of(nobody, 3)) == 0
    assert float(step(nn.Linear(6, 3), nobody, 3, public_size=False, most=5).norm()) < 1e-9


def test_without_ids_nothing_is_trained():
    client = ClientData(torch.randn(4, 6), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(FieldError) as refused:
        fv.Federation(model=nn.Linear(6, 3), clients=[client] * 2, method=person())
    assert refused.value.field == "person"


def person(sum_="none", **values):
    shared = {
        "unit": "person",
        "people": 6,
        "records_per_person": 4,
        "noise_multiplier": 2.0,
        "rounds": 3,
    }
    silos = {"silos": 4} if sum_ == "trusted" else {}
    return build("record", sum=sum_, **{**shared, "clip": CLIP, **silos, **values})


@pytest.mark.parametrize("sum_", ["none", "trusted"])
@pytest.mark.parametrize(
    ("relation", "factor"), [("zero-out", 1), ("add/remove", 1), ("replace-one", 2)]
)
def test_a_run_promises_a_person(sum_, relation, factor):
    clients = [silo([1, 2, 4, 3, 1, 7], seed=i) for i in range(4)]
    fed = fv.Federation(
        model=nn.Linear(6, 3), clients=clients, method=person(sum_, relation=relation), seed=0
    )
    guarantee = fed.run(3).guarantee
    assert (guarantee.unit, guarantee.relation) == ("person", relation)
    assert guarantee.mu == pytest.approx(factor * math.sqrt(3) / 2)
    doubled = 1 if relation == "replace-one" else 2
    values = guarantee_values(guarantee, 1e-5)
    assert values["epsilon_of_one_record"] == pytest.approx(
        epsilon_of_mu(doubled * guarantee.mu, 1e-5)
    )
    assert fed.run(4).stopped  # beyond the plan


def test_one_record_of_a_sampled_person_comes_and_goes_with_her():
    sampled = (
        person(rate=0.25, relation="zero-out", rounds=4, noise_multiplier=8.0)
        .client.spend()
        .guarantee
    )
    expected = epsilon([(Poisson(0.25, Gaussian(8.0)), 1)], 1e-5, "replace-one")
    assert sampled.of_part("record").epsilon(1e-5) == pytest.approx(expected, rel=1e-3)
    with pytest.raises(FieldError):
        build("record", examples=6, noise_multiplier=2.0).client.spend().guarantee.of_part("record")


@pytest.mark.parametrize("silos", [2, 3])
def test_a_person_of_several_silos_is_promised_the_same_at_the_price_of_more_noise(silos):
    alone, shared = person(), person(silos_per_person=silos)
    assert shared.client.spend().guarantee.mu == pytest.approx(
        alone.client.spend().guarantee.mu * math.sqrt(silos)
    )
    summed = person("trusted", silos_per_person=silos)
    single = person("trusted").client.spend().guarantee.mu
    assert summed.client.spend().guarantee.mu == pytest.approx(single * silos)
    for sum_ in ("none", "trusted"):
        target = {"noise_multiplier": None, "epsilon": 4.0, "silos_per_person": silos}
        method = person(sum_, **target)
        total = method.client.spend().guarantee.mu * math.sqrt(3)
        assert epsilon_of_mu(total, 1e-5) == pytest.approx(4.0, rel=1e-9)
        assert (
            method.noisy.noisy_steps.deviation
            > person(sum_, **{**target, "silos_per_person": 1}).noisy.noisy_steps.deviation
        )
    with pytest.raises(FieldError, match="silos_per_person"):
        person("trusted", silos_per_person=2, rate=0.5)
    clients = [silo([1, 2, 4, 3, 1, 7], seed=i) for i in range(4)]
    assert fv.Federation(model=nn.Linear(6, 3), clients=clients, method=shared).run(
        3
    ).guarantee.mu == pytest.approx(math.sqrt(3 * silos) / 2)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"examples": 5.0}, "examples"),
        ({"people": None}, "people"),
        ({"records_per_person": None}, "records_per_person"),
        ({"records_per_person": 0}, "records_per_person"),
        ({"records_per_person": 10**9}, "records_per_person"),  # was out of memory
        ({"people": math.nan}, "people"),
        ({"silos_per_person": 0}, "silos_per_person"),
        ({"unit": "record"}, "people"),
        ({"unit": "image"}, "unit"),
        (
            {
                "unit": "record",
                "people": None,
                "records_per_person": None,
                "examples": 5,
                "silos_per_person": 2,
            },
            "silos_per_person",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(values, field):
    with pytest.raises(FieldError) as refused:
        person(**values)
    assert refused.value.field == field


def test_fewer_people_than_a_few_are_refused_only_where_their_number_is_public():
    clients = [silo([5]), silo([1, 2, 3])]
    with pytest.raises(FieldError, match="persons of silo 0"):
        fv.Federation(model=nn.Linear(6, 3), clients=clients, method=person())
    assert (
        fv.Federation(model=nn.Linear(6, 3), clients=clients, method=person(relation="add/remove"))
        .run(1)
        .rounds
    )


# ---- policies


def test_a_policy_counts_persons_and_records_of_a_declared_number():
    record = build("record", examples=6, noise_multiplier=2.0).client.spend()
    one = person().client.spend()
    for limits, spend, allowed in (
        (Limits(person_mu=1.0), one, True),
        (Limits(person_mu=0.4), one, False),
        (Limits(person_epsilon=epsilon_of_mu(0.5, 1e-5) * 1.001), one, True),
        (Limits(record_mu=9.0), one, False),  # another kind
        (Limits(person_mu=9.0), record, False),
    ):
        assert (Policy(total=limits).refusal("record", "local", True, spend, ()) is None) == allowed
    declared = Policy(total=Limits(person_mu=2.0), records_per_person=3)
    assert declared.refusal("record", "local", True, record, ()) is None
    assert (
        declared.refusal("record", "local", True, record, [record]) is not None
    )  # 3 x .5 twice is 2.12
    assert declared.refusal("record", "local", True, one, [record]) is None  # 1.58
    assert declared.standing([record, one])["person_mu"][1] == pytest.approx(math.hypot(1.5, 0.5))
    for bad in (0, 1.5, True, "3"):
        with pytest.raises(FieldError, match="records_per_person"):
            Policy(records_per_person=bad)


@pytest.mark.parametrize("plan", ["steps", "epsilon"])
def test_a_budget_for_persons_counts_no_release_for_single_records(plan):
    """84 of them passed for as many steps of an epsilon of 4; to a person of 10 images they were one of 80."""
    common = {"noise_multiplier": 10.0, "rounds": 100}
    record = build("record", examples=100, **common).noisy
    person = build("record", unit="person", people=10, records_per_person=10, **common).noisy
    budget = person.within(4.0, 1e-5) if plan == "steps" else fv.accounting.Filter(4.0, 1e-5)
    assert budget.admit_spend(person.spend())
    with pytest.raises(FieldError, match="person"):
        budget.admit_spend(record.spend())
    assert budget.admit_spend(person.spend())


def test_releases_for_persons_count_against_a_limit_for_records():
    """2,000 of them, an epsilon of 77 for each record, passed under a record_epsilon of 4."""
    person = build(
        "record", unit="person", people=10, records_per_person=10, noise_multiplier=10.0, rounds=20
    )
    spend, made = person.noisy.spend(), []
    policy = Policy(total=Limits(record_epsilon=4.0, person_epsilon=100.0))
    while len(made) < 100 and policy.refusal("record", "local", True, spend, made) is None:
        made.append(spend)
    assert len(made) == 21  # mu of one record is twice that of a person: sqrt(21) / 5
    assert policy.standing(made)["record_epsilon"][1] == pytest.approx(
        epsilon_of_mu(21**0.5 / 5, 1e-5)
    )
    assert (
        Policy(total=Limits(record_epsilon=4.0)).refusal("record", "local", True, spend, [])
        is not None
    )


def test_a_person_who_trains_does_not_validate():
    own = [
        replace(c, person=c.person + 10 * i)
        for i, c in enumerate(silo([2, 3, 1], seed=i) for i in range(3))
    ]
    other = silo([2, 2], seed=9)
    for unit in ("person", "record"):
        sizes = {"people": 3, "records_per_person": 3} if unit == "person" else {"examples": 6}
        method = build("record", unit=unit, noise_multiplier=1.0, clip=CLIP, **sizes)
        for number in (11, 40):
            rule = EarlyStopping(clients=[replace(other, person=torch.full((4,), number))])
            how = {"clients": own, "method": method, "evaluation": Evaluation(stopping=rule)}
            if unit == "person" and number == 11:
                with pytest.raises(FieldError, match=r"persons with clients\[1\]") as refused:
                    fv.Federation(model=NETS["head"], **how)
                assert refused.value.field == "stopping.clients[0]"
            else:
                assert fv.Federation(model=NETS["head"], **how).run(1).guarantee.unit == unit
