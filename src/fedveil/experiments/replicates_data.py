"""The data of one replicate of an audit: who holds what with and without the target, and what the adversary holds.

Every replicate deals the data out anew under its own seed. A run with the target and one without then differ in nothing
but the target, and the area under the ROC curve speaks of targets in general; with fixed data it would speak of one
draw, and an attack that knows nothing could get 0 or 1 by the luck of that draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.attacks.paper import SHADOW_NOISE, SHADOW_SHARE
from fedveil.data import DataSet, own_scale
from fedveil.data.partition import NATURAL
from fedveil.errors import FieldError, nearest, require_count
from fedveil.experiments.dealing import Dealt, clients_of
from fedveil.experiments.sections import Data
from fedveil.learning import ClientData
from fedveil.mechanisms import keyed_seed

Indices = NDArray[np.int64]
Shares = NDArray[np.float64]

# The world without the target, and the neighbouring relation that it stands for.
WORLDS = {"replace": "replace-one", "remove": "add/remove", "empty": "zero-out"}
SHADOWS = {
    "clean": "a tenth of the target's training examples",
    "noisy": "the same, with Gaussian noise of a fifth of the largest pixel value",
    "partial": "the same number, from half of the target's classes alone",
    "public": "as many examples of others, with the target's mix of classes",
}
REFERENCE, LEAST = 200, 20  # examples on which nobody trains: wanted, and needed


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Who attacks whom, and with what.

    Parameters
    ----------
    target, attacker : int
        Partitions.
    colluders : tuple of int
        The attacker first, then those that share what they sent.
    world : {"replace", "remove", "empty"}
        What stands in the target's place in the world without it: another client of equal size, nobody, or a client
        without examples. Dropping a client changes n, and so the noise.
    shadow : {"clean", "noisy", "partial", "public"}
        See `SHADOWS`.
    """

    target: int
    attacker: int
    colluders: tuple[int, ...]
    world: str = "replace"
    shadow: str = "clean"

    @classmethod
    def of(
        cls, n: int, target: int | None, attacker: int | None, world: str = "replace", shadow: str = "clean"
    ) -> Roles:
        """Check and fill in for n clients: by default the first attacks the last, and two collude if there are three.

        Raises
        ------
        FieldError
            If there are not two clients, or one attacks itself.
        """
        if n < 2:
            raise FieldError("data.clients", n, "client inference needs at least two clients: an attacker and a target")
        target = n - 1 if target is None else _partition("--target", target, n)
        attacker = next(i for i in range(n) if i != target) if attacker is None else attacker
        attacker = _partition("--attacker", attacker, n)
        if attacker == target:
            raise FieldError("--attacker", attacker, "is the target itself; give another client")
        if shadow not in SHADOWS:
            raise FieldError("--shadow", shadow, nearest(shadow, SHADOWS))
        if world not in WORLDS:
            raise FieldError("--out-world", world, nearest(world, WORLDS))
        others = [i for i in range(n) if i not in (target, attacker)]
        return cls(target=target, attacker=attacker, colluders=(attacker, *others[:1]), world=world, shadow=shadow)


@dataclass(frozen=True, eq=False)
class Hands:
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


def deal(spec: Data, dealt: Dealt, roles: Roles, inside: bool, seed: int) -> Hands:
    """Deal out one replicate. Natural clients are who they are: their data stay the same in every replicate.

    Parameters
    ----------
    spec : Data
        How.
    dealt : Dealt
        All examples, and the clients of an ordinary run.
    roles : Roles
        Who is who.
    inside : bool
        Whether the target takes part.
    seed : int
        Of this replicate.

    Raises
    ------
    FieldError
        If the target has no examples, or nobody could stand in its place.
    """
    rng = np.random.default_rng(keyed_seed("audit deal", seed))
    dataset = dealt.dataset
    rest, pool = _set_apart(spec, dealt, roles, rng)
    clients = list(dealt.clients) if rest is None else clients_of(rest, spec, seed)
    target = clients[roles.target]
    if not target.examples:
        raise FieldError("--target", roles.target, "has no training examples: it never trains; choose another client")
    share = _shares(dataset)
    shadow = shadow_of(target, roles.shadow, dataset, rng) if roles.shadow != "public" else None
    if shadow is None:
        size = max(1, round(SHADOW_SHARE * target.examples))
        shadow = _public(pool, size, _shares_of(target.y, dataset), rng)
    stand_in = None
    if roles.world == "replace":
        stand_in = _stand_in(target, pool, share, rng, roles)
    reference = _reference(pool, share, rng)
    if not inside:
        clients = _without(clients, roles, stand_in)
    shift = int(not inside and roles.world == "remove")
    adversaries = tuple(p - (shift if p > roles.target else 0) for p in roles.colluders)
    missing: tuple[int, ...] = ()
    if dataset.task == "classification":
        missing = tuple(sorted(set(target.y.tolist()) - set(shadow.y.tolist())))
    return Hands(clients, roles.target if inside else None, adversaries, shadow, reference, missing)


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
        span = float(dataset.x.max() - dataset.x.min())  # the largest pixel value, whatever the scaling
        noise = torch.from_numpy(rng.standard_normal(tuple(x.shape))).to(x.dtype)
        x = x + SHADOW_NOISE * span * noise
    return ClientData(x, y, name="shadow")


class _Pool:
    """Examples that nobody was dealt, given out once each."""

    def __init__(self, x: Tensor, y: Tensor, strata: Indices, columns: tuple[int, ...]) -> None:
        self._x, self._y, self._strata, self._columns = x, y, strata, columns
        self._left = np.ones(len(strata), dtype=bool)

    @property
    def left(self) -> int:
        """How many are left."""
        return int(self._left.sum())

    def take(self, size: int, share: Shares, rng: np.random.Generator) -> Tensor:
        """Rows of so many examples, in these shares of the classes as far as there are any."""
        quota = _apportion(size, share)
        chosen: list[int] = []
        for c, wanted in enumerate(quota):
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


def _set_apart(spec: Data, dealt: Dealt, roles: Roles, rng: np.random.Generator) -> tuple[DataSet | None, _Pool]:
    """Split a set into what is dealt out and a pool: what no client gets, and the set's own test half."""
    dataset, strata = dealt.dataset, _strata(dealt.dataset.y, dealt.dataset)
    apart = np.zeros(len(strata), dtype=bool)
    if spec.counts is not None:
        needed, order = np.array(spec.counts).sum(0), rng.permutation(len(strata))
        for c in range(dataset.classes):
            members = order[strata[order] == c]
            apart[members[int(needed[c]) if c < len(needed) else 0 :]] = True
    elif spec.partition != NATURAL:
        apart[rng.permutation(len(strata))[: _reserve(len(dealt.clients), dataset, roles)]] = True
    chosen = torch.from_numpy(apart)
    x, y = dataset.x[chosen], dataset.y[chosen]
    if dataset.test_x is not None and dataset.test_y is not None:
        x, y = torch.cat([x, dataset.test_x]), torch.cat([y, dataset.test_y])
    pool = _Pool(x, y, _strata(y, dataset), dataset.local_columns)
    return (None if spec.partition == NATURAL else dataset.take((~chosen).nonzero()[:, 0])), pool


def _reserve(n: int, dataset: DataSet, roles: Roles) -> int:
    """Examples to keep from the n clients, where the test half does not hold enough."""
    total = len(dataset.y)
    reference = min(REFERENCE, max(LEAST, total // 10))
    extra = 0 if dataset.test_y is None else len(dataset.test_y)
    stand_in = roles.world == "replace"
    shadow = SHADOW_SHARE if roles.shadow == "public" else 0.0
    each = (total + extra - reference) / (n + stand_in + shadow)
    wanted = reference + round(each * (stand_in + shadow))
    return min(max(0, wanted - extra), total - n)


def _stand_in(target: ClientData, pool: _Pool, share: Shares, rng: np.random.Generator, roles: Roles) -> ClientData:
    size = target.examples + target.held_out
    if pool.left < size:
        accepted = (
            f"needs another client of {size} examples, and only {pool.left} belong to nobody: use --out-world remove "
            "(which changes the number of clients) or empty, or deal out fewer"
        )
        raise FieldError("--out-world", roles.world, accepted)
    return pool.client(pool.take(size, share, rng), "stand-in", target.held_out)


def _reference(pool: _Pool, share: Shares, rng: np.random.Generator) -> ClientData | None:
    if pool.left < LEAST:
        return None
    return pool.client(pool.take(min(REFERENCE, pool.left), share, rng), "reference")


def _without(clients: list[ClientData], roles: Roles, stand_in: ClientData | None) -> list[ClientData]:
    before, target, after = clients[: roles.target], clients[roles.target], clients[roles.target + 1 :]
    if roles.world == "remove":
        return before + after
    nobody = ClientData(target.x[:0], target.y[:0], name="empty")
    return [*before, stand_in or nobody, *after]


def _public(pool: _Pool, size: int, share: Shares, rng: np.random.Generator) -> ClientData:
    if pool.left < size:
        accepted = f"needs {size} examples that no client holds, and {pool.left} are left: deal out fewer"
        raise FieldError("--shadow", "public", accepted)
    return pool.client(pool.take(size, share, rng), "shadow")


def _strata(y: Tensor, dataset: DataSet) -> Indices:
    return y.numpy().astype(np.int64) if dataset.task == "classification" else np.zeros(len(y), dtype=np.int64)


def _shares(dataset: DataSet) -> Shares:
    return _shares_of(dataset.y, dataset)


def _shares_of(y: Tensor, dataset: DataSet) -> Shares:
    strata = _strata(y, dataset)
    counts = np.bincount(strata, minlength=dataset.classes if dataset.task == "classification" else 1)
    found: Shares = counts / max(1, len(strata))
    return found


def _apportion(size: int, share: Shares) -> Sequence[int]:
    """Largest remainders."""
    exact = size * share
    quota = np.floor(exact).astype(np.int64)
    for c in np.argsort(-(exact - quota), kind="stable")[: size - int(quota.sum())]:
        quota[c] += 1
    return [int(q) for q in quota]


def _partition(field: str, value: Any, clients: int) -> int:
    if require_count(field, value, least=0) >= clients:
        raise FieldError(field, value, f"there are clients 0 to {clients - 1}")
    return int(value)
