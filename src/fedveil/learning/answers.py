"""A model's answers beside the truth, in groups, and the registry of what is computed of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedveil.errors import FieldError

Figures = dict[str, float]  # by name, with "examples"; a figure that does not exist for the task or the data is absent


TaskKind = Literal["classes", "values"]


Floats = NDArray[np.float64]


TASKS: tuple[TaskKind, ...] = ("classes", "values")


@dataclass(frozen=True, eq=False)
class Answers:
    """A model's answers beside the truth, in n groups.

    Attributes
    ----------
    task : {"classes", "values"}
        Whether labels are classes or numbers.
    outputs : ndarray
        float64: logits [M, C] of M labels, or values [M].
    labels : ndarray
        [M], int64 classes or float64 targets.
    losses : ndarray
        [M], float64: cross-entropy (nats) or squared error of each label.
    group : ndarray
        [M] int64, whose label it is, ascending.
    counts : ndarray
        [n], labels of each group; at least one.
    each : int
        Labels of one example: more than one where a model names a class a pixel.
    """

    task: TaskKind
    outputs: Floats
    labels: NDArray[Any]
    losses: Floats
    group: NDArray[np.int64]
    counts: NDArray[np.int64]
    each: int = 1

    def mean(self, values: NDArray[Any]) -> Floats:
        """Mean of values [M] over each group, [n]."""
        return np.bincount(self.group, values, len(self.counts)) / self.counts

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """[M], the class with the largest logit."""
        classes: NDArray[np.int64] = np.argmax(self.outputs, axis=1)
        return classes

    @cached_property
    def table(self) -> tuple[Floats, Floats, Floats]:
        """Of each group and class, [n, C] each: labels found, labels there are, and labels named by the model."""
        shape = (len(self.counts), self.outputs.shape[1])
        size = shape[0] * shape[1]
        base = self.group * shape[1]
        hits, ones = (self.predicted == self.labels).astype(np.float64), np.ones(len(self.labels))
        columns = ((self.labels, hits), (self.labels, ones), (self.predicted, ones))
        right, wanted, given = (np.bincount(base + c, w, size).astype(float).reshape(shape) for c, w in columns)
        return right, wanted, given

    @cached_property
    def probabilities(self) -> Floats:
        """[M, C]."""
        return torch.from_numpy(self.outputs).softmax(1).numpy()

    def joined(self) -> "Answers":
        """The same as one group."""
        return self._grouped(len(self.labels))

    def _grouped(self, size: int) -> "Answers":
        """The same in groups of a size; what was worked out label by label stays known."""
        m = len(self.labels)
        other = replace(self, group=np.arange(m) // size, counts=np.full(m // size, size))
        vars(other).update({name: vars(self)[name] for name in ("predicted", "probabilities") if name in vars(self)})
        return other

    @cached_property
    def images(self) -> "Answers":
        """The same with each image as a group of its own."""
        return self._grouped(self.each)

    def of_images(self, share: "MetricFunction") -> Floats:
        """The mean of a share over the images of each group that have it."""
        answers, owner, n = share(self.images), self.group[:: self.each], len(self.counts)
        return _over(np.bincount(owner, np.nan_to_num(answers), n), np.bincount(owner, ~np.isnan(answers), n))

    def macro(self, shares: Floats, counted: NDArray[np.bool_]) -> Floats:
        """Mean of shares [n, C] over the classes that are counted [n, C]; NaN without one."""
        return _over(np.where(counted, shares, 0.0).sum(1), counted.sum(1))

    def positive(self, shares: Floats) -> Floats:
        """Of shares [n, 2], that of class 1; NaN where there are not two classes."""
        return shares[:, 1] if shares.shape[1] == 2 else np.full(len(shares), np.nan)

    def ranked(self, scores: Floats, truth: NDArray[np.bool_], group: NDArray[np.int64]) -> Floats:
        """Of each group, the probability that a true entry scores above a false one; ties count half. NaN if undefined.

        Parameters
        ----------
        scores, truth, group : ndarray
            [K] each.
        """
        n = len(self.counts)
        order = np.argsort(scores)  # in any order where they tie; then stably by group, which has few digits
        order = order[np.argsort(group[order].astype(np.min_scalar_type(n - 1)), kind="stable")] if n > 1 else order
        scores, truth, group = scores[order], truth[order], group[order]
        first = np.flatnonzero(np.r_[True, (np.diff(scores) != 0) | (np.diff(group) != 0)])
        ties = np.diff(np.r_[first, len(scores)])
        ranks = np.repeat(first + (ties + 1) / 2, ties)  # from 1, over all groups
        total, true = np.bincount(group, minlength=n), np.bincount(group, truth, n)
        before = np.cumsum(total) - total
        won = np.bincount(group, ranks * truth, n) - before * true - true * (true + 1) / 2
        return _over(won, true * (total - true))


MetricFunction = Callable[[Answers], Floats]


@dataclass(frozen=True)
class Metric:
    """A registered metric.

    Attributes
    ----------
    tasks : tuple of str
        Where it exists.
    function : callable
        Answers -> figures [n]; NaN where a group has none.
    """

    tasks: tuple[TaskKind, ...]
    function: MetricFunction


METRICS: dict[str, Metric] = {}


def metric(*, task: TaskKind | None = "classes") -> Callable[[MetricFunction], MetricFunction]:
    """Register a function as a metric under its own name.

    Parameters
    ----------
    task : {"classes", "values"} or None
        Where it exists; None for both.

    Raises
    ------
    FieldError
        If the name is taken.
    """

    def register(function: MetricFunction) -> MetricFunction:
        name = function.__name__
        if name in METRICS or name == "examples":
            raise FieldError("metric", name, "this name is taken")
        METRICS[name] = Metric(TASKS if task is None else (task,), function)
        return function

    return register


def _over(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """Quotients, NaN where there is nothing to divide by."""
    result: Floats = np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.asarray(whole) > 0)
    return result
