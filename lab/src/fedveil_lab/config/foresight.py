"""Forecast the result of a noisy run without its data, by a formula for a synthetic task.

In the task each class is a round cloud of rows. The centres of the clouds are orthogonal and equally far from the
origin. A model that knew them would score `reach`. A linear model sums clipped gradients and noise. The forecast
depends on the *pull* (`pull_of`). It is the distance, in standard deviations of the noise, by which all steps move the
model if every unit pulls the same way. The units' mean direction is shorter, and follows from the task.

The forecast uses declared numbers only, so it costs no privacy. Its two constants are fitted to the runs of
results/first-settings. Their errors are measured there on left-out data sets (`benchmarks/first_foresight.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from fedveil.errors import FieldError
from fedveil.methods import GlobalDP, RecordDP

REACH = {"classes": 0.9, "numbers": 0.3}  # where nobody says one: a clear task
PULL = 0.7  # of real units beside those that are made up, whose directions agree more
IMAGE = 0.6  # power of its places, whose directions an image has: neighbours look alike, and colours even more
WIDTH = 1.96  # deviations of a 95% interval
SIGN = math.sqrt(2 / math.pi)  # mean length of a number of deviation 1
GRID = np.linspace(-8.0, 16.0, 481)
DENSITY = np.exp(-0.5 * GRID**2) / math.sqrt(2 * math.pi) * (GRID[1] - GRID[0])


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Declared sizes of a learning task.

    Attributes
    ----------
    classes : int
        Number of classes; 0 for regression.
    inputs : int
        Number of inputs of the linear model.
    image : bool
        Whether the inputs are pixels.
    units : int
        Number of protected units (rows, persons or clients) that train, over all clients.
    rows : float
        Average number of rows per unit.
    held_out : float
        Number of rows on which the score is measured.
    weighing : float
        Mean weight of a row; weights multiply clipped gradients.
    even : float
        Share of the held-out rows that would tell as much if all classes were equally frequent, see `evenness`.
    colours : int
        Inputs of one place of an image: 3 for a photograph.
    """

    classes: int
    inputs: int
    image: bool
    units: int
    rows: float
    held_out: float
    weighing: float = 1.0
    even: float = 1.0
    colours: int = 1

    @property
    def chance(self) -> float:
        """Score of a constant prediction: always one class, or the mean."""
        if self.classes:
            return 1 / self.classes
        return 0.0


@dataclass(frozen=True)
class Foreseen:
    """Forecast result of a setting.

    Attributes
    ----------
    score : float
        Balanced accuracy. For regression, 1 minus the ratio of its root mean square error to that of the mean.
    low : float
        Lower end of its 95% interval over held-out rows.
    chance : float
        Score of a constant prediction.
    """

    score: float
    low: float
    chance: float

    @property
    def useless(self) -> bool:
        """Whether the score cannot be told from chance."""
        return self.low <= self.chance


def pull_of(method: object, clients: int) -> float | None:
    """Compute the pull of a method's steps, in standard deviations of the noise; None for methods without a forecast.

    The pull is the distance by which all steps move the model in one direction if every unit pulls that way.
    """
    if isinstance(method, RecordDP) and method.deviation:
        steps = (method.rounds or 1) * method.steps
        return math.sqrt(steps) * method.clip / method.noise_on_mean(clients)
    if isinstance(method, GlobalDP) and method.rounds:
        return math.sqrt(method.rounds) * clients / method.noise_multiplier
    return None


def weighing(weights: Sequence[float]) -> float:
    """Return the mean row weight when all classes count equally and the rarest class has weight 1."""
    if weights:
        return len(weights) / sum(1 / weight for weight in weights)
    return 1.0


def evenness(weights: Sequence[float]) -> float:
    """Return n' / n: n rows of uneven classes tell a balanced accuracy as well as n' rows of equally frequent ones.

    A class weight w is inversely proportional to the class's rows. The variance of a balanced accuracy is the mean over
    classes of p (1 - p) / rows, over their number K. So n' = n / (mean of w times mean of 1/w).
    """
    if not weights:
        return 1.0
    mean = sum(weights) / len(weights)
    return weighing(weights) / mean


def foresee(shape: Shape, pull: float, reach: float) -> Foreseen:
    """Forecast the result of a run.

    Parameters
    ----------
    shape : Shape
        Declared sizes of the task.
    pull : float
        Pull of the noisy steps, see `pull_of`.
    reach : float
        Score that is possible without privacy.

    Raises
    ------
    FieldError
        If `reach` is not between chance and 1.
    """
    if not shape.chance < reach < 1:
        raise FieldError("reach", reach, f"must lie between {shape.chance:.3g} (chance) and 1")
    if shape.classes:
        found = _of_classes
    else:
        found = _of_numbers
    return found(shape, pull * PULL, reach)


def least_reach(shape: Shape, pull: float) -> float:
    """Return the lowest `reach`, in hundredths, at which the forecast is better than chance; 1 if there is none."""
    for hundredths in range(math.floor(100 * shape.chance) + 1, 100):
        if not foresee(shape, pull, hundredths / 100).useless:
            return hundredths / 100
    return 1.0


def made_up(shape: Shape, reach: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw rows of the synthetic task, both for training and held out.

    Parameters
    ----------
    shape : Shape
        Declared sizes of the task.
    reach : float
        Score that is possible without privacy.
    seed : int
        Seed of the rows.

    Returns
    -------
    x : Tensor
        Inputs [N, inputs], with mean 0.5 and the variance of a uniform law on 0 to 1.
    y : Tensor
        Targets [N]: classes, or numbers around 0.5.
    unit : Tensor
        Unit of each row, [N].
    """
    draw = torch.Generator().manual_seed(seed)
    rows = max(2 * shape.classes, round(shape.units * shape.rows + shape.held_out))
    size = max(shape.classes, 1, round(directions(shape)))
    clouds = torch.randn(rows, size, generator=draw)
    if shape.classes:
        y = torch.arange(rows) % shape.classes
        clouds[torch.arange(rows), y] += _margin(reach, shape.classes)
    else:
        explained = 1 - (1 - reach) ** 2
        rest = math.sqrt(1 - explained) * torch.randn(rows, generator=draw)
        y = 0.5 + 0.2 * (math.sqrt(explained) * clouds[:, 0] + rest)
    turned = torch.randn(size, shape.inputs, generator=draw) / math.sqrt(size)
    x = 0.5 + clouds @ turned / math.sqrt(12)
    unit = torch.randint(max(1, round(rows / shape.rows)), (rows,), generator=draw)
    return x, y, unit


def directions(shape: Shape) -> float:
    """Estimate the effective dimension of rows."""
    if shape.image:
        return math.pow(shape.inputs / shape.colours, IMAGE)
    return float(shape.inputs)


def right(margin: float, classes: int) -> float:
    """Share of correctly classified rows if the right class's output exceeds the others by `margin` standard deviations."""
    return float((DENSITY * ndtr(GRID + margin) ** (classes - 1)).sum())


def _of_classes(shape: Shape, pull: float, reach: float) -> Foreseen:
    classes, size = shape.classes, directions(shape)
    margin = _margin(reach, classes)
    signal = margin / (
        classes * math.sqrt(size + margin**2)
    )  # of a class's weights, of one row's direction
    length = math.sqrt(classes * (signal**2 + 1 / (classes * shape.rows)))  # of a unit's mean
    pulled = pull * shape.weighing / length
    drawn = pulled**2 / (
        shape.units * shape.rows * classes * size
    )  # by which rows happen to be there
    kept = _kept(pulled * signal, size * (1 + drawn))
    score = right(margin * kept, classes)
    return Foreseen(score, score - _width(score, shape), shape.chance)


def _of_numbers(shape: Shape, pull: float, reach: float) -> Foreseen:
    size = directions(shape)
    explained = 1 - (1 - reach) ** 2  # share of the target's variance
    signal = math.sqrt(explained / size) * SIGN
    length = math.sqrt(signal**2 + 1 / shape.rows)
    pulled = pull / length
    drawn = pulled**2 / (shape.units * shape.rows * size)
    kept = _kept(pulled * signal, size * (1 + drawn))
    added = explained * (1 - kept**2) / kept**2  # by noise in the outputs
    score = 1 - math.sqrt(1 - explained + added)
    low = 1 - (1 - score) * (1 + WIDTH / math.sqrt(2 * shape.held_out))
    return Foreseen(max(score, 0.0), low, 0.0)


def _kept(signal: float, noise: float) -> float:
    """Cosine between the learned direction and the true one; `noise` is a squared length."""
    return signal / math.sqrt(signal**2 + noise)


def _margin(reach: float, classes: int) -> float:
    """Margin at which a share `reach` of rows is classified correctly."""
    low, high = 0.0, 12.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if right(middle, classes) < reach else (low, middle)
    return high


def _width(score: float, shape: Shape) -> float:
    """Half width of the interval of a balanced accuracy."""
    rows = shape.held_out * shape.even
    return WIDTH * math.sqrt(score * (1 - score) / rows)
