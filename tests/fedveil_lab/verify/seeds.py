"""How often planted mistakes are caught, and right claims are refuted: ``python seeds.py FILE.csv [wrong] [right]``."""

import sys
from pathlib import Path

from fedveil.tables import Table
from verify_kit import judged, module

RUNS, SEEDS = 2500, 20


def main(file: Path, kinds: list[str]) -> None:
    """Write a line a mechanism of these kinds, as each is counted; of no kind given, of both."""
    wrong = module("wrong").CASES
    asked = [
        (name, "wrong", RUNS, SEEDS, 0.01)
        for name, case in wrong.items()
        if "worst-case world" in case["by"]
    ]
    asked += [(name, "right", 1000, 100, 0.1) for name in module("right").CASES]
    rows = []
    for name, kind, runs, seeds, alpha in asked:
        if kinds and kind not in kinds:
            continue
        refuted = sum(judged(kind, name, runs, seed, alpha).refuted for seed in range(seeds))
        row = {"mechanism": name, "claim": kind, "runs": runs, "alpha": alpha}
        rows.append({**row, "seeds": seeds, "refuted": refuted})
        print(name, refuted, "of", seeds, flush=True)
        file.write_text(Table.of(rows).csv())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
