"""A check of this machine's kernels at start-up: a row's result has the same bits whatever the other rows are."""

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

_OTHERS = (0.0, float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 1e-42, 1.0)  # what the rest of a batch may hold

GradientRule = ByChain | ByLayers | ByOperators | OneByOne  # how gradients of single examples are computed


@dataclass(frozen=True)
class BatchForm:
    """The form of a batch, by public numbers alone.

    Attributes
    ----------
    width : int
        Rows.
    each : int
        Rows of one person.
    formed : bool
        Whether persons' means are formed.
    spanned : bool
        Whether they are spanned by factors of their inputs instead.
    """

    width: int
    each: int
    formed: bool
    spanned: bool


def reads_examples(rule: GradientRule) -> bool:
    """Whether norms of the examples themselves, known once, spare each step work."""
    return isinstance(rule, ByChain) and rule.reads_examples


def without_autograd(rule: GradientRule) -> torch.inference_mode:
    """Run a chain without autograd: it computes its gradients itself, and a small head's step is a tenth shorter."""
    return torch.inference_mode(isinstance(rule, ByChain))


def settings() -> tuple[object, ...]:
    """What kernels are chosen by beside shapes, or raise by, and others' code may set between two steps."""
    lowered = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    exact = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    return torch.get_num_threads(), lowered, *exact, torch.is_anomaly_enabled(), torch.backends.mkldnn.enabled


def rows_are_isolated(
    rule: GradientRule,
    model: nn.Module,
    layout: Layout,
    x: Tensor,
    y: Tensor,
    form: BatchForm,
    drawing: torch.Generator | None = None,
) -> bool:
    """Check that a row's result, and a person's mean, has the same bits whatever the other rows are.

    It changes half of the rows of a batch of dummies to other values, and compares what the rest gives. The weights are
    random: a server could choose some under which every row is NaN.

    Parameters
    ----------
    rule : ByChain, ByLayers, ByOperators or OneByOne
        How gradients are computed.
    model, layout
        Whose they are.
    x, y : Tensor
        Examples, whose shapes and types are used.
    form : BatchForm
        Of the batches to come.
    drawing : torch.Generator, optional
        What the model draws from beside its own generators; states are put back.

    Raises
    ------
    NotApart, ByValue, RuntimeError
        If the rule is none for this model.
    """
    width, each = form.width, form.each
    generator = torch.Generator().manual_seed(0)
    states = [(g, g.get_state()) for g in (*generators_of(model), drawing) if g is not None]
    weights = layout.read(model)
    drawn = [torch.randn(b.shape, generator=generator).reshape(-1) for b in layout.blocks]
    fan = [b.size / b.shape[0] if b.shape else 1.0 for b in layout.blocks]
    random = torch.cat([one / f**0.5 for one, f in zip(drawn, fan, strict=True)])
    shape, floats = (width, *x.shape[1:]), x.is_floating_point()
    dummies = torch.randn(shape, generator=generator) if floats else torch.zeros(shape)
    labels = torch.zeros((width, *y.shape[1:]), dtype=y.dtype, device=y.device)
    inputs = Inputs.of(model)

    def bits(examples: Tensor) -> list[Tensor]:
        for g, state in states:
            g.set_state(state)
        with torch.random.fork_rng(devices=[]), without_autograd(rule):
            torch.default_generator.manual_seed(0)
            examples = inputs.in_memory_order(examples)
            known = squared_norms(examples) if reads_examples(rule) else None
            gradients, losses, _ = rule(examples, labels, torch.ones(width, dtype=torch.bool, device=x.device), known)
        parts = [_bits(part).view(width // each, -1) for part in (*gradients.parts(), losses)]
        weights = torch.full((width,), 1 / each, dtype=torch.float64)
        if form.spanned:  # rows of any values do
            rows = examples.reshape(width // each, each, -1)[:, :, :each].to(torch.float64)
            parts.append(_bits(gradients.head(weights).cores(weights, rows)).flatten(1))
        elif form.formed:
            means = [torch.cat(block, 1) for block in gradients.means(weights, each)]
            parts.append(_bits(torch.cat(means)))
        return parts

    try:
        layout.load(model, random.to(weights))
        dummies = inputs(dummies.to(x.dtype))
        if not isinstance(rule, OneByOne):
            rule.prepare(dummies, labels)
        before, units = bits(dummies), width // each
        unit = torch.arange(units, device=x.device)
        place = torch.arange(width, device=x.device)
        for turn, others in enumerate((unit % 2 == 0, unit % 2 == 1, unit < units // 2, unit >= units // 2)):
            values = torch.tensor(_OTHERS if floats else [1], dtype=x.dtype, device=x.device)
            rows = values[(place // 2 + turn) % len(values)].view(-1, *[1] * (x.dim() - 1))
            changed = others.repeat_interleave(each).view(rows.shape)
            after = bits(inputs(torch.where(changed, rows, dummies)))
            if any(not torch.equal(a[~others], b[~others]) for a, b in zip(before, after, strict=True)):
                return False
        return True
    finally:
        layout.load(model, weights)
        for g, state in states:
            g.set_state(state)


def _bits(value: Tensor) -> Tensor:
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    copied: Tensor = value.detach().contiguous().clone()
    return copied.view(kinds[value.element_size()])
