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

Every key of an experiment's TOML file. [The tutorial](tutorial.md) has a first file; `--set local.epochs=2` changes one
key on the command line. A key stands with its default, or with the kind of its value in brackets. Keys that
`fedveil-studies` adds stand on [its own page](../studies/configuration.md).
"""
STUDIES_HEAD = """# Configuration keys of fedveil-studies

Keys of the data sets, networks and the method that this package adds to
[an experiment's file](../docs/configuration.md).
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
    "frozen": "levels on the way down that are not trained",
    "rank": "rank of the change that each convolution learns, the rest being frozen; 0: it is trained whole",
    "window": "side, in pixels, of the window in which edges are looked at; odd",
    "residuals": "give residuals of fixed filters to the first layer too",
    "mean": "public constant: the first layer sees (x - mean) / deviation",
    "deviation": "see `mean`; above 0",
    "beta1": "decay of the first moment, 0 to below 1",
    "beta2": "decay of the second moment, 0 to below 1",
    "factor": "factor of the update",
    "z": "distance from the mean in deviations; left out: the largest that is inconspicuous among so many clients",
    "direction": "direction away from the honest mean",
}


_INTERNAL = {"world"}  # tables that only a command writes: an audit, for each of its runs
_SAID = {  # of a table, below its keys
    "privacy": [
        "Every key of a method may change its promise, except those in the method's line *No promise changes with*. It also",
        "depends on `rounds`, `clients_per_round`, `data.clients`, `data.person`, `data.made_up_people`,",
        "`data.validation`, `read_off`, `stopping`, and on the tables `[publish]`, `[source]` and `[privacy.budget]`;",
        "under a trusted server also on `[aggregator]`.",
        "",
        "In a Flower app's `pyproject.toml` the same keys have dashes for underscores. They take numbers, texts, true and",
        "false:",
        "",
        "```toml",
        "[tool.flwr.app.config.privacy]",
        'method = "global"',
        "[tool.flwr.app.config.privacy.global]",
        "epsilon = 8.0",
        "rounds = 20",
        "clip = 5.0",
        "```",
        "",
    ],
}


def pages() -> str:
    """The whole reference, as Markdown."""
    lines = [HEAD, "## Top level", "", *_table(_of_section(Config))]
    for title, owner in [*_tables(Config), *_added_tables()]:
        if title in _INTERNAL:
            continue
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
            lines += _of_registry(label, registry(), studies=False)
    return "\n".join(lines).rstrip() + "\n"


def studies_pages() -> str:
    """The keys of what another package brings, as Markdown."""
    lines = [STUDIES_HEAD]
    for label, registry in (pair for pairs in _REGISTRIES.values() for pair in pairs):
        lines += _of_registry(label, registry(), studies=True)
    return "\n".join(lines).rstrip() + "\n"


def _of_registry(label: str, named: Named, studies: bool) -> list[str]:
    """A table of keys for each name; a key that an earlier table explains in the same words is only named.

    It is named with its default, if that is another one.
    """
    lines: list[str] = []
    bare: list[str] = []  # of names without keys
    first: dict[
        tuple[str, ...], tuple[str, str]
    ] = {}  # where words stood first, and beside which default
    for name, (owner, options) in named.items():
        rows = _of_owner(owner, options)
        origin: dict[str, str] = {}
        written: dict[str, str] = {}
        for key, kind, default, meaning in rows:
            known = first.setdefault((key, kind, meaning), (name, str(default)))
            origin[key] = known[0]
            written[key] = f"`{key}`" if str(default) == known[1] else _key(key, kind, default)
        shown = bool(_brought(label, name)) == studies
        if not shown:
            continue
        if not options:
            bare.append(f"- `{name}`: {_saying(label, name, owner)}")
            continue
        new = [row for row in rows if origin[row[0]] == name]
        lines += [f"### {label} `{name}`", "", _saying(label, name, owner), ""]
        lines += _table(new) if new else []
        shared = []
        for earlier in dict.fromkeys(where for where in origin.values() if where != name):
            keys = ", ".join(written[key] for key, where in origin.items() if where == earlier)
            shared.append(f"as in `{earlier}`: {keys}")
        lines += [f"A{'; '.join(shared)[1:]}.", ""] if shared else []
        if label == "method":
            lines += _without_promise(name, options)
    lines += [f"Without keys of their own, {label}:", "", *bare, ""] if bare else []
    return lines


def _saying(label: str, name: str, owner: Any) -> str:
    """Say in a sentence what a name stands for: its line for lists, or the first line of its docstring."""
    if label == "method":
        text = METHODS[name].summary
    elif label == "data set":
        text = SOURCES[name].description
    else:
        text = " ".join((inspect.getdoc(owner) or "").split("\n\n")[0].split())
        text = re.sub(
            r" \([^()]*(arXiv|\d{4})[^()]*\)", "", text
        )  # the source stands in the docstring
    text = re.sub(r"^(Malicious clients? that|Build( the| a)?) ", "", text)
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def _without_promise(name: str, options: Mapping[str, Option]) -> list[str]:
    """A line that names the keys with which only models change."""
    keys = [f"`{key}`" for key in options if not touches_promise(name, key)]
    return [f"No promise changes with: {', '.join(keys)}.", ""] if keys else []


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
    """The package that brings a data set, model or method, where that is another than FedVeil."""
    return _PACKAGES[label](name) if label in _PACKAGES else ""


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


def _table(rows: list[tuple[str, str, Any, str]]) -> list[str]:
    """Keys as a list in Markdown; keys that share a meaning share an item."""
    joined: dict[str, list[str]] = {}
    for name, kind, default, meaning in rows:
        joined.setdefault(meaning, []).append(_key(name, kind, default))
    return [*(f"- {', '.join(keys)}: {meaning}" for meaning, keys in joined.items()), ""]


def _key(name: str, kind: str, default: Any) -> str:
    """A key with its default as TOML writes it, or with the kind of its value."""
    known = isinstance(default, bool | int | float | str | list | tuple | dict)
    if not known or default == "":
        return f"`{name}` ({kind})"
    written = _toml(default)
    if kind.startswith('"'):
        others = [value for value in kind.split(", ") if value != written]
        return f"`{name} = {written}` (or {', '.join(others)})"
    several = " or " in kind and kind != "true or false"
    return f"`{name} = {written}`" + (f" ({kind})" if several else "")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{}" if not value else str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


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
        int: "integer",
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
