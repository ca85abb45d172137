"""What an engine needs: memory, and time before its first round; each alone in a fresh process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.compare import FLOWER, OURS, OURS_2, PFL, PLAIN, ROUNDS, environment
from benchmarks.engines import missing
from benchmarks.memory import ROOT, watched

_ENGINES: dict[str, tuple[str, tuple[str, ...]]] = {
    OURS: ("fedveil", ()),
    OURS_2: ("fedveil", ("--workers", "2")),
    PLAIN: ("plain", ()),
    PFL: ("pfl", ()),
    FLOWER: ("flower", ()),
}
_IMPORTS = {
    "torch": "import torch",
    "fedveil (names are loaded when they are used)": "import fedveil",
    "fedveil with all that a federation needs, torch included": "import fedveil as fv; fv.Federation, fv.GlobalDP",
}


def footprint(quick: bool = False, say: Any = print) -> dict[str, Any]:
    """Memory and first rounds of every engine on W1 and W2, imports, and the command line's start."""
    workloads = {name: _workload(name, 1 if quick else 3, say) for name in ("W1", "W2")}
    imports = {
        name: _repeated([sys.executable, "-c", code], 3 if quick else 7)
        for name, code in _IMPORTS.items()
    }
    bare = _repeated([sys.executable, "-c", "pass"], 3 if quick else 7)
    command = _repeated([sys.executable, "-m", "fedveil.cli", "--help"], 3 if quick else 7)
    for name, found in {"python itself": bare, **imports, "fedveil --help": command}.items():
        say(f"  {name}: {found['minimum_s']:.2f} s")
    return {"workloads": workloads, "python_s": bare, "imports_s": imports, "help_s": command}


def _workload(name: str, repeats: int, say: Any) -> dict[str, Any]:
    rows = {}
    for key, (engine, options) in _ENGINES.items():
        if missing(engine):
            continue
        runs = [
            watched([engine, name, str(ROUNDS[name]), *options], environment())
            for _ in range(1 if engine == "flower" else repeats)
        ]
        rows[key] = _row(engine, runs)
        say(
            f"  {name}, {key}: {rows[key]['peak_mb']:.0f} MB, first round after {rows[key]['first_round_s']:.2f} s"
        )
    return {"rounds": ROUNDS[name], "rows": rows}


def _row(engine: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The least disturbed of several runs; one process is measured exactly, a tree is sampled."""
    tree = engine == "flower"
    peak = min(run["tree_pss_mb" if tree else "peak_mb"] for run in runs)
    return {
        "peak_mb": round(peak, 1),
        "measure": "PSS of the process tree, sampled"
        if tree
        else "largest resident set of the process",
        "baseline_mb": round(min(run["baseline_mb"] for run in runs), 1),
        "increase_mb": None
        if tree
        else round(min(run["peak_mb"] - run["baseline_mb"] for run in runs), 1),
        "tree_rss_mb": round(min(run["tree_rss_mb"] for run in runs), 1),
        "processes": max(run["processes"] for run in runs),
        "first_round_s": round(min(run["start_s"] for run in runs), 3),
        "import_s": round(min(run["import_engine_s"] for run in runs), 3),
    }


def _repeated(command: Sequence[str], repeats: int) -> dict[str, float]:
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run(command, cwd=ROOT, env=environment(), check=True, capture_output=True)
        taken.append(time.perf_counter() - began)
    return {"minimum_s": round(min(taken), 3), "median_s": round(median(taken), 3)}
