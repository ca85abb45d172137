"""Runs behind a study's tables and figures, for a user's choices."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from fedveil.engines import Probe
from fedveil.errors import FieldError, nearest, require_choice
from fedveil_lab.config import Config, parse
from fedveil_lab.config.course import Setting
from fedveil_lab.config.variants import configure
from fedveil_lab.grid import Cell, Outcome, distinct
from fedveil_lab.runs.prepare import resolve_device
from fedveil_studies.frame.choices import Choices, loaded, put
from fedveil_studies.frame.described import ReadingOf, ScaleOf, TableOf
from fedveil_studies.frame.measure import PlannedFigure, Runs
from fedveil_studies.frame.plots import Line, Plot
from fedveil_studies.frame.result import Published
from fedveil_studies.frame.study import Study


class Reproduction:
    """Runs, tables and figures of a study at one scale, with some readings of the paper.

    Parameters
    ----------
    study : Study
        The study of the paper.
    choices : Choices, optional
        Scale, seeds, rows and readings that the user chose.

    Attributes
    ----------
    tables, figures : dict of str to str
        Titles by number of the tables and figures with chosen rows.
    rows, seeds : tuple
        Chosen rows and seeds, in order.

    Raises
    ------
    FieldError
        If the study has no such scale, row or reading.
    """

    def __init__(self, study: Study, choices: Choices | None = None) -> None:
        spec, choices = study.described, choices or Choices()
        scale = choices.scale or next(iter(spec.scales))
        require_choice("--scale", scale, spec.scales)
        for option, names, known in (
            ("--row", choices.rows, spec.rows),
            ("--reading", choices.readings, spec.readings),
        ):
            for name in names:
                require_choice(option, name, known)
        readings = tuple(name for name in spec.readings if name in choices.readings)
        device = resolve_device(choices.device)
        self.study, self.choices = (
            study,
            replace(choices, scale=scale, readings=readings, device=device),
        )
        chosen = choices.rows or [name for name, row in spec.rows.items() if not row.extra]
        self.rows = tuple(name for name in spec.rows if name in chosen)
        own = range(choices.seed, choices.seed + choices.seeds)
        self.seeds = tuple(sorted({*own, *choices.more_seeds}))
        self.tables, self.figures = self._titles(spec.tables), self._titles(spec.figures)
        for name in study.pictures:
            self.figures[name] = study.figures[name]
        self._cells: dict[Hashable, Cell] = {}

    @property
    def scale(self) -> ScaleOf:
        """Description of the chosen scale."""
        return self.study.described.scales[self.choices.scale]

    @property
    def made_of(self) -> dict[str, Any]:
        """Everything that determines its figures, for the files that hold them."""
        made = {"scale": self.choices.scale, "seeds": list(self.seeds), "draws": self.choices.draws}
        return {**made, "readings": list(self.choices.readings)}

    def with_stored(self, values: Mapping[str, Any]) -> "Reproduction":
        """Add the rows, seeds and draws of a table file that was written before."""
        labels = {str(row["row"]).partition(",")[0] for row in values["rows"]}
        known = [name for name, row in self.study.described.rows.items() if row.label in labels]
        draws = max(self.choices.draws, int(values.get("draws", 1)))
        more = (*self.choices.more_seeds, *map(int, values["seeds"]))
        return Reproduction(
            self.study,
            replace(self.choices, rows=(*self.rows, *known), more_seeds=more, draws=draws),
        )

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
        """Make the cell of one run.

        Parameters
        ----------
        scenario, row, setting : str
            Names of scenario, row and setting.
        seed : int
            Seed of data, first model, training and noise.
        draw : int
            Number of the noise draw on one training; above 0 only the noise differs.
        change : str
            Name of a change of the configuration.
        keys : mapping, optional
            Dotted keys to set.
        probe : str
            Name of a probe that measures more after each round.
        """
        keys = keys or {}
        key = (scenario, row, setting, seed, draw, change, tuple(keys.items()), probe)
        if key not in self._cells:
            config = self._configuration(scenario, row, setting, seed, draw, change, keys)
            shown = [config.name.removesuffix(f"-{setting}"), setting, f"seed {seed}"]
            if draw:
                shown.append(f"draw {draw}")
            for name, value in keys.items():
                shown.append(f"{name.rpartition('.')[2]} {value}")
            probes: tuple[Probe, ...] = ()
            if probe:
                probes = (self.study.probes[probe](self.full(scenario, seed)),)
            source, matched = None, self.study.described.settings[setting].sigma_of
            if matched:
                source = self.cell(scenario, row, matched, seed)
            self._cells[key] = Cell(" ".join(shown), config, probes, source)
        return self._cells[key]

    def full(self, scenario: str, seed: int) -> Config:
        """Return the scenario's configuration with all its clients, for looking at the data."""
        return parse(self._values(scenario, next(iter(self.study.described.rows)), seed))

    def _configuration(
        self,
        scenario: str,
        row: str,
        setting: str,
        seed: int,
        draw: int,
        change: str,
        keys: Mapping[str, Any],
    ) -> Config:
        spec, study = self.study.described, self.study
        values, parts = self._values(scenario, row, seed), [scenario, row]
        if draw:
            values["source"] = {"seed": 1000 * (seed + 1) + draw}
        if change and change not in self.scale.without:
            parts.append(change)
            put(values, spec.changes.get(change, {}))
            if change in study.changes:
                study.changes[change](values)
        values["name"] = "-".join(parts)
        put(values, {**spec.settings[setting].set, **keys})
        readings = [spec.readings[name] for name in self.choices.readings]
        flags = frozenset(flag for reading in readings for flag in reading.flags)
        for adjust in study.adjusted:
            adjust(values, self.scale, flags)
        given = dict(spec.settings[setting].privacy)
        if given.get("rounds") == "all":  # of a total over the run, however long it is
            given["rounds"] = values["rounds"]
        for reading in readings:
            given |= reading.settings.get(setting, {})
        forced, matched = {}, spec.settings[setting].sigma_of
        if matched:
            forced["derived_from"] = spec.settings[matched].label
        return configure(parse(values), setting, Setting.model_validate(given), **forced)

    def _values(self, scenario: str, row: str, seed: int) -> dict[str, Any]:
        """The preset with the changes of row, scale and readings, and nothing of the setting."""
        spec, chosen = self.study.described, self.choices
        values = loaded(
            spec.scenarios[require_choice("scenario", scenario, spec.scenarios)].preset
        ).to_dict()
        values.pop("compare", None)
        values |= {"seed": seed, "workers": chosen.workers, "device": chosen.device}
        put(values, spec.rows[row].set)
        changing: list[ScaleOf | ReadingOf] = [
            self.scale,
            *(spec.readings[name] for name in chosen.readings),
        ]
        for one in changing:
            if isinstance(one, ScaleOf) or one.row in ("", row):
                put(values, one.set)
                put(values, one.present, present=True)
        return values

    def measurements(self, table: str) -> list[PlannedFigure]:
        """List the planned figures of a table."""
        planned = []
        for place in self._places(self.study.described.tables[table]):
            row = _filled(place["part"].label, place)
            printed = self.study.published.get((table, row, place["setting"], place["figure"]))
            planned.append(self._planned("measures", place, row, printed))
        return planned

    def lines(self, figure: str) -> list[PlannedFigure]:
        """List the planned lines of a figure."""
        if figure in self.study.pictures:
            return []
        content, planned = self.study.described.figures[figure], []
        for place in self._places(content):
            line, level = _filled(place["part"].line, place), None
            if content.level is not None:
                table, name = content.level
                level = self.study.published.get((table, line, place["setting"], name))
            one = self._planned("curves", place, line, level)
            planned.append(replace(one, panel=_filled(place["part"].panel, place)))
        return planned

    def plot(self, figure: str, finished: Mapping[str, Outcome]) -> Plot:
        """Make a plot from the finished cells, given by key."""
        content, lines = self.study.described.figures[figure], []
        for one in self.lines(figure):
            printed = None
            if one.published is not None:
                printed = one.published.value
            curves = list(map(one.measure, one.done(finished).values()))
            lines.append(Line(one.panel, one.row, curves, printed))
        said = ""
        if content.level:
            said = f"ticks at the right: what the paper's table {content.level[0]} has"
        return Plot(
            f"{figure}: {content.title}",
            content.x,
            content.y,
            lines,
            content.diagonal,
            said,
            content.heat,
        )

    def cells(self, selection: "Selection") -> list[Cell]:
        """Every cell that a selection needs, once, in order."""
        planned = list[PlannedFigure]()
        for table in selection.tables:
            planned += self.measurements(table)
        for figure in selection.figures:
            planned += self.lines(figure)
        return distinct([cell for one in planned for cell in one.cells])

    def seconds(self, selection: "Selection") -> dict[str, float | None]:
        """Seconds of one core that each cell of a selection took, as recorded, by key; None where nobody recorded them."""
        own, seconds = self.scale.seconds, dict[str, float | None]()
        for table in selection.tables:
            recorded = self.study.described.tables[table].seconds.get(self.choices.scale, own)
            for one in self.measurements(table):
                for cell in distinct(one.cells):
                    seconds.setdefault(cell.key, recorded)
        for cell in self.cells(selection):
            seconds.setdefault(cell.key, own)
        return seconds

    def notes(self, names: Sequence[str]) -> list[str]:
        """List the notes on these tables and figures."""
        spec, chosen = self.study.described, self.choices
        notes = [f"scale {chosen.scale}: {self.scale.what}"]
        if self.scale.also:
            notes.append(self.scale.also)
        notes += [f"reading {name}: {spec.readings[name].what}" for name in chosen.readings]
        for note in spec.notes:
            if not note.beside or {*note.beside} & {*names}:
                notes.append(note.text)
        return notes

    def _planned(
        self, kind: str, place: Mapping[str, Any], row: str, published: Published | None
    ) -> PlannedFigure:
        measure = self.study.function(kind, place["part"].figures[place["figure"]], place["of"])
        return PlannedFigure(
            row, place["setting"], place["figure"], self._runs(place), measure, published
        )

    def _places(self, content: TableOf) -> Iterator[dict[str, Any]]:
        """Every line in the order that the content wants, parts in theirs: the part, names by axis, labels of names."""
        spec = self.study.described
        for part in content.parts:
            rows = [row for row in part.rows or self.rows if row in self.rows]
            settings = part.settings or spec.compared
            axes = {
                "scenario": part.scenarios,
                "setting": settings,
                "row": rows,
                "of": part.of,
                "figure": part.figures,
            }
            for names in product(*(axes[axis] for axis in content.order)):
                place: dict[str, Any] = dict(zip(content.order, names, strict=True))
                labels = {
                    "row": spec.rows[place["row"]].label,
                    "setting": spec.settings[place["setting"]].label,
                    "scenario": spec.scenarios[place["scenario"]].label or place["scenario"],
                }
                yield {"part": part, "labels": labels, **place}

    def _runs(self, place: Mapping[str, Any]) -> Runs:
        """One repetition a seed, or where the noise is drawn several times and there is some, one a seed and draw."""
        part, named = place["part"], (place["scenario"], place["row"], place["setting"])
        noisy = self.study.described.settings[place["setting"]].privacy.get("method") != "vanilla"
        draws = 1
        if part.draws and noisy:
            draws = self.choices.draws
        runs: dict[tuple[int, int], tuple[Cell, ...]] = {}
        for seed, draw in product(self.seeds, range(draws)):
            cell = partial(self.cell, *named, seed, draw=draw, keys=part.set, probe=part.probe)
            runs[seed, draw] = tuple(cell(change=change) for change in part.cells)
        return runs

    def _titles(self, contents: Mapping[str, TableOf]) -> dict[str, str]:
        """Return the titles of those that the chosen rows stand in."""
        titles = {}
        for name, content in contents.items():
            if not content.rows or not set(content.rows).isdisjoint(self.rows):
                titles[name] = content.title
        return titles


def _filled(template: str, place: Mapping[str, Any]) -> str:
    return template.format(**place["labels"], of=place["of"], figure=place["figure"])


@dataclass(frozen=True)
class Selection:
    """Tables and figures to reproduce, each known to the study."""

    tables: tuple[str, ...]
    figures: tuple[str, ...]

    @classmethod
    def of(
        cls, study: Reproduction, tables: Collection[str] = (), figures: Collection[str] = ()
    ) -> "Selection":
        """Check the names and make a selection; if nothing is chosen, everything but extra tables is.

        Raises
        ------
        FieldError
            If a name does not exist; the message lists those that do.
        """
        spec, selected = study.study.described, []
        if not tables and not figures:
            asked = (name for name in study.tables if not spec.tables[name].extra)
            return cls(tuple(asked), tuple(study.figures))
        for option, names, every, own in (
            ("--table", tables, spec.tables, study.tables),
            ("--figure", figures, spec.figures, study.figures),
        ):
            by_name = {_plain(name): name for name in (*every, *own)}
            chosen = dict.fromkeys(by_name.get(_plain(name), name) for name in names)
            for name in chosen:
                if name in own:
                    continue
                remedy = nearest(name, own)
                if name in every and every[name].rows:
                    remedy = f"is about {', '.join(every[name].rows)} alone"
                raise FieldError(option, name, remedy)
            selected.append(tuple(chosen))
        return cls(*selected)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all selected tables and figures."""
        return self.tables + self.figures


def _plain(name: str) -> str:
    return name.replace(".", "").replace(" ", "").upper()
