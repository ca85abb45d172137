"""How good a model is, in figures by name; each is computed for many groups of examples (clients) at once.

A metric is a function of `Answers` under a name; registering another one is a decorator::

    @metric(task="values")
    def mae(answers: Answers) -> NDArray[np.float64]:
        return answers.mean(np.abs(answers.outputs - answers.labels))

The unit that is counted is a label: one an example, or one a pixel where a model names a class a pixel.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.errors import FieldError, nearest
from fedveil.learning.answers import METRICS, Answers, Figures, Floats, TaskKind, _over, metric
from fedveil.learning.losses import losses_of

DEFAULT: dict[TaskKind, tuple[str, ...]] = {
    "classes": ("loss", "accuracy", "f1", "precision", "auc", "micro_auc"),
    "values": ("loss", "rmse"),
}


@metric(task=None)
def loss(answers: Answers) -> Floats:
    """Mean cross-entropy (nats), or mean squared error; infinite where it is no number."""
    return np.nan_to_num(answers.mean(answers.losses), nan=np.inf, posinf=np.inf)


@metric(task="values")
def rmse(answers: Answers) -> Floats:
    """Root mean squared error, in units of the target."""
    return np.sqrt(loss(answers))


@metric()
def accuracy(answers: Answers) -> Floats:
    """Fraction of right classes."""
    return answers.mean(answers.predicted == answers.labels)


@metric()
def balanced_accuracy(answers: Answers) -> Floats:
    """Mean over the classes among the labels of the fraction that is found."""
    right, wanted, _ = answers.table
    return answers.macro(_over(right, wanted), wanted > 0)


@metric()
def precision(answers: Answers) -> Floats:
    """Macro precision over the classes among labels or predictions; 0 for one that is never predicted."""
    right, wanted, given = answers.table
    return answers.macro(right / np.maximum(given, 1), wanted + given > 0)


@metric()
def recall(answers: Answers) -> Floats:
    """Macro recall over the classes among labels or predictions; 0 for one that is no label."""
    right, wanted, given = answers.table
    return answers.macro(right / np.maximum(wanted, 1), wanted + given > 0)


@metric()
def f1(answers: Answers) -> Floats:
    """Macro F1 over the classes among labels or predictions."""
    right, wanted, given = answers.table
    return answers.macro(2 * right / np.maximum(wanted + given, 1), wanted + given > 0)


@metric()
def iou(answers: Answers) -> Floats:
    """Macro intersection over union, over the classes among labels or predictions."""
    right, wanted, given = answers.table
    return answers.macro(right / np.maximum(wanted + given - right, 1), wanted + given > 0)


@metric()
def sensitivity(answers: Answers) -> Floats:
    """Fraction of positives that are found: of class 1 of two; of several, the mean of each against the rest."""
    right, wanted, _ = answers.table
    rates = _over(right, wanted)
    return answers.positive(rates) if rates.shape[1] == 2 else answers.macro(rates, wanted > 0)


@metric()
def specificity(answers: Answers) -> Floats:
    """Fraction of negatives that are named so: of class 1 of two; of several, the mean of each against the rest."""
    right, wanted, given = answers.table
    negatives = answers.counts[:, None] - wanted
    rates = _over(negatives - (given - right), negatives)
    return answers.positive(rates) if rates.shape[1] == 2 else answers.macro(rates, negatives > 0)


@metric()
def positive_precision(answers: Answers) -> Floats:
    """Precision of class 1 of two; 0 if it occurs and is never predicted."""
    right, wanted, given = answers.table
    return answers.positive(_over(right, np.where(wanted > 0, np.maximum(given, 1), given)))


@metric()
def positive_f1(answers: Answers) -> Floats:
    """F1 of class 1 of two."""
    right, wanted, given = answers.table
    return answers.positive(_over(2 * right, wanted + given))


@metric()
def positive_iou(answers: Answers) -> Floats:
    """Intersection over union of class 1 of two."""
    right, wanted, given = answers.table
    return answers.positive(_over(right, wanted + given - right))


@metric()
def image_iou(answers: Answers) -> Floats:
    """Mean over images of the intersection over union of class 1 of two, where it is true or named at all."""
    return answers.of_images(positive_iou)


@metric()
def image_precision(answers: Answers) -> Floats:
    """Mean over images of the precision of class 1 of two, where it is true or named at all; 0 where only true."""
    return answers.of_images(positive_precision)


@metric()
def image_sensitivity(answers: Answers) -> Floats:
    """Mean over images of the share of class 1 of two that is found, where it is true."""
    return answers.of_images(lambda image: image.positive(_over(*image.table[:2])))


@metric()
def image_f1(answers: Answers) -> Floats:
    """Mean over images of the F1 of class 1 of two, where it is true or named at all."""
    return answers.of_images(positive_f1)


@metric()
def micro_auc(answers: Answers) -> Floats:
    """Area under the ROC curve of all pairs of an example and a class, pooled; high where one class is rare."""
    scores, classes = answers.probabilities, answers.outputs.shape[1]
    truth = np.zeros(scores.shape, dtype=bool)
    truth[np.arange(len(truth)), answers.labels] = True
    areas = answers.ranked(scores.ravel(), truth.ravel(), np.repeat(answers.group, classes))
    return np.where(_finite(answers), areas, np.nan)


@metric()
def auc(answers: Answers) -> Floats:
    """Area under the ROC curve of class 1 of two; of several, the mean of each against the rest that is there."""
    classes = answers.outputs.shape[1]
    by_class = [
        answers.ranked(answers.probabilities[:, c], answers.labels == c, answers.group)
        for c in (range(classes) if classes > 2 else range(1, classes))
    ]
    areas = np.stack(by_class, 1) if by_class else np.full((len(answers.counts), 1), np.nan)
    return np.where(_finite(answers), answers.macro(areas, ~np.isnan(areas)), np.nan)


def task_of(y: Tensor) -> TaskKind:
    """Classes where labels are whole numbers."""
    return "values" if y.is_floating_point() else "classes"


def metric_names(names: Sequence[str] | None, task: TaskKind) -> tuple[str, ...]:
    """Metrics to compute: the given ones, or the task's usual ones.

    Raises
    ------
    FieldError
        For an unknown name, or one that does not exist for the task.
    """
    chosen = DEFAULT[task] if names is None else tuple(names)
    for name in chosen:
        if name == "macro_auc":
            raise FieldError("metrics", name, "is called 'auc'; what was called so is 'micro_auc'")
        if name not in METRICS:
            raise FieldError("metrics", name, nearest(name, METRICS))
        if task not in METRICS[name].tasks:
            known = ", ".join(other for other, m in METRICS.items() if task in m.tasks)
            raise FieldError("metrics", name, f"does not exist where labels are {task}; there are: {known}")
    return chosen


def metrics(outputs: Tensor, y: Tensor, names: Sequence[str] | None = None) -> Figures:
    """Figures of a model's outputs.

    Parameters
    ----------
    outputs : Tensor
        Logits [N, C, ...], or values of a regression.
    y : Tensor
        [N, ...]; its type decides the task.
    names : sequence of str, optional
        Of `METRICS`; by default the task's usual ones.
    """
    return metrics_of_groups(outputs, y, [len(y)], names)[1]


def metrics_of_groups(
    outputs: Tensor, y: Tensor, sizes: Sequence[int], names: Sequence[str] | None = None
) -> tuple[list[Figures], Figures]:
    """Figures of consecutive groups of examples, such as clients, and of all examples together.

    Parameters
    ----------
    outputs, y, names
        See `metrics`.
    sizes : sequence of int
        Examples of each group, in order; their sum is N. A group without examples has only ``examples: 0``.

    Returns
    -------
    list of dict
        One a group: ``examples``, and each figure that exists.
    dict
        Of all examples, each of which counts the same.
    """
    if not len(y):
        return [{"examples": 0} for _ in sizes], {"examples": 0}
    chosen = metric_names(names, task_of(y))
    answers = _answers(outputs.detach().to(torch.float64), y, [size for size in sizes if size])
    figures = _figures(answers, sizes, chosen)
    return figures, figures[0] if len(sizes) == 1 else _figures(answers.joined(), [len(y)], chosen)[0]


def _figures(answers: Answers, sizes: Sequence[int], chosen: Sequence[str]) -> list[Figures]:
    columns = [np.asarray(METRICS[name].function(answers), np.float64).tolist() for name in chosen]
    rows = zip(*columns, strict=True) if chosen else iter([()] * len(sizes))
    figures: list[Figures] = []
    for size in sizes:
        named = zip(chosen, next(rows), strict=True) if size else ()
        figures.append({"examples": size, **{name: value for name, value in named if value == value}})
    return figures


def _answers(outputs: Tensor, y: Tensor, sizes: Sequence[int]) -> Answers:
    task = task_of(y)
    losses = losses_of("mse" if task == "values" else "cross_entropy")(outputs, y)
    if task == "classes":
        outputs = outputs.movedim(1, -1).reshape(-1, outputs.shape[1])
    labels = y.reshape(-1).to(torch.float64 if task == "values" else torch.int64).numpy()
    each = len(labels) // len(y)
    counts = np.asarray(sizes, np.int64) * each
    group = np.repeat(np.arange(len(counts)), counts)
    flat = outputs.numpy() if task == "classes" else outputs.reshape(-1).numpy()
    return Answers(task, flat, labels, losses.reshape(-1).numpy(), group, counts, each)


def _finite(answers: Answers) -> NDArray[np.bool_]:
    """Groups all of whose logits are finite."""
    odd = ~np.isfinite(answers.outputs).all(axis=1, keepdims=True).reshape(-1)
    return np.equal(answers.mean(odd), 0.0)
