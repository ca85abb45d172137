"""Conversion of a table's rows to tensors; columns are scaled by declared ranges, never by statistics of all rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.data.gaps import Gap, gap_of
from fedveil.data.labels import count_classes, data_set, require_roles
from fedveil.data.rows import Rows
from fedveil.data.sets import DataSet
from fedveil.data.several import are_lists, held_labels
from fedveil.data.values import spelt_twice
from fedveil.errors import FieldError, nearest, require_a, require_choice

Columns = Mapping[str, Any] | Sequence[str]
Classes = int | Sequence[str]

SCALES = ("declared", "client", "none")


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """Declaration of a table's columns: target, inputs with their ranges, client and person.

    Scaling by the mean and deviation of all rows would be an unprotected release of everybody's data. So a column is
    scaled by a declared range, or by each client's own rows.

    Parameters
    ----------
    target : str
        Column to predict.
    classes : int or sequence of str
        Makes the task a classification: number of classes (the target holds 0, 1, ...), or their names in order. If the
        target holds lists of labels, several labels may hold, each with its own loss (``BCEWithLogitsLoss``).
    absent : sequence of int
        Classes that may have no row in this file; any other missing class is refused.
    target_range : sequence of float
        Makes the task a regression: declared [low, high]. The target becomes (y - low) / (high - low), and errors are
        in these units.
    columns : mapping or sequence of str
        Input columns. A mapping declares each: ``age = [0, 120]`` is a numeric column scaled to 0 to 1, ``sex = ["f",
        "m"]`` has texts that become one column each. A list only names the columns, for the scales "client" and "none".
        Default: all other columns.
    client_column : str
        Column with the natural client of each row.
    person : str
        Column with the id of each row's person (a patient); never an input.
    scale : {"declared", "client", "none"}
        ``"declared"``: by the ranges in `columns`. ``"client"``: each client standardises numeric columns by its own
        training rows. ``"none"``: numbers are not scaled.
    outside : {"refuse", "clip"}
        Treatment of values outside a declared range.
    missing : mapping
        Replacement of missing values, by input column; without it they are refused. ``bp = 120``: a number (or one of
        the column's texts). ``bp = "indicator"``: the lowest declared number (for texts: no text), and one more column
        that marks the row. ``bp = {value = 120, indicator = true, marks = [-999]}``: both, and further values that mean
        missing.
    """

    target: str
    classes: Classes = 0
    absent: Sequence[int] = ()
    target_range: Sequence[float] = ()
    columns: Columns = ()
    client_column: str = ""
    person: str = ""
    scale: str = "declared"
    outside: str = "refuse"
    missing: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse invalid options, and options that contradict each other."""
        require_choice("data.scale", self.scale, SCALES)
        self._require_kinds()
        require_choice("data.outside", self.outside, ("refuse", "clip"))
        self._require_target()
        self._require_columns()
        roles = {
            "data.target": self.target,
            "data.client_column": self.client_column,
            "data.person": self.person,
        }
        require_roles(roles)
        for name in self.missing or ():
            self.gap(name)

    def _require_kinds(self) -> None:
        """Refuse options of wrong types (a configuration file is checked before, a call from Python only here)."""
        for option in ("target", "client_column", "person"):
            require_a(f"data.{option}", getattr(self, option), str, "must be the name of a column")
        gaps = 'must be a mapping of columns, such as {"bp": 120}'
        require_a("data.missing", self.missing or {}, Mapping, gaps)
        inputs = "must be a list of columns, or a mapping of each to its range or texts"
        require_a("data.columns", self.columns, (Mapping, Sequence), inputs)
        for name in self.columns:
            require_a("data.columns", name, str, inputs)
        require_a("data.classes", self.classes, (int, Sequence), "must be names, or their number")
        require_a("data.absent", self.absent, Sequence, "must be a list of class numbers")
        for label in self.absent:
            require_a("data.absent", label, int, "must be a list of class numbers")
        require_a("data.target_range", self.target_range, Sequence, "must be [low, high]")

    def _require_target(self) -> None:
        """Refuse a target with neither classes nor a range, or with both."""
        if bool(self.classes) == bool(len(self.target_range)):
            classes = "data.classes, a list of names or a number (3 for 0 to 2)"
            accepted = f"say what the target is: {classes}, or for a regression data.target_range = [low, high]"
            raise FieldError("data.classes", self.classes, accepted)
        if self.target_range:
            _range("data.target_range", self.target_range)
        if not isinstance(self.classes, int):
            if len(set(self.classes)) != len(self.classes):
                raise FieldError("data.classes", list(self.classes), "must name each class once")
            _once("data.classes", self.classes)

    def _require_columns(self) -> None:
        """Refuse inputs without a declared range where the scale needs one, and ranges of unknown form."""
        if self.scale == "declared" and not isinstance(self.columns, Mapping):
            accepted = (
                "needs data.columns as a table that declares each input: age = [0, 120] scales it to 0 to 1, "
                "sex = ['f', 'm'] makes one column a text. Means and ranges of all rows together would be a release "
                "of private statistics; data.scale = 'client' (each client by its own) or 'none' needs no table"
            )
            raise FieldError("data.scale", self.scale, accepted)
        for name, declared in self.declared.items():
            if not isinstance(declared, list | tuple):
                accepted = "must be [low, high] for numbers, as in age = [0, 120], or a list of all texts there are"
                raise FieldError(f"data.columns.{name}", declared, accepted)
            _once(f"data.columns.{name}", declared)

    @property
    def declared(self) -> Mapping[str, Any]:
        """Declared ranges and texts, by input column; empty if columns are only named."""
        return self.columns if isinstance(self.columns, Mapping) else {}

    def gap(self, column: str) -> Gap | None:
        """Return the replacement of a column's missing values; None if they are refused."""
        if not self.missing or column not in self.missing:
            return None
        return gap_of(column, self.missing[column], self.declared.get(column, ()))

    def inputs(self, rows: "Rows") -> list[str]:
        """Return the input columns; refuse one that the rows do not have."""
        others = (self.target, self.client_column, self.person, *rows.index)
        named = list(self.columns)
        if not named:
            named = [column for column in rows.frame.columns if column not in others]
        for name in named:
            rows.require(f"data.columns.{name}", name)
            if name in (self.target, self.person):
                what = "target" if name == self.target else "person's id"
                raise FieldError(
                    f"data.columns.{name}", name, f"is the {what}: it cannot be an input as well"
                )
        if not named:
            raise FieldError("data.columns", [], f"{rows.file} has no column left to be an input")
        for name in self.missing or ():
            if name not in named:
                raise FieldError(
                    f"data.missing.{name}", name, f"is no input; {nearest(name, named)}"
                )
        return named


def from_rows(
    name: str,
    train: Rows,
    test: Rows | None,
    spec: TableSpec,
    note: str = "",
) -> DataSet:
    """Convert a table's rows to a data set.

    Parameters
    ----------
    name : str
        Name of the source.
    train, test : Rows
        Rows to distribute to clients, and rows of the server's test half.
    spec : TableSpec
        Meaning of the columns.
    note : str
        Text with which the set's note begins.

    Raises
    ------
    FieldError
        For an unusable value; the text names file, row (from 1, without the header) and column.
    """
    if test is not None and spec.scale == "client":
        accepted = "cannot scale the server's test rows, which belong to no client: use 'declared' or leave them out"
        raise FieldError("data.scale", spec.scale, accepted)
    inputs = spec.inputs(train)
    rows = [train]
    if test is not None:
        spec.inputs(test)
        rows.append(test)
    x: list[Tensor] = []
    numeric: tuple[int, ...] = ()
    for part in rows:
        own, numeric = inputs_of(part, inputs, spec)
        x.append(own)
    notes = [one for one in (note, _note(spec, train)) if one]
    return labelled(
        rows,
        x,
        spec,
        name=name,
        local_columns=numeric if spec.scale == "client" else (),
        columns=_sources(inputs, spec),
        inputs=_constants(inputs, spec),
        note=" ".join(notes),
        licence="that of the file",
    )


def _sources(inputs: Sequence[str], spec: TableSpec) -> tuple[str, ...]:
    """Return the file's column behind each of the F columns that `inputs_of` makes, in order."""
    sources: list[str] = []
    for column in inputs:
        width = 1
        if _are_texts(spec.declared.get(column, ())):
            width = len(spec.declared[column])
        gap = spec.gap(column)
        if gap is not None and gap.indicator:
            width += 1
        sources += [column] * width
    return tuple(sources)


def _are_texts(declared: Sequence[Any]) -> bool:
    """Whether a column is declared by its texts, of which each becomes a column."""
    return bool(len(declared)) and all(isinstance(value, str) for value in declared)


def _constants(inputs: Sequence[str], spec: TableSpec) -> dict[str, Any]:
    """Return the declarations that turn a row into an example, in the order of the columns."""
    columns: list[list[Any]] = []
    missing: dict[str, Any] = {}
    for name in inputs:
        columns.append([name, list(spec.declared.get(name, ()))])
        if spec.missing and name in spec.missing:
            missing[name] = spec.missing[name]
    return {
        "kind": "table",
        "columns": columns,
        "scale": spec.scale,
        "outside": spec.outside,
        "missing": missing,
        "target": spec.target,
        "target_range": list(spec.target_range),
    }


def labelled(
    rows: Sequence[Rows],
    x: Sequence[Tensor],
    spec: TableSpec,
    **known: Any,
) -> DataSet:
    """Make a data set from rows and their inputs; a second entry is the test half."""
    for part in rows:
        part.require("data.target", spec.target)
    train = rows[0]
    targets = [_targets(part, spec) for part in rows]
    if spec.classes:
        known |= _classes_in(rows, targets, spec, known.get("note", ""))
    clients = None
    if spec.client_column:
        column = spec.client_column
        train.require("data.client_column", column)
        clients = (f"{train.file}:{column}", train.sites(column), partial(train.where, column))
    people = None
    if spec.person:
        column = spec.person
        train.require("data.person", column)
        people = (f"{train.file}:{column}", train.present(column), partial(train.where, column))
    halves = list(zip(x, targets, strict=True))
    return data_set(halves, clients, people, **known)


def _classes_in(
    rows: Sequence[Rows],
    targets: Sequence[Tensor],
    spec: TableSpec,
    note: str,
) -> dict[str, Any]:
    """Return number and names of the classes; if several labels may hold, also a note with their names."""
    names: tuple[str, ...] = ()
    if not isinstance(spec.classes, int):
        names = tuple(spec.classes)
    if targets[0].is_floating_point():
        shown = names or tuple(map(str, range(int(spec.classes))))  # type: ignore[arg-type]
        return {"note": f"{note} Outputs say which labels hold: {', '.join(shown)}.".strip()}
    labels = {
        f"{part.file}:{spec.target}": y.numpy() for part, y in zip(rows, targets, strict=True)
    }
    declared = spec.classes if isinstance(spec.classes, int) else len(names)
    return {"classes": count_classes(labels, declared, spec.absent), "class_names": names}


def _note(spec: TableSpec, rows: Rows) -> str:
    """Describe the columns, for a report."""
    notes: list[str] = []
    used = (*spec.columns, spec.target, spec.client_column)
    index = [name for name in rows.index if name not in used]
    if index:
        notes.append(
            f"No inputs: {', '.join(index)}, in which pandas numbers the rows (data.columns may name them)."
        )
    if spec.missing:
        filled = [f"{name}: {spec.gap(name)}" for name in spec.missing]
        notes.append(f"What stands in for missing values: {'; '.join(filled)}.")
    if spec.target_range:
        low, high = spec.target_range
        notes.append(f"Target {spec.target} in units of {high - low:g} above {low:g} (declared).")
    if spec.scale == "client":
        notes.append("Numeric inputs are standardised by each client's own training rows.")
    if spec.outside == "clip":
        notes.append("Values outside the declared ranges are clipped to them.")
    return " ".join(notes)


def inputs_of(
    part: Rows,
    inputs: Sequence[str],
    spec: TableSpec,
) -> tuple[Tensor, tuple[int, ...]]:
    """Return inputs [N, F] in float32, and the indices of the numeric ones among the F."""
    blocks: list[NDArray[Any]] = []
    numeric: list[int] = []
    width = 0
    for column in inputs:
        given = list(spec.declared.get(column, ()))
        gap = spec.gap(column)
        if _are_texts(given):
            block, missing = _one_hot(part, column, given, gap)
        else:
            numeric.append(width)
            block, missing = _scaled(part, column, given, gap, spec)
        blocks.append(block)
        width += block.shape[1]
        if gap is not None and gap.indicator:
            blocks.append(missing[:, None])
            width += 1
    joined = np.concatenate(blocks, axis=1).astype(np.float32)
    return torch.from_numpy(joined), tuple(numeric)


def _one_hot(
    part: Rows,
    column: str,
    given: list[str],
    gap: Gap | None,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return one column for each text [N, T], and a mask of missing values."""
    codes = part.codes(column, given, gap)
    missing = codes < 0
    if gap is not None and gap.value is not None:
        codes[missing] = given.index(str(gap.value))
    texts = len(given)
    rows = np.concatenate([np.eye(texts), np.zeros((1, texts))])  # the last one for code -1
    return rows[codes], missing


def _scaled(
    part: Rows,
    column: str,
    given: list[Any],
    gap: Gap | None,
    spec: TableSpec,
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the scaled numbers of a column [N, 1], and a mask of missing values."""
    if not given and spec.scale != "declared":
        values = part.numbers(column, gap)
    else:
        low, high = _range(f"data.columns.{column}", given)
        values = part.bounded(column, low, high, spec.outside, gap)
    missing = np.isnan(values)
    if gap is not None:
        filler = given[0] if gap.value is None else gap.value
        values = np.where(missing, filler, values)
    if spec.scale == "declared":
        values = (values - low) / (high - low)
    return values[:, None], missing


def _targets(part: Rows, spec: TableSpec) -> Tensor:
    """Return classes [N], targets [N], or for lists of labels which of them hold [N, L]."""
    if spec.target_range:
        low, high = spec.target_range
        values = part.bounded(spec.target, low, high, spec.outside)
        scaled = (values - low) / (high - low)
        return torch.from_numpy(scaled.astype(np.float32))
    if are_lists(part.frame[spec.target]):
        held = held_labels(part.frame[spec.target], spec.classes, partial(part.where, spec.target))
        return torch.from_numpy(held)
    if not isinstance(spec.classes, int):
        return torch.from_numpy(part.codes(spec.target, spec.classes))
    values = part.numbers(spec.target)
    part.refuse(
        spec.target, values != np.floor(values), values.item, "must be the whole number of a class"
    )
    accepted = f"must be one of the {spec.classes} declared classes, 0 to {spec.classes - 1}"
    classes = values.astype(np.int64)
    part.refuse(spec.target, (values < 0) | (values >= spec.classes), classes.item, accepted)
    return torch.from_numpy(classes)


def _range(field: str, given: Sequence[Any]) -> tuple[float, float]:
    """Return the ends of a declared range."""
    if len(given) == 2 and all(_is_finite(end) for end in given):
        low, high = given
        if low < high:
            return float(low), float(high)
    raise FieldError(
        field, list(given), "must be [low, high], or a list of texts for a column of texts"
    )


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return bool(np.isfinite(value))


def _once(field: str, texts: Sequence[Any]) -> None:
    """Refuse texts that differ only by spaces around them."""
    pair = spelt_twice([text for text in texts if isinstance(text, str)], str.strip)
    if pair:
        raise FieldError(
            field, list(pair), "are one text but for spaces, which are not read: write it once"
        )
