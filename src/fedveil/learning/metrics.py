"""Metrics of a model by name; each is computed for many groups of examples (clients) at once.

A metric is a function of `Answers`, registered under its own name by a decorator. To add one::

    @metric(task="values")
    def mae(answers: Answers) -> NDArray[np.float64]:
        return answers.mean(np.abs(answers.outputs - answers.labels))

Metrics count labels: one for each example, or one for each pixel if a model predicts a class for each pixel.
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
from fedveil.learning.answers import METRICS, Answers, Figures, Floats, TaskKind, metric, quotients
from fedveil.learning.losses import LABELWISE, loss_of, losses_of
from fedveil.learning.objective import Loss, OutputMeaning, output_meaning, void_labels

DEFAULT: dict[TaskKind, tuple[str, ...]] = {
    "classes": ("loss", "accuracy", "f1", "precision", "auc", "micro_auc"),
    "labels": ("loss", "accuracy", "exact_match", "f1", "precision", "auc", "micro_auc"),
    "values": ("loss", "rmse"),
    "other": ("loss",),
}
DISCRETE: tuple[TaskKind, ...] = ("classes", "labels")


@metric(task=None)
def loss(answers: Answers) -> Floats:
    """Mean loss: the requested one, or by default cross-entropy (nats) or squared error. NaN becomes infinity."""
    asked = answers.mean(answers.losses) if answers.asked is None else answers.asked
    return np.where(answers.counts > 0, _infinite_for_nan(asked), np.nan)


def _infinite_for_nan(values: Floats) -> Floats:
    """Replace NaN by infinity, so that a diverged model counts as the worst possible."""
    return np.nan_to_num(values, nan=np.inf, posinf=np.inf)


@metric(task="values")
def rmse(answers: Answers) -> Floats:
    """Root mean squared error, in units of the target."""
    squares = answers.mean((answers.outputs - answers.labels) ** 2)
    return np.where(answers.counts > 0, np.sqrt(_infinite_for_nan(squares)), np.nan)


@metric(task=DISCRETE)
def accuracy(answers: Answers) -> Floats:
    """Fraction of right classes; if several labels may hold, fraction of right yes-or-no answers."""
    right = answers.predicted == answers.labels
    if answers.task == "labels":
        right = right.mean(1)
    return answers.mean(right)


@metric(task="labels")
def exact_match(answers: Answers) -> Floats:
    """Fraction of examples whose labels are all right."""
    return answers.mean((answers.predicted == answers.labels).all(1))


@metric(task="labels")
def hamming(answers: Answers) -> Floats:
    """Fraction of wrong yes-or-no answers about labels: 1 less accuracy."""
    return 1 - accuracy(answers)


@metric()
def balanced_accuracy(answers: Answers) -> Floats:
    """Mean recall over the classes that occur among the labels."""
    right, wanted, _ = answers.table
    return answers.macro(quotients(right, wanted), wanted > 0)


@metric(task=DISCRETE)
def precision(answers: Answers) -> Floats:
    """Macro precision, over the classes that are labels or predicted; 0 for a class that is never predicted."""
    right, wanted, given = answers.table
    return answers.macro(right / np.maximum(given, 1), wanted + given > 0)


@metric(task=DISCRETE)
def recall(answers: Answers) -> Floats:
    """Macro recall, over the classes that are labels or predicted; 0 for a class that is only predicted."""
    right, wanted, given = answers.table
    return answers.macro(right / np.maximum(wanted, 1), wanted + given > 0)


@metric(task=DISCRETE)
def f1(answers: Answers) -> Floats:
    """Macro F1, over the classes that are labels or predicted."""
    right, wanted, given = answers.table
    return answers.macro(2 * right / np.maximum(wanted + given, 1), wanted + given > 0)


@metric(task=DISCRETE)
def iou(answers: Answers) -> Floats:
    """Macro intersection over union, over the classes that are labels or predicted."""
    right, wanted, given = answers.table
    return answers.macro(right / np.maximum(wanted + given - right, 1), wanted + given > 0)


@metric()
def sensitivity(answers: Answers) -> Floats:
    """Recall of class 1, if there are two classes; with more, the mean recall of the classes that occur."""
    right, wanted, _ = answers.table
    rates = quotients(right, wanted)
    if rates.shape[1] == 2:
        return answers.positive(rates)
    return answers.macro(rates, wanted > 0)


@metric()
def specificity(answers: Answers) -> Floats:
    """Share of class 0 that is recognised, if there are two classes; with more, the mean of each class against the rest."""
    right, wanted, given = answers.table
    negatives = answers.counts[:, None] - wanted
    false_positives = given - right
    rates = quotients(negatives - false_positives, negatives)
    if rates.shape[1] == 2:
        return answers.positive(rates)
    return answers.macro(rates, negatives > 0)


@metric()
def positive_precision(answers: Answers) -> Floats:
    """Precision of class 1 (of two); 0 if the class occurs and is never predicted."""
    right, wanted, given = answers.table
    named = np.where(wanted > 0, np.maximum(given, 1), given)
    return answers.positive(quotients(right, named))


@metric()
def positive_f1(answers: Answers) -> Floats:
    """F1 of class 1 (of two)."""
    right, wanted, given = answers.table
    return answers.positive(quotients(2 * right, wanted + given))


@metric()
def positive_iou(answers: Answers) -> Floats:
    """Intersection over union of class 1 (of two)."""
    right, wanted, given = answers.table
    return answers.positive(quotients(right, wanted + given - right))


@metric()
def image_iou(answers: Answers) -> Floats:
    """Mean over images of the intersection over union of class 1 (of two); images without the class are left out.

    An image counts if the class is in its labels or in its predictions.
    """
    return answers.of_images(positive_iou)


@metric()
def image_precision(answers: Answers) -> Floats:
    """Mean over images of the precision of class 1 (of two); 0 in an image where the class is missed altogether.

    An image counts if the class is in its labels or in its predictions.
    """
    return answers.of_images(positive_precision)


@metric()
def image_sensitivity(answers: Answers) -> Floats:
    """Mean recall of class 1 (of two) in an image, over the images that contain class 1."""
    return answers.of_images(_positive_recall)


def _positive_recall(answers: Answers) -> Floats:
    right, wanted, _ = answers.table
    return answers.positive(quotients(right, wanted))


@metric()
def image_f1(answers: Answers) -> Floats:
    """Mean over images of the F1 of class 1 (of two); images without the class are left out.

    An image counts if the class is in its labels or in its predictions.
    """
    return answers.of_images(positive_f1)


@metric(task=DISCRETE)
def micro_auc(answers: Answers) -> Floats:
    """Area under the ROC curve of all pairs of example and class, pooled. Rare classes raise it."""
    scores = answers.probabilities
    classes = answers.outputs.shape[1]
    truth = answers.labels
    if answers.task == "classes":
        truth = np.zeros(scores.shape, dtype=bool)
        truth[np.arange(len(truth)), answers.labels] = True
    group = np.repeat(answers.group, classes)
    areas = answers.ranked(scores.ravel(), truth.ravel(), group)
    return np.where(_finite(answers), areas, np.nan)


@metric(task=DISCRETE)
def auc(answers: Answers) -> Floats:
    """Area under the ROC curve of class 1 (of two); with more classes, the mean of each class against the rest."""
    classes = answers.outputs.shape[1]
    several_hold = answers.task == "labels"
    first = 0 if classes > 2 or several_hold else 1  # with two classes one area is enough
    of_class, groups = np.arange(first, classes), len(answers.counts)
    if not of_class.size:
        return np.full(groups, np.nan)
    truth = answers.labels.T if several_hold else answers.labels == of_class[:, None]
    group = np.arange(len(of_class))[:, None] * groups + answers.group
    scores = answers.probabilities.T[first:]
    ranked = answers.ranked(scores.ravel(), truth.ravel(), group.ravel(), len(of_class) * groups)
    areas = np.ascontiguousarray(ranked.reshape(len(of_class), groups).T)
    return np.where(_finite(answers), answers.macro(areas, ~np.isnan(areas)), np.nan)


def task_of(
    y: Tensor,
    loss: Loss | None = None,
    outputs: Sequence[int] | None = None,
) -> TaskKind:
    """Return the kind of task that labels and loss define; "other" if outputs and labels have shapes that do not match.

    Parameters
    ----------
    y : Tensor
        [N, ...], labels.
    loss : str or callable, optional
        Loss as in `LocalTraining`. Without one, integers are classes, and other numbers are values.
    outputs : sequence of int, optional
        Shape of the model's outputs, [N, ...].
    """
    if loss is None or outputs is None:
        return "values" if y.is_floating_point() else "classes"
    meaning = output_meaning(loss, outputs, y)
    if meaning in ("classes", "soft classes"):
        return "classes"
    if math.prod(outputs[1:]) != math.prod(y.shape[1:]):
        return "other"  # such as a mean and a spread for each target, quantiles, or several tasks
    if meaning == "values":
        return "values"
    has_channels = len(outputs) in (2, 4, 5)
    return "labels" if has_channels and outputs[1] > 1 else "classes"


def metric_names(names: Sequence[str] | None, task: TaskKind) -> tuple[str, ...]:
    """Return the metrics to compute: the given ones, or the task's usual ones.

    If several labels may hold, ``auc[2]`` is the metric for label 2 alone, and ``auc[each]`` stands for one metric for
    each label.

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
        if label and base in METRICS:
            _require_of_label(name, base, task)
            continue
        if name not in METRICS:
            raise FieldError("metrics", name, nearest(name, METRICS))
        if task not in METRICS[name].tasks:
            known = [other for other, found in METRICS.items() if task in found.tasks]
            accepted = f"does not exist where labels are {task}; there are: {', '.join(known)}"
            raise FieldError("metrics", name, accepted)
    return chosen


def _require_of_label(name: str, base: str, task: TaskKind) -> None:
    """Refuse a metric of a single label, such as ``auc[2]``, unless several labels may hold and it is for classifications."""
    of_classification = base != "loss" and "classes" in METRICS[base].tasks
    if task != "labels" or not of_classification:
        accepted = (
            f"is the figure of one label, where several may hold; labels are {task}: write {base!r}"
        )
        raise FieldError("metrics", name, accepted)


def _of_label(name: str) -> tuple[str, str]:
    """Split a name like ``auc[2]`` into metric and label, "auc" and "2"; without brackets the label is ""."""
    found = re.fullmatch(r"(\w+)\[(\d+|each)\]", name)
    if found is None:
        return name, ""
    return found[1], found[2]


def _each_label(names: Sequence[str], labels: int) -> tuple[str, ...]:
    """Return the names with ``[each]`` replaced by each of the labels."""
    every: list[str] = []
    for name in names:
        base, label = _of_label(name)
        if label == "each":
            every += [f"{base}[{number}]" for number in range(labels)]
            continue
        if label and int(label) >= labels:
            raise FieldError(
                "metrics", name, f"there are {labels} labels: 0 to {labels - 1}, or [each]"
            )
        every.append(name)
    return tuple(dict.fromkeys(every))


def _column(name: str, answers: Answers) -> Floats:
    """Compute a metric by its name for each group, [n]."""
    base, label = _of_label(name)
    if label:
        answers = answers.of_label(int(label))
    return METRICS[base].function(answers)


def metrics(
    outputs: Tensor,
    y: Tensor,
    names: Sequence[str] | None = None,
    loss: Loss | None = None,
) -> Figures:
    """Compute metrics from a model's outputs and the true labels.

    Parameters
    ----------
    outputs : Tensor
        Logits [N, C, ...] or values of a regression, as the loss takes them.
    y : Tensor
        [N, ...], labels or values; their type and the loss determine the task.
    names : sequence of str, optional
        Names in `METRICS`; by default the task's usual ones.
    loss : str or callable, optional
        Requested loss, as in `LocalTraining`. By default cross-entropy for classes, squared error for values.
    """
    return metrics_of_groups(outputs, y, [len(y)], names, loss)[1]


def metrics_of_groups(
    outputs: Tensor,
    y: Tensor,
    sizes: Sequence[int],
    names: Sequence[str] | None = None,
    loss: Loss | None = None,
) -> tuple[list[Figures], Figures]:
    """Compute the metrics of consecutive groups of examples, such as clients, and of all examples together.

    Parameters
    ----------
    outputs, y, names, loss
        See `metrics`.
    sizes : sequence of int
        Number of examples of each group, in order; the sum is N. A group without examples has only ``examples: 0``.

    Returns
    -------
    list of dict
        Metrics of each group: ``examples``, and each metric that exists.
    dict
        Metrics of all examples, each with the same weight.
    """
    if not len(y):
        return [{"examples": 0} for _ in sizes], {"examples": 0}
    outputs = outputs.detach()
    task = task_of(y, loss, outputs.shape)
    labels = outputs.shape[1] if task == "labels" else 1
    chosen = _each_label(metric_names(names, task), labels)
    held = [size for size in sizes if size]
    answers, void = _answers(task, outputs, y, held, loss)
    by_function = "loss" in chosen and _is_function(loss)
    if by_function:
        answers = replace(answers, asked=_asked(loss, outputs, y, void, held))
    if _has_numbers_of_no_class(answers):
        chosen = tuple(name for name in chosen if name == "loss")
    figures = _figures(answers, sizes, chosen)
    if len(sizes) == 1:
        return figures, figures[0]
    asked = _asked(loss, outputs, y, void, [len(y)]) if by_function else None
    [together] = _figures(answers.joined(asked), [len(y)], chosen)
    return figures, together


def _is_function(loss: Loss | None) -> bool:
    """Whether a loss gives only the mean of a batch, and not the loss of each label."""
    if loss is None:
        return False
    return not (isinstance(loss, str) and loss in LABELWISE)


def _has_numbers_of_no_class(answers: Answers) -> bool:
    """Whether a label is larger than the last class, as for a triplet loss."""
    if answers.task != "classes" or not len(answers.labels):
        return False
    return bool(answers.labels.max() >= answers.outputs.shape[1])


def answers_to(outputs: Tensor, y: Tensor, loss: Loss | None = None) -> Answers | None:
    """Pair outputs with the true labels as one group of `Answers`; void labels are left out.

    Returns
    -------
    Answers, optional
        None if there is no label, or outputs and labels cannot be compared.
    """
    task = task_of(y, loss, outputs.shape)
    if task == "other" or not len(y):
        return None
    answers, _ = _answers(task, outputs.detach(), y, [len(y)], loss)
    return answers


def _figures(
    answers: Answers,
    sizes: Sequence[int],
    chosen: Sequence[str],
) -> list[Figures]:
    """Compute the chosen metrics of each group; a group without examples is not in `answers`."""
    columns = [np.asarray(_column(name, answers), np.float64) for name in chosen]
    figures: list[Figures] = []
    row = 0
    for size in sizes:
        own: Figures = {"examples": size}
        if size:
            for name, column in zip(chosen, columns, strict=True):
                value = float(column[row])
                if not math.isnan(value):
                    own[name] = value
            row += 1
        figures.append(own)
    return figures


def _asked(
    loss: Any,
    outputs: Tensor,
    y: Tensor,
    void: Tensor,
    sizes: Sequence[int],
) -> Floats:
    """Compute the requested loss of each group, [n]; NaN if all its labels are void or the loss function fails."""
    lengths = list(sizes)
    parts = zip(
        torch.split(outputs, lengths),
        torch.split(y, lengths),
        torch.split(void, lengths),
        strict=True,
    )
    values: list[float] = []
    for own, labels, own_void in parts:
        value = math.nan
        with (
            suppress(Exception),
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
        ):  # the loss is the user's code
            if not own_void.all():
                value = float(loss_of(loss)(own, labels))
        values.append(value)
    return np.asarray(values, np.float64)


def _answers(
    task: TaskKind,
    outputs: Tensor,
    y: Tensor,
    sizes: Sequence[int],
    loss: Loss | None,
) -> tuple[Answers, Tensor]:
    """Pair outputs with the true labels, one row for each label that is not void; also return which labels are void."""
    meaning = output_meaning(loss, outputs.shape, y)
    void = void_labels(loss, y, outputs.shape)
    if task == "other":
        void = torch.zeros(len(y), dtype=torch.bool)
    outputs = outputs.to(torch.float64)
    losses = torch.zeros(0)
    if not _is_function(loss):
        usual = "mse" if task == "values" else "cross_entropy"
        losses = losses_of(loss or usual)(outputs, y)
    flat, labels = _rows_of_labels(task, meaning, outputs, y)
    count = len(labels)
    each = count // len(y)
    owner = torch.repeat_interleave(torch.tensor(list(sizes)))
    example = torch.arange(len(y)).repeat_interleave(each)
    group = owner.repeat_interleave(each)
    of_labels = losses.reshape(count, -1).mean(1) if losses.numel() else torch.zeros(count)
    if void.any():
        kept = ~void.reshape(-1)
        flat = flat[kept]
        labels = labels[kept]
        of_labels = of_labels[kept]
        example = example[kept]
        group = group[kept]
    answers = Answers(
        task,
        flat.numpy(),
        labels.numpy(),
        of_labels.to(torch.float64).numpy(),
        group.numpy(),
        torch.bincount(group, minlength=len(sizes)).numpy(),
        example.numpy(),
    )
    return answers, void


def _rows_of_labels(
    task: TaskKind,
    meaning: OutputMeaning,
    outputs: Tensor,
    y: Tensor,
) -> tuple[Tensor, Tensor]:
    """Reshape outputs and labels to one row for each label, as `Answers` needs them."""
    if task == "other":
        return torch.zeros(len(y), 1), torch.zeros(len(y), dtype=torch.int64)
    if task == "values":
        return outputs.reshape(-1), y.reshape(-1).to(torch.float64)
    if meaning == "chances":
        outputs = outputs.logit(1e-12)
    if task == "labels":
        return _by_label(outputs), _by_label(y) >= 0.5
    if meaning in ("logits", "chances"):
        yes = outputs.reshape(-1)
        two_scores = torch.stack([torch.zeros_like(yes), yes], 1)
        return two_scores, (y.reshape(-1) >= 0.5).to(torch.int64)
    if meaning == "soft classes":
        y = y.argmax(1)
    return _by_label(outputs), y.reshape(-1)


def _by_label(values: Tensor) -> Tensor:
    """Reshape [N, C, ...] to [M, C], one row for each label."""
    return values.movedim(1, -1).reshape(-1, values.shape[1])


def _finite(answers: Answers) -> NDArray[np.bool_]:
    """Return which groups [n] have only finite logits."""
    odd = np.asarray(~np.isfinite(answers.outputs).all(axis=1))
    return np.equal(answers.mean(odd), 0.0)
