"""Clip and rate of earlier lines on MNIST, chosen on scikit-learn's digits: ``python -m ...published.choosing FILE.csv``.

The 1,797 digits were written by other people, in eight by eight pixels. They are enlarged to MNIST's size and get the
same features. Each step's mean gradient gets the noise that the mean over MNIST's 60,000 digits has in earnest. The
line with the least loss on 497 digits that were held out was chosen, at commit 39a2efd.
"""

import csv
import math
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

from fedveil.accounting import least_noise
from fedveil_studies.data.scattering import features_of

EPSILON, DELTA, DIGITS = 3.0, 1e-5, 60_000
ROUNDS, FEATURES, MOMENTUM, TRAINED = 60, 512, 0.9, 1300
CLIPS = (0.1, 0.3, 1.0)
STEPS = (5.0, 10.0, 15.0, 20.0, 30.0, 45.0)  # clip times rate
LINES = {("one", "none"): 1, ("ten", "trusted"): 1, ("ten", "none"): 10}  # shares of full noise


def digits() -> tuple[Tensor, Tensor]:
    """Return features [1797, 512] of scikit-learn's digits in random order, and their classes."""
    raw = load_digits()
    small = torch.from_numpy(raw.images).float()[:, None] / 16
    large = F.interpolate(small, size=(20, 20), mode="bilinear", align_corners=False)
    order = torch.randperm(len(large), generator=torch.Generator().manual_seed(0))
    x = features_of(F.pad(large, [4] * 4)[:, 0], FEATURES)
    return x[order], torch.from_numpy(raw.target).long()[order]


def stepped(x: Tensor, y: Tensor, deviation: float, clip: float, rate: float, steps: int) -> Tensor:
    """Train a linear layer by noisy full-batch steps; return its weights [10, F + 1], the bias last.

    Parameters
    ----------
    x, y : Tensor
        [N, F] and [N].
    deviation : float
        Of the noise on each coordinate of a step's mean gradient; 0 without privacy.
    clip : float
        Largest length of an example's gradient; infinite without privacy.
    rate : float
        Learning rate.
    steps : int
        Number of steps.
    """
    draw = torch.Generator().manual_seed(0)
    train, target = F.pad(x, (0, 1), value=1.0), F.one_hot(y, 10).float()
    lengths = train.norm(dim=1)
    weights, velocity = torch.zeros(10, train.shape[1]), torch.zeros(10, train.shape[1])
    for _ in range(steps):
        error = (train @ weights.T).softmax(1) - target
        scale = (clip / (error.norm(dim=1) * lengths).clamp(min=1e-12)).clamp(max=1.0)
        mean = (error * scale[:, None]).T @ train / len(train)
        velocity = MOMENTUM * velocity + mean + deviation * torch.randn(mean.shape, generator=draw)
        weights = weights - rate * velocity
    return weights


def trained(
    x: Tensor, y: Tensor, deviation: float, clip: float, rate: float
) -> tuple[float, float]:
    """Train on the first digits, as `stepped` does; return accuracy and loss on those that are held out."""
    weights = stepped(x[:TRAINED], y[:TRAINED], deviation, clip, rate, ROUNDS)
    outputs, held = F.pad(x[TRAINED:], (0, 1), value=1.0) @ weights.T, y[TRAINED:]
    accuracy = float((outputs.argmax(1) == held).double().mean())
    return accuracy, float(F.cross_entropy(outputs, held))


def main(path: Path) -> None:
    """Write a line for each scenario, clip and rate."""
    torch.set_num_threads(1)
    x, y = digits()
    multiplier = least_noise(EPSILON, DELTA, ROUNDS)
    rows: list[list[object]] = []
    for (scenario, sum_), shares in LINES.items():
        for clip in CLIPS:
            deviation = multiplier * clip * math.sqrt(shares) / DIGITS
            for step in STEPS:
                accuracy, loss = trained(x, y, deviation, clip, step / clip)
                line = (scenario, sum_, f"{EPSILON:g}", ROUNDS, f"{clip:g}", f"{step / clip:g}")
                rows.append([*line, f"{accuracy:.4f}", f"{loss:.4f}"])
    for step in STEPS:
        accuracy, loss = trained(x, y, 0.0, math.inf, step)
        line = ("one", "", "", ROUNDS, "", f"{step:g}")
        rows.append([*line, f"{accuracy:.4f}", f"{loss:.4f}"])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("scenario", "sum", "epsilon", "rounds", "clip", "lr", "accuracy", "loss"))
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
