"""How good a model is, in figures by name; each is computed for many groups of examples (clients) at once.

A metric is a function of `Answers` under a name; registering another one is a decorator::

    @metric(task="values")
    def mae(answers: Answers) -> NDArray[np.float64]:
        return answers.mean(np.abs(answers.outputs - answers.labels))

The unit that is counted is a label: one an example, or one a pixel where a model names a class a pixel.
"""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedveil.errors import FieldError, nearest
from fedveil.learning.answers import METRICS, Answers, Figures, Floats, TaskKind, _over, metric
from fedveil.learning.losses import LABELWISE, loss_of, losses_of
from fedveil.learning.objective import Loss, output_meaning, void_labels

DEFAULT: dict[TaskKind, tuple[str, ...]] = {
    "classes": ("loss", "accuracy", "f1", "precision", "auc", "micro_auc"),
    "labels": ("loss", "accuracy", "exact_match", "f1", "precision", "auc", "micro_auc"),
    "values": ("loss", "rmse"),
    "other": ("loss",),
}
DISCRETE: tuple[TaskKind, ...] = ("classes", "labels")


@metric(task=None)
def loss(answers: Answers) -> Floats:
    """The loss that was asked for; without one cross-entropy (nats), or squared error. Infinite if it is no number."""
    asked = answers.mean(answers.losses) if answers.asked is None else answers.asked
    return np.where(answers.counts > 0, np.nan_to_num(asked, nan=np.inf, posinf=np.inf), np.nan)


@metric(task="values")
def rmse(answers: Answers) -> Floats:
    """Root mean squared error, in units of the target."""
    squares = answers.mean((answers.outputs - answers.labels) ** 2)
    return np.where(answers.counts > 0, np.sqrt(np.nan_to_num(squares, nan=np.inf, posinf=np.inf)), np.nan)


@metric(task=DISCRETE)
def accuracy(answers: Answers) -> Floats:
    """Fraction of right classes; where several may hold, of right answers to whether one does."""
    right = answers.predicted == answers.labels
    return answers.mean(right.mean(1) if answers.task == "labels" else right)


@metric(task="labels")
def exact_match(answers: Answers) -> Floats:
    """Fraction of examples all of whose labels are right."""
    return answers.mean((answers.predicted == answers.labels).all(1))


@metric(task="labels")
def hamming(answers: Answers) -> Floats:
    """Fraction of wrong answers to whether a label holds: 1 less accuracy."""
    return 1 - accuracy(answers)


@metric()
def balanced_accuracy(answers: Answers) -> Floats:
    """Mean over the classes among the labels of the fraction that is found."""
    right, wanted, _ = answers.table
    return answers.macro(_over(right, wanted), wanted > 0)


@metric(task=DISCRETE)
def precision(answers: Answers) -> Floats:
    """Macro precision over the classes among labels or predictions; 0 for one that is never predicted."""
    right, wanted, given = answers.table
    return answers.macro(right / np.maximum(given, 1), wanted + given > 0)


@metric(task=DISCRETE)
def recall(answers: Answers) -> Floats:
    """Macro recall over the classes among labels or predictions; 0 for one that is no label."""
    right, wanted, given = answers.table
    return answers.macro(right / np.maximum(wanted, 1), wanted + given > 0)


@metric(task=DISCRETE)
def f1(answers: Answers) -> Floats:
    """Macro F1 over the classes among labels or predictions."""
    right, wanted, given = answers.table
    return answers.macro(2 * right / np.maximum(wanted + given, 1), wanted + given > 0)


@metric(task=DISCRETE)
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


@metric(task=DISCRETE)
def micro_auc(answers: Answers) -> Floats:
    """Area under the ROC curve of all pairs of an example and a class, pooled; high where one class is rare."""
    scores, classes = answers.probabilities, answers.outputs.shape[1]
    truth = answers.labels
    if answers.task == "classes":
        truth = np.zeros(scores.shape, dtype=bool)
        truth[np.arange(len(truth)), answers.labels] = True
    areas = answers.ranked(scores.ravel(), truth.ravel(), np.repeat(answers.group, classes))
    return np.where(_finite(answers), areas, np.nan)


@metric(task=DISCRETE)
def auc(answers: Answers) -> Floats:
    """Area under the ROC curve of class 1 of two; of several, the mean of each against the rest that is there."""
    classes, alone = answers.outputs.shape[1], answers.task == "labels"
    by_class = [
        answers.ranked(
            answers.probabilities[:, c], answers.labels[:, c] if alone else answers.labels == c, answers.group
        )
        for c in (range(classes) if classes > 2 or alone else range(1, classes))
    ]
    areas = np.stack(by_class, 1) if by_class else np.full((len(answers.counts), 1), np.nan)
    return np.where(_finite(answers), answers.macro(areas, ~np.isnan(areas)), np.nan)


def task_of(y: Tensor, loss: Loss | None = None, outputs: Sequence[int] | None = None) -> TaskKind:
    """What labels are to a loss; "other" where outputs and labels have not the shapes to be compared one by one.

    Parameters
    ----------
    y : Tensor
        [N, ...].
    loss : str or callable, optional
        As in `LocalTraining`. Without one, whole numbers are classes and others values.
    outputs : sequence of int, optional
        Shape of the model's outputs, [N, ...].
    """
    if loss is None or outputs is None:
        return "values" if y.is_floating_point() else "classes"
    meaning = output_meaning(loss, outputs, y)
    if meaning in ("classes", "soft classes"):
        return "classes"
    if torch.Size(outputs[1:]).numel() != torch.Size(y.shape[1:]).numel():
        return "other"  # a mean and a spread for each target, quantiles, several tasks
    if meaning == "values":
        return "values"
    return "labels" if len(outputs) in (2, 4, 5) and outputs[1] > 1 else "classes"


def metric_names(names: Sequence[str] | None, task: TaskKind) -> tuple[str, ...]:
    """Metrics to compute: the given ones, or the task's usual ones.

    Where several labels may hold, ``auc[2]`` is that of label 2 alone, and ``auc[each]`` that of every one.

    Raises
    ------
    FieldError
        For an unknown name, or one that does not exist for the task.
    """
    chosen = DEFAULT[task] if names is None else tuple(names)
    for name in chosen:
        if name == "macro_auc":
            raise FieldError("metrics", name, "is called 'auc'; what was called so is 'micro_auc'")
        base, label = _of_label(name)
        if label and task == "labels" and base in METRICS and base != "loss" and "classes" in METRICS[base].tasks:
            continue
        if label and base in METRICS:
            accepted = f"is the figure of one label, where several may hold; labels are {task}: write {base!r}"
            raise FieldError("metrics", name, accepted)
        if name not in METRICS:
            raise FieldError("metrics", name, nearest(name, METRICS))
        if task not in METRICS[name].tasks:
            known = ", ".join(other for other, m in METRICS.items() if task in m.tasks)
            raise FieldError("metrics", name, f"does not exist where labels are {task}; there are: {known}")
    return chosen


def _of_label(name: str) -> tuple[str, str]:
    """A figure's name and the label it is of: ``auc[2]`` as "auc", "2"; with an empty label where it is of all."""
    found = re.fullmatch(r"(\w+)\[(\d+|each)\]", name)
    return (found[1], found[2]) if found else (name, "")


def _each_label(names: Sequence[str], labels: int) -> tuple[str, ...]:
    """The names with ``[each]`` written out for so many labels."""
    every: list[str] = []
    for name in names:
        base, label = _of_label(name)
        every += [f"{base}[{k}]" for k in range(labels)] if label == "each" else [name]
        if label.isdecimal() and int(label) >= labels:
            raise FieldError("metrics", name, f"there are {labels} labels: 0 to {labels - 1}, or [each]")
    return tuple(dict.fromkeys(every))


def _column(name: str, answers: Answers) -> Floats:
    """A figure of each group."""
    base, label = _of_label(name)
    return METRICS[base].function(answers.of_label(int(label)) if label else answers)


def metrics(outputs: Tensor, y: Tensor, names: Sequence[str] | None = None, loss: Loss | None = None) -> Figures:
    """Figures of a model's outputs.

    Parameters
    ----------
    outputs : Tensor
        Logits [N, C, ...], or values of a regression; what the loss takes.
    y : Tensor
        [N, ...]; its type and the loss decide the task.
    names : sequence of str, optional
        Of `METRICS`; by default the task's usual ones.
    loss : str or callable, optional
        The one that was asked for, as in `LocalTraining`. By default cross-entropy of classes, squared error of values.
    """
    return metrics_of_groups(outputs, y, [len(y)], names, loss)[1]


def metrics_of_groups(
    outputs: Tensor,
    y: Tensor,
    sizes: Sequence[int],
    names: Sequence[str] | None = None,
    loss: Loss | None = None,
) -> tuple[list[Figures], Figures]:
    """Figures of consecutive groups of examples, such as clients, and of all examples together.

    Parameters
    ----------
    outputs, y, names, loss
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
    task = task_of(y, loss, outputs.shape)
    chosen = _each_label(metric_names(names, task), outputs.shape[1] if task == "labels" else 1)
    held = [size for size in sizes if size]
    answers, void = _answers(task, outputs.detach(), y, held, loss)
    opaque = loss is not None and "loss" in chosen and not (isinstance(loss, str) and loss in LABELWISE)
    if opaque:
        answers = replace(answers, asked=_asked(loss, outputs.detach(), y, void, held))
    if task == "classes" and len(answers.labels) and answers.labels.max() >= answers.outputs.shape[1]:
        chosen = tuple(
            name for name in chosen if name == "loss"
        )  # numbers that are no classes, such as of a triplet loss
    figures = _figures(answers, sizes, chosen)
    if len(sizes) == 1:
        return figures, figures[0]
    together = answers.joined(_asked(loss, outputs.detach(), y, void, [len(y)]) if opaque else None)
    return figures, _figures(together, [len(y)], chosen)[0]


def answers_to(outputs: Tensor, y: Tensor, loss: Loss | None = None) -> Answers | None:
    """Answers of one group beside the truth, without void labels; None where outputs and labels cannot be compared."""
    task = task_of(y, loss, outputs.shape)
    return None if task == "other" or not len(y) else _answers(task, outputs.detach(), y, [len(y)], loss)[0]


def _figures(answers: Answers, sizes: Sequence[int], chosen: Sequence[str]) -> list[Figures]:
    columns = [np.asarray(_column(name, answers), np.float64).tolist() for name in chosen]
    rows = zip(*columns, strict=True) if chosen else iter([()] * len(sizes))
    figures: list[Figures] = []
    for size in sizes:
        named = zip(chosen, next(rows), strict=True) if size else ()
        figures.append({"examples": size, **{name: value for name, value in named if value == value}})
    return figures


def _asked(loss: Any, outputs: Tensor, y: Tensor, void: Tensor, sizes: Sequence[int]) -> Floats:
    """The loss of each group, as its function says; NaN where all labels are void, or it cannot be had."""
    values: list[float] = []
    parts = zip(*(torch.split(whole, list(sizes)) for whole in (outputs, y, void)), strict=True)
    for own, labels, nothing in parts:
        value = math.nan
        with suppress(Exception), torch.no_grad(), torch.random.fork_rng(devices=[]):  # the loss is the user's
            if not nothing.all():
                value = float(loss_of(loss)(own, labels))
        values.append(value)
    return np.asarray(values, np.float64)


def _answers(
    task: TaskKind, outputs: Tensor, y: Tensor, sizes: Sequence[int], loss: Loss | None
) -> tuple[Answers, Tensor]:
    """Answers beside the truth, a row a label, without void ones; and which labels are void."""
    meaning, void = output_meaning(loss, outputs.shape, y), void_labels(loss, y, outputs.shape)
    owner = torch.repeat_interleave(torch.tensor(list(sizes)))
    outputs = outputs.to(torch.float64)
    losses = torch.zeros(0)
    if loss is None or (isinstance(loss, str) and loss in LABELWISE):
        known = loss or ("mse" if task == "values" else "cross_entropy")
        losses = losses_of(known)(outputs, y)
    if meaning == "chances":
        outputs = outputs.logit(1e-12)
    if meaning == "soft classes":
        y = y.argmax(1)
    if task == "other":
        flat, labels = torch.zeros(len(y), 1), torch.zeros(len(y), dtype=torch.int64)
        void = torch.zeros(len(y), dtype=torch.bool)
    elif task == "labels":
        flat, labels = _by_label(outputs), _by_label(y) >= 0.5
    elif task == "values":
        flat, labels = outputs.reshape(-1), y.reshape(-1).to(torch.float64)
    elif meaning in ("logits", "chances"):
        yes = outputs.reshape(-1)
        flat, labels = torch.stack([torch.zeros_like(yes), yes], 1), (y.reshape(-1) >= 0.5).to(torch.int64)
    else:
        flat, labels = _by_label(outputs), y.reshape(-1)
    each = len(labels) // len(y)
    example = torch.arange(len(y)).repeat_interleave(each)
    group = owner.repeat_interleave(each)
    losses = losses.reshape(len(labels), -1).mean(1) if losses.numel() else torch.zeros(len(labels))
    if void.any():
        kept = ~void.reshape(-1)
        flat, labels, losses, example, group = (part[kept] for part in (flat, labels, losses, example, group))
    counts = torch.bincount(group, minlength=len(sizes)).numpy()
    columns = flat.numpy(), labels.numpy(), losses.to(torch.float64).numpy(), group.numpy()
    return Answers(task, *columns, counts, example.numpy()), void


def _by_label(values: Tensor) -> Tensor:
    """[N, C, ...] as [M, C], a row a label."""
    return values.movedim(1, -1).reshape(-1, values.shape[1])


def _finite(answers: Answers) -> NDArray[np.bool_]:
    """Groups all of whose logits are finite."""
    odd = np.asarray(~np.isfinite(answers.outputs).all(axis=1))
    return np.equal(answers.mean(odd), 0.0)
