"""What a user may choose of a study, and the configurations of its runs under these choices."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedveil.config import Config, load, parse
from fedveil.config.sections import Setting
from fedveil.config.variants import configure
from fedveil.errors import FieldError, require_choice, require_count
from fedveil_studies.frame.study import Study

MOST_DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a user may choose.

    Parameters
    ----------
    scale : str
        Of the study; default: its first.
    seeds : int
        Repetitions: seeds `seed`, `seed` + 1, ...; data, first model, training and noise change.
    seed : int
        The first.
    more_seeds : tuple of int
        Others beside them.
    draws : int
        Noise draws on one training, where a table looks at a single round.
    rows : tuple of str
        Rows of the tables; empty: all but the extra ones.
    readings : tuple of str
        Other readings of the paper, in any order.
    workers : int
        Clients trained side by side.
    device : str
        Where to train.
    """

    scale: str = ""
    seeds: int = 1
    seed: int = 0
    more_seeds: tuple[int, ...] = ()
    draws: int = 10
    rows: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()
    workers: int = 2
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse what no study has."""
        require_count("--seeds", self.seeds)
        if require_count("--draws", self.draws) > MOST_DRAWS:
            raise FieldError("--draws", self.draws, f"must be at most {MOST_DRAWS}: each is a run of its own")
        require_count("--workers", self.workers)


def configuration(
    study: Study,
    choices: Choices,
    scenario: str,
    row: str,
    setting: str,
    seed: int,
    *,
    draw: int = 0,
    change: str = "",
    keys: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of one run; see `Reproduction.cell`."""
    spec, scale = study.described, study.described.scales[choices.scale]
    values, parts = scenario_values(study, choices, scenario, row, seed), [scenario, row]
    if draw:
        values["source"] = {"seed": 1000 * (seed + 1) + draw}
    if change and change not in scale.without:
        parts.append(change)
        put(values, spec.changes.get(change, {}))
        if change in study.changes:
            study.changes[change](values)
    values["name"] = "-".join(parts)
    put(values, {**spec.settings[setting].set, **(keys or {})})
    flags = frozenset(flag for name in choices.readings for flag in spec.readings[name].flags)
    for adjust in study.adjusted:
        adjust(values, scale, flags)
    given = dict(spec.settings[setting].privacy)
    if given.get("rounds") == "all":  # of a total over the run, however long it is
        given["rounds"] = values["rounds"]
    for name in choices.readings:
        given |= spec.readings[name].settings.get(setting, {})
    matched = spec.settings[setting].sigma_of
    forced = {"derived_from": spec.settings[matched].label} if matched else {}
    return configure(parse(values), setting, Setting.model_validate(given), **forced)


def scenario_values(study: Study, choices: Choices, scenario: str, row: str, seed: int) -> dict[str, Any]:
    """The preset with the changes of row, scale and readings, and nothing of the setting."""
    spec, scale = study.described, study.described.scales[choices.scale]
    values = _loaded(spec.scenarios[require_choice("scenario", scenario, spec.scenarios)].preset).to_dict()
    values.pop("compare", None)
    values |= {"seed": seed, "workers": choices.workers, "device": choices.device}
    put(values, spec.rows[row].set)
    put(values, scale.set)
    put(values, scale.present, present=True)
    for name in choices.readings:
        reading = spec.readings[name]
        if reading.row in ("", row):
            put(values, reading.set)
            put(values, reading.present, present=True)
    return values


def put(values: dict[str, Any], changes: Mapping[str, Any], present: bool = False) -> None:
    """Set dotted keys, in place; with `present`, only those that are there."""
    for key, value in changes.items():
        *tables, last = key.split(".")
        inner: Any = values
        for name in tables:
            if not isinstance(inner.get(name), dict):
                if present:
                    break
                inner[name] = {}
            inner = inner[name]
        else:
            if not present or last in inner:
                inner[last] = deepcopy(value)


@cache
def _loaded(preset: str) -> Config:
    return load(preset)
