"""Check clients' data before anything is trained: they must be alike, and fit the model and the loss."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from warnings import warn

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, require_a
from fedveil.learning import ClientData
from fedveil.learning.answers import TaskKind
from fedveil.learning.arrays import columns_of
from fedveil.learning.clients import OnDemand, as_client
from fedveil.learning.inputs import Inputs
from fedveil.learning.losses import LossFunction, base_name, evaluating, loss_of, outputs_of
from fedveil.learning.made_up import probes
from fedveil.learning.metrics import task_of
from fedveil.learning.objective import named, require_paired, shape_fix, void_labels


def same_examples(clients: Sequence[ClientData]) -> Iterator[str]:
    """Say which clients hold the same arrays: a promise for one of them does not count what the others release."""
    found: dict[tuple[object, ...], list[int]] = {}
    for i, client in enumerate(clients):
        if client.examples > 1 and not isinstance(client.x, OnDemand):  # those are read a batch at a time
            ends = (client.x[0], client.x[-1])
            key = (client.examples, *(float(torch.as_tensor(end).double().sum()) for end in ends))
            found.setdefault(key, []).append(i)
    for alike in found.values():
        first = clients[alike[0]]
        same = [i for i in alike[1:] if torch.equal(clients[i].x, first.x) and torch.equal(clients[i].y, first.y)]
        if same:
            named = ", ".join(map(str, [alike[0], *same][:5])) + (", ..." if len(same) > 4 else "")
            yield (
                f"{len(same) + 1} clients ({named}) hold the same {first.examples} examples: each of these is released "
                "by all of them, and a promise counts one"
            )


def read_clients(given: Sequence[ClientData | Sequence[Any]]) -> list[ClientData]:
    """Read everybody's data. A client whose examples differ in shape or kind is refused: it would fail in every round.

    Raises
    ------
    FieldError
        If nobody has an example; naming the first client that differs from the first one with examples.
    """
    require_a("clients", given, Iterable, "must be a list of clients: each (x, y), ClientData, a Dataset, a DataLoader")
    clients = [as_client(c, f"clients[{i}]") for i, c in enumerate(given)]
    frames = [(i, columns) for i, c in enumerate(given) if isinstance(c, Sequence) and (columns := columns_of(c[0]))]
    for i, columns in frames:
        if columns != frames[0][1]:
            accepted = f"must be those of clients[{frames[0][0]}], in the same order: {frames[0][1]}"
            raise FieldError(f"clients[{i}].x, columns", columns, accepted)
    if not clients:
        raise FieldError("clients", [], "a federation needs at least one client")
    first, like = next(((i, c) for i, c in enumerate(clients) if c.examples), (0, clients[0]))
    if not like.examples:
        raise FieldError("clients", "no examples", "at least one client needs some: len(x) is 0 everywhere")
    for i, client in enumerate(clients):
        for part in ("x", "y") if client.examples else ():
            own, wanted = (_kind(getattr(c, part)) for c in (client, like))
            if own != wanted:
                raise FieldError(f"clients[{i}].{part}", own, f"must be like clients[{first}].{part}: {wanted}")
    return clients


def _kind(value: Tensor) -> str:
    shape = ", ".join(["N", *map(str, value.shape[1:])])
    return f"[{shape}] {'floating point' if value.is_floating_point() else 'int64'}"


def require_fit(module: nn.Module, clients: Sequence[ClientData], loss: str | LossFunction) -> None:
    """Try two examples on the model and the loss, and refuse what does not fit before anything is trained.

    Raises
    ------
    FieldError
        Saying how to change x or y, where that can be seen.
    """
    i, client = next(((i, c) for i, c in enumerate(clients) if c.examples), (0, None))
    if client is None:
        return
    x, y, inputs = client.x[:2], client.y[:2], Inputs.of(module)
    with evaluating(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            answer = module(inputs(x))
        except Exception as error:  # the model is the user's
            accepted = f"the model cannot take it ({error}){_input_hint(x, module)}"
            if isinstance(error, NotImplementedError) or "not tuple" in str(error):
                fix = "a layer such as nn.GRU answers with a tuple, and the next one takes a tensor: in a forward "
                accepted = f"{fix}method of yours, write out, _ = self.gru(x)" if "tuple" in str(error) else str(error)
                raise FieldError("model", type(module).__name__, accepted) from error
            raise FieldError(f"clients[{i}].x", _kind(x), accepted) from error
        output = outputs_of(answer)
        if base_name(loss) == "cross_entropy" and _one_hot(y) and y.shape == output.shape:
            raise FieldError(f"clients[{i}].y", _kind(y), "looks one-hot; classes are integers: y.argmax(1)")
        if base_name(loss) == "cross_entropy" and y.dtype == torch.int64 and output.dim() > 1:
            if bool((output >= 0).all()) and torch.allclose(output.sum(1), torch.ones(()).to(output)):
                warn("the model ends in probabilities, and its loss takes scores: leave the softmax out", stacklevel=3)
            for j, held in enumerate(clients):
                if held.examples and int(held.y.max()) >= output.shape[1]:
                    accepted = f"the model has {output.shape[1]} outputs, one a class, numbered from 0 on"
                    raise FieldError(f"clients[{j}].y", f"from {int(held.y.min())} to {int(held.y.max())}", accepted)
        for j, held in enumerate(clients if not y.is_floating_point() else ()):
            negative = held.y[(held.y < 0) & ~void_labels(loss, held.y, output.shape)]
            if len(negative):
                accepted = "classes are numbered from 0 on; where it means void, the loss has to pass over it: "
                accepted += f"CrossEntropyLoss(ignore_index={int(negative[0])})"
                raise FieldError(f"clients[{j}].y", int(negative[0]), accepted)
        require_paired(loss, output.shape, y, f"clients[{i}].y")
        name = named(loss)
        try:
            sides = (*output.shape[1:], *y.shape[1:])
            count = next(n for n in (2, 3, 5, 7, 11, 13, 17, 19, 23) if n not in sides)  # a side of no other axis
            rows = torch.arange(count) % len(y)
            value = loss_of(loss)(output[rows], y[rows].to(inputs.like.device))
        except Exception as error:
            fix = ""
            if "positional argument" in str(error):
                raise FieldError("loss", name, f"{error}; write a function loss(outputs, y)") from error
            own, wanted = tuple(y.shape[1:]), tuple(output.shape[1:])
            if base_name(loss) == "cross_entropy" and y.is_floating_point():
                fix = '; classes are integers: y.astype(int). For targets use LocalTraining(loss="mse")'
            elif not y.is_floating_point() and own == (1, *wanted[1:]) != wanted:
                fix = "; make it [N]: y.reshape(-1)" if y.dim() == 2 else "; make it [N, H, W]: y.squeeze(1)"
            elif own != wanted and (y.is_floating_point() or y[0].numel() == output[0].numel()):
                fix = f"; make the shapes alike, {shape_fix(own, wanted)}"
            accepted = f"{name} cannot compare it with the model's outputs {tuple(output.shape[1:])} ({error}){fix}"
            raise FieldError(f"clients[{i}].y", _kind(y), accepted) from error
        if not isinstance(value, Tensor) or value.dim():
            accepted = "must return the batch's mean loss as one number, a tensor of no axes: end it with .mean()"
            raise FieldError("loss", name, accepted)


def require_pairs(module: nn.Module, clients: Sequence[ClientData], loss: str | LossFunction) -> None:
    """Refuse targets that the loss would compare with the outputs of other examples; values of data are not used.

    Raises
    ------
    FieldError
        With both shapes; see `require_paired`.
    """
    for i, client in enumerate(clients):
        if isinstance(client, ClientData) and (shape := _outputs_on_made_up(module, client)) is not None:
            require_paired(loss, shape, client.y, f"clients[{i}].y")


def _outputs_on_made_up(module: nn.Module, like: ClientData) -> Sequence[int] | None:
    """The shape of a model's outputs on two made-up examples of a client's shape; None if it takes none of them."""
    inputs = Inputs.of(module)
    for x, _ in probes(like.x, 2):
        with suppress(Exception), evaluating(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
            return outputs_of(module(inputs(x))).shape
    return None


def task_for(module: nn.Module, clients: Sequence[ClientData], loss: str | LossFunction) -> TaskKind:
    """What the clients' labels are to the loss, seen from the shape of a model's outputs."""
    like = next((c for c in clients if c.examples), clients[0])
    return task_of(like.y, loss, _outputs_on_made_up(module, like))


def _one_hot(y: Tensor) -> bool:
    return y.dim() == 2 and bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all())


def _input_hint(x: Tensor, module: nn.Module) -> str:
    """What would probably fit."""
    channels = next((m.in_channels for m in module.modules() if isinstance(m, nn.Conv2d)), 0)
    if channels and x.dim() == 3:
        return "; images are [N, channels, height, width]: x[:, None]"
    if channels and x.dim() == 4 and x.shape[-1] == channels != x.shape[1]:
        return "; images are [N, channels, height, width]: x.transpose(0, 3, 1, 2) of an array"
    return "" if x.is_floating_point() else "; where x numbers no words, write x.astype('float32')"
