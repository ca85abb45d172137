"""The rounds of a run, a line each in metrics.jsonl: how a line is made and read, and what all lines come to."""

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
# averaged figures cover at most so many rounds, and of a short run no more than so much of it: 1 / 5
LAST, SHARE = 5, 5
# of two classes: what accuracy hides where one is rare
OF_TWO = ("auc", "balanced_accuracy", "sensitivity", "specificity")
FIGURES = ("accuracy", "f1", "precision", "micro_auc", "loss", "rmse", *OF_TWO)
# what the names of figures mean; in 1 (and where a file says nothing) micro_auc was called auc, and auc macro_auc
MEASURES = 2
FORMERLY = {"auc": "micro_auc", "macro_auc": "auc"}
Row = dict[str, Any]


def parse_row(line: str) -> Row:
    """A round from its line of metrics.jsonl.

    Raises
    ------
    ValueError, KeyError
        If it is no whole row.
    """
    row = json_of(line)
    if not isinstance(row, dict) or not isinstance(row.get("round"), int):
        raise ValueError("it is no round")
    for name in ("metrics", "noise", "replies", "failed", "invalid", "refused", "seconds"):
        row[name]
    return row if row.get("measures", 1) >= MEASURES else {**row, "metrics": by_present_names(row["metrics"])}


def by_present_names(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of a file that was written under earlier names."""
    return {FORMERLY.get(name, name): value for name, value in figures.items()}


def row_of(record: RoundRecord, method: Method, layout: Layout, sides: Mapping[int, ClientSide]) -> Row:
    """One line of metrics.jsonl."""
    log = record.round
    every = record.client_metrics
    spread: dict[str, dict[str, float]] = {}
    for figure in ("accuracy", "rmse"):
        values = [m[figure] for m in every if figure in m]
        if values:
            worst = max(values) if figure == "rmse" else min(values)
            spread[figure] = {"worst": worst, "median": float(np.median(values))}
    return {
        "round": log.number,
        "measures": MEASURES,
        "metrics": dict(record.metrics or {}),
        "clients": spread,
        "noise": noise_of(method, layout, log.report, record.client_scales, sides),
        "server": dict(log.report),
        "published": dict(record.published),
        **({"figures": dict(record.figures)} if record.figures else {}),
        **({} if record.validation is None else {"validation": record.validation}),
        "replies": len(log.used),
        "failed": {str(k): v for k, v in (*log.failed.items(), *record.zeroed.items())},
        "invalid": {str(k): v for k, v in log.invalid.items()},
        "refused": {str(k): v for k, v in log.refused.items()},
        "seconds": round(record.seconds, 4),
    }


def noise_of(
    method: Method,
    layout: Layout,
    report: Mapping[str, float],
    scales: Mapping[int, tuple[float, ...]],
    sides: Mapping[int, ClientSide],
) -> dict[str, float]:
    """The noise of one round: on the server's model (central trust), or of the median client (local trust).

    `scales` and `sides`, the client sides of those who have one of their own, are by partition. `signal_to_noise` is
    the length of the clipped median update over the noise's expected length; what it is under local trust, the method
    says.
    """
    d, client = layout.size, method.client
    if client.trust == "central":
        if "sigma" not in report:
            return {}
        kept = {k: report[k] for k in ("sigma", "distance", "noise_to_clip") if k in report}
        signal = min(report["update_norm_median"], report["clip"])
        return {**kept, "signal_to_noise": signal / (report["sigma"] * math.sqrt(d))}
    used = {p: scale for p, scale in scales.items() if scale}
    if not used or not sides:
        return client.noise(list(used.values()), layout) if used else {}
    each = [sides.get(p, client).noise([scale], layout) for p, scale in used.items()]
    return {name: median(figures[name] for figures in each) for name in each[0]}


def rows_csv(rows: Sequence[Row]) -> bytes:
    """The rounds' metrics, noise and replies as a table, for other programs."""
    counted = ("replies", "seconds")
    flat = [{"round": row["round"], **row["metrics"], **row["noise"], **{k: row[k] for k in counted}} for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue().encode()


def last_rounds(rows: Sequence[Row], covered: int | None = None) -> dict[str, dict[str, float]]:
    """Mean and standard deviation of each figure over the last rounds.

    Parameters
    ----------
    rows : sequence of dict
        Of all rounds.
    covered : int, optional
        How many are averaged. Default: the last fifth of the run, at least one round and at most five, so that a short
        run is not judged by rounds in which it still climbs.
    """
    averages, covered = {}, covered or max(1, min(LAST, len(rows) // SHARE))
    for figure in FIGURES:
        values = [row["metrics"][figure] for row in rows[-covered:] if figure in row["metrics"]]
        if values:
            finite = all(map(math.isfinite, values))  # of others Python has no deviation, and raises
            deviation = (stdev(values) if finite else math.nan) if len(values) > 1 else 0.0
            averages[figure] = {"mean": fmean(values), "deviation": deviation, "rounds": len(values)}
    return averages


def noise_over_rounds(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """First, last and mean of each noise figure."""
    names = dict.fromkeys(name for row in rows for name in row["noise"])
    series = {name: [row["noise"][name] for row in rows if name in row["noise"]] for name in names}
    return {name: {"first": v[0], "last": v[-1], "mean": fmean(v)} for name, v in series.items()}
