"""Properties of a loss found by trying it: ignored labels, the meaning of outputs, wrongly broadcast shapes.

A user's loss is a function. If its class does not reveal a property, the loss is tried on made-up outputs and targets
of the declared shapes; no value of the data is used.
"""

import math
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
Shape = tuple[int, ...]

OF_CLASSES = ("cross_entropy", "dice", "soft_dice")
OF_NUMBERS = ("mse", "rmse")

_TOLERANCE = 1e-5  # relative difference below which losses count as equal
_ROWS = (
    5,
    7,
    11,
    13,
    17,
    19,
    23,
)  # numbers of made-up examples; at least one differs from every axis of the shapes


def named(loss: Loss) -> str:
    """Return a loss's name as it stands in refusals."""
    if isinstance(loss, str):
        return loss
    return getattr(loss, "__name__", type(loss).__name__)


def ignored_by(loss: Loss) -> int | None:
    """Return the label that a loss declares as ignored (``ignore_index``); None if it declares none."""
    if isinstance(loss, str):
        if loss in OF_CLASSES:
            return IGNORED
        if loss in LOSSES:
            return None
        return ignored_by(loss_of(loss))
    if isinstance(loss, partial):
        said = loss.keywords.get("ignore_index")
        return ignored_by(loss.func) if said is None else int(said)
    if isinstance(loss, nn.Module):
        for part in loss.modules():
            label = getattr(part, "ignore_index", None)
            if isinstance(label, int):
                return label
        return None
    return IGNORED if loss in (F.cross_entropy, F.nll_loss) else None


def void_labels(loss: Loss | None, y: Tensor, outputs: Sequence[int]) -> Tensor:
    """Find void labels: the label that the loss declares as ignored, and labels of no class ignored in a trial.

    Parameters
    ----------
    loss : str or callable, optional
        Loss; without one, only PyTorch's ignored label -100 is void.
    y : Tensor
        [N, ...], classes; targets have no void labels.
    outputs : sequence of int
        Shape of the model's outputs [N, C, ...].

    Returns
    -------
    Tensor
        [N, ...], bool.
    """
    void = torch.zeros_like(y, dtype=torch.bool)
    if y.is_floating_point() or not y.numel():
        return void
    said = ignored_by("cross_entropy" if loss is None else loss)
    if said is not None:
        void |= y == said
    if loss is None or isinstance(loss, str):
        return void
    classes = outputs[1] if len(outputs) > y.dim() else 2
    low, high = y.aminmax()
    if int(low) >= 0 and int(high) < classes:
        return void
    no_class = (y < 0) | (y >= classes)
    for value in set(y[no_class].tolist()):
        if value != said and _passes_over(loss, value, outputs, y):
            void |= y == value
    return void


def _passes_over(loss: Loss, label: int, outputs: Sequence[int], y: Tensor) -> bool:
    """Whether the loss ignores a label that is no class: changed outputs do not change the loss."""
    made_up = torch.rand(3, *outputs[1:], generator=torch.Generator().manual_seed(0))
    targets = torch.zeros(3, *y.shape[1:], dtype=y.dtype)
    targets[1:] = label
    changed = made_up.clone()
    changed[1] = 1 - changed[1]
    before = _value(loss, made_up, targets)
    after = _value(loss, changed, targets)
    return before is not None and before == after


def output_meaning(
    loss: Loss | None,
    outputs: Sequence[int],
    y: Tensor,
) -> OutputMeaning:
    """Find out what a model's outputs mean under a loss: scores, probabilities or values.

    A loss that still falls when an output exceeds its target of 1, or goes below its target of 0, takes scores.
    Cross-entropy does so; squared and absolute errors do not.

    Parameters
    ----------
    loss : str or callable, optional
        Loss; without one, integers are classes, and other numbers are values.
    outputs : sequence of int
        Shape of the outputs, [N, ...].
    y : Tensor
        [N, ...], labels, of which only shape and type are used.

    Returns
    -------
    {"classes", "soft classes", "logits", "chances", "values"}
        In this order: one score for each class, with class numbers as targets; the same with shares of classes as
        targets; one score for yes; one probability of yes; numbers.
    """
    one_score_a_class = len(outputs) == y.dim() + 1 and outputs[1] > 1
    if not y.is_floating_point() and (one_score_a_class or loss is None):
        return "classes"
    if loss is None:
        return "values"
    if isinstance(loss, str):
        if loss in OF_NUMBERS:
            return "values"
        if loss in OF_CLASSES:
            return "soft classes" if y.is_floating_point() else "classes"
    probe = _ConstantProbe(loss, tuple(outputs[1:]), tuple(y.shape[1:]), y.dtype)
    if probe.asks_for_logits():
        return "logits"
    if probe.asks_for_shares():
        return "soft classes"
    if probe.asks_for_chances():
        return "chances"
    return "values"


class _ConstantProbe:
    """Trial of a loss on two made-up examples; all outputs are one number, and all targets another."""

    def __init__(
        self,
        loss: Loss,
        outputs: Shape,
        targets: Shape,
        kind: torch.dtype,
    ) -> None:
        self._loss = loss
        self._outputs = outputs
        self._targets = targets
        self._kind = kind

    def asks_for_logits(self) -> bool:
        """Whether the loss still falls when outputs go beyond their target of 0 or 1."""
        return self._falls(1, 1.0, 3.0) and self._falls(0, -1.0, -3.0)

    def asks_for_chances(self) -> bool:
        """Whether the loss falls towards the target within [0, 1] and is not finite outside."""
        if self._at(3.0, 1) is not None:
            return False
        return self._falls(1, 0.6, 0.9) and self._falls(0, 1 - 0.6, 1 - 0.9)

    def asks_for_shares(self) -> bool:
        """Whether targets are shares of classes.

        Then they have the outputs' shape, and a constant added to all outputs changes nothing.
        """
        if self._outputs != self._targets or not self._outputs or self._outputs[0] < 2:
            return False
        targets = torch.zeros(2, *self._targets, dtype=self._kind)
        targets[:, 0] = 1
        scores = targets.to(torch.float32)
        base = _value(self._loss, scores, targets)
        raised = _value(self._loss, scores + 2, targets)
        surer = _value(self._loss, 3 * scores, targets)
        if base is None or raised is None or surer is None:
            return False
        return abs(base - raised) < _near(base) and surer < base

    def _falls(self, target: int, near: float, far: float) -> bool:
        first = self._at(near, target)
        second = self._at(far, target)
        return first is not None and second is not None and second < first

    def _at(self, output: float, target: int) -> float | None:
        outputs = torch.full((2, *self._outputs), output)
        targets = torch.full((2, *self._targets), target, dtype=self._kind)
        return _value(self._loss, outputs, targets)


def require_paired(loss: Loss, outputs: Sequence[int], y: Tensor, field: str) -> None:
    """Refuse shapes for which broadcasting would compare each output with the targets of all examples.

    PyTorch broadcasts [N, 1] with [N] to [N, N]; the model would then learn the mean of all targets.

    Parameters
    ----------
    loss : str or callable
        Loss as in `LocalTraining`; losses by name accept outputs [N, 1] with targets [N].
    outputs : sequence of int
        Shape of the model's outputs [N, ...].
    y : Tensor
        [N, ...], targets, of which only shape and type are used.
    field : str
        Name of the targets in a refusal.

    Raises
    ------
    FieldError
        If every output is compared with every target; the text gives both shapes and the fix.
    """
    own = tuple(y.shape[1:])
    wanted = tuple(outputs[1:])
    if own == wanted:
        return
    if isinstance(loss, str) and loss in LOSSES:
        return
    taken = (*own, *wanted)
    rows = next(number for number in _ROWS if number not in taken)
    if _pairs_all(loss, (rows, *wanted), (rows, *own), y.dtype):
        problem = f"{named(loss)} compares each of the model's outputs {_shown(wanted)} with the targets of all others"
        raise FieldError(
            field, _shown(own), f"{problem}: make the shapes equal, {shape_fix(own, wanted)}"
        )


def _pairs_all(loss: Loss, outputs: Shape, targets: Shape, kind: torch.dtype) -> bool:
    """Whether a loss stays equal if targets are permuted among examples, but changes if their values change."""
    generator = torch.Generator().manual_seed(0)
    made_up = torch.rand(outputs, generator=generator)
    some = _drawn_targets(targets, kind, generator)
    others = _drawn_targets(targets, kind, generator)
    some[1] = 0  # together with the 1 below: with equal targets a permutation would be invisible
    some[0] = 1
    others[0] = 1
    others[1:] = 1 - some[1:]
    first = _value(loss, made_up, some)
    moved = _value(loss, made_up, some.roll(1, 0))
    changed = _value(loss, made_up, others)
    if first is None or moved is None or changed is None:
        return False
    near = _near(first)
    if math.prod(targets) == math.prod(outputs):
        paired = _value(loss, made_up, some.reshape(outputs))
        if paired is not None and abs(first - paired) < near:
            return False  # such as a loss of the batch's means, which has no pairs
    return abs(first - moved) < near < abs(first - changed)


def _drawn_targets(
    shape: Shape,
    kind: torch.dtype,
    generator: torch.Generator,
) -> Tensor:
    """Draw targets in [0, 1), or 0 and 1 if they are whole numbers."""
    drawn = torch.rand(shape, generator=generator)
    if kind.is_floating_point:
        return drawn.to(kind)
    return (drawn * 2).floor().to(kind)


def _near(value: float) -> float:
    """Return the largest difference at which another loss counts as equal to this one."""
    return _TOLERANCE * max(1.0, abs(value))


def _shown(shape: Sequence[int]) -> str:
    axes = ["N", *map(str, shape)]
    return f"[{', '.join(axes)}]"


def shape_fix(own: Shape, wanted: Shape) -> str:
    """Return the advice of a refusal: how to reshape targets to the outputs' shape, or outputs to the targets'."""
    if math.prod(own) == math.prod(wanted):
        axes = (-1, *wanted)
        return f"y.reshape({', '.join(map(str, axes))})"
    return f"with a model that ends in outputs {_shown(own)}, or targets {_shown(wanted)}"


def _value(loss: Loss, outputs: Tensor, y: Tensor) -> float | None:
    """Return the loss of made-up outputs; None if it is not a finite number."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), catch_warnings(action="ignore"):
            value: Any = loss_of(loss)(outputs, y)
            number = float(value)
    except Exception:  # the loss is the user's code
        return None
    return number if math.isfinite(number) else None
