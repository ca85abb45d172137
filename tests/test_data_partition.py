import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.data import ALZHEIMER_HOMOGENEOUS, ALZHEIMER_NON_IID, DataSet, federate, holdout, partition
from fedveil.errors import FieldError

labels = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array)


@given(y=labels, clients=st.integers(1, 10), seed=st.integers(0, 50))
@settings(deadline=None)
def test_iid_deals_everything_out_once_in_equal_parts(y, clients, seed):
    parts = partition(y, clients, "iid", seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(y=labels, clients=st.integers(1, 10), seed=st.integers(0, 50), alpha=st.sampled_from([0.01, 0.1, 1.0, 100.0]))
@settings(deadline=None, max_examples=50)
def test_dirichlet_deals_everything_out_once_and_leaves_nobody_empty(y, clients, seed, alpha):
    parts = partition(y, clients, "dirichlet", seed=seed, alpha=alpha)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    if len(y) >= clients:
        assert min(map(len, parts)) >= 1
    again = partition(y, clients, "dirichlet", seed=seed, alpha=alpha)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_a_small_alpha_is_uneven_and_a_large_one_even():
    y = np.repeat(np.arange(4), 250)

    def spread(alpha):
        parts = partition(y, 5, "dirichlet", seed=0, alpha=alpha)
        return np.std([np.bincount(y[p], minlength=4) for p in parts])

    assert spread(0.1) > 5 * spread(100.0)


@given(y=labels, data=st.data())
@settings(deadline=None)
def test_counts_are_exact_and_disjoint(y, data):
    sizes = np.bincount(y, minlength=5)
    first = [data.draw(st.integers(0, int(n))) for n in sizes]
    second = [data.draw(st.integers(0, int(n - k))) for n, k in zip(sizes, first, strict=True)]
    parts = partition(y, 2, "counts", seed=1, counts=[first, second])
    assert [np.bincount(y[p], minlength=5).tolist() for p in parts] == [first, second]
    assert not set(parts[0].tolist()) & set(parts[1].tolist())


@given(y=labels, fraction=st.floats(0, 0.9), seed=st.integers(0, 20))
@settings(deadline=None)
def test_holdout_splits_stratified_and_keeps_every_class_in_training(y, fraction, seed):
    own = np.arange(0, len(y), 2)
    train, test = holdout(y, own, fraction, seed=seed)
    assert sorted([*train.tolist(), *test.tolist()]) == own.tolist()
    assert set(y[train]) == set(y[own])
    assert len(test) <= round(fraction * len(own))
    for c in set(y[own].tolist()):
        assert abs((y[test] == c).sum() - fraction * (y[own] == c).sum()) <= 1


def test_holdout_by_hand():
    y = np.array([0] * 10 + [1] * 5 + [2])
    train, test = holdout(y, np.arange(16), 0.2, seed=0)
    assert np.bincount(y[test], minlength=3).tolist() == [2, 1, 0]
    assert len(train) == 13


def test_the_papers_counts_add_up():
    for counts in (ALZHEIMER_HOMOGENEOUS, ALZHEIMER_NON_IID):
        assert np.sum(counts, axis=0).tolist() == [724, 49, 2566, 1781]
    assert np.sum(ALZHEIMER_HOMOGENEOUS, axis=1).tolist() == [1280] * 4
    assert np.sum(ALZHEIMER_NON_IID, axis=1).tolist() == [1792, 768, 2048, 512]


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        ("counts", {"counts": [[3, 1], [2, 1]]}, "class 0"),
        ("counts", {"counts": [[3, 1]]}, "one row a client"),
        ("counts", {"counts": [[1, 1], [1]]}, "one number a class"),
        ("counts", {"counts": [[1, -1], [1, 1]]}, "counts"),
        ("counts", {}, "is needed"),
        ("dirichlet", {}, "alpha"),
        ("dirichlet", {"alpha": 0.0}, "alpha"),
        ("iid", {"alpha": 1.0}, "no option"),
        ("idd", {}, "did you mean 'iid'"),
    ],
)
def test_refusals(scheme, options, message):
    with pytest.raises(FieldError, match=message):
        partition(np.array([0, 0, 0, 0, 1, 1]), 2, scheme, seed=0, **options)
    with pytest.raises(FieldError, match="holdout"):
        holdout(np.zeros(3), np.arange(3), 1.0, seed=0)


def test_federate_gives_every_example_to_one_place():
    x = torch.arange(40.0)[:, None]
    data = DataSet(name="toy", x=x, y=torch.arange(40) % 2, classes=2)
    clients = federate(data, clients=4, seed=3)
    everything = torch.cat([part for c in clients for part in (c.x, c.test_x)])
    assert sorted(everything.flatten().tolist()) == list(range(40))
    assert [(c.examples, c.held_out, c.name) for c in clients] == [(8, 2, f"client-{i}") for i in range(4)]
    assert all(torch.equal(c.x.flatten().long() % 2, c.y) for c in clients)
    assert federate(data, clients=4, seed=3, holdout=0)[0].test_x is None
    targets = DataSet(name="toy", x=x, y=torch.rand(40))
    assert sum(c.examples for c in federate(targets, clients=3, seed=0)) == 31
