"""A model's answers beside the truth, in groups, and the registry of what is computed of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedveil.errors import FieldError

Figures = dict[
    str, float
]  # by name, with "examples"; a figure that does not exist for the task or the data is absent
TaskKind = Literal[
    "classes", "labels", "values", "other"
]  # "other": the loss alone says what outputs are worth
Floats = NDArray[np.float64]

_KEPT = ("predicted", "probabilities")  # worked out label by label, whatever the groups
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
        """Return the mean of values [M] over each group, [n]."""
        return quotients(np.bincount(self.group, values, len(self.counts)), self.counts)

    @cached_property
    def predicted(self) -> NDArray[Any]:
        """The class with the largest logit [M]; where several labels may hold, which are likelier than not [M, C]."""
        if self.task == "labels":
            return np.asarray(self.outputs > 0)
        return np.asarray(np.argmax(self.outputs, axis=1))

    @cached_property
    def table(self) -> tuple[Floats, Floats, Floats]:
        """Count for each group and class, [n, C] each: labels found, labels there are, and labels named by the model."""
        if self.task == "labels":
            right = self._rows_by_group(self.labels & self.predicted)
            return right, self._rows_by_group(self.labels), self._rows_by_group(self.predicted)
        hits = (self.predicted == self.labels).astype(np.float64)
        ones = np.ones(len(self.labels))
        right = self._classes_by_group(self.labels, hits)
        wanted = self._classes_by_group(self.labels, ones)
        named = self._classes_by_group(self.predicted, ones)
        return right, wanted, named

    def _rows_by_group(self, rows: NDArray[np.bool_]) -> Floats:
        """Add rows [M, C] of each group."""
        total = np.zeros((len(self.counts), self.outputs.shape[1]))
        np.add.at(total, self.group, rows)
        return total

    def _classes_by_group(self, classes: NDArray[Any], weights: Floats) -> Floats:
        """Add the weights [M] of each group's classes [M]."""
        groups = len(self.counts)
        width = self.outputs.shape[1]
        sums = np.bincount(self.group * width + classes, weights, groups * width)
        return sums.astype(float).reshape(groups, width)

    @cached_property
    def probabilities(self) -> Floats:
        """[M, C]."""
        logits = torch.from_numpy(self.outputs)
        chances = logits.sigmoid() if self.task == "labels" else logits.softmax(1)
        return chances.numpy()

    def joined(self, asked: Floats | None = None) -> "Answers":
        """Return the same as one group, with the loss asked for of all."""
        return self._grouped(np.zeros(len(self.labels), np.int64), asked)

    def _grouped(
        self,
        group: NDArray[np.int64],
        asked: Floats | None = None,
    ) -> "Answers":
        """Return the same in other groups; what was worked out label by label stays known."""
        counts = np.bincount(group) if len(group) else np.zeros(1, np.int64)
        other = replace(self, group=group, counts=counts, asked=asked)
        for name in _KEPT:
            if name in vars(self):
                vars(other)[name] = vars(self)[name]
        return other

    def of_label(self, label: int) -> "Answers":
        """Return one of several labels that may hold: two classes, of which 1 is that it holds."""
        yes = self.outputs[:, label]
        return replace(
            self,
            task="classes",
            outputs=np.stack([np.zeros_like(yes), yes], 1),
            labels=self.labels[:, label].astype(np.int64),
            asked=None,
        )

    @cached_property
    def images(self) -> "Answers":
        """The same with each image as a group of its own."""
        _, image = np.unique(self.example, return_inverse=True)
        return self._grouped(image)

    def of_images(self, share: "MetricFunction") -> Floats:
        """Return the mean of a share over the images of each group that have it."""
        _, first = np.unique(self.example, return_index=True)
        owner = self.group[first]
        shares = share(self.images)
        groups = len(self.counts)
        sums = np.bincount(owner, np.nan_to_num(shares), groups)
        images = np.bincount(owner, ~np.isnan(shares), groups)
        return quotients(sums, images)

    def macro(self, shares: Floats, counted: NDArray[np.bool_]) -> Floats:
        """Return the mean of shares [n, C] over the classes that are counted [n, C]; NaN without one."""
        return quotients(np.where(counted, shares, 0.0).sum(1), counted.sum(1))

    def positive(self, shares: Floats) -> Floats:
        """Return of shares [n, 2] that of class 1; NaN where there are not two classes."""
        if shares.shape[1] == 2:
            return shares[:, 1]
        return np.full(len(shares), np.nan)

    def ranked(
        self,
        scores: Floats,
        truth: NDArray[np.bool_],
        group: NDArray[np.int64],
    ) -> Floats:
        """Return the probability that a true entry scores above a false one in each group, [n].

        Ties count half; where a group has no such pair it is NaN.

        Parameters
        ----------
        scores, truth, group : ndarray
            [K] each.
        """
        n = len(self.counts)
        order = np.argsort(
            scores
        )  # in any order where they tie; then stably by group, which has few digits
        if n > 1:
            digits = group[order].astype(np.min_scalar_type(n - 1))
            order = order[np.argsort(digits, kind="stable")]
        scores = scores[order]
        truth = truth[order]
        group = group[order]
        is_new = (np.diff(scores) != 0) | (np.diff(group) != 0)
        first = np.flatnonzero(np.r_[True, is_new])
        ties = np.diff(np.r_[first, len(scores)])
        ranks = np.repeat(first + (ties + 1) / 2, ties)  # from 1, over all groups
        total = np.bincount(group, minlength=n)
        true = np.bincount(group, truth, n)
        before = np.cumsum(total) - total
        won = np.bincount(group, ranks * truth, n) - before * true - true * (true + 1) / 2
        return quotients(won, true * (total - true))


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


def metric(
    *,
    task: TaskKind | Sequence[TaskKind] | None = "classes",
) -> Callable[[MetricFunction], MetricFunction]:
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
    tasks: Sequence[TaskKind] = TASKS
    if isinstance(task, str):
        tasks = (task,)
    elif task is not None:
        tasks = task

    def register(function: MetricFunction) -> MetricFunction:
        name = function.__name__
        if name in METRICS or name == "examples":
            raise FieldError("metric", name, "this name is taken")
        METRICS[name] = Metric(tuple(tasks), function)
        return function

    return register


def quotients(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """Divide, with NaN where there is nothing to divide by."""
    undefined = np.full(np.shape(whole), np.nan)
    result: Floats = np.divide(part, whole, out=undefined, where=np.asarray(whole) > 0)
    return result
