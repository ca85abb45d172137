"""What `benchmarks.layers` trains: a small CNN on digits, by record, and on digits of writers, by person.

A task has the rows of a seed, the first parameters, and gradients of single records, layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.regions import WRITERS
from benchmarks.regions import digits as mnist
from fedveil.data.sets import locate

RECORDS, PUBLIC, TEST = 500, 100, 497
PEOPLE, PUBLIC_PEOPLE, CHOSEN_BY, IMAGES = 150, 10, 40, 10  # writers, and images of each

Parameters = dict[str, Tensor]
Setting = tuple[float, float]  # learning rate, clip


@dataclass(frozen=True)
class Split:
    """Rows of one seed: to train on, public ones, to choose settings by, to report on.

    `images` is the number of images of each person in `train` and `public`, in this order; 1 if the unit is one record.
    """

    train: tuple[Tensor, Tensor]
    public: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    images: int = 1


@dataclass(frozen=True)
class Task:
    """What is trained: `layers` has the names of the layers, from the first to the last.

    `kept` has the numbers of layers that each method may train; `gradients` gives those of single records, [N, ...].
    """

    layers: tuple[str, ...]
    kept: Mapping[str, tuple[int, ...]]
    settings: tuple[Setting, ...]
    steps: int
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    split: Callable[[int], Split]
    start: Callable[[int], Parameters]
    gradients: Callable[[Parameters, Tensor, Tensor, set[int]], Parameters]
    outputs: Callable[[Parameters, Tensor], Tensor]

    def layer_of(self, name: str) -> int:
        """Return the number of a parameter's layer."""
        [found] = [i for i, layer in enumerate(self.layers) if name.startswith(f"{layer}.")]
        return found


@cache
def small_digits() -> tuple[Tensor, Tensor]:
    """Return the 1,797 digits of scikit-learn, [N, 1, 8, 8] from 0 to 1, and their classes."""
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy((images / 16).astype(np.float32)).view(-1, 1, 8, 8)
    return x, torch.from_numpy(labels.astype(np.int64))


@cache
def split(seed: int) -> Split:
    """Draw 500 digits to train on and 100 public ones; the same 497 are the test set of every seed."""
    x, y = small_digits()
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


@cache
def images_of_writers() -> dict[int, Tensor]:
    """Return the numbers of each writer's first images in MNIST's training half; writers with fewer are left out."""
    with np.load(locate("digits", WRITERS, "MNIST with its writers")) as file:
        writer = file["train_writer"]
    found: dict[int, Tensor] = {}
    for one in np.unique(writer):
        rows = np.flatnonzero(writer == one)[:IMAGES]
        if len(rows) == IMAGES:
            found[int(one)] = torch.from_numpy(rows)
    return found


@cache
def split_of_writers(seed: int) -> Split:
    """Draw 150 writers to train on, 10 public ones and 40 to choose settings by; the test half is of other people."""
    every, rows = mnist(), images_of_writers()
    drawn = np.random.default_rng(seed).permutation(sorted(rows))
    parts, begin = [], 0
    for people in (PEOPLE, PUBLIC_PEOPLE, CHOSEN_BY):
        taken = torch.cat([rows[int(one)] for one in drawn[begin : begin + people]])
        parts.append((every["train x"][taken], every["train y"][taken]))
        begin += people
    return Split(parts[0], parts[1], parts[2], (every["test x"], every["test y"]), IMAGES)


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


def trained_on(x: Tensor, y: Tensor) -> Parameters:
    """Train the network without privacy."""
    net = network(0)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        rows = torch.randint(len(x), (128,), generator=generator)
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(net(x[rows]), y[rows]))
        optimizer.step()
    return {name: value.detach() for name, value in net.named_parameters()}


@cache
def pretrained() -> Parameters:
    """Train the network once on 5,000 digits of MNIST."""
    return trained_on(mnist()["train x"][:5000], mnist()["train y"][:5000])


@cache
def pretrained_for_writers() -> Parameters:
    """Train the network once on the digits of scikit-learn, which other people wrote."""
    return trained_on(*small_digits())


def untrained(seed: int) -> Parameters:
    """Draw first parameters."""
    return {name: value.detach() for name, value in network(seed).named_parameters()}


def begun_with(given: Callable[[], Parameters]) -> Callable[[int], Parameters]:
    """Make first parameters from trained ones, with a last layer that is drawn anew."""

    def start(seed: int) -> Parameters:
        drawn = untrained(seed)
        last = {name: drawn[name] for name in drawn if name.startswith(f"{NAMES[-1]}.")}
        return given() | last

    return start


NET = network(0)
NAMES = tuple(dict.fromkeys(name.split(".")[0] for name, _ in NET.named_parameters()))


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


def outputs(at: Parameters, x: Tensor) -> Tensor:
    """Return the network's outputs [N, 10]."""
    found: Tensor = functional_call(NET, at, (x,))
    return found


def small_cnn(split: Callable[[int], Split], start: Callable[[int], Parameters]) -> Task:
    """Make a task of the small CNN."""
    return Task(
        layers=NAMES,
        kept={"all": (4,), "last": (1,), "public": (2, 3), "private": (2, 3)},
        settings=tuple(product((4.0, 16.0), (0.1, 0.5))),
        steps=30,
        seeds=(0, 1, 2, 3, 4),
        tuning_seeds=(100, 101),
        split=split,
        start=start,
        gradients=gradients,
        outputs=outputs,
    )
