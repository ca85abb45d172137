"""Rows of a table as tensors: columns scaled by what was declared, never by statistics of everybody's rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.data.labels import count_classes, data_set
from fedveil.data.sets import DataSet
from fedveil.errors import FieldError, nearest, require_choice
from fedveil.registry import optional

if TYPE_CHECKING:
    import pandas

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
        Makes it a classification: the number of classes (the target holds 0, 1, ...), or their names in order.
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

    def inputs(self, rows: "Rows") -> list[str]:
        """The input columns, all of which the rows have."""
        others = (self.target, self.client_column, self.person)
        named = list(self.columns) or [column for column in rows.frame.columns if column not in others]
        for name in named:
            rows.require(f"data.columns.{name}", name)
            if name in (self.target, self.person):
                what = "target" if name == self.target else "person's id"
                raise FieldError(f"data.columns.{name}", name, f"is the {what}: it cannot be an input as well")
        if not named:
            raise FieldError("data.columns", [], f"{rows.file} has no column left to be an input")
        return named


@dataclass(frozen=True)
class Rows:
    """A part of a table (training or test) under the name of its file, and the decimal sign of its texts."""

    file: str
    frame: "pandas.DataFrame"
    decimal: str = "."

    def where(self, column: str, row: int) -> str:
        """What a refusal calls a value."""
        line = f" (line {row + 2})" if self.file.lower().endswith((".csv", ".csv.gz")) else ""
        return f"{self.file}, row {row + 1}{line}, column {column}"

    def require(self, field: str, column: str) -> None:
        """Refuse a column that is not there."""
        if column not in self.frame.columns:
            raise FieldError(field, column, f"is no column of {self.file}; {nearest(column, self.frame.columns)}")

    def refuse(self, column: str, bad: Any, shown: Callable[[int], Any], accepted: str) -> None:
        """Refuse a column of which `bad` [N] is true somewhere, by the first such row and what is shown of it."""
        for row in np.flatnonzero(bad)[:1].tolist():
            raise FieldError(self.where(column, row), shown(row), accepted)

    def present(self, column: str) -> "pandas.Series[Any]":
        """The values of a column without a gap."""
        values = self.frame[column]
        missing = int(values.isna().sum())
        count = f" ({missing} rows in all)" if missing > 1 else ""
        said = f"must not be empty{count}: fill it in or remove the row"
        self.refuse(column, values.isna(), lambda row: "missing", said)
        return values

    def numbers(self, column: str) -> NDArray[np.float64]:
        """The finite numbers of a column."""
        pd, present = pandas_module(), self.present(column)
        if pd.api.types.is_datetime64_any_dtype(present) or pd.api.types.is_timedelta64_dtype(present):
            raise FieldError(f"{self.file}:{column}", str(present.dtype), "must hold numbers: store a time in years")
        plain = present.str.replace(self.decimal, ".", regex=False) if self.decimal != "." else present
        try:
            values: NDArray[np.float64] = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise FieldError(f"{self.file}:{column}", str(present.dtype), f"must hold numbers ({error})") from error
        accepted = "must be a finite number; texts are declared as a list of all of them, e.g. sex = ['f', 'm']"
        unfit = ~(np.abs(values) <= np.finfo(np.float32).max)
        self.refuse(column, unfit, lambda row: str(present.iloc[row]), accepted)
        return values

    def bounded(self, column: str, low: float, high: float, outside: str) -> NDArray[np.float64]:
        """The numbers of a column from low to high; those outside are refused or clipped."""
        values = self.numbers(column)
        if outside == "clip":
            return np.clip(values, low, high)
        accepted = f"is outside the declared [{low:g}, {high:g}]: widen it, or set data.outside = 'clip'"
        self.refuse(column, (values < low) | (values > high), values.item, accepted)
        return values

    def codes(self, column: str, accepted: Sequence[str]) -> NDArray[np.int64]:
        """The place of each text of a column among the accepted ones, [N]."""
        texts = self.present(column).astype(str).str.strip()
        codes = texts.map({text: i for i, text in enumerate(accepted)})
        for row in np.flatnonzero(codes.isna())[:1].tolist():
            raise FieldError(self.where(column, row), texts.iloc[row], nearest(str(texts.iloc[row]), accepted))
        return np.array(codes.to_numpy(), dtype=np.int64)


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
    made = [_inputs(part, inputs, spec) for part in rows]
    return labelled(
        rows,
        [x for x, _ in made],
        spec,
        name=name,
        local_columns=made[0][1] if spec.scale == "client" else (),
        note=" ".join(part for part in (note, _note(spec)) if part),
        licence="that of the file",
    )


def labelled(rows: Sequence[Rows], x: Sequence[Tensor], spec: TableSpec, **known: Any) -> DataSet:
    """A set from rows, those of its test half too if it has one, and their inputs, however these were made."""
    for part in rows:
        part.require("data.target", spec.target)
    targets, train = [_targets(part, spec) for part in rows], rows[0]
    if spec.classes:
        names = () if isinstance(spec.classes, int) else tuple(spec.classes)
        labels = {f"{part.file}:{spec.target}": y.numpy() for part, y in zip(rows, targets, strict=True)}
        declared = spec.classes if isinstance(spec.classes, int) else len(names)
        known |= {"classes": count_classes(labels, declared, spec.absent), "class_names": names}
    clients, people = None, None
    if spec.client_column:
        train.require("data.client_column", spec.client_column)
        ids = train.present(spec.client_column).astype(str).to_numpy(dtype=np.str_)
        clients = f"{train.file}:{spec.client_column}", ids
    if spec.person:
        if spec.person == spec.target:
            raise FieldError("data.person", spec.person, "is the target: name the column that says whose a row is")
        train.require("data.person", spec.person)
        place = partial(train.where, spec.person)
        people = f"{train.file}:{spec.person}", train.present(spec.person), place
    return data_set(list(zip(x, targets, strict=True)), clients, people, **known)


def _note(spec: TableSpec) -> str:
    said = []
    if spec.target_range:
        low, high = spec.target_range
        said.append(f"Target {spec.target} in units of {high - low:g} above {low:g} (declared).")
    if spec.scale == "client":
        said.append("Numeric inputs are standardised by each client's own training rows.")
    if spec.outside == "clip":
        said.append("Values outside the declared ranges are clipped to them.")
    return " ".join(said)


def _inputs(part: Rows, inputs: Sequence[str], spec: TableSpec) -> tuple[Tensor, tuple[int, ...]]:
    """[N, F] float32, and which of the F are numeric."""
    blocks: list[NDArray[Any]] = []
    numeric: list[int] = []
    declared = spec.columns if isinstance(spec.columns, Mapping) else {}
    for column in inputs:
        given = list(declared.get(column, ()))
        if given and all(isinstance(v, str) for v in given):
            blocks.append(np.eye(len(given))[part.codes(column, given)])
            continue
        numeric.append(sum(block.shape[1] for block in blocks))
        if given or spec.scale == "declared":
            low, high = _range(f"data.columns.{column}", given)
            values = part.bounded(column, low, high, spec.outside)
            values = (values - low) / (high - low) if spec.scale == "declared" else values
        else:
            values = part.numbers(column)
        blocks.append(values[:, None])
    return torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32)), tuple(numeric)


def _targets(part: Rows, spec: TableSpec) -> Tensor:
    if spec.target_range:
        low, high = spec.target_range
        values = part.bounded(spec.target, low, high, spec.outside)
        return torch.from_numpy(((values - low) / (high - low)).astype(np.float32))
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


def pandas_module() -> Any:
    """Pandas itself.

    Raises
    ------
    FedVeilError
        If it is not installed.
    """
    return optional("pandas", "reading tables needs pandas", '"fedveil[data]"')
