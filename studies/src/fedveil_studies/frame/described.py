"""What may stand in a study's TOML file: settings, scenarios, rows, scales, readings, tables, figures and claims."""

import tomllib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedveil.errors import FieldError
from fedveil.reading import toml_of

Keys = Mapping[str, Any]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScenarioOf(_Table):
    """``[scenarios]``: the configuration that runs begin with, a preset or a file; a plain text is its name."""

    preset: str
    label: str = ""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        return {"preset": values} if isinstance(values, str) else values


class SettingOf(_Table):
    """``[settings.NAME]``: a column of the comparison. `privacy` has the keys of ``[privacy]`` that it sets.

    With `sigma_of` it is global DP whose sigma is the average one of that other setting's run. An `extra` setting
    stands only in tables that name it.
    """

    label: str
    privacy: Keys
    set: Keys = {}
    sigma_of: str = ""
    extra: bool = False


class RowOf(_Table):
    """``[rows.NAME]``: a line of the tables, with dotted keys that it sets; an `extra` one only where it is named."""

    label: str
    set: Keys = {}
    extra: bool = False


class ScaleOf(_Table):
    """``[scales.NAME]``: how large the experiments are.

    `present` sets only keys that a configuration has; `without` names changes that are not made at this scale.
    """

    what: str
    also: str = ""
    set: Keys = {}
    present: Keys = {}
    without: tuple[str, ...] = ()
    facts: Mapping[str, float] = {}


class ReadingOf(_Table):
    """``[readings.NAME]``: another reading of the paper, of one row or all; `settings` sets keys of ``[privacy]``."""

    what: str
    row: str = ""
    set: Keys = {}
    present: Keys = {}
    settings: Mapping[str, Keys] = {}
    flags: tuple[str, ...] = ()


class Part(_Table):
    """Lines of a table or figure: one for each scenario, setting, row, `of` and figure.

    Attributes
    ----------
    scenarios, settings, rows : tuple of str
        By name; no settings or rows are all that are not extra.
    of : tuple of str
        A further axis, for measures and labels that name it ``{of}``.
    figures : mapping
        Name of a figure (in a plot: of a line, if `line` asks for it) to its measure: a name and its argument.
    cells : tuple of str
        Changes of the configuration by name (`Study.change`, or ``[changes]``), one for each run that a measure needs.
    set : mapping
        Dotted keys.
    probe : str
        Measures more after each round.
    draws : bool
        Whether the noise is drawn several times on one training.
    label, panel, line : str
        Templates: of a table's rows, of a plot's panels and of its lines.
    """

    scenarios: tuple[str, ...]
    figures: Mapping[str, str]
    settings: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    of: tuple[str, ...] = ("",)
    cells: tuple[str, ...] = ("",)
    set: Keys = {}
    probe: str = ""
    draws: bool = False
    label: str = "{row}"
    panel: str = "{setting}"
    line: str = "{row}"


class TableOf(_Table):
    """``[tables.N]``: what one `Part` says, or several in `parts`, which share the keys beside them.

    With ``like = "M"`` it has what that table has, but for its own keys.
    """

    title: str
    parts: tuple[Part, ...]
    order: tuple[Literal["scenario", "setting", "row", "of", "figure"], ...] = (
        "scenario",
        "row",
        "of",
        "setting",
        "figure",
    )

    @model_validator(mode="before")
    @classmethod
    def _fold(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        own = {k: v for k, v in values.items() if k in cls.model_fields and k != "parts"}
        shared = {k: v for k, v in values.items() if k not in cls.model_fields}
        return {**own, "parts": [{**shared, **part} for part in values.get("parts", [{}])]}

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that it is about; empty where it is about all."""
        every = [part.rows for part in self.parts]
        return tuple(dict.fromkeys(row for rows in every for row in rows)) if all(every) else ()


class FigureOf(TableOf):
    """``[figures.N]``: as a table, with curves for measures; `level`: table and figure whose printed values show.

    With `heat` it is a map: a square for each x of a curve, in the row of the line's name.
    """

    x: str
    y: str = ""
    diagonal: bool = False
    heat: bool = False
    level: tuple[str, str] | None = None


class NoteOf(_Table):
    """``[[notes]]``: what has to be said beside tables and figures; with none named, beside all."""

    text: str
    beside: tuple[str, ...] = ()


class ClaimOf(_Table):
    """``[[claims]]``: what the paper says, and how it is judged.

    Attributes
    ----------
    name, says : str
        For the page, and the place where the paper says it.
    on : {"tables", "audits"}
        What it is judged on: table files, or audits of independent runs with and without a client.
    answers : tuple of str
        Which of ``[statements]`` it judges.
    figures : tuple of pairs
        Tables and figures.
    expect : str
        "above", "below" or "alike": how `first` lies to `second`, or to `level`; "guarantee": whether runs of `first`
        promise anything; or the name of a judge (`Study.judge`).
    first, second : str
        Settings; with a level, no `first` is any.
    level : float
        A figure in the place of `second`.
    margin : float
        What counts as no difference; for "alike" and levels, how far is alike.
    learned : pairs
        Table and figure of the accuracy that says whether anything was learned.
    guess : float
        What that figure is where nothing was learned, if it is no accuracy (default: the share of the largest class).
    useful : bool
        Whether `first` itself has to have learned: what says nothing protects everything.
    paper : str
        The paper's figure, where no printed difference says it.
    seeds : int
        That a row needs.
    pooled : bool
        Whether rows ask for the same direction, so that their mean says something.
    asked : bool
        Whether the paper claims it; else it is a question of ours.
    note : str
        What has to be said beside the verdict.
    only, without : tuple of str
        Rows that it is about (default: all), and rows that are left out, but for the reading `unless`.
    """

    name: str
    says: str
    on: Literal["tables", "audits"] = "tables"
    answers: tuple[str, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    expect: str = "above"
    first: str = ""
    second: str = ""
    level: float | None = None
    margin: float = 0.02
    learned: Mapping[str, str] = {}
    guess: float | None = None
    useful: bool = False
    paper: str = ""
    seeds: int = 3
    pooled: bool = True
    asked: bool = True
    note: str = ""
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    unless: str = ""


class Described(_Table):
    """A whole study.toml."""

    title: str
    source: str
    row_name: str = "row"
    settings: Mapping[str, SettingOf]
    scenarios: Mapping[str, ScenarioOf]
    rows: Mapping[str, RowOf]
    scales: Mapping[str, ScaleOf]
    tables: Mapping[str, TableOf]
    readings: Mapping[str, ReadingOf] = {}
    changes: Mapping[str, Keys] = {}
    figures: Mapping[str, FigureOf] = {}
    notes: tuple[NoteOf, ...] = ()
    statements: Mapping[str, str] = {}
    absent: Mapping[str, str] = Field(
        default={},
        description="What else it printed (rows or figures of this name, tables called N-NAME), and why not we.",
    )
    open: tuple[str, ...] = Field(default=(), description="What no table has yet and a run could tell; its command.")
    claims: tuple[ClaimOf, ...] = ()
    judged_on: tuple[str, ...] = Field(default=(), description="Groups of runs, the one nearest to the paper first.")

    @model_validator(mode="before")
    @classmethod
    def _alike(cls, values: Any) -> Any:
        alike = {}
        for kind in ("tables", "figures"):
            every = values.get(kind, {})
            alike[kind] = {name: {**every.get(own.pop("like", name), {}), **own} for name, own in every.items()}
        return {**values, **alike}

    @classmethod
    def read(cls, text: str, name: str) -> "Described":
        """Parse and check.

        Raises
        ------
        FieldError
            Naming the first key that does not fit.
        """
        try:
            return cls.model_validate(toml_of(text))
        except tomllib.TOMLDecodeError as error:
            raise FieldError(name, "study.toml", f"is no TOML: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            given = None if first["type"] == "missing" else first["input"]  # pydantic has the table around it there
            raise FieldError(f"{name}, study.toml: {where}", given, first["msg"].lower()) from error
