"""The study of the metric-privacy paper: Sainz-Pardo Diaz et al. 2026, Knowledge-Based Systems 343, 115993."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import cast

from fedveil.reproduce.measure import Entry, read_published
from fedveil.reproduce.metric_privacy import inference
from fedveil.reproduce.metric_privacy.contents import FIGURES, TABLES
from fedveil.reproduce.metric_privacy.plan import EQUAL, SETTINGS, Choices, Plan, Scale, described, scales
from fedveil.reproduce.study import Plot

_THREE_CLIENTS = {*inference.SINGLE, "12", "13", "distances"}
_GUESSED = (
    "client inference scenario: client 3 has 424 images of class 0 where the paper prints 524, a guess: all three "
    "together would have 100 more than the train split"
)
_DATA = "the paper names neither kernel sizes nor pixel scaling: kernels 3x3 'valid', pixels (x - .3) / .3"


class MetricPrivacyStudy:
    """Tables and figures of the paper; see `fedveil.reproduce.study.Study`.

    Parameters
    ----------
    choices : Choices
        Scale, seeds, rules, readings, workers, device.
    """

    name = "metric-privacy"
    tables: Mapping[str, str] = {number: content.title for number, content in TABLES.items()}
    figures: Mapping[str, str] = {number: content.title for number, content in FIGURES.items()}
    settings: Mapping[str, str] = {**SETTINGS, **EQUAL}

    def __init__(self, choices: Choices) -> None:
        self.plan = Plan(choices)
        self._printed = read_published(resources.files(__package__) / "published.csv")

    def entries(self, table: str) -> list[Entry]:
        """What a table is made of."""
        return cast(list[Entry], TABLES[table].build(self.plan, self._printed))

    def plot(self, figure: str) -> Plot:
        """What a figure is made of."""
        title = f"{figure}: {self.figures[figure]}"
        return cast(Plot, FIGURES[figure].build(self.plan, self._printed, title=title))

    def notes(self, names: Sequence[str]) -> list[str]:
        """What was shrunk, read otherwise or guessed."""
        found = [*self.plan.notes(), _DATA]
        if _THREE_CLIENTS.intersection(names):
            found.append(_GUESSED)
        if {*inference.SINGLE, "12"}.intersection(names) and self.plan.choices.draws > 1:
            draws = self.plan.choices.draws
            found.append(f"single shot: {draws} draws of the noise on one training; the paper shows one")
        if "13" in names:
            found.append(f"attack AUC: {inference.UNIT}; independent replicates: fedveil audit")
        return found


__all__ = ["EQUAL", "SETTINGS", "Choices", "MetricPrivacyStudy", "Plan", "Scale", "described", "scales"]
