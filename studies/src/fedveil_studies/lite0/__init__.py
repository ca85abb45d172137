"""The study of a pretrained network on blood cells: which part of it is trained, under which promise."""

from collections.abc import Sequence
from typing import Any

from fedveil.methods import fitting
from fedveil_lab.grid import Outcome
from fedveil_studies.efficientnet_lite import BLOCKS
from fedveil_studies.frame import Study, Value
from fedveil_studies.frame.described import ScaleOf
from fedveil_studies.record_level import tuned_of

study = Study.of(__name__)
KEYS = ("scenario", "unit", "sum", "epsilon")
IMAGES = 2392.0  # planned for a silo
LAST = f"block{BLOCKS - 1}"
TRAINED: dict[str, dict[str, Any]] = {
    "head": {"train": ["head"]},
    "lora": {
        "train": ["head"],
        "lora": [f"{LAST}.body.expand", f"{LAST}.body.project"],
        "rank": 4,
    },
    "block": {"train": [LAST, "head"]},
    "all": {
        "train": ["stem", *(f"block{i}" for i in range(BLOCKS)), "top", "head"],
        "cached": False,
    },
}


@study.adjust
def lined(values: dict[str, Any], scale: ScaleOf, _flags: frozenset[str]) -> None:
    """Set what is trained, the unit, and the rounds, sampling rate, clip and learning rate of this line."""
    scenario = values["name"].split("-")[0]
    privacy, images = values["privacy"], values["data"]["made_up_people"]
    values["model"] |= TRAINED[scenario]
    line = (scenario, "", "", "")
    if privacy["method"] == "record":
        unit = "person" if images else "record"
        line = (scenario, unit, privacy["sum"], f"{privacy['epsilon']:g}")
    found = tuned_of(__name__, KEYS)[line]
    values["local"]["lr"] = float(found["lr"])
    if scale.facts.get("chosen", 1):
        values["rounds"] = int(found["rounds"])
    if privacy["method"] == "vanilla":
        values["privacy"] = {"method": "vanilla"}
        return
    units: dict[str, Any] = {"examples": IMAGES}
    if images:
        units = {
            "unit": "person",
            "people": round(IMAGES / images, 1),
            "records_per_person": images,
        }
    kept = {name: value for name, value in fitting(privacy).items() if name != "examples"}
    values["privacy"] = {
        **kept,
        **units,
        "clip": float(found["clip"]),
        "rate": float(found["rate"]),
        "rounds": values["rounds"],
    }


@study.measure("seconds")
def seconds(outcomes: Sequence[Outcome], _argument: str) -> Value:
    """Seconds that the run's rounds took."""
    return Value(float(outcomes[0].summary.values["seconds"]))
