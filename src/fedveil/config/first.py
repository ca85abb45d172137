"""A first configuration for somebody's data: what `fedveil init` writes."""

from __future__ import annotations

import math
import tomllib
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedveil.config.loading import parse
from fedveil.config.toml import dumps
from fedveil.data import load
from fedveil.data.frames import pandas_module
from fedveil.errors import FieldError, require_choice, require_count

PROTECTS = ("client", "record", "nothing")
EDGE = 32  # pixels of a side, to which images are made equal
FEW = 20  # whole numbers that are classes; more are values


def first_config(name: str, data: str, clients: int, protect: str, *, epsilon: float = 8.0, target: str = "") -> str:
    """The text of a TOML file that runs, with a comment above each part.

    Parameters
    ----------
    name : str
        Of the run.
    data : str
        A folder with one folder of images a class, a CSV, parquet or NPZ file, or a name of `fedveil.data.SOURCES`.
    clients : int
        Parties that the examples are dealt out to.
    protect : {"client", "record", "nothing"}
        All data of a client, one example, or nothing.
    epsilon : float
        Of the promise, over all rounds.
    target : str
        Of a table, the column to predict; default: the last.

    Raises
    ------
    FieldError
        If the data cannot be loaded, or do not suffice for so many clients.
    """
    require_choice("protect", protect, PROTECTS)
    path, about = Path(data), dict[str, Any](name=data)
    if path.is_dir():
        about = {"name": "folder", "path": data, "size": [EDGE, EDGE]}
    elif path.is_file():
        about = {"name": "npz", "path": data} if path.suffix == ".npz" else _table(path, target)
    dataset = load(**about)
    if about["name"] in ("folder", "npz") and dataset.classes:
        about["classes"] = list(dataset.class_names) or dataset.classes
    image = len(dataset.input_shape) == 3 and min(dataset.input_shape[1:]) >= EDGE
    planned = max(1, int(0.8 * len(dataset.x) / require_count("clients", clients)))
    promise = {"epsilon": epsilon, "delta": 1e-5, "rounds": 20, "clip": 1.0}
    privacy = {"nothing": {"method": "vanilla"}, "client": {"method": "global", **promise}}
    privacy["record"] = {"method": "record", **promise, "examples": planned}
    local: dict[str, Any] = {"lr": 0.5} if protect == "record" else {"lr": 0.1, "epochs": 2, "batch_size": 16}
    found = Template((files("fedveil.config") / "first.toml").read_text(encoding="utf-8")).substitute(
        name=name,
        data=dumps({"data": {"clients": clients, "holdout": 0.2, **about}}),
        model="small_cnn" if image else "logistic",
        local=dumps({"local": local if dataset.classes else {**local, "loss": "mse"}}),
        privacy=dumps({"privacy": privacy[protect]}),
    )
    parse(tomllib.loads(found))
    return found


def _table(path: Path, target: str) -> dict[str, Any]:
    """What a table's file says of its columns and its target."""
    pandas = pandas_module()
    try:
        frame = pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path)
    except Exception as error:  # whatever the file makes pandas raise
        raise FieldError("data", str(path), f"cannot be read as a table ({error})") from error
    target = require_choice("target", target or str(frame.columns[-1]), map(str, frame.columns))
    values, columns = frame[target], {str(name): _limits(frame[name]) for name in frame.columns if name != target}
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
