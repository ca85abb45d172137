"""A plain second implementation of noisy full-batch steps of a linear model, for many settings at once.

It finds the best setting of a named grid, and tries parts that the recipe of `fedveil init` does not have. Silos of one
plan that take one step a round add up to one step on all rows, with the silos' noise in its mean. It promises nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil_lab.runs.prepare import Setup

STEPS, MOMENTUM = 60, 0.9


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One setting.

    Attributes
    ----------
    left : float
        Deviation that all noise leaves in an output; the rate follows.
    clip : float
        Of a fixed clip; with `gamma` only a scale.
    gamma : float
        Above 0: gradients g become g C / (|g| + gamma).
    inputs : str
        "given", "centred" or "standardised".
    averaged : bool
        Whether the model is the mean of the second half of the steps.
    falling : bool
        Whether the rate falls to 0 along a line.
    weighted : bool
        Whether classes count alike, behind the clip.
    """

    left: float = 4.0
    clip: float = 0.2
    gamma: float = 0.0
    inputs: str = "given"
    averaged: bool = False
    falling: bool = False
    weighted: bool = False


def scaled(x: Tensor, inputs: str) -> Tensor:
    """Inputs [N, d] as a model sees them, with a 1 for the offset."""
    if inputs == "centred":
        x = x - 0.5
    if inputs == "standardised":
        deviation, mean = torch.std_mean(x, dim=1, keepdim=True, correction=0)
        x = (x - mean) / (deviation + 0.05)
    return torch.cat([x, torch.ones(len(x), 1)], 1)


def score(outputs: Tensor, y: Tensor, classes: int, mean: float) -> float:
    """Balanced accuracy; of numbers 1 less the root mean square error over that of the training rows' mean."""
    if not classes:
        error, base = (outputs[:, 0] - y).square().mean().sqrt(), (y - mean).square().mean().sqrt()
        return 1 - float(error / base)
    named = outputs.argmax(1)
    return float(torch.stack([(named[y == k] == k).double().mean() for k in y.unique()]).mean())


def scores(setup: Setup, sigma: float, settings: Sequence[Tried], seed: int) -> list[float]:
    """The score of each setting on what the clients of a run hold out.

    Parameters
    ----------
    setup : Setup
        Whose rows are used, and whose plan says how they are divided.
    sigma : float
        Deviation of the noise on a step's mean gradient at clip 1; 0: no privacy, and `left` is the rate times the
        mean square of an input.
    settings : sequence of Tried
        All are run.
    seed : int
        Of the noise.
    """
    clients = setup.clients
    x, y = (torch.cat([getattr(c, name) for c in clients]) for name in ("x", "y"))
    test_x, test_y = (
        torch.cat([getattr(c, name) for c in clients if c.held_out])
        for name in ("test_x", "test_y")
    )
    classes = setup.dealt.dataset.classes or 0
    found = []
    for tried in settings:
        rows, held = scaled(x.flatten(1), tried.inputs), scaled(test_x.flatten(1), tried.inputs)
        model = _trained(rows, y, classes, sigma, tried, torch.Generator().manual_seed(seed))
        found.append(score(held @ model, test_y, classes, float(y.double().mean())))
    return found


def _trained(
    rows: Tensor, y: Tensor, classes: int, sigma: float, tried: Tried, noise: torch.Generator
) -> Tensor:
    square = float(rows.square().sum(1).mean())
    if sigma:
        rate = tried.left * (1 - MOMENTUM) / (sigma * tried.clip * math.sqrt(STEPS * square))
    else:
        rate = tried.left / square
    targets = torch.nn.functional.one_hot(y, classes).float() if classes else y.float()[:, None]
    shares = torch.ones(len(y))
    if tried.weighted and classes:
        counts = y.bincount(minlength=classes).clamp(min=1)
        shares = (counts.min() / counts).float()[y]
    lengths = rows.norm(dim=1)
    model = torch.zeros(rows.shape[1], targets.shape[1])
    velocity, mean = torch.zeros_like(model), torch.zeros_like(model)
    for step in range(STEPS):
        outputs = rows @ model
        rest = outputs.softmax(1) - targets if classes else 2 * (outputs - targets)
        norms = rest.norm(dim=1) * lengths
        factors = torch.ones_like(norms)
        if sigma and tried.gamma:
            factors = tried.clip / (norms + tried.gamma)
        elif sigma:
            factors = (tried.clip / norms.clamp(min=1e-12)).clamp(max=1.0)
        gradient = rows.T @ (rest * (factors * shares)[:, None]) / len(rows)
        gradient += sigma * tried.clip * torch.randn(model.shape, generator=noise)
        velocity = MOMENTUM * velocity + gradient
        model = model - rate * (1 - step / STEPS if tried.falling else 1.0) * velocity
        mean += model * (step >= STEPS // 2)
    return mean / (STEPS - STEPS // 2) if tried.averaged else model
