"""Which hypothesis fits each of thousands of clients best, and how good models are on what they hold out."""

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


def choose(model: nn.Module, layout: Layout, models: Tensor, data: ClientData, loss: str | LossFunction) -> int:
    """The hypothesis with the least loss on a client's own training data.

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
    function, losses = loss_of(loss), []
    for vector in models:
        outputs = predict(model, layout, vector, data.x, batch=1024, buffers=data.buffers)
        losses.append(float(function(outputs.to(torch.float64), data.y)))
    kept = [j for j, value in enumerate(losses) if value == value]
    if not kept and void_labels(loss, data.y, outputs.shape).all():
        return 0
    if not kept:
        raise FieldError("models", losses, "have no loss on this client's data: all are NaN")
    return min(kept, key=lambda j: losses[j])


def choose_each(
    model: nn.Module, layout: Layout, models: Tensor, clients: Sequence[ClientData], loss: str | LossFunction
) -> list[int | Exception]:
    """What `choose` answers for each of many clients, in a few batched computations.

    Batches of another size round otherwise, so where two hypotheses are nearly as good the client is asked alone: the
    answers depend on nobody else.

    Returns
    -------
    list of int or Exception
        An exception, as `choose` raises it, in the place of a client whose data cannot be used.
    """
    if len(models) == 1:
        return [0] * len(clients)
    if any(client.buffers or _has_void(client) for client in clients):  # a model, or void labels, of its own
        return [_alone(model, layout, models, client, loss) for client in clients]
    answers: list[int | Exception] = []
    for block in _blocks(clients):
        try:
            losses = client_losses(model, layout, models, block, loss)
        except Exception:  # someone's data: alone, each client meets its own failure
            losses = torch.full((len(block), len(models)), torch.nan)
        least, best = losses.topk(2, dim=1, largest=False)
        clear = losses.isfinite().all(1) & (least[:, 1] - least[:, 0] > NEAR * least[:, 1].abs())
        for client, sure, index in zip(block, clear.tolist(), best[:, 0].tolist(), strict=True):
            known = index if sure else None if client.examples else 0
            answers.append(_alone(model, layout, models, client, loss) if known is None else known)
    return answers


def _has_void(client: ClientData) -> bool:
    """Whether a client may have labels of no class, over which means are its own."""
    return not client.y.is_floating_point() and bool((client.y < 0).any())


def client_losses(
    model: nn.Module, layout: Layout, models: Tensor, clients: Sequence[ClientData], loss: str | LossFunction
) -> Tensor:
    """Loss of each model [k, d] on each client's training data, [n, k] in float64; NaN for one without examples."""
    filled = [c for c in clients if c.examples]
    result = torch.full((len(clients), len(models)), torch.nan, dtype=torch.float64)
    if not filled:
        return result
    sizes = torch.tensor([c.examples for c in filled])
    owner = torch.repeat_interleave(sizes)
    x, y = torch.cat([c.x for c in filled]), torch.cat([c.y for c in filled])
    columns = []
    for vector in models:
        outputs = predict(model, layout, vector, x, batch=1024).to(torch.float64)
        if isinstance(loss, str) and (loss in LABELWISE or loss == "rmse"):
            each = losses_of("mse" if loss == "rmse" else loss)(outputs, y).reshape(len(y), -1).mean(1)
            columns.append(torch.zeros(len(filled), dtype=torch.float64).index_add_(0, owner, each) / sizes)
        else:
            parts = zip(torch.split(outputs, sizes.tolist()), torch.split(y, sizes.tolist()), strict=True)
            columns.append(torch.stack([loss_of(loss)(*part) for part in parts]))
    losses = torch.stack(columns, 1)
    where = torch.tensor([bool(c.examples) for c in clients])
    result[where] = (losses + RMSE_FLOOR).sqrt() if loss == "rmse" else losses
    return result


def _blocks(clients: Sequence[ClientData]) -> Iterator[list[ClientData]]:
    """Consecutive clients that fit into `ROOM` together, at least one."""
    block: list[ClientData] = []
    held = 0
    for client in clients:
        held += client.x.numel()
        if block and held > ROOM:
            yield block
            block, held = [], client.x.numel()
        block.append(client)
    if block:
        yield block


def _alone(
    model: nn.Module, layout: Layout, models: Tensor, client: ClientData, loss: str | LossFunction
) -> int | Exception:
    try:
        return choose(model, layout, models, client, loss)
    except Exception as error:  # a client's failure is that client's alone
        return error


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
    return metrics(predict(model, layout, vector, x, buffers=buffers), y, names, loss) if len(x) else {"examples": 0}


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
    every = torch.cat([outputs for outputs, _ in held.values()])
    y = torch.cat([truth for _, truth in held.values()])
    return metrics_of_groups(every, y, [c.held_out for c in clients], names, loss)


def answers_of_clients(
    model: nn.Module, layout: Layout, models: Tensor, clients: Sequence[ClientData], chosen: Sequence[int]
) -> dict[int, tuple[Tensor, Tensor]]:
    """Outputs of each client's hypothesis on what the client held out, and the truth; by client that holds any.

    Parameters
    ----------
    model, layout, models, clients, chosen
        See `evaluate_clients`.
    """
    layout.check(models, "models")
    if models.dim() != 2 or len(clients) != len(chosen):
        given = (tuple(models.shape), len(clients), len(chosen))
        raise FieldError("models, clients, chosen", given, "must be [k, d], n clients and n indices")
    held = {
        i: (c.test_x, c.test_y)
        for i, c in enumerate(clients)
        if c.test_x is not None and c.test_y is not None and len(c.test_x)
    }
    outputs: dict[int, Tensor] = {}
    alike: dict[tuple[int, int | None], list[int]] = {}  # by hypothesis, and apart where a client has its own buffers
    for i in held:
        if not 0 <= chosen[i] < len(models):
            raise FieldError("chosen", chosen[i], f"must be the index of one of {len(models)} hypotheses")
        alike.setdefault((chosen[i], i if clients[i].buffers else None), []).append(i)
    for (j, _), members in alike.items():
        x = torch.cat([held[i][0] for i in members])
        together = predict(model, layout, models[j], x, buffers=clients[members[0]].buffers)
        outputs |= zip(members, torch.split(together, [len(held[i][0]) for i in members]), strict=True)
    return {i: (outputs[i], y) for i, (_, y) in held.items()}
