"""How good the first settings are: ``python -m benchmarks first_settings``, kept cell by cell in runs/first.

Every cell is what `fedveil init` writes for a set, a unit, a sum and an epsilon, run as it stands under several seeds.
Beside it stand the best of a grid, by `benchmarks.first_reference` on the same rows, and the line without privacy.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import mean
from typing import Any

from benchmarks.first_reference import Tried, scores
from benchmarks.first_sets import SETS, FirstSet, written
from benchmarks.records import ROOT
from fedveil.methods import RecordDP
from fedveil_lab import runs
from fedveil_lab.config import Config, parse
from fedveil_lab.config.first import first_config
from fedveil_lab.config.foresight import pull_of
from fedveil_lab.config.recipe import LEFT
from fedveil_lab.config.variants import configure, variants_of
from fedveil_lab.runs.foreseen import noisy_side, shape_of
from fedveil_lab.runs.prepare import Setup, prepare
from fedveil_lab.runs.provenance import provenance

KEPT = ROOT / "runs" / "first"
EPSILONS, SUMS = (8.0, 4.0, 1.0), ("none", "trusted")
CORNERS = tuple(product((8.0, 1.0), SUMS))
SEEDS = range(5)
SMALL = 1_000  # rows, from which a set has a smaller grid
CLIPS, SCALINGS = (0.2, 1.0), ("given", "centred", "standardised")
TIMES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # the recipe's rate
FEW = (
    "recipe",
    "inputs as given",
    "inputs centred",
    "inputs standardised",
    "normalising clip, gamma .01",
)  # parts tried on large sets
TABLES = ("heart by hospital", "readmission", "breast cancer", "wine", "iris", "diabetes")


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    some: FirstSet
    unit: str
    sum: str

    @property
    def key(self) -> str:
        """Its name in the folder."""
        return f"{self.some.name.replace(' ', '-')}-{self.unit}-{self.sum}".lower()

    def config(self) -> Config:
        """What `fedveil init` writes."""
        answers: dict[str, Any] = dict(self.some.answers)
        path = str(written(self.some, KEPT / "sets"))
        text, _ = first_config(
            self.key,
            path,
            self.some.clients,
            self.unit,
            person=self.some.person,
            sum_="none" if self.unit == "client" else self.sum,
            **answers,
        )
        return parse(tomllib.loads(text))


def cells(quick: bool) -> Iterator[Cell]:
    """All cells, small sets first; with `quick` tables of few rows alone."""
    for some in SETS:
        if quick and some.name not in ("breast cancer", "wine", "iris", "diabetes"):
            continue
        for unit, sum_ in product(("record", "person") if some.person else ("record",), SUMS):
            yield Cell(some, unit, sum_)
        yield Cell(some, "client", "server")


def first_settings(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure all cells that are not kept yet; the whole table."""
    (KEPT / "cells").mkdir(parents=True, exist_ok=True)
    found = {}
    for cell in sorted(
        cells(quick), key=lambda cell: (cell.unit != "record", cell.some.name not in TABLES)
    ):
        file = KEPT / "cells" / f"{cell.key}.json"
        values = json.loads(file.read_text()) if file.exists() else {}
        if missing(values):
            say(cell.key)
            for after in measured(cell, values):
                file.with_suffix(".part").write_text(json.dumps(after, indent=1) + "\n")
                file.with_suffix(".part").replace(file)
        found[cell.key] = json.loads(file.read_text())
    made = provenance("the bundled sets, and those of FEDVEIL_DATA", list(SEEDS))
    return {"provenance": made, "cells": found}


def missing(values: Mapping[str, Any]) -> bool:
    """Whether seeds of a kept cell, or its grid, were not measured yet."""
    runs_of = values.get("defaults", {}).values()
    scored = [own for found in values.get("grid", {}).values() for own in found["grid"].values()]
    parts_of = {"grid", "shape", "pulls"}
    few = any(len(own) < len(SEEDS) for own in (*runs_of, *scored))
    return few or not parts_of <= values.keys()


def measured(cell: Cell, kept: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The default at all epsilons and without privacy, and the grid in the corners, seed by seed."""
    config = cell.config()
    setup = prepare(replace_compare(config))
    rows = sum(client.examples for client in setup.clients)
    classes = setup.dealt.dataset.classes or 0
    values: dict[str, Any] = {
        "set": cell.some.name,
        "unit": cell.unit,
        "sum": cell.sum,
        "rows": rows,
        "clients": len(setup.clients),
        "chance": 1 / classes if classes else 0.0,
        "shape": asdict(shape_of(setup, noisy_side(setup.method))),
        "pulls": pulls(config, setup.cohort),
        "defaults": kept.get("defaults", {}),
    }
    if "grid" in kept:
        values["grid"] = kept["grid"]
    for seed in SEEDS:
        for variant in variants_of(config):
            own = values["defaults"].setdefault(variant.label, [])
            if len(own) <= seed:
                single = configure(config, variant.label, variant.setting)
                own.append(_figures(single.model_copy(update={"seed": seed})))
        if "grid" not in values:
            corners = CORNERS if cell.unit == "record" else ()
            values["grid"] = {
                f"{epsilon:g}": _grid(config, setup, epsilon, rows)
                for epsilon, sum_ in corners
                if sum_ == cell.sum
            }
        for epsilon, found in values["grid"].items():
            _divided_anew(config, float(epsilon), seed, found["grid"])
        yield values


def _divided_anew(
    config: Config, epsilon: float, seed: int, by_name: dict[str, list[float]]
) -> None:
    """Add to the scores of each setting that on the rows as another seed divides them, where it is not there yet."""
    lacking = [name for name, scored in by_name.items() if len(scored) <= seed]
    if not lacking:
        return
    setup = prepare(replace_compare(config.model_copy(update={"seed": seed})))
    every = settings(bool(setup.dealt.dataset.classes), TIMES, CLIPS, SCALINGS)
    tried = [every[name] for name in lacking]
    found = scores(setup, _sigma(config, setup, epsilon), tried, seed)
    for name, one in zip(lacking, found, strict=True):
        by_name[name].append(one)


def pulls(config: Config, clients: int) -> dict[str, float]:
    """The pull of each private setting (`fedveil_lab.config.foresight`)."""
    found = {}
    for variant in variants_of(config):
        single = configure(config, variant.label, variant.setting)
        pull = pull_of(noisy_side(single.privacy.build(single.aggregator)), clients)
        if pull is not None:
            found[variant.label] = pull
    return found


def replace_compare(config: Config) -> Config:
    """The configuration without its comparison."""
    return parse({key: value for key, value in config.to_dict().items() if key != "compare"})


def _figures(config: Config) -> dict[str, Any]:
    """Score of a run with its interval over held-out rows, where there is one, and the accuracy."""
    summary = runs.run(replace_compare(config), None)
    metrics = summary.values["metrics"]
    if "rmse" in metrics:
        held = prepare(replace_compare(config)).clients
        y = [value for client in held for value in client.y.tolist()]
        tests = [client.test_y for client in held if client.test_y is not None]
        test = [value for some in tests for value in some.tolist()]
        base = mean((value - mean(y)) ** 2 for value in test) ** 0.5
        return {"score": 1 - metrics["rmse"] / base, "rmse": metrics["rmse"]}
    figure = summary.values["classified"]["pooled"]["figures"]["balanced_accuracy"]
    said = summary.values.get("learned", {})
    return {
        "score": figure["value"],
        "low": figure["low"],
        "accuracy": metrics["accuracy"],
        "learned": said,
    }


def settings(
    classes: bool, times: Sequence[float], clips: Sequence[float], scalings: Sequence[str]
) -> dict[str, Tried]:
    """All combinations of rates (times the recipe's), clips and scalings, by name."""
    left = LEFT["cross_entropy" if classes else "mse"]
    made = {}
    for rate, clip, scaling in product(times, clips, scalings):
        made[f"rate x{rate:g}, clip {clip:g}, {scaling}"] = Tried(
            left=left * rate, clip=clip, inputs=scaling, weighted=True
        )
    return made


def grid(scaling: str, classes: bool, small: bool) -> dict[str, Tried]:
    """The settings of which the best is taken: 24, or 6 for a large set."""
    if small:
        return settings(classes, TIMES, CLIPS, ("given", scaling))
    return settings(classes, TIMES[1::2], CLIPS[:1], ("given", scaling))


def parts(scaling: str, classes: bool, small: bool) -> dict[str, Tried]:
    """The recipe, and the recipe with one part more or less."""
    usual = Tried(left=LEFT["cross_entropy" if classes else "mse"], inputs=scaling, weighted=True)
    made = {
        "recipe": usual,
        "inputs as given": replace(usual, inputs="given"),
        "inputs centred": replace(usual, inputs="centred"),
        "inputs standardised": replace(usual, inputs="standardised"),
        "clip 1": replace(usual, clip=1.0),
        "normalising clip, gamma .01": replace(usual, gamma=0.01),
        "normalising clip, gamma .3": replace(usual, gamma=0.3),
        "mean of the second half of the steps": replace(usual, averaged=True),
        "a rate that falls to 0, twice as high": replace(usual, falling=True, left=2 * usual.left),
        "classes as frequent as they are": replace(usual, weighted=False),
    }
    return made if small else {name: made[name] for name in FEW}


def _grid(config: Config, setup: Setup, epsilon: float, rows: int) -> dict[str, Any]:
    """Scores of the grid and of the parts, by name."""
    sigma, scaling = _sigma(config, setup, epsilon), _scaling(config)
    classes, small = bool(setup.dealt.dataset.classes), rows < SMALL
    tried = grid(scaling, classes, small)
    named = (
        parts(scaling, classes, small)
        if config.privacy.options.get("sum", "none") == "none"
        else {}
    )
    per_seed = [
        scores(setup, sigma, list(named.values()), 1 + seed) for seed in range(3 if small else 1)
    ]
    first = scores(setup, sigma, list(tried.values()), 0)
    return {
        "grid": {name: [one] for name, one in zip(tried, first, strict=True)},
        "parts": {name: mean(one[i] for one in per_seed) for i, name in enumerate(named)},
    }


def _sigma(config: Config, setup: Setup, epsilon: float) -> float:
    """Deviation of the noise on a step's mean gradient, at clip 1."""
    options = {**config.privacy.options, "epsilon": epsilon}
    method = RecordDP(**{key: value for key, value in options.items() if value is not None})
    return method.noise_on_mean(len(setup.clients)) / method.clip


def _scaling(config: Config) -> str:
    """The scaling of inputs that a grid tries beside none."""
    scaling = str(config.model.options.get("inputs", "given"))
    if scaling == "given":
        return "centred"
    return scaling
