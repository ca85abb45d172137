"""The study of the metric-privacy paper: Sainz-Pardo Diaz et al. 2026, Knowledge-Based Systems 343, 115993."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, cast

from fedveil.attacks.paper import NO_OTHER_WORLD
from fedveil.errors import FieldError
from fedveil.reproduce.claims import LEARNED, PAPER, PRINTED_NOISE
from fedveil.reproduce.measure import Entry, Result, read_published
from fedveil.reproduce.metric_privacy import distances, inference
from fedveil.reproduce.metric_privacy.contents import FIGURES, TABLES
from fedveil.reproduce.metric_privacy.plan import EQUAL, SETTINGS, Choices, Plan, Scale, described, scales
from fedveil.reproduce.study import Plot

_THREE_CLIENTS = {*inference.SINGLE, "12", "13", "distances"}
_ABOUT = {**inference.SINGLE, "13": inference.MULTI, "distances": distances.RULE}  # tables, figures of one rule
_GUESSED = (
    "client inference scenario: client 3 has 424 images of class 0 where the paper prints 524, a guess: all three "
    "together would have 100 more than the train split"
)
_DATA = (
    "the paper names neither kernel sizes nor pixel scaling nor learning rates: kernels 3x3 'valid', pixels "
    "(x - .3) / .3, Adam at {lr:g}, FedYogi at .01; slices of one person are on both sides of the split, so high "
    "accuracy partly rewards memorising persons"
)


class MetricPrivacyStudy:
    """Tables and figures of the paper; see `fedveil.reproduce.study.Study`.

    Parameters
    ----------
    choices : Choices
        Scale, seeds, rules, readings, workers, device.
    """

    name = "metric-privacy"
    settings: Mapping[str, str] = {**SETTINGS, **EQUAL}

    def __init__(self, choices: Choices) -> None:
        self.plan = Plan(choices)
        rules = choices.rules or tuple(_ABOUT.values())
        self.tables, self.figures = (
            {name: content.title for name, content in every.items() if _ABOUT.get(name, rules[0]) in rules}
            for every in (TABLES, FIGURES)
        )
        self._printed = read_published(resources.files(__package__) / "published.csv")

    def entries(self, table: str) -> list[Entry]:
        """What a table is made of."""
        return cast(list[Entry], TABLES[table].build(self.plan, self._printed))

    def plot(self, figure: str) -> Plot:
        """What a figure is made of."""
        title = f"{figure}: {self.figures[figure]}"
        return cast(Plot, FIGURES[figure].build(self.plan, self._printed, title=title))

    @property
    def choices(self) -> Mapping[str, Any]:
        """What decides its figures, for the files that hold them."""
        chosen = self.plan.choices
        made = {"scale": self.plan.scale.name, "seeds": list(self.plan.seeds), "draws": chosen.draws}
        return {**made, "readings": list(chosen.readings)}

    def with_stored(self, values: Mapping[str, Any]) -> MetricPrivacyStudy:
        """The same, and what a table file that it once wrote holds beyond it."""
        labels = {str(row["row"]).partition(",")[0] for row in values["rows"]}
        return MetricPrivacyStudy(
            self.plan.choices.with_stored(labels, list(map(int, values["seeds"])), int(values.get("draws", 1)))
        )

    def refuse_other_rules(self, tables: Sequence[str], figures: Sequence[str] = ()) -> None:
        """Refuse a table or figure of one rule where only other rules were chosen.

        Raises
        ------
        FieldError
            Naming the rule that it is about, and the chosen one's own table.
        """
        rules = self.plan.choices.rules
        for table in (t for t in tables if t in _ABOUT and t not in self.tables):
            own = [t for t, rule in inference.SINGLE.items() if rule in rules and table in inference.SINGLE]
            instead = f"; see table {' and table '.join(own)}" if own else ""
            raise FieldError("--rule", ", ".join(rules), f"table {table} is about {_ABOUT[table]} alone{instead}")
        for figure in (f for f in figures if f in _ABOUT and f not in self.figures):
            raise FieldError("--rule", ", ".join(rules), f"figure {figure} is about {_ABOUT[figure]} alone")

    def advice(self, results: Sequence[Result]) -> list[str]:
        """What to try where no private run learned anything."""
        private = [r for r in results if r.setting != "vanilla" and r.figure == "accuracy"]
        best = max((r.value - r.chance for r in private if r.value is not None and r.chance is not None), default=1.0)
        if best > LEARNED or self.plan.scale.name == PAPER or PRINTED_NOISE in self.plan.choices.readings:
            return []
        return [
            "no private run learned anything: at this size the noise on each parameter is "
            f"{self.plan.scale.noise_factor:.3g} times the paper's; try --reading {PRINTED_NOISE}"
        ]

    def notes(self, names: Sequence[str]) -> list[str]:
        """What was shrunk, read otherwise or guessed."""
        local = self.plan.full("homogeneous", self.plan.seeds[0]).local
        found = [*self.plan.notes(), _DATA.format(lr=local.lr)]
        if _THREE_CLIENTS.intersection(names):
            found.append(_GUESSED)
        if {*inference.SINGLE, "12"}.intersection(names) and self.plan.choices.draws > 1:
            draws = self.plan.choices.draws
            found.append(f"single shot: {draws} draws of the noise on one training; the paper shows one")
        if set(inference.SINGLE).intersection(names):
            found.append(f"difference: the paper's statistic, in percent; {NO_OTHER_WORLD}")
        if "13" in names:
            once = inference.UNIT if len(self.plan.seeds) == 1 else inference.OVER_SEEDS
            found.append(f"attack AUC: {once}; independent replicates: fedveil audit")
        return found


__all__ = ["EQUAL", "SETTINGS", "Choices", "MetricPrivacyStudy", "Plan", "Scale", "described", "scales"]
