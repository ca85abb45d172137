"""A model's answers with the true labels, in groups, and the registry of metrics that are computed from them."""

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
]  # by name, with "examples"; a metric that does not exist for the task or the data is absent
TaskKind = Literal[
    "classes", "labels", "values", "other"
]  # "other": only the loss can judge the outputs
Floats = NDArray[np.float64]

_KEPT = ("predicted", "probabilities")  # computed label by label, so the same for any groups
TASKS: tuple[TaskKind, ...] = ("classes", "labels", "values", "other")


@dataclass(frozen=True, eq=False)
class Answers:
    """A model's answers on M labels, with the true labels, in n groups such as clients.

    Attributes
    ----------
    task : {"classes", "labels", "values"}
        Kind of labels: one class of several, several labels that each hold or not, or numbers.
    outputs : ndarray
        float64: logits [M, C] of C classes or labels, or values [M].
    labels : ndarray
        [M], int64 classes or float64 targets; [M, C] bool if several labels may hold. Void labels are left out.
    losses : ndarray
        [M], float64: squared error of each value, or the loss of each label if the loss is a mean over labels.
    group : ndarray
        [M] int64, group of each label, ascending.
    counts : ndarray
        [n], number of labels in each group.
    example : ndarray
        [M] int64, example of each label, ascending. An example has several labels if a model predicts a class for each
        pixel.
    asked : ndarray, optional
        [n], loss of each group by the loss that the user requested; by default the mean of `losses`.
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
        """Predicted classes [M] (largest logit); if several labels may hold, bool [M, C]: logits above 0."""
        if self.task == "labels":
            return np.asarray(self.outputs > 0)
        return np.asarray(np.argmax(self.outputs, axis=1))

    @cached_property
    def table(self) -> tuple[Floats, Floats, Floats]:
        """Count for each group and class, [n, C] each: labels found, true labels, and labels that the model predicted."""
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
        """Sum the rows [M, C] of each group."""
        total = np.zeros((len(self.counts), self.outputs.shape[1]))
        np.add.at(total, self.group, rows)
        return total

    def _classes_by_group(self, classes: NDArray[Any], weights: Floats) -> Floats:
        """Sum the weights [M] for each group and class [M]."""
        groups = len(self.counts)
        width = self.outputs.shape[1]
        sums = np.bincount(self.group * width + classes, weights, groups * width)
        return sums.astype(float).reshape(groups, width)

    @cached_property
    def probabilities(self) -> Floats:
        """Probabilities of the classes [M, C]."""
        logits = torch.from_numpy(self.outputs)
        chances = logits.sigmoid() if self.task == "labels" else logits.softmax(1)
        return chances.numpy()

    def joined(self, asked: Floats | None = None) -> "Answers":
        """Return the same answers as one group; `asked` is the requested loss of this group, [1]."""
        return self._grouped(np.zeros(len(self.labels), np.int64), asked)

    def _grouped(
        self,
        group: NDArray[np.int64],
        asked: Floats | None = None,
    ) -> "Answers":
        """Return the same answers in other groups; cached values of single labels (`_KEPT`) are not computed again."""
        counts = np.bincount(group) if len(group) else np.zeros(1, np.int64)
        other = replace(self, group=group, counts=counts, asked=asked)
        for name in _KEPT:
            if name in vars(self):
                vars(other)[name] = vars(self)[name]
        return other

    def of_label(self, label: int) -> "Answers":
        """Return the answers for one of several labels as two classes; class 1 means that the label holds."""
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
        """Return the same answers with each image as its own group."""
        _, image = np.unique(self.example, return_inverse=True)
        return self._grouped(image)

    def of_images(self, share: "MetricFunction") -> Floats:
        """Return the mean of a metric over the images of each group, [n]. Images without a value are left out."""
        _, first = np.unique(self.example, return_index=True)
        owner = self.group[first]
        shares = share(self.images)
        groups = len(self.counts)
        sums = np.bincount(owner, np.nan_to_num(shares), groups)
        images = np.bincount(owner, ~np.isnan(shares), groups)
        return quotients(sums, images)

    def macro(self, shares: Floats, counted: NDArray[np.bool_]) -> Floats:
        """Return the mean [n] of values [n, C] over those classes that `counted` [n, C] marks; NaN if none is marked."""
        return quotients(np.where(counted, shares, 0.0).sum(1), counted.sum(1))

    def positive(self, shares: Floats) -> Floats:
        """Return the column of class 1 of values [n, 2]; NaN if there are not two classes."""
        if shares.shape[1] == 2:
            return shares[:, 1]
        return np.full(len(shares), np.nan)

    def ranked(
        self,
        scores: Floats,
        truth: NDArray[np.bool_],
        group: NDArray[np.int64],
        groups: int | None = None,
    ) -> Floats:
        """Return the area under the ROC curve of each group, [groups]: how often a true entry scores above a false one.

        Ties count half. A group without a pair of a true and a false entry has NaN.

        Parameters
        ----------
        scores, truth, group : ndarray
            [K] each: scores, whether each entry is true, and the group of each.
        groups : int, optional
            Number of groups; by default that of the answers.
        """
        n = len(self.counts) if groups is None else groups
        order = np.argsort(
            scores
        )  # in any order among equal scores; then stably by group, as groups have few digits
        if n > 1:
            digits = group[order].astype(np.min_scalar_type(n - 1))
            order = order[np.argsort(digits, kind="stable")]
        scores = scores[order]
        truth = truth[order]
        group = group[order]
        is_new = np.ones(len(scores), dtype=bool)
        is_new[1:] = (scores[1:] != scores[:-1]) | (group[1:] != group[:-1])
        first = np.flatnonzero(is_new)
        ties = np.diff(first, append=len(scores))
        ranks = np.repeat(first + (ties + 1) / 2, ties)  # ranks from 1, over all groups
        total = np.bincount(group, minlength=n)
        true = np.bincount(group, truth, n)
        before = np.cumsum(total) - total
        won = np.bincount(group, ranks * truth, n) - before * true - true * (true + 1) / 2
        return quotients(won, true * (total - true))


MetricFunction = Callable[[Answers], Floats]


@dataclass(frozen=True)
class Metric:
    """Registered metric: its function, and the tasks that it can judge.

    Attributes
    ----------
    tasks : tuple of str
        Tasks for which the metric exists.
    function : callable
        Function of `Answers` that returns one value for each group, [n]; NaN if a group has no value.
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
        Tasks for which the metric exists; None for all.

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
    """Divide `part` by `whole`, entry by entry; NaN where `whole` is 0."""
    undefined = np.full(np.shape(whole), np.nan)
    result: Floats = np.divide(part, whole, out=undefined, where=np.asarray(whole) > 0)
    return result
