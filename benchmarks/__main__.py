"""Measure, write results/bench/*.json, draw the curves, write docs/benchmarks.md and results/bench/measured.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import figures, page
from benchmarks.compare import compare
from benchmarks.curves import curves
from benchmarks.footprint import footprint
from benchmarks.kernels import kernels
from benchmarks.layer_scores import layer_scores
from benchmarks.limits import limits
from benchmarks.noise import noise
from benchmarks.paper_cnn import paper_cnn
from benchmarks.per_example import per_example
from benchmarks.persons import persons
from benchmarks.records import BENCH, FOLDER, ROOT, instruction_set, write
from benchmarks.secure_sum import secure_sum
from benchmarks.targets import drifted
from benchmarks.trainers import trainers
from benchmarks.waits import waits

ON_GPU = ("engines", "cnn")
DATA = dict.fromkeys(("engines", "limits", "footprint"), "scikit-learn's digits (W1), random (W2)")
DATA["waits"] = "scikit-learn's digits"


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = ", ".join((*page.NAMES, "page"))
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {known}; or first_settings, which is no speed"
    )
    parser.add_argument(
        "--device", default="cpu", choices=("cpu", "cuda"), help="cuda: engines (W2) and cnn only"
    )
    parser.add_argument(
        "--quick", action="store_true", help="only see that it runs; writes to runs/bench"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare ratios with the committed ones; to runs/bench"
    )
    args = parser.parse_args()
    unknown = [part for part in args.parts if part not in (*page.NAMES, "page", "first_settings")]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}")
    folder = ROOT / "runs" / "bench" / instruction_set() if args.quick or args.check else FOLDER
    torch.set_num_threads(1)
    parts = args.parts or [*(ON_GPU if args.device != "cpu" else page.NAMES), "page"]
    began = time.perf_counter()
    say = lambda text: print(f"{time.perf_counter() - began:6.0f} s  {text}", flush=True)  # noqa: E731
    for part in parts:
        if part == "page":
            continue
        if part == "first_settings":  # which needs pandas: the environment of the peers lacks it
            from benchmarks import first_page
            from benchmarks.first_settings import first_settings

            first_page.write(first_settings(args.quick, say), args.quick, say)
            continue
        say(f"{part}:")
        measure(part, args.device, args.quick, folder, say)
    if args.check:
        for text, (before, now) in (
            worse := drifted(page.records(FOLDER), page.records(folder))
        ).items():
            say(f"worse: {text}: {now:.2f}, committed {before:.2f}")
        sys.exit(1 if worse else 0)
    if "page" in parts:
        publish(folder.parent, say)


def measure(part: str, device: str, quick: bool, folder: Path, say: Callable[[str], None]) -> None:
    """Measure one part and write its file."""
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "engines": lambda: compare(device, quick, say),
        "footprint": lambda: footprint(quick, say),
        "limits": lambda: limits(quick, say),
        "curves": lambda: curves(quick, say),
        "cnn": lambda: paper_cnn(device, quick, say),
        "trainers": lambda: trainers(quick, say),
        "scores": lambda: layer_scores(quick, say),
        "noise": lambda: noise(quick),
        "kernels": lambda: kernels(quick),
        "per_example": lambda: per_example(quick, say),
        "persons": lambda: persons(quick, say),
        "secure_sum": lambda: secure_sum(quick, say),
        "waits": lambda: waits(quick, say),
    }
    write(part, made[part](), data=DATA.get(part, "random"), device=device, folder=folder)


def publish(folder: Path, say: Callable[[str], None]) -> None:
    """Draw and write what the files say; only the page of the real ones goes into docs/."""
    found = page.sets(folder)
    curves_ = next(iter(found.values()))["curves"]
    if curves_ is not None:
        figures.draw(curves_, folder / "curves.png")
    where = page.PAGE if folder == BENCH else folder / "benchmarks.md"
    where.write_text(page.page(found))
    (folder / page.MEASURED.name).write_text(page.measured(found))
    say(f"wrote {where.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
