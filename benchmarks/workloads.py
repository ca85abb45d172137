"""The two workloads every engine runs: W1, many steps of a small model; W2, a convolutional model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

Array = NDArray[Any]


class Digits(nn.Module):
    """64-128-10 with ReLU: 9,610 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 128)
        self.out = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.out(F.relu(self.hidden(x)))


class Characters(nn.Module):
    """Two convolutions and two dense layers on 1x28x28, 62 classes: 1,206,590 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dense = nn.Linear(64 * 12 * 12, 128)
        self.out = nn.Linear(128, 62)

    def forward(self, x: Tensor) -> Tensor:
        """Logits. Pooling comes after ReLU, as most people write it."""
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.out(F.relu(self.dense(x.flatten(1))))


@dataclass(frozen=True, eq=False, kw_only=True)
class Workload:
    """A federation: its data, its model, one way of training it.

    Attributes
    ----------
    name, title : str
        Short and long.
    build : callable
        Makes the model; its first parameters are those under ``torch.manual_seed(0)``, see `initial`.
    xs, ys : list of ndarray
        Examples and classes, client by client.
    cohort : int
        Clients of a round, drawn without replacement.
    lr, batch_size
        SGD, one epoch a round.
    clip, noise_multiplier : float
        Each update is clipped to `clip`; the noise on the cohort's sum has deviation noise_multiplier * clip.
    test : tuple of ndarray, optional
        Examples and classes that nobody trains on.
    seed : int
        Of everything that is drawn.
    """

    name: str
    title: str
    build: Callable[[], nn.Module]
    xs: list[Array]
    ys: list[Array]
    cohort: int
    lr: float
    batch_size: int = 10
    clip: float = 1.0
    noise_multiplier: float = 0.05
    test: tuple[Array, Array] | None = None
    seed: int = 0

    @property
    def clients(self) -> int:
        """How many."""
        return len(self.xs)

    def initial(self) -> nn.Module:
        """The model that every engine starts from."""
        torch.manual_seed(self.seed)
        return self.build()

    def in_double(self) -> Workload:
        """The same in float64, in which the order of sums does not grow into another model within some rounds."""
        return replace(
            self,
            build=lambda: self.build().double(),
            xs=[x.astype(np.float64) for x in self.xs],
            test=None if self.test is None else (self.test[0].astype(np.float64), self.test[1]),
        )

    def accuracy(self, module: nn.Module) -> float | None:
        """On the test examples, if there are any."""
        if self.test is None:
            return None
        x, y = (torch.from_numpy(part) for part in self.test)
        with torch.no_grad():
            return float((module(x).argmax(1) == y).double().mean())


def digits() -> Workload:
    """Build W1: scikit-learn's digits, 100 clients of 8 to 20 examples or so, 20 a round."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    images, classes = load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    x, y = (images / 16).astype(np.float32)[order], classes[order].astype(np.int64)
    train = 1400
    shares = rng.integers(8, 21, 100)
    counts = (shares * train / shares.sum()).astype(int)
    counts[-1] += train - counts.sum()
    cuts = np.cumsum(counts)[:-1]
    return Workload(
        name="W1",
        title="digits, MLP 64-128-10, 100 clients of about 14 examples, 20 a round",
        build=Digits,
        xs=np.split(x[:train], cuts),
        ys=np.split(y[:train], cuts),
        cohort=20,
        lr=0.1,
        clip=0.5,  # updates are about .13 long: a longer clip adds noise alone
        test=(x[train:], y[train:]),
    )


def characters() -> Workload:
    """Build W2: random images and classes, 50 clients of 20 examples, 10 a round."""
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((20, 1, 28, 28)).astype(np.float32) for _ in range(50)]
    ys = [rng.integers(0, 62, 20) for _ in range(50)]
    return Workload(
        name="W2",
        title="28x28 images, CNN of 1.2 million parameters, 50 clients of 20 examples, 10 a round",
        build=Characters,
        xs=xs,
        ys=ys,
        cohort=10,
        lr=0.05,
        clip=0.5,  # updates are about .23 long
        noise_multiplier=0.02,  # on so many parameters more would drown them
    )


WORKLOADS: dict[str, Callable[[], Workload]] = {"W1": cache(digits), "W2": cache(characters)}
