"""Rows of a table as tensors: columns scaled by what was declared, never by statistics of everybody's rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.data.labels import count_classes, natural_clients, people_of
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

    def inputs(self, header: Sequence[str], file: str) -> list[str]:
        """The input columns, all of which the header has."""
        named = list(self.columns) or [c for c in header if c not in (self.target, self.client_column, self.person)]
        for name in named:
            _known(f"data.columns.{name}", name, header, file)
            if name in (self.target, self.person):
                what = "target" if name == self.target else "person's id"
                raise FieldError(f"data.columns.{name}", name, f"is the {what}: it cannot be an input as well")
        if not named:
            raise FieldError("data.columns", [], f"{file} has no column left to be an input")
        return named


@dataclass(frozen=True)
class Rows:
    """A part of a table (training or test) under the name of its file, and the decimal sign of its texts."""

    file: str
    frame: "pandas.DataFrame"
    decimal: str = "."


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
    known = labelled(train, test, spec)
    inputs = spec.inputs(list(train.frame.columns), train.file)
    x, numeric = _inputs(train, inputs, spec)
    if test is not None:
        spec.inputs(list(test.frame.columns), test.file)
    return DataSet(
        name=name,
        x=x,
        test_x=None if test is None else _inputs(test, inputs, spec)[0],
        local_columns=numeric if spec.scale == "client" else (),
        note=" ".join(part for part in (note, _note(spec)) if part),
        licence="that of the file",
        **known,
    )


def labelled(train: Rows, test: Rows | None, spec: TableSpec) -> dict[str, Any]:
    """The fields of a DataSet that follow from the target and the client column: y, test_y, classes, owner, ..."""
    parts = [part for part in (train, test) if part is not None]
    for part in parts:
        _known("data.target", spec.target, list(part.frame.columns), part.file)
    targets = [_targets(part, spec) for part in parts]
    found: dict[str, Any] = {"y": targets[0], "test_y": targets[1] if test is not None else None}
    if spec.classes:
        declared = spec.classes if isinstance(spec.classes, int) else len(spec.classes)
        labels = {f"{p.file}:{spec.target}": y.numpy() for p, y in zip(parts, targets, strict=True)}
        names = () if isinstance(spec.classes, int) else tuple(spec.classes)
        found |= {"classes": count_classes(labels, declared, spec.absent), "class_names": names}
    if spec.client_column:
        _known("data.client_column", spec.client_column, list(train.frame.columns), train.file)
        ids = _present(train, spec.client_column).astype(str).to_numpy(dtype=np.str_)
        where = f"{train.file}:{spec.client_column}"
        found["owner"], found["owners"] = natural_clients(where, ids, len(train.frame))
    if spec.person:
        if spec.person == spec.target:
            raise FieldError("data.person", spec.person, "is the target: name the column that says whose a row is")
        _known("data.person", spec.person, list(train.frame.columns), train.file)
        ids = _present(train, spec.person)
        name, place = f"{train.file}:{spec.person}", lambda row: _where(train, row, spec.person)
        found["group"] = people_of(name, ids, len(ids), place)
    return found


def _refuse(part: Rows, column: str, bad: Any, shown: Callable[[int], Any], accepted: str) -> None:
    """Refuse a column of which `bad` [N] is true somewhere, by the first such row and what is shown of it."""
    if len(rows := np.flatnonzero(bad)):
        raise FieldError(_where(part, int(rows[0]), column), shown(int(rows[0])), accepted)


def _known(field: str, name: str, header: Sequence[str], file: str) -> None:
    if name not in header:
        raise FieldError(field, name, f"is no column of {file}; {nearest(name, header)}")


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
        field, at = f"data.columns.{column}", sum(block.shape[1] for block in blocks)
        if given and all(isinstance(v, str) for v in given):
            blocks.append(np.eye(len(given))[_codes(part, column, given)])
            continue
        if given or (spec.scale == "declared"):
            low, high = _range(field, given)
            values = _bounded(part, column, low, high, spec.outside)
            blocks.append((values - low)[:, None] / (high - low) if spec.scale == "declared" else values[:, None])
        else:
            blocks.append(_numbers(part, column)[:, None])
        numeric.append(at)
    return torch.from_numpy(np.concatenate(blocks, axis=1).astype(np.float32)), tuple(numeric)


def _targets(part: Rows, spec: TableSpec) -> Tensor:
    if spec.target_range:
        low, high = spec.target_range
        values = _bounded(part, spec.target, low, high, spec.outside)
        return torch.from_numpy(((values - low) / (high - low)).astype(np.float32))
    if not isinstance(spec.classes, int):
        return torch.from_numpy(_codes(part, spec.target, spec.classes))
    values = _numbers(part, spec.target)
    _refuse(part, spec.target, values != np.floor(values), values.item, "must be the whole number of a class")
    declared, labels = spec.classes, values.astype(np.int64)
    accepted = f"must be one of the {declared} declared classes, 0 to {declared - 1}"
    _refuse(part, spec.target, (labels < 0) | (labels >= declared), labels.item, accepted)
    return torch.from_numpy(labels)


def _codes(part: Rows, column: str, accepted: Sequence[str]) -> NDArray[np.int64]:
    """The place of each text among the accepted ones, [N]."""
    texts = _present(part, column).astype(str).str.strip()
    codes = texts.map({text: i for i, text in enumerate(accepted)})
    for row in np.flatnonzero(codes.isna())[:1]:
        raise FieldError(_where(part, int(row), column), texts.iloc[row], nearest(str(texts.iloc[row]), accepted))
    return np.array(codes.to_numpy(), dtype=np.int64)


def _bounded(part: Rows, column: str, low: float, high: float, outside: str) -> NDArray[np.float64]:
    values = _numbers(part, column)
    if outside == "clip":
        return np.clip(values, low, high)
    accepted = f"is outside the declared [{low:g}, {high:g}]: widen it, or set data.outside = 'clip'"
    _refuse(part, column, (values < low) | (values > high), values.item, accepted)
    return values


def _numbers(part: Rows, column: str) -> NDArray[np.float64]:
    pd = pandas_module()
    present = _present(part, column)
    if pd.api.types.is_datetime64_any_dtype(present) or pd.api.types.is_timedelta64_dtype(present):
        raise FieldError(f"{part.file}:{column}", str(present.dtype), "must hold numbers: store a time in years")
    plain = present.str.replace(part.decimal, ".", regex=False) if part.decimal != "." else present
    try:
        values = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FieldError(f"{part.file}:{column}", str(present.dtype), f"must hold numbers ({error})") from error
    accepted = "must be a finite number; texts are declared as a list of all of them, e.g. sex = ['f', 'm']"
    _refuse(part, column, ~(np.abs(values) <= np.finfo(np.float32).max), lambda row: str(present.iloc[row]), accepted)
    return values  # type: ignore[no-any-return]


def _present(part: Rows, column: str) -> "pandas.Series[Any]":
    values = part.frame[column]
    missing = int(values.isna().sum())
    count = f" ({missing} rows in all)" if missing > 1 else ""
    said = f"must not be empty{count}: fill it in or remove the row"
    _refuse(part, column, values.isna(), lambda row: "missing", said)
    return values


def _where(part: Rows, row: int, column: str) -> str:
    line = f" (line {row + 2})" if part.file.lower().endswith((".csv", ".csv.gz")) else ""
    return f"{part.file}, row {row + 1}{line}, column {column}"


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
