"""Keep what a reproduction of the metric-privacy paper gave: tables, figures, provenance, what became of its claims.

Works on whatever is finished, in any order. Writes into results/metric-privacy:

    python studies/metric_privacy.py tables runs/metric-privacy-small --seeds 3
    python studies/metric_privacy.py tables runs/metric-privacy-small --seeds 3 --reading printed-noise
    python studies/metric_privacy.py tables runs/metric-privacy-paper --scale paper
    python studies/metric_privacy.py audit runs/cia-audit --name images --command "fedveil audit ..."
    python studies/metric_privacy.py claims
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from provenance import provenance

from fedveil.experiments import load
from fedveil.report.plots import draw_plot
from fedveil.report.reproduction import markdown_table
from fedveil.reproduce import MetricPrivacyStudy, Outcome, Progressed, Runs, Selection, cells_of, measured, run_cells
from fedveil.reproduce.files import write_claims, write_table
from fedveil.reproduce.metric_privacy import Choices

OUT = Path(__file__).resolve().parent.parent / "results" / "metric-privacy"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--into", type=Path, default=OUT)
    parser.add_argument("--commit", help="the commit that made the runs, if it is not this one")
    commands = parser.add_subparsers(dest="what", required=True)
    tables = commands.add_parser("tables")
    tables.add_argument("run", type=Path)
    tables.add_argument("--scale", default="small")
    tables.add_argument("--seeds", type=int, default=1)
    tables.add_argument("--draws", type=int, default=10)
    tables.add_argument("--reading", action="append", default=[])
    audit = commands.add_parser("audit")
    audit.add_argument("run", type=Path)
    audit.add_argument("--name", required=True)
    audit.add_argument("--command", required=True)
    commands.add_parser("claims")
    args = parser.parse_args()
    if args.what == "tables":
        export_tables(args)
    elif args.what == "audit":
        export_audit(args.run, args.into, args.name, args.command, args.commit)
    print(write_claims(args.into))


def export_tables(args: argparse.Namespace) -> None:
    """Every table and figure of which something is finished."""
    choices = Choices(scale=args.scale, seeds=args.seeds, draws=args.draws, readings=tuple(args.reading), workers=1)
    study = MetricPrivacyStudy(choices)
    done = Progressed()
    run_cells(cells_of(study, Selection.of(study)), Runs(args.run), None, done)
    folder = args.into / "-".join([args.scale, *args.reading])
    folder.mkdir(parents=True, exist_ok=True)
    tables, page = [], [f"# {study.name}, {', '.join([args.scale, *args.reading])}", ""]
    for table in study.tables:
        results = [measured(entry, done.finished) for entry in study.entries(table)]
        if any(r.value is not None for r in results):
            write_table(folder / f"table-{table}.json", study, table, results)
            page += markdown_table(f"{table}: {study.tables[table]}", results, study.settings)
            tables.append(table)
    page[2:2] = [*(f"* {note}" for note in study.notes(tables)), ""]
    (folder / "tables.md").write_text("\n".join(page).rstrip() + "\n")
    for figure in study.figures:
        drawn = draw_plot(study.plot(figure), done.finished)
        if drawn is not None:
            drawn.savefig(folder / f"figure-{figure}.png", dpi=90)
    options = "".join(f" --reading {name}" for name in args.reading)
    command = f"fedveil reproduce {study.name} --scale {args.scale}{options} --seeds {args.seeds} --draws {args.draws}"
    write_cells(folder / "cells.json", done, command, args.commit)
    print(f"{len(done.finished)} cells, tables {', '.join(tables)}, into {folder}")


def export_audit(run: Path, into: Path, name: str, command: str, commit: str | None) -> None:
    """An audit's results with the accuracy of every run, for paired comparisons."""
    values: dict[str, Any] = json.loads((run / "audit.json").read_bytes())
    lines = [json.loads(line) for line in (run / "replicates.jsonl").read_text().splitlines()]
    runs = [r for r in lines if r["case"]["phase"] == "run" and r["case"]["inside"] and r["case"]["kind"] == "honest"]
    runs.sort(key=lambda r: r["case"]["index"])
    count = values["replicates"]
    accuracies = {
        label: [r["accuracy"] for r in runs if r["case"]["setting"] == label][:count] for label in values["settings"]
    }
    data = f"{load(run).data.name}, as in {values['name']}"
    made = _made(provenance(data, [values["seed"]]), command, commit, values.pop("versions"))
    into.mkdir(parents=True, exist_ok=True)
    record = {"provenance": made, **values, "accuracies": {k: v for k, v in accuracies.items() if v}}
    (into / f"audit-{name}.json").write_text(dumps(record))
    shutil.copyfile(run / "config.toml", into / f"audit-{name}.toml")


def write_cells(path: Path, done: Progressed, command: str, commit: str | None) -> None:
    """Provenance of all cells, then a line a cell."""
    outcomes = sorted(done.finished.values(), key=lambda o: o.folder.name)
    made = provenance("alzheimer: real images, see docs/data.md", sorted({o.summary.values["seed"] for o in outcomes}))
    versions = outcomes[0].summary.values["versions"] if outcomes else made["versions"]
    head = _made(made, command, commit, versions)
    path.write_text(dumps({"provenance": head, "cells": [_cell(o) for o in outcomes]}))


def _cell(outcome: Outcome) -> dict[str, Any]:
    """What made one cell, and its rounds; the fingerprint of its configuration ends the folder's name."""
    values, rows = outcome.summary.values, outcome.summary.rows
    series = {name: [row["noise"][name] for row in rows if name in row["noise"]] for name in ("sigma", "distance")}
    series["accuracy"] = [row["metrics"]["accuracy"] for row in rows]
    series |= {name: [row["watched"][name] for row in rows] for name in rows[0].get("watched", {})}
    return {
        "run": outcome.cell.label,
        "folder": outcome.folder.name,
        "seed": values["seed"],
        "device": values["device"],
        "workers": values["workers"],
        "versions": _plain(values["versions"]),
        "seconds": values["seconds"]["rounds"],
        "guarantee": values["guarantee"],
        "rounds": {name: [float(f"{v:.6g}") for v in found] for name, found in series.items() if found},
    }


def dumps(values: dict[str, Any]) -> str:
    """JSON with a line for each key, and for each entry of a list of objects."""
    parts = []
    for key, value in values.items():
        listed = isinstance(value, list) and value and isinstance(value[0], dict)
        shown = "[\n" + ",\n".join(map(json.dumps, value)) + "\n]" if listed else json.dumps(value)
        parts.append(f"{json.dumps(key)}: {shown}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _made(made: dict[str, Any], command: str, commit: str | None, versions: dict[str, str]) -> dict[str, Any]:
    kind = f"{made['machine'].split(',')[0]}, CPU"
    return {
        **made,
        "command": command,
        "commit": commit or made["commit"],
        "versions": _plain(versions),
        "machine": kind,
    }


def _plain(versions: dict[str, str]) -> dict[str, str]:
    return {name: text.split("+")[0] for name, text in versions.items()}


if __name__ == "__main__":
    main()
