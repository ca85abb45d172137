"""What keeps the rounding of examples apart: a check of this machine's kernels at start-up."""

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

Way = ByChain | ByLayers | ByOperators | OneByOne


def reads_examples(way: Way) -> bool:
    """Whether norms of the examples themselves, known once, spare each step work."""
    return isinstance(way, ByChain) and way.reads_examples


def without_books(way: Way) -> torch.inference_mode:
    """Keep no books for autograd under a chain, which needs none: they are a tenth of a small head's step."""
    return torch.inference_mode(isinstance(way, ByChain))


def settings() -> tuple[object, ...]:
    """What kernels are chosen by beside shapes, or raise by, and others' code may set between two steps."""
    lowered = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    exact = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    return torch.get_num_threads(), lowered, *exact, torch.is_anomaly_enabled(), torch.backends.mkldnn.enabled


def keep_apart(
    way: Way,
    model: nn.Module,
    layout: Layout,
    drawing: torch.Generator | None,
    x: Tensor,
    y: Tensor,
    width: int,
    each: int,
    formed: bool,
    spanned: bool,
) -> bool:
    """Whether rows, and persons' means, keep their bits at their places among dummies, whatever else is there.

    The weights are random: a server could choose some under which every row is NaN.

    Parameters
    ----------
    way : ByChain, ByLayers, ByOperators or OneByOne
        How gradients are computed.
    model, layout
        Whose they are.
    drawing : torch.Generator, optional
        What the model draws from beside its own generators; states are put back.
    x, y : Tensor
        Examples, whose shapes and types are used.
    width, each : int
        Rows of a batch, and of one person.
    formed, spanned : bool
        Whether persons' means are formed, or spanned by factors of their inputs.

    Raises
    ------
    NotApart, ByValue, RuntimeError
        If the way is none for this model.
    """
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
        with torch.random.fork_rng(devices=[]), without_books(way):
            torch.default_generator.manual_seed(0)
            examples = inputs.laid_out(examples)
            known = squared_norms(examples) if reads_examples(way) else None
            gradients, losses, _ = way(examples, labels, torch.ones(width, dtype=torch.bool, device=x.device), known)
        parts = [_bits(part).view(width // each, -1) for part in (*gradients.parts(), losses)]
        weights = torch.full((width,), 1 / each, dtype=torch.float64)
        if spanned:  # rows of any values do
            rows = examples.reshape(width // each, each, -1)[:, :, :each].to(torch.float64)
            parts.append(_bits(gradients.head(weights).cores(weights, rows)).flatten(1))
        elif formed:
            means = [torch.cat(block, 1) for block in gradients.means(weights, each)]
            parts.append(_bits(torch.cat(means)))
        return parts

    try:
        layout.load(model, random.to(weights))
        dummies = inputs(dummies.to(x.dtype))
        if not isinstance(way, OneByOne):
            way.prepare(dummies, labels)
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
