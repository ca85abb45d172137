"""Who holds what: partitions of a data set over clients, and what each client keeps apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedveil.data.sets import DataSet
from fedveil.errors import FieldError, require_choice, require_count, require_non_negative, require_positive
from fedveil.learning.clients import ClientData
from fedveil.mechanisms.source import keyed_seed

Indices = NDArray[np.int64]

SCHEMES = ("iid", "dirichlet", "counts")

_DRAWS = 100  # Dirichlet draws before the smallest clients are filled up by hand


def partition(
    y: ArrayLike,
    clients: int,
    scheme: str = "iid",
    *,
    seed: int,
    alpha: float | None = None,
    min_size: int = 1,
    counts: Sequence[Sequence[int]] | None = None,
) -> list[Indices]:
    """Deal examples out to clients, none to two of them.

    Parameters
    ----------
    y : array
        [N], the classes.
    clients : int
        How many.
    scheme : {"iid", "dirichlet", "counts"}
        ``"iid"``: a shuffled deck in equal parts (sizes differ by at most 1). ``"dirichlet"``: each class is split in
        proportions drawn from Dirichlet(alpha); if a client gets fewer than `min_size`, all is drawn again, 100 times
        at most, then the smallest take single examples from the largest. ``"counts"``: exactly the given numbers.
    seed : int
        The same seed gives the same partition; the global random state is not used.
    alpha : float
        Of ``"dirichlet"``; small is uneven.
    min_size : int
        Of ``"dirichlet"``; at most N / clients of it can be had.
    counts : sequence of sequence of int
        Of ``"counts"``: [clients][classes]. Examples beyond them go to nobody.

    Returns
    -------
    list of ndarray
        Sorted indices into `y`, one array a client. ``"iid"`` and ``"dirichlet"`` deal all of them out.

    Raises
    ------
    FieldError
        For options that do not belong to the scheme, or a class with too few examples.
    """
    labels = np.asarray(y)
    require_count("clients", clients)
    require_choice("scheme", scheme, SCHEMES)
    for name, value, owner in (("alpha", alpha, "dirichlet"), ("counts", counts, "counts")):
        if (value is None) == (scheme == owner):
            text = "is needed by" if scheme == owner else "is no option of"
            raise FieldError(name, value, f"{text} the scheme {scheme!r}")
    rng = np.random.default_rng(keyed_seed("partition", seed, scheme))
    if scheme == "iid":
        parts = np.array_split(rng.permutation(len(labels)), clients)
    elif counts is not None:
        parts = _by_counts(labels, clients, counts, rng)
    else:
        parts = _dirichlet(
            labels, clients, require_positive("alpha", alpha), require_count("min_size", min_size, 0), rng
        )
    return [np.sort(part).astype(np.int64) for part in parts]


def holdout(y: ArrayLike, indices: Indices, fraction: float, *, seed: int) -> tuple[Indices, Indices]:
    """Keep a stratified part of one client's examples apart.

    Parameters
    ----------
    y : array
        [N], the classes of the whole set; floating-point targets are split without strata.
    indices : ndarray
        The client's.
    fraction : float
        At least 0 and below 1. round(fraction n) examples are kept apart, shared out over the classes by largest
        remainder; each class keeps at least one example to train on, so rare classes may make it fewer.
    seed : int
        Decides which.

    Returns
    -------
    train, test : ndarray
        Sorted indices; disjoint, together `indices`.
    """
    if require_non_negative("holdout", fraction) >= 1:
        raise FieldError("holdout", fraction, "must be at least 0 and below 1")
    own = np.asarray(indices, dtype=np.int64)
    labels = np.asarray(y)[own]
    if labels.dtype.kind == "f" or labels.ndim > 1:
        labels = np.zeros(len(own), dtype=np.int64)
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    share = fraction * sizes
    take = np.minimum(np.floor(share).astype(np.int64), np.maximum(sizes - 1, 0))
    for c in np.argsort(-(share - np.floor(share)), kind="stable"):
        if take.sum() < round(fraction * len(own)) and take[c] < sizes[c] - 1:
            take[c] += 1
    rng = np.random.default_rng(keyed_seed("holdout", seed))
    chosen = np.zeros(len(own), dtype=bool)
    for c, count in enumerate(take):
        chosen[rng.permutation(np.flatnonzero(inverse == c))[:count]] = True
    return np.sort(own[~chosen]), np.sort(own[chosen])


_split = holdout  # `federate` has a parameter of that name


def federate(
    dataset: DataSet, *, clients: int, scheme: str = "iid", holdout: float = 0.2, seed: int, **options: Any
) -> list[ClientData]:
    """Deal a data set out to clients, each with a held-out part of its own.

    Parameters
    ----------
    dataset : DataSet
        Its `x` and `y`; the set's own test half stays with the server.
    clients, scheme, seed, **options
        As in :func:`partition`.
    holdout : float
        Fraction that each client keeps apart, stratified; 0 for none.

    Returns
    -------
    list of ClientData
        In order of their partition numbers.
    """
    y = dataset.y.numpy()
    strata = y if dataset.classes else np.zeros(len(y), dtype=np.int64)
    result = []
    for i, part in enumerate(partition(strata, clients, scheme, seed=seed, **options)):
        train, test = _split(strata, part, holdout, seed=keyed_seed(seed, i))
        x, own = dataset.x[torch.from_numpy(train)], dataset.y[torch.from_numpy(train)]
        if holdout:
            kept = torch.from_numpy(test)
            result.append(ClientData(x, own, dataset.x[kept], dataset.y[kept], name=f"client-{i}"))
        else:
            result.append(ClientData(x, own, name=f"client-{i}"))
    return result


def _by_counts(
    labels: NDArray[Any], clients: int, counts: Sequence[Sequence[int]], rng: np.random.Generator
) -> list[Indices]:
    rows = [[require_count("counts", value, least=0) for value in row] for row in counts]
    if len(rows) != clients or len({len(row) for row in rows}) != 1:
        given = [len(row) for row in rows]
        raise FieldError("counts", given, f"must hold one row a client ({clients}), all with one number a class")
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(len(rows[0]))]
    for c, pool in enumerate(pools):
        wanted = sum(row[c] for row in rows)
        if wanted > len(pool):
            raise FieldError(f"counts[class {c}]", wanted, f"the set holds only {len(pool)} examples of class {c}")
    cuts = [np.split(pool, np.cumsum([row[c] for row in rows])) for c, pool in enumerate(pools)]
    return [np.concatenate([cut[i] for cut in cuts]) for i in range(clients)]


def _dirichlet(
    labels: NDArray[Any], clients: int, alpha: float, min_size: int, rng: np.random.Generator
) -> list[Indices]:
    least = min(min_size, len(labels) // clients)
    for _ in range(_DRAWS):
        parts: list[list[int]] = [[] for _ in range(clients)]
        for c in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == c))
            cuts = np.floor(np.cumsum(rng.dirichlet([alpha] * clients))[:-1] * len(members)).astype(np.int64)
            for part, some in zip(parts, np.split(members, cuts), strict=True):
                part.extend(some.tolist())
        if min(len(part) for part in parts) >= least:
            break
    while min(len(part) for part in parts) < least:
        donor, taker = max(parts, key=len), min(parts, key=len)
        taker.append(donor.pop(int(rng.integers(len(donor)))))
    return [np.array(part, dtype=np.int64) for part in parts]
