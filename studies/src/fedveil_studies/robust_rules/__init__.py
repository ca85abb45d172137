"""Robust rules against every attack: what the worst one leaves, whom the rules leave out, and a map over heterogeneity.

The worst attack of a rule is chosen on examples that give no figure, so that the choice itself adds no luck. (The habit
is that of ByzFL, arXiv 2505.24802.)
"""

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from torch import Tensor

from fedveil.engines import Seen
from fedveil.errors import FieldError
from fedveil_lab.attacks.poisoning import goal_of, measure
from fedveil_lab.grid import Outcome
from fedveil_lab.runs.prepare import Setup
from fedveil_studies.frame import Curve, Study, Value
from fedveil_studies.frame.described import ScaleOf
from fedveil_studies.frame.measure import WholeRun
from fedveil_studies.robust_rules.selection import SelectionProbe, rare_clients

study = Study.of(__name__)


@study.adjust
def tell_how_many(values: dict[str, Any], _scale: ScaleOf, _flags: frozenset[str]) -> None:
    """Tell the rule how many clients are malicious."""
    rule, n = values["aggregator"], values["data"]["clients"]
    f = round(values["malicious"]["share"] * n)
    if "nnm" in rule:
        rule["nnm"] = f
    counts = {
        "trimmed-mean": {"fraction": (f + 0.5) / n},
        "multi-krum": {"malicious": f, "selected": n - f},
        "krum": {"malicious": f},
        "bulyan": {"malicious": f},
    }
    rule |= counts.get(rule["name"], {})


@study.probe("selection")
class RuleWatch(WholeRun):
    """Probe of the clients that the rule leaves out; after the run, success, recall and accuracy on two parts of examples."""

    name = "robust rules"
    _selection: SelectionProbe | None = None

    @property
    def figures(self) -> Collection[str]:
        """Figures of `SelectionProbe`."""
        if self._selection is None:
            return ()
        return self._selection.figures

    def begin(self, setup: Setup) -> None:
        """Store which clients are malicious, before the run."""
        poisoning, rule = setup.poisoning, setup.method.server.rule
        if poisoning is None or rule is None:
            raise FieldError("malicious", poisoning, "the study needs malicious clients and a rule")
        clients: Sequence[Any] = setup.clients
        honest = [p for p in range(len(clients)) if p not in poisoning.clients]
        rare = rare_clients(clients, honest, setup.dealt.dataset.classes)
        self._selection = SelectionProbe(rule, tuple(poisoning.behaviours), rare)
        self._setup, self._poisoning = setup, poisoning
        self._model: Tensor | None = None

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        assert self._selection is not None
        self._model = seen.models[0]
        return self._selection(seen)

    def concluded(self) -> dict[str, Any]:
        """``validation`` and ``test``: success, recall and accuracy of the last model."""
        held, learner, model = self._poisoning, self._setup.learner, self._model
        if model is None or held.measured_on is None:
            return {}
        by_part, (every_x, every_y, _) = {}, held.measured_on
        for name, first in (("validation", 0), ("test", 1)):
            x, y = every_x[first::2], every_y[first::2]
            outcome = measure(
                learner.model, learner.layout, model, x, y, goal_of(held.behaviour, x, y)
            )
            by_part[name] = {
                "success": outcome.success,
                "recall": outcome.recall,
                "accuracy": outcome.accuracy,
            }
        return by_part


def played(malicious: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Return what identifies an attack of ``[changes]``: its behaviour, the inner behaviour, and whether clients act."""
    return (
        malicious["behaviour"],
        (malicious.get("of") or {}).get("behaviour", ""),
        malicious.get("acting", True),
    )


ATTACKS = {
    name: played({key.partition(".")[2]: value for key, value in keys.items()})
    for name, keys in study.described.changes.items()
}


def under(outcomes: Sequence[Outcome], attack: str) -> Outcome:
    """Return the run under an attack."""
    return next(
        o for o in outcomes if played(o.cell.config.to_dict()["malicious"]) == ATTACKS[attack]
    )


def figure_of(outcome: Outcome, figure: str, part: str = "test") -> float:
    """Return a figure on a part of the examples, or a figure of the rule's choice averaged over rounds."""
    concluded = outcome.summary.values["concluded"][RuleWatch.name][part]
    if figure in concluded:
        return float(concluded[figure])
    return fmean(outcome.series(figure))


def worst_of(outcomes: Sequence[Outcome]) -> float:
    """Test accuracy under the attack that leaves the least accuracy on the validation examples."""
    acting = [o for o in outcomes if played(o.cell.config.to_dict()["malicious"])[2]]
    return figure_of(min(acting, key=lambda o: figure_of(o, "accuracy", "validation")), "accuracy")


@study.measure("under")
def measured(outcomes: Sequence[Outcome], figure: str, attack: str) -> Value:
    """Success, recall, accuracy, or a figure of the rule's choice (NaN if the rule has none)."""
    outcome = under(outcomes, attack)
    usual = figure in ("success", "recall", "accuracy")
    if not usual and figure not in outcome.rows[0].get("figures", {}):
        return Value(math.nan)
    return Value(figure_of(outcome, figure))


@study.measure("worst accuracy")
def worst(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Test accuracy under the worst attack, see `worst_of`."""
    return Value(worst_of(outcomes))


@study.curve("worst over share")
def worst_over_share(outcomes: Sequence[Outcome], _argument: str) -> Curve:
    """One point: the worst accuracy against the malicious share."""
    return Curve(
        [float(outcomes[0].cell.config.to_dict()["malicious"]["share"])], [worst_of(outcomes)]
    )
