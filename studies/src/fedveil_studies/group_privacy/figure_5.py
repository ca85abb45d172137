"""The paper's figure 5 as figures: what inversion makes of single digits under noise of known lengths.

A game of inversion beside the run, of which it takes data and seed: each of four writers trains on one digit for one
step. A sigmoid LeNet with its usual first weights is one network behind which noise hides images, no stand-in for the
paper's CNN; a dense network shows what another attack, and another first layer, tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fedveil.config import Config, parse
from fedveil.engines.seams import Seen
from fedveil.games import InversionGame
from fedveil.games.inversion import NOISE
from fedveil.grid import Outcome, Store
from fedveil_studies.frame import Value
from fedveil_studies.group_privacy.measures import study

WRITERS = 4
CASES: dict[str, dict[str, Any]] = {"dlg": {"name": "lenet"}, "analytic": {"name": "mlp", "hidden": [256]}}
SETTINGS = {"vanilla": "0", **{f"nu = {nu:g}": f"{nu:g}" for nu in NOISE}}


@study.probe("inversion")
class SingleDigits:
    """MSE and share of identified images, by attack and nu."""

    name: ClassVar[str] = f"inversion of {WRITERS} digits: LeNet by DLG, 256 dense units by the analytic attack"
    figures: ClassVar[tuple[str, ...]] = tuple(
        f"{attack} {what} {nu}" for attack in CASES for what in ("mse", "identified") for nu in SETTINGS.values()
    )

    def __init__(self, full: Config) -> None:
        values = full.to_dict()
        for table in ("stopping", "privacy", "clients_per_round"):
            values.pop(table, None)
        values["data"] |= {
            "clients": WRITERS + 1,
            "partition": "natural",
            "min_size": 60,
            "holdout": 0.2,
            "rotated": 0.0,
        }
        values["local"] = {"epochs": 1, "batch_size": 1, "lr": 0.1}
        self._values = {**values, "privacy": {"method": "vanilla"}, "rounds": 1}

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Played once, after the first round."""
        found: dict[str, float] = dict.fromkeys(self.figures, float("nan"))
        for attack, model in CASES.items() if seen.broadcast.public.round == 1 else ():
            game = InversionGame(parse({**self._values, "model": model}), attacks=(attack,), replicates=WRITERS)
            for verdict in game.judge(Store(None).run(game.cells())).verdicts:
                for what in ("mse", "identified"):
                    found[f"{attack} {what} {SETTINGS[verdict.setting]}"] = verdict.details[what]
        return found


@study.measure("inverted")
def inverted(outcomes: Sequence[Outcome], figure: str) -> Value:
    """``inverted ATTACK FIGURE NU``: a figure of `SingleDigits`."""
    return Value(outcomes[0].series(figure)[0])
