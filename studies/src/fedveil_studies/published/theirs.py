"""What can be proven for the code behind a published table: ``python -m fedveil_studies.published.theirs FILE.json``.

theirs.csv has what their code says: patients, batch, updates, and the noise multipliers that Opacus 1.6.0 finds for the
epsilon that is printed (``get_noise_multiplier`` over the epochs that are planned), by its two accountants.
"""

import csv
import json
import math
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fedveil.accounting import step_event
from fedveil.accounting.composition import epsilon
from fedveil_lab.runs.provenance import provenance

ACCOUNTANTS = ("rdp", "prv")


def lines() -> list[dict[str, str]]:
    """Return the lines of theirs.csv."""
    return list(csv.DictReader(resources.files(__package__).joinpath("theirs.csv").read_text("utf-8").splitlines()))


def uses(line: Mapping[str, str]) -> int:
    """Return how often one record is in a batch, at most: shuffled batches have each once an epoch."""
    batches = math.ceil(int(line["records"]) / int(line["batch"]))
    return math.ceil(int(line["updates"]) / batches)


def proven(line: Mapping[str, str], accountant: str) -> float:
    """Return the epsilon of so many uses of one record as Gaussians, without any gain by sampling."""
    event = step_event(float(line[f"noise_{accountant}"]), 1.0)
    return epsilon([(event, uses(line))], float(line["delta"]), "zero-out")


def poisson(line: Mapping[str, str], accountant: str) -> float:
    """Return the epsilon that the same updates would have if every batch were a Poisson sample."""
    rate = 1 / math.ceil(int(line["records"]) / int(line["batch"]))
    event = step_event(float(line[f"noise_{accountant}"]), rate)
    return epsilon([(event, int(line["updates"]))], float(line["delta"]), "add/remove")


def judged() -> Iterator[dict[str, Any]]:
    """Yield a line for each that is printed, part and accountant."""
    for line in lines():
        for accountant in ACCOUNTANTS:
            both = {"proven": proven(line, accountant), "if Poisson": poisson(line, accountant)}
            noise = float(line[f"noise_{accountant}"])
            about = {name: line[name] for name in ("table", "printed", "part", "records")}
            yield {**about, "accountant": accountant, "noise": noise, "uses": uses(line), **both}


if __name__ == "__main__":
    made = provenance("theirs.csv", []) | {"command": "python -m fedveil_studies.published.theirs theirs.json"}
    text = json.dumps({"provenance": made, "lines": list(judged())}, indent=1)
    Path(sys.argv[1]).write_text(f"{text}\n", encoding="utf-8")
