from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedveil.data import (
    ALZHEIMER_HOMOGENEOUS,
    ALZHEIMER_NON_IID,
    DataSet,
    federate,
    holdings,
    holdout,
    partition,
    warnings_of,
)
from fedveil.errors import FieldError

labels = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array)


@given(y=labels, clients=st.integers(1, 10), seed=st.integers(0, 50))
@settings(deadline=None)
def test_iid_deals_everything_out_once_in_equal_parts(y, clients, seed):
    assume(clients <= len(y))
    parts = partition(y, clients, "iid", seed=seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(
    y=labels,
    clients=st.integers(1, 10),
    seed=st.integers(0, 50),
    alpha=st.sampled_from([0.01, 0.1, 1.0, 100.0]),
)
@settings(deadline=None, max_examples=50)
def test_dirichlet_deals_everything_out_once_and_leaves_nobody_empty(y, clients, seed, alpha):
    assume(clients <= len(y))
    parts = partition(y, clients, "dirichlet", seed=seed, alpha=alpha)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
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
        ("counts", {"counts": [[3, 1]]}, "must be the number of rows of counts, 1"),
        ("counts", {"counts": [[1, 1], [1]]}, "one number a class"),
        ("counts", {"counts": [[1, -1], [1, 1]]}, "counts"),
        ("counts", {}, "is needed"),
        ("dirichlet", {}, "alpha"),
        ("dirichlet", {"alpha": 0.0}, "alpha"),
        ("iid", {"alpha": 1.0}, "no option"),
        ("idd", {}, "did you mean 'iid'"),
        ("quantity", {}, "alpha"),
        ("iid", {"shards": 2}, "no option"),
        ("shards", {"shards": 0}, "shards"),
        ("natural", {}, "owner"),
        ("iid", {"owner": [0] * 6}, "no option"),
        ("natural", {"owner": [0] * 6}, "clients = 2: only 1 natural clients hold at least 1"),
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
    assert [(c.examples, c.held_out, c.name) for c in clients] == [
        (8, 2, f"client-{i}") for i in range(4)
    ]
    assert all(torch.equal(c.x.flatten().long() % 2, c.y) for c in clients)
    assert federate(data, clients=4, seed=3, holdout=0)[0].test_x is None
    targets = DataSet(name="toy", x=x, y=torch.rand(40))
    assert sum(c.examples for c in federate(targets, clients=3, seed=0)) == 31


@given(
    y=labels,
    clients=st.integers(1, 10),
    seed=st.integers(0, 50),
    alpha=st.sampled_from([0.05, 1.0, 100.0]),
    least=st.integers(0, 3),
)
@settings(deadline=None, max_examples=50)
def test_quantity_deals_everything_out_once_with_a_least_size(y, clients, seed, alpha, least):
    assume(clients <= len(y))
    parts = partition(y, clients, "quantity", seed=seed, alpha=alpha, min_size=least)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    assert min(map(len, parts)) >= min(least, len(y) // clients)
    again = partition(y, clients, "quantity", seed=seed, alpha=alpha, min_size=least)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_quantity_skews_sizes_and_not_classes():
    y = np.tile(np.arange(4), 500)
    parts = partition(y, 5, "quantity", seed=0, alpha=0.5)
    sizes = np.array([len(p) for p in parts])
    assert sizes.max() > 3 * sizes.min()
    assert not np.array_equal(
        sizes, [len(p) for p in partition(y, 5, "quantity", seed=1, alpha=0.5)]
    )
    large = y[parts[int(sizes.argmax())]]
    assert np.bincount(large).min() > 0.2 * len(large)


@given(y=labels, clients=st.integers(1, 8), shards=st.integers(1, 3), seed=st.integers(0, 20))
@settings(deadline=None, max_examples=50)
def test_shards_deal_everything_out_once_in_equal_sizes(y, clients, shards, seed):
    assume(clients <= len(y))
    parts = partition(y, clients, "shards", seed=seed, shards=shards)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    assert max(map(len, parts)) - min(map(len, parts)) <= shards


def test_two_shards_of_sorted_labels_hold_two_classes():
    y = np.random.default_rng(0).permutation(
        np.repeat(np.arange(10), 60)
    )  # 20 shards of 30: none spans two classes
    parts = partition(y, 10, "shards", seed=4)
    assert [len(p) for p in parts] == [60] * 10
    assert max(len(set(y[p].tolist())) for p in parts) == 2
    assert not np.array_equal(parts[0], partition(y, 10, "shards", seed=5)[0])


@given(
    owner=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    least=st.integers(1, 4),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=50)
def test_natural_clients_keep_what_is_theirs(owner, least, seed):
    owner = np.array(owner)
    enough = [c for c in np.unique(owner) if (owner == c).sum() >= least]
    if not enough:
        with pytest.raises(FieldError, match="min_size"):
            partition(owner, None, "natural", seed=seed, owner=owner, min_size=least)
        return
    parts = partition(owner, None, "natural", seed=seed, owner=owner, min_size=least)
    assert [p.tolist() for p in parts] == [np.flatnonzero(owner == c).tolist() for c in enough]
    some = partition(owner, 1, "natural", seed=seed, owner=owner, min_size=least)
    assert some[0].tolist() in [p.tolist() for p in parts]


def toy(y, **fields):
    y = torch.tensor(y)
    return DataSet(name="toy", x=torch.arange(float(len(y)))[:, None], y=y, **fields)


def test_federate_by_nature():
    data = toy(
        [0, 1, 0, 1, 1], classes=2, owner=torch.tensor([1, 0, 1, 1, 0]), owners=("north", "south")
    )
    clients = federate(data, clients="natural", seed=0, holdout=0)
    assert [(c.name, c.x.flatten().tolist()) for c in clients] == [
        ("north", [1.0, 4.0]),
        ("south", [0.0, 2.0, 3.0]),
    ]
    one = federate(data, clients=1, scheme="natural", seed=0, min_size=3)
    assert [c.name for c in one] == ["south"]
    with pytest.raises(FieldError, match="natural clients are not dealt out"):
        federate(data, clients="natural", scheme="dirichlet", alpha=1.0, seed=0)
    with pytest.raises(FieldError, match="does not say whose its examples are"):
        federate(toy([0, 1], classes=2), clients="natural", seed=0)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [("dirichlet", {"alpha": 1.0}), ("counts", {"counts": [[1]]}), ("shards", {})],
)
def test_schemes_that_need_classes_refuse_targets_and_masks(scheme, options):
    masks = DataSet(
        name="toy", x=torch.zeros(4, 1, 2, 2), y=torch.zeros(4, 2, 2, dtype=torch.int64), classes=2
    )
    for data in (toy([0.5, 1.5]), masks):
        with pytest.raises(FieldError, match="needs a class for each example"):
            federate(data, clients=1, scheme=scheme, seed=0, **options)
        assert federate(data, clients=2, seed=0)[0].examples


def test_small_clients_are_said_not_refused():
    data = toy([0] * 8 + [1] * 4 + [2] * 2, classes=3, class_names=("a", "b", "c"))
    counts = [[4, 3, 1], [1, 0, 0], [0, 0, 0], [3, 1, 0]]
    clients = federate(data, clients=4, scheme="counts", counts=counts, seed=0, holdout=0.25)
    found = holdings(clients, data)
    assert [h.counts for h in found] == [tuple(row) for row in counts]
    assert [h.examples + h.held_out for h in found] == [8, 1, 0, 4]
    assert [h.notes for h in found] == [
        (),
        ("one example", "lacks classes b, c"),
        ("empty",),
        ("lacks class c",),
    ]
    lines = warnings_of(found, data)
    assert (
        len(lines) == 3
    )  # no example, a single one, no example of some class: each client in the first that fits
    for line, name in zip(lines, ("client-2", "client-1", "client-3"), strict=True):
        assert line.startswith("1 of 4 clients")
        assert f"({name})" in line
    assert warnings_of([found[0]] * 2, data) == []
    assert (
        len(warnings_of([found[0]] * 2, replace(data, owners=("ann", "bob")))) == 1
    )  # a writer's images went to many
    [alone] = warnings_of(found[:1], data)  # which hides behind nobody
    assert "one client" in alone


def test_holdings_of_targets_and_masks():
    targets = toy([1.0, 2.0, 3.0, 6.0])
    (only,) = holdings(federate(targets, clients=1, seed=0), targets)
    assert (only.mean, only.deviation, only.counts) == (3.0, pytest.approx(3.5**0.5), ())
    masks = DataSet(
        name="toy", x=torch.zeros(2, 1, 2, 2), y=torch.tensor([[[0, 1], [1, 1]]] * 2), classes=2
    )
    (only,) = holdings(federate(masks, clients=1, seed=0, holdout=0), masks)
    assert (only.counts, only.present, only.examples) == ((2, 6), 2, 2)
