"""The study of record-level privacy: accuracy against the total epsilon of one record, under two trust models."""

import csv
import math
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from torch import Tensor

from fedveil.methods import fitting
from fedveil_lab.grid import Outcome
from fedveil_lab.runs.deal import deal_out
from fedveil_studies.frame import Curve, Study, Value
from fedveil_studies.frame.described import ScaleOf
from fedveil_studies.frame.models import held_out

study = Study.of(__name__)
KEYS = ("scenario", "sum", "epsilon", "seed")
ENDS = (-1.0, 3.0)  # where the line without privacy begins and ends: epsilon .5 and 8


def tuned_of(package: str, keys: Sequence[str]) -> dict[tuple[str, ...], dict[str, str]]:
    """Read a study's tuned.csv, keyed by some of its columns."""
    text = (resources.files(package) / "tuned.csv").read_text(encoding="utf-8")
    rows = {}
    for row in csv.DictReader(text.splitlines()):
        place = tuple(map(row.__getitem__, keys))
        rows[place] = row
    return rows


@study.adjust
def tuned(values: dict[str, Any], scale: ScaleOf, _flags: frozenset[str]) -> None:
    """Set rounds, clip and learning rate that were chosen for this scenario, trust model and epsilon."""
    privacy, scenario = values["privacy"], values["name"].split("-")[0]
    plain = privacy["method"] == "vanilla"
    line, known = (scenario, "", ""), tuned_of(__name__, KEYS)
    if not plain:  # a secure sum has as much noise as a trusted one, and the same line
        sum_ = {"secure": "trusted"}.get(privacy["sum"], privacy["sum"])
        line = scenario, sum_, f"{privacy['epsilon']:g}"
    chosen = (
        known.get((*line, str(values["seed"]))) or known[*line, ""]
    )  # where public images choose, each split's own
    if scale.facts.get("chosen", 1):
        values["rounds"] = int(chosen["rounds"])
    values["local"]["lr"] = float(chosen["lr"])
    if plain:
        values["privacy"] = {"method": "vanilla"}
    else:
        values["privacy"] = {
            **fitting(privacy),
            "clip": float(chosen["clip"]),
            "rounds": values["rounds"],
        }


@study.measure("public labels")
def public_labels(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Accuracy on the test half of a head that was trained on labelled public images only."""
    config = outcomes[0].cell.config
    dealt = deal_out(config.data, config.seed)
    assert dealt.public is not None
    return Value(score_of_head((dealt.public.x, dealt.public.y), held_out(dealt.dataset)))


def score_of_head(public: tuple[Tensor, Tensor], measured: tuple[Tensor, Tensor]) -> float:
    """Train a linear head on public inputs and labels, and return its accuracy on measured ones."""
    from sklearn.linear_model import LogisticRegressionCV

    head = LogisticRegressionCV(
        Cs=8, cv=5, max_iter=2000, l1_ratios=(0,), use_legacy_attributes=False
    )
    (x, y), (other_x, other_y) = public, measured
    head.fit(x.numpy(), y.numpy())
    return float(head.score(other_x.numpy(), other_y.numpy()))


@study.curve("over epsilon")
def over_epsilon(outcomes: Sequence[Outcome], figure: str) -> Curve:
    """Figure of the test half against log2 of the runs' total epsilon; a level line without privacy."""
    totals = [outcome.cell.config.privacy.options["epsilon"] for outcome in outcomes]
    return over_totals(outcomes, figure, ENDS, totals)


def over_totals(
    outcomes: Sequence[Outcome], figure: str, ends: tuple[float, float], totals: Iterable[float]
) -> Curve:
    """Figure of the test half against log2 of the runs' total epsilon; without privacy, a level line between the ends."""
    values = [float(o.summary.values["test_metrics"][figure]) for o in outcomes]
    if outcomes[0].cell.config.privacy.method == "vanilla":
        return Curve(list(ends), [values[0]] * 2)
    return Curve(list(map(math.log2, totals)), values)
