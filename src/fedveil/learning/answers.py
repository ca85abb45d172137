"""A model's answers beside the truth, in groups, and the registry of what is computed of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedveil.errors import FieldError

Figures = dict[str, float]  # by name, with "examples"; a figure that does not exist for the task or the data is absent


TaskKind = Literal["classes", "labels", "values", "other"]  # "other": the loss alone says what outputs are worth


Floats = NDArray[np.float64]


TASKS: tuple[TaskKind, ...] = ("classes", "labels", "values", "other")


@dataclass(frozen=True, eq=False)
class Answers:
    """A model's answers beside the truth, in n groups.

    Attributes
    ----------
    task : {"classes", "labels", "values"}
        Whether labels are classes of which one holds, several that hold or do not, or numbers.
    outputs : ndarray
        float64: logits [M, C] of M labels, or values [M].
    labels : ndarray
        [M], int64 classes or float64 targets; [M, C] bool where several may hold. Void labels are left out.
    losses : ndarray
        [M], float64: squared error of each value, otherwise the loss of each label where it has one.
    group : ndarray
        [M] int64, whose label it is, ascending.
    counts : ndarray
        [n], labels of each group.
    example : ndarray
        [M] int64, of which example, ascending: several labels are of one where a model names a class a pixel.
    asked : ndarray, optional
        [n], the loss that was asked for, of each group; by default the mean of `losses`.
    """

    task: TaskKind
    outputs: Floats
    labels: NDArray[Any]
    losses: Floats
    group: NDArray[np.int64]
    counts: NDArray[np.int64]
    example: NDArray[np.int64]
    asked: Floats | None = None

    def mean(self, values: NDArray[Any]) -> Floats:
        """Mean of values [M] over each group, [n]."""
        return _over(np.bincount(self.group, values, len(self.counts)), self.counts)

    @cached_property
    def predicted(self) -> NDArray[Any]:
        """[M], the class with the largest logit; [M, C], which are likelier than not, where several may hold."""
        classes: NDArray[Any] = self.outputs > 0 if self.task == "labels" else np.argmax(self.outputs, axis=1)
        return classes

    @cached_property
    def table(self) -> tuple[Floats, Floats, Floats]:
        """Of each group and class, [n, C] each: labels found, labels there are, and labels named by the model."""
        shape = (len(self.counts), self.outputs.shape[1])
        if self.task == "labels":
            parts = (self.labels & self.predicted, self.labels, self.predicted)
            sums = [np.zeros(shape) for _ in parts]
            for total, part in zip(sums, parts, strict=True):
                np.add.at(total, self.group, part)
            return sums[0], sums[1], sums[2]
        size = shape[0] * shape[1]
        base = self.group * shape[1]
        hits, ones = (self.predicted == self.labels).astype(np.float64), np.ones(len(self.labels))
        columns = ((self.labels, hits), (self.labels, ones), (self.predicted, ones))
        right, wanted, given = (np.bincount(base + c, w, size).astype(float).reshape(shape) for c, w in columns)
        return right, wanted, given

    @cached_property
    def probabilities(self) -> Floats:
        """[M, C]."""
        logits = torch.from_numpy(self.outputs)
        return (logits.sigmoid() if self.task == "labels" else logits.softmax(1)).numpy()

    def joined(self, asked: Floats | None = None) -> "Answers":
        """The same as one group, with the loss asked for of all."""
        return self._grouped(np.zeros(len(self.labels), np.int64), asked)

    def _grouped(self, group: NDArray[np.int64], asked: Floats | None = None) -> "Answers":
        """The same in other groups; what was worked out label by label stays known."""
        counts = np.bincount(group) if len(group) else np.zeros(1, np.int64)
        other = replace(self, group=group, counts=counts, asked=asked)
        vars(other).update({name: vars(self)[name] for name in ("predicted", "probabilities") if name in vars(self)})
        return other

    def of_label(self, label: int) -> "Answers":
        """Of several labels that may hold, one alone: two classes, of which 1 is that it holds."""
        yes = self.outputs[:, label]
        outputs, labels = np.stack([np.zeros_like(yes), yes], 1), self.labels[:, label].astype(np.int64)
        return replace(self, task="classes", outputs=outputs, labels=labels, asked=None)

    @cached_property
    def images(self) -> "Answers":
        """The same with each image as a group of its own."""
        return self._grouped(np.unique(self.example, return_inverse=True)[1])

    def of_images(self, share: "MetricFunction") -> Floats:
        """The mean of a share over the images of each group that have it."""
        first = np.unique(self.example, return_index=True)[1]
        answers, owner, n = share(self.images), self.group[first], len(self.counts)
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


def metric(*, task: TaskKind | Sequence[TaskKind] | None = "classes") -> Callable[[MetricFunction], MetricFunction]:
    """Register a function as a metric under its own name.

    Parameters
    ----------
    task : {"classes", "labels", "values", "other"}, several of these, or None
        Where it exists; None for all.

    Raises
    ------
    FieldError
        If the name is taken.
    """

    def register(function: MetricFunction) -> MetricFunction:
        name = function.__name__
        if name in METRICS or name == "examples":
            raise FieldError("metric", name, "this name is taken")
        METRICS[name] = Metric(TASKS if task is None else (task,) if isinstance(task, str) else tuple(task), function)
        return function

    return register


def _over(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """Quotients, NaN where there is nothing to divide by."""
    result: Floats = np.divide(part, whole, out=np.full(np.shape(whole), np.nan), where=np.asarray(whole) > 0)
    return result
