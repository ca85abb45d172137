"""Write a first configuration for a user's data, as `fedveil init` does."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import torch

from fedveil.aggregation import FedAvg
from fedveil.checks import require_unit
from fedveil.data import NATURAL, SOURCES, DataSet, load
from fedveil.data.sets import with_positive
from fedveil.data.several import LOSS
from fedveil.errors import FieldError, nearest, require_choice, require_count
from fedveil.gdp import compose_mu, epsilon_of_mu, mu_of_epsilon
from fedveil.methods import GlobalDP, RecordDP
from fedveil_lab.config.columns import read_columns as read_columns
from fedveil_lab.config.columns import read_off
from fedveil_lab.config.loading import parse
from fedveil_lab.config.recipe import (
    CLIP,
    MOMENTUM,
    PLAIN_STEPS,
    ROUNDS,
    InputScaling,
    class_weights,
    client_clip,
    inputs_of,
    plain_rate,
    rate,
)
from fedveil_lab.config.tables import dumps

PROTECTS = {
    "client": "all data of one client",
    "person": "all records of one person",
    "record": "one row or image",
    "nothing": "so that nobody is promised anything",
}
EDGE = 32  # pixels of a side, to which images are made equal
EPSILONS = (8.0, 4.0, 1.0)  # shown beside each other, so that a first table says what privacy costs
NO_PRIVACY = {"label": "no privacy", "method": "vanilla"}
WHOLE = 1_000_000  # a batch of all that a client has
LIMITS = ("columns", "missing", "classes", "target_range")
MOST = ("records_per_person", "silos_per_person")
READ_OFF = """
# The values of these keys were read off your data. The promise holds if they would be the same without the protected
# unit. Agree on values without looking at the data, write them below, and take their key out of this list.
"""
LEFT_OUT = {
    "site": """looks like a site's name: client_column = {2} and clients = "natural" in [data] make a client of \
each (fedveil init --site {1})""",
    "person": """looks like a person's id: person = {2} in [data] keeps her rows together, and unit = "person" in \
[privacy] protects them all (fedveil init --protect person --person {1})""",
    "id": """looks like an id: if it is a person's, person = {2} in [data] keeps her rows together \
(fedveil init --protect person --person {1})""",
    "counter": """counts rows or persons: if it is a person's number, person = {2} in [data] keeps her rows together \
(fedveil init --protect person --person {1})""",
    "index": "is pandas' number of a row (df.to_csv(index=False) leaves it out)",
    "codes": "holds numbers and texts: list all of them in [data.columns] to make it an input, or write numbers alone",
    "objects": "holds lists, bytes or other objects: store numbers or texts to make it an input",
    "empty": "has no value",
    "date": "holds dates or times: store a time as a number, such as years, to make it an input",
    "texts": """holds more than 20 texts: list them in [data.columns] to make it an input; if they are people's ids, \
person = {2} in [data] keeps their rows together (fedveil init --protect person --person {1})""",
}


def first_config(
    name: str,
    data: str,
    clients: int | None,
    protect: str,
    *,
    epsilon: float | None = None,
    target: str = "",
    person: str = "",
    site: str = "",
    missing: str = "",
    decimal: str = "",
    thousands: str = "",
    encoding: str = "",
    positive: str | Callable[[Sequence[str]], str] = "",
    sum_: str = "none",
) -> tuple[str, list[str]]:
    """Make the text of a runnable TOML file, and one line for each choice that was made for the user.

    Parameters
    ----------
    name : str
        Name of the run.
    data : str
        A folder with one subfolder of images per class, a CSV, parquet or NPZ file, or a name from
        `fedveil.data.SOURCES`.
    clients : int, optional
        Number of clients among which the examples are divided; needed without `site`.
    protect : str
        "client", "person", "record" or "nothing": all data of a client, all of one person, one example, or nothing; or
        another word for one of them, such as "hospital", "patient" or "image" (`fedveil.units`).
    epsilon : float, optional
        Epsilon of the promise in total, over all rounds. Default: 8, compared with 4 and 1.
    target : str
        Column of a table to predict; default: the last.
    person : str
        Which person an example belongs to: a table's column, an array of an NPZ file, or ``"folder"``. Needed to
        protect persons.
    site : str
        Column of a table with the client of each row.
    missing : {"", "indicator"}
        "": refuse missing input values of a table. "indicator": add an input that marks them.
    decimal, thousands : str
        Decimal and thousands separators of a CSV file. Default: found from the file.
    encoding : str
        Encoding of a CSV file; by default UTF-8.
    positive : str or callable
        Name of the positive class of two, or a function that chooses it from their names. Default: the second class.
    sum_ : {"none", "trusted"}
        How silos' steps are summed at record or person level (`fedveil.methods.record`). With ``"trusted"`` the summing
        party is trusted, and there is less noise.

    Raises
    ------
    FieldError
        If the data cannot be loaded, or are too few for this number of clients.
    """
    protect = require_unit("protect", protect, PROTECTS)
    require_choice("sum", sum_, ("none", "trusted"))
    if sum_ != "none" and protect not in ("record", "person"):
        raise FieldError(
            "sum", sum_, "goes with --protect record or person, whose noise each silo adds"
        )
    written = {"missing": missing, "decimal": decimal, "thousands": thousands, "encoding": encoding}
    about, left_out, noticed = _about(data, target, person, site, written)
    dataset = load(**about)
    if protect == "person" and dataset.group is None:
        accepted = 'is needed: the column or array that says whose an example is, "folder" for <class>/<person>/<image>'
        raise FieldError("person", person or None, accepted)
    if dataset.classes == 1:
        raise FieldError(
            "data", data, f"has one class, {dataset.names()[0]!r}: there is nothing to tell apart"
        )
    if about["name"] in ("folder", "npz") and dataset.classes:
        about["classes"] = list(dataset.class_names) or dataset.classes
    chosen = _positive(dataset, positive)
    if chosen:
        about["positive"] = chosen
    units = len(dataset.x)
    if dataset.group is not None:
        units = int(dataset.group.max()) + 1
    if site:
        parties = len(dataset.owners)
    else:
        parties = require_count("clients", clients)
    if parties > units:
        raise FieldError(
            "clients", clients, f"must be at most {units}, so that everybody has something"
        )
    promised, epsilons = protect != "nothing", list(EPSILONS)
    if epsilon is not None:
        epsilons = [epsilon]
    privacy = _privacy(protect, epsilons[0], dataset, parties, sum_)
    several = not dataset.classes and bool(about.get("classes"))
    loss = "mse"
    if dataset.classes:
        loss = "cross_entropy"
    elif several:
        loss = LOSS
    weights, rule = list[float](), dict[str, Any]()
    if promised:
        if loss == "cross_entropy":
            ordered = dataset
            if chosen:
                ordered = with_positive(dataset, chosen)
            weights = class_weights(ordered, protect)
        given = dataset, about, loss, parties, privacy, epsilons, weights
        if protect == "client":
            model, local, settings = _client_training(*given)
        else:
            model, local, settings = _noisy_training(*given)
        rule["aggregator"] = {"name": "fedavgm", "momentum": MOMENTUM}
    else:
        model, local, settings = _plain_training(dataset, loss)
    said = []
    if chosen and not positive:
        other = dataset.names()[0]
        said.append(
            f"positive class: {chosen}, the second of the two; --positive {shlex.quote(other)} takes the other"
        )
    for column, kind in left_out.items():
        said.append(f"column {column!r} is no input: it {_left_out(kind, column)}")
    read = [f"data.{key}" for key in LIMITS if about.get(key)]
    read += [f"privacy.{key}" for key in MOST if key in privacy]
    if weights and protect == "client":
        read.append("local.loss")
    elif weights:
        read.append("local.class_weights")
    read_off_data = shown = together = ""
    if read:
        read_off_data = READ_OFF + dumps({"read_off": read})
    if promised:
        shown = _together(epsilons)
    if shown:
        together = f"# {shown}\n"
    dealt: dict[str, Any] = {"clients": clients, "holdout": 0.2, **about}
    if site:
        dealt["clients"] = NATURAL
    template = (files("fedveil_lab.config") / "first.toml").read_text(encoding="utf-8")
    text = Template(template).substitute(
        name=name,
        rounds=privacy.get("rounds", 20),
        read_off=read_off_data,
        left_out="".join(f"# {line}\n" for line in said),
        data=dumps({"data": dealt}),
        model=dumps({"model": model}),
        local=dumps({"local": local, **rule}),
        privacy=dumps({"privacy": privacy}),
        together=together,
        settings="".join(f"    {one},\n" for one in settings),
    )
    text = re.sub(
        r"\[\n((?: +[^{\s].*,\n)+)\]", lambda m: f"[{' '.join(m[1].split())[:-1]}]", text
    )  # a list a line
    parse(tomllib.loads(text))
    said += noticed
    if shown:
        said.append(shown)
    if not promised:
        return text, said + _chosen(about, None, [], several)
    usual = None
    if epsilon is None:
        usual = EPSILONS[0]
    return text, said + _chosen(about, usual, read, several)


def _privacy(
    protect: str, epsilon: float, dataset: DataSet, parties: int, sum_: str
) -> dict[str, Any]:
    """Make ``[privacy]``: the method, its total epsilon, and the planned rounds and parties."""
    if protect == "nothing":
        return {"method": "vanilla"}
    if protect == "client":
        return {
            "method": "global",
            "epsilon": epsilon,
            "delta": 1e-5,
            "rounds": ROUNDS,
            "clip": CLIP,
        }
    units = len(dataset.x)
    if protect == "person" and dataset.group is not None:
        units = int(dataset.group.max()) + 1
    planned = max(1, int(0.8 * units / parties))
    whose: dict[str, Any] = {"examples": planned}
    if protect == "person":
        whose = {"unit": "person", "people": planned, **_most(dataset)}
    sums: dict[str, Any] = {}
    if sum_ != "none":
        sums = {"sum": sum_, "silos": parties}
    return {
        "method": "record",
        **sums,
        "epsilon": epsilon,
        "delta": 1e-5,
        "rounds": ROUNDS,
        "clip": CLIP,
        **whose,
    }


def _plain_training(
    dataset: DataSet, loss: str
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Make ``[model]``, ``[local]`` and the settings of ``[compare]`` for training without a privacy promise."""
    image = len(dataset.input_shape) == 3 and min(dataset.input_shape[1:]) >= EDGE
    model = "logistic"
    if image:
        model = "small_cnn"
    local = {"lr": 0.1, "epochs": 2, "batch_size": 16, **_loss(loss)}
    return {"name": model}, local, [_inline(NO_PRIVACY)]


def _client_training(
    dataset: DataSet,
    about: Mapping[str, Any],
    loss: str,
    clients: int,
    privacy: dict[str, Any],
    epsilons: Sequence[float],
    weights: Sequence[float],
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Make ``[model]``, ``[local]`` and settings for client-level noise of a trusted server; the clip follows the noise."""
    inputs = inputs_of(dataset, about.get("columns", {}), about.get("missing", {}))
    options = {key: value for key, value in privacy.items() if key != "method"}
    settings: list[Mapping[str, Any]] = [NO_PRIVACY]
    for total in epsilons:
        method = GlobalDP(FedAvg(), **{**options, "epsilon": total, "clip": 1.0})
        clip = client_clip(method, clients, inputs, loss)
        settings.append(
            {"label": f"client-level, epsilon {total:g}", "epsilon": total, "clip": clip}
        )
    privacy["clip"] = settings[1]["clip"]
    local: dict[str, Any] = {
        "lr": plain_rate(inputs, loss),
        "epochs": PLAIN_STEPS,
        "batch_size": WHOLE,
    }
    local |= _loss(loss)
    if weights:
        local["loss"] = _weighted(weights)
    return _linear(inputs), local, [_inline(one) for one in settings]


def _noisy_training(
    dataset: DataSet,
    about: Mapping[str, Any],
    loss: str,
    parties: int,
    privacy: Mapping[str, Any],
    epsilons: Sequence[float],
    weights: Sequence[float],
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Make ``[model]``, ``[local]`` and settings for noisy steps: a linear model, and a rate that follows the noise."""
    inputs = inputs_of(dataset, about.get("columns", {}), about.get("missing", {}))
    options = {key: value for key, value in privacy.items() if key != "method"}
    settings: list[Mapping[str, Any]] = []
    rates = {}
    for total in epsilons:
        rates[total] = rate(RecordDP(**{**options, "epsilon": total}), parties, inputs, loss)
        label = f"{privacy.get('unit', 'record')}-level, epsilon {total:g}"
        settings.append({"label": label, "epsilon": total, "local": {"lr": rates[total]}})
    local: dict[str, Any] = {"lr": rates[privacy["epsilon"]], **_loss(loss)}
    baseline: dict[str, Any] = {
        "lr": plain_rate(inputs, loss),
        "epochs": PLAIN_STEPS,
        "batch_size": WHOLE,
    }
    if weights:
        local["class_weights"] = list(weights)
        baseline |= {"class_weights": [], "loss": _weighted(weights)}
    every = [{**NO_PRIVACY, "local": baseline}, *settings]
    return _linear(inputs), local, list(map(_inline, every))


def _linear(inputs: InputScaling) -> dict[str, str]:
    """Make the keys of a linear model that scales its inputs in the given way."""
    if inputs.scaling == "given":
        return {"name": "logistic"}
    return {"name": "logistic", "inputs": inputs.scaling}


def _weighted(weights: Sequence[float]) -> str:
    """Write a loss with class weights as a TOML table."""
    named = ", ".join(f"{weight:g}" for weight in weights)
    return f"cross_entropy(weight=[{named}])"


def _loss(name: str) -> dict[str, str]:
    """Return the key of a loss that is not the default one, else no key."""
    if name == "cross_entropy":
        return {}
    return {"loss": name}


def _inline(table: Mapping[str, Any]) -> str:
    """Write a table of TOML in one line."""
    pairs = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            pairs.append(f"{key} = {_inline(value)}")
        else:
            pairs.append(f"{key} = {json.dumps(value)}")
    return "{ " + ", ".join(pairs) + " }"


def _together(epsilons: Sequence[float], delta: float = 1e-5) -> str:
    """Write the joint cost of several settings that are trained on the same data."""
    if len(epsilons) < 2:
        return ""
    total = epsilon_of_mu(compose_mu(mu_of_epsilon(one, delta) for one in epsilons), delta)
    *others, last = [f"{one:g}" for one in epsilons]
    named = f"{', '.join(others)} and {last}"
    return f"epsilon {named} together cost epsilon {total:.2f} (delta {delta:g}), and every further seed adds to it"


def _left_out(kind: str, column: str) -> str:
    """Write why a column is not an input, and which option would use it."""
    return LEFT_OUT[kind].format(
        column, shlex.quote(column), json.dumps(column, ensure_ascii=False)
    )


def _positive(dataset: DataSet, given: str | Callable[[Sequence[str]], str]) -> str:
    """Return the positive class, or "" if there are not exactly two classes.

    Raises
    ------
    FieldError
        If neither class has the given name.
    """
    names = dataset.names()
    if dataset.classes != 2:
        if given and not callable(given):
            with_positive(dataset, given)
        return ""
    if callable(given):
        chosen = given(names)
    else:
        chosen = given or names[1]
    return require_choice("positive", chosen, names)


def _about(
    data: str, target: str, person: str, site: str, written: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Make the keys of ``[data]`` for a source; also return the columns that are not inputs, and notes on values."""
    require_there(data)
    path, whose = Path(data), {"person": person} if person else {}
    if path.is_file() and path.suffix != ".npz":
        found = read_off(path, target, person, site, **written)
        return found.about | whose, found.left_out, found.said
    if site:
        raise FieldError(
            "site",
            site,
            "is a column of a table; docs/data.md says how others have natural clients",
        )
    if path.exists():
        about: dict[str, Any] = {"name": "npz", "path": data}
        if path.is_dir():
            about = {"name": "folder", "path": data, "size": [EDGE, EDGE]}
        return about | whose, {}, []
    return {"name": data} | whose, {}, []


def require_there(data: str) -> None:
    """Refuse data that do not exist as a file or folder and are not a known name, before anything else is asked."""
    if Path(data).suffix in (".npy", ".xlsx", ".xls", ".json"):
        raise FieldError(
            "data", data, "must be a folder of images, a .csv, .parquet or .npz file, or a name"
        )
    if not Path(data).exists() and data not in SOURCES:
        raise FieldError("data", data, f"is neither a file nor a folder; {nearest(data, SOURCES)}")


def _most(dataset: DataSet) -> dict[str, int]:
    """Count the most records of one person; also the most sites of one person if that is above one."""
    if dataset.group is None:
        return {}
    most = {"records_per_person": int(dataset.group.bincount().max())}
    if dataset.owner is not None:
        both = dataset.group * len(dataset.owners) + dataset.owner
        most["silos_per_person"] = int((torch.unique(both) // len(dataset.owners)).bincount().max())
        if most["silos_per_person"] == 1:
            del most["silos_per_person"]
    return most


def _chosen(
    about: dict[str, Any], epsilon: float | None, read: list[str], several: bool
) -> list[str]:
    """List the choices in the file for which the user was not asked."""
    said = []
    if epsilon is not None:
        said.append(f"[privacy] epsilon = {epsilon:g}, in total: less protects more")
    if "target" in about:
        if "classes" not in about:
            kind = f"a number within {about['target_range']}"
        elif several:
            kind = f"any of {about['classes']}"
        elif isinstance(about["classes"], int):
            kind = f"{about['classes']} classes"
        else:
            kind = f"one of {about['classes']}"
        said.append(f'[data] target = "{about["target"]}": {kind}')
    style = []
    for key in ("separator", "decimal", "thousands", "encoding"):
        if key in about:
            style.append(f'{key} = "{about[key]}"')
    if style:
        said.append(f"[data] {', '.join(style)}: as the file looks")
    if read:
        said.append(f"read_off = {read}: agree on these without looking at the data")
    return said
