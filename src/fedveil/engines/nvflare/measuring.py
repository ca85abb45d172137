"""What FLARE's training code may call at a site: the checks and figures that the other engines have."""

from typing import Any

from torch import nn

from fedveil.engines.fit import require_fit, require_pairs
from fedveil.layout import Layout
from fedveil.learning import Figures, evaluate
from fedveil.learning.clients import as_client
from fedveil.learning.losses import LossFunction


def check_shapes(model: nn.Module, x: Any, y: Any, loss: str | LossFunction) -> None:
    """Refuse a site's examples that the model or the loss cannot take, before anything is trained.

    Parameters
    ----------
    model : torch.nn.Module
        Left as it is.
    x, y : Tensor or ndarray
        [N, ...] each.
    loss : str or callable
        What is trained on, as in `LocalTraining`.

    Raises
    ------
    FieldError
        Saying how to change x or y; also where PyTorch would compare each output with the targets of all examples.
    """
    client = as_client((x, y), "site")
    require_pairs(model, [client], loss)
    require_fit(model, [client], loss)


def measure(model: nn.Module, x: Any, y: Any, loss: str | LossFunction) -> Figures:
    """Measure a model on examples that it was not trained on: the loss that was asked for, accuracy and so on.

    They are the site's. What leaves with ``FLModel(metrics=...)`` is for the site's method to release or to drop.

    Parameters
    ----------
    model, x, y, loss
        As for `check_shapes`.

    Returns
    -------
    dict of str to float
        As of the embedded engine, without ``examples``.

    Examples
    --------
    >>> import torch
    >>> x, y = torch.eye(2).repeat(4, 1), torch.arange(2).repeat(4)
    >>> model = torch.nn.Linear(2, 2)
    >>> sorted(measure(model, x, y, "cross_entropy"))
    ['accuracy', 'auc', 'f1', 'loss', 'micro_auc', 'precision']
    """
    check_shapes(model, x, y, loss)
    client, layout = as_client((x, y), "site"), Layout.from_module(model, buffers="keep")
    figures = evaluate(model, layout, layout.read(model), client.x, client.y, loss=loss)
    return {name: value for name, value in figures.items() if name != "examples"}
