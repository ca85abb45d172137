"""Tables of the study of calibration, from the files of its parts alone.

Run ``python -m benchmarks.calibration_page`` in a checkout. It writes ``results/formal-calibration/tables.md``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.calibration import REVERSES
from benchmarks.markdown import table
from benchmarks.records import ROOT

RESULTS = ROOT / "results"
FOLDER = RESULTS / "formal-calibration"
TASKS = ("writers", "blood-cells", "alzheimer")
TRIED = ("falling", "fitted", "adaptive", "adaptive clip")
Interval = Sequence[float]


def read(path: str) -> dict[str, Any]:
    """Read a file below results/."""
    found: dict[str, Any] = json.loads((RESULTS / path).read_text())
    return found


def verdict(gain: Interval, over_reverse: Interval | None = None) -> str:
    """Judge a paired difference to a rival; better is only what also beats its own reverse."""
    if gain[1] > 0 and (over_reverse is None or over_reverse[1] > 0):
        return "better"
    return "worse" if gain[2] < 0 else "not told apart"


def shown(interval: Interval) -> str:
    """Show a mean difference with its interval."""
    mean, low, high = interval
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"


def cells() -> list[dict[str, Any]]:
    """Return the cells of all tasks that were played."""
    found: list[dict[str, Any]] = []
    for name in TASKS:
        if (FOLDER / f"{name}.json").is_file():
            found += read(f"formal-calibration/{name}.json")["rows"]
    return found


def place(cell: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return the first columns of a cell's rows."""
    trust = {"trusted": "trusted sum", "none": "no trust"}[cell["trust"]]
    return cell["task"].replace("-", " "), cell["level"], trust, f"{cell['epsilon']:g}"


def accuracies(every: list[dict[str, Any]]) -> str:
    """Table of accuracies, a row a cell."""
    names = ("constant", *TRIED, *REVERSES.values())
    rows = [(*place(cell), *(f"{cell[name]:.3f}" for name in names)) for cell in every]
    return table(("data", "level", "sum", "epsilon", *names), rows)


def judged(cell: dict[str, Any], schedule: str) -> tuple[Interval, Interval | None, str]:
    """Return a schedule's gain over constant noise and over its reverse, and the verdict."""
    gain = cell[f"{schedule} - constant"]
    reverse = cell[f"{schedule} - {REVERSES[schedule]}"] if schedule in REVERSES else None
    return gain, reverse, verdict(gain, reverse)


def differences(every: list[dict[str, Any]]) -> str:
    """Table of differences, a row a schedule and cell."""
    rows = []
    for schedule in TRIED:
        for cell in every:
            gain, reverse, said = judged(cell, schedule)
            over = "" if reverse is None else shown(reverse)
            rows.append((schedule, *place(cell), shown(gain), over, said))
    heads = ("schedule", "data", "level", "sum", "epsilon", "minus constant", "minus its reverse")
    return table((*heads, "verdict"), rows)


def counted(what: str, rival: str, found: list[tuple[Interval, str]]) -> tuple[Any, ...]:
    """Return a row of the first table: how many cells of each verdict, and the ends of the mean gain."""
    counts = Counter(said for _, said in found)
    gains = [gain[0] for gain, _ in found]
    ends = f"{min(gains):+.3f} to {max(gains):+.3f}"
    parts = (counts[name] for name in ("better", "not told apart", "worse"))
    return (what, rival, len(found), *parts, ends)


def summary(every: list[dict[str, Any]]) -> str:
    """Table of all formal calibrations that were measured, a row each."""
    rows = []
    for schedule in TRIED:
        found = [(judged(cell, schedule)[0], judged(cell, schedule)[2]) for cell in every]
        rows.append(counted(f"schedule: {schedule}", "constant noise", found))
    for name, file in (("falling", "schedules"), ("fitted", "fitted")):
        earlier = [row[f"{name} - constant"] for row in read(f"schedules/{file}.json")["rows"]]
        found = [(gain, verdict(gain)) for gain in earlier]
        what = f"schedule: {name}, digits, clients and records"
        rows.append(counted(what, "constant noise", found))
    if (FOLDER / "correlated.json").is_file():
        played = read("formal-calibration/correlated.json")["rows"]
        for rate in (True, False):
            own = [row["banded - independent"] for row in played if (row["rate"] < 1) == rate]
            what = "banded noise: sampled cohorts" if rate else "banded noise: all in every round"
            rows.append(counted(what, "independent noise", [(gain, verdict(gain)) for gain in own]))
    chosen = read("layers/layers.json")["rows"]
    for rival, words in (("all", "all layers"), ("last", "last layer alone")):
        gains = [row[f"private - {rival}"] for row in chosen]
        found = [(gain, verdict(gain)) for gain in gains]
        rows.append(counted("layers chosen privately", words, found))
    regions = read("regions/map.json")["cells"]
    for rival, words in (("blanked", "blanking"), ("record", "record level")):
        gains = [cell[f"region - {rival}"] for cell in regions]
        rows.append(counted("region level", words, [(gain, verdict(gain)) for gain in gains]))
    heads = ("calibration", "beside", "cells", "better", "not told apart", "worse", "mean gains")
    return table(heads, rows)


def map_of_bands() -> str:
    """Table of the map: the best band, and its errors beside independent noise."""
    rows = []
    for one in read("formal-calibration/correlated.json")["map"]:
        ratios = (one["mean over independent"], one["last over independent"])
        facts = (f"{one['rate']:g}", one["rounds"], f"{one['epsilon']:g}", one["best band"])
        rows.append((*facts, *(f"{ratio:.2f}" for ratio in ratios)))
    heads = ("rate", "rounds", "epsilon", "best band", "error of all sums", "of the last sum")
    return table(heads, rows)


def runs_of_bands() -> str:
    """Table of runs with independent and banded noise."""
    rows = []
    for one in read("formal-calibration/correlated.json")["rows"]:
        units = {
            "writers": "539 writers",
            "few-writers": "100 writers",
            "alzheimer": "4,096 images",
        }
        facts = (
            units[one["task"]],
            f"{one['rate']:g}",
            one["rounds"],
            f"{one['epsilon']:g}",
            one["band"],
        )
        figures = (f"{one['independent']:.3f}", f"{one['banded']:.3f}")
        gain = one["banded - independent"]
        rows.append((*facts, *figures, shown(gain), verdict(gain)))
    heads = ("units", "rate", "rounds", "epsilon", "band", "independent", "banded", "difference")
    return table((*heads, "verdict"), rows)


def main() -> None:
    """Write the tables."""
    every = cells()
    parts = [
        "# Tables of formal calibration",
        "## Verdicts",
        summary(every),
        "## Accuracies",
        accuracies(every),
        "## Differences",
        differences(every),
    ]
    if (FOLDER / "correlated.json").is_file():
        parts += [
            "## Banded noise: errors",
            map_of_bands(),
            "## Banded noise: runs",
            runs_of_bands(),
        ]
    (FOLDER / "tables.md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
