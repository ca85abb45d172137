"""The study of person-level privacy: accuracy against the total epsilon of one person, beside record level by group."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from fedveil.accounting import least_noise
from fedveil.data import load
from fedveil_lab.grid import Outcome
from fedveil_studies.frame import Curve, Study, Value
from fedveil_studies.frame.described import ScaleOf
from fedveil_studies.frame.models import held_out
from fedveil_studies.record_level import over_totals, score_of_head, tuned_of

study = Study.of(__name__)
KEYS = ("scenario", "images", "sum", "epsilon", "seed")
LEVELS = (1.0, 4.0, 8.0)  # of a line over epsilon, in the order of its cells
ENDS = (0.0, 3.0)  # where the line without privacy begins and ends
CAP = 10  # digits of a writer that record level by group uses
WRITERS, CELLS = 53.9, 2392.0  # planned for a silo: writers, images of blood cells


@study.adjust
def tuned(values: dict[str, Any], scale: ScaleOf, _flags: frozenset[str]) -> None:
    """Set rounds, clip and learning rate that were chosen for this line; for record level by group also the noise."""
    scenario, privacy, data = values["name"].split("-")[0], values["privacy"], values["data"]
    images = data["made_up_people"]
    if scenario == "group":
        data["most"] = CAP
    plain = privacy["method"] == "vanilla"
    if plain:
        level = ""
    else:
        level = f"{privacy['epsilon']:g}"
    sum_ = (
        "" if plain else {"secure": "trusted"}.get(privacy["sum"], privacy["sum"])
    )  # as much noise, the same line
    line, known = (scenario, str(images or ""), sum_, level), tuned_of(__name__, KEYS)
    if (*line, str(values["seed"])) in known:
        chosen = known[(*line, str(values["seed"]))]
    else:
        chosen = known[(*line, "")]
    values["rounds"] = rounds = (
        int(chosen["rounds"]) if scale.facts.get("chosen", 1) else values["rounds"]
    )
    values["local"]["lr"] = float(chosen["lr"])
    if plain:
        values["privacy"] = {"method": "vanilla"}
        return
    shared = {key: privacy[key] for key in ("method", "sum", "delta")}
    method = {**shared, "clip": float(chosen["clip"]), "rounds": rounds}
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
    """Accuracy on the same writers of a head that was trained on the public writers' labelled digits."""
    data = outcomes[0].cell.config.data
    return Value(_public_head(data.name, data.options["features"]))


@cache
def _public_head(name: str, features: int) -> float:
    parts = (held_out(load(name, features=features, measured=part)) for part in ("public", "rest"))
    return score_of_head(*parts)


@study.curve("over epsilon")
def over_epsilon(outcomes: Sequence[Outcome], figure: str) -> Curve:
    """Figure of the test half against log2 of the total epsilon of one person; a level line without privacy."""
    return over_totals(outcomes, figure, ENDS, LEVELS)
