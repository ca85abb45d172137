"""Checks and metrics for a FLARE site's own training code, the same as in the other engines."""

from typing import Any

from torch import nn

from fedveil.engines.fit import require_fit, require_pairs
from fedveil.layout import Layout
from fedveil.learning import Figures, evaluate
from fedveil.learning.clients import as_client
from fedveil.learning.losses import LossFunction


def check_shapes(model: nn.Module, x: Any, y: Any, loss: str | LossFunction) -> None:
    """Check before training that a site's examples fit the model and the loss.

    Parameters
    ----------
    model : torch.nn.Module
        Model, unchanged.
    x, y : Tensor or ndarray
        [N, ...] each, examples and labels.
    loss : str or callable
        Training loss, as in `LocalTraining`.

    Raises
    ------
    FieldError
        If they do not fit, or PyTorch would compare each output with the targets of all examples; the text gives the
        fix.
    """
    client = as_client((x, y), "site")
    require_pairs(model, [client], loss)
    require_fit(model, [client], loss)


def measure(model: nn.Module, x: Any, y: Any, loss: str | LossFunction) -> Figures:
    """Compute a model's metrics on held-out examples: the requested loss, accuracy and so on.

    The metrics stay at the site unless its code sends them with ``FLModel(metrics=...)``. The site's method then
    releases or drops them.

    Parameters
    ----------
    model, x, y, loss
        As for `check_shapes`.

    Returns
    -------
    dict of str to float
        Metrics as in the embedded engine, without ``examples``.

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
