"""The study of the metric-privacy paper: Sainz-Pardo Diaz et al. 2026, Knowledge-Based Systems 343, 115993."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources

from fedveil.reproduce.measure import Entry, read_published
from fedveil.reproduce.metric_privacy import accuracy, curves, inference
from fedveil.reproduce.metric_privacy.plan import SETTINGS, Choices, Plan, Scale, described, scales
from fedveil.reproduce.study import Plot

_HOMOGENEOUS, _NON_IID = "homogeneous", "non-iid"
_TABLES = {
    "5": "Accuracy over the last five rounds, homogeneous clients",
    "6": "Accuracy, F1 and precision on the test half, homogeneous clients",
    "7": "Accuracy over the last five rounds, non-iid clients",
    "8": "Accuracy, F1 and precision on the test half, non-iid clients",
    "10": "Single-shot client inference, FedAvg",
    "11": "Single-shot client inference, FedOpt (the caption says FedYogi; text and figures are FedOpt's)",
    "12": "Test loss after the first round, single-shot scenario",
    "13": "Multi-round client inference, FedAvg",
    "A14": "Accuracy on the test half, homogeneous clients, five runs (--seeds 5)",
    "B15": "Accuracy over the last five rounds at other noise multipliers (.003; FedAvg at .05 and .1)",
    "E16": "Single-shot client inference, FedAvgM",
    "E17": "Single-shot client inference, FedMedian",
    "E18": "Single-shot client inference, FedProx",
    "E19": "Single-shot client inference, FedYogi",
}
_FIGURES = {
    "C2": "ROC curves on the test half, homogeneous clients",
    "C3": "ROC curves on the test half, non-iid clients",
    "D4": "Accuracy in every round, homogeneous clients",
    "D5": "Accuracy in every round, non-iid clients",
    "noise": "Distance and noise in every round, homogeneous clients (not in the paper)",
    "noise-non-iid": "Distance and noise in every round, non-iid clients (not in the paper)",
}
_INFERENCE = {*inference.SINGLE, "12", "13"}
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
    tables: Mapping[str, str] = _TABLES
    figures: Mapping[str, str] = _FIGURES

    def __init__(self, choices: Choices) -> None:
        self.plan = Plan(choices)
        self._printed = read_published(resources.files(__package__) / "published.csv")

    def entries(self, table: str) -> list[Entry]:
        """What a table is made of."""
        plan, printed = self.plan, self._printed
        if table in ("5", "7"):
            return accuracy.over_rounds(plan, printed, table, _HOMOGENEOUS if table == "5" else _NON_IID)
        if table in ("6", "8"):
            return accuracy.on_test_half(plan, printed, table, _HOMOGENEOUS if table == "6" else _NON_IID)
        if table == "A14":
            return accuracy.on_test_half(plan, printed, table, _HOMOGENEOUS, ("accuracy",))
        if table == "B15":
            return accuracy.other_noise(plan, printed)
        if table == "12":
            return inference.test_loss_entries(plan, printed)
        return (
            inference.multi_entries(plan, printed) if table == "13" else inference.single_entries(plan, printed, table)
        )

    def plot(self, figure: str) -> Plot:
        """What a figure is made of."""
        plan, title = self.plan, f"{figure}: {_FIGURES[figure]}"
        if figure in ("C2", "C3"):
            return curves.roc_plot(plan, _HOMOGENEOUS if figure == "C2" else _NON_IID, title)
        if figure in ("D4", "D5"):
            scenario, table = (_HOMOGENEOUS, "5") if figure == "D4" else (_NON_IID, "7")
            return curves.accuracy_plot(plan, self._printed, scenario, table, title)
        return curves.noise_plot(plan, _HOMOGENEOUS if figure == "noise" else _NON_IID, title)

    def notes(self, names: Sequence[str]) -> list[str]:
        """What was shrunk, read otherwise or guessed."""
        found = [*self.plan.notes(), _DATA]
        if _INFERENCE.intersection(names):
            found.append(_GUESSED)
        if {*inference.SINGLE, "12"}.intersection(names) and self.plan.choices.draws > 1:
            draws = self.plan.choices.draws
            found.append(f"single shot: {draws} draws of the noise on one training; the paper shows one")
        if "13" in names:
            found.append(f"attack AUC: {inference.UNIT}; independent replicates: fedveil audit")
        return found


__all__ = ["SETTINGS", "Choices", "MetricPrivacyStudy", "Plan", "Scale", "described", "scales"]
