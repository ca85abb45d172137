"""A check of this machine's kernels at start-up: a row's result has the same bits whatever the other rows are."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedveil.layout import Layout
from fedveil.learning.chains import ByChain
from fedveil.learning.gradients import squared_norms
from fedveil.learning.inputs import Inputs
from fedveil.learning.layerwise import ByLayers
from fedveil.learning.recognised import generators_of
from fedveil.learning.traced import ByOperators, OneByOne

_OTHERS = (
    0.0,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e38,
    -1e38,
    1e-42,
    1.0,
)  # possible content of the other rows of a batch

GradientRule = (
    ByChain | ByLayers | ByOperators | OneByOne
)  # rules for the gradients of single examples


@dataclass(frozen=True)
class BatchForm:
    """Form of a batch; all its fields are public numbers.

    Attributes
    ----------
    width : int
        Number of rows.
    each : int
        Number of rows of one person.
    formed : bool
        Whether persons' mean gradients are computed as whole vectors.
    spanned : bool
        Whether persons' mean gradients are represented by factors of inputs (`Bases`).
    """

    width: int
    each: int
    formed: bool
    spanned: bool


def reads_examples(rule: GradientRule) -> bool:
    """Whether squared norms of the examples, computed once, save this rule work in each step."""
    return isinstance(rule, ByChain) and rule.reads_examples


def without_autograd(rule: GradientRule) -> torch.inference_mode:
    """Return a context without autograd if the rule is a chain, as a chain computes its gradients itself (a tenth faster)."""
    return torch.inference_mode(isinstance(rule, ByChain))


def settings() -> tuple[object, ...]:
    """Return PyTorch's global settings that influence which kernels run; a change between steps is noticed by them."""
    lowered = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return (
        torch.get_num_threads(),
        lowered,
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        torch.backends.mkldnn.enabled,
    )


def rows_are_isolated(
    rule: GradientRule,
    model: nn.Module,
    layout: Layout,
    x: Tensor,
    y: Tensor,
    form: BatchForm,
    drawing: torch.Generator | None = None,
) -> bool:
    """Check on this machine that a row's result, or a person's mean, has the same bits whatever the other rows are.

    The check changes half of the rows of a batch of dummies, and compares the results of the other half. The weights
    are random, because a server could choose weights that make every row NaN.

    Parameters
    ----------
    rule : ByChain, ByLayers, ByOperators or OneByOne
        Rule that computes gradients.
    model, layout
        Model of the gradients, and its layout.
    x, y : Tensor
        Examples and labels whose shapes and types are used.
    form : BatchForm
        Form of the batches in training.
    drawing : torch.Generator, optional
        Generator from which the model draws in addition to its own ones; its state is restored.

    Raises
    ------
    NotIsolated, ByValue, RuntimeError
        If the rule does not apply to this model.
    """
    generator = torch.Generator().manual_seed(0)
    kept = _States((*generators_of(model), drawing))
    weights = layout.read(model)
    random = _random_weights(layout, generator)
    shape = (form.width, *x.shape[1:])
    dummies = (
        torch.randn(shape, generator=generator) if x.is_floating_point() else torch.zeros(shape)
    )
    labels = torch.zeros((form.width, *y.shape[1:]), dtype=y.dtype, device=y.device)
    inputs = Inputs.of(model)
    persons = form.width // form.each
    try:
        layout.load(model, random.to(weights))
        dummies = inputs(dummies.to(x.dtype))
        if not isinstance(rule, OneByOne):
            rule.prepare(dummies, labels)
        before = [bits.clone() for bits in _bits_of(rule, inputs, dummies, labels, form, kept)]
        for turn, (replaced, same) in enumerate(_halves(persons)):
            others = torch.zeros(persons, dtype=torch.bool, device=dummies.device)
            others[replaced] = True
            changed = inputs(_with_others(dummies, others, turn, form.each, x.dtype))
            after = _bits_of(rule, inputs, changed, labels, form, kept)
            for bits, new_bits in zip(before, after, strict=True):
                if not torch.equal(bits[same], new_bits[same]):
                    return False
        return True
    finally:
        layout.load(model, weights)
        kept.put_back()


class _States:
    """Saved states of random generators, to be restored."""

    def __init__(self, generators: Iterable[torch.Generator | None]) -> None:
        self._states: list[tuple[torch.Generator, Tensor]] = []
        for generator in generators:
            if generator is not None:
                self._states.append((generator, generator.get_state()))

    def put_back(self) -> None:
        for generator, state in self._states:
            generator.set_state(state)


def _random_weights(layout: Layout, generator: torch.Generator) -> Tensor:
    """Draw weights [D] so that a signal keeps its scale from layer to layer."""
    scaled: list[Tensor] = []
    for block in layout.blocks:
        fan_in = block.size / block.shape[0] if block.shape else 1.0
        drawn = torch.randn(block.shape, generator=generator).reshape(-1)
        scaled.append(drawn / fan_in**0.5)
    return torch.cat(scaled)


def _halves(units: int) -> tuple[tuple[slice, slice], ...]:
    """Return the persons whose rows are replaced, and those whose rows stay: even and odd ones, first and second half."""
    even, odd = slice(0, None, 2), slice(1, None, 2)
    early, late = slice(0, units // 2), slice(units // 2, None)
    return (even, odd), (odd, even), (early, late), (late, early)


def _with_others(
    dummies: Tensor,
    others: Tensor,
    turn: int,
    each: int,
    dtype: torch.dtype,
) -> Tensor:
    """Return the dummies with other made-up content in the rows of the persons to be changed."""
    allowed = _OTHERS if dummies.is_floating_point() else (1,)
    values = torch.tensor(allowed, dtype=dtype, device=dummies.device)
    place = torch.arange(len(dummies), device=dummies.device)
    chosen = (place // 2 + turn) % len(values)
    trailing = [1] * (dummies.dim() - 1)
    rows = values[chosen].view(-1, *trailing)
    changed = others.repeat_interleave(each).view(rows.shape)
    return torch.where(changed, rows, dummies)


def _bits_of(
    rule: GradientRule,
    inputs: Inputs,
    examples: Tensor,
    labels: Tensor,
    form: BatchForm,
    kept: _States,
) -> list[Tensor]:
    """Return the bits of all results that enter a step, one row for each person; the next call may overwrite them."""
    kept.put_back()
    width = form.width
    each = form.each
    persons = width // each
    with torch.random.fork_rng(devices=[]), without_autograd(rule):
        torch.default_generator.manual_seed(0)
        examples = inputs.in_memory_order(examples)
        known = squared_norms(examples) if reads_examples(rule) else None
        there = torch.ones(width, dtype=torch.bool, device=examples.device)
        gradients, losses, _ = rule(examples, labels, there, known)
    parts = [_bits(part).view(persons, -1) for part in (*gradients.parts(), losses)]
    shares = torch.full((width,), 1 / each, dtype=torch.float64)
    if form.spanned:  # here rows may have any values
        rows = examples.reshape(persons, each, -1)[:, :, :each].to(torch.float64)
        cores = gradients.head(shares).cores(shares, rows)
        parts.append(_bits(cores).flatten(1))
    elif form.formed:
        means = [torch.cat(block, 1) for block in gradients.means(shares, each)]
        parts.append(_bits(torch.cat(means)))
    return parts


def _bits(value: Tensor) -> Tensor:
    """Return the bits of floating-point numbers as integers."""
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    in_order = value.detach().contiguous()
    return in_order.view(kinds[value.element_size()])
