"""The server's kernels against slow and obvious versions of themselves, and what they hold in memory."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedveil.aggregation import AGGREGATORS, FedAvg, FedMedian, Krum, TrimmedMean, cluster_means
from fedveil.aggregation import base as mean_kernel
from fedveil.aggregation import clusters as cluster_kernel
from fedveil.aggregation import ranks as rank_kernel
from fedveil.aggregation.ranks import middle_mean, network
from fedveil.calibration import distance as distance_kernel
from fedveil.calibration import max_pairwise_distance
from fedveil.calibration.distance import squared_distances
from fedveil.layout import Layout
from fedveil.mechanisms import NoSource


def uniform(n):
    return torch.full((n,), 1 / n, dtype=torch.float64)


def naive(models):
    """Distances by a double loop in float64."""
    rows = models.double().numpy()
    return np.array([[np.linalg.norm(p - q) for q in rows] for p in rows])


def worst(found, expected):
    """Largest relative error over pairs; equal rows have to be at distance 0."""
    assert np.all(found[expected == 0] == 0)
    return float(np.max(np.abs(found - expected)[expected > 0] / expected[expected > 0], initial=0))


class Allocations(TorchDispatchMode):
    """Notes the size of the largest tensor that is made, views of a given one apart."""

    def __init__(self, given_):
        super().__init__()
        self.known, self.largest = given_.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() != self.known:
                self.largest = max(self.largest, made.untyped_storage().nbytes())
        return result


def largest_allocation(work, models):
    with Allocations(models) as seen:
        work(models)
    return seen.largest


# ---- distances


@given(
    st.integers(2, 30),
    st.sampled_from([1, 2, 7, 300]),
    st.sampled_from([1.0, 1e-2, 1e-3, 1e-4]),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**32 - 1),
)
def test_every_pair_is_right_to_a_millionth_also_for_close_models(n, d, spread, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    common = 3 * torch.randn(d, generator=generator, dtype=torch.float64)
    models = (common + spread * torch.randn(n, d, generator=generator, dtype=torch.float64)).to(
        dtype
    )
    squared = squared_distances(models)
    assert worst(squared.sqrt().numpy(), naive(models)) < 1e-6
    assert torch.equal(squared, squared.T)
    layout = Layout.from_shapes({"w": (d,)}, dtype)
    assert max_pairwise_distance(models, layout) == pytest.approx(naive(models).max(), rel=1e-6)


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("n", [12, 150])  # one tile of the product, and two
def test_close_models_of_many_columns(n, spread):
    models = 3 * torch.randn(40_000 if n == 12 else 5000) + spread * torch.randn(
        n, 40_000 if n == 12 else 5000
    )
    expected = naive(models)
    assert worst(squared_distances(models).sqrt().numpy(), expected) < 1e-6
    raw = models @ models.T  # what centring is for
    squares = raw.diagonal()[:, None] + raw.diagonal() - 2 * raw
    assert worst(np.sqrt(np.maximum(squares.fill_diagonal_(0).numpy(), 0)), expected) > 1e-3


# subtracted; one tile of products; two
@pytest.mark.parametrize(
    ("n", "value"), [(n, v) for n in (3, 9) for v in (0.1, 0.7, 0.9)] + [(140, 0.7)]
)
def test_columns_that_hold_the_same_number_do_not_drift(n, value):
    models = (value * torch.arange(n, dtype=torch.float64)[:, None] * torch.ones(40_000)).float()
    expected = naive(models)
    assert worst(squared_distances(models).sqrt().numpy(), expected) < 3e-6
    layout = Layout.from_shapes({"w": (40_000,)})
    assert max_pairwise_distance(models, layout) == pytest.approx(expected.max(), rel=1e-9)


def one_by_one(left, right):
    """Products of [k, h, c] and [k, c, m] in float32, columns added in one chain, each sum rounded once (FMA).

    No processor rounds worse: they add several shorter chains, of lengths of their own.
    """
    total = torch.zeros(left.shape[0], left.shape[1], right.shape[2])
    for i in range(left.shape[2]):
        total = (total + left[:, :, i, None].double() * right[:, i, None].double()).float()
    return total


@pytest.mark.parametrize(("n", "value"), [(9, 0.1), (9, 0.7), (9, 0.9), (140, 0.7)])
def test_nor_do_they_where_a_processor_adds_one_by_one(monkeypatch, n, value):
    # all products are rounded alike, and the chain drifts off
    models = (value * torch.arange(n, dtype=torch.float64)[:, None] * torch.ones(2048)).float()
    ones = models[1:3][None]
    drifted = one_by_one(ones, ones.mT)[0, 0, 1].double() / (
        ones[0, 0].double() @ ones[0, 1].double()
    )
    assert abs(drifted - 1) > 1e-5
    product = torch.bmm
    monkeypatch.setattr(
        torch, "bmm", lambda a, b: one_by_one(a, b) if a.dtype == torch.float32 else product(a, b)
    )
    assert worst(squared_distances(models).sqrt().numpy(), naive(models)) < 3e-6


def test_models_far_from_zero_and_close_to_each_other():
    # at 100 a float32 has steps of 7.6e-6: the differences take a few hundred values, and hardly round at random
    for n in (2, 8, 9, 40):
        models = 100 + 1e-3 * torch.randn(n, 30_000)
        assert worst(squared_distances(models).sqrt().numpy(), naive(models)) < 1e-6


def clustered(generator):
    rows = 1e-3 * torch.randn(30, 400, generator=generator)
    rows[::2] += torch.randn(400, generator=generator)
    rows[4] = rows[6] = rows[8]
    return rows


@pytest.mark.parametrize(
    "make",
    [
        lambda g: torch.cat([1e6 * torch.ones(1, 400), 1e-3 * torch.randn(30, 400, generator=g)]),
        clustered,
        lambda g: torch.linspace(0, 1, 40)[:, None] * torch.randn(400, generator=g),
        lambda g: torch.randn(40, 400, generator=g).cumsum(0),
        lambda g: 1e-25 * torch.randn(20, 400, generator=g),
        lambda g: 1e30 * torch.randn(20, 400, generator=g),
        lambda g: 1e-150 * torch.randn(20, 400, generator=g, dtype=torch.float64),
        lambda g: torch.ones(20, 400),
    ],
    ids=[
        "one far away",
        "clusters and twins",
        "line",
        "walk",
        "tiny",
        "huge",
        "tiny float64",
        "equal",
    ],
)
def test_models_that_lose_digits_around_a_common_mean(make):
    models = make(torch.Generator().manual_seed(0))
    assert worst(squared_distances(models).sqrt().numpy(), naive(models)) < 1e-6


def test_krum_tells_close_updates_apart_beside_a_far_one():
    # one attacker at 1e6; of the others the first is the closest to all, by a thousandth of a thousandth
    offsets = torch.tensor([0.0, 1, -1, 1.1, -1.1, 1.2, -1.2, 1.3, -1.3, 1.4])
    updates = 1e-3 * offsets[:, None] * torch.nn.functional.one_hot(torch.arange(10) % 5, 64)
    updates = torch.cat([1e6 * torch.ones(1, 64), updates])
    assert torch.equal(Krum(malicious=1).reduce(updates, uniform(11)), updates[1])


@pytest.mark.parametrize("metric", ["layer_frobenius", "euclidean"])
@pytest.mark.parametrize("height", [1, 7, 1 << 10])
def test_the_matrix_is_worked_on_in_strips(monkeypatch, metric, height):
    monkeypatch.setattr(distance_kernel, "_HEIGHT", height)
    layout = Layout.from_shapes(
        {"a.weight": (5, 8), "b": (3,), "a.bias": (30,)}
    )  # module "a" lies in two places
    models = 2 + 1e-3 * torch.randn(33, layout.size)
    models[21] += 2e-4 * torch.randn(layout.size)
    for grouping in ("array", "module"):
        groups = (
            list(layout.groups(grouping).values())
            if metric == "layer_frobenius"
            else [[slice(0, layout.size)]]
        )
        parts = [naive(torch.cat([models[:, s] for s in columns], dim=1)) for columns in groups]
        expected = np.mean(parts, axis=0).max()
        # measured again in float64: exact, and not merely to a millionth
        assert max_pairwise_distance(models, layout, grouping, metric) == pytest.approx(
            expected, rel=1e-12
        )


def test_distances_make_no_second_stack():
    n, d = 40, 200_000
    models, layout = torch.randn(n, d), Layout.from_shapes({"w": (d,)})
    bound = models.nbytes / 10
    assert largest_allocation(lambda m: max_pairwise_distance(m, layout), models) < bound
    assert largest_allocation(squared_distances, models) < bound
    assert largest_allocation(lambda m: cluster_means(m, models[:2]), models) < bound
    assert (
        largest_allocation(lambda m: m.double(), models) > bound
    )  # the measurement notices a copy


# ---- medians and trimmed means


@pytest.mark.parametrize("n", range(1, 11))
def test_a_network_keeps_the_middle_of_all_zeros_and_ones(n):
    """Knuth's 0-1 principle: what holds for all of these holds for all inputs."""
    rows = ((torch.arange(2**n) >> torch.arange(n)[:, None]) & 1).to(torch.float32)
    for cut in range((n + 1) // 2):
        ordered = rows.sort(dim=0).values[cut : n - cut]
        assert torch.equal(middle_mean(rows, cut), ordered.double().mean(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 10, 31, 32, 33, 34, 65])
def test_medians_have_numpys_bits(n, dtype, monkeypatch):
    monkeypatch.setattr(rank_kernel, "_COLUMNS", (64, 64))  # several blocks, the last one shorter
    updates = torch.randn(n, 200, dtype=dtype)
    updates[:, :20] = updates[:, :20].round()  # ties
    before = updates.clone()
    found = FedMedian().reduce(updates, uniform(n))
    assert torch.equal(found, torch.from_numpy(np.median(updates.double().numpy(), axis=0)))
    if n % 2:
        assert torch.equal(found, updates.median(0).values.double())
    for fraction in (0.1, 0.3, 0.49):
        cut = int(fraction * n)
        expected = updates.double().sort(dim=0).values[cut : n - cut].mean(0)
        found = TrimmedMean(fraction).reduce(updates, uniform(n))
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-15)
    assert torch.equal(updates, before)


def test_both_ways_of_a_median_agree(monkeypatch):
    for n in (2, 7, 12):
        updates = torch.randn(n, 300)
        for cut in range((n + 1) // 2):
            sorted_ = middle_mean(updates, cut)
            monkeypatch.setattr(rank_kernel, "NETWORK", 0)
            torch.testing.assert_close(middle_mean(updates, cut), sorted_)
            monkeypatch.undo()


def test_what_nobody_needs_is_left_out_of_a_network():
    assert len(network(10, 0)) == 0  # a plain mean compares nothing
    assert len(network(10, 4)) < len(rank_kernel._batcher(10))
    assert sum(c.lower + c.upper for c in network(10, 4)) < 2 * len(network(10, 4))


@pytest.mark.parametrize("n", [10, 40])
def test_medians_hold_one_block_of_scratch(n):
    updates = torch.randn(n, 2_000_000 // n)
    weights = uniform(n)
    tracemalloc.start()
    FedMedian().reduce(updates, weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * updates[0].nbytes + updates.nbytes / 4


# ---- sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mean_is_summed_in_float64_block_by_block(dtype):
    n, d = 19, 40_000  # several blocks of rows and of columns
    updates, weights = torch.randn(n, d, dtype=dtype), torch.rand(n, dtype=torch.float64)
    expected = (weights @ updates.double(), weights @ (updates - updates[0]).double())
    found = (
        FedAvg().reduce(updates, weights),
        mean_kernel.weighted_sum(list(updates), weights, updates[0]),
    )
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", AGGREGATORS)
def test_a_rule_reduces_into_a_tensor_of_its_own(name):
    # noise is added to it in place
    rule, updates = AGGREGATORS[name](), torch.randn(4, 50)
    rule = rule.for_round(rule.init(50, torch.float32), NoSource(), torch.ones(50))
    before, model = updates.clone(), torch.zeros(50)
    reduced = rule.reduce(updates, uniform(4))
    stepped, _ = rule.step(model, reduced.clone(), rule.init(50, torch.float32))
    reduced += 1
    stepped += 1
    assert torch.equal(updates, before)
    assert torch.equal(model, torch.zeros(50))


@pytest.mark.parametrize(("n", "d"), [(20, 300_000), (3000, 2000)])
def test_a_mean_holds_one_vector_and_one_block(n, d):
    updates = torch.randn(n, d)
    assert largest_allocation(lambda u: FedAvg().reduce(u, uniform(n)), updates) <= max(
        8 * d, 8 << 18
    )
    if n == 20:
        assert (
            largest_allocation(lambda u: Krum().reduce(u, uniform(n)), updates) < updates.nbytes / 4
        )


# ---- clusters

PATHS = pytest.mark.parametrize(
    "paired", [0, 10_000], ids=["passes over the models", "distances of pairs"]
)


@PATHS
@pytest.mark.parametrize("common", [0.0, 100.0])
def test_clusters_are_scikit_learns_on_separated_data(monkeypatch, paired, common):
    monkeypatch.setattr(cluster_kernel, "_PAIRED", paired)
    generator = np.random.default_rng(1)
    true = common + generator.normal(size=(4, 300))
    models = np.repeat(true, 10, axis=0) + 0.3 * generator.normal(size=(40, 300))
    hypotheses = true + 0.5 * generator.normal(size=(4, 300))
    theirs = KMeans(n_clusters=4, init=hypotheses, n_init=1, tol=0).fit(models)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        given_ = torch.from_numpy(models).to(dtype), torch.from_numpy(hypotheses).to(dtype)
        centres, labels = cluster_means(*given_)
        assert labels.tolist() == theirs.labels_.tolist()
        np.testing.assert_allclose(centres, theirs.cluster_centers_, rtol=tolerance, atol=tolerance)
        again = cluster_means(*given_)
        assert torch.equal(centres, again[0])
        assert torch.equal(labels, again[1])


@pytest.mark.parametrize("seed", range(6))
def test_both_ways_of_clustering_agree(monkeypatch, seed):
    generator = torch.Generator().manual_seed(seed)
    models = torch.randn(
        40, 6, generator=generator, dtype=torch.float64
    )  # no clusters at all: many iterations
    hypotheses = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    hypotheses[4] += 50  # never has a member
    monkeypatch.setattr(cluster_kernel, "_PAIRED", 0)
    slow = cluster_means(models, hypotheses)
    monkeypatch.undo()
    fast = cluster_means(models, hypotheses)
    assert torch.equal(slow[1], fast[1])
    torch.testing.assert_close(slow[0], fast[0])
    assert torch.equal(fast[0][4], hypotheses[4])


@PATHS
def test_equal_hypotheses_do_not_share_their_members_by_rounding(monkeypatch, paired):
    monkeypatch.setattr(cluster_kernel, "_PAIRED", paired)
    models, start = torch.randn(60, 501), torch.randn(501)
    _, labels = cluster_means(models, torch.stack([start] * 7), iterations=1)
    assert labels.tolist() == [0] * 60


@PATHS
def test_a_far_model_does_not_blur_the_others(monkeypatch, paired):
    monkeypatch.setattr(cluster_kernel, "_PAIRED", paired)
    sides = torch.tensor([[-1.0], [1.0]]) * torch.ones(2, 64)
    models = torch.cat([sides[torch.arange(20) % 2] * 1e-2, torch.full((1, 64), 1e4)])
    _, labels = cluster_means(models, torch.cat([sides, torch.full((1, 64), 5e3)]))
    assert labels.tolist() == [0, 1] * 10 + [2]
