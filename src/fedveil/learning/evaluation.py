"""Measure models on held-out examples, client by client and pooled."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.answers import Figures
from fedveil.learning.clients import ClientData
from fedveil.learning.losses import predict
from fedveil.learning.metrics import metrics, metrics_of_groups


def evaluate(
    model: nn.Module,
    layout: Layout,
    vector: Tensor,
    x: Tensor,
    y: Tensor,
    names: Sequence[str] | None = None,
    buffers: Mapping[str, Tensor] | None = None,
) -> Figures:
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
    names : sequence of str, optional
        Of `METRICS`; by default the task's usual ones.
    buffers : mapping of str to Tensor, optional
        In the place of the module's own.

    Returns
    -------
    dict of str to float
        With ``examples``; without other figures when N = 0.
    """
    if len(x) != len(y):
        raise FieldError("y", len(y), f"must be as long as x, which has {len(x)} rows")
    return metrics(predict(model, layout, vector, x, buffers=buffers), y, names) if len(x) else {"examples": 0}


def evaluate_clients(
    model: nn.Module,
    layout: Layout,
    models: Tensor,
    clients: Sequence[ClientData],
    chosen: Sequence[int],
    names: Sequence[str] | None = None,
) -> tuple[list[Figures], Figures]:
    """Measure each client's hypothesis on what the client held out, and all of it together.

    A client with statistics of its own (`ClientData.buffers`) is answered by the model with these.

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
    names : sequence of str, optional
        Of `METRICS`; by default the task's usual ones.

    Returns
    -------
    list of dict
        One a client, in order.
    dict
        Pooled: computed once on the predictions of all clients, so that every example counts the same.
    """
    layout.check(models, "models")
    if models.dim() != 2 or len(clients) != len(chosen):
        given = (tuple(models.shape), len(clients), len(chosen))
        raise FieldError("models, clients, chosen", given, "must be [k, d], n clients and n indices")
    sizes = [c.held_out for c in clients]
    holders = [i for i, size in enumerate(sizes) if size]
    if not holders:
        return [{"examples": 0} for _ in clients], {"examples": 0}
    outputs: dict[int, Tensor] = {}
    alike: dict[tuple[int, int | None], list[int]] = {}  # by hypothesis, and apart where a client has its own buffers
    for i in holders:
        if not 0 <= chosen[i] < len(models):
            raise FieldError("chosen", chosen[i], f"must be the index of one of {len(models)} hypotheses")
        alike.setdefault((chosen[i], i if clients[i].buffers else None), []).append(i)
    for (j, _), members in alike.items():
        x, own = torch.cat([_held_out(clients[i])[0] for i in members]), clients[members[0]].buffers
        together = predict(model, layout, models[j], x, buffers=own)
        outputs |= zip(members, torch.split(together, [sizes[i] for i in members]), strict=True)
    every, y = torch.cat([outputs[i] for i in holders]), torch.cat([_held_out(clients[i])[1] for i in holders])
    return metrics_of_groups(every, y, sizes, names)


def _held_out(client: ClientData) -> tuple[Tensor, Tensor]:
    if client.test_x is None or client.test_y is None:
        raise FieldError("test_x", None, "this client holds nothing out")
    return client.test_x, client.test_y
