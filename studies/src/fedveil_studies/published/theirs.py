"""What can be proven for the code behind a published table: ``python -m fedveil_studies.published.theirs FILE.json``.

theirs.csv has what the code of a table says: patients, batch, updates, and the noise that Opacus 1.6.0 finds
for the epsilon that is printed (``get_noise_multiplier`` over the epochs that are planned), by its two accountants.
apps.csv has the noise of apps in the open, as they come.
"""

import csv
import json
import math
import sys
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fedveil.accounting import Relation, epsilon, step_event
from fedveil_lab.runs.provenance import provenance

ACCOUNTANTS = ("rdp", "prv")


def lines(file: str = "theirs.csv") -> list[dict[str, str]]:
    """Return the lines of theirs.csv, or of apps.csv: what apps in the open have as their noise."""
    return list(
        csv.DictReader(resources.files(__package__).joinpath(file).read_text("utf-8").splitlines())
    )


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


def of_app(line: Mapping[str, str]) -> float:
    """Return the epsilon of an app's noise over its rounds: sampled by records, and by nothing where clients are."""
    event = step_event(float(line["sigma"]) / float(line["clip"]), float(line["rate"]))
    relation: Relation = "add/remove" if float(line["rate"]) < 1 else "zero-out"
    return epsilon(
        [(event, int(line["rounds"]) * int(line["steps"]))], float(line["delta"]), relation
    )


if __name__ == "__main__":
    made = provenance("theirs.csv", []) | {
        "command": "python -m fedveil_studies.published.theirs theirs.json"
    }
    apps = [
        {name: app[name] for name in ("app", "says", "unit")} | {"proven": of_app(app)}
        for app in lines("apps.csv")
    ]
    text = json.dumps({"provenance": made, "lines": list(judged()), "apps": apps}, indent=1)
    Path(sys.argv[1]).write_text(f"{text}\n", encoding="utf-8")
