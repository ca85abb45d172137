"""The draws behind the partitions: who gets which examples."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import FieldError, require_count

Indices = NDArray[np.int64]
Labels = NDArray[Any]

_DRAWS = 100  # draws before the smallest clients are filled up by hand


def by_counts(labels: Labels, clients: int, counts: Sequence[Sequence[int]], rng: np.random.Generator) -> list[Indices]:
    """Exactly the given numbers [clients][classes]."""
    rows = [[require_count("counts", value, least=0) for value in row] for row in counts]
    if len(rows) != clients:
        raise FieldError("clients", clients, f"must be the number of rows of counts, {len(rows)}: one a client")
    if len({len(row) for row in rows}) != 1:
        raise FieldError("counts", rows, "must hold rows of equal length: one number a class")
    pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(len(rows[0]))]
    for c, pool in enumerate(pools):
        wanted = sum(row[c] for row in rows)
        if wanted > len(pool):
            raise FieldError(f"counts[class {c}]", wanted, f"the set holds only {len(pool)} examples of class {c}")
    cuts = [np.split(pool, np.cumsum([row[c] for row in rows])) for c, pool in enumerate(pools)]
    return [np.concatenate([cut[i] for cut in cuts]) for i in range(clients)]


def dirichlet(labels: Labels, clients: int, alpha: float, min_size: int, rng: np.random.Generator) -> list[Indices]:
    """Each class in proportions drawn from Dirichlet(alpha)."""

    def draw() -> list[list[int]]:
        decks = (rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels))
        split = [np.split(deck, _cuts(len(deck), clients, alpha, rng)) for deck in decks]
        return [np.concatenate(parts).tolist() for parts in zip(*split, strict=True)]

    return _filled(draw, min(min_size, len(labels) // clients), rng)


def quantity(examples: int, clients: int, alpha: float, min_size: int, rng: np.random.Generator) -> list[Indices]:
    """A shuffled deck in parts whose sizes are drawn from Dirichlet(alpha)."""
    deck = rng.permutation(examples)
    cut = partial(_cuts, examples, clients, alpha, rng)
    return _filled(lambda: [part.tolist() for part in np.split(deck, cut())], min(min_size, examples // clients), rng)


def shards_of(labels: Labels, clients: int, shards: int, rng: np.random.Generator) -> list[Indices]:
    """Examples in the order of their labels, cut into equal shards, so many of which each client draws."""
    shuffled = rng.permutation(len(labels))
    ordered = shuffled[np.argsort(labels[shuffled], kind="stable")]
    pieces = np.array_split(ordered, clients * shards)
    drawn = rng.permutation(clients * shards).reshape(clients, shards)
    return [np.concatenate([pieces[j] for j in row]) for row in drawn.tolist()]


def natural(owner: Indices, clients: int | None, min_size: int, rng: np.random.Generator) -> list[Indices]:
    """The examples of each natural client that has enough; of these, `clients` drawn without replacement, or all."""
    owners, sizes = np.unique(owner, return_counts=True)
    enough = owners[sizes >= max(min_size, 1)]
    if clients is not None and clients > len(enough):
        accepted = f"only {len(enough)} natural clients hold at least {max(min_size, 1)} examples"
        raise FieldError("clients", clients, accepted)
    if not len(enough):
        raise FieldError("min_size", min_size, f"the largest natural client holds {sizes.max()} examples")
    chosen = enough if clients is None else np.sort(rng.choice(enough, size=clients, replace=False))
    groups = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
    return [groups[place] for place in np.searchsorted(owners, chosen)]


def _cuts(examples: int, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    return np.floor(np.cumsum(rng.dirichlet([alpha] * clients))[:-1] * examples).astype(np.int64)


def _filled(draw: Callable[[], list[list[int]]], least: int, rng: np.random.Generator) -> list[Indices]:
    """A draw in which everybody has `least`; after too many the smallest take single examples from the largest."""
    for _ in range(_DRAWS):
        parts = draw()
        if min(map(len, parts)) >= least:
            break
    while min(map(len, parts)) < least:
        donor, taker = max(parts, key=len), min(parts, key=len)
        taker.append(donor.pop(int(rng.integers(len(donor)))))
    return [np.array(part, dtype=np.int64) for part in parts]
