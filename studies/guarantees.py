"""Does the noise keep its promise, and what do the heuristics leak? The distinguishing game on every method's path.

Writes results/guarantees/game.json and game.md. Run: python studies/guarantees.py --runs 2000
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from game_cases import Case, cases
from provenance import provenance

from fedveil.attacks import GameResult, bound
from fedveil.mechanisms import ReproducibleSource

OUT = Path(__file__).resolve().parent.parent / "results" / "guarantees"
DIMENSIONS = (1, 11, 1000)


def play(case: Case, d: int, runs: int) -> GameResult:
    """Both worlds, each run with fresh parties and noise of its own."""
    source = ReproducibleSource(d)
    first, second = (
        np.array([case.score(world(source.child(case.name, w, r))) for r in range(runs)])
        for w, world in enumerate(case.worlds)
    )
    return bound(first, second)


def row_of(case: Case, d: int, result: GameResult) -> dict[str, Any]:
    """One line of the page."""
    held = None
    if case.claimed_mu is not None:
        held = result.mu_lower <= case.claimed_mu
    elif case.claimed_epsilon is not None:
        held = result.epsilon_lower <= case.claimed_epsilon
    return {
        "method": case.name,
        "dimension": d,
        "claim": case.claim,
        "mu_lower": round(result.mu_lower, 3),
        "epsilon_lower_at_delta_0": round(result.epsilon_lower, 3),
        "ceiling_mu": round(result.ceiling, 2),
        "held": held,
    }


def line_of(row: dict[str, Any]) -> str:
    """The same for people."""
    mark = {True: "yes", False: "**NO**", None: "no claim to hold"}[row["held"]]
    found = f"{row['mu_lower']:.2f}"
    if row["claim"].startswith("epsilon"):
        found += f" (epsilon {row['epsilon_lower_at_delta_0']:.2f})"
    return f"| {row['method']} | {row['dimension']} | {row['claim']} | {found} | {mark} |"


def main() -> None:
    """Play every case and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for d in DIMENSIONS:
        for case in cases(d):
            rows.append(row_of(case, d, play(case, d, args.runs)))
            print(line_of(rows[-1]), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    made = provenance("none: worst-case vectors", list(DIMENSIONS))
    record = {"provenance": made, "runs": args.runs, "rows": rows}
    (args.out / "game.json").write_text(json.dumps(record, indent=1) + "\n")
    lines = ["| method | d | claim | mu, lower bound | claim held |", "|---|---|---|---|---|", *map(line_of, rows)]
    (args.out / "game.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
