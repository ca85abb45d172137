"""The runs behind the paper's tables: scenario, rule, setting and seed, and what a scale changes of them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from fedveil.attacks.paper import SINGLE_EPOCHS
from fedveil.errors import FieldError, nearest, require_choice, require_count
from fedveil.experiments import Config, load, parse
from fedveil.experiments.sections import Setting
from fedveil.experiments.settings import configure
from fedveil.experiments.setup import resolve_device
from fedveil.reproduce.cells import Cell, Watcher
from fedveil.reproduce.claims import PAPER, PRINTED_NOISE
from fedveil.reproduce.measure import Replicate

SETTINGS = {"vanilla": "vanilla", "global": "global DP", "metric": "metric privacy"}
EQUAL = {"equal": "global DP at metric privacy's average sigma"}  # not in the paper
MOST_DRAWS = 1000
PRETRAINING = 20  # epochs of the server on its validation half


@dataclass(frozen=True)
class Scale:
    """How large the experiments are.

    Attributes
    ----------
    name, what : str
        For people.
    parameters : int
        Of the model, for the noise-to-clip ratio.
    changes : mapping
        Dotted keys of the configuration with other values than the preset's.
    also : str
        More that has to be said.
    """

    name: str
    what: str
    parameters: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    also: str = ""

    @property
    def noise_factor(self) -> float:
        """What keeps the paper's z sqrt(parameters) / n."""
        return math.sqrt(scales()[PAPER].parameters / self.parameters)


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a user may choose.

    Parameters
    ----------
    scale : str or Scale
        ``"small"``, ``"paper"``, or one of your own.
    seeds : int
        Repetitions: seeds `seed`, `seed` + 1, ...; data, first model, training and noise change.
    seed : int
        The first.
    more_seeds : tuple of int
        Others beside them.
    draws : int
        Noise draws on one training, where a table looks at a single round.
    rules : tuple of str
        Aggregation rules; empty: the paper's six.
    readings : tuple of str
        Other readings of the paper, in any order.
    workers : int
        Clients trained side by side.
    device : str
        Where to train.
    """

    scale: str | Scale = "small"
    seeds: int = 1
    seed: int = 0
    more_seeds: tuple[int, ...] = ()
    draws: int = 10
    rules: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()
    workers: int = 2
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse what does not exist."""
        require_count("--seeds", self.seeds)
        if require_count("--draws", self.draws) > MOST_DRAWS:
            raise FieldError("--draws", self.draws, f"must be at most {MOST_DRAWS}: each is a run of its own")
        require_count("--workers", self.workers)
        if isinstance(self.scale, str) and self.scale not in scales():
            raise FieldError("--scale", self.scale, nearest(self.scale, scales()))
        for option, names, known in (
            ("--rule", self.rules, described()["rules"]),
            ("--reading", self.readings, described()["readings"]),
        ):
            for name in names:
                if name not in known:
                    raise FieldError(option, name, nearest(name, known))
        object.__setattr__(self, "readings", tuple(n for n in described()["readings"] if n in self.readings))

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """In order, each once."""
        return tuple(sorted({*range(self.seed, self.seed + self.seeds), *self.more_seeds}))

    def with_stored(self, labels: Collection[str], seeds: Sequence[int], draws: int) -> Choices:
        """These, and those of a table that was made before: its rules by label, its seeds, its draws."""
        rules: Mapping[str, Any] = described()["rules"]
        known = [name for name, rule in rules.items() if rule["label"] in labels]
        chosen = self.rules or tuple(name for name, rule in rules.items() if not rule.get("extra"))
        return replace(
            self,
            rules=tuple(name for name in rules if name in chosen or name in known),
            more_seeds=(*self.more_seeds, *seeds),
            draws=max(self.draws, draws),
        )


class Plan:
    """Builds cells.

    Parameters
    ----------
    choices : Choices
        What the user chose.

    Attributes
    ----------
    rules : list of str
        In order.
    seeds : tuple of int
        Of the repetitions.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.scale = scales()[choices.scale] if isinstance(choices.scale, str) else choices.scale
        every: Mapping[str, Any] = described()["rules"]
        chosen = choices.rules or tuple(name for name, rule in every.items() if not rule.get("extra"))
        self.rules = [name for name in every if name in chosen]
        self.seeds = choices.all_seeds
        self._device = resolve_device(choices.device)
        self._cells: dict[Hashable, Cell] = {}

    def label(self, rule: str) -> str:
        """A rule's name in the tables."""
        return str(described()["rules"][rule]["label"])

    def cell(
        self,
        scenario: str,
        rule: str,
        setting: str,
        seed: int,
        *,
        draw: int = 0,
        multiplier: float | None = None,
        single: bool = False,
        without_target: bool = False,
        watcher: Watcher | None = None,
    ) -> Cell:
        """One run.

        Parameters
        ----------
        scenario, rule, setting : str
            Of `study.toml`, and of `SETTINGS` or `EQUAL`.
        seed : int
            Of data, first model, training and noise.
        draw : int
            Above 0: other noise on the same training.
        multiplier : float, optional
            z at the paper's scale; default: the preset's.
        single : bool
            One round of 20 epochs instead of 20 rounds of 5.
        without_target : bool
            Leave the attacked client out.
        watcher : Watcher, optional
            Measures more after each round.
        """
        key = (scenario, rule, setting, seed, draw, multiplier, single, without_target, watcher and watcher.name)
        if key not in self._cells:
            config = self._config(scenario, rule, setting, seed, draw, multiplier, single, without_target)
            shown = [config.name.removesuffix(f"-{setting}"), setting, f"seed {seed}"]
            shown += [f"draw {draw}"] if draw else []
            shown += [] if multiplier is None else [f"z {multiplier:g}"]
            source = self.cell(scenario, rule, "metric", seed) if setting in EQUAL else None
            self._cells[key] = Cell(" ".join(shown), config, watcher, source)
        return self._cells[key]

    def _config(
        self,
        scenario: str,
        rule: str,
        setting: str,
        seed: int,
        draw: int,
        multiplier: float | None,
        single: bool,
        without_target: bool,
    ) -> Config:
        values = self._base(scenario, rule, seed)
        parts = [scenario, rule]
        if draw:
            values["source"] = {"seed": 1000 * (seed + 1) + draw}
        if single:
            values["rounds"] = 1
            values["local"] = {**values["local"], "epochs": SINGLE_EPOCHS}
            parts.append("single")
        if without_target:
            values["data"] = _without_target(values["data"])
            parts.append("out")
        values["name"] = "-".join(parts)
        values["privacy"] = {**values["privacy"], "noise_multiplier": self._noise(values, multiplier)}
        method = "global" if setting in EQUAL else setting
        given: dict[str, Any] = {"method": method}
        for name in self.choices.readings:
            given |= described()["readings"][name].get(method, {})
        forced = {"derived_from": SETTINGS["metric"]} if setting in EQUAL else {}
        return configure(parse(values), setting, Setting.model_validate(given), **forced)

    def replicates(self, scenario: str, rule: str, setting: str, **options: Any) -> tuple[Replicate, ...]:
        """One cell a seed."""
        return tuple(Replicate(s, (self.cell(scenario, rule, setting, s, **options),)) for s in self.seeds)

    def full(self, scenario: str, seed: int) -> Config:
        """The scenario with all its clients, for who wants to look at the data."""
        return parse(self._base(scenario, "fedavg", seed))

    def notes(self) -> list[str]:
        """What the scale and the readings change."""
        found = [f"scale {self.scale.name}: {self.scale.what}"]
        if self.scale.also:
            found.append(self.scale.also)
        if PRINTED_NOISE not in self.choices.readings and self.scale.name != PAPER:
            factor = self.scale.noise_factor
            found.append(
                f"noise multipliers are {factor:.3g} times the paper's (.01 becomes {0.01 * factor:.3g}), so that the "
                "noise is as long next to the clipping norm: z sqrt(parameters) / n = 6.38 for n = 4"
            )
        return found + [f"reading {n}: {described()['readings'][n]['what']}" for n in self.choices.readings]

    def _base(self, scenario: str, rule: str, seed: int) -> dict[str, Any]:
        """The preset with the changes of rule, scale and readings, and nothing of the setting."""
        values = _preset(require_choice("scenario", scenario, described()["scenarios"]))
        chosen = described()["rules"][rule]
        aggregator = dict(chosen["aggregator"])
        for name in self.choices.readings:
            reading = described()["readings"][name]
            if reading.get("rule", rule) == rule:
                other = reading.get("aggregator", {})
                known = {k: v for k, v in other.items() if k in aggregator}
                aggregator = dict(other) if "name" in other else {**aggregator, **known}
        values |= {"seed": seed, "workers": self.choices.workers, "device": self._device, "aggregator": aggregator}
        if chosen.get("pretrained"):
            values["pretraining"] = {"epochs": PRETRAINING}
        for key, value in self.scale.changes.items():
            if not key.startswith("pretraining.") or "pretraining" in values:
                _put(values, key, value)
        for name in self.choices.readings:
            for key, value in described()["readings"][name].get("set", {}).items():
                _put(values, key, value)
        return values

    def _noise(self, values: Mapping[str, Any], multiplier: float | None) -> float:
        z = float(values["privacy"]["noise_multiplier"] if multiplier is None else multiplier)
        unscaled = any(described()["readings"][n].get("unscaled") for n in self.choices.readings)
        return z if unscaled else z * self.scale.noise_factor


@cache
def described() -> Mapping[str, Any]:
    """What study.toml says."""
    return tomllib.loads((resources.files(__package__) / "study.toml").read_text(encoding="utf-8"))


@cache
def scales() -> Mapping[str, Scale]:
    """The scales by name."""
    found = {}
    for name, entry in described()["scales"].items():
        found[name] = Scale(name, entry["what"], entry["parameters"], entry.get("set", {}), entry.get("also", ""))
    return found


@cache
def _loaded(scenario: str) -> Config:
    return load(described()["scenarios"][scenario])


def _preset(scenario: str) -> dict[str, Any]:
    values = _loaded(scenario).to_dict()
    values.pop("compare")
    return values


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key."""
    *tables, last = key.split(".")
    for name in tables:
        values = values[name]
    values[last] = value


def _without_target(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same data without the last client: the others keep theirs."""
    if data["clients"] < 2:
        raise FieldError("data.clients", data["clients"], "needs at least two: an attacker and a target")
    return {**data, "clients": data["clients"] - 1, "counts": data["counts"][:-1]}
