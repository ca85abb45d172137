"""A study with a user's choices: the runs behind its tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

from fedveil.config import Config, load, parse
from fedveil.config.sections import Setting
from fedveil.config.variants import configure
from fedveil.errors import FieldError, nearest, require_choice, require_count
from fedveil.grid import Cell, Outcome, distinct
from fedveil.papers.described import Part, ScaleOf, TableOf
from fedveil.papers.measure import Measurement, Repetition
from fedveil.papers.study import Study
from fedveil.report.plots import Curve, Line, Plot
from fedveil.runs.prepare import resolve_device

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


@dataclass(frozen=True, eq=False)
class PlannedLine:
    """One line of a figure: where it stands, the level that the paper printed, and how it is measured."""

    panel: str
    label: str
    repetitions: tuple[Repetition, ...]
    curve: Callable[[Sequence[Outcome]], Curve]
    printed: float | None = None


@dataclass(frozen=True)
class _Place:
    """Where one line of a table or figure stands."""

    part: Part
    scenario: str
    setting: str
    row: str
    of: str
    figure: str


class Reproduction:
    """The runs, tables and figures of a study at one scale, under some readings.

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
        self._device = resolve_device(choices.device)
        self._cells: dict[Hashable, Cell] = {}

    @property
    def scale(self) -> ScaleOf:
        """The chosen one."""
        return self.study.described.scales[self.choices.scale]

    @property
    def made_of(self) -> dict[str, Any]:
        """What decides its figures, for the files that hold them."""
        made = {"scale": self.choices.scale, "seeds": list(self.seeds), "draws": self.choices.draws}
        return {**made, "readings": list(self.choices.readings)}

    def with_stored(self, values: Mapping[str, Any]) -> Reproduction:
        """The same, and what a table file that was once written holds beyond it: its rows, seeds and draws."""
        labels = {str(row["row"]).partition(",")[0] for row in values["rows"]}
        known = [name for name, row in self.study.described.rows.items() if row.label in labels]
        draws = max(self.choices.draws, int(values.get("draws", 1)))
        more = (*self.choices.more_seeds, *map(int, values["seeds"]))
        return Reproduction(self.study, replace(self.choices, rows=(*self.rows, *known), more_seeds=more, draws=draws))

    def measurements(self, table: str) -> list[Measurement]:
        """What a table is made of."""
        found = []
        for place in self._places(self.study.described.tables[table]):
            row, published = self._filled(place.part.label, place), self.study.published
            found.append(
                Measurement(
                    row=row,
                    setting=place.setting,
                    figure=place.figure,
                    repetitions=self._repetitions(place),
                    measure=self.study.function("measures", place.part.figures[place.figure].format(of=place.of)),
                    published=published.get((table, row, place.setting, place.figure)),
                )
            )
        return found

    def lines(self, figure: str) -> list[PlannedLine]:
        """What a figure is made of."""
        content, found = self.study.described.figures[figure], []
        for place in self._places(content):
            panel, label = self._filled(place.part.panel, place), self._filled(place.part.line, place)
            level = None
            if content.level is not None:
                table, name = content.level
                level = self.study.published.get((table, label, place.setting, name))
            curve = self.study.function("curves", place.part.figures[place.figure].format(of=place.of))
            repetitions = self._repetitions(place)
            found.append(PlannedLine(panel, label, repetitions, curve, None if level is None else level.value))
        return found

    def plot(self, figure: str, finished: Mapping[str, Outcome]) -> Plot:
        """A figure of what is finished, by key of the cell."""
        content, lines = self.study.described.figures[figure], []
        for one in self.lines(figure):
            done = [outcomes for outcomes in (r.outcomes(finished) for r in one.repetitions) if outcomes]
            lines.append(Line(one.panel, one.label, [one.curve(outcomes) for outcomes in done], one.printed))
        said = f"ticks at the right: what the paper's table {content.level[0]} has" if content.level else ""
        return Plot(f"{figure}: {content.title}", content.x, content.y, lines, content.diagonal, said, content.heat)

    def cells(self, selection: Selection) -> list[Cell]:
        """Every cell that a selection needs, once, in order."""
        found = [m.repetitions for table in selection.tables for m in self.measurements(table)]
        found += [line.repetitions for figure in selection.figures for line in self.lines(figure)]
        return distinct([cell for repetitions in found for one in repetitions for cell in one.cells])

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

    def notes(self, names: Sequence[str]) -> list[str]:
        """What has to be said beside these tables and figures."""
        told, chosen = self.study.described, self.choices
        found = [f"scale {chosen.scale}: {self.scale.what}", *([self.scale.also] if self.scale.also else [])]
        found += [f"reading {name}: {told.readings[name].what}" for name in chosen.readings]
        return found + [note.text for note in told.notes if not note.beside or {*note.beside} & {*names}]

    def _fits(self, content: TableOf) -> bool:
        return not content.rows or any(row in self.rows for row in content.rows)

    def _places(self, content: TableOf) -> list[_Place]:
        """Every line, in the order that the content wants; parts in theirs."""
        told, found = self.study.described, []
        for part in content.parts:
            rows = [row for row in part.rows or self.rows if row in self.rows]
            settings = part.settings or [name for name, setting in told.settings.items() if not setting.extra]
            axes = {"scenario": part.scenarios, "setting": settings, "row": rows, "of": part.of, "figure": part.figures}
            for values in product(*(axes[name] for name in content.order)):
                found.append(_Place(part, **dict(zip(content.order, values, strict=True))))
        return found

    def _filled(self, template: str, place: _Place) -> str:
        told = self.study.described
        words = {"row": told.rows[place.row].label, "setting": told.settings[place.setting].label}
        words["scenario"] = told.scenarios[place.scenario].label or place.scenario
        return template.format(**words, of=place.of, figure=place.figure)

    def _repetitions(self, place: _Place) -> tuple[Repetition, ...]:
        """One a seed, or where the noise is drawn several times and there is some, one a seed and draw."""
        part, noisy = place.part, self.study.described.settings[place.setting].privacy.get("method") != "vanilla"
        draws = self.choices.draws if part.draws and noisy else 1
        return tuple(
            Repetition(
                seed,
                tuple(
                    self.cell(
                        place.scenario,
                        place.row,
                        place.setting,
                        seed,
                        draw=draw,
                        change=change,
                        keys=part.set,
                        probe=part.probe,
                    )
                    for change in part.cells
                ),
                draw,
            )
            for seed in self.seeds
            for draw in range(draws)
        )

    def _config(
        self, scenario: str, row: str, setting: str, seed: int, draw: int, change: str, keys: Mapping[str, Any]
    ) -> Config:
        told = self.study.described
        values, parts = self._base(scenario, row, seed), [scenario, row]
        if draw:
            values["source"] = {"seed": 1000 * (seed + 1) + draw}
        if change:
            parts.append(change)
            put(values, told.changes.get(change, {}))
            if change in self.study.changes:
                self.study.changes[change](values)
        values["name"] = "-".join(parts)
        put(values, {**told.settings[setting].set, **keys})
        for adjust in self.study.adjusted:
            adjust(values, self.scale, self._flags)
        given = dict(told.settings[setting].privacy)
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


@dataclass(frozen=True)
class Selection:
    """Tables and figures to reproduce, each known to the study."""

    tables: tuple[str, ...]
    figures: tuple[str, ...]

    @classmethod
    def of(cls, study: Reproduction, tables: Collection[str] = (), figures: Collection[str] = ()) -> Selection:
        """Check names; nothing chosen is everything.

        Raises
        ------
        FieldError
            Naming what exists.
        """
        if not tables and not figures:
            return cls(tuple(study.tables), tuple(study.figures))
        told, found = study.study.described, []
        for option, names, every, own in (
            ("--table", tables, told.tables, study.tables),
            ("--figure", figures, told.figures, study.figures),
        ):
            by_name = {_plain(name): name for name in every}
            chosen = dict.fromkeys(by_name.get(_plain(name), name) for name in names)
            for name in chosen:
                if name not in own:
                    about = ", ".join(every[name].rows) if name in every else ""
                    raise FieldError(option, name, f"is about {about} alone" if about else nearest(name, own))
            found.append(tuple(chosen))
        return cls(*found)

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return self.tables + self.figures


@cache
def _loaded(preset: str) -> Config:
    return load(preset)


def _plain(name: str) -> str:
    return name.replace(".", "").replace(" ", "").upper()
