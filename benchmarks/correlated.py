"""Does correlated noise beat independent noise where lots or cohorts are sampled? A map of errors, and runs.

Run ``python -m benchmarks.correlated --into results/formal-calibration`` in a checkout. Runs that stand in
``correlated.csv``, and errors in ``correlated.json``, are not computed again.

A banded factor C [T, T] has columns of length 1, and each begins at its own round and lasts b rounds. Noise of the
rounds is C^-1 Z with independent Z. Units are dealt to b buckets at random. Round t draws from bucket t mod b alone,
each unit with rate b q. So a unit's rounds lie at least b apart, and their columns share no row. Hence T rounds cost
what T / b Poisson lots of rate b q cost with the noise of Z (Choquette-Choo and others 2023, arXiv 2306.08153). Band 1
is independent noise with lots of rate q. Bands are longer, and lots for the accountant larger.

Errors are of all sums of updates up to a round, and of the last one, in clips. jax-privacy 2.0.0 has the same factors
and costs (``benchmarks/jax_privacy_figures.py``; tested).

At *full participation* a unit's contributions may point the same way in every round. So the sensitivity is the length
of C 1, and no factor lowers the noise of the last sum below that of independent noise. One such run is the control.

The relation is zero-out, and the promise holds against those who do not see who was drawn.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.signal
import torch
from numpy.typing import NDArray

from benchmarks.calibration import (
    DELTA,
    MOMENTUM,
    SEEDS,
    TUNING_SEEDS,
    Played,
    Run,
    draws_of,
    share_right,
)
from benchmarks.calibration_tasks import GRIDS, Floats, Setting, Task, task
from benchmarks.records import machine
from benchmarks.schedules import interval
from fedveil.accounting import least_noise
from fedveil.gdp import mu_of_epsilon

Array = NDArray[np.float64]

# rate of a lot or cohort, rounds
REGIMES = ((0.3, 30), (0.1, 25), (0.1, 100), (0.05, 200))
EPSILONS = (1.0, 4.0, 8.0)
BANDS = (1, 2, 4, 8, 16)
# task, rate (1: full participation), rounds, total epsilon
PLAYED = (
    ("writers", 0.1, 25, 1.0),
    ("writers", 0.1, 25, 4.0),
    ("few-writers", 0.1, 100, 8.0),
    ("few-writers", 0.1, 25, 8.0),
    ("few-writers", 0.1, 100, 4.0),
    ("writers", 1.0, 25, 1.0),
    ("writers", 0.1, 100, 4.0),
    ("writers", 0.1, 100, 1.0),
    ("writers", 0.1, 25, 8.0),
    ("few-writers", 1.0, 25, 8.0),
    ("few-writers", 1.0, 10, 8.0),
    ("few-writers", 1.0, 25, 4.0),
    ("few-writers", 1.0, 10, 4.0),
    ("alzheimer", 0.05, 200, 8.0),
    ("alzheimer", 0.05, 200, 4.0),
    ("alzheimer", 1.0, 60, 8.0),
    ("alzheimer", 1.0, 60, 4.0),
)
CONTROL = 4  # band at full participation
# Settings in addition to the task's, as more rounds need shorter steps.
SHORTER = tuple(product((0.05, 0.1), (0.05, 0.1)))


def prefix(rounds: int) -> Array:
    """Return coefficients [T] of prefix sums."""
    return np.ones(rounds)


def with_momentum(rounds: int) -> Array:
    """Return coefficients [T]: what an update is worth in the models after it."""
    found: Array = np.cumsum(MOMENTUM ** np.arange(rounds))
    return found


def inverse(coefficients: Array, rounds: int) -> Array:
    """Return coefficients [T] of the inverse of a lower triangular Toeplitz matrix."""
    impulse = np.zeros(rounds)
    impulse[0] = 1.0
    found: Array = scipy.signal.lfilter([1.0], coefficients, impulse)
    return found


def error_of(coefficients: Array, workload: Array) -> tuple[float, Array]:
    """Return the mean squared error of a Toeplitz factor times its squared length, and the gradient [b]."""
    rounds, bands = len(workload), len(coefficients)
    own = inverse(coefficients, rounds)
    left = np.convolve(workload, own)[:rounds]
    share = np.arange(rounds, 0, -1) / rounds  # of all models that a place is summed in
    error = float(share @ left**2)
    square = float(coefficients @ coefficients)
    twice = np.convolve(left, own)[:rounds]
    slope = np.array([share[j:] @ (left[j:] * twice[: rounds - j]) for j in range(bands)])
    return error * square, 2 * error * coefficients - 2 * square * slope


def best_factor(bands: int, workload: Array) -> Array:
    """Return coefficients [b] of length 1 with the least mean squared error."""
    steps = np.arange(1, bands)
    start = np.cumprod(np.concatenate([[1.0], (2 * steps - 1) / (2 * steps)]))
    found = scipy.optimize.minimize(error_of, start, args=(workload,), jac=True, method="L-BFGS-B")
    best: Array = found.x / np.linalg.norm(found.x)
    return best


@cache
def strategy(bands: int, rounds: int, momentum: bool) -> Array:
    """Return the factor C [T, T] with columns of length 1."""
    workload = with_momentum(rounds) if momentum else prefix(rounds)
    column = np.zeros(rounds)
    column[:bands] = best_factor(bands, workload)
    matrix: Array = scipy.linalg.toeplitz(column, np.zeros(rounds))
    matrix /= np.linalg.norm(matrix, axis=0)
    return matrix


def errors(bands: int, workload: Array, momentum: bool = False) -> tuple[float, float]:
    """Return root mean squared errors of all models and of the last one, for noise of deviation 1."""
    rounds = len(workload)
    whole = scipy.linalg.toeplitz(workload, np.zeros(rounds))
    left = whole @ np.linalg.inv(strategy(bands, rounds, momentum))
    squares = np.square(left).sum(1)
    return math.sqrt(squares.mean()), math.sqrt(squares[-1])


@cache
def sampled_noise(epsilon: float, rate: float, rounds: int, bands: int) -> float:
    """Return the noise multiplier of Z: T / b lots of rate b q."""
    for one in known_map():
        if (one["rate"], one["rounds"], one["epsilon"]) == (rate, rounds, epsilon):
            [found] = [row["noise"] for row in one["bands"] if row["bands"] == bands]
            return float(found)
    participations = math.ceil(rounds / bands)
    return least_noise(epsilon, DELTA, participations, rate=min(1.0, bands * rate))


def full_noise(epsilon: float, factor: Array) -> float:
    """Return the noise multiplier of Z if every unit is in every round.

    Contributions of length 1 in every round change C x by at most the length of |C| 1.
    """
    return float(np.linalg.norm(np.abs(factor).sum(1))) / mu_of_epsilon(epsilon, DELTA)


@cache
def known_map(file: Path = Path("results/formal-calibration/correlated.json")) -> Sequence[Any]:
    """Return the map that stands in the file."""
    return tuple(json.loads(file.read_text())["map"]) if file.is_file() else ()


def bands_of(rate: float, rounds: int) -> list[int]:
    """Return the bands that a rate and a number of rounds allow."""
    return [band for band in BANDS if band * rate <= 1 and band <= rounds]


def regime(rate: float, rounds: int, epsilon: float) -> dict[str, Any]:
    """Return the errors of every band, in clips, and the best band's over those of independent noise."""
    rows = []
    for bands in bands_of(rate, rounds):
        noise = sampled_noise(epsilon, rate, rounds, bands)
        mean, last = errors(bands, prefix(rounds))
        rows.append({"bands": bands, "noise": noise, "mean": noise * mean, "last": noise * last})
    best = min(rows, key=lambda row: row["mean"])
    found = {
        "rate": rate,
        "rounds": rounds,
        "epsilon": epsilon,
        "bands": rows,
        "best band": best["bands"],
        "mean over independent": best["mean"] / rows[0]["mean"],
        "last over independent": best["last"] / rows[0]["last"],
    }
    print(json.dumps({key: value for key, value in found.items() if key != "bands"}), flush=True)
    return found


def lots(count: int, rate: float, rounds: int, bands: int, seed: int) -> list[NDArray[np.int64]]:
    """Draw who is in each round: buckets at random, then Poisson lots of rate b q from one bucket after another."""
    draw = np.random.default_rng([seed, 51])
    bucket = draw.integers(bands, size=count)
    found = []
    for t in range(rounds):
        mine = np.flatnonzero(bucket == t % bands)
        found.append(mine[draw.random(len(mine)) < bands * rate])
    return found


def trained(
    some: Task,
    rate: float,
    rounds: int,
    bands: int,
    noise: float,
    settings: Sequence[Setting],
    seed: int,
) -> Floats:
    """Train with several settings on the same lots and noise; return models [B, F, C]."""
    lengths, clips = (np.array(part, np.float32) for part in zip(*settings, strict=True))
    width, classes = some.units.x.shape[2], some.units.targets.shape[2]
    draws = draws_of(seed, rounds, width, classes)
    factor = strategy(bands, rounds, True)
    correlated = scipy.linalg.solve_triangular(factor, draws.reshape(rounds, -1), lower=True)
    correlated = correlated.reshape(draws.shape).astype(np.float32) * np.float32(noise)
    every = lots(some.units.count, rate, rounds, bands, seed) if rate < 1 else []
    weights = np.zeros((len(settings), width, classes), np.float32)
    velocity = np.zeros_like(weights)
    for t in range(rounds):
        units = some.units.some(every[t]) if rate < 1 else some.units
        total = clips[:, None, None] * correlated[t]
        if units.count:
            total = total + units.clipped_sums(weights, clips)
        mean = total / np.float32(rate * some.planned)
        velocity = MOMENTUM * velocity - (lengths / clips)[:, None, None] * mean
        weights = (weights + velocity).astype(np.float32)
    return weights


def played(
    name: str, place: str, epsilon: float, schedule: str, runs: Sequence[Run]
) -> list[float]:
    """Play runs of one band, by seed; accuracy on validation rows for tuning seeds, else on test rows."""
    rate, rounds = (float(part) for part in place.split(" x "))
    bands, some = int(schedule.removeprefix("band ")), task(name)
    if rate < 1:
        noise = sampled_noise(epsilon, rate, int(rounds), bands)
    else:
        noise = full_noise(epsilon, strategy(bands, int(rounds), True))
    found: dict[Run, float] = {}
    for seed in dict.fromkeys(seed for _, seed in runs):
        settings = [setting for setting, own in runs if own == seed]
        models = trained(some, rate, int(rounds), bands, noise, settings, seed)
        rows = some.validation if seed in TUNING_SEEDS else some.test
        for setting, weights in zip(settings, models, strict=True):
            found[setting, seed] = share_right(weights, rows)
    return [found[run] for run in runs]


def row(
    find: Callable[..., list[float]], name: str, rate: float, rounds: int, epsilon: float
) -> dict[str, Any]:
    """Play one cell: independent noise, and the best longer band by its public error."""
    place = f"{rate:g} x {rounds}"

    def error(bands: int) -> float:
        mean, _ = errors(bands, with_momentum(rounds), True)
        return mean * sampled_noise(epsilon, rate, rounds, bands)

    longer = CONTROL if rate == 1 else min(bands_of(rate, rounds)[1:], key=error)
    found: dict[str, Any] = {
        "task": name,
        "rate": rate,
        "rounds": rounds,
        "epsilon": epsilon,
        "band": longer,
    }
    settings = (*SHORTER, *GRIDS[name])
    values: dict[str, Array] = {}
    for label, bands in (("independent", 1), ("banded", longer)):
        schedule = f"band {bands}"
        tuning = [(setting, seed) for setting in settings for seed in TUNING_SEEDS]
        tried = np.array(find(name, place, epsilon, schedule, tuning))
        best = settings[int(tried.reshape(-1, len(TUNING_SEEDS)).mean(1).argmax())]
        reported = find(name, place, epsilon, schedule, [(best, seed) for seed in SEEDS])
        values[label] = np.array(reported)
        found[label] = float(values[label].mean())
        found[f"{label} setting"] = best
    found["banded - independent"] = interval(values["banded"] - values["independent"])
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    """Draw the map, play the cells and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path("results/formal-calibration"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    from fedveil_lab.runs.provenance import provenance

    made = provenance("MNIST with its writers; Alzheimer images of 32x32 pixels", list(SEEDS))
    made["command"] = f"python -m benchmarks.correlated --into {given.into}"
    made["machine"] = machine("cpu")
    made["tuning seeds"] = list(TUNING_SEEDS)
    file = given.into / "correlated.json"
    known = {(one["rate"], one["rounds"], one["epsilon"]): one for one in known_map()}
    found = []
    for (rate, rounds), epsilon in product(REGIMES, EPSILONS):
        found.append(known.get((rate, rounds, epsilon)) or regime(rate, rounds, epsilon))
    runs = Played(given.into / "correlated.csv", played)
    rows: list[dict[str, Any]] = []
    for cell in PLAYED:
        rows.append(row(runs.find, *cell))
        body = json.dumps({"provenance": made, "map": found, "rows": rows}, indent=1)
        file.write_text(body + "\n")


if __name__ == "__main__":
    main()
