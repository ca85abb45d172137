"""``python tests/docs/test_configuration_page.py`` writes docs/configuration.md: every key of an experiment's file.

Keys, types and defaults come from the schema, meanings from the docstrings of the sections and of what they name.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel

from fedveil.aggregation import AGGREGATORS
from fedveil.data import SOURCES
from fedveil.learning.models import MODELS
from fedveil.learning.tuning import tuned
from fedveil.methods import METHODS, touches_promise
from fedveil_lab.attacks.poisoning import BEHAVIOURS
from fedveil_lab.config.adversaries import Behaving
from fedveil_lab.config.experiment import Config
from fedveil_lab.config.loading import KINDS, kind_of
from fedveil_lab.config.sections import Data, Privacy, Rule
from fedveil_lab.config.tables import OpenSection, Option, options_of

HEAD = """# Configuration

Every key of an experiment's TOML file, with its default; a dash: it has to be given, or means nothing. A first file
stands in [the tutorial](tutorial.md). One key on the command line: `--set local.epochs=2`.
`python tests/docs/test_configuration_page.py` writes this page from the schema itself.
"""

COMMON = {  # of models, rules and behaviours whose docstrings name them in a sentence
    "bias": "whether layers have an offset",
    "inputs": "given; centred: minus one half, of inputs within 0 and 1; standardised: each example by its own values",
    "hidden": "widths of the hidden layers",
    "activation": "relu, leaky-relu, tanh or sigmoid, where the model has a choice",
    "channels": "channels of the convolutions",
    "widths": "channels of the stages",
    "dense": "width of the dense layer",
    "dropout": "share of values dropped in training, 0 to below 1",
    "init": "how parameters begin",
    "heads": "number of outputs",
    "patch": "side, in pixels, of the patch that is one input",
    "frozen": "levels on the way down that stay as they begin",
    "rank": "of what each convolution learns, the rest of it staying as it begins; 0: all of it is learned",
    "window": "side, in pixels, of the window in which edges are looked at; odd",
    "residuals": "give residuals of fixed filters to the first layer too",
    "mean": "public constant: the first layer sees (x - mean) / deviation",
    "deviation": "see `mean`; above 0",
    "beta1": "decay of the first moment, 0 to below 1",
    "beta2": "decay of the second moment, 0 to below 1",
    "factor": "by which the update is multiplied",
    "z": "deviations from the mean; left out: what hides among so many clients",
    "direction": "which way the honest mean is left",
}


_SAID = {  # of a table, below its keys
    "world": [
        "An audit of participation writes this table into the configuration of each of its runs.",
        "",
    ],
    "privacy": [
        "Of a method's keys the column *promise* says whether what is promised may change with it; with the others",
        "it cannot, and only models change. Beside them a promise depends on `rounds`, `clients_per_round`,",
        "`data.clients`, `data.person`, `data.made_up_people`, `data.validation`, `read_off`, `stopping`, and on the",
        "tables `[publish]`, `[source]` and `[privacy.budget]`; under a trusted server also on `[aggregator]`.",
        "",
    ],
}


FLOWER: dict[str, dict[str, Any]] = {  # what has no default that runs
    "global": {"epsilon": 8.0, "rounds": 20},
    "record": {"examples": 100, "epsilon": 8.0, "rounds": 20, "sum": "trusted", "silos": 4},
}


def pages() -> str:
    """The whole reference, as Markdown."""
    lines = [HEAD, "## Top level", "", *_table(_of_section(Config))]
    for title, owner in [*_tables(Config), *_added_tables()]:
        rows = (
            _of_section(owner)
            if issubclass(owner, BaseModel)
            else _of_owner(owner, options_of(owner))
        )
        lines += [f"## `[{title}]`", "", *_table(rows), *_SAID.get(title, [])]
        if title == "model":
            lines += [
                "### keys of every model",
                "",
                *_table(_of_owner(tuned, options_of(tuned, without=("model",)))),
            ]
        for label, registry in _REGISTRIES.get(title, ()):
            lines += _of_registry(label, registry())
    return "\n".join(lines).rstrip() + "\n"


def _of_registry(label: str, named: Named) -> list[str]:
    """A table of keys for each name; a key that an earlier table explains in the same words is only named."""
    lines: list[str] = []
    first: dict[tuple[Any, ...], str] = {}
    for name, (owner, options) in named.items():
        lines += [f"### {label} `{name}`{_brought(label, name)}", ""]
        touching = None
        if label == "method":
            touching = {key for key in options if touches_promise(name, key)}
        rows = _of_owner(owner, options)
        origin = {
            row[0]: first.setdefault((*map(str, row), row[0] in (touching or ())), name)
            for row in rows
        }
        known = {
            key: earlier
            for key, earlier in origin.items()
            if list(origin.values()).count(earlier) > 1
        }
        new = [row for row in rows if known.get(row[0], name) == name]
        lines += _table(new, touching) if new else []
        for earlier in dict.fromkeys(known.values()):
            keys = ", ".join(f"`{key}`" for key, where in known.items() if where == earlier)
            lines += [f"As in `{earlier}`: {keys}.", ""] if earlier != name else []
        if not options:
            lines += ["No keys of its own.", ""]
        if label == "method":
            lines += _for_flower(name, options)
    return lines


def _tables(owner: type[BaseModel], below: str = "") -> Iterator[tuple[str, type[Any]]]:
    """The tables that may stand in a file, and what says which keys they have."""
    for name, field in owner.model_fields.items():
        found = next(_classes(field.annotation), None)
        if found is None or (below and issubclass(found, OpenSection)):
            continue
        several = get_origin(field.annotation) is tuple
        yield f"[{below}{name}]" if several else below + name, found
        if issubclass(found, BaseModel):
            yield from _tables(found, f"{below}{name}.")


def _added_tables() -> Iterator[tuple[str, type[Any]]]:
    """The tables that other rooms add."""
    for table in KINDS:
        yield from (found for found in _tables(kind_of({table: {}})) if found[0] == table)


def _classes(hint: Any) -> Iterator[type[Any]]:
    """The models and dataclasses in a type."""
    if isinstance(hint, type) and (issubclass(hint, BaseModel) or is_dataclass(hint)):
        yield hint
    for inner in get_args(hint):
        yield from _classes(inner)


def _brought(label: str, name: str) -> str:
    """The package that brings a data set or model, where that is another than FedVeil."""
    package = _PACKAGES[label](name) if label in _PACKAGES else ""
    return f" (package `{package}`)" if package else ""


def _for_flower(name: str, options: Mapping[str, Option]) -> list[str]:
    """The tables of a Flower app's pyproject.toml that choose a method."""
    given = FLOWER.get(name, {})
    values = {
        k: o.default for k, o in options.items() if isinstance(o.default, bool | int | float | str)
    } | given
    skip = {"noise_multiplier"} if "epsilon" in given else set()
    own = {k.replace("_", "-"): v for k, v in values.items() if v != "" and k not in skip}
    table = [f"[tool.flwr.app.config.privacy.{name}]", tomli_w.dumps(own).rstrip()] if own else []
    block = ["```toml", "[tool.flwr.app.config.privacy]", f'method = "{name}"', *table, "```"]
    return ["In a Flower app's `pyproject.toml`:", "", *block, ""]


def _of_section(owner: type[BaseModel]) -> list[tuple[str, str, Any, str]]:
    rows, meanings = [], _meanings(owner)
    for name, field in owner.model_fields.items():
        if name in meanings:  # the others are tables of their own
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            rows.append((name, _kind(field.annotation), default, meanings[name]))
    return rows


def _of_owner(owners: Any, options: Mapping[str, Option]) -> list[tuple[str, str, Any, str]]:
    several = owners if isinstance(owners, tuple) else (owners,)
    meanings: dict[str, str] = {}
    for owner in several:
        meanings = {**_meanings(owner), **meanings}
    return [
        (name, _kind(o.hint), o.default, meanings.get(name) or COMMON.get(name, ""))
        for name, o in options.items()
    ]


def _table(rows: list[tuple[str, str, Any, str]], promised: set[str] | None = None) -> list[str]:
    """Rows as Markdown; with names of keys, a column says which touch the promise."""
    head = ["key", "value", "default", "meaning, unit, range"]
    if promised is not None:
        head.insert(3, "promise")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, kind, default, meaning in rows:
        cells = [f"`{name}`", kind, _shown(default), meaning]
        if promised is not None:
            cells.insert(3, "yes" if name in promised else "no")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return [*lines, ""]


def _shown(default: Any) -> str:
    if (
        default is None
        or default == ""
        or not isinstance(default, bool | int | float | str | list | tuple | dict)
    ):
        return "-"
    if isinstance(default, list | tuple | dict):
        return f"`{list(default)}`" if default else "empty"
    return f"`{str(default).lower()}`" if isinstance(default, bool) else f"`{default}`"


def _kind(hint: Any) -> str:
    """A type, for whoever writes TOML."""
    origin = get_origin(hint)
    if origin is Literal:
        return ", ".join(f'"{value}"' for value in get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(
            dict.fromkeys(_kind(one) for one in get_args(hint) if one is not type(None))
        )
    if hasattr(hint, "__metadata__"):
        return _kind(get_args(hint)[0])
    if origin in (tuple, list, Sequence):
        return "list"
    simple = {
        int: "whole number",
        float: "number",
        bool: "true or false",
        str: "text",
        Path: "text",
    }
    return simple.get(hint, "table" if origin is dict or isinstance(hint, type) else "value")


def _meanings(owner: Callable[..., Any]) -> dict[str, str]:
    """What numpydoc says of parameters, a class's bases included."""
    found: dict[str, str] = {}
    for one in reversed(inspect.getmro(owner) if isinstance(owner, type) else (owner,)):
        found |= dict(_parameters(inspect.cleandoc(one.__doc__ or "")))
    return found


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    body = re.split(r"\n(?:Parameters|Attributes)\n-+\n", text, maxsplit=1)
    if len(body) < 2:
        return
    block = re.split(r"\n\n[A-Z][a-z ]+\n-+\n", body[1], maxsplit=1)[0]
    entry = re.compile(r"(?m)^([A-Za-z_0-9, ]+?)(?: : (.*))?\n((?:(?: .*)?\n?)+?)(?=^\S|\Z)")
    for names, kind, words in entry.findall(block + "\n"):
        for name in names.split(", "):
            yield name.strip(), " ".join(words.split()) or kind


def _own_options(make: Callable[..., Any]) -> Mapping[str, Option]:
    return options_of(make, without=("input_shape", "outputs"))


_PACKAGES: Mapping[str, Callable[[str], str]] = {
    "data set": SOURCES.package,
    "model": MODELS.package,
    "method": METHODS.package,
}
Named = dict[str, tuple[Any, Mapping[str, Option]]]
_REGISTRIES: dict[str, list[tuple[str, Callable[[], Named]]]] = {
    "data": [
        (
            "data set",
            lambda: {
                name: (inspect.unwrap(s.load), Data.accepted(name)) for name, s in SOURCES.items()
            },
        )
    ],
    "model": [
        ("model", lambda: {name: (make, _own_options(make)) for name, make in MODELS.items()})
    ],
    "aggregator": [
        ("rule", lambda: {name: (rule, Rule.accepted(name)) for name, rule in AGGREGATORS.items()})
    ],
    "privacy": [
        (
            "method",
            lambda: {n: ((s.client, s.server), Privacy.accepted(n)) for n, s in METHODS.items()},
        )
    ],
    "malicious": [
        ("behaviour", lambda: {n: (b, Behaving.accepted(n)) for n, b in BEHAVIOURS.items()})
    ],
}
