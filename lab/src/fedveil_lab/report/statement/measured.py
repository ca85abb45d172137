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
    tables = [table for table in (measured_rows(runs),) if table.rows]
    lines = [Fact("computed", said_of(found), said=True) for found in _pooled(runs)[:1]]
    lines += [fact for folder in folders for fact in gate_of(folder)]
    return replace(section, lines=[*section.lines, *lines], tables=[*section.tables, *tables])


def measured_rows(runs: Mapping[str, Sequence[Summary]]) -> Grid:
    """Make the table of pooled figures with 95% intervals over patients; with several seeds, figures and ends are means."""
    rows, positive = [], dict[str, None]()
    for label, own in runs.items():
        found = [one for one in (_of(summary) for summary in own) if one]
        if found and len(found) == len(own):
            rows.append(
                [label, *(_mean([one["figures"].get(name) for one in found]) for name in FIGURES)]
            )
            positive |= dict.fromkeys(one["positive"] for one in found if one["positive"])
    of = f", of the class {' or '.join(positive)}" if positive else ""
    header = ("setting", *(NAMES.get(name, name) for name in FIGURES))
    return Grid(f"Pooled, after the last round{of} (95% over patients)", header, rows, header[1:])


def said_of(found: Mapping[str, Any]) -> str:
    """State whose data the figures describe, and that no promise protects these people."""
    who = (
        f"{found['persons']} test patients ({found['rows']} rows)"
        if found["persons"]
        else f"{found['rows']} test rows"
    )
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
        asked = f"{limits['setting']}: epsilon {privacy['epsilon']:g} for one {privacy['unit']} at delta "
        asked += f"{privacy['delta']:g}; {', '.join(f'{name} {v:g}' for name, v in limits['measures'].items())}"
        verdict = "not checked yet" if result is None else str(result["verdict"])
        why = (
            []
            if result is None
            else [str(one) for part in ("privacy", "attack", "measures") for one in result[part]]
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged("gate", file, error, remedy(folder)) from error
    return [
        Fact("asked for before the first run", asked, said=True),
        Fact.of("what came of it", verdict, *why, said=True),
    ]


def _pooled(runs: Mapping[str, Sequence[Summary]]) -> list[Mapping[str, Any]]:
    return [found for own in runs.values() for summary in own if (found := _of(summary))]


def _of(summary: Summary) -> Mapping[str, Any]:
    found: Mapping[str, Any] = summary.values.get("classified", {}).get("pooled", {})
    return found


def _mean(figures: Sequence[Mapping[str, Any] | None]) -> str:
    known = [one for one in figures if one is not None]
    if len(known) < len(figures) or not known:
        return ""
    value = f"{fmean(one['value'] for one in known):.3f}"
    if any(one["low"] is None or one["high"] is None for one in known):
        return value
    return f"{value} ({fmean(one['low'] for one in known):.3f} to {fmean(one['high'] for one in known):.3f})"
