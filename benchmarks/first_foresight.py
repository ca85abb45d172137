"""How well `fedveil_lab.config.foresight` foresees chance, over the cells of ``python -m benchmarks first_settings``.

Its two constants are fitted anew for each set, without that set: to the scores of all other cells, by least squares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from statistics import fmean
from typing import Any

from fedveil_lab.config import foresight
from fedveil_lab.config.foresight import REACH, Foreseen, Shape, foresee
from fedveil_lab.report.learned import WIDTH

PULLS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
IMAGES = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75)
LOWEST = 0.01  # of what is said to be possible above chance


@dataclass(frozen=True)
class Seen:
    """One setting: what it reached, over its seeds, and what is declared of it."""

    name: str
    where: str
    shape: Shape
    pull: float
    score: float
    chance: bool
    possible: float

    def foreseen(self, pull: float, image: float, possible: float) -> Foreseen:
        """What it would have been foreseen to reach, under other constants."""
        kept = foresight.PULL, foresight.IMAGE
        foresight.PULL, foresight.IMAGE = pull, image
        try:
            return foresee(self.shape, self.pull, possible)
        finally:
            foresight.PULL, foresight.IMAGE = kept


def seen(cells: Mapping[str, Any]) -> Iterator[Seen]:
    """All private settings of all cells; what is possible is what the runs without privacy reached."""
    for cell in cells.values():
        shape = Shape(**cell["shape"])
        plain = fmean(run["score"] for run in cell["defaults"]["no privacy"])
        possible = min(max(plain, shape.chance + LOWEST), 1 - LOWEST)
        for label, runs in cell["defaults"].items():
            if label in cell["pulls"]:
                where = f"{cell['set']}, {cell['unit']}, {cell['sum']}, epsilon {label.rpartition(' ')[2]}"
                score = fmean(run["score"] for run in runs)
                chance = _at_chance(runs, shape)
                yield Seen(cell["set"], where, shape, cell["pulls"][label], score, chance, possible)


def _at_chance(runs: Sequence[Mapping[str, Any]], shape: Shape) -> bool:
    """Whether runs would be said to be no better than chance (`fedveil_lab.report.learned`)."""
    if shape.classes:
        return fmean(run["low"] for run in runs) <= shape.chance
    error = 1 - fmean(run["score"] for run in runs)
    return error * (1 + WIDTH / sqrt(2 * shape.held_out)) >= 1


def fit(cells: Sequence[Seen]) -> tuple[float, float]:
    """The constants under which scores are foreseen best, each set counting alike."""

    def far(constants: tuple[float, float]) -> float:
        by_set: dict[str, list[float]] = {}
        for one in cells:
            found = one.foreseen(*constants, one.possible).score
            by_set.setdefault(one.name, []).append((found - one.score) ** 2)
        return sum(fmean(own) for own in by_set.values())

    return min(product(PULLS, IMAGES), key=far)


def table(cells: Mapping[str, Any]) -> Iterator[str]:
    """Missed and false alarms, with constants from other sets, and the cells that were foreseen wrongly."""
    every = list(seen(cells))
    names = list(dict.fromkeys(one.name for one in every))
    constants = {name: fit([one for one in every if one.name != name]) for name in names}
    yield f"Constants of all sets (share of the pull, power of pixels): {fit(every)}."
    yield "Of other sets alone: " + "; ".join(f"{name} {constants[name]}" for name in names) + "."
    yield ""
    yield "| said to be possible | at chance | missed | above chance | false alarms | mean error of the score |"
    yield "|---|---|---|---|---|---|"
    wrong: list[str] = []
    library = dict.fromkeys(names, (foresight.PULL, foresight.IMAGE))
    for title, declared, used in (
        ("what runs without privacy reached", True, constants),
        ("a clear task, as assumed", False, constants),
        ("what runs without privacy reached; the library's constants", True, library),
    ):
        counts: Counter[tuple[bool, bool]] = Counter()
        errors = []
        for one in every:
            usual = REACH["classes" if one.shape.classes else "numbers"]
            possible = one.possible if declared else usual
            found = one.foreseen(*used[one.name], possible)
            counts[one.chance, found.useless] += 1
            errors.append(abs(found.score - one.score))
            if declared and used is constants and found.useless != one.chance:
                kind = "missed" if one.chance else "false alarm"
                wrong.append(
                    f"{one.where}: {kind}, reached {one.score:.3f}, foreseen {found.score:.3f}"
                )
        missed, alarms = counts[True, False], counts[False, True]
        at, above = missed + counts[True, True], alarms + counts[False, False]
        yield (
            f"| {title} | {at} | {missed} ({missed / max(1, at):.0%}) | {above} | {alarms} ({alarms / max(1, above):.0%}) "
            f"| {fmean(errors):.3f} |"
        )
    yield ""
    yield from (f"* {line}" for line in wrong)
