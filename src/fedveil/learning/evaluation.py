"""Measure models on held-out examples, client by client and pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.clients import ClientData
from fedveil.learning.losses import cross_entropy, mse, predict

Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """How good a model is. A figure that does not exist for the task or the data is None.

    Attributes
    ----------
    examples : int
        Examples measured on; with 0 every figure is None.
    loss : float or None
        Mean cross-entropy (nats), or mean squared error.
    accuracy : float or None
        Fraction of right classes.
    f1, precision : float or None
        Macro averages over the classes that occur among the labels or the predictions; 0 where undefined.
    auc : float or None
        Area under the ROC curve, one class against the rest, micro average.
    rmse : float or None
        Root mean squared error of a regression, in units of the target.
    """

    examples: int
    loss: float | None = None
    accuracy: float | None = None
    f1: float | None = None
    precision: float | None = None
    auc: float | None = None
    rmse: float | None = None


def evaluate(model: nn.Module, layout: Layout, vector: Tensor, x: Tensor, y: Tensor) -> Metrics:
    """Measure one model.

    Parameters
    ----------
    model : torch.nn.Module
        Left as it is; runs in evaluation mode.
    layout : Layout
        Of the model.
    vector : Tensor
        [d].
    x, y : Tensor
        [N, ...] each; int64 classes make it a classification, floating-point targets a regression.

    Returns
    -------
    Metrics
        Without figures when N = 0.
    """
    if len(x) != len(y):
        raise FieldError("y", len(y), f"must be as long as x, which has {len(x)} rows")
    return metrics(predict(model, layout, vector, x), y) if len(x) else Metrics(examples=0)


def evaluate_clients(
    model: nn.Module, layout: Layout, models: Tensor, clients: Sequence[ClientData], chosen: Sequence[int]
) -> tuple[list[Metrics], Metrics]:
    """Measure each client's hypothesis on what the client held out, and all of it together.

    Parameters
    ----------
    model : torch.nn.Module
        Left as it is.
    layout : Layout
        Of the model.
    models : Tensor
        [k, d], the hypotheses.
    clients : sequence of ClientData
        n of them; some may hold nothing out.
    chosen : sequence of int
        n indices of hypotheses.

    Returns
    -------
    list of Metrics
        One a client, in order.
    Metrics
        Pooled: computed once on the predictions of all clients, so that every example counts the same.
    """
    layout.check(models, "models")
    if models.dim() != 2 or len(clients) != len(chosen):
        given = (tuple(models.shape), len(clients), len(chosen))
        raise FieldError("models, clients, chosen", given, "must be [k, d], n clients and n indices")
    outputs: list[Tensor | None] = [None] * len(clients)
    for j, vector in enumerate(models):
        members = [i for i, c in enumerate(chosen) if c == j and clients[i].held_out]
        if members:
            together = predict(model, layout, vector, torch.cat([_held_out(clients[i])[0] for i in members]))
            sizes = [clients[i].held_out for i in members]
            for i, part in zip(members, torch.split(together, sizes), strict=True):
                outputs[i] = part
    single = []
    for client, j, output in zip(clients, chosen, outputs, strict=True):
        if output is None and client.held_out:
            raise FieldError("chosen", j, f"must be the index of one of {len(models)} hypotheses")
        single.append(Metrics(examples=0) if output is None else metrics(output, _held_out(client)[1]))
    found = [(o, _held_out(c)[1]) for o, c in zip(outputs, clients, strict=True) if o is not None]
    if not found:
        return single, Metrics(examples=0)
    return single, metrics(torch.cat([o for o, _ in found]), torch.cat([y for _, y in found]))


def metrics(outputs: Tensor, y: Tensor) -> Metrics:
    """Metrics of a model's outputs.

    Parameters
    ----------
    outputs : Tensor
        Logits [N, classes, ...], or values of a regression.
    y : Tensor
        [N, ...]; its type decides the task.
    """
    outputs = outputs.detach().to(torch.float64)
    if y.is_floating_point():
        loss = float(mse(outputs, y))
        return Metrics(examples=len(y), loss=loss, rmse=loss**0.5)
    loss = float(cross_entropy(outputs, y))
    logits, labels = outputs.movedim(1, -1).reshape(-1, outputs.shape[1]), y.reshape(-1).numpy()
    predicted = logits.argmax(1).numpy()
    precision, f1 = _macro(labels, predicted)
    return Metrics(
        examples=len(y),
        loss=loss,
        accuracy=float((predicted == labels).mean()),
        f1=f1,
        precision=precision,
        auc=_micro_auc(logits, labels),
    )


def _macro(labels: Labels, predicted: Labels) -> tuple[float, float]:
    """Macro precision and F1, as scikit-learn's with zero_division=0, without its overhead on few examples."""
    classes = 1 + int(max(labels.max(), predicted.max()))
    confusion = np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    hits, wanted, given = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    occurs = wanted + given > 0
    precision = hits / np.maximum(given, 1)
    f1 = 2 * hits / np.maximum(wanted + given, 1)
    return float(precision[occurs].mean()), float(f1[occurs].mean())


def _micro_auc(logits: Tensor, labels: Labels) -> float | None:
    """The probability that a right class scores above a wrong one, over all examples; ties count half."""
    if logits.shape[1] < 2 or not torch.isfinite(logits).all():
        return None
    truth = np.zeros(tuple(logits.shape), dtype=bool)
    truth[np.arange(len(labels)), labels] = True
    _, place, ties = np.unique(logits.softmax(1).numpy().ravel(), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    positives, negatives = len(labels), truth.size - len(labels)
    won = float(ranks[truth.ravel()].sum()) - positives * (positives + 1) / 2
    return won / (positives * negatives)


def _held_out(client: ClientData) -> tuple[Tensor, Tensor]:
    if client.test_x is None or client.test_y is None:
        raise FieldError("test_x", None, "this client holds nothing out")
    return client.test_x, client.test_y
