"""The reference of every key of an experiment's TOML file; ``python -m fedveil.config.reference`` prints the page.

Keys, types and defaults come from the schema, meanings from the docstrings of what a section names, or from `MEANING`.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import tomli_w

from fedveil.aggregation import AGGREGATORS
from fedveil.attacks.poisoning import BEHAVIOURS
from fedveil.config.base import Section
from fedveil.config.experiment import Config
from fedveil.config.malicious import Behaving, Malicious
from fedveil.config.options import SECTIONS, Option, options_of
from fedveil.config.privacy import Budget, Own, Privacy, Rule
from fedveil.config.sections import Comparison, Data, Model, Pretraining, Randomness, Setting, Stopping
from fedveil.config.world import World
from fedveil.data import SOURCES
from fedveil.learning import LocalTraining
from fedveil.learning.learner import Scoring
from fedveil.learning.models import MODELS
from fedveil.methods import METHODS, Publishing

HEAD = """# Configuration

Every key of an experiment's TOML file, with its default; a dash: it has to be given, or means nothing. A first file
stands in [the tutorial](tutorial.md). One key on the command line: `--set local.epochs=2`.
`python -m fedveil.config.reference` writes this page from the schema itself.
"""

MEANING = {
    "name": "names the run and its folder: letters, digits, dots, dashes, underscores",
    "seed": "of data split, models, training, cohorts and reproducible noise; at least 0",
    "rounds": "rounds; at least 1",
    "clients_per_round": "clients drawn for each round, 1 to all; left out: all",
    "engine": "who moves the messages: the embedded engine, or Flower",
    "device": "where clients train; auto: a GPU where there is one",
    "workers": "clients trained side by side, 1 to 1,024; changes no bit",
    "trainer": "many clients as one computation (batched), one after another, or whichever fits",
    "precision": "of training: float32, or bfloat16 on a GPU",
    "metrics": "what is measured on held-out examples, of `fedveil.learning.METRICS`; left out: the task's usual ones",
    "data.name": "a data set of `fedveil data list`",
    "data.clients": "number of clients, at least 1, or all natural clients of the set",
    "data.partition": "how examples are dealt out",
    "data.alpha": "concentration of the Dirichlet partition, above 0; smaller is more uneven",
    "data.shards": "shards a client of that partition, at least 1",
    "data.min_size": "fewest examples of a client",
    "data.counts": "examples of each class, a list a client",
    "data.holdout": "share of each client's examples that it measures on, 0 to below 1",
    "data.region": "privacy-sensitive pixels: top, left, bottom, right, or several such",
    "data.sensitive": "kinds of sensitive pixels that the set knows, a list a client, in turn",
    "data.pixel_noise": "deviation of noise on the sensitive pixels that clients train on: a baseline, no guarantee",
    "data.made_up_people": "examples of each made-up person, for sets that do not say whose theirs are; 0: nobody",
    "data.public_examples": "examples set aside for the server; at least 0",
    "data.patches": "number of learned patches whose features replace images",
    "data.components": "directions on which the patches' features are projected",
    "data.patch_sizes": "edges in pixels of patches that are averaged over rings, e.g. `[1, 3]`",
    "data.directions": "of those: principal directions of the public examples, or random ones",
    "data.validation": "share of the set's own test half that the server keeps, between 0 and 1",
    "model.name": 'a model of the list below, or one of yours: `module = "package.module:Net"`',
    "model.start": "where hypotheses begin: as the model initialises itself, or every parameter from N(0, 1)",
    "pretraining.epochs": "passes over the validation examples, at least 1",
    "stopping.clients": "share of the clients that never train, between 0 and 1",
    "stopping.patience": "validations without a lesser loss until the run ends; at least 1",
    "stopping.every": "rounds between two validations; at least 1",
    "stopping.sample": "validation clients asked at a time; left out: all",
    "stopping.min_delta": "how much less a loss has to be, in units of the loss",
    "stopping.losses": "noised, at a cost, or in the clear, without a promise to those clients",
    "stopping.noise_multiplier": "z: deviation of a loss's noise over its range; above 0",
    "stopping.loss_range": "R: losses are cut to [0, R], in units of the loss",
    "stopping.releases": "losses that one client releases at most; at least 1",
    "aggregator.name": "a rule of the list below",
    "aggregator.nnm": "nearest-neighbour mixing first, against so many malicious clients",
    "aggregator.buckets": "means of so many updates first",
    "privacy.method": "a method of the list below",
    "privacy.budget.delta": "of every printed epsilon; strictly between 0 and 1",
    "privacy.budget.epsilon": "total at which whoever adds the noise stops; above 0",
    "privacy.budget.participations": "releases at which a client stops; at least 1",
    "privacy.budget.leakage_cap": "summed leakage at which a client stops (d-privacy, group privacy); above 0",
    "privacy.clients.partitions": "the clients with parameters of their own, which stand beside it",
    "privacy.clients.unmarked": "what they do where they mark nothing; left out: as `scoring.unmarked`",
    "source.kind": "reproducible noise for experiments (whoever knows the seed knows the noise), or secure noise",
    "source.seed": "of the noise alone; left out: the run's own",
    "compare.settings": "settings: a label, keys of [privacy] that differ, and a table `local` of [local]'s",
    "compare.settings.label": "names the setting",
    "compare.settings.match_sigma_of": "label of an earlier setting whose average sigma is taken",
    "compare.equal_sigma": "add global DP at the average sigma of metric privacy",
    "compare.sweep": "lists of values by parameter of [privacy]; every combination is run",
    "world.target": "the client in question",
    "world.colluders": "clients that ask together, the first one for them all",
    "world.stand_in": "what takes the target's place where it does not take part",
    "world.shadow": "what the asking clients hold of its data",
    "world.inside": "whether the target takes part",
    "world.base": "seed of what all runs share",
    "world.anew": "deal the data out anew under each run's seed",
    "world.crafted": "the first colluder pulls the model back to its start",
}

COMMON = {  # of models, rules and behaviours whose docstrings name them in a sentence
    "bias": "whether layers have an offset",
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
    "behaviour": "a behaviour of the list below",
    "clients": "the malicious clients, by partition",
    "share": "share of the clients that are malicious, drawn by the seed, instead of `clients`",
    "of": "the behaviour and its options, as a table",
    "knows_rule": "whether they know the server's rule",
    "acting": "false: they are measured and behave like the others, for the clean rate",
    "factor": "by which the update is multiplied",
    "z": "deviations from the mean; left out: what hides among so many clients",
    "direction": "which way the honest mean is left",
}


FLOWER = {  # what has no default that runs
    "global": {"epsilon": 8.0, "rounds": 20},
    "record": {"examples": 100, "epsilon": 8.0, "rounds": 20},
    "record-sum": {"examples": 100, "epsilon": 8.0, "rounds": 20, "silos": 4},
    "record-secure": {"examples": 100, "epsilon": 8.0, "rounds": 20, "least_sites": 4},
}


def pages() -> str:
    """The whole reference, as Markdown."""
    lines = [HEAD]
    lines += _section("Top level", Config, "", skip=_TABLES)
    for title, key, owner in _SECTIONS:
        lines += _section(f"`[{title}]`", owner, key) if issubclass(owner, Section) or owner in (Own, Setting) else []
        if not (issubclass(owner, Section) or owner in (Own, Setting)):
            lines += [f"## `[{title}]`", "", *_table(_of_owner(owner, options_of(owner)))]
        for label, registry in _REGISTRIES.get(title, ()):
            for name, (told, options) in registry().items():
                shown = _table(_of_owner(told, options)) if options else ["No keys of its own.", ""]
                lines += [f"### {label} `{name}`{_brought(label, name)}", "", *shown]
                lines += _for_flower(name, options) if label == "method" else []
    return "\n".join(lines).rstrip() + "\n"


def _brought(label: str, name: str) -> str:
    """The package that brings a data set or model, where that is another than FedVeil."""
    package = _PACKAGES[label](name) if label in _PACKAGES else ""
    return f" (package `{package}`)" if package else ""


def _for_flower(name: str, options: Mapping[str, Option]) -> list[str]:
    """The tables of a Flower app's pyproject.toml that choose a method."""
    given = FLOWER.get(name, {})
    values = {k: o.default for k, o in options.items() if isinstance(o.default, bool | int | float | str)} | given
    skip = {"noise_multiplier"} if "epsilon" in given else set()
    own = {k.replace("_", "-"): v for k, v in values.items() if v != "" and k not in skip}
    table = [f"[tool.flwr.app.config.privacy.{name}]", tomli_w.dumps(own).rstrip()] if own else []
    block = ["```toml", "[tool.flwr.app.config.privacy]", f'method = "{name}"', *table, "```"]
    return ["In a Flower app's `pyproject.toml`:", "", *block, ""]


def _section(title: str, owner: Any, key: str, skip: tuple[str, ...] = ()) -> list[str]:
    rows = []
    for name, field in owner.model_fields.items():
        if name in ("options", *skip) or (key == "privacy" and name in ("budget", "clients")):
            continue
        path = f"{key}.{name}" if key else name
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        meaning = MEANING.get(path) or _meanings(owner).get(name) or COMMON.get(name, "")
        rows.append((name, _kind(field.annotation), default, meaning))
    return [f"## {title}", "", *_table(rows)]


def _of_owner(owners: Any, options: Mapping[str, Option]) -> list[tuple[str, str, Any, str]]:
    several = owners if isinstance(owners, tuple) else (owners,)
    meanings: dict[str, str] = {}
    for owner in several:
        meanings = {**_meanings(owner), **meanings}
    return [(name, _kind(o.hint), o.default, meanings.get(name) or COMMON.get(name, "")) for name, o in options.items()]


def _table(rows: list[tuple[str, str, Any, str]]) -> list[str]:
    cells = [(f"`{name}`", kind, _shown(default), meaning) for name, kind, default, meaning in rows]
    lines = ["| key | value | default | meaning, unit, range |", "|---|---|---|---|"]
    return [*lines, *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells), ""]


def _shown(default: Any) -> str:
    if default is None or default == "" or not isinstance(default, bool | int | float | str | list | tuple | dict):
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
        return " or ".join(dict.fromkeys(_kind(one) for one in get_args(hint) if one is not type(None)))
    if hasattr(hint, "__metadata__"):
        return _kind(get_args(hint)[0])
    if origin in (tuple, list, Sequence):
        return "list"
    simple = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "text"}
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


_TABLES = (*SECTIONS, "scoring")
_SECTIONS: list[tuple[str, str, Any]] = [
    ("data", "data", Data),
    ("model", "model", Model),
    ("local", "local", LocalTraining),
    ("aggregator", "aggregator", Rule),
    ("privacy", "privacy", Privacy),
    ("privacy.budget", "privacy.budget", Budget),
    ("[privacy.clients]", "privacy.clients", Own),
    ("publish", "publish", Publishing),
    ("source", "source", Randomness),
    ("pretraining", "pretraining", Pretraining),
    ("scoring", "scoring", Scoring),
    ("stopping", "stopping", Stopping),
    ("compare", "compare", Comparison),
    ("[compare.settings]", "compare.settings", Setting),
    ("malicious", "malicious", Malicious),
    ("world", "world", World),
]
_PACKAGES: Mapping[str, Callable[[str], str]] = {"data set": SOURCES.package, "model": MODELS.package}
Named = dict[str, tuple[Any, Mapping[str, Option]]]
_REGISTRIES: dict[str, list[tuple[str, Callable[[], Named]]]] = {
    "data": [
        ("data set", lambda: {name: (inspect.unwrap(s.load), Data.accepted(name)) for name, s in SOURCES.items()})
    ],
    "model": [("model", lambda: {name: (make, Model.accepted(name)) for name, make in MODELS.items()})],
    "aggregator": [("rule", lambda: {name: (rule, Rule.accepted(name)) for name, rule in AGGREGATORS.items()})],
    "privacy": [("method", lambda: {n: ((s.client, s.server), Privacy.accepted(n)) for n, s in METHODS.items()})],
    "malicious": [("behaviour", lambda: {n: (b, Behaving.accepted(n)) for n, b in BEHAVIOURS.items()})],
}


if __name__ == "__main__":
    import sys

    sys.stdout.write(pages())
