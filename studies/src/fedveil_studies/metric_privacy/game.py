"""Attacks of the metric-privacy paper on its own schedule: a single run, or one run with and one without the target.

``fedveil audit CONFIG --attack paper-single-shot`` plays them, in every setting and beside the undefended federation.
The statistics of the losses are in `fedveil_studies.metric_privacy.printed`.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from fedveil.engines import Seen
from fedveil.errors import FieldError
from fedveil.mechanisms import keyed_seed
from fedveil_lab.attacks import Knowledge, Verdict
from fedveil_lab.config import Config
from fedveil_lab.games import Judgement, ParticipationGame
from fedveil_lab.games.game import Refused
from fedveil_lab.games.roles import AuditedConfig, World
from fedveil_lab.games.world import AuditedSetup
from fedveil_lab.grid import Cell, Finished
from fedveil_lab.runs.prepare import Setup, prepare
from fedveil_studies.frame.measure import WholeRun
from fedveil_studies.metric_privacy.printed import (
    MULTI_EPOCHS,
    MULTI_ROUND,
    MULTI_ROUNDS,
    SINGLE_EPOCHS,
    SINGLE_SHOT,
    multi_round,
    single_shot,
)

LOSS = "shadow_loss"
PLAYED = {
    SINGLE_SHOT: f"one round of {SINGLE_EPOCHS} epochs on the paper's own shadow data, whatever --shadow says: a tenth "
    "of the target's training examples",
    MULTI_ROUND: f"{MULTI_ROUNDS} rounds of {MULTI_EPOCHS} epochs on the paper's own shadow data and world without the "
    "target, whatever --shadow and --out-world say: a tenth of its training examples with Gaussian noise, and nobody "
    "in its place (with --out-world itself, both runs lack the target)",
}


class PrintedLoss(WholeRun):
    """Probe that records each new model's loss on the adversary's copy of the target's data."""

    name = "loss on the shadow data"
    figures: Collection[str] = (LOSS,)

    def begin(self, setup: Setup) -> None:
        """Store the adversary's data before the run."""
        assert isinstance(setup, AuditedSetup)  # the game makes no other cells
        learner = setup.learner
        self._known = Knowledge(
            learner.model, learner.layout, learner.local.loss, setup.holders.shadow
        )

    def __call__(self, seen: Seen) -> dict[str, float]:
        return {LOSS: float(self._known.loss_of(seen.models[None], self._known.shadow)[0])}


def cells_of(name: str, label: str, config: Config, world: World) -> list[Cell]:
    """Make the runs of one of the paper's statistics, the one with the target first."""
    shared = world.model_copy(
        update={"anew": False, "stand_in": "remove", "inside": True, "crafted": False}
    )
    if name == SINGLE_SHOT:
        once = _scheduled(config, 1, SINGLE_EPOCHS, shared.model_copy(update={"shadow": "clean"}))
        return [Cell(f"{label} {name}", once, (PrintedLoss(),))]
    if (
        world.stand_in == "itself"
    ):  # two runs that both lack the target: what there is to see where nothing is
        return cells_without_target(config, world.model_copy(update={"stand_in": "remove"}), 2)
    noisy = shared.model_copy(update={"shadow": "noisy"})
    worlds = (noisy, noisy.model_copy(update={"inside": False}))
    cells = []
    for one in worlds:
        scheduled = _scheduled(config, MULTI_ROUNDS, MULTI_EPOCHS, one)
        cells.append(Cell(f"{label} {name}", scheduled, (PrintedLoss(),)))
    return cells


def cells_without_target(config: Config, world: World, runs: int) -> list[Cell]:
    """Make runs without the target: data and shadow data are the same, but models, order and noise are drawn anew.

    Any two of them show the paper's multi-round statistic when there is nothing to detect.
    """
    outside = cells_of(MULTI_ROUND, config.privacy.method, config, world)[1]
    cells = []
    for i in range(runs):
        seed = keyed_seed("without target", world.base, i)
        config = outside.config.model_copy(update={"seed": seed})
        cells.append(replace(outside, config=config))
    return cells


def _scheduled(config: Config, rounds: int, epochs: int, world: World) -> Config:
    local = replace(config.local, epochs=epochs)
    return AuditedConfig.of(config, world, rounds=rounds, local=local)


def scores(cell: Cell, finished: Finished) -> list[float]:
    """Return minus the loss after each round; [] if the run has none."""
    outcome = finished.outcomes.get(cell.key)
    if outcome is None:
        return []
    return [-value for value in outcome.series(LOSS)]


@dataclass(frozen=True, eq=False)
class PrintedGame(ParticipationGame):
    """Game that computes the paper's statistics for comparison with its tables; it is no test of participation.

    Parameters
    ----------
    config, compare, target, attacker, colluders, world
        As in `ParticipationGame`; with ``world="itself"`` both runs of the multi-round statistic lack the target.
    attacks : tuple of str
        Names from `known`; empty: all that the configuration allows.
    replicates : int
        Number of runs of the participation audit whose rehearsals give a setting its matched sigma.
    shadow : str
        Not allowed, as the paper's statistics have their own shadow data.
    """

    name: ClassVar[str] = "as-printed"
    known: ClassVar[Collection[str]] = (SINGLE_SHOT, MULTI_ROUND)
    least: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Refuse what is unknown, and a single shot without an aggregated loss."""
        super().__post_init__()
        if SINGLE_SHOT in self.attacks and not self.config.data.holdout:
            raise FieldError(
                "--attack", SINGLE_SHOT, "needs an aggregated test loss: set data.holdout"
            )
        if self.shadow != "clean":
            raise FieldError(
                "--shadow",
                self.shadow,
                "is no option of the game as-printed, which has the paper's own",
            )

    def usual(self) -> list[str]:
        """List all statistics that the configuration allows."""
        return [name for name in self.known if name != SINGLE_SHOT or self.config.data.holdout]

    @cached_property
    def runs(self) -> dict[tuple[str, str], list[Cell]]:
        """Runs of each statistic, by its name and setting."""
        runs = {}
        for planned in self.settings:
            for name in self.chosen:
                cells = cells_of(name, planned.label, planned.config, self.roles)
                if planned.matches:
                    sources = self.rehearsed(planned.matches, self.of_case)
                    cells = [replace(cell, sigma_of=sources) for cell in cells]
                runs[name, planned.label] = cells
        return runs

    def question(self) -> dict[str, Any]:
        return {**self.roles.roles(), "seed": self.config.seed, "attacks": list(self.chosen)}

    def check(self) -> list[str]:
        """Refuse what cannot be prepared; say what is odd."""
        return list(
            dict.fromkeys(
                warning for cell in self.cells() for warning in prepare(cell.config).warnings
            )
        )

    def cells(self) -> list[Cell]:
        return [cell for cells in self.runs.values() for cell in cells]

    def judge(self, finished: Finished) -> Judgement:  # type: ignore[override]
        """Compute the statistics; those that cannot be computed are listed with the reason."""
        verdicts, refused = list[Verdict](), list[Refused]()
        for (name, label), cells in self.runs.items():
            verdict = _judged(name, label, cells, finished)
            if isinstance(verdict, Refused):
                refused.append(verdict)
            else:
                verdicts.append(replace(verdict, notes=(f"{name}: {PLAYED[name]}", *verdict.notes)))
        return Judgement(verdicts, refused, {"name": self.config.name, **self.question()})


def _judged(name: str, label: str, cells: Sequence[Cell], finished: Finished) -> Verdict | Refused:
    outcomes = [finished.outcomes.get(cell.key) for cell in cells]
    why = next(
        (finished.failed.get(c.key, "") for c in cells if c.key not in finished.outcomes), ""
    )
    why = why or next(
        (str(o.summary.values["stopped"]) for o in outcomes if o and o.summary.values["stopped"]),
        "",
    )
    if why:
        return Refused(name, label, why)
    if name == MULTI_ROUND:
        return multi_round(label, scores(cells[0], finished), scores(cells[1], finished))
    [outcome] = outcomes
    assert outcome is not None
    shadow, aggregated = outcome.series(LOSS)[-1], float(outcome.summary.values["metrics"]["loss"])
    if 0 < shadow < math.inf and math.isfinite(aggregated):
        return single_shot(label, shadow, aggregated)
    return Refused(
        name, label, f"the losses are {shadow:g} and {aggregated:g}: there is no share of them"
    )
