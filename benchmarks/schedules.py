"""Does noise that falls over the rounds beat constant noise at the same total? Before any code of it in the library.

Run ``python -m benchmarks.schedules --into results/schedules`` in a checkout.

Gaussian rounds compose to mu^2 = sum of 1 / z_t^2, whatever the z_t. So a schedule z_t = s_t * z with public shape s_t
costs what constant noise costs if the sums are equal. *Falling*: z_t is geometric from 1 to 1/2. *Rising*: its
reverse, which has to lose. *Fitted* (with ``--fitted``): sigma_t^2 is
proportional to 1 / |w_t|, which is best to first order for the final model. The weight w_t is what is left of round t's
noise in the final outputs, measured for each learning rate and clip on 100 digits of MNIST without privacy. Each
schedule takes its learning rate and clip from the same grid, by validation rows of seeds that are not reported; the
test rows are used for the reported seeds alone.

Client level: ten clients, a mean of clipped updates with central noise. Record level: one silo, full batches of clipped
gradients with its own noise. Both are written out in NumPy, in float64, on scikit-learn's digits.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.datasets import load_digits

from benchmarks.records import machine
from benchmarks.regions import digits as mnist
from fedveil.gdp import mu_of_epsilon

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Setting = tuple[float, float]  # learning rate, clip

CLASSES, DELTA = 10, 1e-5
CLIENTS, ROUNDS, LOCAL_STEPS = 10, 15, 5
RECORDS, STEPS = 1000, 30
SEEDS, TUNING_SEEDS = tuple(range(10)), (100, 101, 102)
EPSILONS = {"client": (4.0, 8.0, 16.0), "record": (1.0, 4.0)}
GRID = {
    "client": tuple(product((0.3, 1.0, 3.0, 10.0), (0.3, 1.0, 3.0))),
    "record": tuple(product((2.0, 8.0, 32.0), (0.3, 1.0, 3.0))),
}
PUBLIC, NUDGE = 100, 1e-4  # public digits for fitted noise, and the size of a move on them
RATIOS = {"constant": 1.0, "falling": 0.5, "rising": 2.0}  # last noise over first


@dataclass(frozen=True)
class Split:
    """Rows of one seed."""

    x: Array
    y: Labels
    validation: tuple[Array, Labels]
    test: tuple[Array, Labels]


def split(seed: int) -> Split:
    """Draw a training set of 1,000 digits and 300 to validate; the same 497 are the test set of every seed."""
    images, labels = load_digits(return_X_y=True)
    x = np.hstack([images / 16, np.ones((len(images), 1))])
    fixed = np.random.default_rng(2026).permutation(len(x))
    test, rest = fixed[:497], np.random.default_rng(seed).permutation(fixed[497:])
    mine, others = rest[:RECORDS], rest[RECORDS:]
    return Split(x[mine], labels[mine], (x[others], labels[others]), (x[test], labels[test]))


def geometric(rounds: int, ratio: float) -> Array:
    """Return the shape [T] of noise that ends at `ratio` times its first value."""
    shape: Array = ratio ** np.linspace(0.0, 1.0, rounds)
    return shape


@cache
def fitted(level: str, setting: Setting) -> Array:
    """Return the shape [T] of noise that follows from its weights in the final outputs, on public digits of MNIST.

    One run without noise goes beside T others, each of which is moved a little after one round. What is left of that
    move in the outputs is the round's weight.
    """
    public, rounds = mnist(), LEVELS[level][1]
    images = public["train x"][:PUBLIC].flatten(1).double().numpy()
    x, y = np.hstack([images, np.ones((PUBLIC, 1))]), public["train y"][:PUBLIC].numpy()
    step = {"client": client_step, "record": record_step}[level]
    weights = np.zeros((rounds + 1, x.shape[1], CLASSES))
    move = NUDGE * np.random.default_rng(0).normal(size=weights.shape[1:])
    for t in range(rounds):
        weights = step(weights, x, y, setting)
        weights[t] += move
    left = np.sqrt(np.square(x @ (weights[:-1] - weights[-1])).mean((1, 2)))
    shape: Array = np.maximum(left, 1e-3 * left.max()) ** -0.5
    return shape


def client_step(weights: Array, x: Array, y: Labels, setting: Setting) -> Array:
    """Return weights [..., F, K] after a client's clipped update without noise."""
    lr, clip = setting
    own = weights.copy()
    for _ in range(LOCAL_STEPS):
        own -= lr * x.T @ residuals(x, y, own) / len(x)
    return weights + clipped(own - weights, clip)


def record_step(weights: Array, x: Array, y: Labels, setting: Setting) -> Array:
    """Return weights [..., F, K] after a full batch of clipped gradients without noise."""
    lr, clip = setting
    own = residuals(x, y, weights)
    lengths = np.linalg.norm(own, axis=-1, keepdims=True)
    lengths *= np.linalg.norm(x, axis=1)[:, None]
    own *= np.minimum(1.0, clip / np.maximum(lengths, 1e-300))
    return weights - lr * x.T @ own / len(x)


def multipliers(mu: float, shape: Array) -> Array:
    """Return noise multipliers [T] of a schedule's shape, whose total is mu: sum of 1 / z_t^2 = mu^2."""
    scaled: Array = shape * math.sqrt(float((shape**-2.0).sum())) / mu
    return scaled


def residuals(x: Array, y: Labels, weights: Array) -> Array:
    """Return the softmax less the label [..., n, K] of inputs [..., n, F] under weights [..., F, K]."""
    scores = x @ weights
    scores = scores - scores.max(-1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(-1, keepdims=True)
    rest: Array = chances - np.eye(CLASSES)[y]
    return rest


def clipped(vectors: Array, clip: float) -> Array:
    """Scale vectors [n, ...] down to a length of at most `clip`."""
    flat = vectors.reshape(len(vectors), -1)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    scaled: Array = flat * np.minimum(1.0, clip / np.maximum(lengths, 1e-300))
    return scaled.reshape(vectors.shape)


def by_clients(rows: Split, setting: Setting, noise: Array, draw: np.random.Generator) -> Array:
    """Train by federated averaging with central noise; return weights [F, K]."""
    lr, clip = setting
    x = rows.x.reshape(CLIENTS, -1, rows.x.shape[1])
    y = rows.y.reshape(CLIENTS, -1)
    weights = np.zeros((x.shape[2], CLASSES))
    for z in noise:
        own = np.repeat(weights[None], CLIENTS, 0)
        for _ in range(LOCAL_STEPS):
            own -= lr * x.transpose(0, 2, 1) @ residuals(x, y, own) / x.shape[1]
        mean = clipped(own - weights, clip).mean(0)
        weights = weights + mean + draw.normal(size=weights.shape) * z * clip / CLIENTS
    return weights


def by_records(rows: Split, setting: Setting, noise: Array, draw: np.random.Generator) -> Array:
    """Train one silo by full batches of clipped gradients with noise; return weights [F, K]."""
    lr, clip = setting
    norms = np.linalg.norm(rows.x, axis=1)
    weights = np.zeros((rows.x.shape[1], CLASSES))
    for z in noise:
        own = residuals(rows.x, rows.y, weights)
        lengths = np.linalg.norm(own, axis=1) * norms
        own *= np.minimum(1.0, clip / np.maximum(lengths, 1e-300))[:, None]
        total = rows.x.T @ own + draw.normal(size=weights.shape) * z * clip
        weights = weights - lr * total / len(rows.x)
    return weights


LEVELS: dict[str, tuple[Callable[..., Array], int]] = {
    "client": (by_clients, ROUNDS),
    "record": (by_records, STEPS),
}


def shape_of(level: str, schedule: str, setting: Setting) -> Array:
    """Return the shape [T] of a schedule's noise."""
    if schedule == "fitted":
        return fitted(level, setting)
    return geometric(LEVELS[level][1], RATIOS[schedule])


def accuracy(level: str, epsilon: float, schedule: str, setting: Setting, seed: int) -> float:
    """Train once, and return the accuracy: on validation rows for a tuning seed, else on the test rows."""
    train, _ = LEVELS[level]
    rows = split(seed)
    noise = multipliers(mu_of_epsilon(epsilon, DELTA), shape_of(level, schedule, setting))
    weights = train(rows, setting, noise, np.random.default_rng([seed, 1]))
    x, y = rows.validation if seed in TUNING_SEEDS else rows.test
    return float(((x @ weights).argmax(1) == y).mean())


def reported(level: str, epsilon: float, schedule: str) -> tuple[Setting, list[float]]:
    """Return the chosen setting, and the accuracies of the reported seeds with it."""

    def mean(setting: Setting) -> float:
        found = [accuracy(level, epsilon, schedule, setting, seed) for seed in TUNING_SEEDS]
        return float(np.mean(found))

    best = max(GRID[level], key=mean)
    return best, [accuracy(level, epsilon, schedule, best, seed) for seed in SEEDS]


def interval(differences: Array) -> tuple[float, float, float]:
    """Return the mean of paired differences and its 95% interval by Student's t."""
    mean = float(differences.mean())
    spread = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * spread
    return mean, mean - half, mean + half


def row(level: str, epsilon: float, schedules: Sequence[str]) -> dict[str, Any]:
    """Play one level at one epsilon: every schedule, each with its own best setting."""
    found: dict[str, Any] = {"level": level, "epsilon": epsilon}
    accuracies: dict[str, Array] = {}
    for name in schedules:
        setting, values = reported(level, epsilon, name)
        accuracies[name] = np.array(values)
        found[name] = float(accuracies[name].mean())
        found[f"{name} setting"] = setting
        found[f"{name} by seed"] = values
        if name == "fitted":
            shape = fitted(level, setting)
            found["fitted, last over first"] = float(shape[-1] / shape[0])
    for name in schedules[1:]:
        found[f"{name} - constant"] = interval(accuracies[name] - accuracies["constant"])
    print(json.dumps(found), flush=True)
    return found


def table(rows: list[dict[str, Any]], schedules: Sequence[str]) -> str:
    """The page's table."""
    heads = ["level", "epsilon", *schedules, *(f"{name} - constant" for name in schedules[1:])]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for one in rows:
        cells = [one["level"], f"{one['epsilon']:g}"]
        cells += [f"{one[name]:.3f}" for name in schedules]
        for name in schedules[1:]:
            mean, low, high = one[f"{name} - constant"]
            cells.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Play all rows, write their figures and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path("results/schedules"))
    parser.add_argument("--fitted", action="store_true", help="constant and fitted noise alone")
    given = parser.parse_args()
    schedules = ["constant", "fitted"] if given.fitted else list(RATIOS)
    cells = [(level, epsilon) for level, every in EPSILONS.items() for epsilon in every]
    rows = [row(level, epsilon, schedules) for level, epsilon in cells]
    from fedveil_lab.runs.provenance import provenance

    data = "digits of scikit-learn"
    if given.fitted:
        data += f", and {PUBLIC} of MNIST for the weights"
    made = provenance(data, list(SEEDS))
    flag, name = (" --fitted", "fitted.json") if given.fitted else ("", "schedules.json")
    made["command"] = f"python -m benchmarks.schedules{flag} --into {given.into}"
    made["machine"] = machine("cpu")
    given.into.mkdir(parents=True, exist_ok=True)
    body = json.dumps({"provenance": made, "rows": rows}, indent=1)
    (given.into / name).write_text(body + "\n")
    print(table(rows, schedules))


if __name__ == "__main__":
    main()
