"""Do layers that are chosen privately pay? Before any code of it in the library.

Run ``python -m benchmarks.layers --into results/layers`` in a checkout. Runs that stand in ``runs.csv`` are not played
again.

One silo trains by full batches. At the start it may release one noised histogram of layer scores. Each unit's scores
are scaled, by that unit alone, to sum to at most 1. One unit then moves the histogram by at most 1 under zero-out. The
histogram and all steps together have the total of the other methods: mu^2 = mu_h^2 + T / z^2. What follows from the
histogram is post-processing: the layers with the largest scores are trained, the others stay as they are. A score is
the length of the layer's gradient, divided by the root of its size, as noise grows with that root. The unit is a
record, or all images of a writer. Networks: a small CNN, begun in two ways, and EfficientNet-Lite0 with adapters.

Rivals at the same total: all layers; the layers that public rows choose by the same rule, for free; the last layer
alone. As a control, the layers with the *smallest* noised scores. Each method takes learning rate, clip and its number
of layers from the same grid, by validation rows of seeds that are not reported; the control has those of the choice
that it reverses.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from benchmarks import layers_lite0
from benchmarks.layers_tasks import (
    Parameters,
    Task,
    begun_with,
    pretrained,
    pretrained_for_writers,
    small_cnn,
    split,
    split_of_writers,
    untrained,
)
from benchmarks.records import machine
from fedveil.gdp import mu_of_epsilon

DELTA = 1e-5
SHARE = 0.1  # of mu^2, for the histogram
REVERSED = "private, reversed"  # at the settings of "private"
METHODS = ("all", "last", "public", "private", REVERSED)
COLUMNS = ("start", "epsilon", "method", "layers", "lr", "clip", "seed", "accuracy")

TASKS = {
    "pretrained": small_cnn(split, begun_with(pretrained)),
    "untrained": small_cnn(split, untrained),
    "writers": small_cnn(split_of_writers, begun_with(pretrained_for_writers)),
    "lite0": layers_lite0.TASK,
}
EPSILONS = (4.0, 1.0)
DATA = "digits of scikit-learn; MNIST in averages of 3x3 pixels, with its writers; blood cells"

Key = tuple[str, float, str, int, float, float, int]


def scores(task: Task, at: Parameters, rows: tuple[Tensor, Tensor], images: int) -> Tensor:
    """Score the layers by each unit, float64 [N, layers]; each row sums to at most 1."""
    x, y = rows
    squares = torch.zeros(len(x), len(task.layers), dtype=torch.float64)
    sizes = torch.zeros(len(task.layers), dtype=torch.float64)
    for name, each in task.gradients(at, x, y, set(range(len(task.layers)))).items():
        squares[:, task.layer_of(name)] += each.double().flatten(1).square().sum(1)
        sizes[task.layer_of(name)] += at[name].numel()
    lengths = (squares / sizes).sqrt()
    total = lengths.sum(1, keepdim=True)
    of_records = torch.where(total > 0, lengths / total.clamp_min(1e-300), 0.0)
    return of_records.view(-1, images, len(task.layers)).mean(1)


def parts(method: str, mu: float) -> tuple[float, float]:
    """Divide a total mu between the histogram and the steps: their squares add up to mu^2."""
    if not method.startswith("private"):
        return 0.0, mu
    return mu * math.sqrt(SHARE), mu * math.sqrt(1 - SHARE)


def chosen(method: str, kept: int, key: Key, at: Parameters, mu: float) -> set[int]:
    """Return the numbers of the layers that are trained; `mu` is the histogram's."""
    task, seed = TASKS[key[0]], key[-1]
    rows, count = task.split(seed), len(task.layers)
    if method == "all":
        return set(range(count))
    if method == "last":
        return {count - 1}
    if method == "public":
        histogram = scores(task, at, rows.public, rows.images).sum(0)
    else:
        draw = np.random.default_rng([seed, 2]).normal(size=count)
        noise = torch.from_numpy(draw) / mu
        histogram = scores(task, at, rows.train, rows.images).sum(0) + noise
    order = histogram.argsort(descending=method != REVERSED)
    return set(order[:kept].tolist())


def trained(key: Key) -> Parameters:
    """Train once; the whole costs mu under zero-out, for one unit: a record, or a person's mean over their images."""
    start, epsilon, method, kept, lr, clip, seed = key
    task = TASKS[start]
    rows, at = task.split(seed), dict(task.start(seed))
    units = len(rows.train[0]) // rows.images
    of_histogram, of_steps = parts(method, mu_of_epsilon(epsilon, DELTA))
    layers = chosen(method, kept, key, at, of_histogram)
    noise = math.sqrt(task.steps) / of_steps * clip
    draw = torch.Generator().manual_seed(1000 + seed)
    for _ in range(task.steps):
        found = task.gradients(at, *rows.train, layers)
        if rows.images > 1:
            found = {k: g.view(units, rows.images, *g.shape[1:]).mean(1) for k, g in found.items()}
        squares = [g.double().flatten(1).square().sum(1) for g in found.values()]
        lengths = torch.stack(squares).sum(0).sqrt()
        factors = (clip / lengths.clamp_min(1e-300)).clamp(max=1.0).float()
        for name, each in found.items():
            total = torch.tensordot(factors, each, 1)
            total = total + noise * torch.randn(total.shape, generator=draw)
            at[name] = at[name] - lr * total / units
    return at


def accuracy(key: Key) -> float:
    """Train once, and return the accuracy: on validation rows for a tuning seed, else on the test rows."""
    task, seed = TASKS[key[0]], key[-1]
    rows = task.split(seed)
    x, y = rows.validation if seed in task.tuning_seeds else rows.test
    made = trained(key)
    with torch.no_grad():
        found = task.outputs(made, x).argmax(1)
    return float((found == y).double().mean())


class Runs:
    """Accuracies by key, kept in a file."""

    def __init__(self, file: Path) -> None:
        self.file, self.found = file, dict[Key, float]()
        if file.is_file():
            with open(file, newline="") as opened:
                for row in csv.DictReader(opened):
                    key = (row["start"], float(row["epsilon"]), row["method"], int(row["layers"]))
                    rest = (float(row["lr"]), float(row["clip"]), int(row["seed"]))
                    self.found[(*key, *rest)] = float(row["accuracy"])
        else:
            file.write_text(",".join(COLUMNS) + "\n")

    def __call__(self, key: Key) -> float:
        if key not in self.found:
            self.found[key] = accuracy(key)
            with open(self.file, "a", newline="") as opened:
                csv.writer(opened).writerow([*key, f"{self.found[key]:.6f}"])
        return self.found[key]


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of paired differences and its 95% interval by Student's t."""
    values = np.array(differences)
    mean, spread = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * spread
    return mean, mean - half, mean + half


def row(runs: Callable[[Key], float], start: str, epsilon: float) -> dict[str, Any]:
    """Play one start at one epsilon: every method, each with its own best setting."""
    found: dict[str, Any] = {"start": start, "epsilon": epsilon}
    by_method: dict[str, list[float]] = {}
    best: dict[str, tuple[int, float, float]] = {}
    task = TASKS[start]
    for method, kept in task.kept.items():

        def mean(setting: tuple[int, float, float], method: str = method) -> float:
            keys = [(start, epsilon, method, *setting, seed) for seed in task.tuning_seeds]
            return float(np.mean([runs(key) for key in keys]))

        settings = [(layers, *setting) for layers, setting in product(kept, task.settings)]
        best[method] = max(settings, key=mean)
    best[REVERSED] = best["private"]
    for method in METHODS:
        values = [runs((start, epsilon, method, *best[method], seed)) for seed in task.seeds]
        by_method[method] = values
        found[method] = float(np.mean(values))
        found[f"{method} setting"] = best[method]
        print(start, epsilon, method, found[method], best[method], flush=True)
    for rival in [name for name in METHODS if name != "private"]:
        pairs = zip(by_method["private"], by_method[rival], strict=True)
        found[f"private - {rival}"] = interval([a - b for a, b in pairs])
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The page's table."""
    rivals = [name for name in METHODS if name != "private"]
    heads = ["start", "epsilon", *METHODS, *(f"private - {rival}" for rival in rivals)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for one in rows:
        cells = [one["start"], f"{one['epsilon']:g}", *(f"{one[name]:.3f}" for name in METHODS)]
        for rival in rivals:
            mean, low, high = one[f"private - {rival}"]
            cells.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Play the cells asked for, write the figures of all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path("results/layers"))
    parser.add_argument("--start", choices=TASKS, action="append", help="default: all")
    parser.add_argument("--features", type=Path, help="file that keeps the features of Lite0")
    given = parser.parse_args()
    torch.set_num_threads(1)
    layers_lite0.kept_features = given.features
    given.into.mkdir(parents=True, exist_ok=True)
    file, runs = given.into / "layers.json", Runs(given.into / "runs.csv")
    from fedveil_lab.runs.provenance import provenance

    asked = given.start or list(TASKS)
    made = provenance(DATA, sorted({seed for name in asked for seed in TASKS[name].seeds}))
    made["command"] = " ".join(["python -m benchmarks.layers", *(f"--start {s}" for s in asked)])
    made["machine"] = machine("cpu")
    rows = {}
    if file.is_file():
        for old in json.loads(file.read_text())["rows"]:
            rows[old["start"], old["epsilon"]] = old
    for cell in product(asked, EPSILONS):
        rows[cell] = row(runs, *cell) | {"commit": made["commit"]}
        in_order = [rows[one] for one in product(TASKS, EPSILONS) if one in rows]
        file.write_text(json.dumps({"provenance": made, "rows": in_order}, indent=1) + "\n")
    print(table(in_order))


if __name__ == "__main__":
    main()
