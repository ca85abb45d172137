"""The attacks of the metric privacy paper on its own schedule: one run, or one with and one without the target.

Here are their runs; what is made of the losses is in `fedveil.attacks.participation.paper`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fedveil.attacks import Knowledge
from fedveil.attacks.participation.paper import (
    MULTI_EPOCHS,
    MULTI_ROUND,
    MULTI_ROUNDS,
    SINGLE_EPOCHS,
    SINGLE_SHOT,
    SingleShot,
    multi_round,
    single_shot,
)
from fedveil.attacks.participation.result import Participation
from fedveil.audit.game import Refused
from fedveil.config import Config
from fedveil.config.world import World
from fedveil.engines.probe import Seen
from fedveil.grid import Cell, Finished
from fedveil.mechanisms import keyed_seed
from fedveil.runs.prepare import Setup

LOSS = "shadow_loss"
PLAYED = {
    SINGLE_SHOT: f"one round of {SINGLE_EPOCHS} epochs on the paper's own shadow data, whatever --shadow says: a tenth "
    "of the target's training examples",
    MULTI_ROUND: f"{MULTI_ROUNDS} rounds of {MULTI_EPOCHS} epochs on the paper's own shadow data and world without the "
    "target, whatever --shadow and --out-world say: a tenth of its training examples with Gaussian noise, and nobody "
    "in its place (with --out-world itself, both runs lack the target)",
}


class PrintedLoss:
    """A probe of runs of a world: the loss of each new model on what the adversary holds of the target's data."""

    name = "loss on the shadow data"
    figures: Collection[str] = (LOSS,)

    def begin(self, setup: Setup) -> None:
        """Take the adversary's data."""
        assert setup.shares is not None
        learner = setup.learner
        self._known = Knowledge(learner.model, learner.layout, learner.local.loss, setup.shares.shadow)

    def load(self, setup: Setup) -> tuple[int, int]:
        return 0, 0

    def __call__(self, seen: Seen) -> dict[str, float]:
        """After a round."""
        return {LOSS: float(self._known.loss_of(seen.models[None], self._known.shadow)[0])}

    @classmethod
    def conclude(cls, judges: Sequence[PrintedLoss]) -> list[dict[str, object]]:
        return [{} for _ in judges]


def cells_of(name: str, label: str, config: Config, world: World) -> list[Cell]:
    """The runs of one of the statistics, with the target first."""
    shared = world.model_copy(update={"anew": False, "stand_in": "remove", "inside": True, "crafted": False})
    if name == SINGLE_SHOT:
        once = _scheduled(config, 1, SINGLE_EPOCHS, shared.model_copy(update={"shadow": "clean"}))
        return [Cell(f"{label} {name}", once, (PrintedLoss(),))]
    if world.stand_in == "itself":  # two runs that both lack the target: what there is to see where nothing is
        return cells_without_target(config, world.model_copy(update={"stand_in": "remove"}), 2)
    noisy = shared.model_copy(update={"shadow": "noisy"})
    worlds = (noisy, noisy.model_copy(update={"inside": False}))
    return [
        Cell(f"{label} {name}", _scheduled(config, MULTI_ROUNDS, MULTI_EPOCHS, one), (PrintedLoss(),)) for one in worlds
    ]


def cells_without_target(config: Config, world: World, runs: int) -> list[Cell]:
    """Runs of the multi-round statistic without the target: one deal and one shadow, but models, order and noise anew.

    Any two of them are what the paper's statistic sees where there is nothing to see.
    """
    outside = cells_of(MULTI_ROUND, config.privacy.method, config, world)[1]
    seeds = (keyed_seed("without target", world.base, i) for i in range(runs))
    return [replace(outside, config=outside.config.model_copy(update={"seed": seed})) for seed in seeds]


def _scheduled(config: Config, rounds: int, epochs: int, world: World) -> Config:
    local = replace(config.local, epochs=epochs)
    return config.model_copy(update={"rounds": rounds, "local": local, "world": world})


def scores(cell: Cell, finished: Finished) -> list[float]:
    """Minus the loss after each round; [] of a run that has none."""
    outcome = finished.outcomes.get(cell.key)
    return [] if outcome is None else [-value for value in outcome.series(LOSS)]


def judge_printed(
    cells: Mapping[tuple[str, str], Sequence[Cell]], finished: Finished
) -> tuple[list[SingleShot], list[Participation], list[Refused]]:
    """The statistics by (name, setting); what cannot be computed is refused, with the reason."""
    shots, rounds, refused = [], [], []
    for (name, label), runs in cells.items():
        outcomes = [finished.outcomes.get(cell.key) for cell in runs]
        why = next((finished.failed.get(c.key, "") for c in runs if c.key not in finished.outcomes), "")
        why = why or next((str(o.summary.values["stopped"]) for o in outcomes if o and o.summary.values["stopped"]), "")
        if why:
            refused.append(Refused(name, label, why))
        elif name == MULTI_ROUND:
            rounds.append(multi_round(label, scores(runs[0], finished), scores(runs[1], finished)))
        else:
            [outcome] = outcomes
            assert outcome is not None
            shadow, aggregated = outcome.series(LOSS)[-1], float(outcome.summary.values["metrics"]["loss"])
            if 0 < shadow < math.inf and math.isfinite(aggregated):
                shots.append(single_shot(label, shadow, aggregated))
            else:
                why = f"the losses are {shadow:g} and {aggregated:g}: there is no share of them"
                refused.append(Refused(name, label, why))
    return shots, rounds, refused
