"""The study of record-level privacy: accuracy against the total epsilon of one record, under two trust models."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

from fedveil.grid import Outcome
from fedveil.methods import fitting
from fedveil.runs.deal import deal_out
from fedveil_studies.frame import Curve, Study, Value
from fedveil_studies.frame.described import ScaleOf

study = Study.of(__name__)
ENDS = (-1.0, 3.0)  # where the line without privacy begins and ends: epsilon .5 and 8


def _tuned() -> dict[tuple[str, ...], dict[str, str]]:
    text = (resources.files(__name__) / "tuned.csv").read_text(encoding="utf-8")
    keys = ("scenario", "sum", "epsilon", "seed")
    return {tuple(row[k] for k in keys): row for row in csv.DictReader(text.splitlines())}


@study.adjust
def tuned(values: dict[str, Any], scale: ScaleOf, _flags: frozenset[str]) -> None:
    """Rounds, clip and learning rate that were chosen for this scenario, trust model and epsilon."""
    privacy, scenario = values["privacy"], values["name"].split("-")[0]
    plain = privacy["method"] == "vanilla"
    sum_ = "" if plain else {"secure": "trusted"}.get(privacy["sum"], privacy["sum"])  # as much noise, the same line
    line, known = (scenario, sum_, "" if plain else f"{privacy['epsilon']:g}"), _tuned()
    found = known.get((*line, str(values["seed"]))) or known[*line, ""]  # where public images choose, each split's own
    if scale.facts.get("chosen", 1):
        values["rounds"] = int(found["rounds"])
    values["local"]["lr"] = float(found["lr"])
    if plain:
        values["privacy"] = {"method": "vanilla"}
    else:
        values["privacy"] = {**fitting(privacy), "clip": float(found["clip"]), "rounds": values["rounds"]}


@study.measure("public labels")
def public_labels(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Accuracy on the test half of a head trained on the public images with their labels, and on nothing private."""
    from sklearn.linear_model import LogisticRegressionCV

    config = outcomes[0].cell.config
    dealt = deal_out(config.data, config.seed)
    public, dataset = dealt.public, dealt.dataset
    assert public is not None
    assert dataset.test_x is not None
    assert dataset.test_y is not None
    head = LogisticRegressionCV(Cs=8, cv=5, max_iter=2000, l1_ratios=(0,), use_legacy_attributes=False)
    head.fit(public.x.numpy(), public.y.numpy())
    return Value(float(head.score(dataset.test_x.numpy(), dataset.test_y.numpy())))


@study.curve("over epsilon")
def over_epsilon(outcomes: Sequence[Outcome], figure: str) -> Curve:
    """A figure of the test half over log2 of the total epsilons of the runs; level where there is no privacy."""
    found = [float(o.summary.values["test_metrics"][figure]) for o in outcomes]
    if outcomes[0].cell.config.privacy.method == "vanilla":
        return Curve(list(ENDS), [found[0]] * 2)
    return Curve([math.log2(o.cell.config.privacy.options["epsilon"]) for o in outcomes], found)
