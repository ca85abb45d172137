"""What may stand in a study's TOML file: settings, scenarios, rows, scales, readings, tables, figures and claims."""

import tomllib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedveil.errors import FieldError
from fedveil.reading import toml_of

Keys = Mapping[str, Any]
LEAST = 3  # seeds that a verdict needs


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScenarioOf(_Table):
    """``[scenarios]``: the configuration that runs begin with, a preset or a file; a plain text is its name."""

    preset: str
    label: str = ""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        if isinstance(values, str):
            return {"preset": values}
        return values


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


class MeasureOf(_Table):
    """How a figure is measured: the name of a measure, what it is of, and further keys that it takes; or its name."""

    model_config = ConfigDict(frozen=True, extra="allow")
    measure: str
    of: "str | MeasureOf" = ""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        if isinstance(values, str):
            return {"measure": values}
        return values

    def given(self, of: str) -> dict[str, Any]:
        """What the measure takes, with the part's `of` where a text names it."""
        every = {"of": self.of, **(self.model_extra or {})}
        return {k: v.format(of=of) if isinstance(v, str) else v for k, v in every.items()}


class Part(_Table):
    """Lines of a table or figure: one for each scenario, setting, row, `of` and figure.

    Attributes
    ----------
    scenarios, settings, rows : tuple of str
        By name; no settings or rows are all that are not extra.
    of : tuple of str
        A further axis, for measures and labels that name it ``{of}``.
    figures : mapping
        Name of a figure (in a plot: of a line, if `line` asks for it) to its measure.
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
    figures: Mapping[str, MeasureOf]
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
    seeds: int = Field(default=LEAST, description="That a verdict on it needs.")
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
        if all(every):
            return tuple(dict.fromkeys(row for rows in every for row in rows))
        return ()


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


class LearnedOf(_Table):
    """``[learned]``: which figure says whether anything was learned; where nothing was, claims are not judged.

    Attributes
    ----------
    figures : mapping
        Table to table and figure; default: its own accuracy.
    guess : float
        What that figure is where nothing was learned, if it is no accuracy (default: the share of the largest class).
    first : bool
        Whether the first setting itself has to have learned, but for claims about that figure.
    """

    figures: Mapping[str, tuple[str, str]] = {}
    guess: float | None = None
    first: bool = False


class ClaimOf(_Table):
    """``[[claims]]``: what the paper says, and how it is judged.

    Attributes
    ----------
    name, says, note : str
        For the page, the place where the paper says it, and what has to be said beside the verdict.
    answers : tuple of str
        Which of ``[statements]`` it judges.
    figures : tuple of pairs
        Tables and figures.
    of : tuple
        The first setting, and the second one or a level in its place; with a level, an empty first is any.
    expect : str
        "above", "below" or "alike": how the first lies to the second; "guarantee": whether its runs promise anything;
        or the name of a judge (`Study.judge`, `Study.audit`).
    margin : float
        What counts as no difference; for "alike" and levels, how far is alike.
    rows : tuple of str
        Labels that it is about (default: all); under a reading about a row, of that row, too.
    paper : str or False
        The paper's figure, where no printed difference says it; False: the paper does not claim it, we ask.
    pooled : bool
        Whether rows ask for the same direction, so that their mean says something.
    """

    name: str
    says: str
    note: str = ""
    answers: tuple[str, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    of: tuple[str | float, ...] = ("",)
    expect: str = "above"
    margin: float = 0.02
    rows: tuple[str, ...] = ()
    paper: str | Literal[False] = ""
    pooled: bool = True

    @property
    def settings(self) -> list[str]:
        """One or two of them."""
        return [one for one in self.of if isinstance(one, str)]

    @property
    def first(self) -> str:
        """The first setting, or an empty text."""
        return next(iter(self.settings), "")

    @property
    def level(self) -> float | None:
        """In the place of the second setting."""
        return next((one for one in self.of if not isinstance(one, str)), None)


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
    open: tuple[str, ...] = Field(
        default=(), description="What no table has yet and a run could tell; its command."
    )
    claims: tuple[ClaimOf, ...] = ()
    learned: LearnedOf = LearnedOf()
    judged_on: tuple[str, ...] = Field(
        default=(), description="Groups of runs, the one nearest to the paper first."
    )

    @model_validator(mode="before")
    @classmethod
    def _alike(cls, values: Any) -> Any:
        alike: dict[str, dict[str, Any]] = {"tables": {}, "figures": {}}
        for kind, whole in alike.items():
            every = values.get(kind, {})
            for name, own in every.items():
                model = every.get(own.pop("like", name), {})
                whole[name] = {**model, **own}
        return {**values, **alike}

    @property
    def compared(self) -> tuple[str, ...]:
        """Names of the settings that stand in every table."""
        return tuple(name for name, setting in self.settings.items() if not setting.extra)

    def seeds_of(self, claim: ClaimOf) -> int:
        """That a row needs."""
        return max((self.tables[table].seeds for table, _ in claim.figures), default=LEAST)

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
            given = first["input"]
            if first["type"] == "missing":
                given = None  # pydantic has the table around it there
            raise FieldError(f"{name}, study.toml: {where}", given, first["msg"].lower()) from error
