"""Losses by name, checks of labels for each example, and outputs of a model under given parameters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.errors import FieldError, kind_of, require_a
from fedveil.layout import Layout
from fedveil.learning.example_losses import DiceOfImage, ExampleLoss, Hazards
from fedveil.learning.inputs import Inputs
from fedveil.learning.loss_options import with_options
from fedveil.learning.own_state import OwnState
from fedveil.learning.torch_losses import IGNORED as IGNORED
from fedveil.learning.torch_losses import NAMES, Labelwise, Paired, labelwise, mean_of_mask, paired
from fedveil.registry import Registry

LossFunction = Callable[[Tensor, Tensor], Tensor]
LOSSES_OF_EXAMPLES = (
    "cross_entropy",
    "mse",
    "l1",
    "huber",
    "poisson",
    "bce",
    "hazards",
    "dice",
    "soft_dice",
)
MIXES_PEOPLE = (
    "Cox's partial likelihood compares each person with all who were at risk then: risk sets mix people, and no "
    "clipping bounds what one of them moves; for survival use 'hazards' (discrete time, each person alone)"
)

RMSE_FLOOR = 1e-12  # added under the root, so that the derivative exists at error 0


def cross_entropy(output: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the cross-entropy of logits [B, classes, ...] and int64 classes [B, ...].

    With reduction "mean" it is one number, with "none" the loss of each label.

    Raises
    ------
    FieldError
        If a label is not a class of the model.
    """
    try:
        return F.cross_entropy(output, y, reduction=reduction)
    except IndexError as error:
        accepted = (
            f"classes must be numbered from 0 to {output.shape[1] - 1}, the model's last output"
        )
        given = f"from {int(y.min())} to {int(y.max())}"
        raise FieldError("y", given, accepted) from error


def mse(output: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the squared error: its mean, or with reduction "none" that of each number.

    Outputs [B, 1] fit targets [B]. For classes [B], outputs [B, classes] are compared with 1 for the class and 0 for
    the others.

    Raises
    ------
    FieldError
        If the shapes differ, because broadcasting would compare an example's outputs with other examples' targets.
    """
    if of_classes(output.shape, y, 1):
        y = F.one_hot(y, output.shape[1])
    fitted, targets = paired(output, y)
    if fitted.shape != y.shape:
        raise FieldError("y", tuple(y.shape), f"must be like the outputs, {tuple(output.shape)}")
    return F.mse_loss(fitted, targets, reduction=reduction)


def of_classes(outputs: Sequence[int], y: Tensor, axes: int) -> bool:
    """Whether targets y are class numbers for outputs [..., classes]: integers with `axes` axes, one fewer than the outputs."""
    if y.is_floating_point():
        return False
    return y.dim() == axes == len(outputs) - 1 and outputs[-1] > 1


def rmse(output: Tensor, y: Tensor) -> Tensor:
    """Compute the root of (mean squared error of the batch + 1e-12). It is not a mean over examples."""
    return (mse(output, y) + RMSE_FLOOR).sqrt()


def dice(output: Tensor, y: Tensor) -> Tensor:
    """Compute cross-entropy plus `soft_dice`: for segmentation (a class for each pixel) with rare classes."""
    return soft_dice(output, y) + cross_entropy(output, y)


def soft_dice(output: Tensor, y: Tensor) -> Tensor:
    """Compute the soft Dice loss of the classes above 0, for segmentation. A detector that is still weak learns from it, too.

    Logits are [B, classes, H, W], labels [B, H, W]. The loss of one class in one image is 1 - (2 sum p t + 1) / (sum p
    + sum t + 1), with the softmax p and the one-hot label t. Source: Milletari et al. 2016 (arXiv 1606.04797), here
    with sums instead of sums of squares.
    """
    if output.dim() < 3:
        raise FieldError(
            "loss", "dice", f"needs a class a pixel; the outputs are {tuple(output.shape)}"
        )
    here = (y != IGNORED).flatten(1)
    rare = output.softmax(1)[:, 1:].flatten(2) * here[:, None]
    one_hot = F.one_hot(y.flatten(1) * here, output.shape[1]).movedim(-1, 1)
    truth = one_hot[:, 1:].to(rare.dtype)
    both = (rare * truth).sum(2)
    sums = rare.sum(2) + truth.sum(2)
    return (1 - (2 * both + 1) / (sums + 1)).mean()


def hazards(output: Tensor, y: Tensor) -> Tensor:
    """Compute the survival loss in discrete time (`Hazards`) of logits [B, intervals] and targets [B, 2]."""
    return Hazards().of_batch(output, y)


LOSSES: Registry[LossFunction] = Registry(
    "loss",
    {
        "cross_entropy": cross_entropy,
        "mse": mse,
        "rmse": rmse,
        "l1": Paired(nn.L1Loss()),
        "huber": Paired(nn.HuberLoss()),
        "poisson": Paired(nn.PoissonNLLLoss()),
        "bce": Paired(nn.BCEWithLogitsLoss()),
        "hazards": hazards,
        "dice": dice,
        "soft_dice": soft_dice,
    },
)
_OF_EXAMPLES: dict[Any, Labelwise] = {
    "dice": DiceOfImage(entropy=True),
    "soft_dice": DiceOfImage(entropy=False),
    "hazards": Hazards(),
}
_OF_EXAMPLES |= {
    dice: _OF_EXAMPLES["dice"],
    soft_dice: _OF_EXAMPLES["soft_dice"],
    hazards: _OF_EXAMPLES["hazards"],
}
LABELWISE: dict[str, LossFunction] = {
    "cross_entropy": partial(cross_entropy, reduction="none"),
    "mse": partial(mse, reduction="none"),
}


def loss_of(loss: str | LossFunction) -> LossFunction:
    """Return the loss function for a function, a name in `LOSSES`, or ``"package.module:function"``."""
    if callable(loss):
        return loss
    require_a(
        "local.loss", loss, str, "must be the name of a loss, or a function of outputs and targets"
    )
    if "(" in loss and ":" not in loss:
        return with_options(loss)
    if "cox" in loss.lower():
        raise FieldError("loss", loss, MIXES_PEOPLE)
    found: LossFunction = LOSSES.find(loss)
    return found


def base_name(loss: object) -> str:
    """Return the name of a loss without its options, or "" for a function."""
    if not isinstance(loss, str):
        return ""
    name, _, _ = loss.partition("(")
    return name.strip()


def losses_of(loss: str | LossFunction) -> LossFunction:
    """Return a function that computes the loss of each label [B, ...]; the mean of these is the requested loss.

    Raises
    ------
    FieldError
        For a loss that is not known to be a mean over examples, because losses of single examples are needed.
    """
    loss_of(loss)
    known = single(loss)
    return LABELWISE[known] if isinstance(known, str) else known


def single(loss: str | LossFunction) -> str | Labelwise:
    """Return the form of a loss that gives losses of single examples: a name in `LABELWISE`, or a `Labelwise` object.

    Raises
    ------
    FieldError
        If the loss is not known to be a mean over examples.
    """
    if isinstance(loss, Labelwise):
        return loss
    if isinstance(loss, str) and loss in LABELWISE:
        return loss
    found = loss_of(loss)
    if isinstance(found, ExampleLoss | Paired):
        return found.each
    known = _OF_EXAMPLES.get(loss if isinstance(loss, str) else found) or labelwise(found)
    if known is None or (isinstance(known, str) and known not in LABELWISE):
        names = f"use {', '.join(LOSSES_OF_EXAMPLES)}, one of PyTorch's ({', '.join(NAMES)}), or "
        own = (
            "fedveil.learning.example_loss(function), a function of one example's output and target"
        )
        raise FieldError("loss", loss, f"{_why_not(found)}: {names}{own}")
    return known


def _why_not(loss: LossFunction) -> str:
    """Explain why a loss has no clippable gradients of single examples."""
    kind = type(loss).__name__
    name = str(getattr(loss, "__name__", kind))
    if "cox" in name.lower():
        return MIXES_PEOPLE
    if loss is rmse:
        return "is the root of a batch's mean, so that one example's share follows all others"
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "mean") != "mean":
        return f'has reduction="{loss.reduction}", and a step takes the mean over examples: write reduction="mean"'
    if isinstance(loss, nn.BCELoss) or loss is F.binary_cross_entropy:
        return "raises for a value outside [0, 1], which would stop a whole batch: use BCEWithLogitsLoss on scores"
    if isinstance(loss, nn.Module) and kind in dir(nn):
        return "is not known to be a mean of losses of single examples"
    return "is a function of a whole batch, and may compare examples with one another"


def usable(
    y: Tensor,
    outputs: Sequence[int],
    loss: str | Labelwise,
) -> tuple[Tensor, Tensor]:
    """Find the examples whose labels are all valid, and set the other examples' labels to 0.

    An invalid label would otherwise raise an error for the whole batch.

    Parameters
    ----------
    y : Tensor
        [B, ...], targets.
    outputs : sequence of int
        Shape of the model's outputs [B, ...].
    loss : {"cross_entropy", "mse"} or Labelwise
        Loss that gets the targets.

    Returns
    -------
    y : Tensor
        [B, ...], with 0 for the targets of examples that are not good.
    good : Tensor
        [B], bool: which examples have only valid labels.
    """
    good = torch.ones(len(y), dtype=torch.bool, device=y.device)
    if loss == "mse" and not of_classes(outputs, y, 1):
        return y, good
    if isinstance(loss, Labelwise) and not loss.of_classes:
        return y, good
    if y.is_floating_point() or len(outputs) < 2 or not y.numel():
        return y, good
    classes = outputs[1]
    low, high = y.aminmax()
    if int(low) >= 0 and int(high) < classes:
        return y, good
    fits = (y >= 0) & (y < classes)
    if loss != "mse":
        ignored = loss.ignored if isinstance(loss, Labelwise) else IGNORED
        fits |= y == ignored
    return y.masked_fill(~fits, 0), fits.reshape(len(y), -1).all(1)


def masked(
    y: Tensor,
    outputs: Sequence[int],
    loss: str | Labelwise,
) -> tuple[Tensor, LossFunction]:
    """Return targets and a mean batch loss for them that never uses a label as an index, as an invalid one would raise.

    Where needed, labels become a one-hot mask [B, classes, ...].
    """
    if isinstance(loss, Labelwise) and (y.is_floating_point() or not loss.has_mask):
        return y, loss.of_batch
    if loss == "mse":
        if of_classes(outputs, y, 1):
            y = F.one_hot(y, outputs[-1])
        return y, mse
    if y.is_floating_point():
        return y, F.cross_entropy
    trailing = [1] * (y.dim() - 1)
    each = torch.arange(outputs[1], device=y.device).view(-1, *trailing)
    mask = y[:, None] == each
    if isinstance(loss, Labelwise):
        here = y != loss.ignored
        return mask & here[:, None], loss.of_mask
    return mask, _entropy_of_mask


def _entropy_of_mask(output: Tensor, mask: Tensor) -> Tensor:
    """Return the mean cross-entropy of a batch whose true classes are a one-hot mask [B, classes, ...]."""
    return mean_of_mask(output.log_softmax(1), mask)


def outputs_of(answer: Any) -> Tensor:
    """Extract the output tensor [B, ...] from what a module's forward method returned.

    Parameters
    ----------
    answer : Tensor, object, mapping or sequence
        The outputs, or an object with ``.logits`` (Hugging Face's models). Or a mapping with "logits" or "out"
        (torchvision's segmentation models), or a tuple that begins with the outputs (``nn.GRU``, ``nn.LSTM``).

    Raises
    ------
    FieldError
        If the answer holds no outputs.
    """
    if isinstance(answer, Tensor):
        return answer
    outputs = getattr(answer, "logits", None)
    if isinstance(answer, Mapping):
        outputs = answer.get("logits", answer.get("out"))
    elif outputs is None and isinstance(answer, Sequence) and answer:
        outputs = answer[0]
    if not isinstance(outputs, Tensor):
        accepted = "must be a tensor, have .logits, or be a tuple that begins with a tensor: wrap the model in one"
        raise FieldError("the model's output", kind_of(answer), accepted)
    return outputs


@contextmanager
def evaluating(module: nn.Module) -> Iterator[nn.Module]:
    """Put a module into evaluation mode for this context, then restore the mode and state of every part."""
    modes = [(part, part.training) for part in module.modules()]
    state = OwnState(module)
    module.eval()
    try:
        yield module
    finally:
        for part, training in modes:
            part.training = training
        state.restore()


def predict(
    module: nn.Module,
    layout: Layout,
    vector: Tensor,
    x: Tensor,
    *,
    batch: int = 512,
    buffers: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Compute a module's outputs with the parameters of a flat vector; the module itself is unchanged.

    Parameters
    ----------
    module : torch.nn.Module
        Module; runs in evaluation mode, on the device of its parameters, without gradients.
    layout : Layout
        Layout of the module.
    vector : Tensor
        [d], parameters.
    x : Tensor
        [N, ...], examples, with N at least 1.
    batch : int
        Number of examples computed at once.
    buffers : mapping of str to Tensor, optional
        Buffers in place of the module's own.

    Returns
    -------
    Tensor
        [N, ...], outputs, on the CPU.
    """
    inputs = Inputs.of(module)
    device = inputs.like.device
    state: dict[str, Tensor] = {}
    for name, value in layout.unflatten(vector).items():
        state[name] = inputs.stored(value.to(device))
    for name, value in (buffers or {}).items():
        state[name] = value.to(device)
    outputs: list[Tensor] = []
    with evaluating(module), torch.no_grad():
        for start in range(0, len(x), batch):
            rows = inputs(
                x[start : start + batch].clone()
            )  # a copy, as the model may write into it
            answer = torch.func.functional_call(module, state, (rows,))
            outputs.append(outputs_of(answer).cpu())
    return torch.cat(outputs)
