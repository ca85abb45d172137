"""What a run comes to: metrics, guarantees, noise."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

import fedveil
from fedveil.accounting import VACUOUS, Guarantee, Ledger, SpendFilter, unprotected
from fedveil.engines import Federation, RoundRecord
from fedveil.engines.history import SERVER, total_of
from fedveil.errors import damaged
from fedveil.experiments.folders import way_out
from fedveil.layout import Layout
from fedveil.learning import Metrics
from fedveil.methods import FedRE, GroupPrivacy, Method

METRICS = "metrics.jsonl"
LAST = 5  # rounds that the averaged figures cover
FIGURES = ("accuracy", "f1", "precision", "auc", "loss", "rmse")
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
    def read(cls, folder: Path) -> Summary:
        """A finished run from its folder.

        Raises
        ------
        FieldError
            If summary.json or metrics.jsonl is missing or damaged.
        """
        file = folder / "summary.json"
        try:
            values = json.loads(file.read_bytes())
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
            raise damaged("run", file, error, way_out(folder)) from error
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
        found = self.values["last_rounds"].get(figure)
        return None if found is None else float(found["mean"])

    def noise(self, figure: str, when: str = "mean") -> float | None:
        """Sigma, distance, noise_to_clip, ... (first, last or mean); None without noise."""
        found = self.values["noise"].get(figure)
        return None if found is None else float(found[when])


def parse_row(line: str) -> Row:
    """A round from its line of metrics.jsonl.

    Raises
    ------
    ValueError, KeyError
        If it is no whole row.
    """
    row = json.loads(line)
    if not isinstance(row, dict) or not isinstance(row.get("round"), int):
        raise ValueError("it is no round")
    for name in ("metrics", "noise", "replies", "failed", "invalid", "refused", "seconds"):
        row[name]
    return row


def row_of(record: RoundRecord, federation: Federation) -> Row:
    """One line of metrics.jsonl."""
    log = record.round
    every = [m for m in (figures_of(metrics) for metrics in record.client_metrics) if m]
    spread: dict[str, dict[str, float]] = {}
    for figure in ("accuracy", "rmse"):
        values = [m[figure] for m in every if figure in m]
        if values:
            worst = max(values) if figure == "rmse" else min(values)
            spread[figure] = {"worst": worst, "median": float(np.median(values))}
    return {
        "round": log.number,
        "metrics": figures_of(record.metrics),
        "clients": spread,
        "noise": noise_of(federation.method, federation.layout, log.report, record.client_scales.values()),
        "server": dict(log.report),
        "published": dict(record.published),
        "replies": len(log.used),
        "failed": {str(k): v for k, v in log.failed.items()},
        "invalid": {str(k): v for k, v in log.invalid.items()},
        "refused": {str(k): v for k, v in log.refused.items()},
        "seconds": round(record.seconds, 4),
    }


def figures_of(metrics: Metrics | None) -> dict[str, float]:
    """The figures that exist for the task and the data."""
    return {} if metrics is None else {k: v for k, v in asdict(metrics).items() if v is not None}


def noise_of(
    method: Method, layout: Layout, report: Mapping[str, float], scales: Iterable[tuple[float, ...]]
) -> dict[str, float]:
    """The noise of one round: on the server's model (central trust), or of the median client (local trust).

    `signal_to_noise` is the length of the clipped median update over the noise's expected length. Under local trust
    that length is private, and the ratio is its bound, clip over noise; group privacy fixes the ratio itself, 1 / nu.
    """
    d, client = layout.size, method.client
    if client.trust == "central":
        if "sigma" not in report:
            return {}
        kept = {k: report[k] for k in ("sigma", "distance", "noise_to_clip") if k in report}
        signal = min(report["update_norm_median"], report["clip"])
        return {**kept, "signal_to_noise": signal / (report["sigma"] * math.sqrt(d))}
    used = [s for s in scales if s]
    if not used:
        return {}
    if isinstance(client, GroupPrivacy):
        sigma = float(np.median([math.sqrt(d + 1) / s[0] for s in used]))
        nu = client.noise_multiplier
        return {"sigma": sigma} if client.radius else {"sigma": sigma, "noise_to_step": nu, "signal_to_noise": 1 / nu}
    groups = layout.groups("module")
    sizes = [sum(s.stop - s.start for s in slices) for slices in groups.values()]
    lengths = [math.sqrt(sum(v * v * n for v, n in zip(s, sizes if len(s) > 1 else [d], strict=True))) for s in used]
    length, bound = float(np.median(lengths)), getattr(client, "clip", None)
    if isinstance(client, FedRE):
        bounds = client.clip.values() if isinstance(client.clip, Mapping) else [client.clip] * len(groups)
        bound = math.sqrt(sum(b * b for b in bounds))
    figures = {"sigma": length / math.sqrt(d)}
    return figures if not bound else {**figures, "noise_to_clip": length / bound, "signal_to_noise": bound / length}


def last_rounds(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation of each figure over the last rounds."""
    found = {}
    for figure in FIGURES:
        values = [row["metrics"][figure] for row in rows[-LAST:] if figure in row["metrics"]]
        if values:
            deviation = stdev(values) if len(values) > 1 else 0.0
            found[figure] = {"mean": fmean(values), "deviation": deviation, "rounds": len(values)}
    return found


def noise_over_rounds(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """First, last and mean of each noise figure."""
    names = dict.fromkeys(name for row in rows for name in row["noise"])
    series = {name: [row["noise"][name] for row in rows if name in row["noise"]] for name in names}
    return {name: {"first": v[0], "last": v[-1], "mean": fmean(v)} for name, v in series.items()}


def guarantee_values(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """A guarantee for JSON; epsilon and delta are there only where an epsilon is proven."""
    values = {k: v for k, v in guarantee.to_dict().items() if v not in (None, "", [])}
    if guarantee.proven and guarantee.epsilon_per_distance is None:
        epsilon = guarantee.epsilon(delta)
        values |= {"epsilon": epsilon, "delta": delta, "vacuous": epsilon > VACUOUS}
    return {"text": guarantee.describe(delta), **values}


def guarantees_of(
    method: Method, books: Mapping[str, Ledger], delta: float, budget: SpendFilter | None = None
) -> tuple[Guarantee, dict[str, Any]]:
    """The guarantee that counts, and the parties': the trusted server's, or the worst and the median client's."""
    totals = {p: total_of(b, budget) for p, b in books.items() if b.entries}
    if method.client.trust == "central":
        server = totals.get(SERVER, unprotected())
        return server, {SERVER: guarantee_values(server, delta)}
    clients = {p: g for p, g in totals.items() if p != SERVER}
    if not clients:
        nothing = unprotected("local")
        return nothing, {"worst client": guarantee_values(nothing, delta)}
    cost = {p: (g.cost, len(books[p].entries)) for p, g in clients.items()}
    order = sorted(clients, key=lambda p: (cost[p], p))
    values: dict[str, Any] = {}
    for name, party in (("worst client", order[-1]), ("median client", order[(len(order) - 1) // 2])):
        spends = [e.spend for e in books[party].entries]
        leakage = [s.leakage for s in spends if s.leakage is not None]
        extra = {"leakage": math.fsum(leakage)} if leakage else {}
        values[name] = {**guarantee_values(clients[party], delta), "participations": len(spends), **extra}
    return clients[order[-1]], values


def versions() -> dict[str, str]:
    """What ran."""
    return {
        "fedveil": fedveil.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
