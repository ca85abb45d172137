"""The study of person-level privacy: accuracy against the total epsilon of one person, beside record level by group."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from fedveil.accounting import least_noise
from fedveil.data import load
from fedveil.grid import Outcome
from fedveil_studies.frame import Curve, Study, Value
from fedveil_studies.frame.described import ScaleOf

study = Study.of(__name__)
LEVELS = (1.0, 4.0, 8.0)  # of a line over epsilon, in the order of its cells
ENDS = (0.0, 3.0)  # where the line without privacy begins and ends
CAP = 10  # digits of a writer that record level by group uses
WRITERS, CELLS = 53.9, 2392.0  # planned for a silo: writers, images of blood cells


def _tuned() -> dict[tuple[str, ...], dict[str, str]]:
    text = (resources.files(__name__) / "tuned.csv").read_text(encoding="utf-8")
    keys = ("scenario", "images", "sum", "epsilon", "seed")
    return {tuple(row[k] for k in keys): row for row in csv.DictReader(text.splitlines())}


@study.adjust
def tuned(values: dict[str, Any], scale: ScaleOf, _flags: frozenset[str]) -> None:
    """Rounds, clip and learning rate chosen for this line; and, for record level by group, the noise for all images."""
    scenario, privacy, data = values["name"].split("-")[0], values["privacy"], values["data"]
    images = data["made_up_people"]
    if scenario == "group":
        data["most"] = CAP
    plain = privacy["method"] == "vanilla"
    level = "" if plain else f"{privacy['epsilon']:g}"
    sum_ = "" if plain else {"secure": "trusted"}.get(privacy["sum"], privacy["sum"])  # as much noise, the same line
    line, known = (scenario, str(images or ""), sum_, level), _tuned()
    found = known[(*line, str(values["seed"]))] if (*line, str(values["seed"])) in known else known[(*line, "")]
    values["rounds"] = rounds = int(found["rounds"]) if scale.facts.get("chosen", 1) else values["rounds"]
    values["local"]["lr"] = float(found["lr"])
    if plain:
        values["privacy"] = {"method": "vanilla"}
        return
    shared = {key: privacy[key] for key in ("method", "sum", "delta")}
    method = {**shared, "clip": float(found["clip"]), "rounds": rounds}
    if scenario == "group":
        noise = CAP * least_noise(privacy["epsilon"], privacy["delta"], rounds)
        values["privacy"] = {**method, "examples": WRITERS * CAP, "noise_multiplier": noise}
    else:
        people = {"people": WRITERS, "records_per_person": 131}
        if images:
            people = {"people": round(CELLS / images, 1), "records_per_person": images}
        values["privacy"] = {**method, "unit": "person", "epsilon": privacy["epsilon"], **people}


@study.measure("public labels")
def public_labels(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Accuracy on the same writers of a head trained on the public writers' digits with their labels."""
    data = outcomes[0].cell.config.data
    return Value(_public_head(data.name, data.options["features"]))


@cache
def _public_head(name: str, features: int) -> float:
    from sklearn.linear_model import LogisticRegressionCV

    public, rest = (load(name, features=features, measured=part) for part in ("public", "rest"))
    assert public.test_x is not None
    assert public.test_y is not None
    assert rest.test_x is not None
    assert rest.test_y is not None
    head = LogisticRegressionCV(Cs=8, cv=5, max_iter=2000, l1_ratios=(0,), use_legacy_attributes=False)
    head.fit(public.test_x.numpy(), public.test_y.numpy())
    return float(head.score(rest.test_x.numpy(), rest.test_y.numpy()))


@study.curve("over epsilon")
def over_epsilon(outcomes: Sequence[Outcome], figure: str) -> Curve:
    """A figure of the test half over log2 of the total epsilons of one person; level where there is no privacy."""
    found = [float(o.summary.values["test_metrics"][figure]) for o in outcomes]
    if outcomes[0].cell.config.privacy.method == "vanilla":
        return Curve(list(ENDS), [found[0]] * 2)
    return Curve([math.log2(level) for level in LEVELS], found)
