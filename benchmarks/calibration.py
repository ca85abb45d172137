"""Does any schedule of noise beat constant noise at an equal total? Persons and records, fixed and adaptive schedules.

Run ``python -m benchmarks.calibration --task writers --into results/formal-calibration`` in a checkout, and the same for
``blood-cells`` and ``alzheimer``. Runs that stand in the table of the task are not played again.

Gaussian full batches compose to mu^2 = sum of mu_t^2 with mu_t = 1 / z_t, whatever z_t is, also if z_t follows earlier
releases: a filter stops before the sum exceeds the total. So each schedule spends the same mu:

* *constant*; *falling*: z_t geometric, its last value half of its first; *rising*: the reverse.
* *fitted*: z_t^2 proportional to 1 / |w_t|. The weight w_t is what is left of round t's noise in the final outputs. It
  is measured on public rows, with the momentum, rate and clip in use. *Fitted, reversed*: the same in reverse order.
* *adaptive*: mu_t^2 is what remains for each round, times the first signal over the last one, between a quarter and
  four. A signal is the length of a released mean, less what noise adds to it in the mean. *Adaptive, reversed*: times
  the inverse.
* *adaptive clip*: z_t is constant, and the clip is the first one times the last signal over the first, between a
  quarter and one.

Each schedule takes the length of its steps and its clip from the same grid, by validation rows under noise of two seeds
that are not reported. The test rows are used for the reported seeds alone. All of it is written out in NumPy, in
float32, as the library has no schedules: noised full batches with momentum .9.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.calibration_tasks import DATA, MAKERS, Floats, Rows, Setting, Task, Units, task
from benchmarks.records import machine
from benchmarks.schedules import geometric, interval
from fedveil.gdp import mu_of_epsilon

Array = NDArray[np.float64]
Run = tuple[Setting, int]  # a setting, and the seed of its noise

DELTA, MOMENTUM = 1e-5, 0.9
SEEDS, TUNING_SEEDS = (0, 1, 2, 3, 4), (100, 101)
CELLS = (("trusted", 1.0), ("none", 4.0), ("trusted", 4.0), ("none", 1.0))  # trust, total epsilon
# Settings in addition to the task's, where noise is so loud that the best steps are shorter.
SHORTER = {("writers", "none", 1.0): ((0.05, 0.05), (0.1, 0.05), (0.1, 0.1))}
AT_ONCE = 12  # runs that are computed together
NUDGE = 1e-3  # a move on public rows, in lengths of a step
LEAST, MOST = 0.25, 4.0  # of an adaptive factor
REVERSES = {
    "falling": "rising",
    "fitted": "fitted, reversed",
    "adaptive": "adaptive, reversed",
}
SCHEDULES = ("constant", *REVERSES, *REVERSES.values(), "adaptive clip")
COLUMNS = ("task", "trust", "epsilon", "schedule", "step", "clip", "seed", "accuracy")

Key = tuple[str, str, float, str, float, float, int]


@dataclass(frozen=True)
class Play:
    """Runs of one schedule at one total.

    Attributes
    ----------
    units : Units
        What is trained on.
    planned : float
        Divisor of sums.
    steps : int
        Full batches.
    mu : float
        Total of all steps.
    scale : float
        Deviation of a sum's noise, in clips over mu_t.
    """

    units: Units
    planned: float
    steps: int
    mu: float
    scale: float


def scale_of(trust: str, silos: int) -> float:
    """Return the deviation of the summed noise of all silos, in clips over mu_t.

    Without trust each silo adds noise for itself. A trusted sum is sized against one silo that leaves its share out.
    """
    return math.sqrt(silos) if trust == "none" else math.sqrt(silos / (silos - 1))


def costs(shape: Array, mu: float) -> Array:
    """Return mu_t^2 [T] of noise with a public shape, whose total is mu."""
    parts: Array = shape**-2.0
    return mu**2 * parts / parts.sum()


def adaptive(remaining: Array, left: int, signal: Array, first: Array, power: float) -> Array:
    """Return mu_t^2 [B] of the next round, from what was released.

    Parameters
    ----------
    remaining : array
        What is left of mu^2 [B].
    left : int
        Rounds that are left.
    signal, first : array
        Last and first length of a released mean, less its noise [B].
    power : float
        1, or -1 for the reverse.

    Returns
    -------
    array
        At most half of what remains; all of it in the last round.
    """
    if left == 1:
        return remaining
    factor = np.clip((first / signal) ** power, LEAST, MOST)
    return np.minimum(factor * remaining / left, remaining / 2)


def trained(
    play: Play, schedule: str, settings: Sequence[Setting], draws: Floats, shapes: Array
) -> tuple[Floats, Array]:
    """Train several runs by noised full batches with momentum.

    Parameters
    ----------
    play : Play
        What is trained, and the total.
    schedule : str
        Of `SCHEDULES`.
    settings : sequence of pairs
        One for each of B runs.
    draws : array
        Standard normal numbers [B, T, F, C].
    shapes : array
        Public shapes of noise [B, T]; adaptive schedules use none.

    Returns
    -------
    array
        Models [B, F, C].
    array
        What each round cost, mu_t^2 [B, T].
    """
    lengths, clips = (np.array(part) for part in zip(*settings, strict=True))
    rates = lengths / clips
    weights = np.zeros((len(settings), *draws.shape[2:]), np.float32)
    velocity = np.zeros_like(weights)
    spent = np.zeros((len(settings), play.steps))
    fixed = np.stack([costs(shape, play.mu) for shape in shapes])
    signal = first = np.ones(len(settings))
    for t in range(play.steps):
        remaining = np.maximum(play.mu**2 - spent.sum(1), 0.0)
        if schedule.startswith("adaptive") and schedule != "adaptive clip":
            power = -1.0 if schedule.endswith("reversed") else 1.0
            spent[:, t] = adaptive(remaining, play.steps - t, signal, first, power)
        else:
            spent[:, t] = fixed[:, t]
        own = clips * np.clip(signal / first, LEAST, 1.0) if schedule == "adaptive clip" else clips
        deviation = play.scale * own / np.sqrt(spent[:, t]) / play.planned
        mean = play.units.clipped_sums(weights, own.astype(np.float32)) / play.planned
        mean += deviation[:, None, None] * draws[:, t]
        squares = np.square(mean, dtype=np.float64).sum((1, 2))
        without = squares - deviation**2 * mean[0].size
        signal = np.sqrt(np.maximum(without, (0.05 * own) ** 2))
        if t == 0:
            first = signal
        velocity = MOMENTUM * velocity - rates[:, None, None] * mean
        weights = (weights + velocity).astype(np.float32)
    return weights, spent


def fitted(public: Units, setting: Setting, steps: int) -> Array:
    """Return the shape [T] of noise that follows from its weights in the final outputs on public rows.

    One run without noise goes beside T others, each of which is moved a little in one round's mean. What is left of
    that move in the outputs is the round's weight.
    """
    length, clip = setting
    width, classes = public.x.shape[2], public.targets.shape[2]
    weights = np.zeros((steps + 1, width, classes), np.float32)
    velocity = np.zeros_like(weights)
    move = np.random.default_rng(0).normal(size=(width, classes)).astype(np.float32)
    move *= NUDGE * clip / np.linalg.norm(move)
    clips = np.full(steps + 1, clip, np.float32)
    for t in range(steps):
        mean = public.clipped_sums(weights, clips) / public.count
        mean[t] += move
        velocity = MOMENTUM * velocity - length / clip * mean
        weights = weights + velocity
    rows = public.x[public.targets.any(-1)].astype(np.float64)
    left = np.array([np.linalg.norm(rows @ (one - weights[-1])) for one in weights[:-1]])
    shape: Array = np.maximum(left, 1e-3 * left.max()) ** -0.5
    return shape


@cache
def shape_of(name: str, schedule: str, setting: Setting) -> tuple[float, ...]:
    """Return a schedule's public shape [T]; constant for adaptive ones."""
    some = task(name)
    ratios = {"falling": 0.5, "rising": 2.0}
    if schedule.startswith("fitted"):
        shape = fitted(some.public, setting, some.steps)
        if schedule.endswith("reversed"):
            shape = shape[::-1]
    else:
        shape = geometric(some.steps, ratios.get(schedule, 1.0))
    return tuple(shape.tolist())


def draws_of(seed: int, steps: int, width: int, classes: int) -> Floats:
    """Return the standard normal numbers [T, F, C] of a seed, the same for every schedule and setting."""
    draw = np.random.default_rng([seed, 50])
    return draw.standard_normal((steps, width, classes), dtype=np.float32)


def share_right(weights: Floats, rows: Rows) -> float:
    """Return the accuracy of a model [F, C]."""
    x, y = rows
    return float(((x @ weights).argmax(1) == y).mean())


def played(
    name: str, trust: str, epsilon: float, schedule: str, runs: Sequence[Run]
) -> list[float]:
    """Play runs of one schedule; accuracy on validation rows for tuning seeds, else on test rows."""
    some = task(name)
    width, classes = some.units.x.shape[2], some.units.targets.shape[2]
    mu = mu_of_epsilon(epsilon, DELTA)
    play = Play(some.units, some.planned, some.steps, mu, scale_of(trust, some.silos))
    found: list[float] = []
    for begin in range(0, len(runs), AT_ONCE):
        part = runs[begin : begin + AT_ONCE]
        draws = np.stack([draws_of(seed, some.steps, width, classes) for _, seed in part])
        shapes = np.array([shape_of(name, schedule, setting) for setting, _ in part])
        models, spent = trained(play, schedule, [setting for setting, _ in part], draws, shapes)
        assert (spent.sum(1) <= mu**2 * (1 + 1e-9)).all()
        for weights, (_, seed) in zip(models, part, strict=True):
            rows = some.validation if seed in TUNING_SEEDS else some.test
            found.append(share_right(weights, rows))
    return found


class Played:
    """Accuracies of runs, kept in a file.

    Parameters
    ----------
    file : Path
        Table of runs; what stands there is not played again.
    play : callable
        Plays runs of one cell and schedule, and returns their accuracies.
    """

    def __init__(self, file: Path, play: Callable[..., list[float]]) -> None:
        self._file = file
        self._play = play
        self._found: dict[Key, float] = {}
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(",".join(COLUMNS) + "\n")
        with open(file, newline="") as opened:
            for row in csv.DictReader(opened):
                numbers = (float(row["step"]), float(row["clip"]), int(row["seed"]))
                key = (row["task"], row["trust"], float(row["epsilon"]), row["schedule"], *numbers)
                self._found[key] = float(row["accuracy"])

    def find(
        self, name: str, trust: str, epsilon: float, schedule: str, runs: Sequence[Run]
    ) -> list[float]:
        """Return the accuracies of runs, of which unknown ones are played together."""
        keys = [(name, trust, epsilon, schedule, *setting, seed) for setting, seed in runs]
        new = [run for key, run in zip(keys, runs, strict=True) if key not in self._found]
        values = self._play(name, trust, epsilon, schedule, new) if new else []
        for (setting, seed), value in zip(new, values, strict=True):
            key = (name, trust, epsilon, schedule, *setting, seed)
            self._found[key] = value
            with open(self._file, "a", newline="") as opened:
                csv.writer(opened).writerow([*key, f"{value:.6f}"])
        return [self._found[key] for key in keys]


def row(find: Callable[..., list[float]], some: Task, trust: str, epsilon: float) -> dict[str, Any]:
    """Play one cell: every schedule with its own best setting, beside constant noise and beside its reverse."""
    found: dict[str, Any] = {
        "task": some.name,
        "level": some.level,
        "trust": trust,
        "epsilon": epsilon,
    }
    by_seed: dict[str, Array] = {}
    settings = (*SHORTER.get((some.name, trust, epsilon), ()), *some.settings)
    for schedule in SCHEDULES:
        tuning = [(setting, seed) for setting in settings for seed in TUNING_SEEDS]
        values = np.array(find(some.name, trust, epsilon, schedule, tuning))
        means = values.reshape(len(settings), len(TUNING_SEEDS)).mean(1)
        best = settings[int(means.argmax())]
        reported = find(some.name, trust, epsilon, schedule, [(best, seed) for seed in SEEDS])
        by_seed[schedule] = np.array(reported)
        found[schedule] = float(np.mean(reported))
        found[f"{schedule} setting"] = best
        if schedule == "fitted":
            shape = shape_of(some.name, schedule, best)
            found["fitted, last over first"] = shape[-1] / shape[0]
            found["fitted, middle over first"] = shape[len(shape) // 2] / shape[0]
    for schedule in SCHEDULES[1:]:
        found[f"{schedule} - constant"] = interval(by_seed[schedule] - by_seed["constant"])
    for schedule, reverse in REVERSES.items():
        found[f"{schedule} - {reverse}"] = interval(by_seed[schedule] - by_seed[reverse])
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    """Play all cells of one task and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--task", choices=sorted(MAKERS), required=True)
    parser.add_argument("--into", type=Path, default=Path("results/formal-calibration"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    from fedveil_lab.runs.provenance import provenance

    made = provenance(DATA[given.task], list(SEEDS))
    made["command"] = f"python -m benchmarks.calibration --task {given.task} --into {given.into}"
    made["machine"] = machine("cpu")
    made["tuning seeds"] = list(TUNING_SEEDS)
    runs = Played(given.into / f"{given.task}.csv", played)
    rows = []
    for trust, epsilon in CELLS:
        rows.append(row(runs.find, task(given.task), trust, epsilon))
        body = json.dumps({"provenance": made, "rows": rows}, indent=1)
        (given.into / f"{given.task}.json").write_text(body + "\n")


if __name__ == "__main__":
    main()
