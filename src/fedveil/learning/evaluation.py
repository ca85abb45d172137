"""Choice of each client's best hypothesis (model), and metrics on held-out examples, for thousands of clients at once."""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.answers import Figures
from fedveil.learning.clients import ClientData
from fedveil.learning.losses import LABELWISE, RMSE_FLOOR, LossFunction, loss_of, losses_of, predict
from fedveil.learning.metrics import metrics, metrics_of_groups
from fedveil.learning.objective import void_labels

ROOM = 1 << 24  # numbers of joined examples held at once
NEAR = 1e-5  # losses with a smaller relative difference are compared again, client by client


def choose(
    model: nn.Module,
    layout: Layout,
    models: Tensor,
    data: ClientData,
    loss: str | LossFunction,
) -> int:
    """Return the index of the hypothesis (model) with the least loss on a client's own training data.

    Parameters
    ----------
    model : torch.nn.Module
        Model, unchanged; runs in evaluation mode.
    layout : Layout
        Layout of the model.
    models : Tensor
        [k, d], hypotheses.
    data : ClientData
        Data of the client; without examples the result is 0.
    loss : str or callable
        As in `LocalTraining`.

    Returns
    -------
    int
        Index of the hypothesis, the lowest if losses are equal. A hypothesis with a NaN loss is never chosen.

    Raises
    ------
    FieldError
        If there are several hypotheses, and all losses are NaN.
    """
    layout.check(models, "models")
    if models.dim() != 2:
        raise FieldError("models", tuple(models.shape), f"must be [k, {layout.size}]")
    if len(models) == 1 or not data.examples:
        return 0
    function = loss_of(loss)
    losses: list[float] = []
    for vector in models:
        outputs = predict(model, layout, vector, data.x, batch=1024, buffers=data.buffers)
        losses.append(float(function(outputs.to(torch.float64), data.y)))
    known = [value for value in losses if not math.isnan(value)]
    if known:
        return losses.index(min(known))
    if void_labels(loss, data.y, outputs.shape).all():
        return 0
    raise FieldError("models", losses, "have no loss on this client's data: all are NaN")


def choose_each(
    model: nn.Module,
    layout: Layout,
    models: Tensor,
    clients: Sequence[ClientData],
    loss: str | LossFunction,
) -> list[int | Exception]:
    """Choose the hypothesis of each of many clients as `choose` does, in a few batched computations.

    Rounding depends on the size of a batch. So if two hypotheses are nearly equally good, the client's choice is
    computed alone. The choice then depends on no other client.

    Returns
    -------
    list of int or Exception
        Index for each client; the exception of `choose` for a client whose data cannot be used.
    """
    if len(models) == 1:
        return [0] * len(clients)

    def choose_alone(client: ClientData) -> int | Exception:
        try:
            return choose(model, layout, models, client, loss)
        except Exception as error:  # a client's failure must not end the others
            return error

    if any(
        client.buffers or _has_void(client) for client in clients
    ):  # clients with buffers of their own, or with void labels
        return [choose_alone(client) for client in clients]
    answers: list[int | Exception] = []
    for block in _blocks(clients):
        try:
            losses = client_losses(model, layout, models, block, loss)
        except Exception:  # a client's data failed; alone, each client meets its own failure
            losses = torch.full((len(block), len(models)), torch.nan)
        least, best = losses.topk(2, dim=1, largest=False)
        margin = least[:, 1] - least[:, 0]
        clear = losses.isfinite().all(1) & (margin > NEAR * least[:, 1].abs())
        for client, sure, index in zip(block, clear.tolist(), best[:, 0].tolist(), strict=True):
            if sure:
                answers.append(index)
            elif not client.examples:
                answers.append(0)
            else:
                answers.append(choose_alone(client))
    return answers


def _has_void(client: ClientData) -> bool:
    """Whether a client may have void labels (negative classes), which a loss leaves out of its mean."""
    return not client.y.is_floating_point() and bool((client.y < 0).any())


def client_losses(
    model: nn.Module,
    layout: Layout,
    models: Tensor,
    clients: Sequence[ClientData],
    loss: str | LossFunction,
) -> Tensor:
    """Compute the loss of each model on each client's training data.

    Parameters
    ----------
    models : Tensor
        [k, d], parameters of the models.

    Returns
    -------
    Tensor
        [n, k], float64 losses; NaN for a client without examples.
    """
    filled = [client for client in clients if client.examples]
    result = torch.full((len(clients), len(models)), torch.nan, dtype=torch.float64)
    if not filled:
        return result
    sizes = [client.examples for client in filled]
    x = torch.cat([client.x for client in filled])
    y = torch.cat([client.y for client in filled])
    columns: list[Tensor] = []
    for vector in models:
        outputs = predict(model, layout, vector, x, batch=1024).to(torch.float64)
        columns.append(_means_by_client(outputs, y, sizes, loss))
    losses = torch.stack(columns, 1)
    if loss == "rmse":
        losses = (losses + RMSE_FLOOR).sqrt()
    has_examples = torch.tensor([client.examples > 0 for client in clients])
    result[has_examples] = losses
    return result


def _means_by_client(
    outputs: Tensor,
    y: Tensor,
    sizes: list[int],
    loss: str | LossFunction,
) -> Tensor:
    """Return the mean loss of each client [n], from joined outputs and labels with `sizes` rows each.

    For "rmse" it is the mean squared error.
    """
    if isinstance(loss, str) and (loss in LABELWISE or loss == "rmse"):
        of_labels = losses_of("mse" if loss == "rmse" else loss)
        each = of_labels(outputs, y).reshape(len(y), -1).mean(1)
        counts = torch.tensor(sizes)
        owner = torch.repeat_interleave(counts)
        sums = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, owner, each)
        return sums / counts
    function = loss_of(loss)
    parts = zip(torch.split(outputs, sizes), torch.split(y, sizes), strict=True)
    return torch.stack([function(own, labels) for own, labels in parts])


def _blocks(clients: Sequence[ClientData]) -> Iterator[list[ClientData]]:
    """Yield blocks of consecutive clients, as many as fit into `ROOM` together, but at least one."""
    block: list[ClientData] = []
    held = 0
    for client in clients:
        numbers = client.x.numel()
        if block and held + numbers > ROOM:
            yield block
            block = []
            held = 0
        block.append(client)
        held += numbers
    if block:
        yield block


def evaluate(
    model: nn.Module,
    layout: Layout,
    vector: Tensor,
    x: Tensor,
    y: Tensor,
    names: Sequence[str] | None = None,
    buffers: Mapping[str, Tensor] | None = None,
    loss: str | LossFunction | None = None,
) -> Figures:
    """Compute the metrics of one model on labelled examples.

    Parameters
    ----------
    model : torch.nn.Module
        Model, unchanged; runs in evaluation mode.
    layout : Layout
        Layout of the model.
    vector : Tensor
        [d], parameters.
    x, y : Tensor
        [N, ...] each; int64 classes make it a classification, floating-point targets a regression.
    names : sequence of str, optional
        Names in `METRICS`; by default the task's usual ones.
    buffers : mapping of str to Tensor, optional
        Buffers in place of the module's own.
    loss : str or callable, optional
        Loss that is reported as ``loss``; see `metrics`.

    Returns
    -------
    dict of str to float
        Metrics by name, with ``examples``; if N = 0, ``examples`` only.
    """
    if len(x) != len(y):
        raise FieldError("y", len(y), f"must be as long as x, which has {len(x)} rows")
    if not len(x):
        return {"examples": 0}
    return metrics(predict(model, layout, vector, x, buffers=buffers), y, names, loss)


def evaluate_clients(
    model: nn.Module,
    layout: Layout,
    models: Tensor,
    clients: Sequence[ClientData],
    chosen: Sequence[int],
    names: Sequence[str] | None = None,
    loss: str | LossFunction | None = None,
) -> tuple[list[Figures], Figures]:
    """Compute the metrics of each client's model on its held-out examples, and on the examples of all clients together.

    A client's own running statistics (`ClientData.buffers`) replace the model's for this client.

    Parameters
    ----------
    model : torch.nn.Module
        Model, unchanged.
    layout : Layout
        Layout of the model.
    models : Tensor
        [k, d], hypotheses.
    clients : sequence of ClientData
        n clients; some may have no held-out examples.
    chosen : sequence of int
        Index into `models` of each of the n clients.
    names : sequence of str, optional
        Names in `METRICS`; by default the task's usual ones.
    loss : str or callable, optional
        Loss that is reported as ``loss``; see `metrics`.

    Returns
    -------
    list of dict
        Metrics of each client, in order.
    dict
        Pooled metrics: computed once on the predictions for all clients, so every example has the same weight.
    """
    held = answers_of_clients(model, layout, models, clients, chosen)
    if not held:
        return [{"examples": 0} for _ in clients], {"examples": 0}
    outputs = torch.cat([own for own, _ in held.values()])
    y = torch.cat([truth for _, truth in held.values()])
    sizes = [client.held_out for client in clients]
    return metrics_of_groups(outputs, y, sizes, names, loss)


def answers_of_clients(
    model: nn.Module,
    layout: Layout,
    models: Tensor,
    clients: Sequence[ClientData],
    chosen: Sequence[int],
) -> dict[int, tuple[Tensor, Tensor]]:
    """Return the outputs of each client's model on its held-out examples, with the true labels.

    Parameters
    ----------
    model, layout, models, clients, chosen
        See `evaluate_clients`.

    Returns
    -------
    dict of int to tuple of Tensor
        Outputs and labels by the client's number, for clients with held-out examples.
    """
    layout.check(models, "models")
    if models.dim() != 2 or len(clients) != len(chosen):
        given = (tuple(models.shape), len(clients), len(chosen))
        raise FieldError(
            "models, clients, chosen", given, "must be [k, d], n clients and n indices"
        )
    held: dict[int, tuple[Tensor, Tensor]] = {}
    same_model: dict[
        tuple[int, int | None], list[int]
    ] = {}  # a client with its own buffers is computed by itself
    for i, (client, j) in enumerate(zip(clients, chosen, strict=True)):
        if client.test_x is None or client.test_y is None or not len(client.test_x):
            continue
        if not 0 <= j < len(models):
            raise FieldError("chosen", j, f"must be the index of one of {len(models)} hypotheses")
        held[i] = client.test_x, client.test_y
        owner = i if client.buffers else None
        same_model.setdefault((j, owner), []).append(i)
    outputs: dict[int, Tensor] = {}
    for (j, _), members in same_model.items():
        inputs = [held[i][0] for i in members]
        together = predict(
            model, layout, models[j], torch.cat(inputs), buffers=clients[members[0]].buffers
        )
        parts = torch.split(together, [len(own) for own in inputs])
        outputs.update(zip(members, parts, strict=True))
    return {i: (outputs[i], y) for i, (_, y) in held.items()}
