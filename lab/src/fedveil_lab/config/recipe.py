"""Choose clip and learning rate for noisy training, as `fedveil init` writes them.

The noise of a whole run gives each output of a linear model a standard deviation. It is a product: noise of a step's
mean, learning rate, root of the number of steps, momentum's sum, and input length. A rate that leaves 4 in a logit (0.2
of a target's range) is close to the best over data sets, epsilons and sums (results/first-settings). Half or twice this
rate is hardly worse. All numbers used here are public or declared, so the choice costs no privacy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedveil.data import DataSet
from fedveil.methods import GlobalDP, RecordDP

ROUNDS = 60  # of one noisy step each
CLIP = 0.2  # shorter than most gradients: their directions are summed
MOMENTUM = 0.9
LEFT = {"cross_entropy": 4.0, "mse": 0.2}  # deviation that noise leaves in an output
STRIDE = (
    0.25  # of what noise may leave: the farthest that one update moves an output, momentum included
)
PLAIN_STEPS = 5  # of a round without noise: images and many columns are not learned in 60 steps
UNEVEN = 1.5  # of the most frequent class to the rarest, from which weights pay
# Mean square of a centred input: a number over its declared range, one of two texts, a pixel (photographs .06, digits
# on black .2).
NUMBER, TEXT, PIXEL = 1 / 12, 1 / 4, 1 / 6


@dataclass(frozen=True)
class InputScaling:
    """Scaling of a linear model's inputs, and the length of the scaled inputs.

    Attributes
    ----------
    scaling : str
        `inputs` of the model "logistic".
    square : float
        Mean squared length of a scaled input, from its declared shape alone.
    """

    scaling: str
    square: float


def inputs_of(
    dataset: DataSet, columns: Mapping[str, Any], missing: Mapping[str, Any]
) -> InputScaling:
    """Choose the scaling of inputs within 0 and 1; `columns` and `missing` as ``[data]`` has them."""
    size = math.prod(dataset.input_shape)
    if columns:
        texts = sum(
            len(declared) for declared in columns.values() if isinstance(declared[0], str)
        ) + len(missing)
        return InputScaling("centred", NUMBER * (size - texts) + TEXT * texts)
    if len(dataset.input_shape) == 3:
        return InputScaling("centred", PIXEL * size)
    return InputScaling("given", size / 3)


def rate(method: RecordDP, parties: int, inputs: InputScaling, loss: str) -> float:
    """Learning rate of a silo's noisy step, rounded to two digits.

    Parameters
    ----------
    method : RecordDP
        The method, which gives noise and number of rounds (one step each).
    parties : int
        Number of silos whose steps are averaged.
    inputs : InputScaling
        Scaling of the model's inputs.
    loss : str
        ``"mse"``, or a classification loss.
    """
    steps = (method.rounds or 1) * method.steps
    walked = method.noise_on_mean(parties) * math.sqrt(steps) / (1 - MOMENTUM)
    length = math.sqrt(1 + inputs.square)
    left = LEFT["mse" if loss == "mse" else "cross_entropy"]
    found = left / (walked * length)
    if loss == "mse":  # a target is overshot, a logit is not: no step may move an output farther
        found = min(found, left / (method.clip * length))
    return float(f"{found:.2g}")


def client_clip(method: GlobalDP, clients: int, inputs: InputScaling, loss: str) -> float:
    """Clip of whole updates, rounded to two digits; it is shorter than most updates, so directions are summed.

    It leaves the same noise in an output as `rate` does. With many clients the noise would allow a longer clip. Then an
    update moves an output by at most `STRIDE` of that noise.

    Parameters
    ----------
    method : GlobalDP
        The method, which gives noise multiplier and number of rounds.
    clients : int
        Number of clients whose updates are averaged.
    inputs : InputScaling
        Scaling of the model's inputs.
    loss : str
        ``"mse"``, or a classification loss.
    """
    length = math.sqrt(1 + inputs.square)
    left = LEFT["mse" if loss == "mse" else "cross_entropy"] * (1 - MOMENTUM) / length
    noise = method.noise_multiplier / clients * math.sqrt(method.rounds or 1)
    return float(f"{min(left / noise, STRIDE * left):.2g}")


def class_weights(dataset: DataSet, unit: str = "record") -> list[float]:
    """Class weights that make all classes count equally, 1 for the rarest; empty if they nearly do already.

    A person counts once, with her share of each class. The weights are computed from private labels, so a promise is
    conditional on them.
    """
    each = torch.ones(len(dataset.y), dtype=torch.float64)
    if unit == "person" and dataset.group is not None:
        each = 1 / dataset.group.bincount()[dataset.group].double()
    counts = dataset.y.bincount(each, minlength=dataset.classes).clamp(min=1).tolist()
    if max(counts) < UNEVEN * min(counts):
        return []
    return [float(f"{min(counts) / count:.2g}") for count in counts]


def plain_rate(inputs: InputScaling, loss: str) -> float:
    """Learning rate for `PLAIN_STEPS` full-batch steps per round without noise, just below the rate of overshooting."""
    if loss == "mse":
        steepest = 0.75
    else:
        steepest = 3.0
    return float(f"{steepest / (1 + inputs.square):.2g}")
