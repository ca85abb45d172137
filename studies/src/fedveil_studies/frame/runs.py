"""The runs of a study: its scenarios as settings, rows, scale and readings change them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedveil.config import Config, load, parse
from fedveil.config.sections import Setting
from fedveil.config.variants import configure
from fedveil.errors import FieldError, require_choice, require_count
from fedveil.grid import Cell
from fedveil.runs.prepare import resolve_device
from fedveil_studies.frame.described import ScaleOf, TableOf
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


class Runs:
    """The runs of a study at one scale, under some readings.

    Parameters
    ----------
    study : Study
        The paper.
    choices : Choices
        What the user chose.

    Attributes
    ----------
    tables, figures : dict of str to str
        Titles by number: those that the chosen rows stand in.
    rows, seeds : tuple
        In order.

    Raises
    ------
    FieldError
        If the study has no such scale, row or reading.
    """

    def __init__(self, study: Study, choices: Choices = Choices()) -> None:
        told = study.described
        scale = choices.scale or next(iter(told.scales))
        require_choice("--scale", scale, told.scales)
        for option, names, known in (
            ("--row", choices.rows, told.rows),
            ("--reading", choices.readings, told.readings),
        ):
            for name in names:
                require_choice(option, name, known)
        readings = tuple(name for name in told.readings if name in choices.readings)
        self.study, self.choices = study, replace(choices, scale=scale, readings=readings)
        chosen = choices.rows or [name for name, row in told.rows.items() if not row.extra]
        self.rows = tuple(name for name in told.rows if name in chosen)
        own = range(choices.seed, choices.seed + choices.seeds)
        self.seeds = tuple(sorted({*own, *choices.more_seeds}))
        self.tables, self.figures = (
            {name: content.title for name, content in every.items() if self._fits(content)}
            for every in (told.tables, told.figures)
        )
        self.figures |= {name: (drawn.__doc__ or name).split("\n")[0] for name, drawn in study.pictures.items()}
        self._device = resolve_device(choices.device)
        self._cells: dict[Hashable, Cell] = {}

    @property
    def scale(self) -> ScaleOf:
        """The chosen one."""
        return self.study.described.scales[self.choices.scale]

    def cell(
        self,
        scenario: str,
        row: str,
        setting: str,
        seed: int,
        *,
        draw: int = 0,
        change: str = "",
        keys: Mapping[str, Any] | None = None,
        probe: str = "",
    ) -> Cell:
        """One run.

        Parameters
        ----------
        scenario, row, setting : str
            By name.
        seed : int
            Of data, first model, training and noise.
        draw : int
            Above 0: other noise on the same training.
        change : str
            Of the configuration, by name.
        keys : mapping, optional
            Dotted keys.
        probe : str
            Measures more after each round.
        """
        keys = keys or {}
        key = (scenario, row, setting, seed, draw, change, tuple(keys.items()), probe)
        if key not in self._cells:
            config = self._config(scenario, row, setting, seed, draw, change, keys)
            shown = [config.name.removesuffix(f"-{setting}"), setting, f"seed {seed}"]
            shown += [f"draw {draw}"] if draw else []
            shown += [f"{name.rpartition('.')[2]} {value}" for name, value in keys.items()]
            probes = (self.study.probes[probe](self.full(scenario, seed)),) if probe else ()
            matched = self.study.described.settings[setting].sigma_of
            source = self.cell(scenario, row, matched, seed) if matched else None
            self._cells[key] = Cell(" ".join(shown), config, probes, source)
        return self._cells[key]

    def full(self, scenario: str, seed: int) -> Config:
        """The scenario with all its clients, for who wants to look at the data."""
        return parse(self._base(scenario, next(iter(self.study.described.rows)), seed))

    def _config(
        self, scenario: str, row: str, setting: str, seed: int, draw: int, change: str, keys: Mapping[str, Any]
    ) -> Config:
        told = self.study.described
        values, parts = self._base(scenario, row, seed), [scenario, row]
        if draw:
            values["source"] = {"seed": 1000 * (seed + 1) + draw}
        if change and change not in self.scale.without:
            parts.append(change)
            put(values, told.changes.get(change, {}))
            if change in self.study.changes:
                self.study.changes[change](values)
        values["name"] = "-".join(parts)
        put(values, {**told.settings[setting].set, **keys})
        for adjust in self.study.adjusted:
            adjust(values, self.scale, self._flags)
        given = dict(told.settings[setting].privacy)
        if given.get("rounds") == "all":  # of a total over the run, however long it is
            given["rounds"] = values["rounds"]
        for name in self.choices.readings:
            given |= told.readings[name].settings.get(setting, {})
        matched = told.settings[setting].sigma_of
        forced = {"derived_from": told.settings[matched].label} if matched else {}
        return configure(parse(values), setting, Setting.model_validate(given), **forced)

    @property
    def _flags(self) -> frozenset[str]:
        return frozenset(f for name in self.choices.readings for f in self.study.described.readings[name].flags)

    def _base(self, scenario: str, row: str, seed: int) -> dict[str, Any]:
        """The preset with the changes of row, scale and readings, and nothing of the setting."""
        told = self.study.described
        values = _loaded(told.scenarios[require_choice("scenario", scenario, told.scenarios)].preset).to_dict()
        values.pop("compare", None)
        values |= {"seed": seed, "workers": self.choices.workers, "device": self._device}
        put(values, told.rows[row].set)
        put(values, self.scale.set)
        put(values, self.scale.present, present=True)
        for name in self.choices.readings:
            reading = told.readings[name]
            if reading.row in ("", row):
                put(values, reading.set)
                put(values, reading.present, present=True)
        return values

    def _fits(self, content: TableOf) -> bool:
        return not content.rows or any(row in self.rows for row in content.rows)


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
