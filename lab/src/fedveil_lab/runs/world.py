"""The data of one replicate of an audit: who holds what with and without the target, and what the adversary holds.

Every replicate deals the data out anew under its own seed. A run with the target and one without then differ in nothing
but the target, and the area under the ROC curve speaks of targets in general; with fixed data it would speak of one
draw, and an attack that knows nothing could get 0 or 1 by the luck of that draw.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.data import NATURAL, DataSet, own_scale
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.mechanisms import keyed_seed
from fedveil_lab.config.adversaries import DRAWN, World
from fedveil_lab.config.sections import Data
from fedveil_lab.runs.deal import Dealt, clients_of

Proportions = NDArray[np.float64]

SHADOW_SHARE, SHADOW_NOISE = 0.1, 0.2  # of the target's training examples; of the largest pixel value
REFERENCE, LEAST = 200, 20  # examples on which nobody trains: wanted, and needed


@dataclass(frozen=True, eq=False)
class Shares:
    """One replicate's data: who holds what.

    Attributes
    ----------
    clients : list of ClientData
        Of the federation.
    target : int or None
        The target's partition; None without it.
    adversaries : tuple of int
        Partitions of the attacker and its colluders in this federation.
    shadow : ClientData
        What the adversary takes for the target's.
    reference : ClientData or None
        On which nobody trains.
    missing : tuple of int
        Classes of the target that the shadow lacks.
    """

    clients: list[ClientData]
    target: int | None
    adversaries: tuple[int, ...]
    shadow: ClientData
    reference: ClientData | None
    missing: tuple[int, ...]


def share_out(spec: Data, dealt: Dealt, world: World, seed: int) -> Shares:
    """Deal out one run of a world. Natural clients are who they are: their data stay the same in every run.

    Parameters
    ----------
    spec : Data
        How.
    dealt : Dealt
        All examples, and the clients of an ordinary run.
    world : World
        Who is who, and whether the target takes part.
    seed : int
        Of this run.

    Raises
    ------
    FieldError
        If the target has no examples, or nobody could stand in its place.
    """
    dataset = dealt.dataset
    if not world.anew:
        rng = np.random.default_rng(keyed_seed("paper shadow", world.base))
        target = dealt.clients[world.target]
        shadow = shadow_of(target, world.shadow, dataset, rng)
        clients = list(dealt.clients) if world.inside else _without(dealt.clients, world, None)
        return Shares(clients, world.target if world.inside else None, _adversaries(world), shadow, None, ())
    rng = np.random.default_rng(keyed_seed("audit deal", seed))
    rest, pool = _set_apart(spec, dealt, world, rng)
    clients = list(dealt.clients) if rest is None else clients_of(rest, spec, seed)
    target = clients[world.target]
    if not target.examples:
        raise FieldError("--target", world.target, "has no training examples: it never trains; choose another client")
    share = proportions_of(dataset.y, dataset)
    if world.shadow != "public":
        shadow = shadow_of(target, world.shadow, dataset, rng)
    else:
        size = max(1, round(SHADOW_SHARE * target.examples))
        shadow = _public(pool, size, proportions_of(target.y, dataset), rng)
    stand_in = None
    if world.stand_in in DRAWN:
        labels = target.y if target.test_y is None else torch.cat([target.y, target.test_y])
        alike = share if world.stand_in == "replace" else proportions_of(labels, dataset)
        stand_in = _stand_in(target, pool, alike, rng, world)
    reference = _reference(pool, share, rng)
    if not world.inside:
        clients = _without(clients, world, stand_in)
    missing: tuple[int, ...] = ()
    if dataset.task == "classification":
        missing = tuple(sorted(set(target.y.tolist()) - set(shadow.y.tolist())))
    return Shares(clients, world.target if world.inside else None, _adversaries(world), shadow, reference, missing)


def _adversaries(world: World) -> tuple[int, ...]:
    """Where the colluders stand in this federation."""
    shift = int(not world.inside and world.stand_in == "remove")
    return tuple(p - (shift if p > world.target else 0) for p in world.colluders)


def shadow_of(target: ClientData, kind: str, dataset: DataSet, rng: np.random.Generator) -> ClientData:
    """What the adversary holds of the target's training examples."""
    size = max(1, round(SHADOW_SHARE * target.examples))
    rows = rng.permutation(target.examples)
    if kind == "partial" and dataset.task == "classification":
        present = np.unique(target.y.numpy())
        kept = rng.permutation(present)[: -(-len(present) // 2)]
        rows = rows[np.isin(target.y.numpy()[rows], kept)]
    elif kind == "partial":
        size = max(1, size // 5)
    chosen = torch.from_numpy(np.sort(rows[:size]))
    x, y = target.x[chosen], target.y[chosen]
    if kind == "noisy":
        if not x.is_floating_point():
            raise FieldError("--shadow", kind, "is for inputs that are numbers; these number words: use another kind")
        span = float(dataset.x.max() - dataset.x.min())  # the largest pixel value, whatever the scaling
        noise = torch.from_numpy(rng.standard_normal(tuple(x.shape))).to(x.dtype)
        x = x + SHADOW_NOISE * span * noise
    return ClientData(x, y, name="shadow")


def _set_apart(spec: Data, dealt: Dealt, world: World, rng: np.random.Generator) -> "tuple[DataSet | None, Pool]":
    """Split a set into what is dealt out and a pool: what no client gets, and the set's own test half."""
    dataset, strata = dealt.dataset, strata_of(dealt.dataset.y, dealt.dataset)
    apart = np.zeros(len(strata), dtype=bool)
    if spec.counts is not None:
        needed, order = np.array(spec.counts).sum(0), rng.permutation(len(strata))
        for c in range(dataset.classes):
            members = order[strata[order] == c]
            apart[members[int(needed[c]) if c < len(needed) else 0 :]] = True
    elif spec.partition != NATURAL:
        apart[rng.permutation(len(strata))[: _reserve(len(dealt.clients), dataset, world)]] = True
    chosen = torch.from_numpy(apart)
    x, y = dataset.x[chosen], dataset.y[chosen]
    if dataset.test_x is not None and dataset.test_y is not None:
        x, y = torch.cat([x, dataset.test_x]), torch.cat([y, dataset.test_y])
    pool = Pool(x, y, dataset)
    return (None if spec.partition == NATURAL else dataset.take((~chosen).nonzero()[:, 0])), pool


def _reserve(n: int, dataset: DataSet, world: World) -> int:
    """Examples to keep from the n clients, where the test half does not hold enough."""
    total = len(dataset.y)
    reference = min(REFERENCE, max(LEAST, total // 10))
    extra = 0 if dataset.test_y is None else len(dataset.test_y)
    stand_in = world.stand_in in DRAWN
    shadow = SHADOW_SHARE if world.shadow == "public" else 0.0
    each = (total + extra - reference) / (n + stand_in + shadow)
    wanted = reference + round(each * (stand_in + shadow))
    return min(max(0, wanted - extra), total - n)


def _stand_in(
    target: ClientData, pool: "Pool", share: Proportions, rng: np.random.Generator, world: World
) -> ClientData:
    size = target.examples + target.held_out
    other = "use --out-world remove (which changes the number of clients) or empty, or deal out fewer"
    if pool.left < size:
        accepted = f"needs another client of {size} examples, and only {pool.left} belong to nobody: {other}"
        raise FieldError("--out-world", world.stand_in, accepted)
    lacking = pool.short_of(size, share)
    if world.stand_in == "twin" and lacking:
        accepted = f"needs another client with the target's classes, and too few of {list(lacking)} are left: {other}"
        raise FieldError("--out-world", world.stand_in, accepted)
    return pool.client(pool.take(size, share, rng), "stand-in", target.held_out)


def _reference(pool: "Pool", share: Proportions, rng: np.random.Generator) -> ClientData | None:
    if pool.left < LEAST:
        return None
    return pool.client(pool.take(min(REFERENCE, pool.left), share, rng), "reference")


def _without(clients: list[ClientData], world: World, stand_in: ClientData | None) -> list[ClientData]:
    before, target, after = clients[: world.target], clients[world.target], clients[world.target + 1 :]
    if world.stand_in == "remove":
        return before + after
    if world.stand_in == "itself":
        return clients
    nobody = ClientData(target.x[:0], target.y[:0], name="empty")
    return [*before, stand_in or nobody, *after]


def _public(pool: "Pool", size: int, share: Proportions, rng: np.random.Generator) -> ClientData:
    if pool.left < size:
        accepted = f"needs {size} examples that no client holds, and {pool.left} are left: deal out fewer"
        raise FieldError("--shadow", "public", accepted)
    return pool.client(pool.take(size, share, rng), "shadow")


class Pool:
    """Examples that nobody was dealt, given out once each.

    Parameters
    ----------
    x, y : Tensor
        [N, ...], [N, ...].
    dataset : DataSet
        Where they are from.
    """

    def __init__(self, x: Tensor, y: Tensor, dataset: DataSet) -> None:
        self._x, self._y, self._columns = x, y, dataset.local_columns
        self._strata = strata_of(y, dataset)
        self._left = np.ones(len(self._strata), dtype=bool)

    @property
    def left(self) -> int:
        """How many are left."""
        return int(self._left.sum())

    def short_of(self, size: int, share: Proportions) -> tuple[int, ...]:
        """Classes of which there are too few for so many examples in these shares."""
        free = np.bincount(self._strata[self._left], minlength=len(share))
        return tuple(c for c, wanted in enumerate(apportion(size, share)) if wanted > free[c])

    def take(self, size: int, share: Proportions, rng: np.random.Generator) -> Tensor:
        """Rows of so many examples, in these shares of the classes as far as there are any."""
        chosen: list[int] = []
        for c, wanted in enumerate(apportion(size, share)):
            free = rng.permutation(np.flatnonzero(self._left & (self._strata == c)))
            chosen += free[:wanted].tolist()
        self._left[chosen] = False
        short = rng.permutation(np.flatnonzero(self._left))[: size - len(chosen)].tolist()
        self._left[short] = False
        return torch.from_numpy(rng.permutation(np.array(chosen + short, dtype=np.int64)))

    def client(self, rows: Tensor, name: str, held_out: int = 0) -> ClientData:
        """Rows as one party's data, the last of them held out."""
        train, test = rows[: len(rows) - held_out], rows[len(rows) - held_out :]
        own = self._x[train]
        x = own_scale(own, self._columns, own)
        if not held_out:
            return ClientData(x, self._y[train], name=name)
        return ClientData(x, self._y[train], own_scale(self._x[test], self._columns, own), self._y[test], name=name)


def strata_of(y: Tensor, dataset: DataSet) -> NDArray[np.int64]:
    """Classes [N], or one stratum for all where there are none."""
    return y.numpy().astype(np.int64) if dataset.task == "classification" else np.zeros(len(y), dtype=np.int64)


def proportions_of(y: Tensor, dataset: DataSet) -> Proportions:
    """Share of each class among these examples."""
    strata = strata_of(y, dataset)
    counts = np.bincount(strata, minlength=dataset.classes if dataset.task == "classification" else 1)
    proportions: Proportions = counts / max(1, len(strata))
    return proportions


def apportion(size: int, share: Proportions) -> Sequence[int]:
    """So many examples in these shares, by largest remainders."""
    exact = size * share
    quota = np.floor(exact).astype(np.int64)
    for c in np.argsort(-(exact - quota), kind="stable")[: size - int(quota.sum())]:
        quota[c] += 1
    return [int(q) for q in quota]
