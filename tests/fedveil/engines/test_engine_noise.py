"""What the embedded engine releases, method by method, against the same round computed by hand without noise.

The clients' steps are 50 times longer than any clipping norm, so that leaving out the clip is visible; the check of the
deviation fails for half the noise, twice the noise and none.
"""

import itertools
import math

import pytest
import torch

from core_kit import assert_deviation, assert_laplace
from engine_kit import scripted
from fedveil.accounting import model_of
from fedveil.aggregation import FedAdam, FedAvg, FedMedian
from fedveil.mechanisms import gaussian_sigma
from fedveil.methods import build

D, N, C, Z, DELTA = 20_000, 4, 2.0, 0.7, 1e-5
LAYERS = (slice(0, 10_000), slice(10_000, D))


def steps(n=N, length=100.0):
    """n steps [d] of one length, in unlike directions."""
    generator = torch.Generator().manual_seed(11)
    raw = torch.randn(n, D, generator=generator, dtype=torch.float64)
    return length * raw / raw.norm(dim=1, keepdim=True)


def cut(vectors, bound):
    """Rows of norm above the bound, scaled to it: straight from the definition."""
    lengths = vectors.norm(dim=-1, keepdim=True)
    return vectors * (bound / lengths).clamp(max=1.0)


def spread(moved):
    """Largest mean over the two arrays of the distance between two clients."""
    pairs = [(a, b) for i, a in enumerate(moved) for b in moved[i + 1 :]]
    return max(sum(float((a - b)[s].norm()) for s in LAYERS) / 2 for a, b in pairs)


def one_round(method, moved, **learner):
    fed = scripted(method, moved, **learner)
    start = fed.models.clone()
    (record,) = fed.run(1).rounds
    return start, fed.models, record, fed


def test_vanilla_is_exactly_the_mean():
    moved = steps()
    start, after, record, _ = one_round(build("vanilla"), moved)
    torch.testing.assert_close(after - start, moved.mean(0, keepdim=True), rtol=1e-9, atol=1e-9)
    assert record.round.spend.guarantee.status == "none"


@pytest.mark.parametrize("order", ["formal", "printed"])
def test_global(order):
    moved = steps()
    start, after, record, _ = one_round(
        build("global", noise_multiplier=Z, clip=C, order=order), moved
    )
    noise = after[0] - start[0] - cut(moved, C).mean(0)
    assert_deviation(noise, Z * C / N)
    assert record.round.spend.scale == (pytest.approx(Z * C / N),)


def test_global_median():
    moved = steps(3)
    start, after, _, _ = one_round(build("global", FedMedian(), noise_multiplier=Z, clip=C), moved)
    assert_deviation(after[0] - start[0] - cut(moved, C).median(0).values, Z * C)  # not Z C / 3


def test_global_with_an_optimiser_steps_on_the_noised_mean():
    moved = steps()
    rule = FedAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)
    start, after, _, fed = one_round(build("global", rule, noise_multiplier=Z, clip=C), moved)
    seen = fed.server.state.rule.first / 0.1
    assert_deviation(seen - cut(moved, C).mean(0), Z * C / N)
    expected = 0.1 * (0.1 * seen) / ((0.01 * seen**2).sqrt() + 1e-3)
    torch.testing.assert_close(after[0] - start[0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", ["formal", "printed"])
def test_metric(order):
    moved = steps()
    method = build("metric", FedAvg(), noise_multiplier=50.0, clip=C, order=order)
    start, after, record, _ = one_round(method, moved)
    sigma = 50.0 * C / (N * spread(moved))  # the distance before clipping
    assert_deviation(after[0] - start[0] - cut(moved, C).mean(0), sigma)
    assert record.round.report["sigma"] == pytest.approx(sigma)


def test_metric_with_one_boasting_client():
    moved = steps()
    moved[3] *= 1e6
    start, after, record, _ = one_round(build("metric", noise_multiplier=50.0, clip=C), moved)
    sigma = 50.0 * C / (N * spread(moved[:3]))
    assert_deviation(after[0] - start[0] - cut(moved, C).mean(0), sigma)
    assert record.round.report["outliers"] == 1


def test_metric_with_identical_clients():
    moved = steps(1).repeat(N, 1)
    start, after, record, _ = one_round(build("metric", noise_multiplier=Z, clip=C), moved)
    assert_deviation(after[0] - start[0] - cut(moved, C).mean(0), Z * C / N)
    assert record.round.report["global_fallback"] == 1


@pytest.mark.parametrize("radius", [None, 30.0])
def test_group(radius):
    # two clients far apart, each alone in its cluster: the new hypotheses are their releases
    nu, moved = 2.0, torch.stack([steps(1, 10.0)[0], steps(1, 40.0)[0]])
    fed = scripted(build("group", noise_multiplier=nu, radius=radius), moved, chosen={0: 0, 1: 1})
    fed.models[1] += 1000.0
    start = fed.models.clone()
    (record,) = fed.run(1).rounds
    assert (record.round.report["cluster_0"], record.round.report["cluster_1"]) == (1, 1)
    for j in range(2):
        epsilon = D / (nu * (radius or float(moved[j].norm())))
        assert_laplace(fed.models[j] - start[j] - moved[j], epsilon)
        assert record.client_scales[j] == (pytest.approx(epsilon),)


def test_fedre():
    # private scores 1 and 3 share epsilon 3 : 1; public scores 0 and ln 3 weigh the clients 3/4 and 1/4 in every layer
    moved, bound = steps(2), 0.5
    public = torch.tensor([[0.0, 0.0], [math.log(3), math.log(3)]], dtype=torch.float64)
    method = build("fedre", epsilon=40.0, delta=DELTA, clip=bound)
    start, after, record, _ = one_round(
        method, moved, scores={"0": 1.0, "1": 3.0}, public_scores=public
    )
    weights = (0.75, 0.25)
    for share, layer in ((0.75, LAYERS[0]), (0.25, LAYERS[1])):
        deviation = bound * math.sqrt(2 * 1 * math.log(2 / DELTA)) / (40.0 * share)
        expected = sum(w * cut(m[layer], bound) for w, m in zip(weights, moved, strict=True))
        noise = (after[0] - start[0])[layer] - expected
        assert_deviation(noise, deviation * math.hypot(*weights))
    assert record.round.report["largest_weight"] == pytest.approx(0.75)


def test_sga_ldp_over_two_rounds():
    moved = steps(
        2, 1e5
    )  # the noise is hundreds of times longer than C: an unclipped step has to stand out from it
    moved[1] = -2 * moved[0]
    fed = scripted(build("sga-ldp", epsilon_min=1.0, epsilon_max=5.0, delta=DELTA, clip=C), moved)
    models, records = [fed.models[0].clone()], []
    for record in fed.rounds(2):
        models.append(fed.models[0].clone())
        records.append(record)
    clipped = cut(moved, C)
    # first round: both spend epsilon_min, and the mean of two noises has deviation sigma / sqrt(2)
    least = gaussian_sigma(1.0, DELTA, C)
    assert_deviation(models[1] - models[0] - clipped.mean(0), least / math.sqrt(2))
    assert [records[0].client_scales[p][0] for p in range(2)] == pytest.approx([least, least])
    # second round: by the cosine with the model's last move; of two opposite clients one has a positive one
    reference = models[1] - models[0]
    cosines = [float(m @ reference / m.norm() / reference.norm()) for m in clipped]
    assert max(cosines) > 0 > min(cosines)
    sigmas = [gaussian_sigma(1 + 4 * max(0.0, c), DELTA, C) for c in cosines]
    assert [records[1].client_scales[p][0] for p in range(2)] == pytest.approx(sigmas)
    assert_deviation(models[2] - models[1] - clipped.mean(0), math.hypot(*sigmas) / 2)


@pytest.mark.parametrize("name", ["group", "sga-ldp", "fedre"])
def test_every_client_and_round_has_its_own_noise(name):
    step = steps(1, 10.0)[0]
    sent = {  # what each of two identical clients would send without noise, for the methods' default clipping norms
        "group": step,
        "sga-ldp": cut(step, 1.0),
        "fedre": torch.cat([cut(step[layer], 0.2) for layer in LAYERS]),
    }[name]
    options = {"group": {"noise_multiplier": 1.0, "hypotheses": 1}}.get(name, {})
    learner = {
        "scores": {"0": 1.0, "1": 1.0},
        "public_scores": torch.ones(2, 2, dtype=torch.float64),
    }
    fed = scripted(build(name, **options), step.repeat(2, 1), **learner)
    noises, combine = [], fed.server.combine

    def watched(broadcast, answers, *rest):
        noises.extend(model_of(r) - broadcast.models[0] - sent for r in answers.replies.values())
        return combine(broadcast, answers, *rest)

    fed.server.combine = watched
    fed.run(2)
    assert len(noises) == 4
    for a, b in itertools.combinations(noises, 2):
        assert abs(float(a @ b / a.norm() / b.norm())) < 6 / math.sqrt(
            D
        )  # six deviations of an honest cosine
