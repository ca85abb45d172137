"""How many glyphs of sensitive text does a server read off one round's releases, on forged receipts?

Run ``python -m benchmarks.reading --into results/regions`` in a checkout. It plays the game ``region`` of `fedveil
audit` on tiles of receipts, with fewer steps of one search, so that it takes a minute or two on an idle core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.records import machine
from fedveil_lab.config import load
from fedveil_lab.games import RegionGame, play
from fedveil_lab.runs.provenance import provenance

RECEIPTS = """
name = "receipts"
rounds = 1

[data]
name = "sroie"
tile = 56
tiles = 8
clients = 10
train_receipts = 31
holdout = 0.0
public_examples = 8
sensitive = [["company", "date", "address", "total"]]

[model]
name = "unet"
widths = [64]
patch = 8
activation = "gelu"
residuals = false
mean = 0.8
deviation = 0.3

[local]
batch_size = 1000
lr = 1.0

[scoring]
method = "estimate"
images = 1

[privacy]
method = "record"
unit = "region"
relation = "replace-one"
epsilon = 4.0
clip = 0.3
examples = 1
blank = 0.8
"""


def main() -> None:
    """Play the game, and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path("results/regions"))
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    file = given.into / "receipts.toml"
    file.write_text(RECEIPTS.lstrip())
    game = RegionGame(load(str(file)), attacks=("distance",), replicates=2, steps=given.steps)
    found = play(game)
    made = provenance("SROIE 2019, 200 receipts, forged by FedVeil's generator", [0])
    made["command"] = f"python -m benchmarks.reading --into {given.into} --steps {given.steps}"
    made["machine"] = machine("cpu")
    rows = []
    for verdict in found.verdicts:
        rows.append(
            {
                "setting": verdict.setting,
                "read": verdict.details["read"],
                "glyphs": verdict.details["glyphs"],
                "blind": verdict.details["blind"],
                "share of an image": [verdict.point, verdict.low, verdict.high],
                "promise": found.values["promises"][verdict.setting],
            }
        )
    body = {"provenance": made, "question": game.question(), "notes": found.notes, "rows": rows}
    (given.into / "reading.json").write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
