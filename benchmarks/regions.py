"""Where does region level pay? A map over the marked share, records and epsilon, beside its two rivals.

Run ``python -m benchmarks.regions --into results/regions`` in a checkout. Runs that stand in ``runs.csv`` are not
played again.

One silo trains a linear classifier. *Blanked*: the marked coordinates are blanked, and training has no noise. *Record*:
whole records are protected. *Region*: what is marked is protected (`fedveil.learning.regions`), from the blanked model
on, which is free where everything unmarked is public. Both promises are about content against other content
(replace-one) of one record, at the same epsilon and delta.

Learning rate and clip are chosen for each cell among the same settings, by the accuracy on validation rows of seeds
that are not reported. The test set is used for the reported seeds alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from benchmarks.records import machine
from fedveil.data.sets import locate
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer, SequentialTrainer
from fedveil.learning.regions import blanked
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import RecordDP

WRITERS, HEART = "mnist_by_writer.npz", "heart_disease_uci_4_centres.csv"
CELLS = "bloodmnist_rebuilt_28.npz"
STEPS, FREE_STEPS, DELTA = 30, 600, 1e-5
SEEDS, TUNING_SEEDS = (0, 1, 2, 3, 4), (100, 101)
EPSILONS = (1.0, 4.0)
# learning rate and clip
NOISY_SETTINGS = ((1.0, 0.1), (1.0, 0.5), (4.0, 0.1), (4.0, 0.5), (4.0, 2.0), (16.0, 0.5))
FREE_SETTINGS = {
    "heart disease": ((2.0, 0.0), (6.0, 0.0)),
    "digits": ((2.0, 0.0), (6.0, 0.0)),
    "blood cells": ((0.5, 0.0), (2.0, 0.0)),
}
MARKED_ROWS = {"lower quarter": 6, "lower half": 4, "lower three quarters": 2}  # first row of eight
MARKED_EDGES = {
    "middle": 5,
    "wide middle": 3,
    "all but the edge": 1,
}  # of 14 rows, unmarked at each side
RECORDS = (300, 1000)
COLUMNS = ("data", "marked", "records", "method", "epsilon", "lr", "clip", "seed", "accuracy")
PLAIN = ("none", "blanked")

Key = tuple[str, str, int, str, float, float, float, int]


@dataclass(frozen=True)
class Split:
    """Examples of one seed: to train on, to choose settings by, to report on."""

    train: ClientData
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@cache
def digits() -> dict[str, Tensor]:
    """MNIST in averages of 3x3 pixels, without a frame of two: [N, 1, 8, 8] from 0 to 1, and classes."""
    with np.load(locate("digits", WRITERS, "MNIST with its writers")) as file:
        found: dict[str, Tensor] = {}
        for part in ("train", "test"):
            images = file[f"{part}_images"].reshape(-1, 28, 28)[:, 2:26, 2:26].astype(np.float32)
            pooled = images.reshape(-1, 8, 3, 8, 3).mean((2, 4)) / 255
            found[f"{part} x"] = torch.from_numpy(pooled)[:, None]
            found[f"{part} y"] = torch.from_numpy(file[f"{part}_labels"].astype(np.int64))
    return found


def digits_of(marked: str, records: int, seed: int) -> Split:
    """Draw digits, whose lower rows are marked."""
    every = digits()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(every["train x"])))
    mine, others = order[:records], order[-2000:]
    masks = torch.zeros(records, 8, 8, dtype=torch.bool)
    masks[:, MARKED_ROWS[marked] :] = True
    x, y = every["train x"], every["train y"]
    return Split(
        ClientData(x[mine], y[mine], masks=masks),
        (x[others], y[others]),
        (every["test x"], every["test y"]),
    )


# Declared ranges, and categories: no number of the data is used.
RANGES = {
    "age": (20, 90),
    "trestbps": (80, 200),
    "chol": (100, 600),
    "thalach": (60, 220),
    "oldpeak": (-3, 7),
}
CATEGORIES = {
    "sex": (0, 1),
    "cp": (1, 2, 3, 4),
    "fbs": (0, 1),
    "restecg": (0, 1, 2),
    "exang": (0, 1),
}
MARKED_COLUMNS = {
    "cholesterol and blood sugar": ("chol", "fbs"),
    "sex and chest pain": ("sex", "cp"),
}


@cache
def patients() -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """920 patients of four hospitals: columns from -1 to 1 (0 where it is missing), ill or not, columns' names."""
    with open(locate("heart disease", HEART, "UCI heart disease"), newline="") as file:
        rows = list(csv.DictReader(file))
    columns: list[list[float]] = []
    names: list[str] = []
    for name, (low, high) in RANGES.items():
        middle, half = (low + high) / 2, (high - low) / 2
        values = [(float(row[name]) - middle) / half if row[name] else 0.0 for row in rows]
        columns.append([min(1.0, max(-1.0, value)) for value in values])
        names.append(name)
    for name, categories in CATEGORIES.items():
        for category in categories:
            columns.append(
                [float(bool(row[name]) and float(row[name]) == category) for row in rows]
            )
            names.append(name)
    ill = torch.tensor([int(float(row["num"]) > 0) for row in rows])
    return torch.tensor(columns).T.contiguous(), ill, tuple(names)


def patients_of(marked: str, records: int, seed: int) -> Split:
    """Draw patients with two marked columns; the same 220 are the test set of every seed."""
    x, y, names = patients()
    fixed = np.random.default_rng(2026).permutation(len(x))
    test, rest = torch.from_numpy(fixed[:220]), fixed[220:]
    order = torch.from_numpy(np.random.default_rng(seed).permutation(rest))
    mine, others = order[:records], order[records:]
    wanted = torch.tensor([name in MARKED_COLUMNS[marked] for name in names])
    train = ClientData(x[mine], y[mine], masks=wanted.repeat(records, 1))
    return Split(train, (x[others], y[others]), (x[test], y[test]))


@cache
def blood_cells() -> dict[str, Tensor]:
    """Blood cells in averages of 2x2 pixels: [N, 3, 14, 14] from -1/4 to 1/4, where grey is 0, and classes."""
    with np.load(locate("blood cells", CELLS, "BloodMNIST")) as file:
        found: dict[str, Tensor] = {}
        for part in ("train", "val", "test"):
            images = file[f"{part}_images"].astype(np.float32)
            pooled = images.reshape(-1, 14, 2, 14, 2, 3).mean((2, 4)) / 255
            found[f"{part} x"] = (
                torch.from_numpy(pooled).permute(0, 3, 1, 2).contiguous() / 2 - 0.25
            )
            found[f"{part} y"] = torch.from_numpy(
                file[f"{part}_labels"].reshape(-1).astype(np.int64)
            )
    return found


def blood_cells_of(marked: str, records: int, seed: int) -> Split:
    """Draw blood cells, of which a square in the middle is marked."""
    every = blood_cells()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(every["train x"])))
    mine = order[:records]
    edge = MARKED_EDGES[marked]
    masks = torch.zeros(records, 14, 14, dtype=torch.bool)
    masks[:, edge : 14 - edge, edge : 14 - edge] = True
    return Split(
        ClientData(every["train x"][mine], every["train y"][mine], masks=masks),
        (every["val x"], every["val y"]),
        (every["test x"], every["test y"]),
    )


SPLITS: dict[str, Callable[[str, int, int], Split]] = {
    "blood cells": blood_cells_of,
    "digits": digits_of,
    "heart disease": patients_of,
}


def model_of(split: Split) -> nn.Module:
    """A linear classifier that starts at 0."""
    inputs = split.train.x[0].numel()
    model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, int(split.test[1].max()) + 1))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def trained_freely(split: Split, data: ClientData, lr: float) -> Tensor:
    """Train without noise by full batches; return the parameters [d]."""
    model = model_of(split)
    layout = Layout.from_module(model)
    local = LocalTraining(lr=lr, epochs=FREE_STEPS, batch_size=data.examples)
    trainer = SequentialTrainer(model, layout, local)
    [found] = trainer.train(layout.read(model)[None], [data], [(0, 1, 0)])
    if isinstance(found, Exception):
        raise found
    return found.model


def trained_noisily(
    split: Split, method: RecordDP, lr: float, start: Tensor | None, seed: int
) -> Tensor:
    """Train with noise inside the steps, from a start [d] or from 0; return the parameters [d]."""
    model = model_of(split)
    layout = Layout.from_module(model)
    start = layout.read(model) if start is None else start
    trainer = PrivateTrainer(model, layout, LocalTraining(lr=lr), method.noisy_steps)
    source = ReproducibleSource(seed)
    [found] = trainer.train_noisily(start[None], [split.train], [(0, 1, 0)], [source])
    if isinstance(found, Exception):
        raise found
    return found.model


def accuracy(split: Split, parameters: Tensor, rows: tuple[Tensor, Tensor]) -> float:
    """Return the accuracy of parameters [d] on rows."""
    model = model_of(split)
    Layout.from_module(model).load(model, parameters)
    with torch.no_grad():
        right = model(rows[0]).argmax(1) == rows[1]
    return float(right.double().mean())


class Runs:
    """Runs on disk, one a line; what stands there is not played again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[Key, float] = {}
        if path.exists():
            with open(path, newline="") as file:
                for row in csv.DictReader(file):
                    self._known[self._key_of(row)] = float(row["accuracy"])
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(",".join(COLUMNS) + "\n")

    def _key_of(self, row: dict[str, str]) -> Key:
        numbers = (float(row["epsilon"]), float(row["lr"]), float(row["clip"]), int(row["seed"]))
        return (row["data"], row["marked"], int(row["records"]), row["method"], *numbers)

    def find(self, key: Key, play: Callable[[], float]) -> float:
        """Return the accuracy of a run, which is played if it is not known."""
        if key not in self._known:
            self._known[key] = play()
            with open(self._path, "a") as file:
                file.write(",".join(map(str, (*key, f"{self._known[key]:.5f}"))) + "\n")
        return self._known[key]


class Study:
    """The map: every cell tuned, then reported.

    Parameters
    ----------
    runs : Runs
        On disk.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._starts: dict[tuple[str, str, int, int], Tensor] = {}

    def run(
        self,
        data: str,
        marked: str,
        records: int,
        method: str,
        epsilon: float,
        setting: tuple[float, float],
        seed: int,
    ) -> float:
        """Return the accuracy of one run: on validation rows for a tuning seed, else on the test set."""
        lr, clip = setting
        shown = "any" if method in ("none", "record") else marked
        key = (data, shown, records, method, epsilon, lr, clip, seed)

        def play() -> float:
            split = SPLITS[data](marked, records, seed)
            found = self._parameters(split, data, marked, records, method, epsilon, setting, seed)
            return accuracy(split, found, split.validation if seed in TUNING_SEEDS else split.test)

        return self._runs.find(key, play)

    def _parameters(
        self,
        split: Split,
        data: str,
        marked: str,
        records: int,
        method: str,
        epsilon: float,
        setting: tuple[float, float],
        seed: int,
    ) -> Tensor:
        lr, clip = setting
        if method == "none":
            return trained_freely(split, split.train, lr)
        if method == "blanked":
            return trained_freely(split, blanked(split.train, 0.0), lr)
        promise = RecordDP(
            unit="region" if method == "region" else "record",
            relation="replace-one",
            examples=records,
            epsilon=epsilon,
            delta=DELTA,
            rounds=1,
            steps=STEPS,
            clip=clip,
        )
        start = None
        if method == "region":
            best, _ = self.chosen(data, marked, records, "blanked", 0.0)
            place = (data, marked, records, seed)
            if place not in self._starts:
                without = blanked(split.train, 0.0)
                self._starts[place] = trained_freely(split, without, best)
            start = self._starts[place]
        return trained_noisily(split, promise, lr, start, seed)

    def chosen(
        self, data: str, marked: str, records: int, method: str, epsilon: float
    ) -> tuple[float, float]:
        """Return the setting with the best mean accuracy on validation rows of the tuning seeds."""
        settings = FREE_SETTINGS[data] if method in PLAIN else NOISY_SETTINGS

        def mean(setting: tuple[float, float]) -> float:
            found = [
                self.run(data, marked, records, method, epsilon, setting, seed)
                for seed in TUNING_SEEDS
            ]
            return float(np.mean(found))

        return max(settings, key=mean)

    def reported(
        self, data: str, marked: str, records: int, method: str, epsilon: float
    ) -> list[float]:
        """Return test accuracies of the reported seeds, at the chosen setting."""
        setting = self.chosen(data, marked, records, method, epsilon)
        return [self.run(data, marked, records, method, epsilon, setting, seed) for seed in SEEDS]


def interval(differences: list[float]) -> tuple[float, float, float]:
    """Return the mean of paired differences and its 95% interval by Student's t."""
    mean = float(np.mean(differences))
    spread = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * spread
    return mean, mean - half, mean + half


def verdict(blank: tuple[float, float, float], record: tuple[float, float, float]) -> str:
    """Say whether region level is better than both rivals, worse than one, or neither."""
    if blank[1] > 0 and record[1] > 0:
        return "region"
    if blank[2] < 0 or record[2] < 0:
        return "a rival"
    return "not told apart"


def cell(study: Study, data: str, marked: str, records: int, epsilon: float) -> dict[str, Any]:
    """Play one cell of the map with its rivals."""
    found = {
        "none": study.reported(data, marked, records, "none", 0.0),
        "blanked": study.reported(data, marked, records, "blanked", 0.0),
        "record": study.reported(data, marked, records, "record", epsilon),
        "region": study.reported(data, marked, records, "region", epsilon),
    }
    over = {
        name: interval([a - b for a, b in zip(found["region"], found[name], strict=True)])
        for name in ("blanked", "record")
    }
    row: dict[str, Any] = {
        "data": data,
        "marked": marked,
        "records": records,
        "epsilon": epsilon,
        **{name: float(np.mean(values)) for name, values in found.items()},
        "share": float(np.mean(found["none"]) - np.mean(found["blanked"])),
        "region - blanked": over["blanked"],
        "region - record": over["record"],
        "best": verdict(over["blanked"], over["record"]),
    }
    print(json.dumps(row), flush=True)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The page's table."""
    lines = [
        "| data | marked | records | epsilon | no privacy | blanked | record | region | region - blanked "
        "| region - record | best |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["data"], row["marked"], f"{row['records']:,}", f"{row['epsilon']:g}"]
        cells += [f"{row[name]:.3f}" for name in ("none", "blanked", "record", "region")]
        for name in ("region - blanked", "region - record"):
            mean, low, high = row[name]
            cells.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f})")
        lines.append("| " + " | ".join([*cells, row["best"]]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Play the map, write its figures and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path("results/regions"))
    parser.add_argument("--records", type=int, nargs="+", default=list(RECORDS))
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    study = Study(Runs(given.into / "runs.csv"))
    rows: list[dict[str, Any]] = []
    for marked, epsilon in product(MARKED_COLUMNS, EPSILONS):
        rows.append(cell(study, "heart disease", marked, 500, epsilon))
    for records, marked, epsilon in product(given.records, MARKED_ROWS, EPSILONS):
        rows.append(cell(study, "digits", marked, records, epsilon))
    for records, marked, epsilon in product(given.records, MARKED_EDGES, EPSILONS):
        rows.append(cell(study, "blood cells", marked, records, epsilon))
    from fedveil_lab.runs.provenance import provenance

    made = provenance(f"{WRITERS}, {HEART}, {CELLS}", list(SEEDS))
    made["command"] = f"python -m benchmarks.regions --into {given.into}"
    made["machine"] = machine("cpu")
    made["instruction set"] = torch.backends.cpu.get_cpu_capability()
    (given.into / "map.json").write_text(
        json.dumps({"provenance": made, "cells": rows}, indent=1) + "\n"
    )
    print(table(rows))


if __name__ == "__main__":
    main()
