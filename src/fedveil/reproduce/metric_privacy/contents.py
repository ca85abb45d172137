"""The tables and figures of the metric-privacy study: their titles, and what builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from fedveil.reproduce.measure import Entry
from fedveil.reproduce.metric_privacy import accuracy, curves, distances, extra, inference
from fedveil.reproduce.study import Plot

HOMOGENEOUS, NON_IID = "homogeneous", "non-iid"
OURS = "(not in the paper)"


@dataclass(frozen=True)
class Content:
    """A table or a figure.

    Attributes
    ----------
    title : str
        What it shows.
    build : callable
        ``plan, printed figures -> entries``, or for a figure ``plan, printed figures, title -> Plot``.
    """

    title: str
    build: Callable[..., list[Entry]] | Callable[..., Plot]


def _single(table: str, title: str) -> Content:
    return Content(f"Single-shot client inference, {title}", partial(inference.single_entries, table=table))


def _both(name: str, title: str, build: Callable[..., list[Entry]], where: str = OURS) -> dict[str, Content]:
    """A table of our own for both scenarios."""
    return {
        name: Content(f"{title}, homogeneous clients {where}", partial(build, scenario=HOMOGENEOUS)),
        f"{name}-{NON_IID}": Content(f"{title}, non-iid clients {where}", partial(build, scenario=NON_IID)),
    }


TABLES: Mapping[str, Content] = {
    "5": Content(
        "Accuracy over the last five rounds, homogeneous clients",
        partial(accuracy.over_rounds, table="5", scenario=HOMOGENEOUS),
    ),
    "6": Content(
        "Accuracy, F1 and precision on the test half, homogeneous clients",
        partial(accuracy.on_test_half, table="6", scenario=HOMOGENEOUS),
    ),
    "7": Content(
        "Accuracy over the last five rounds, non-iid clients",
        partial(accuracy.over_rounds, table="7", scenario=NON_IID),
    ),
    "8": Content(
        "Accuracy, F1 and precision on the test half, non-iid clients",
        partial(accuracy.on_test_half, table="8", scenario=NON_IID),
    ),
    "10": _single("10", "FedAvg"),
    "11": _single("11", "FedOpt (the caption says FedYogi; text and figures are FedOpt's)"),
    "12": Content("Test loss after the first round, single-shot scenario", inference.test_loss_entries),
    "13": Content("Multi-round client inference, FedAvg", inference.multi_entries),
    "A14": Content(
        "Accuracy on the test half, homogeneous clients, five runs (--seeds 5)",
        partial(accuracy.on_test_half, table="A14", scenario=HOMOGENEOUS, figures=("accuracy",)),
    ),
    "B15": Content(
        "Accuracy over the last five rounds at other noise multipliers (.003; FedAvg at .05 and .1)",
        accuracy.other_noise,
    ),
    "E16": _single("E16", "FedAvgM"),
    "E17": _single("E17", "FedMedian"),
    "E18": _single("E18", "FedProx"),
    "E19": _single("E19", "FedYogi"),
    **_both("auc", "Area under the ROC curves of figures C.2 and C.3, on the test half", extra.area, where=""),
    **_both("smoothness", "Change of the accuracy from round to round, in figures D.4 and D.5", extra.roughness),
    **_both("sigma", "Metric privacy beside global DP at its average sigma", extra.equal_noise),
    "distances": Content(
        f"Which distance follows the clients' disagreement, FedAvg {OURS}", distances.distance_entries
    ),
}

FIGURES: Mapping[str, Content] = {
    "C2": Content("ROC curves on the test half, homogeneous clients", partial(curves.roc_plot, scenario=HOMOGENEOUS)),
    "C3": Content("ROC curves on the test half, non-iid clients", partial(curves.roc_plot, scenario=NON_IID)),
    "D4": Content(
        "Accuracy in every round, homogeneous clients",
        partial(curves.accuracy_plot, scenario=HOMOGENEOUS, table="5"),
    ),
    "D5": Content(
        "Accuracy in every round, non-iid clients", partial(curves.accuracy_plot, scenario=NON_IID, table="7")
    ),
    "noise": Content(
        f"Distance and noise in every round, homogeneous clients {OURS}",
        partial(curves.noise_plot, scenario=HOMOGENEOUS),
    ),
    "noise-non-iid": Content(
        f"Distance and noise in every round, non-iid clients {OURS}", partial(curves.noise_plot, scenario=NON_IID)
    ),
    "distances": Content(
        f"Every distance and the clients' disagreement in every round, FedAvg {OURS}", distances.distance_plot
    ),
}
