"""Data of one audited run: the clients' data with or without the target, and the adversary's.

Every run divides the data anew by its own seed. Runs with and without the target then differ only in the target, and
the area under the ROC curve holds for targets in general. With fixed data it would hold for one draw only, and an
ignorant attack could score 0 or 1 by luck.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedveil.data import NATURAL, DataSet
from fedveil.engines import Behaviour, Turn
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.mechanisms import keyed_seed
from fedveil_lab.attacks import craft
from fedveil_lab.config.sections import Data
from fedveil_lab.games.pool import Pool, Proportions, proportions_of, strata_of
from fedveil_lab.games.roles import DRAWN, AuditedConfig, World
from fedveil_lab.runs.deal import Dealt, clients_of
from fedveil_lab.runs.marks import marked
from fedveil_lab.runs.prepare import Common, Setup, assemble, evaluation_of

SHADOW_SHARE, SHADOW_NOISE = (
    0.1,
    0.2,
)  # of the target's training examples; of the largest pixel value
REFERENCE, LEAST = 200, 20  # examples on which nobody trains: wanted, and needed


@dataclass(frozen=True, eq=False)
class Holders:
    """Data of one audited run, by holder.

    Attributes
    ----------
    clients : list of ClientData
        The federation's clients.
    target : int or None
        The target's partition; None without it.
    adversaries : tuple of int
        Partitions of the attacker and its colluders.
    shadow : ClientData
        Examples that the adversary uses as the target's.
    reference : ClientData or None
        Examples on which nobody trains.
    missing : tuple of int
        Classes of the target that the shadow data lack.
    """

    clients: list[ClientData]
    target: int | None
    adversaries: tuple[int, ...]
    shadow: ClientData
    reference: ClientData | None
    missing: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class AuditedSetup(Setup):
    """Setup of an audited run, with or without the target.

    Attributes
    ----------
    world : World
        Roles of attackers and target.
    holders : Holders
        Data of all clients and of the adversary.
    """

    world: World
    holders: Holders

    @property
    def everybody(self) -> Sequence[ClientData]:
        return self.clients


@dataclass(frozen=True)
class PullBackTo(Behaviour):
    """Malicious client of an audit: it pulls the model back to the first one, `first` [d]."""

    first: Tensor

    def model(self, turn: Turn) -> Tensor:
        return craft(turn.broadcast.models[0], self.first)


@assemble.register
def _assemble(config: AuditedConfig, common: Common) -> AuditedSetup:
    """Make the setup of an audited run."""
    config.require_playable()
    world, starts = config.world, common.starts
    holders = hand_out(config.data, common.dealt, world, config.seed)
    behaviours: dict[int, Behaviour] = {}
    if world.crafted and len(starts) == 1:
        behaviours = {holders.adversaries[0]: PullBackTo(starts[0])}
    clients = marked(config, common.dealt.dataset, holders.clients, common.method)
    everybody = len(clients)
    return AuditedSetup(
        config=config,
        dealt=common.dealt,
        method=common.method,
        sides=config.privacy.client_sides(common.method.client),
        learner=common.learner,
        clients=clients,
        cohort=min(config.clients_per_round or everybody, everybody),
        starts=starts,
        evaluation=evaluation_of(config, common.dealt),
        behaviours=behaviours,
        world=world,
        holders=holders,
    )


def hand_out(spec: Data, dealt: Dealt, world: World, seed: int) -> Holders:
    """Divide the data for one audited run; natural clients keep their data in every run.

    Parameters
    ----------
    spec : Data
        Options of the division.
    dealt : Dealt
        All examples, and the clients of an ordinary run.
    world : World
        Roles of the clients, and whether the target takes part.
    seed : int
        Seed of this run.

    Raises
    ------
    FieldError
        If the target has no examples, or no data for a replacement exist.
    """
    if not world.anew:
        return _as_dealt(dealt, world)
    dataset = dealt.dataset
    rng = np.random.default_rng(keyed_seed("audit deal", seed))
    rest, pool = _set_apart(spec, dealt, world, rng)
    clients = list(dealt.clients)
    if rest is not None:
        clients = clients_of(rest, spec, seed)
    target = clients[world.target]
    if not target.examples:
        raise FieldError(
            "--target",
            world.target,
            "has no training examples: it never trains; choose another client",
        )
    # in this order: each draws from the same generator
    shadow = _shadow(target, pool, dataset, rng, world)
    stand_in = _stand_in(target, pool, dataset, rng, world)
    reference = _reference(pool, proportions_of(dataset.y, dataset), rng)
    if not world.inside:
        clients = _without(clients, world, stand_in)
    return Holders(
        clients,
        _place(world),
        _adversaries(world),
        shadow,
        reference,
        _missing(target, shadow, dataset),
    )


def _as_dealt(dealt: Dealt, world: World) -> Holders:
    """Use the division that all runs share; without the target its place stays empty."""
    rng = np.random.default_rng(keyed_seed("paper shadow", world.base))
    shadow = shadow_of(dealt.clients[world.target], world.shadow, dealt.dataset, rng)
    clients = list(dealt.clients)
    if not world.inside:
        clients = _without(clients, world, None)
    return Holders(clients, _place(world), _adversaries(world), shadow, None, ())


def _place(world: World) -> int | None:
    """Return the target's partition in this federation, or None."""
    if world.inside:
        return world.target
    return None


def _adversaries(world: World) -> tuple[int, ...]:
    """Return the colluders' partitions in this federation; they move down by one behind a removed target."""
    gone = not world.inside and world.stand_in == "remove"
    places = []
    for partition in world.colluders:
        moved = gone and partition > world.target
        places.append(partition - 1 if moved else partition)
    return tuple(places)


def _missing(target: ClientData, shadow: ClientData, dataset: DataSet) -> tuple[int, ...]:
    """List the classes of the target that the shadow data lack."""
    if dataset.task != "classification":
        return ()
    return tuple(sorted(set(target.y.tolist()) - set(shadow.y.tolist())))


def _shadow(
    target: ClientData, pool: Pool, dataset: DataSet, rng: np.random.Generator, world: World
) -> ClientData:
    """Take the shadow data from the target's examples, or from examples that no client holds."""
    if world.shadow != "public":
        return shadow_of(target, world.shadow, dataset, rng)
    size = max(1, round(SHADOW_SHARE * target.examples))
    if pool.left < size:
        accepted = (
            f"needs {size} examples that no client holds, and {pool.left} are left: deal out fewer"
        )
        raise FieldError("--shadow", "public", accepted)
    return pool.client(pool.take(size, proportions_of(target.y, dataset), rng), "shadow")


def shadow_of(
    target: ClientData, kind: str, dataset: DataSet, rng: np.random.Generator
) -> ClientData:
    """Take the adversary's share of the target's training examples.

    Parameters
    ----------
    target : ClientData
        Data of the target.
    kind : {"clean", "noisy", "partial"}
        See `fedveil_lab.games.roles.SHADOWS`.
    dataset : DataSet
        Data set of the examples.
    rng : Generator
        Draws the examples.

    Raises
    ------
    FieldError
        If noise is asked for on inputs that are not numbers.
    """
    size = max(1, round(SHADOW_SHARE * target.examples))
    rows = rng.permutation(target.examples)
    if kind == "partial" and dataset.task == "classification":
        present = np.unique(target.y.numpy())
        half = -(-len(present) // 2)  # rounded up
        kept = rng.permutation(present)[:half]
        rows = rows[np.isin(target.y.numpy()[rows], kept)]
    elif kind == "partial":
        size = max(1, size // 5)
    chosen = torch.from_numpy(np.sort(rows[:size]))
    x, y = target.x[chosen], target.y[chosen]
    if kind == "noisy":
        if not x.is_floating_point():
            raise FieldError(
                "--shadow",
                kind,
                "is for inputs that are numbers; these number words: use another kind",
            )
        span = float(
            dataset.x.max() - dataset.x.min()
        )  # the largest pixel value, whatever the scaling
        noise = torch.from_numpy(rng.standard_normal(tuple(x.shape))).to(x.dtype)
        x = x + SHADOW_NOISE * span * noise
    return ClientData(x, y, name="shadow")


def _set_apart(
    spec: Data, dealt: Dealt, world: World, rng: np.random.Generator
) -> tuple[DataSet | None, Pool]:
    """Split a data set into examples for clients, and a pool: a reserve and the set's own test half."""
    dataset, strata = dealt.dataset, strata_of(dealt.dataset.y, dealt.dataset)
    apart = np.zeros(len(strata), dtype=bool)
    if spec.counts is not None:
        needed, order = np.array(spec.counts).sum(0), rng.permutation(len(strata))
        for c in range(dataset.classes):
            members = order[strata[order] == c]
            if c < len(needed):
                dealt_out = int(needed[c])
            else:
                dealt_out = 0
            apart[members[dealt_out:]] = True
    elif spec.partition != NATURAL:
        reserved = _reserve(len(dealt.clients), dataset, world)
        apart[rng.permutation(len(strata))[:reserved]] = True
    chosen = torch.from_numpy(apart)
    x, y = dataset.x[chosen], dataset.y[chosen]
    if dataset.test_x is not None and dataset.test_y is not None:
        x, y = torch.cat([x, dataset.test_x]), torch.cat([y, dataset.test_y])
    pool = Pool(x, y, dataset)
    if spec.partition == NATURAL:
        return None, pool
    return dataset.take((~chosen).nonzero()[:, 0]), pool


def _reserve(n: int, dataset: DataSet, world: World) -> int:
    """Count the examples to reserve from the `n` clients if the test half has too few."""
    total = len(dataset.y)
    reference = min(REFERENCE, max(LEAST, total // 10))
    if dataset.test_y is None:
        extra = 0
    else:
        extra = len(dataset.test_y)
    stand_in = world.stand_in in DRAWN
    if world.shadow == "public":
        shadow = SHADOW_SHARE
    else:
        shadow = 0.0
    each = (total + extra - reference) / (n + stand_in + shadow)
    wanted = reference + round(each * (stand_in + shadow))
    return min(max(0, wanted - extra), total - n)


def _stand_in(
    target: ClientData, pool: Pool, dataset: DataSet, rng: np.random.Generator, world: World
) -> ClientData | None:
    """Draw the replacement client, if the world has one: with all clients' class shares, or the target's."""
    if world.stand_in not in DRAWN:
        return None
    labels = dataset.y
    if world.stand_in == "twin":
        if target.test_y is None:
            labels = target.y
        else:
            labels = torch.cat([target.y, target.test_y])
    share = proportions_of(labels, dataset)
    size = target.examples + target.held_out
    other = (
        "use --out-world remove (which changes the number of clients) or empty, or deal out fewer"
    )
    if pool.left < size:
        accepted = f"needs another client of {size} examples, and only {pool.left} examples are left over: {other}"
        raise FieldError("--out-world", world.stand_in, accepted)
    lacking = pool.short_of(size, share)
    if world.stand_in == "twin" and lacking:
        accepted = f"needs another client with the target's classes, and too few of {list(lacking)} are left: {other}"
        raise FieldError("--out-world", world.stand_in, accepted)
    return pool.client(pool.take(size, share, rng), "stand-in", target.held_out)


def _reference(pool: Pool, share: Proportions, rng: np.random.Generator) -> ClientData | None:
    if pool.left < LEAST:
        return None
    return pool.client(pool.take(min(REFERENCE, pool.left), share, rng), "reference")


def _without(
    clients: list[ClientData], world: World, stand_in: ClientData | None
) -> list[ClientData]:
    before, target, after = (
        clients[: world.target],
        clients[world.target],
        clients[world.target + 1 :],
    )
    if world.stand_in == "remove":
        return before + after
    if world.stand_in == "itself":
        return clients
    nobody = ClientData(target.x[:0], target.y[:0], name="empty")
    return [*before, stand_in or nobody, *after]
