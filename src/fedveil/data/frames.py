"""Rows of a table as tensors: columns scaled by what was declared, never by statistics of everybody's rows."""

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
from fedveil.errors import FieldError, nearest, require_choice

Columns = Mapping[str, Any] | Sequence[str]
Classes = int | Sequence[str]

SCALES = ("declared", "client", "none")


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """What the columns of a table mean.

    Scaling inputs by the mean and deviation of all rows would need statistics of everybody's private data: computing
    them is a release that nobody protects or accounts for. So a column is scaled by what was declared beforehand, or by
    each client alone, and there is no third way.

    Parameters
    ----------
    target : str
        The column to predict.
    classes : int or sequence of str
        Makes it a classification: the number of classes (the target holds 0, 1, ...), or their names in order. Of a
        target that holds lists, the labels of which several may hold; its loss is that of each (``BCEWithLogitsLoss``).
    absent : sequence of int
        Classes that are meant to have no row here; any other gap is refused.
    target_range : sequence of float
        Makes it a regression: [low, high], declared; the target becomes (y - low) / (high - low), and so do errors.
    columns : mapping or sequence of str
        The inputs. A mapping declares each: ``age = [0, 120]`` a numeric column scaled to 0 to 1, ``sex = ["f", "m"]``
        texts, one column each. A list only names them, for the other two scales. Default: all other columns.
    client_column : str
        Says which natural client a row belongs to.
    person : str
        The column that says whose row it is (a patient's id); never an input.
    scale : {"declared", "client", "none"}
        ``"client"``: each client standardises numeric columns by its own training rows when the data are dealt out.
        ``"none"``: numbers are taken as they are.
    outside : {"refuse", "clip"}
        What to do with values outside a declared range.
    missing : mapping
        What stands in for missing values, by input column; without it they are refused. ``bp = 120``: a number (or one
        of the column's texts). ``bp = "indicator"``: the lowest declared number (of texts: none), and one more column
        that says so. ``bp = {value = 120, indicator = true, marks = [-999]}``: both, and further signs of a gap.
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
        """Refuse what cannot be meant."""
        require_choice("data.scale", self.scale, SCALES)
        require_choice("data.outside", self.outside, ("refuse", "clip"))
        if bool(self.classes) == bool(len(self.target_range)):
            classes = "data.classes, a list of names or a number (3 for 0 to 2)"
            accepted = f"say what the target is: {classes}, or for a regression data.target_range = [low, high]"
            raise FieldError("data.classes", self.classes, accepted)
        if self.target_range:
            _range("data.target_range", self.target_range)
        elif not isinstance(self.classes, int) and len(set(self.classes)) != len(self.classes):
            raise FieldError("data.classes", list(self.classes), "must name each class once")
        if self.scale == "declared" and not isinstance(self.columns, Mapping):
            accepted = (
                "needs data.columns as a table that declares each input: age = [0, 120] scales it to 0 to 1, "
                "sex = ['f', 'm'] makes one column a text. Means and ranges of all rows together would be a release "
                "of private statistics; data.scale = 'client' (each client by its own) or 'none' needs no table"
            )
            raise FieldError("data.scale", self.scale, accepted)
        for name, declared in self.columns.items() if isinstance(self.columns, Mapping) else ():
            if not isinstance(declared, list | tuple):
                accepted = "must be [low, high] for numbers, as in age = [0, 120], or a list of all texts there are"
                raise FieldError(f"data.columns.{name}", declared, accepted)
            _once(f"data.columns.{name}", declared)
        if not isinstance(self.classes, int):
            _once("data.classes", self.classes)
        require_roles(
            {"data.target": self.target, "data.client_column": self.client_column, "data.person": self.person}
        )
        for name in self.missing or ():
            self.gap(name)

    def gap(self, column: str) -> Gap | None:
        """What stands in for the missing values of a column; None where they are refused."""
        declared = self.columns.get(column, ()) if isinstance(self.columns, Mapping) else ()
        return gap_of(column, self.missing[column], declared) if self.missing and column in self.missing else None

    def inputs(self, rows: "Rows") -> list[str]:
        """The input columns, all of which the rows have."""
        others = (self.target, self.client_column, self.person)
        named = list(self.columns) or [c for c in rows.frame.columns if c not in (*others, *rows.index)]
        for name in named:
            rows.require(f"data.columns.{name}", name)
            if name in (self.target, self.person):
                what = "target" if name == self.target else "person's id"
                raise FieldError(f"data.columns.{name}", name, f"is the {what}: it cannot be an input as well")
        if not named:
            raise FieldError("data.columns", [], f"{rows.file} has no column left to be an input")
        for name in self.missing or ():
            if name not in named:
                raise FieldError(f"data.missing.{name}", name, f"is no input; {nearest(name, named)}")
        return named


def from_rows(name: str, train: Rows, test: Rows | None, spec: TableSpec, note: str = "") -> DataSet:
    """Turn rows into a data set.

    Parameters
    ----------
    name : str
        Of the source.
    train, test : Rows
        Rows to deal out, and those of the server's test half.
    spec : TableSpec
        What the columns mean.
    note : str
        Put before what the scaling has to say.

    Raises
    ------
    FieldError
        Naming file, row (from 1, the header not counted) and column of a value that cannot be used.
    """
    if test is not None and spec.scale == "client":
        accepted = "cannot scale the server's test rows, which belong to no client: use 'declared' or leave them out"
        raise FieldError("data.scale", spec.scale, accepted)
    rows, inputs = [train] if test is None else [train, test], spec.inputs(train)
    for part in rows:
        spec.inputs(part)
    made = [inputs_of(part, inputs, spec) for part in rows]
    return labelled(
        rows,
        [x for x, _ in made],
        spec,
        name=name,
        local_columns=made[0][1] if spec.scale == "client" else (),
        inputs=_constants(inputs, spec),
        note=" ".join(part for part in (note, _note(spec, train)) if part),
        licence="that of the file",
    )


def _constants(inputs: Sequence[str], spec: TableSpec) -> dict[str, Any]:
    """What turns another row into an example: columns in order, with what was declared of each."""
    declared = spec.columns if isinstance(spec.columns, Mapping) else {}
    return {
        "kind": "table",
        "columns": [[name, list(declared.get(name, ()))] for name in inputs],
        "scale": spec.scale,
        "outside": spec.outside,
        "missing": {name: spec.missing[name] for name in inputs if spec.missing and name in spec.missing},
        "target": spec.target,
        "target_range": list(spec.target_range),
    }


def labelled(rows: Sequence[Rows], x: Sequence[Tensor], spec: TableSpec, **known: Any) -> DataSet:
    """A set from rows, those of its test half too if it has one, and their inputs, however these were made."""
    for part in rows:
        part.require("data.target", spec.target)
    targets, train = [_targets(part, spec) for part in rows], rows[0]
    if spec.classes and targets[0].is_floating_point():
        names = [*range(spec.classes)] if isinstance(spec.classes, int) else spec.classes
        known["note"] = f"{known.get('note', '')} Outputs say which labels hold: {', '.join(map(str, names))}.".strip()
    elif spec.classes:
        names = () if isinstance(spec.classes, int) else tuple(spec.classes)
        labels = {f"{part.file}:{spec.target}": y.numpy() for part, y in zip(rows, targets, strict=True)}
        declared = spec.classes if isinstance(spec.classes, int) else len(names)
        known |= {"classes": count_classes(labels, declared, spec.absent), "class_names": names}
    clients, people = None, None
    if spec.client_column:
        train.require("data.client_column", spec.client_column)
        clients = (
            f"{train.file}:{spec.client_column}",
            train.sites(spec.client_column),
            partial(train.where, spec.client_column),
        )
    if spec.person:
        train.require("data.person", spec.person)
        place = partial(train.where, spec.person)
        people = f"{train.file}:{spec.person}", train.present(spec.person), place
    return data_set(list(zip(x, targets, strict=True)), clients, people, **known)


def _note(spec: TableSpec, rows: Rows) -> str:
    said = []
    if index := [name for name in rows.index if name not in (*spec.columns, spec.target, spec.client_column)]:
        said.append(f"No inputs: {', '.join(index)}, in which pandas numbers the rows (data.columns may name them).")
    filled = [f"{name}: {gap}" for name in spec.missing or () if (gap := spec.gap(name))]
    if filled:
        said.append(f"What stands in for missing values: {'; '.join(filled)}.")
    if spec.target_range:
        low, high = spec.target_range
        said.append(f"Target {spec.target} in units of {high - low:g} above {low:g} (declared).")
    if spec.scale == "client":
        said.append("Numeric inputs are standardised by each client's own training rows.")
    if spec.outside == "clip":
        said.append("Values outside the declared ranges are clipped to them.")
    return " ".join(said)


def inputs_of(part: Rows, inputs: Sequence[str], spec: TableSpec) -> tuple[Tensor, tuple[int, ...]]:
    """[N, F] float32, and which of the F are numeric."""
    blocks: list[NDArray[Any]] = []
    numeric: list[int] = []
    declared = spec.columns if isinstance(spec.columns, Mapping) else {}
    for column in inputs:
        given, gap = list(declared.get(column, ())), spec.gap(column)
        if given and all(isinstance(v, str) for v in given):
            block, missing = _one_hot(part, column, given, gap)
        else:
            numeric.append(sum(block.shape[1] for block in blocks))
            block, missing = _scaled(part, column, given, gap, spec)
        blocks.append(block)
        if gap is not None and gap.indicator:
            blocks.append(missing[:, None])
    return torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32)), tuple(numeric)


def _one_hot(part: Rows, column: str, given: list[str], gap: Gap | None) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """One column a text [N, T], and where a value is missing."""
    codes = part.codes(column, given, gap)
    missing = codes < 0
    if gap is not None and gap.value is not None:
        codes[missing] = given.index(str(gap.value))
    return np.concatenate([np.eye(len(given)), np.zeros((1, len(given)))])[codes], missing


def _scaled(
    part: Rows, column: str, given: list[Any], gap: Gap | None, spec: TableSpec
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The numbers of a column [N, 1], and where one is missing."""
    if not given and spec.scale != "declared":
        values = part.numbers(column, gap)
    else:
        low, high = _range(f"data.columns.{column}", given)
        values = part.bounded(column, low, high, spec.outside, gap)
    missing = np.isnan(values)
    if gap is not None:
        values = np.where(missing, given[0] if gap.value is None else gap.value, values)
    if spec.scale == "declared":
        values = (values - low) / (high - low)
    return values[:, None], missing


def _targets(part: Rows, spec: TableSpec) -> Tensor:
    if spec.target_range:
        low, high = spec.target_range
        values = part.bounded(spec.target, low, high, spec.outside)
        return torch.from_numpy(((values - low) / (high - low)).astype(np.float32))
    if are_lists(part.frame[spec.target]):
        held = held_labels(part.frame[spec.target], spec.classes, partial(part.where, spec.target))
        return torch.from_numpy(held)
    if not isinstance(spec.classes, int):
        return torch.from_numpy(part.codes(spec.target, spec.classes))
    values = part.numbers(spec.target)
    part.refuse(spec.target, values != np.floor(values), values.item, "must be the whole number of a class")
    accepted = f"must be one of the {spec.classes} declared classes, 0 to {spec.classes - 1}"
    part.refuse(spec.target, (values < 0) | (values >= spec.classes), lambda row: int(values[row]), accepted)
    return torch.from_numpy(values.astype(np.int64))


def _range(field: str, given: Sequence[Any]) -> tuple[float, float]:
    numbers = [v for v in given if isinstance(v, int | float) and not isinstance(v, bool) and np.isfinite(v)]
    if len(given) != 2 or len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise FieldError(field, list(given), "must be [low, high], or a list of texts for a column of texts")
    return float(numbers[0]), float(numbers[1])


def _once(field: str, texts: Sequence[Any]) -> None:
    """Refuse texts that are the same but for spaces around them."""
    if pair := spelt_twice((text for text in texts if isinstance(text, str)), str.strip):
        raise FieldError(field, list(pair), "are one text but for spaces, which are not read: write it once")
