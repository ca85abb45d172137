"""Data of the study of calibration: units with their features and labels, as NumPy arrays.

A unit is what is protected: a writer with all of her digits, or one image. Features come from public data and read no
label; they are those of the presets `person-writers`, `record-blood` and `record-alzheimer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.regions import WRITERS
from fedveil.data import load
from fedveil.data.sets import locate
from fedveil.learning import ClientData
from fedveil_lab.config import load as load_config
from fedveil_lab.runs.deal import deal_out
from fedveil_studies.data.writers import parts_of

Floats = NDArray[np.float32]
Rows = tuple[Floats, NDArray[np.int64]]  # features [N, F] with a column of ones, and classes [N]
Setting = tuple[float, float]  # length of a step (learning rate times clip), clip

_OF_WRITERS = tuple(product((0.2, 0.35, 0.6, 1.0, 1.7, 3.0, 5.0), (0.05, 0.1)))
_OF_IMAGES = tuple(product((0.2, 0.6, 2.0, 5.0, 10.0, 20.0), (0.3, 1.0)))
GRIDS: dict[str, tuple[Setting, ...]] = {
    "writers": _OF_WRITERS,
    "few-writers": _OF_WRITERS,
    "blood-cells": _OF_IMAGES,
    "alzheimer": _OF_IMAGES,
}


@dataclass(frozen=True)
class Units:
    """Examples of units, padded to the most examples of one.

    Attributes
    ----------
    x : array
        Features [U, K, F]; 0 where a unit has no further example.
    targets : array
        Classes [U, K, C], one number is 1; all 0 where there is no example.
    """

    x: Floats
    targets: Floats

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.x)

    def clipped_sums(self, weights: Floats, clips: Floats) -> Floats:
        """Sum the clipped mean gradients of the units.

        Parameters
        ----------
        weights : array
            Models of several runs [B, F, C].
        clips : array
            Their clips [B].

        Returns
        -------
        array
            Sums [B, F, C].
        """
        units, most, width = self.x.shape
        runs, _, classes = weights.shape
        flat = self.x.reshape(-1, width)
        scores = flat @ weights.transpose(1, 0, 2).reshape(width, -1)
        chances = softmax(scores.reshape(-1, runs, classes))
        targets = self.targets.reshape(-1, 1, classes)
        present = targets.sum(-1, keepdims=True)
        rest = (chances - targets) * present
        if most == 1:
            lengths = np.linalg.norm(rest, axis=-1) * np.linalg.norm(flat, axis=1)[:, None]
            rest *= factors(lengths, clips)[:, :, None]
            return (flat.T @ rest.reshape(units, -1)).reshape(width, runs, classes).swapaxes(0, 1)
        grouped = rest.reshape(units, most, runs * classes)
        means = self.x.transpose(0, 2, 1) @ grouped
        means = means.reshape(units, width, runs, classes)
        means /= present.reshape(units, most).sum(1)[:, None, None, None]
        lengths = np.sqrt(np.square(means).sum((1, 3)))
        summed: Floats = np.einsum("ub,ufbc->bfc", factors(lengths, clips), means)
        return summed

    def some(self, places: NDArray[np.int64]) -> Units:
        """Return the units at these places."""
        return Units(self.x[places], self.targets[places])


@dataclass(frozen=True)
class Task:
    """One data set at one level.

    Attributes
    ----------
    level : {"person", "record"}
        What a unit is.
    units : Units
        Of all silos.
    planned : float
        Public number of units, by which noised sums are divided.
    silos : int
        Number of silos.
    public : Units
        Examples whose labels are public.
    validation, test : Rows
        Rows to choose settings by, and rows that reported seeds alone are measured on.
    steps : int
        Noised full batches.
    settings : tuple
        Grid of every schedule.
    """

    name: str
    level: str
    units: Units
    planned: float
    silos: int
    public: Units
    validation: Rows
    test: Rows
    steps: int
    settings: tuple[Setting, ...]


def softmax(scores: Floats) -> Floats:
    """Return chances [..., C]."""
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    return chances


def factors(lengths: Floats, clips: Floats) -> Floats:
    """Return what shortens vectors of these lengths [U, B] to the clips [B]."""
    found: Floats = np.minimum(1.0, clips / np.maximum(lengths, 1e-30)).astype(np.float32)
    return found


def with_one(x: Tensor) -> Floats:
    """Add a column of ones to features [N, F]."""
    found: Floats = np.hstack([x.numpy(), np.ones((len(x), 1), np.float32)])
    return found


def grouped(x: Tensor, y: Tensor, owner: Tensor, classes: int) -> Units:
    """Make the units of examples with owners [N]."""
    _, unit, counts = torch.unique(owner, return_inverse=True, return_counts=True)
    order = unit.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(unit)
    place[order] = torch.arange(len(unit)) - starts[unit[order]]
    features = with_one(x)
    shape = (len(counts), int(counts.max()))
    padded = np.zeros((*shape, features.shape[1]), np.float32)
    targets = np.zeros((*shape, classes), np.float32)
    padded[unit, place] = features
    targets[unit, place, y] = 1.0
    return Units(padded, targets)


def single(x: Tensor, y: Tensor, classes: int) -> Units:
    """Make units of one example each."""
    return grouped(x, y, torch.arange(len(y)), classes)


def writers() -> Task:
    """Digits of 539 writers in ten silos; 30 others are public, 133 choose settings, 134 are the test."""
    parts = {
        name: load("mnist-by-writer", features=64, measured=name)
        for name in ("public", "tuning", "rest")
    }
    rows: dict[str, Rows] = {}
    for name, part in parts.items():
        assert part.test_x is not None
        assert part.test_y is not None
        rows[name] = (with_one(part.test_x), part.test_y.numpy())
    every, public = parts["rest"], parts["public"]
    assert every.owner is not None
    assert public.test_x is not None
    assert public.test_y is not None
    units = grouped(every.x, every.y, every.owner, 10)
    with np.load(locate("digits", WRITERS, "MNIST with its writers")) as file:
        names = torch.from_numpy(file["test_writer"].astype(np.int64))
    theirs = names[parts_of(names)["public"]]
    open_ = grouped(public.test_x, public.test_y, theirs, 10)
    return Task(
        name="writers",
        level="person",
        units=units,
        planned=units.count,
        silos=10,
        public=open_,
        validation=rows["tuning"],
        test=rows["rest"],
        steps=25,
        settings=GRIDS["writers"],
    )


def few_writers() -> Task:
    """The task of writers with 100 of the 539."""
    whole = task("writers")
    return replace(whole, name="few-writers", units=whole.units.some(np.arange(100)), planned=100)


def images(preset: str, name: str, classes: int) -> Task:
    """Images of a preset, one a unit; what silos hold out chooses settings."""
    dealt = deal_out(load_config(preset).data, 1)
    whole = Pooled(dealt.clients)
    public, data = dealt.public, dealt.dataset
    assert public is not None
    assert data.test_x is not None
    assert data.test_y is not None
    return Task(
        name=name,
        level="record",
        units=single(whole.x, whole.y, classes),
        planned=len(whole.y),
        silos=len(dealt.clients),
        public=single(public.x, public.y, classes),
        validation=(with_one(whole.test_x), whole.test_y.numpy()),
        test=(with_one(data.test_x), data.test_y.numpy()),
        steps=30,
        settings=GRIDS[name],
    )


class Pooled:
    """Examples of several clients, one after another."""

    def __init__(self, clients: list[ClientData]) -> None:
        self.x = torch.cat([one.x for one in clients])
        self.y = torch.cat([one.y for one in clients])
        self.test_x = torch.cat([one.test_x for one in clients if one.test_x is not None])
        self.test_y = torch.cat([one.test_y for one in clients if one.test_y is not None])


def blood() -> Task:
    """9,568 blood cells in four silos, at record level."""
    return images("record-blood", "blood-cells", 8)


def alzheimer() -> Task:
    """4,096 Alzheimer images of 32x32 pixels in four silos, at record level."""
    return images("record-alzheimer", "alzheimer", 4)


MAKERS: dict[str, Callable[[], Task]] = {
    "writers": writers,
    "few-writers": few_writers,
    "blood-cells": blood,
    "alzheimer": alzheimer,
}
DATA = {
    "writers": "MNIST with its writers",
    "few-writers": "MNIST with its writers",
    "blood-cells": "BloodMNIST, rebuilt, 28x28",
    "alzheimer": "Alzheimer images of 32x32 pixels",
}


@cache
def task(name: str) -> Task:
    """Return a task by its name; it is made once."""
    return MAKERS[name]()
