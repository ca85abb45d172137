"""Checks of clients' data before training: data of all clients must be alike, and fit the model and the loss."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any
from warnings import warn

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, kind_of, require_a
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
    """Describe the clients that hold the same examples in any order: one client's promise does not cover both releases."""
    found: dict[tuple[object, ...], list[int]] = {}
    for i, client in enumerate(clients):
        if client.examples > 1 and not isinstance(
            client.x, OnDemand
        ):  # such examples are read one batch at a time
            x = torch.as_tensor(client.x)
            extremes = (
                (float(x.min()), float(x.max())) if x.numel() else ()
            )  # equal for the same examples in any order
            found.setdefault((client.examples, *extremes), []).append(i)
    for candidates in found.values():
        same = _same_as_first([clients[i] for i in candidates])
        if len(same) > 1:
            names = [str(candidates[place]) for place in same[:5]]
            if len(same) > 5:
                names.append("...")
            yield (
                f"{len(same)} clients ({', '.join(names)}) hold the same {clients[candidates[0]].examples} examples: "
                "each of these is released by all of them, and a promise counts one"
            )


def _same_as_first(clients: Sequence[ClientData]) -> list[int]:
    """Return the positions of all clients with the same examples as the first client, which is included."""
    first, places = clients[0], [0]
    sought: Counter[bytes] = Counter()
    for place, client in enumerate(clients[1:], start=1):
        if not (torch.equal(client.x, first.x) and torch.equal(client.y, first.y)):
            sought = sought or _counted(first)
            if _counted(client) != sought:
                continue
        places.append(place)
    return places


def _counted(client: ClientData) -> Counter[bytes]:
    """Count how often a client holds each of its examples, by the example's digest."""
    counts: Counter[bytes] = Counter()
    for x, y in zip(client.x.cpu(), client.y.cpu(), strict=True):
        digest = blake2b(x.contiguous().view(torch.uint8).numpy() if x.dim() else repr(x).encode())
        digest.update(repr(y.tolist()).encode())
        counts[digest.digest()] += 1
    return counts


def read_clients(given: Sequence[ClientData | Sequence[Any]]) -> list[ClientData]:
    """Convert all clients' data to `ClientData`, and refuse a client with examples of another shape or kind.

    Raises
    ------
    FieldError
        If no client has an example, or a client differs from the first one with examples; the text names it.
    """
    require_a(
        "clients",
        given,
        Iterable,
        "must be a list of clients: each (x, y), ClientData, a Dataset, a DataLoader",
    )
    clients = [as_client(one, f"clients[{i}]") for i, one in enumerate(given)]
    _require_same_columns(given)
    if not clients:
        raise FieldError("clients", [], "a federation needs at least one client")
    found = _first_with_examples(clients)
    if found is None:
        raise FieldError(
            "clients", "no examples", "at least one client needs some: len(x) is 0 everywhere"
        )
    first, like = found
    for i, client in enumerate(clients):
        if not client.examples:
            continue
        for part, own, wanted in (("x", client.x, like.x), ("y", client.y, like.y)):
            if _kind(own) != _kind(wanted):
                accepted = f"must be like clients[{first}].{part}: {_kind(wanted)}"
                raise FieldError(f"clients[{i}].{part}", _kind(own), accepted)
    return clients


def _require_same_columns(given: Sequence[ClientData | Sequence[Any]]) -> None:
    """Refuse tables whose columns differ in name or order."""
    first: tuple[int, tuple[str, ...]] | None = None
    for i, client in enumerate(given):
        columns = columns_of(client[0]) if isinstance(client, Sequence) else None
        if not columns:
            continue
        if first is None:
            first = i, columns
        elif columns != first[1]:
            accepted = f"must be those of clients[{first[0]}], in the same order: {first[1]}"
            raise FieldError(f"clients[{i}].x, columns", columns, accepted)


def _first_with_examples(clients: Sequence[ClientData]) -> tuple[int, ClientData] | None:
    for i, client in enumerate(clients):
        if client.examples:
            return i, client
    return None


def _kind(value: Tensor) -> str:
    shape = ", ".join(["N", *map(str, value.shape[1:])])
    return f"[{shape}] {'floating point' if value.is_floating_point() else 'int64'}"


def require_fit(module: nn.Module, clients: Sequence[ClientData], loss: str | LossFunction) -> None:
    """Try the model and the loss on two examples, and refuse data that do not fit them.

    Raises
    ------
    FieldError
        For data that do not fit; the text says how to change x or y, if that is known.
    """
    found = _first_with_examples(clients)
    if found is None:
        return
    i, client = found
    inputs = Inputs.of(module)
    x, y = client.x[:2].clone(), client.y[:2]  # a copy, as a model may write into its input
    with evaluating(module), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            answer = module(inputs(x))
        except Exception as error:  # the model is the user's code
            raise _input_refusal(error, module, x, i) from error
        output = outputs_of(answer)
        if base_name(loss) == "cross_entropy":
            _require_classes(output, y, clients, i)
        if not y.is_floating_point():
            _require_no_negative(clients, loss, output)
        require_paired(loss, output.shape, y, f"clients[{i}].y")
        try:
            rows = torch.arange(_unlike_any_side(output, y)) % len(y)
            value = loss_of(loss)(output[rows], y[rows].to(inputs.like.device))
        except Exception as error:
            raise _loss_refusal(error, loss, output, y, i) from error
        if not isinstance(value, Tensor) or value.dim():
            accepted = "must return the batch's mean loss as one number, a tensor of no axes: end it with .mean()"
            raise FieldError("loss", named(loss), accepted)


def _input_refusal(error: Exception, module: nn.Module, x: Tensor, i: int) -> FieldError:
    """Return the error for examples that the model does not accept, with a probable fix."""
    if "not tuple" in str(error):
        accepted = "a layer such as nn.GRU answers with a tuple, and the next one takes a tensor: in a forward method "
        accepted += "of yours, write out, _ = self.gru(x)"
        return FieldError("model", kind_of(module), accepted)
    if isinstance(error, NotImplementedError):
        accepted = str(error)
        return FieldError("model", kind_of(module), accepted)
    return FieldError(
        f"clients[{i}].x", _kind(x), f"the model cannot take it ({error}){_input_hint(x, module)}"
    )


def _require_classes(output: Tensor, y: Tensor, clients: Sequence[ClientData], i: int) -> None:
    """Refuse one-hot labels, and classes beyond the model's outputs. Warn of a softmax at the model's end."""
    if _one_hot(y) and y.shape == output.shape:
        raise FieldError(
            f"clients[{i}].y", _kind(y), "looks one-hot; classes are integers: y.argmax(1)"
        )
    if y.dtype != torch.int64 or output.dim() < 2:
        return
    if bool((output >= 0).all()) and torch.allclose(output.sum(1), torch.ones(()).to(output)):
        warn(
            "the model ends in probabilities, and its loss takes scores: leave the softmax out",
            stacklevel=4,
        )
    for j, held in enumerate(clients):
        if held.examples and int(held.y.max()) >= output.shape[1]:
            accepted = f"the model has {output.shape[1]} outputs, one a class, numbered from 0 on"
            raise FieldError(
                f"clients[{j}].y", f"from {int(held.y.min())} to {int(held.y.max())}", accepted
            )


def _require_no_negative(
    clients: Sequence[ClientData], loss: str | LossFunction, output: Tensor
) -> None:
    """Refuse negative classes, unless the loss ignores them."""
    for j, held in enumerate(clients):
        negative = held.y[(held.y < 0) & ~void_labels(loss, held.y, output.shape)]
        if len(negative):
            accepted = "classes are numbered from 0; if it marks labels to ignore, give the loss that number: "
            accepted += f"CrossEntropyLoss(ignore_index={int(negative[0])})"
            raise FieldError(f"clients[{j}].y", int(negative[0]), accepted)


def _unlike_any_side(output: Tensor, y: Tensor) -> int:
    """Return a number of rows unlike the length of every other axis, so that a mixed-up axis is noticed."""
    sides = (*output.shape[1:], *y.shape[1:])
    return next(count for count in (2, 3, 5, 7, 11, 13, 17, 19, 23) if count not in sides)


def _loss_refusal(
    error: Exception, loss: str | LossFunction, output: Tensor, y: Tensor, i: int
) -> FieldError:
    """Return the error for labels that the loss does not accept, with a probable fix."""
    name = named(loss)
    if "positional argument" in str(error):
        return FieldError("loss", name, f"{error}; write a function loss(outputs, y)")
    own, wanted, fix = tuple(y.shape[1:]), tuple(output.shape[1:]), ""
    if base_name(loss) == "cross_entropy" and y.is_floating_point():
        fix = '; classes are integers: y.astype(int). For targets use LocalTraining(loss="mse")'
    elif not y.is_floating_point() and own == (1, *wanted[1:]) != wanted:
        fix = (
            "; make it [N]: y.reshape(-1)" if y.dim() == 2 else "; make it [N, H, W]: y.squeeze(1)"
        )
    elif own != wanted and (y.is_floating_point() or y[0].numel() == output[0].numel()):
        fix = f"; make the shapes alike, {shape_fix(own, wanted)}"
    accepted = f"{name} cannot compare it with the model's outputs {wanted} ({error}){fix}"
    return FieldError(f"clients[{i}].y", _kind(y), accepted)


def require_pairs(
    module: nn.Module, clients: Sequence[ClientData], loss: str | LossFunction
) -> None:
    """Refuse targets whose shape makes the loss compare each output with all targets; values of data are not used.

    Raises
    ------
    FieldError
        For such targets; the text gives both shapes, see `require_paired`.
    """
    for i, client in enumerate(clients):
        shape = _outputs_on_made_up(module, client) if isinstance(client, ClientData) else None
        if shape is not None:
            require_paired(loss, shape, client.y, f"clients[{i}].y")


def _outputs_on_made_up(module: nn.Module, like: ClientData) -> Sequence[int] | None:
    """Return the shape of a model's outputs on two made-up examples like a client's; None if the model accepts none."""
    inputs = Inputs.of(module)
    for x, _ in probes(like.x, 2):
        with (
            suppress(Exception),
            evaluating(module),
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
        ):
            return outputs_of(module(inputs(x))).shape
    return None


def task_for(
    module: nn.Module, clients: Sequence[ClientData], loss: str | LossFunction
) -> TaskKind:
    """Return the kind of task, from the clients' labels, the loss and the shape of the model's outputs."""
    found = _first_with_examples(clients)
    like = clients[0] if found is None else found[1]
    return task_of(like.y, loss, _outputs_on_made_up(module, like))


def _one_hot(y: Tensor) -> bool:
    return y.dim() == 2 and bool(((y == 0) | (y == 1)).all()) and bool((y.sum(1) == 1).all())


def _input_hint(x: Tensor, module: nn.Module) -> str:
    """Suggest, for a refusal, a shape of inputs that would probably fit."""
    convolution = next((layer for layer in module.modules() if isinstance(layer, nn.Conv2d)), None)
    if convolution is not None and x.dim() == 3:
        return "; images are [N, channels, height, width]: x[:, None]"
    if (
        convolution is not None
        and x.dim() == 4
        and x.shape[-1] == convolution.in_channels != x.shape[1]
    ):
        return "; images are [N, channels, height, width]: x.transpose(0, 3, 1, 2) of an array"
    return "" if x.is_floating_point() else "; where x numbers no words, write x.astype('float32')"
