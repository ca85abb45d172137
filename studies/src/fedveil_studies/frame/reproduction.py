"""A study with a user's choices: the runs behind its tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fedveil.errors import FieldError, nearest
from fedveil.grid import Cell, Outcome, distinct
from fedveil_studies.frame.described import Part, TableOf
from fedveil_studies.frame.measure import Measurement, Repetition
from fedveil_studies.frame.plots import Curve, Line, Plot
from fedveil_studies.frame.runs import Runs


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


class Reproduction(Runs):
    """The runs, tables and figures of a study at one scale, under some readings.

    See `Runs` for what it is made of, its parameters and its attributes.
    """

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
        if figure in self.study.pictures:
            return []
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

    def notes(self, names: Sequence[str]) -> list[str]:
        """What has to be said beside these tables and figures."""
        told, chosen = self.study.described, self.choices
        found = [f"scale {chosen.scale}: {self.scale.what}", *([self.scale.also] if self.scale.also else [])]
        found += [f"reading {name}: {told.readings[name].what}" for name in chosen.readings]
        return found + [note.text for note in told.notes if not note.beside or {*note.beside} & {*names}]

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
            by_name = {_plain(name): name for name in (*every, *own)}
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


def _plain(name: str) -> str:
    return name.replace(".", "").replace(" ", "").upper()
