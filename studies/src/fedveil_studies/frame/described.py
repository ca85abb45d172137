"""Tables of a study's TOML file: settings, scenarios, rows, scales, readings, tables, figures and claims."""

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
    """``[scenarios]``: the configuration with which runs begin, a preset or a file; plain text is its name."""

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

    With `sigma_of` it is global DP with the average sigma of another setting's run. An `extra` setting is only in
    tables that name it.
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
    """``[scales.NAME]``: size of the experiments.

    `present` sets only keys that a configuration has; `without` names changes that are not made at this scale.
    `seconds` are those of one core that a run took, as recorded.
    """

    what: str
    also: str = ""
    set: Keys = {}
    present: Keys = {}
    without: tuple[str, ...] = ()
    facts: Mapping[str, float] = {}
    seconds: float | None = Field(default=None, gt=0)


class ReadingOf(_Table):
    """``[readings.NAME]``: another reading of the paper, of one row or all; `settings` sets keys of ``[privacy]``."""

    what: str
    row: str = ""
    set: Keys = {}
    present: Keys = {}
    settings: Mapping[str, Keys] = {}
    flags: tuple[str, ...] = ()


class MeasureOf(_Table):
    """How a figure is measured: the name of a measure, what it is of, and further arguments; or just its name."""

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
        """Return the measure's arguments, with `of` inserted where a text names it."""
        every = {"of": self.of, **(self.model_extra or {})}
        return {k: v.format(of=of) if isinstance(v, str) else v for k, v in every.items()}


class Part(_Table):
    """Lines of a table or figure: one for each scenario, setting, row, `of` and figure.

    Attributes
    ----------
    scenarios, settings, rows : tuple of str
        Names; empty settings or rows mean all that are not extra.
    of : tuple of str
        A further axis, for measures and labels that name it ``{of}``.
    figures : mapping
        Name of a figure (in a plot: of a line, if `line` asks for it) to its measure.
    cells : tuple of str
        Changes of the configuration by name (`Study.change`, or ``[changes]``), one for each run that a measure needs.
    set : mapping
        Dotted keys to set in the configuration.
    probe : str
        Name of a probe that measures more after each round.
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
    """``[tables.N]``: the lines of one `Part`, or of several in `parts`, which share the other keys.

    With ``like = "M"`` it is a copy of table M, except for its own keys. An `extra` one is only made where it is named.
    `seconds` replace those of a scale, by its name, where the table's runs take another time.
    """

    title: str
    parts: tuple[Part, ...]
    extra: bool = False
    seconds: Mapping[str, float] = {}
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
        """Rows of the table; empty means all rows."""
        every = [part.rows for part in self.parts]
        if all(every):
            return tuple(dict.fromkeys(row for rows in every for row in rows))
        return ()


class FigureOf(TableOf):
    """``[figures.N]``: like a table, with curves as measures; `level` names a table's figure whose printed values are drawn.

    With `heat` it is a heat map: each line is a row with a square per x of its curve.
    """

    x: str
    y: str = ""
    diagonal: bool = False
    heat: bool = False
    level: tuple[str, str] | None = None


class NoteOf(_Table):
    """``[[notes]]``: note below tables and figures; without names it is below all."""

    text: str
    beside: tuple[str, ...] = ()


class LearnedOf(_Table):
    """``[learned]``: the figure that shows whether anything was learned; if not, claims are not judged.

    Attributes
    ----------
    figures : mapping
        Table and figure to look at, by table. Default: the table's own accuracy.
    guess : float
        Value of the figure if nothing was learned. Default: for an accuracy, the share of the largest class.
    first : bool
        Whether the first setting itself must have learned, except for claims about that figure.
    """

    figures: Mapping[str, tuple[str, str]] = {}
    guess: float | None = None
    first: bool = False


class ClaimOf(_Table):
    """``[[claims]]``: a claim of the paper, and how it is judged.

    Attributes
    ----------
    name, says, note : str
        Name on the page, place in the paper, and a note on the verdict.
    answers : tuple of str
        Names of ``[statements]`` that it judges.
    figures : tuple of pairs
        Pairs of table and figure.
    of : tuple
        First setting, and second setting or a level; with a level, an empty first means any setting.
    expect : str
        "above", "below" or "alike": how the first lies to the second; "guarantee": whether its runs promise anything;
        or the name of a judge (`Study.judge`, `Study.audit`).
    margin : float
        Largest difference that counts as none; for "alike" and levels, as alike.
    rows : tuple of str
        Labels of its rows. Default: all. Under a reading of one row, also of that row.
    paper : str or False
        The paper's figure if no printed difference gives it. False: the paper does not claim it.
    pooled : bool
        Whether all rows expect the same direction, so that their mean is meaningful.
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
        """The claim's one or two settings."""
        return [one for one in self.of if isinstance(one, str)]

    @property
    def first(self) -> str:
        """First setting, or ""."""
        return next(iter(self.settings), "")

    @property
    def level(self) -> float | None:
        """Level that replaces the second setting, or None."""
        return next((one for one in self.of if not isinstance(one, str)), None)


class Described(_Table):
    """Content of a study.toml."""

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
        """Names of the settings in every table."""
        return tuple(name for name, setting in self.settings.items() if not setting.extra)

    def seeds_of(self, claim: ClaimOf) -> int:
        """Number of seeds that a row of the claim needs."""
        return max((self.tables[table].seeds for table, _ in claim.figures), default=LEAST)

    @classmethod
    def read(cls, text: str, name: str) -> "Described":
        """Parse and check the text of a study.toml.

        Raises
        ------
        FieldError
            If a key does not fit; the message names the first one.
        """
        try:
            return cls.model_validate(toml_of(text))
        except tomllib.TOMLDecodeError as error:
            raise FieldError(name, "study.toml", f"is no TOML: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            given, accepted = first["input"], first["msg"].lower()
            if first["type"] == "missing":  # pydantic has the table around it there
                given, accepted = None, "a value is needed"
            raise FieldError(f"{name}, study.toml: {where}", given, accepted) from error
