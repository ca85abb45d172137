"""Losses by name with options, as in a configuration: ``"cross_entropy(weight=[1, 3], label_smoothing=0.1)"``."""

import ast
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedveil.checks import require_unit_interval
from fedveil.errors import FieldError, nearest, require_positive
from fedveil.learning.torch_losses import Paired


def _weights(field: str, value: Any) -> Tensor:
    """Convert a number or list of numbers above 0 to a tensor of weights."""
    numbers = value if isinstance(value, list | tuple) else [value]
    if not numbers or not all(_is_number(one) for one in numbers):
        raise FieldError(
            field, value, "must be a list of numbers above 0, declared without looking at the data"
        )
    for one in numbers:
        require_positive(field, one)
    return torch.tensor([float(one) for one in numbers])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _truth(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise FieldError(field, value, "must be True or False")
    return value


def _whole(field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(field, value, "must be a whole number")
    return value


_Check = Callable[[str, Any], Any]
_KINDS: Mapping[str, tuple[type[nn.Module], Mapping[str, _Check]]] = {
    "cross_entropy": (
        nn.CrossEntropyLoss,
        {"weight": _weights, "label_smoothing": require_unit_interval, "ignore_index": _whole},
    ),
    "bce": (nn.BCEWithLogitsLoss, {"pos_weight": _weights, "weight": _weights}),
    "huber": (nn.HuberLoss, {"delta": require_positive}),
    "poisson": (nn.PoissonNLLLoss, {"log_input": _truth, "full": _truth}),
}


def with_options(text: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Make a loss from a text with its name and options; nothing in the text is run.

    Class weights are public. At record level they multiply an example's loss, and the mean of a batch is not divided by
    them.

    Raises
    ------
    FieldError
        For an unknown or invalid option, which the text names.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise FieldError("loss", text, f"cannot be read: {_FORM}") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise FieldError("loss", text, f"must give its options by name: {_FORM}")
    name = call.func.id
    if name not in _KINDS:
        raise FieldError("loss", name, f"has no options; {nearest(name, list(_KINDS))}")
    kind, checks = _KINDS[name]
    options: dict[str, Any] = {}
    for keyword in call.keywords:
        option = str(keyword.arg)
        if option not in checks:
            raise FieldError(
                f"loss {name}", option, f"is no option; {nearest(option, list(checks))}"
            )
        try:
            value = ast.literal_eval(keyword.value)
        except ValueError as error:
            raise FieldError(f"loss {name}", option, "must be numbers, True or False") from error
        options[option] = checks[option](option, value)
    loss = kind(**options)
    return loss if kind is nn.CrossEntropyLoss else Paired(loss)


_FORM = "write cross_entropy(weight=[1, 3], label_smoothing=0.1)"
