"""Participation game on federations that a user's function makes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from inspect import signature
from typing import Any, ClassVar

import torch

from fedveil.engines import AnyMethod, Federation, Seen, resolve_method
from fedveil.errors import FieldError
from fedveil.learning import ClientData, LocalTraining
from fedveil_lab.attacks import (
    CalibratedLoss,
    Knowledge,
    LikelihoodRatio,
    Loss,
    Observation,
    ThreatModel,
)
from fedveil_lab.games.game import Unconfigured
from fedveil_lab.games.participation import REHEARSALS
from fedveil_lab.games.roles import world_of
from fedveil_lab.games.scoring import HONEST, Audit, Case, Replicate, cases_of, judge_all
from fedveil_lab.grid import Cell, Finished
from fedveil_lab.grid.cell import stated

Clients = Sequence[Any]
Make = Callable[..., Federation]  # (clients, method, seed), and local= where a setting has its own


def make_one(
    make: Make, clients: Clients, method: AnyMethod | None, seed: int, **more: LocalTraining
) -> Federation:
    """Call a user's function that makes a federation, and refuse a wrong result."""
    written = "lambda clients, method, seed: fv.Federation(..., clients=clients, method=method, seed=seed)"
    try:
        signature(make).bind(clients, method, seed, **more)
    except TypeError as error:
        raise FieldError(
            "make", getattr(make, "__name__", "a function"), f"{error}; write {written}"
        ) from error
    federation = make(clients, method, seed, **more)
    if not isinstance(federation, Federation):
        raise FieldError("make", type(federation).__name__, f"must return a Federation: {written}")
    if method is not None and federation.method == resolve_method(None) != resolve_method(method):
        raise FieldError(
            "make", type(method).__name__, f"does not hand its method on: write {written}"
        )
    return federation


@dataclass(frozen=True, eq=False)
class OwnGame(Unconfigured):
    """Participation game on federations made by a function; its attacks need only models and examples.

    Parameters
    ----------
    make : callable
        Function that makes the federation.
    worlds : mapping of bool to sequence
        Clients of both worlds: with the target (True) and without.
    settings : mapping of str to method
        Method of each setting; the undefended one comes first.
    rounds, runs : int
        Number of rounds per run, and of runs per world.
    held : tuple of ClientData
        The attacker's data: the target's examples, optionally followed by examples on which nobody trains.
    relation : str
        Neighbouring relation of the two worlds.
    delta : float
        Delta of the bounded epsilons.
    """

    make: Make
    worlds: Mapping[bool, Clients]
    settings: Mapping[str, AnyMethod | None]
    rounds: int
    runs: int
    held: tuple[ClientData, ClientData | None]
    relation: str
    delta: float

    name: ClassVar[str] = "participation"

    @cached_property
    def of_case(self) -> dict[Case, Cell]:
        """Map each case to its cell; rehearsals and runs have different seeds, the same in all settings."""
        cells = {}
        for case in cases_of(self.settings, [HONEST], max(REHEARSALS, self.runs // 2), self.runs):
            number = case.index
            if case.phase == "run":
                number += 10**6
            seed = 2 * number + case.inside
            world, setting = self.worlds[case.inside], self.settings[case.setting]
            made = partial(_audited, self.make, world, setting, seed)
            config = stated(self.rounds, seed, self.delta)
            cells[case] = Cell(case.setting, config, (LossView(*self.held),), make=made)
        return cells

    def cells(self) -> list[Cell]:
        """List the runs of the game."""
        return [*self.of_case.values()]

    def judge(self, finished: Finished) -> Audit:
        """Make verdicts from finished runs; `values` of the audit holds the stated promise."""
        done, names = {}, LossView(*self.held).figures
        for case, cell in self.of_case.items():
            outcome = finished.outcomes[cell.key]
            series = {name: outcome.series(name) for name in names}
            done[case] = Replicate(case, outcome.summary, series)
        attacks, labels = [*names], [*self.settings]
        if CalibratedLoss.name in names:
            attacks.append(LikelihoodRatio.name)
        audit = judge_all(done, labels, attacks, world_of(self.relation), self.delta)
        promised = next(
            one.summary.values["guarantee"]
            for case, one in done.items()
            if case.setting == labels[-1]
        )
        order = sorted(audit.verdicts, key=lambda one: labels.index(one.setting))
        return replace(audit, verdicts=order, values={"promised": promised})


class LossView:
    """Probe that scores each round by attacks which need only models and examples.

    Parameters
    ----------
    shadow : ClientData
        The target's examples.
    reference : ClientData, optional
        Examples on which nobody trains, for the calibrated attack. It takes the first broadcast as a model that never
        saw the target.
    """

    name = "losses on the target's examples"

    def __init__(self, shadow: ClientData, reference: ClientData | None = None) -> None:
        self._shadow, self._reference = shadow, reference
        self._kinds: list[type[Loss | CalibratedLoss]] = [Loss]
        if reference is not None:
            self._kinds.append(CalibratedLoss)
        self._known: Knowledge | None = None

    @property
    def figures(self) -> Collection[str]:
        """Names of the attacks, which are the figures of each round."""
        return [kind.name for kind in self._kinds]

    def __call__(self, seen: Seen) -> dict[str, float]:
        if self._known is None:
            learner, outsider = seen.federation.learner, None
            if self._reference is not None:
                outsider = seen.broadcast.models[0]
            loss = learner.local.loss
            self._known = Knowledge(
                learner.model, seen.federation.layout, loss, self._shadow, self._reference, outsider
            )
        threat = ThreatModel("semi-honest client", frozenset({"models", "shadow", "reference"}))
        observed = Observation(
            torch.stack([seen.broadcast.models, seen.models]), len(seen.federation.clients)
        )
        return {
            kind.name: float(kind(self._known, threat).run(observed)[-1]) for kind in self._kinds
        }


def _audited(make: Make, clients: Clients, method: AnyMethod | None, seed: int) -> Federation:
    """Make a federation; refuse clients with their own statistics, which these attacks do not model."""
    federation = make_one(make, clients, method, seed)
    if federation.own_buffers:
        accepted = (
            "these attacks model no client's own statistics: mend the model (fedveil.learning.mend)"
        )
        raise FieldError("buffers", "keep", accepted)
    return federation
