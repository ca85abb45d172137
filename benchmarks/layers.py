"""Do layers that are chosen privately pay? Before any code of it in the library.

Run ``python -m benchmarks.layers --into results/layers`` in a checkout. Runs that stand in ``runs.csv`` are not played
again.

One silo trains a small CNN at record level, by full batches. At the start it may release one noised histogram of layer
scores. Each record's scores are scaled, by that record alone, to sum to 1. One record then moves the histogram by 1
under zero-out. The histogram and all steps together have the total of the other methods: mu^2 = mu_h^2 + T / z^2. What
follows from the histogram is post-processing: the layers with the largest scores are trained, the others stay as they
are. A score is the length of the layer's gradient, divided by the root of its size, as noise grows with that root.

Rivals at the same total: all layers; the layers that 100 public digits choose by the same rule, for free; the last
layer alone. As a control, the layers with the *smallest* noised scores. Each method takes learning rate, clip and its
number of layers from the same grid, by validation rows of seeds that are not reported; the control has those of the
choice that it reverses.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.records import machine
from benchmarks.regions import digits as mnist
from fedveil.gdp import mu_of_epsilon

RECORDS, PUBLIC, TEST, STEPS, DELTA = 500, 100, 497, 30, 1e-5
SEEDS, TUNING_SEEDS = (0, 1, 2, 3, 4), (100, 101)
EPSILONS = (4.0, 1.0)
STARTS = ("pretrained", "untrained")
SETTINGS = tuple(product((4.0, 16.0), (0.1, 0.5)))  # learning rate, clip
SHARE = 0.1  # of mu^2, for the histogram
LAYERS = 4
KEPT = {"all": (LAYERS,), "last": (1,), "public": (2, 3), "private": (2, 3)}
REVERSED = "private, reversed"  # at the settings of "private"
METHODS = (*KEPT, REVERSED)
COLUMNS = ("start", "epsilon", "method", "layers", "lr", "clip", "seed", "accuracy")

Key = tuple[str, float, str, int, float, float, int]
Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Split:
    """Rows of one seed: to train on, public ones, to choose settings by, to report on."""

    train: tuple[Tensor, Tensor]
    public: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@cache
def split(seed: int) -> Split:
    """Draw 500 digits to train on and 100 public ones; the same 497 are the test set of every seed."""
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy((images / 16).astype(np.float32)).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels.astype(np.int64))
    fixed = np.random.default_rng(2026).permutation(len(x))
    rest = np.random.default_rng(seed).permutation(fixed[TEST:])
    ends = (RECORDS, RECORDS + PUBLIC, len(rest))  # the last part: to choose settings by
    parts, begin = [], 0
    for end in ends:
        rows = torch.from_numpy(rest[begin:end])
        parts.append((x[rows], y[rows]))
        begin = end
    rows = torch.from_numpy(fixed[:TEST])
    return Split(parts[0], parts[1], parts[2], (x[rows], y[rows]))


def network(seed: int) -> nn.Sequential:
    """Make a CNN of two convolutions and two dense layers for images [N, 1, 8, 8]: 3,658 parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 32),
            nn.Tanh(),
            nn.Linear(32, 10),
        )


@cache
def pretrained() -> Parameters:
    """Train the network once on 5,000 digits of MNIST."""
    net = network(0)
    x, y = mnist()["train x"][:5000], mnist()["train y"][:5000]
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        rows = torch.randint(len(x), (128,), generator=generator)
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(net(x[rows]), y[rows]))
        optimizer.step()
    return {name: value.detach() for name, value in net.named_parameters()}


@cache
def start_of(kind: str, seed: int) -> Parameters:
    """Make the first parameters: drawn, or those of `pretrained` with a drawn last layer."""
    drawn = {name: value.detach() for name, value in network(seed).named_parameters()}
    if kind == "pretrained":
        last = {name: value for name, value in drawn.items() if layer_of(name) == LAYERS - 1}
        return pretrained() | last
    return drawn


NET = network(0)
NAMES = list(dict.fromkeys(name.split(".")[0] for name, _ in NET.named_parameters()))


def gradients(at: Parameters, x: Tensor, y: Tensor, layers: set[int]) -> Parameters:
    """Return some layers' gradients of single examples, [N, ...]; convolutions as products with patches."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    hidden = x
    for name in NAMES:
        weight, bias = at[f"{name}.weight"], at[f"{name}.bias"]
        if weight.dim() == 4:
            inputs.append(F.unfold(hidden, 3, padding=1))
            outputs.append((weight.flatten(1) @ inputs[-1] + bias[:, None]).requires_grad_())
            side = hidden.shape[-1]
            hidden = F.avg_pool2d(outputs[-1].tanh().view(len(x), -1, side, side), 2)
        else:
            inputs.append(hidden.flatten(1)[:, :, None])
            outputs.append((weight @ inputs[-1] + bias[:, None]).requires_grad_())
            hidden = outputs[-1].tanh()
    loss = F.cross_entropy(outputs[-1].squeeze(2), y, reduction="sum")
    asked = sorted(layers)
    slopes = torch.autograd.grad(loss, [outputs[layer] for layer in asked])
    found: Parameters = {}
    for layer, slope in zip(asked, slopes, strict=True):
        name = NAMES[layer]
        rows = slope @ inputs[layer].detach().transpose(1, 2)
        found[f"{name}.weight"] = rows.view(len(x), *at[f"{name}.weight"].shape)
        found[f"{name}.bias"] = slope.sum(2)
    return found


def layer_of(name: str) -> int:
    """Return the number of a parameter's layer."""
    return NAMES.index(name.split(".")[0])


def scores(at: Parameters, x: Tensor, y: Tensor) -> Tensor:
    """Score the layers by each record, float64 [N, layers]; each row sums to 1, or is 0."""
    squares = torch.zeros(len(x), LAYERS, dtype=torch.float64)
    sizes = torch.zeros(LAYERS, dtype=torch.float64)
    for name, rows in gradients(at, x, y, set(range(LAYERS))).items():
        squares[:, layer_of(name)] += rows.double().flatten(1).square().sum(1)
        sizes[layer_of(name)] += at[name].numel()
    lengths = (squares / sizes).sqrt()
    total = lengths.sum(1, keepdim=True)
    return torch.where(total > 0, lengths / total.clamp_min(1e-300), 0.0)


def parts(method: str, mu: float) -> tuple[float, float]:
    """Divide a total mu between the histogram and the steps: their squares add up to mu^2."""
    if not method.startswith("private"):
        return 0.0, mu
    return mu * math.sqrt(SHARE), mu * math.sqrt(1 - SHARE)


def chosen(method: str, kept: int, at: Parameters, rows: Split, mu: float, seed: int) -> set[int]:
    """Return the numbers of the layers that are trained; `mu` is the histogram's."""
    if method == "all":
        return set(range(LAYERS))
    if method == "last":
        return {LAYERS - 1}
    if method == "public":
        histogram = scores(at, *rows.public).sum(0)
    else:
        draw = np.random.default_rng([seed, 2]).normal(size=LAYERS)
        noise = torch.from_numpy(draw) / mu
        histogram = scores(at, *rows.train).sum(0) + noise
    order = histogram.argsort(descending=method != REVERSED)
    return set(order[:kept].tolist())


def trained(key: Key) -> Parameters:
    """Train once; the whole costs mu under zero-out."""
    start, epsilon, method, kept, lr, clip, seed = key
    rows, at = split(seed), dict(start_of(start, seed))
    of_histogram, of_steps = parts(method, mu_of_epsilon(epsilon, DELTA))
    layers = chosen(method, kept, at, rows, of_histogram, seed)
    noise = math.sqrt(STEPS) / of_steps * clip
    draw = torch.Generator().manual_seed(1000 + seed)
    for _ in range(STEPS):
        found = gradients(at, *rows.train, layers)
        squares = [g.double().flatten(1).square().sum(1) for g in found.values()]
        lengths = torch.stack(squares).sum(0).sqrt()
        factors = (clip / lengths.clamp_min(1e-300)).clamp(max=1.0).float()
        for name, each in found.items():
            total = torch.tensordot(factors, each, 1)
            total = total + noise * torch.randn(total.shape, generator=draw)
            at[name] = at[name] - lr * total / RECORDS
    return at


def accuracy(key: Key) -> float:
    """Train once, and return the accuracy: on validation rows for a tuning seed, else on the test rows."""
    rows, seed = split(key[-1]), key[-1]
    x, y = rows.validation if seed in TUNING_SEEDS else rows.test
    outputs = functional_call(NET, trained(key), (x,))
    return float((outputs.argmax(1) == y).double().mean())


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
    for method, kept in KEPT.items():

        def mean(setting: tuple[int, float, float], method: str = method) -> float:
            keys = [(start, epsilon, method, *setting, seed) for seed in TUNING_SEEDS]
            return float(np.mean([runs(key) for key in keys]))

        settings = [(layers, *setting) for layers, setting in product(kept, SETTINGS)]
        best[method] = max(settings, key=mean)
    best[REVERSED] = best["private"]
    for method in METHODS:
        values = [runs((start, epsilon, method, *best[method], seed)) for seed in SEEDS]
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
    """Play all rows, write their figures and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path("results/layers"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.into.mkdir(parents=True, exist_ok=True)
    runs = Runs(given.into / "runs.csv")
    from fedveil_lab.runs.provenance import provenance

    made = provenance("digits of scikit-learn; MNIST in averages of 3x3 pixels", list(SEEDS))
    made["command"] = f"python -m benchmarks.layers --into {given.into}"
    made["machine"] = machine("cpu")
    rows = []
    for start, epsilon in product(STARTS, EPSILONS):
        rows.append(row(runs, start, epsilon))
        body = json.dumps({"provenance": made, "rows": rows}, indent=1)
        (given.into / "layers.json").write_text(body + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
