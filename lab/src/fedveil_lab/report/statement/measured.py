"""Figures that a physician asks for: pooled, with intervals, as the author says them; and the gate's verdict.

No figure is for a single hospital: such figures are the experimenter's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedveil.errors import damaged
from fedveil.files import remedy
from fedveil.reading import json_of
from fedveil_lab.grid.gate import GATE
from fedveil_lab.report.statement.document import Fact, Grid, ReportSection
from fedveil_lab.runs.summary import Summary

FIGURES = ("sensitivity", "specificity", "auc", "balanced_accuracy", "brier")
NAMES = {"auc": "ROC AUC", "balanced_accuracy": "balanced accuracy", "brier": "Brier score"}


def with_measures(
    section: ReportSection, runs: Mapping[str, Sequence[Summary]], folders: Sequence[Path]
) -> ReportSection:
    """Add the pooled figures and the gate's verdict to the section on accuracy."""
    lines, tables = list(section.lines), list(section.tables)
    table, pooled = measured_rows(runs), _pooled(runs)
    if table.rows:
        tables.append(table)
    if pooled:
        lines.append(Fact("computed", said_of(pooled[0]), said=True))
    for folder in folders:
        lines += gate_of(folder)
    return replace(section, lines=lines, tables=tables)


def measured_rows(runs: Mapping[str, Sequence[Summary]]) -> Grid:
    """Make the table of pooled figures with 95% intervals over patients; with several seeds, figures and ends are means."""
    rows, positive = [], dict[str, None]()
    for label, own in runs.items():
        found = list(filter(None, map(_of, own)))
        if not found or len(found) < len(own):
            continue
        row = [label]
        for name in FIGURES:
            row.append(_mean([one["figures"].get(name) for one in found]))
        rows.append(row)
        for one in found:
            if one["positive"]:
                positive[one["positive"]] = None
    of = ""
    if positive:
        of = f", of the class {' or '.join(positive)}"
    header = ("setting", *[NAMES.get(name, name) for name in FIGURES])
    return Grid(f"Pooled, after the last round{of} (95% over patients)", header, rows, header[1:])


def said_of(found: Mapping[str, Any]) -> str:
    """State whose data the figures describe, and that no promise protects these people."""
    who = f"{found['rows']} test rows"
    if found["persons"]:
        who = f"{found['persons']} test patients ({found['rows']} rows)"
    return f"said by the author; without noise, on {who}, which no promise covers"


def gate_of(folder: Path) -> list[Fact]:
    """List the limits and the result of a comparison's gate, if it has one."""
    file = folder / GATE
    if not file.is_file():
        return []
    try:
        values = json_of(file.read_bytes())
        limits, result = values["limits"], values.get("result")
        privacy = limits["privacy"]
        measures = [f"{name} {least:g}" for name, least in limits["measures"].items()]
        asked = f"{limits['setting']}: epsilon {privacy['epsilon']:g} for one {privacy['unit']} at delta "
        asked += f"{privacy['delta']:g}; {', '.join(measures)}"
        verdict, why = "not checked yet", list[str]()
        if result is not None:
            verdict = str(result["verdict"])
            for part in ("privacy", "attack", "measures"):
                why += map(str, result[part])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged("gate", file, error, remedy(folder)) from error
    return [
        Fact("asked for before the first run", asked, said=True),
        Fact.of("what came of it", verdict, *why, said=True),
    ]


def _pooled(runs: Mapping[str, Sequence[Summary]]) -> list[Mapping[str, Any]]:
    pooled = list[Mapping[str, Any]]()
    for own in runs.values():
        pooled += filter(None, map(_of, own))
    return pooled


def _of(summary: Summary) -> Mapping[str, Any]:
    found: Mapping[str, Any] = summary.values.get("classified", {}).get("pooled", {})
    return found


def _mean(figures: Sequence[Mapping[str, Any] | None]) -> str:
    values, lows, highs = list[float](), list[float](), list[float]()
    for one in figures:
        if one is None:
            return ""
        values.append(one["value"])
        if one["low"] is not None and one["high"] is not None:
            lows.append(one["low"])
            highs.append(one["high"])
    if not values:
        return ""
    if len(lows) < len(values):
        return f"{fmean(values):.3f}"
    return f"{fmean(values):.3f} ({fmean(lows):.3f} to {fmean(highs):.3f})"
