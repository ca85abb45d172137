"""A first configuration for somebody's data: what `fedveil init` writes."""

from __future__ import annotations

import math
import tomllib
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedveil.config.base import dumps
from fedveil.config.loading import parse
from fedveil.data import SOURCES, load
from fedveil.data.frames import pandas_module
from fedveil.errors import FieldError, nearest, require_choice, require_count

PROTECTS = ("client", "person", "record", "nothing")
EDGE = 32  # pixels of a side, to which images are made equal
FEW = 20  # whole numbers that are classes; more are values


def first_config(
    name: str, data: str, clients: int, protect: str, *, epsilon: float = 8.0, target: str = "", person: str = ""
) -> str:
    """The text of a TOML file that runs, with a comment above each part.

    Parameters
    ----------
    name : str
        Of the run.
    data : str
        A folder with one folder of images a class, a CSV, parquet or NPZ file, or a name of `fedveil.data.SOURCES`.
    clients : int
        Parties that the examples are dealt out to.
    protect : {"client", "person", "record", "nothing"}
        All data of a client, all of one person (patient), one example, or nothing.
    epsilon : float
        Of the promise, over all rounds.
    target : str
        Of a table, the column to predict; default: the last.
    person : str
        Whose an example is: a table's column, an array of an NPZ file, or ``"folder"``; needed to protect persons.

    Raises
    ------
    FieldError
        If the data cannot be loaded, or do not suffice for so many clients.
    """
    require_choice("protect", protect, PROTECTS)
    if Path(data).suffix in (".npy", ".xlsx", ".xls", ".json"):
        raise FieldError("data", data, "must be a folder of images, a .csv, .parquet or .npz file, or a name")
    path, about = Path(data), dict[str, Any](name=data)
    if path.is_dir():
        about = {"name": "folder", "path": data, "size": [EDGE, EDGE]}
    elif path.is_file():
        about = {"name": "npz", "path": data} if path.suffix == ".npz" else _table(path, target, person)
    elif data not in SOURCES:
        raise FieldError("data", data, f"is neither a file nor a folder; {nearest(data, SOURCES)}")
    dataset = load(**about, **({"person": person} if person else {}))
    if protect == "person" and dataset.group is None:
        accepted = 'is needed: the column or array that says whose an example is, "folder" for <class>/<person>/<image>'
        raise FieldError("person", person or None, accepted)
    if about["name"] in ("folder", "npz") and dataset.classes:
        about["classes"] = list(dataset.class_names) or dataset.classes
    image = len(dataset.input_shape) == 3 and min(dataset.input_shape[1:]) >= EDGE
    if person:
        about["person"] = person
    units = len(dataset.x) if dataset.group is None else int(dataset.group.max()) + 1
    if require_count("clients", clients) > units:
        raise FieldError("clients", clients, f"must be at most {units}, so that everybody has something")
    planned = max(1, int(0.8 * (units if protect == "person" else len(dataset.x)) / clients))
    promise = {"epsilon": epsilon, "delta": 1e-5, "rounds": 20, "clip": 1.0}
    privacy = {"nothing": {"method": "vanilla"}, "client": {"method": "global", **promise}}
    privacy["record"] = {"method": "record", **promise, "examples": planned}
    most = {} if dataset.group is None else {"records_per_person": int(dataset.group.bincount().max())}
    privacy["person"] = {"method": "record", "unit": "person", **promise, "people": planned, **most}
    local: dict[str, Any] = (
        {"lr": 0.5} if protect in ("record", "person") else {"lr": 0.1, "epochs": 2, "batch_size": 16}
    )
    found = Template((files("fedveil.config") / "first.toml").read_text(encoding="utf-8")).substitute(
        name=name,
        data=dumps({"data": {"clients": clients, "holdout": 0.2, **about}}),
        model="small_cnn" if image else "logistic",
        local=dumps({"local": local if dataset.classes else {**local, "loss": "mse"}}),
        privacy=dumps({"privacy": privacy[protect]}),
    )
    parse(tomllib.loads(found))
    return found


def _table(path: Path, target: str, person: str) -> dict[str, Any]:
    """What a table's file says of its columns and its target."""
    pandas = pandas_module()
    try:
        frame = pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path)
    except Exception as error:  # whatever the file makes pandas raise
        raise FieldError("data", str(path), f"cannot be read as a table ({error})") from error
    target = require_choice("target", target or str(frame.columns[-1]), map(str, frame.columns))
    values = frame[target]
    columns = {str(name): _limits(frame[name]) for name in frame.columns if name not in (target, person)}
    ids = next((name for name, found in columns.items() if len(found) > FEW), None)
    if ids is not None:
        many = f"column {ids!r} holds {len(columns[ids])} texts, as ids do"
        accepted = f"{many}: give --person {ids}, or leave it out of the file"
        raise FieldError("person", person or None, accepted)
    found = {"name": "table", "path": str(path), "target": target, "columns": columns}
    if values.dtype.kind in "iu" and sorted(values.unique()) == [*range(min(values.nunique(), FEW))]:
        return {**found, "classes": int(values.nunique())}
    return {**found, "target_range" if values.dtype.kind in "iuf" else "classes": _limits(values)}


def _limits(values: Any) -> list[Any]:
    """Lowest and highest number, or the texts there are."""
    if values.dtype.kind not in "iuf":
        return sorted(map(str, values.dropna().unique()))
    low = math.floor(values.min())
    return [low, max(math.ceil(values.max()), low + 1)]
