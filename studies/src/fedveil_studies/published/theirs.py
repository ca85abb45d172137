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
    steps = int(line["rounds"]) * int(line["steps"])
    relation: Relation = "zero-out"
    if float(line["rate"]) < 1:
        relation = "add/remove"
    return epsilon([(event, steps)], float(line["delta"]), relation)


# Tramèr and Boneh 2021 on MNIST, by the commands of their README (ftramer/Handcrafted-DP at 6568e8f): shuffled batches,
# put together from smaller ones, 40 epochs. The linear layer's features are scaled by two noised sums before.
DIGITS, EPOCHS, DELTA = 60_000, 40, 1e-5
LINES = {
    "network from pixels": {"batch": 512, "noise": 1.23, "scaling": 0.0},
    "linear layer on scattering features": {"batch": 4096, "noise": 3.04, "scaling": 8.0},
}


def of_digits(batch: float, noise: float, scaling: float) -> dict[str, float]:
    """Return the epsilon of 40 uses of a digit as Gaussians, and that of as many Poisson batches."""
    before = []
    if scaling:
        before.append((step_event(scaling, 1.0), 2))
    steps = EPOCHS * int(DIGITS // batch)
    proven = epsilon([(step_event(noise, 1.0), EPOCHS), *before], DELTA, "zero-out")
    sampled = [(step_event(noise, batch / DIGITS), steps), *before]
    return {"proven": proven, "if Poisson": epsilon(sampled, DELTA, "add/remove")}


def losses() -> dict[str, list[float]]:
    """Return what each promise costs FLamby against its own line without privacy, by table."""
    text = resources.files(__package__).joinpath("published.csv").read_text("utf-8")
    found: dict[str, list[float]] = {}
    for line in csv.DictReader(text.splitlines()):
        if line["table"].startswith("heart"):
            found.setdefault(line["table"], []).append(float(line["value"]))
    lost = {}
    for table, (first, *rest) in found.items():
        lost[table] = [round(first - value, 6) for value in rest]
    return lost


if __name__ == "__main__":
    made = provenance("theirs.csv", []) | {
        "command": "python -m fedveil_studies.published.theirs theirs.json"
    }
    apps = [
        {name: app[name] for name in ("app", "says", "unit")} | {"proven": of_app(app)}
        for app in lines("apps.csv")
    ]
    digits = [
        {"table": "MNIST", "line": name, "printed": 3, **line, **of_digits(**line)}
        for name, line in LINES.items()
    ]
    found = {"lines": list(judged()), "apps": apps, "digits": digits, "losses": losses()}
    text = json.dumps({"provenance": made, **found}, indent=1)
    Path(sys.argv[1]).write_text(f"{text}\n", encoding="utf-8")
