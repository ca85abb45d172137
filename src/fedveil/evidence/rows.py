"""Rounds of a run, one line each in metrics.jsonl: writing, reading, and averages over them."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from fedveil.engines import RoundRecord
from fedveil.layout import Layout
from fedveil.methods import ClientSide, Method
from fedveil.reading import json_of

METRICS_FILE = "metrics.jsonl"
METRICS_CSV = "metrics.csv"
# averaged figures cover at most the last LAST rounds, and at most 1 / SHARE of a run
LAST, SHARE = 5, 5
# figures of two classes: accuracy hides failures on a rare class
OF_TWO = ("auc", "balanced_accuracy", "sensitivity", "specificity")
FIGURES = ("accuracy", "f1", "precision", "micro_auc", "loss", "rmse", *OF_TWO)
# version of the figures' names; in 1, and in files without a version, micro_auc was called auc, and auc macro_auc
MEASURES = 2
FORMERLY = {"auc": "micro_auc", "macro_auc": "auc"}
Row = dict[str, Any]


def parse_row(line: str) -> Row:
    """Read a round from its line of metrics.jsonl.

    Raises
    ------
    ValueError, KeyError
        If the line is incomplete.
    """
    row = json_of(line)
    if not isinstance(row, dict) or not isinstance(row.get("round"), int):
        raise ValueError("it is no round")
    for name in ("metrics", "noise", "replies", "failed", "invalid", "refused", "seconds"):
        row[name]
    if row.get("measures", 1) < MEASURES:
        row["metrics"] = by_present_names(row["metrics"])
    return row


def by_present_names(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Rename figures that an earlier version wrote under other names."""
    return {FORMERLY.get(name, name): value for name, value in figures.items()}


def row_of(
    record: RoundRecord,
    method: Method,
    layout: Layout,
    sides: Mapping[int, ClientSide],
) -> Row:
    """Make the line of metrics.jsonl for a round."""
    log = record.round
    row: Row = {
        "round": log.number,
        "measures": MEASURES,
        "metrics": dict(record.metrics or {}),
        "clients": _spread(record.client_metrics),
        "noise": noise_of(method, layout, log.report, record.client_scales, sides),
        "server": dict(log.report),
        "published": dict(record.published),
    }
    if record.figures:
        row["figures"] = dict(record.figures)
    if record.validation is not None:
        row["validation"] = record.validation
    return {
        **row,
        "replies": len(log.used),
        "failed": _with_text_keys({**log.failed, **record.zeroed}),
        "invalid": _with_text_keys(log.invalid),
        "refused": _with_text_keys(log.refused),
        "seconds": round(record.seconds, 4),
    }


def _spread(every: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the worst and the median of the clients' figures."""
    spread = {}
    for figure, worst in (("accuracy", min), ("rmse", max)):
        values = [metrics[figure] for metrics in every if figure in metrics]
        if values:
            spread[figure] = {"worst": worst(values), "median": float(np.median(values))}
    return spread


def _with_text_keys(by_partition: Mapping[int, str]) -> dict[str, str]:
    return {str(partition): why for partition, why in by_partition.items()}


def noise_of(
    method: Method,
    layout: Layout,
    report: Mapping[str, float],
    scales: Mapping[int, tuple[float, ...]],
    sides: Mapping[int, ClientSide],
) -> dict[str, float]:
    """Describe the noise of one round: on the server's model (central trust), or of the median client (local trust).

    Parameters
    ----------
    method : Method
        Method of the run.
    layout : Layout
        Layout of the model.
    report : mapping of str to float
        Figures of the server's side.
    scales : mapping of int to tuple of float
        Scales of the clients' noise, by partition.
    sides : mapping of int to ClientSide
        Client sides with their own parameters, by partition.

    Returns
    -------
    dict of str to float
        Figures by name. Under central trust `signal_to_noise` is the length of the clipped median update divided by the
        noise's expected length. Under local trust the method defines it.
    """
    client = method.client
    if client.trust == "central":
        if "sigma" not in report:
            return {}
        kept = {
            name: report[name] for name in ("sigma", "distance", "noise_to_clip") if name in report
        }
        signal = min(report["update_norm_median"], report["clip"])
        return {**kept, "signal_to_noise": signal / (report["sigma"] * math.sqrt(layout.size))}
    used = {partition: scale for partition, scale in scales.items() if scale}
    if not used:
        return {}
    if not sides:
        return client.noise(list(used.values()), layout)
    each = [
        sides.get(partition, client).noise([scale], layout) for partition, scale in used.items()
    ]
    medians = {}
    for name in each[0]:
        medians[name] = median(figures[name] for figures in each)
    return medians


def rows_csv(rows: Sequence[Row]) -> bytes:
    """Write the rounds' metrics, noise and replies as CSV, for other programs."""
    columns: dict[str, None] = {}
    flat = []
    for row in rows:
        counted = {"replies": row["replies"], "seconds": row["seconds"]}
        flat.append({"round": row["round"], **row["metrics"], **row["noise"], **counted})
        columns |= dict.fromkeys(flat[-1])
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue().encode()


def last_rounds(rows: Sequence[Row], covered: int | None = None) -> dict[str, dict[str, float]]:
    """Compute mean and standard deviation of each figure over the last rounds.

    Parameters
    ----------
    rows : sequence of dict
        All rounds.
    covered : int, optional
        Number of rounds. By default a fifth of the run, at least one round and at most five. So a short run is not
        judged by rounds in which it still improves.
    """
    averages = {}
    covered = covered or max(1, min(LAST, len(rows) // SHARE))
    for figure in FIGURES:
        values = [row["metrics"][figure] for row in rows[-covered:] if figure in row["metrics"]]
        if values:
            averages[figure] = {
                "mean": fmean(values),
                "deviation": _deviation(values),
                "rounds": len(values),
            }
    return averages


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation; 0 for one value, NaN if a value is not finite."""
    if len(values) < 2:
        return 0.0
    return stdev(values) if all(map(math.isfinite, values)) else math.nan


def noise_over_rounds(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Summarise each noise figure by its first, last and mean value."""
    series: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row["noise"].items():
            series.setdefault(name, []).append(value)
    summary = {}
    for name, values in series.items():
        summary[name] = {"first": values[0], "last": values[-1], "mean": fmean(values)}
    return summary
