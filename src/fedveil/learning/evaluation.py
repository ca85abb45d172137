"""Choice of the hypothesis that fits each of thousands of clients best, and figures on what clients hold out."""

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
NEAR = 1e-5  # losses this near in relation are compared again, client by client


def choose(
    model: nn.Module,
    layout: Layout,
    models: Tensor,
    data: ClientData,
    loss: str | LossFunction,
) -> int:
    """Choose the hypothesis with the least loss on a client's own training data.

    Parameters
    ----------
    model : torch.nn.Module
        Left as it is; runs in evaluation mode.
    layout : Layout
        Of the model.
    models : Tensor
        [k, d].
    data : ClientData
        Without examples there is no evidence, and the answer is 0.
    loss : str or callable
        As in `LocalTraining`.

    Returns
    -------
    int
        The lowest index among equals; a loss that is NaN is never chosen.

    Raises
    ------
    FieldError
        If all of several losses are NaN.
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
    """Return what `choose` answers for each of many clients, in a few batched computations.

    Batches of another size round otherwise, so where two hypotheses are nearly as good the client is asked alone: the
    answers depend on nobody else.

    Returns
    -------
    list of int or Exception
        An exception, as `choose` raises it, in the place of a client whose data cannot be used.
    """
    if len(models) == 1:
        return [0] * len(clients)

    def choose_alone(client: ClientData) -> int | Exception:
        try:
            return choose(model, layout, models, client, loss)
        except Exception as error:  # a client's failure is that client's alone
            return error

    if any(
        client.buffers or _has_void(client) for client in clients
    ):  # a model, or void labels, of its own
        return [choose_alone(client) for client in clients]
    answers: list[int | Exception] = []
    for block in _blocks(clients):
        try:
            losses = client_losses(model, layout, models, block, loss)
        except Exception:  # someone's data: alone, each client meets its own failure
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
    """Return whether a client may have labels of no class, over which means are its own."""
    return not client.y.is_floating_point() and bool((client.y < 0).any())


def client_losses(
    model: nn.Module,
    layout: Layout,
    models: Tensor,
    clients: Sequence[ClientData],
    loss: str | LossFunction,
) -> Tensor:
    """Return the loss of each model [k, d] on each client's training data.

    Returns
    -------
    Tensor
        [n, k] in float64; NaN for a client without examples.
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
    """Return the loss of each client [n], whose outputs and labels lie one after another; of "rmse" its square."""
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
    """Yield consecutive clients that fit into `ROOM` together, at least one."""
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
    loss : str or callable, optional
        The one that was asked for; see `metrics`.

    Returns
    -------
    dict of str to float
        With ``examples``; without other figures when N = 0.
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
    loss : str or callable, optional
        The one that was asked for; see `metrics`.

    Returns
    -------
    list of dict
        One a client, in order.
    dict
        Pooled: computed once on the predictions of all clients, so that every example counts the same.
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
    """Return outputs of each client's hypothesis on what the client held out, and the truth.

    Parameters
    ----------
    model, layout, models, clients, chosen
        See `evaluate_clients`.

    Returns
    -------
    dict of int to tuple of Tensor
        By number of the clients that hold something out, in their order.
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
    ] = {}  # a client with its own buffers is by itself
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
