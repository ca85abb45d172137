"""Made-up examples of a declared shape, on which a model is tried before the first message."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError, kind_of

Example = tuple[Tensor, Tensor]  # x and y [N, ...], used only for their shapes and types


def probes(x: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of different batches of made-up examples, shaped like x [N, ...].

    Parameters
    ----------
    x : Tensor
        Examples whose shape and type are used.
    rows : int
        Number of examples in a batch.

    Yields
    ------
    tuple of Tensor
        Two different batches each: random numbers in [0, 1], then zeros, then ones. Integers stay in a range that most
        embeddings have.
    """
    shape = (rows, *x.shape[1:])
    zeros = torch.zeros(shape, dtype=x.dtype)
    if x.is_floating_point():
        generator = torch.Generator().manual_seed(0)
        drawn = torch.rand(shape, generator=generator, dtype=torch.float32)
        yield drawn.to(x.dtype), zeros + 0.5
        yield zeros, zeros + 1
        yield zeros + 1, zeros
    else:
        yield zeros, zeros + 1
        yield zeros + 1, zeros
        yield zeros + 1, zeros + 2


def labels(y: Tensor, rows: int, classes: int = 1) -> Tensor:
    """Make up labels like y [N, ...]: the first classes in turn, or targets in [0, 1]."""
    shape = (rows, *y.shape[1:])
    if not y.is_floating_point():
        trailing = [1] * (y.dim() - 1)
        in_turn = torch.arange(rows) % classes
        return in_turn.view(-1, *trailing).expand(shape).contiguous()
    generator = torch.Generator().manual_seed(1)
    return torch.rand(shape, generator=generator, dtype=torch.float32).to(y.dtype)


def not_trainable(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    failure: Exception | None,
) -> FieldError:
    """Return the error that refuses a model because it failed on made-up examples like x and y [N, ...]."""
    shapes = f"x {list(x.shape[1:])} and y {list(y.shape[1:])}"
    accepted = f"cannot be trained on made-up examples of the declared shape ({shapes}): {failure}"
    return FieldError("model", kind_of(model), accepted)
