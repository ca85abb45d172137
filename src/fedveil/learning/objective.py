"""What a loss asks for, seen from outside: labels it passes over, what outputs mean to it, shapes it pairs wrongly.

A loss that somebody hands in is a function. Where its class does not say, it is tried on made-up outputs and targets of
the declared shapes; no value of the data is used for that.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal
from warnings import catch_warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.errors import FieldError
from fedveil.learning.losses import IGNORED, LOSSES, LossFunction, loss_of

Loss = str | LossFunction
OutputMeaning = Literal["classes", "soft classes", "logits", "chances", "values"]

OF_CLASSES = ("cross_entropy", "dice", "soft_dice")
OF_NUMBERS = ("mse", "rmse")


def named(loss: Loss) -> str:
    """The name by which a refusal calls a loss."""
    return loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)


def ignored_by(loss: Loss) -> int | None:
    """The label that a loss says it passes over; None if it says none."""
    if isinstance(loss, str):
        return IGNORED if loss in OF_CLASSES else None if loss in LOSSES else ignored_by(loss_of(loss))
    if isinstance(loss, partial):
        said = loss.keywords.get("ignore_index")
        return ignored_by(loss.func) if said is None else int(said)
    if isinstance(loss, nn.Module):
        every = (getattr(part, "ignore_index", None) for part in loss.modules())
        return next((one for one in every if isinstance(one, int)), None)
    return IGNORED if loss in (F.cross_entropy, F.nll_loss) else None


def void_labels(loss: Loss | None, y: Tensor, outputs: Sequence[int]) -> Tensor:
    """Which labels count as nothing: the one that the loss names, and numbers of no class that it passes over.

    Parameters
    ----------
    loss : str or callable, optional
        Without one, torch's own: -100.
    y : Tensor
        [N, ...] classes; of targets none is void.
    outputs : sequence of int
        Shape of the model's outputs [N, C, ...].

    Returns
    -------
    Tensor
        [N, ...] of bool.
    """
    void = torch.zeros_like(y, dtype=torch.bool)
    if y.is_floating_point() or not y.numel():
        return void
    said = ignored_by("cross_entropy" if loss is None else loss)
    if said is not None:
        void |= y == said
    classes = outputs[1] if len(outputs) > y.dim() else 2
    low, high = (int(value) for value in y.aminmax())
    if loss is None or isinstance(loss, str) or (low >= 0 and high < classes):
        return void
    for value in set(y[(y < 0) | (y >= classes)].tolist()):
        if value != said and _passes_over(loss, value, outputs, y):
            void |= y == value
    return void


def _passes_over(loss: Loss, label: int, outputs: Sequence[int], y: Tensor) -> bool:
    """Whether the outputs beside a label, which is no class, change nothing."""
    made_up = torch.rand(3, *outputs[1:], generator=torch.Generator().manual_seed(0))
    targets = torch.zeros(3, *y.shape[1:], dtype=y.dtype)
    targets[1:] = label
    other = made_up.clone()
    other[1] = 1 - other[1]
    first, second = _value(loss, made_up, targets), _value(loss, other, targets)
    return first is not None and first == second


def output_meaning(loss: Loss | None, outputs: Sequence[int], y: Tensor) -> OutputMeaning:
    """What a model's outputs are to a loss.

    A loss that goes on falling where an output rises beyond its target of 1, or falls below its target of 0, asks for
    scores of two classes: cross-entropy does, squared and absolute errors do not.

    Parameters
    ----------
    loss : str or callable, optional
        Without one, whole numbers are classes and others values.
    outputs : sequence of int
        Their shape [N, ...].
    y : Tensor
        [N, ...], of which the shape and type are used.

    Returns
    -------
    {"classes", "soft classes", "logits", "chances", "values"}
        One score a class against numbers of classes, or against shares of classes; one score of a yes; one probability
        of it; numbers.
    """
    several = len(outputs) == y.dim() + 1 and outputs[1] > 1
    if not y.is_floating_point() and (several or loss is None):
        return "classes"
    if loss is None or (isinstance(loss, str) and loss in OF_NUMBERS):
        return "values"
    if isinstance(loss, str) and loss in OF_CLASSES:
        return "soft classes" if y.is_floating_point() else "classes"
    shapes = tuple(outputs[1:]), tuple(y.shape[1:])
    if _falls(loss, shapes, y.dtype, (1.0, 3.0)):
        return "logits"
    if _shifts(loss, shapes, y.dtype):
        return "soft classes"
    beyond = _constant(loss, shapes, y.dtype, 3.0, 1)
    takes_chances = beyond is None and _falls(loss, shapes, y.dtype, (0.6, 0.9), chance=True)
    return "chances" if takes_chances else "values"


Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def _constant(loss: Loss, shapes: Shapes, kind: torch.dtype, output: float, target: int) -> float | None:
    """The loss of two examples, all of whose outputs are one number and all of whose targets are another."""
    return _value(loss, torch.full((2, *shapes[0]), output), torch.full((2, *shapes[1]), target, dtype=kind))


def _falls(loss: Loss, shapes: Shapes, kind: torch.dtype, at: tuple[float, float], chance: bool = False) -> bool:
    near, far = at
    below = (1 - near, 1 - far) if chance else (-near, -far)
    yes = [_constant(loss, shapes, kind, value, 1) for value in (near, far)]
    no = [_constant(loss, shapes, kind, value, 0) for value in below]
    pairs = [(a, b) for a, b in (yes, no) if a is not None and b is not None]
    return len(pairs) == 2 and all(b < a for a, b in pairs)


def _shifts(loss: Loss, shapes: Shapes, kind: torch.dtype) -> bool:
    """Whether targets are shares of classes: as many as outputs, whose common level changes nothing."""
    if shapes[0] != shapes[1] or not shapes[0] or shapes[0][0] < 2:
        return False
    targets = torch.zeros(2, *shapes[1], dtype=kind)
    targets[:, 0] = 1
    scores = targets.to(torch.float32)
    base, raised, surer = (_value(loss, one, targets) for one in (scores, scores + 2, 3 * scores))
    if base is None or raised is None or surer is None:
        return False
    return abs(base - raised) < 1e-5 * max(1.0, abs(base)) and surer < base


def require_paired(loss: Loss, outputs: Sequence[int], y: Tensor, field: str) -> None:
    """Refuse shapes under which a loss compares every output with every example's target.

    PyTorch broadcasts [N, 1] against [N] to [N, N]: the model then learns the mean of all targets.

    Parameters
    ----------
    loss : str or callable
        As in `LocalTraining`; those by name fit [N, 1] to [N] themselves.
    outputs : sequence of int
        Shape of the model's outputs [N, ...].
    y : Tensor
        [N, ...], of which the shape and type are used.
    field : str
        What a refusal calls the targets.

    Raises
    ------
    FieldError
        With both shapes, and what makes them alike.
    """
    own, wanted = tuple(y.shape[1:]), tuple(outputs[1:])
    if own == wanted or (isinstance(loss, str) and loss in LOSSES):
        return
    rows = next(n for n in (5, 7, 11, 13, 17, 19, 23) if n not in (*own, *wanted))
    if _pairs_all(loss, (rows, *wanted), (rows, *own), y.dtype):
        text = f"{named(loss)} compares each of the model's outputs {_shown(wanted)} with the targets of all others"
        raise FieldError(field, _shown(own), f"{text}: make the shapes alike, {how_alike(own, wanted)}")


def _pairs_all(loss: Loss, outputs: tuple[int, ...], own: tuple[int, ...], kind: torch.dtype) -> bool:
    """Whether a loss stays the same when targets change places among the examples, and not when they change."""
    generator = torch.Generator().manual_seed(0)
    made_up = torch.rand(outputs, generator=generator)

    def targets() -> Tensor:
        drawn = torch.rand(own, generator=generator)
        return drawn.to(kind) if kind.is_floating_point else (drawn * 2).floor().to(kind)

    some, others = targets(), targets()
    some[1] = 0  # beside the 1 below: targets that are all alike would change places unseen
    some[0], others[0], others[1:] = 1, 1, 1 - some[1:]
    first, turned, changed = (_value(loss, made_up, one) for one in (some, some.roll(1, 0), others))
    if first is None or turned is None or changed is None:
        return False
    near = 1e-5 * max(1.0, abs(first))
    if torch.Size(own).numel() == torch.Size(outputs).numel():
        paired = _value(loss, made_up, some.reshape(outputs))
        if paired is not None and abs(first - paired) < near:
            return False  # a loss of the batch's means, say, which has no pairs
    return abs(first - turned) < near < abs(first - changed)


def _shown(shape: Sequence[int]) -> str:
    return f"[{', '.join(['N', *map(str, shape)])}]"


def how_alike(own: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """How targets get the outputs' shape, or else outputs that of the targets."""
    if torch.Size(own).numel() == torch.Size(wanted).numel():
        return f"y.reshape({', '.join(map(str, (-1, *wanted)))})"
    return f"with a model that ends in outputs {_shown(own)}, or targets {_shown(wanted)}"


def _value(loss: Loss, outputs: Tensor, y: Tensor) -> float | None:
    """The loss of made-up outputs, if it is a number."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), catch_warnings(action="ignore"):
            value: Any = loss_of(loss)(outputs, y)
            number = float(value)
    except Exception:  # the loss is the user's
        return None
    return number if number == number and abs(number) != float("inf") else None
