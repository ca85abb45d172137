"""The paper's figure 5 as figures: what inversion makes of single digits under noise of known lengths.

A game of inversion beside the run, of which it takes data and seed: each of some writers trains on one digit for one
step. A sigmoid LeNet with its usual first weights is one network behind which noise hides images, no stand-in for the
paper's CNN; a dense network shows what another attack, and another first layer, tell.

The law: noise of length nu times the step, in all directions of d parameters alike, has a share p / d of its square
in the p directions in which an image moves the update. It is felt there as nu sqrt(p / d) of the step, whatever the
attack; a network that hardly passes on what an image changes makes more of it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fedveil.engines import Seen
from fedveil_lab.config import Config, parse
from fedveil_lab.games import InversionGame
from fedveil_lab.games.inversion import NOISE
from fedveil_lab.grid import Outcome, Store
from fedveil_studies.frame import Value
from fedveil_studies.group_privacy.measures import study

WRITERS = 4
CASES: dict[str, dict[str, Any]] = {
    "dlg": {"name": "lenet"},
    "analytic": {"name": "mlp", "hidden": [256]},
}
SETTINGS = {"vanilla": "0", **{f"nu = {nu:g}": f"{nu:g}" for nu in NOISE}}
DENSE = tuple(
    "x".join(map(str, hidden)) for hidden in ([16], [64], [256], [1024], [256] * 2, [256] * 4)
)


def _playing(full: Config, writers: int, **changes: Any) -> dict[str, Any]:
    """A configuration of writers that train on one digit each, and of one more that is not attacked."""
    values = full.to_dict()
    for table in ("stopping", "privacy", "clients_per_round"):
        values.pop(table, None)
    values["data"] |= {
        "clients": writers + 1,
        "partition": "natural",
        "min_size": 60,
        "holdout": 0.2,
        "rotated": 0.0,
    }
    values["local"] = {"epochs": 1, "batch_size": 1, "lr": 0.1}
    return {**values, "privacy": {"method": "vanilla"}, "rounds": 1, **changes}


@study.probe("inversion")
class SingleDigits:
    """Probe that inverts single digits: MSE and share of identified images, by attack and nu."""

    name: ClassVar[str] = (
        f"inversion of {WRITERS} digits: LeNet by DLG, 256 dense units by the analytic attack"
    )
    figures: ClassVar[tuple[str, ...]] = tuple(
        f"{attack} {what} {nu}"
        for attack in CASES
        for what in ("mse", "identified")
        for nu in SETTINGS.values()
    )

    def __init__(self, full: Config) -> None:
        self._full = full

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Play the inversion game once, after the first round."""
        values: dict[str, float] = dict.fromkeys(self.figures, float("nan"))
        if seen.broadcast.public.round != 1:
            return values
        for attack, model in CASES.items():
            config = parse(_playing(self._full, WRITERS, model=model))
            game = InversionGame(config, attacks=(attack,), replicates=WRITERS)
            for verdict in game.judge(Store(None).run(game.cells())).verdicts:
                for what in ("mse", "identified"):
                    values[f"{attack} {what} {SETTINGS[verdict.setting]}"] = verdict.details[what]
        return values


@study.probe("law")
class Law:
    """Behind dense networks by width and depth: parameters, nu sqrt(p / d), and what the analytic attack leaves.

    ``felt`` is the root mean square error over that of the images.
    """

    writers: ClassVar[int] = 20
    name: ClassVar[str] = (
        f"the law of noise: {writers} digits behind dense networks, by the analytic attack"
    )
    figures: ClassVar[tuple[str, ...]] = tuple(
        [f"{case} parameters" for case in DENSE]
        + [
            f"{case} {what} {nu:g}"
            for case in DENSE
            for what in ("law", "felt", "identified")
            for nu in NOISE
        ]
    )

    def __init__(self, full: Config) -> None:
        self._full = full

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Play the inversion game once, after the first round."""
        values: dict[str, float] = dict.fromkeys(self.figures, float("nan"))
        if seen.broadcast.public.round != 1:
            return values
        for case in DENSE:
            model = {"name": "mlp", "hidden": [int(width) for width in case.split("x")]}
            config = parse(_playing(self._full, self.writers, model=model))
            game = InversionGame(config, attacks=("analytic",), replicates=self.writers)
            audit = game.judge(Store(None).run(game.cells()))
            assert audit.inverted is not None
            images, size = audit.inverted.originals.double(), game.setups[0].learner.layout.size
            values[f"{case} parameters"] = size
            for nu in NOISE:
                [verdict] = [one for one in audit.verdicts if one.setting == f"nu = {nu:g}"]
                felt = math.sqrt(verdict.details["mse"] / float(images.square().mean()))
                law = nu * math.sqrt(images[0].numel() / size)
                values[f"{case} law {nu:g}"] = law
                values[f"{case} felt {nu:g}"] = felt
                values[f"{case} identified {nu:g}"] = verdict.details["identified"]
        return values


@study.measure("inverted")
def inverted(outcomes: Sequence[Outcome], figure: str) -> Value:
    """``inverted FIGURE``: a figure of `SingleDigits` or of `Law`."""
    return Value(outcomes[0].series(figure)[0])
