import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from core_kit import (
    assert_deviation,
    assert_laplace,
    broadcast_of,
    client_facts,
    combine,
    reply,
    server_facts,
    silent,
)
from fedveil.accounting import Release, Spend, mu_of_epsilon, nothing, total
from fedveil.accounting.bounds import GDP
from fedveil.accounting.guarantee import of_round
from fedveil.aggregation import FedAvg, FedMedian
from fedveil.clipping import clip
from fedveil.engines import ServerParty
from fedveil.engines.answers import RoundAnswers
from fedveil.errors import FieldError, HeuristicError, ReplyError
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource, gaussian_sigma
from fedveil.methods import (
    METHODS,
    SGALDP,
    ClientFacts,
    Clusters,
    Combined,
    FedRE,
    GlobalDP,
    GroupPrivacy,
    Method,
    PerturbationAware,
    Plain,
    Protected,
    Sides,
    TrustedServer,
    build,
    check_reply,
    paired,
    stack_counts,
    stack_models,
)
from fedveil.methods.contract import ClientDefaults, ServerDefaults
from fedveil.methods.sga_ldp import LastBroadcast
from fedveil_studies.sga_central import References, SGACentral

DELTA = 1e-5
D = 20_000
LAYOUT = Layout.from_shapes(
    {"a.weight": (100, 99), "a.bias": (100,), "b.weight": (10_000,)}, torch.float64
)
PRINTED = {"group": GroupPrivacy(), "fedre": FedRE(), "sga-ldp": SGALDP()}
SOUND = {
    "group, public radius": GroupPrivacy(radius=3.0),
    "fedre, public scores": FedRE(scores="public"),
    "sga-ldp, released similarity": SGALDP(similarity="released"),
    "sga-ldp, noised similarity": SGALDP(similarity="noised"),
}
LOCAL = PRINTED | SOUND
SCORES = {"a": 1.0, "b": 3.0}


def everything(model):
    """All that a client could send."""
    return (
        Release("model", model),
        Release("count", torch.tensor(17.0)),
        Release("metric", torch.tensor(0.25), "train_loss"),
        Release("index", torch.tensor(1)),
    )


def protect(side, start, step, *, source=None, state=None, **facts):
    facts = client_facts(
        start, **{"layout": LAYOUT, "scores": SCORES, "public_scores": (1.0, 3.0), **facts}
    )
    state = side.init() if state is None else state
    return side.protect(
        everything(facts.start + step), facts, state, source or ReproducibleSource(1)
    )


def noise_of(protected, start, sent):
    return protected.releases[0].value - start - sent


START = torch.linspace(-1, 1, D, dtype=torch.float64)
STEP = torch.linspace(1, 2, D, dtype=torch.float64)


# ---- what all local methods share


@pytest.mark.parametrize("name", LOCAL)
def test_nothing_but_the_model_leaves(name):
    protected = protect(LOCAL[name], START, STEP)
    assert [r.kind for r in protected.releases] == ["model"]
    assert not torch.equal(protected.releases[0].value, START + STEP)


@pytest.mark.parametrize("name", LOCAL)
def test_without_a_model_nothing_leaves(name):
    side, facts = LOCAL[name], client_facts(START, layout=LAYOUT)
    metrics = (
        Release("metric", torch.tensor(0.5), "accuracy"),
        Release("count", torch.tensor(17.0)),
    )
    protected = side.protect(metrics, facts, side.init(), ReproducibleSource(0))
    assert protected.releases == ()
    assert protected.spend.guarantee.status == "none"


def test_central_trust_passes_everything_on():
    sent = everything(START)
    protected = TrustedServer().protect(
        sent, client_facts(START), TrustedServer().init(), ReproducibleSource(0)
    )
    assert protected.releases == sent
    assert (protected.spend.guarantee.status, protected.spend.guarantee.trust) == (
        "none",
        "central",
    )


@pytest.mark.parametrize("name", LOCAL)
def test_a_quote_is_pure_and_states_the_cost_of_the_release(name):
    side = LOCAL[name]
    state, opened = side.init(), broadcast_of(START, scores=(1.0, 3.0))
    quoted = side.quote(
        opened, state
    )  # sees the broadcast and the state: there is no data to look at
    assert side.quote(opened, state) == quoted
    assert state == side.init()
    spend = protect(side, START, STEP).spend
    assert quoted.guarantee == spend.guarantee
    assert quoted.leakage == spend.leakage
    assert quoted.mechanism == spend.mechanism


@pytest.mark.parametrize("name", PRINTED)
def test_the_printed_methods_are_heuristic_and_say_why(name):
    guarantee = protect(PRINTED[name], START, STEP).spend.guarantee
    assert (guarantee.status, guarantee.trust) == ("heuristic", "local")
    with pytest.raises(HeuristicError, match="private"):
        guarantee.epsilon(DELTA)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_diverged_model_is_refused(name, bad):
    step = STEP.clone()
    step[7] = bad
    with pytest.raises(FieldError, match="finite"):
        protect(LOCAL[name], START, step)


@pytest.mark.parametrize("name", LOCAL)
def test_the_clients_own_tensors_are_left_alone(name):
    start, step = START.clone(), STEP.clone()
    protect(LOCAL[name], start, step)
    assert torch.equal(start, START)
    assert torch.equal(step, STEP)


@pytest.mark.parametrize("name", LOCAL)
def test_the_type_is_kept(name):
    layout = Layout.from_shapes(LAYOUT.shapes)
    protected = protect(LOCAL[name], START.float(), STEP.float(), layout=layout)
    assert protected.releases[0].value.dtype == torch.float32


def test_counts_cannot_weigh_under_local_trust():
    with pytest.raises(FieldError, match="weighting"):
        Method("sga-ldp", SGALDP(), Plain(FedAvg("examples")))
    Method(
        "global",
        TrustedServer(),
        GlobalDP(FedAvg("examples"), order="printed", noise_multiplier=0.01),
    )


# ---- group privacy


def test_group_noise_follows_the_step():
    # epsilon = n / (nu ||step||); the noise's expected length is nu ||step||
    nu = 5.0
    protected = protect(GroupPrivacy(noise_multiplier=nu), START, STEP)
    epsilon = D / (nu * float(STEP.norm()))
    assert protected.spend.scale == (pytest.approx(epsilon),)
    assert protected.spend.leakage == D / nu
    noise = noise_of(protected, START, STEP)
    assert_laplace(noise, epsilon)
    assert float(noise.norm()) == pytest.approx(nu * float(STEP.norm()), rel=0.05)
    # ten times the step is ten times the noise: it is the step that is measured, not the model
    far = protect(GroupPrivacy(noise_multiplier=nu), 100 * START, 10 * STEP)
    assert far.spend.scale == (pytest.approx(epsilon / 10),)


def test_group_step_is_from_the_chosen_hypothesis():
    hypotheses = torch.stack([START + 1000, START])
    protected = protect(GroupPrivacy(), hypotheses, STEP, chosen=1)
    assert protected.spend.scale == (pytest.approx(D / (5 * float(STEP.norm()))),)


def test_group_leakage_of_the_hospital_network():
    # 11 parameters, nu = 5: 2.2 in every participation
    side = GroupPrivacy(noise_multiplier=5.0)
    quoted = side.quote(broadcast_of(torch.zeros(11)), side.init())
    assert quoted.leakage == pytest.approx(2.2)


def test_without_a_private_scale_the_declared_public_one_is_used():
    failed = ClientFacts(broadcast=broadcast_of(START), layout=LAYOUT, failed=True)
    # group privacy, of a client that did not move and of one that failed: nu times the public radius
    side = GroupPrivacy(noise_multiplier=2.0, fallback_radius=3.0)
    for facts in (client_facts(START, layout=LAYOUT), failed):
        protected = side.protect(
            (Release("model", START),), facts, side.init(), ReproducibleSource(1)
        )
        assert_laplace(protected.releases[0].value - START, D / 6)
        assert protected.spend.guarantee.status == "heuristic"
    # FedRE: the same budget for every layer, whatever the scores would have been
    protected = FedRE(clip=0.5).protect(
        (Release("model", START),), failed, FedRE().init(), ReproducibleSource(1)
    )
    first, second = protected.spend.scale
    assert first == second
    assert_deviation(protected.releases[0].value - START, first)
    # SGA-LDP: epsilon_min, also where there is a reference along which the update would be
    side = SGALDP(epsilon_min=1.0, epsilon_max=8.0)
    state = LastBroadcast(round=0, model=START - STEP, released=START)
    protected = side.protect(
        (Release("model", START + STEP),), failed, state, ReproducibleSource(1)
    )
    assert protected.spend.scale == (pytest.approx(gaussian_sigma(1.0, DELTA, 1.0)),)


def test_nu_zero_adds_no_noise():
    protected = protect(GroupPrivacy(noise_multiplier=0), START, STEP)
    assert torch.equal(protected.releases[0].value, START + STEP)
    assert [r.kind for r in protected.releases] == ["model"]
    assert protected.spend.guarantee.status == "none"
    assert protected.spend.leakage is None


def clusters(hypotheses, models):
    side = Clusters(hypotheses=len(hypotheses))
    facts = server_facts(hypotheses, len(models))
    return side.combine([reply(m) for m in models], facts, side.init(2, torch.float64), silent())


def test_a_public_radius_sets_the_scale_whatever_the_step():
    side = GroupPrivacy(noise_multiplier=2.0, radius=3.0)
    for step in (STEP, 100 * STEP, torch.zeros(D, dtype=torch.float64)):
        protected = protect(side, START, step)
        assert protected.spend.scale == (pytest.approx(D / 6),)
        assert_laplace(noise_of(protected, START, step), D / 6)
        guarantee = protected.spend.guarantee
        assert (guarantee.status, guarantee.bound.epsilon_per_distance) == (
            "conditional",
            pytest.approx(D / 6),
        )
        assert (guarantee.unit, guarantee.relation) == ("parameter vector", "replace-one")
    assert side.quote(broadcast_of(START), side.init()) == protected.spend
    for bad in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(FieldError, match="radius"):
            GroupPrivacy(radius=bad)


def test_clusters_by_hand():
    result = clusters([[1.0, 1], [9, 9], [50, 50]], [[0.0, 0], [2, 0], [10, 10]])
    assert result.models.tolist() == [[1, 0], [10, 10], [50, 50]]
    assert result.report == {"clients": 3, "cluster_0": 2, "cluster_1": 1, "cluster_2": 0}
    assert result.spend.guarantee.status == "none"


# ---- FedRE


def test_fedre_noise_layer_by_layer():
    # inverses of 1 and 3 are 3 : 1, so a gets 3/4 of epsilon = 40 and b a quarter; delta is halved
    side = FedRE(epsilon=40.0, delta=DELTA, clip={"a": 0.5, "b": 2.0})
    protected = protect(side, START, STEP, rounds=7)
    numerator = math.sqrt(2 * 7 * math.log(2 / DELTA))
    expected = {"a": 0.5 * numerator / 30, "b": 2.0 * numerator / 10}
    assert protected.spend.scale == (pytest.approx(expected["a"]), pytest.approx(expected["b"]))
    noise = noise_of(protected, START, clip(STEP, {"a": 0.5, "b": 2.0}, LAYOUT))
    for name, (cut,) in LAYOUT.groups("module").items():
        assert_deviation(noise[cut], expected[name])


def test_fedre_takes_a_sample_s_part_of_the_clip_where_that_is_the_reading():
    # the reference's sensitivity is 2 C_l / |D_k|; `everything` counts 17 examples
    client = protect(FedRE(epsilon=40.0, delta=DELTA, clip=0.5), START, STEP, rounds=7)
    sample = protect(
        FedRE(epsilon=40.0, delta=DELTA, clip=0.5, sensitivity="sample"), START, STEP, rounds=7
    )
    assert sample.spend.scale == pytest.approx([scale * 2 / 17 for scale in client.spend.scale])
    assert sample.spend.guarantee.status == "heuristic"
    noise = noise_of(sample, START, clip(STEP, dict.fromkeys("ab", 0.5), LAYOUT))
    for deviation, (cut,) in zip(sample.spend.scale, LAYOUT.groups("module").values(), strict=True):
        assert_deviation(noise[cut], deviation)


def test_fedre_refuses_a_sample_s_part_that_nothing_gives():
    side = FedRE(sensitivity="sample")
    facts = client_facts(START, layout=LAYOUT, scores=SCORES)
    for count in ((), (Release("count", torch.tensor(0.0)),)):
        with pytest.raises(FieldError, match="sensitivity"):
            side.protect(
                (Release("model", START), *count), facts, side.init(), ReproducibleSource(1)
            )
    for other in ({"scores": "public"}, {"noise_to_clip": 0.1}):
        with pytest.raises(FieldError, match="sensitivity"):
            FedRE(sensitivity="sample", **other)


def test_fedre_clips_each_layer():
    layout = Layout.from_shapes({"a.weight": (2,), "a.bias": (1,), "b.weight": (1,)}, torch.float64)
    start, step = torch.full((4,), 10.0).double(), torch.tensor([3.0, 4, 12, -2]).double()
    protected = protect(FedRE(clip=1.3), start, step, layout=layout, source=silent())
    # a has norm 13, b has norm 2: each is cut to 1.3 by itself
    assert protected.releases[0].value.tolist() == pytest.approx([10.3, 10.4, 11.2, 8.7], rel=1e-6)


def test_fedre_gives_a_layer_without_a_score_everything_and_drowns_the_others():
    spend = protect(FedRE(), START, STEP, scores={"a": 0.0, "b": 2.0}).spend
    assert spend.scale[1] / spend.scale[0] == pytest.approx(1e12)
    assert math.isfinite(spend.scale[1])
    assert FedRE().noise([spend.scale], LAYOUT)["noise_to_clip"] > 1e12
    for scores in ({"a": 0.0, "b": 0.0}, {"a": math.inf, "b": 1.0}, {"a": math.nan, "b": 1.0}):
        with pytest.raises(FieldError, match="scores"):
            protect(FedRE(), START, STEP, scores=scores)


def test_fedre_with_public_scores_splits_mu_and_covers_any_two_inputs():
    # mu of epsilon 8 over 4 rounds; scores 1 and 3 share it as 3 : 1, so the squares are 9/10 and 1/10
    side = FedRE(epsilon=8.0, delta=DELTA, clip={"a": 0.5, "b": 2.0}, scores="public")
    protected = protect(
        side, START, STEP, rounds=4, scores={"a": 99.0, "b": 1e-9}
    )  # the private ones do not matter
    mu = mu_of_epsilon(8.0, DELTA) / 2
    expected = (
        2 * 0.5 / (mu * math.sqrt(0.9)),
        2 * 2.0 / (mu * math.sqrt(0.1)),
    )  # sensitivity 2 C_l
    assert protected.spend.scale == pytest.approx(expected)
    noise = noise_of(protected, START, clip(STEP, {"a": 0.5, "b": 2.0}, LAYOUT))
    for deviation, (cut,) in zip(expected, LAYOUT.groups("module").values(), strict=True):
        assert_deviation(noise[cut], deviation)
    # what the two layers' noise really costs together is what is claimed, and four rounds of it are epsilon 8
    guarantee = protected.spend.guarantee
    assert (guarantee.status, guarantee.relation) == ("conditional", "replace-one")
    assert guarantee.mu == pytest.approx(math.hypot(2 * 0.5 / expected[0], 2 * 2.0 / expected[1]))
    assert total([guarantee] * 4).epsilon(DELTA) == pytest.approx(8.0)
    for scores in (None, (1.0,), (1.0, 2.0, 3.0)):
        with pytest.raises(FieldError, match="layer_scores"):
            protect(side, START, STEP, public_scores=scores)


@pytest.mark.parametrize(
    "scores", [None, {"a": 1.0}, {"b": 3.0, "a": 1.0}, {"a": 1.0, "b": 3.0, "c": 1.0}]
)
def test_fedre_refuses_missing_or_misplaced_scores(scores):
    with pytest.raises(FieldError, match="layer_scores"):
        protect(FedRE(), START, STEP, scores=scores)


def test_fedre_with_a_uniform_split_by_hand():
    # printed: each of 2 layers gets epsilon 20 and half of delta, whatever the scores
    side = FedRE(epsilon=40.0, delta=DELTA, clip={"a": 0.5, "b": 2.0}, split="uniform")
    sigma = math.sqrt(2 * 7 * math.log(2 / DELTA)) / 20
    protected = protect(side, START, STEP, rounds=7, scores=None)
    assert protected.spend.scale == pytest.approx((0.5 * sigma, 2.0 * sigma))
    assert not protected.spend.guarantee.proven
    # sound: each layer has half of the round's mu^2, at sensitivity 2 C_l
    protected = protect(
        replace(side, scores="public"), START, STEP, rounds=4, scores=None, public_scores=None
    )
    mu = mu_of_epsilon(40.0, DELTA) / 2
    assert protected.spend.scale == pytest.approx(
        (2 * 0.5 * math.sqrt(2) / mu, 2 * 2.0 * math.sqrt(2) / mu)
    )
    assert protected.spend.guarantee.mu == pytest.approx(mu)


def test_fedre_split_by_size_is_the_shortest_noise_at_the_same_guarantee():
    layout = Layout.from_module(
        torch.nn.Sequential(torch.nn.Linear(15, 3), torch.nn.Linear(3, 400))
    )
    bounds, sizes = (torch.tensor(v, dtype=torch.float64) for v in ([0.5, 2.0], [48.0, 1600.0]))
    side = FedRE(
        epsilon=40.0, delta=DELTA, clip={"0": 0.5, "1": 2.0}, scores="public", split="size"
    )
    start, mu, length, promised = torch.zeros(layout.size), mu_of_epsilon(40.0, DELTA), {}, {}
    for split in ("size", "uniform"):
        own = replace(side, split=split)
        spend = protect(
            own, start, start, layout=layout, scores=None, public_scores=None, rounds=1
        ).spend
        scale = torch.tensor(spend.scale, dtype=torch.float64)
        assert float((2 * bounds / scale).norm()) == pytest.approx(mu)
        length[split], promised[split] = float((sizes * scale**2).sum().sqrt()), spend.guarantee
    assert promised["size"] == promised["uniform"]
    # the least of all by Cauchy and Schwarz: 2 sum C_l sqrt(n_l) / mu
    assert length["size"] == pytest.approx(float(2 * (bounds * sizes.sqrt()).sum() / mu))
    assert length["size"] < length["uniform"]
    with pytest.raises(FieldError, match="split"):
        FedRE(split="size")


@pytest.mark.parametrize("changes", [{}, {"scores": "public"}, {"split": "uniform"}])
def test_fedre_noise_of_a_given_power(changes):
    own = FedRE(clip={"a": 0.5, "b": 2.0}, **changes)
    protected = protect(replace(own, noise_to_clip=0.25), START, STEP)
    scale = protected.spend.scale
    # a has 10,000 parameters and so has b; the clips together are sqrt(0.25 + 4) long
    assert 100 * math.hypot(*scale) == pytest.approx(0.25 * math.sqrt(4.25))
    plain = protect(own, START, STEP).spend.scale
    assert scale[0] / scale[1] == pytest.approx(plain[0] / plain[1])  # the split is the same
    assert not protected.spend.guarantee.proven
    assert "ratio" in protected.spend.guarantee.reason


def test_fedre_asks_for_what_it_needs():
    assert FedRE().needs == {"layer_scores"}
    assert FedRE(scores="public").needs == {"public_layer_scores"}
    assert PerturbationAware().needs == {"public_scores"}
    assert FedRE(split="uniform").needs == FedRE(split="uniform", scores="public").needs == set()
    assert PerturbationAware(weighting="equal").needs == set()
    for key, value in (("split", "even"), ("noise_to_clip", 0.0)):
        with pytest.raises(FieldError, match=key):
            FedRE(**{key: value})
    with pytest.raises(FieldError, match="weighting"):
        PerturbationAware(weighting="scored")
    for clip_ in (0, {"a": -1.0}, {}):
        with pytest.raises(FieldError, match="clip"):
            FedRE(clip=clip_)


SMALL = Layout.from_shapes({"a.weight": (1,), "b.weight": (1,)}, torch.float64)


def test_perturbation_aware_by_hand():
    # layer a: scores 0 and ln 3 weigh 3/4 and 1/4; layer b: equal scores weigh 1/2 each
    scores = torch.tensor([[0.0, 2.0], [math.log(3), 2.0]], dtype=torch.float64)
    result = combine(
        PerturbationAware(), [1.0, 1.0], [[4.0, 6.0], [8.0, 2.0]], layout=SMALL, scores=scores
    )
    assert result.models.tolist() == [pytest.approx([1 + 3 + 2, 1 + 4])]
    # as printed the weights are 1/(2 alpha): 2 and 2/3, and 1 and 1
    printed = combine(
        PerturbationAware(normalised=False),
        [1.0, 1.0],
        [[4.0, 6.0], [8.0, 2.0]],
        layout=SMALL,
        scores=scores,
    )
    assert printed.models.tolist() == [pytest.approx([1 + 8 + 16 / 3, 1 + 6 + 2])]


@pytest.mark.parametrize("normalised", [True, False])
def test_equal_weights_are_the_mean(normalised):
    side = PerturbationAware(weighting="equal", normalised=normalised)
    result = combine(side, [1.0, 1.0], [[4.0, 6.0], [8.0, 2.0]], layout=SMALL, scores=None)
    assert result.models.tolist() == [pytest.approx([1 + 6, 1 + 4])]


@pytest.mark.parametrize("scores", [None, torch.ones(2, 1), torch.ones(1, 2), torch.ones(2)])
def test_perturbation_aware_needs_one_score_a_client_and_layer(scores):
    with pytest.raises(FieldError, match="public_scores"):
        combine(
            PerturbationAware(), [1.0, 1.0], [[4.0, 6.0], [8.0, 2.0]], layout=SMALL, scores=scores
        )


# ---- SGA-LDP

SGA = SGALDP(epsilon_min=1.0, epsilon_max=5.0, delta=DELTA, clip=2.0)
LEAST, MOST = gaussian_sigma(1.0, DELTA, 2.0), gaussian_sigma(5.0, DELTA, 2.0)


def test_sga_clips_and_noises():
    protected = protect(SGA, START, STEP)
    assert protected.spend.scale == (pytest.approx(LEAST),)
    assert pytest.approx(2 * 3.730631635, rel=1e-9) == LEAST
    assert_deviation(noise_of(protected, START, clip(STEP, 2.0)), LEAST)


def sga_round(state, round_, start, step):
    protected = protect(SGA, start, step, round_=round_, state=state)
    return protected.state, protected.spend.scale[0]


def test_sga_takes_the_cosine_from_the_second_consecutive_round():
    # the model moved by +STEP between rounds 1 and 2: an update along it gets epsilon_max, against it epsilon_min
    state, sigma = sga_round(SGA.init(), 1, START, STEP)
    assert sigma == pytest.approx(LEAST)
    assert (state.round, torch.equal(state.model, START)) == (1, True)
    assert sga_round(state, 2, START + STEP, 3 * STEP)[1] == pytest.approx(MOST)
    assert sga_round(state, 2, START + STEP, -STEP)[1] == pytest.approx(LEAST)
    # half way: cosine 1/sqrt(2) of STEP with STEP plus something as long at right angles
    across = torch.zeros_like(STEP)
    across[0::2], across[1::2] = STEP[1::2], -STEP[0::2]
    epsilon = 1 + 4 / math.sqrt(2)
    assert sga_round(state, 2, START + STEP, STEP + across)[1] == pytest.approx(
        gaussian_sigma(epsilon, DELTA, 2.0)
    )


def test_sga_after_a_missed_round_spends_the_least():
    state, _ = sga_round(SGA.init(), 1, START, STEP)
    late, sigma = sga_round(state, 3, START + STEP, STEP)
    assert sigma == pytest.approx(LEAST)
    # having received round 3, it has a reference in round 4 again: the last two broadcasts, not an old one
    assert sga_round(late, 4, START + 2 * STEP, STEP)[1] == pytest.approx(MOST)
    assert sga_round(late, 4, START, STEP)[1] == pytest.approx(
        LEAST
    )  # the model moved by -STEP since


def test_sga_with_a_model_that_stood_still_spends_the_least():
    state, _ = sga_round(SGA.init(), 1, START, STEP)
    assert sga_round(state, 2, START, STEP)[1] == pytest.approx(LEAST)


def test_sga_by_released_similarity_spends_what_its_noise_costs():
    side = SGALDP(epsilon_min=1.0, epsilon_max=5.0, delta=DELTA, clip=2.0, similarity="released")
    state, scales = side.init(), []
    start = START
    for number, step in ((1, STEP), (2, -STEP), (3, -STEP)):
        quoted = side.quote(broadcast_of(start, number), state)
        protected = protect(side, start, step, round_=number, state=state)
        guarantee = protected.spend.guarantee
        assert (
            quoted.guarantee == guarantee
        )  # known before training: it follows from earlier releases alone
        assert guarantee.status == "conditional"
        assert protected.spend.charge == pytest.approx(
            2 * 2.0 / protected.spend.scale[0]
        )  # any two inputs: 2C
        assert guarantee.mu == pytest.approx(mu_of_epsilon(5.0, DELTA))  # the public worst case
        assert_deviation(noise_of(protected, start, clip(step, 2.0)), protected.spend.scale[0])
        scales.append(protected.spend.scale[0])
        released = protected.releases[0].value - start
        state, start = (
            protected.state,
            start + 10 * released,
        )  # the model follows the released update exactly
    # first round: the least; then the last release was along the model's last move, whatever the private step is
    assert scales == pytest.approx([2 * LEAST, 2 * MOST, 2 * MOST])


def test_sga_by_released_similarity_without_a_reference_spends_the_least():
    side = SGALDP(epsilon_min=1.0, epsilon_max=5.0, delta=DELTA, clip=2.0, similarity="released")
    first = protect(side, START, STEP)
    moved = START + (first.releases[0].value - START)
    late = protect(side, moved, STEP, round_=3, state=first.state)
    assert late.spend.scale == (pytest.approx(2 * LEAST),)


def test_sga_charges_the_noised_similarity_and_uses_it_one_round_later():
    side = SGALDP(
        epsilon_min=1.0,
        epsilon_max=5.0,
        delta=DELTA,
        clip=2.0,
        similarity="noised",
        similarity_noise=0.5,
    )
    state, _ = sga_state(side, side.init(), 1, START, STEP)
    quoted = side.quote(broadcast_of(START + STEP, 2), state)
    protected = protect(side, START + STEP, STEP, round_=2, state=state)
    assert quoted.guarantee == protected.spend.guarantee
    assert quoted.charge == protected.spend.charge
    assert protected.spend.guarantee.mu == pytest.approx(math.hypot(mu_of_epsilon(5.0, DELTA), 2.0))
    assert protected.spend.charge == pytest.approx(
        math.hypot(2 * 2.0 / protected.spend.scale[0], 2.0)
    )
    # whatever this round's private update is, the noise is what last round's noised similarity says
    against = protect(side, START + STEP, -STEP, round_=2, state=state)
    assert against.spend.scale == protected.spend.scale
    # many draws of the similarity: its mean is the cosine (1 along the last move, 0 against it), its deviation .5
    for step, expected in ((STEP, 1.0), (-STEP, 0.0)):
        drawn = [
            protect(
                side, START + STEP, step, round_=2, state=state, source=ReproducibleSource(i)
            ).state.similarity
            for i in range(400)
        ]
        assert np.mean(drawn) == pytest.approx(expected, abs=0.1)
        assert np.std(drawn) == pytest.approx(0.5, rel=0.15)


def test_sga_averages_the_reference_over_rounds_that_were_received():
    side = SGALDP(epsilon_min=1.0, epsilon_max=5.0, delta=DELTA, clip=2.0, memory=0.75)
    state, sigma = sga_state(side, side.init(), 1, START, STEP)
    assert sigma == pytest.approx(LEAST)
    state, sigma = sga_state(side, state, 2, START + STEP, STEP)
    assert sigma == pytest.approx(MOST)  # one move so far, along STEP
    # the model moves back by half: .25 (-.5 STEP) + .75 (.25 STEP) is still along STEP
    state, sigma = sga_state(side, state, 3, START + 0.5 * STEP, STEP)
    assert sigma == pytest.approx(MOST)
    assert sga_round(state, 3, START, STEP)[1] == pytest.approx(LEAST)  # without memory it is not
    late, _ = sga_state(side, state, 5, START, STEP)
    assert late.reference is None
    with pytest.raises(FieldError, match="memory"):
        SGALDP(memory=1.0)


def sga_state(side, state, round_, start, step):
    protected = protect(side, start, step, round_=round_, state=state)
    return protected.state, protected.spend.scale[0]


def test_the_server_of_section_b_noises_by_each_raw_update_and_promises_nothing():
    side = SGACentral(epsilon_min=1.0, epsilon_max=5.0, delta=DELTA, clip=2.0)
    theta = [1.0, 1.0]
    first = combine(side, theta, [[3.0, 0.0], [0.0, 4.0]])
    assert first.spend.guarantee.status == "heuristic"
    assert first.spend.guarantee.trust == "central"
    assert first.report["sigma"] == pytest.approx(
        LEAST / math.sqrt(2)
    )  # no reference yet: both spend the least
    assert first.report["clipped_fraction"] == 1.0
    # reference e1: the first update goes along it, the second across
    state = References(first.state.rule, torch.tensor([[1.0, 0.0]]))
    second = combine(side, theta, [[3.0, 0.0], [0.0, 4.0]], state=state)
    assert second.report["sigma"] == pytest.approx(math.hypot(MOST, LEAST) / 2)
    # a second direction, of which the nearest counts; and thresholds that stretch over the round
    both = References(first.state.rule, torch.eye(2))
    wide = replace(side, clusters=2)
    assert combine(wide, theta, [[3.0, 0.0], [0.0, 4.0]], state=both).report[
        "sigma"
    ] == pytest.approx(MOST / math.sqrt(2))
    stretched = replace(side, thresholds="round")
    tilted = [[3.0, 4.0], [4.0, 3.0]]  # cosines .6 and .8
    assert combine(stretched, theta, tilted, state=state).report["sigma"] == pytest.approx(
        math.hypot(MOST, LEAST) / 2
    )
    with pytest.raises(FieldError, match="global"):
        SGACentral(epsilon_min=2.0, epsilon_max=2.0)


# ---- replies


@pytest.mark.parametrize(
    "releases",
    [
        (),
        (Release("count", torch.tensor(1.0)),),
        (Release("model", torch.zeros(2)),),
        (Release("model", torch.zeros(1, 3)),),
        (Release("model", torch.zeros(3, dtype=torch.float64)),),
        (Release("model", torch.tensor([0.0, float("nan"), 0.0])),),
        (Release("model", torch.tensor([0.0, float("inf"), 0.0])),),
        (Release("model", torch.zeros(3)), Release("model", torch.zeros(3))),
        *[
            (Release("model", torch.zeros(3)), Release("count", torch.tensor(c)))
            for c in (-1.0, math.nan, math.inf)
        ],
        (Release("model", torch.zeros(3)), Release("count", torch.ones(2))),
        (
            Release("model", torch.zeros(3)),
            Release("count", torch.tensor(1.0)),
            Release("count", torch.tensor(-9.0)),
        ),
    ],
)
def test_unusable_replies_are_refused_as_replies(releases):
    with pytest.raises(ReplyError):
        check_reply(releases, 3, torch.float32)


def test_a_model_too_large_to_measure_is_refused_as_a_reply():
    # finite in float64, but its norm is not: clipping it would end the round for everybody
    with pytest.raises(ReplyError, match="too large"):
        check_reply(
            (Release("model", torch.full((3,), 1e200, dtype=torch.float64)),), 3, torch.float64
        )


def test_usable_replies():
    model = Release("model", torch.zeros(3))
    check_reply((model,), 3, torch.float32)
    check_reply(
        (model, Release("count", torch.tensor(0)), Release("metric", torch.tensor(math.nan))),
        3,
        torch.float32,
    )
    one, two = reply([1.0, 2.0], 3), reply([3.0, 4.0])
    assert stack_models([one, two]).tolist() == [[1, 2], [3, 4]]
    assert stack_counts([one, two]) is None  # one of them sent none
    assert stack_counts([one, one]).tolist() == [3, 3]
    with pytest.raises(ReplyError):
        stack_models([])
    with pytest.raises(ReplyError):
        stack_models([one, ()])


# ---- the registry


def test_build_puts_parameters_on_their_side():
    method = build("group", noise_multiplier=3.0, hypotheses=4)
    assert (method.client.noise_multiplier, method.server.hypotheses) == (3.0, 4)
    method = build("sga-ldp", FedMedian(), clip=2.0)
    assert (method.client.clip, type(method.server.aggregator)) == (2.0, FedMedian)


def test_build_refuses_what_it_does_not_know():
    with pytest.raises(FieldError, match="did you mean 'metric'"):
        build("metrics")
    with pytest.raises(FieldError, match="did you mean 'noise_multiplier'"):
        build("global", noise_multiplier=0.01, noise_multiplyer=1.0)
    with pytest.raises(FieldError, match="brings its own"):
        build("group", FedAvg())


@dataclass(frozen=True)
class Forgetful(ClientDefaults):
    """A client side without `quote` and `noise`."""

    def protect(self, releases, facts, state, source):
        return Protected(releases, nothing("local"), state)


@dataclass(frozen=True)
class Halved(ServerDefaults):
    """A server side without `combine`."""


def test_a_side_that_lacks_a_part_is_refused_before_it_runs():
    for client, server, part in (
        (Forgetful(), Plain(), "quote"),
        (TrustedServer(), Halved(), "combine"),
    ):
        with pytest.raises(FieldError) as refused:
            Method("mine", client, server)
        assert refused.value.value == "mine"
        assert f"`{part}`" in refused.value.accepted
    with pytest.raises(FieldError) as refused:
        paired(Forgetful())
    assert "`quote`" in refused.value.accepted


def test_a_registered_method_that_lacks_a_part_is_refused_by_its_name():
    METHODS.register("forgetful")(Sides(Forgetful, Plain, "without a cost"))
    METHODS.register("halved")(Sides(TrustedServer, Halved, "without a result"))
    for name, part in (("forgetful", "quote"), ("halved", "combine")):
        with pytest.raises(FieldError) as refused:
            build(name)
        assert refused.value.value == name
        assert f"`{part}`" in refused.value.accepted


@dataclass(frozen=True)
class HalfNoisy(Forgetful):
    """A side that says that it noises inside training, and does not say how."""

    needs = frozenset({"noisy_steps"})

    def quote(self, broadcast, state):
        return nothing("local")

    def noise(self, scales, layout):
        return {}


def test_a_side_that_noises_in_training_says_how():
    with pytest.raises(FieldError) as refused:
        Method("mine", HalfNoisy(), Plain())
    assert "`noisy_steps`" in refused.value.accepted


@dataclass(frozen=True)
class Undeclared(ServerDefaults):
    """A server side that noises and says so in its cost alone."""

    promised: str = "add/remove"

    def combine(self, replies, facts, state, source):
        mean = stack_models(replies).mean(0)
        spend = Spend(
            guarantee=of_round(GDP(0.5), "central", self.promised),
            mechanism="gaussian",
            scale=(1.0,),
        )
        return Combined(models=mean[None], state=state, spend=spend)


@dataclass(frozen=True)
class Declared(Undeclared):
    may_be_proven = True
    relation = "add/remove"


@dataclass(frozen=True)
class OtherRelation(Undeclared):
    may_be_proven = True


@pytest.mark.parametrize("side", [Undeclared(), Undeclared("zero-out"), OtherRelation()])
def test_a_server_side_promises_what_it_declares(side):
    zero = torch.zeros(1, 3)
    replies = {p: (Release("model", zero[0]),) for p in range(3)}
    layout = Layout.from_shapes({"w": (3,)})
    server = ServerParty(Method("mine", TrustedServer(), side), layout)
    with pytest.raises(FieldError) as refused:
        server.combine(server.open(zero, 1, 1, 3), RoundAnswers(replies))
    assert refused.value.value == "mine"
    assert not server.ledger.entries
    honest = ServerParty(Method("mine", TrustedServer(), Declared()), layout)
    _, log = honest.combine(honest.open(zero, 1, 1, 3), RoundAnswers(replies))
    assert log.spend.guarantee.mu == 0.5
