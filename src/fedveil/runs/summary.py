"""What a run comes to: metrics, guarantees, noise."""

import csv
import io
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import torch

import fedveil
from fedveil.accounting import Guarantee
from fedveil.config.folders import remedy
from fedveil.engines import RoundRecord
from fedveil.errors import damaged
from fedveil.layout import Layout
from fedveil.learning import ClientData
from fedveil.methods import ClientSide, Method
from fedveil.reading import json_of

METRICS = "metrics.jsonl"
METRICS_CSV = "metrics.csv"
# Raised by any change of a default or of arithmetic on that path: runs of two versions are not the same run.
NUMERICS = {"sequential": 6, "stacked": 3, "record": 7, "person": 8, "noise": 3}
_COMMON = 3  # a run whose paths all have this number says it alone
# averaged figures cover at most so many rounds, and of a short run no more than so much of it: 1 / 5
LAST, SHARE = 5, 5
# of two classes: what accuracy hides where one is rare
OF_TWO = ("macro_auc", "balanced_accuracy", "sensitivity", "specificity")
FIGURES = ("accuracy", "f1", "precision", "auc", "loss", "rmse", *OF_TWO)
REPRODUCIBLE = "reproducible, not for deployment"
Row = dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """A finished run.

    Attributes
    ----------
    values : dict
        What summary.json holds.
    rows : list of dict
        One a round, as in metrics.jsonl.
    """

    values: Mapping[str, Any]
    rows: Sequence[Row] = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> "Summary":
        """A finished run from its folder.

        Raises
        ------
        FieldError
            If summary.json or metrics.jsonl is missing or damaged.
        """
        file = folder / "summary.json"
        try:
            values = json_of(file.read_bytes())
            rounds = int(values["rounds"])
            file = folder / METRICS
            rows = []
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                file = Path(f"{folder / METRICS}, line {number}")
                rows.append(parse_row(line))
            if len(rows) != rounds:
                file = folder / METRICS
                raise ValueError(f"it has {len(rows)} lines, and there were {rounds} rounds")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged("run", file, error, remedy(folder)) from error
        return cls(values, rows)

    @property
    def setting(self) -> str:
        """The label in a comparison."""
        return str(self.values["setting"])

    @property
    def stopped(self) -> str:
        """Why the run ended early, or ""."""
        return str(self.values["stopped"])

    def averaged(self, figure: str) -> float | None:
        """Mean of a figure over the last rounds; None if it does not exist for the task."""
        averages = self.values["last_rounds"].get(figure)
        return None if averages is None else float(averages["mean"])

    def noise(self, figure: str, when: str = "mean") -> float | None:
        """Sigma, distance, noise_to_clip, ... (first, last or mean); None without noise."""
        recorded = self.values["noise"].get(figure)
        return None if recorded is None else float(recorded[when])


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
    return row


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


def majority_of(clients: Sequence[ClientData], classes: int) -> dict[str, Any]:
    """The number of classes, and the accuracy of naming the most frequent one, on what the clients hold out."""
    held = [c.test_y.reshape(-1) for c in clients if c.test_y is not None and len(c.test_y)]
    if not classes or not held:
        return {}
    return {"classes": classes, "majority": float(torch.cat(held).bincount().max()) / sum(map(len, held))}


def rows_csv(rows: Sequence[Row]) -> bytes:
    """The rounds' metrics, noise and replies as a table, for other programs."""
    counted = ("replies", "seconds")
    flat = [{"round": row["round"], **row["metrics"], **row["noise"], **{k: row[k] for k in counted}} for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue().encode()


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


def core_of(
    label: str,
    method: Method,
    layout: Layout,
    rows: Sequence[Row],
    guarantee: Guarantee,
    delta: float,
    trainer: str = "auto",
) -> dict[str, Any]:
    """What every summary holds, whoever ran the rounds."""
    counted = {kind: sum(len(row[kind]) for row in rows) for kind in ("failed", "invalid", "refused")}
    noisy = method.noisy
    persons = noisy is not None and noisy.noisy_steps.images > 0
    return {
        "setting": label,
        "method": method.name,
        "trust": method.client.trust,
        "metrics": rows[-1]["metrics"] if rows else {},
        "last_rounds": last_rounds(rows),
        "test_metrics": {},
        "guarantee": guarantee.describe(delta),
        "noise": noise_over_rounds(rows),
        "rounds": len(rows),
        "replies": {"used": sum(row["replies"] for row in rows), **counted},
        "dimension": layout.size,
        "versions": versions(),
        "numerics": numerics_of(noisy is not None, trainer, person=persons),
        "seconds": {"rounds": round(sum(row["seconds"] for row in rows), 3)},
    }


def numerics_of(record: bool, trainer: str = "auto", *, person: bool = False) -> int | str:
    """The numbers of the paths that a run takes, out of `NUMERICS`.

    Parameters
    ----------
    record : bool
        Whether the noise goes inside training.
    trainer : {"auto", "batched", "sequential"}
        How it trains otherwise; what ``"auto"`` chooses is left open.
    person : bool
        Whether persons are clipped there, with all their records.
    """
    trained = {"auto": ("sequential", "stacked"), "batched": ("stacked",), "sequential": ("sequential",)}
    inside = ("person",) if person else ("record",)
    paths = (*(inside if record else trained[trainer]), "noise")
    raised = [f"{path} {NUMERICS[path]}" for path in paths if NUMERICS[path] != _COMMON]
    return ", ".join(raised) or _COMMON


def versions() -> dict[str, str]:
    """What ran."""
    return {
        "fedveil": fedveil.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
