"""Clipped gradients of single examples, summed, so that an example's share is its own to the last bit.

Where rounding alone decides a gradient, it still has length C: the bits of an example's gradient must depend on that
example, its place in the batch and public facts, whatever else is in the batch, is missing, overflows or raises.
Kernels keep that (checked at start-up, on the machine at hand) where the shape is public and nobody changes place: so a
batch has as many rows as its caller says, some of them dummies, and is never computed again in another shape. What
comes after, in float64, is only bounded: by rounding, two sums of n clipped gradients of which all but one are equal
differ by less than 2 n^2 2^-53 C more than they should, which C is lowered by.
"""

import logging
from contextlib import suppress
from math import ceil

import torch
from torch import Tensor, nn

from fedveil.clipping import SHRINK
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.chains import ByChain
from fedveil.learning.gradients import Bases, all_finite, squared_norms, without
from fedveil.learning.layerwise import ByLayers
from fedveil.learning.losses import as_input, losses_of
from fedveil.learning.recognised import generators_of
from fedveil.learning.rules import NotApart
from fedveil.learning.traced import ByOperators, ByValue, OneByOne
from fedveil.secure import on_grid

_LOG = logging.getLogger(__name__)
_ELEMENTS = 1 << 24  # numbers of single examples' gradients that are held at once
_OTHERS = (0.0, float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 1e-42, 1.0)  # what the rest of a batch may hold

Known = tuple[Tensor | None, Bases | None]  # lengths and bases, from before
Way = ByChain | ByLayers | ByOperators | OneByOne


class PerExample:
    """Sums of clipped per-example gradients of one module.

    Models of known layers alone go the fast way (`fedveil.learning.layerwise`); others as a fixed list of operators, or
    one example a call where there is none, or where the machine's kernels do not keep the examples apart.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode; its parameters are read, and no gradient is left in them.
    layout : Layout
        Of the model.
    loss : {"cross_entropy", "mse"}
        Of an example.
    generator : torch.Generator, optional
        What the module draws from the global random state comes from this one's stream.
    """

    def __init__(self, model: nn.Module, layout: Layout, loss: str, generator: torch.Generator | None = None) -> None:
        losses_of(loss)
        self._model, self._layout, self._generator = model, layout, generator
        self._alone = OneByOne(model, layout, loss, generator)
        self._others: list[Way] = [ByOperators(model, layout, loss, generator)]
        for way in (ByLayers, ByChain):
            with suppress(NotApart):
                self._others.append(way(model, layout, loss))
        self._way: Way = self._others.pop()
        self._checked: set[object] = set()

    @property
    def way(self) -> str:
        """How gradients are computed: ``"layers"``, ``"operators"``, or ``"one by one"``."""
        names = {ByChain: "layers", ByLayers: "layers", ByOperators: "operators", OneByOne: "one by one"}
        return names[type(self._way)]

    @property
    def reads_examples(self) -> bool:
        """Whether norms of the examples themselves, known once, spare each step work."""
        return isinstance(self._way, ByChain) and self._way.reads_examples

    def takes_bases(self, units: int, each: int) -> bool:
        """Whether `clipped_sum` takes factors of inputs: of so many persons (a public number), with few rows each."""
        head = self._way.head if isinstance(self._way, ByChain) else None
        if head is None or each < 2:
            return False
        outputs, inputs = head[0].shape
        return 2 * each <= inputs and 0 < units * each * (outputs + inputs + each) <= _ELEMENTS

    def bases(self, x: Tensor, present: Tensor) -> Bases:
        """Factors of persons' inputs x [n * each, ...] that are present [n, each]; a dense head has a bias or none."""
        return Bases.of(x.reshape(*present.shape, -1), present, len(self._layout.names) > 1)

    def clipped_sum(
        self,
        x: Tensor,
        y: Tensor,
        clip: float,
        present: Tensor | None = None,
        *,
        each: int = 1,
        alone: bool = False,
        grid: float = 0.0,
        lengths: Tensor | None = None,
        bases: Bases | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Sum of the examples' gradients, or of persons' mean gradients, each scaled down to a norm of at most `clip`.

        A person's mean is formed, in float64, and that very vector is clipped: images with long gradients that cancel
        give norms by products of norms (or Gram matrices) that are rounding alone. With `bases` its factor is clipped.

        Parameters
        ----------
        x, y : Tensor
            [B, ...], B public unless `alone`.
        clip : float
            C. What is not finite, raises, or has a label that is no class, counts as zero.
        present : Tensor, optional
            [B], False where a row is a dummy; every row is an example by default.
        each : int
            Rows of one person, who has examples in some of them: her mean is over those that are present.
        alone : bool
            Whether to take one example a call, so that nothing follows B.
        grid : float
            Above 0: each clipped vector is cut towards zero to whole steps of it, and the sum is exact.
        lengths : Tensor, optional
            [B] in float64, the squared norms of the examples, where they are known from before.
        bases : Bases, optional
            Of these persons' inputs; where not `takes_bases`, means are formed.

        Returns
        -------
        sum : Tensor
            [d], float64, or with a grid int64: in float32 one example moves a sum of many by more than its own share.
        losses : Tensor
            Of the examples that have one.

        Raises
        ------
        Exception
            If no example has one.
        """
        here = torch.ones(len(x), dtype=torch.bool, device=x.device) if present is None else present
        formed = each > 1 or grid > 0
        spanned = bases is not None and not grid
        checked = self._prepare(x, y, each, formed, spanned) if not alone and len(x) else (self._alone, len(x), False)
        way, width, spanned = checked
        before = lengths, bases if spanned else None
        terms = len(x) if spanned else len(x) / each  # of a sum, each as long as the clip or less
        within = clip * (1 - max(SHRINK, 0 if alone else 2 * terms**2 * 2.0**-53))
        with _without_books(way):
            if width == len(x):
                total, losses, counted = self._part(way, x, y, here, before, within, each, grid)
            else:
                chunks = [[_chunk(t, start, width) for t in (x, y, here)] for start in range(0, len(x), width)]
                parts = [self._part(way, a, b, c, (None, None), within, each, grid) for a, b, c in chunks]
                total = torch.stack([part[0] for part in parts]).sum(0)
                losses, counted = (torch.cat([part[i] for part in parts]) for i in (1, 2))
        if not counted.all():
            losses = losses[counted]
        if not len(losses) and here.any():
            raise self._alone.failure or FieldError("y", f"from {y.min()} to {y.max()}", "must be classes of the model")
        return total, losses

    def _part(
        self, way: Way, x: Tensor, y: Tensor, here: Tensor, before: Known, within: float, each: int, grid: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Clipped sum [d], losses [B], and which examples [B] have one."""
        x, images = laid_out(x), here.view(-1, each).sum(1, keepdim=True).clamp_(min=1) if each > 1 else 1
        known, bases = before
        if known is None and way is self._way and self.reads_examples:
            known = squared_norms(x)
        if not all_finite(x if known is None else known):
            here = here & x.isfinite().reshape(len(x), -1).all(1)
            x, known = laid_out(without(x, ~here)), None if known is None else known.where(here, 0.0)
        gradients, losses, good = way(x, y, here, known)
        if each == 1 and not grid:
            scale, finite = _scales(gradients.squares.sqrt_(), within)
            if finite is not None:
                gradients.drop(~finite)
                good = good & finite
            return gradients.sum(scale.where(good, 0.0)), losses, good
        weights = (good.view(-1, each) / images).to(torch.float64).view(-1)
        if bases is not None:
            head = gradients.head(weights)
            cores = head.cores(weights, bases.rows)
            scale, finite = _scales(torch.linalg.vector_norm(cores.flatten(1), dim=1), within)
            if finite is not None:
                cores, scale = without(cores, ~finite), scale.where(finite, 0.0)
            return gradients.flat(head.spread(cores * scale[:, None, None], bases)), losses, good
        blocks = (self._clipped(means, within, grid) for means in gradients.means(weights, each))
        total = next(blocks)
        for more in blocks:
            total += more
        return total, losses, good

    def _clipped(self, means: list[Tensor], within: float, grid: float) -> Tensor:
        """The sum [d] of vectors that are formed, in parts [U, size] that lie side by side, each clipped."""
        squares = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in means]).square_().sum(0)
        scale, finite = _scales(squares.sqrt_(), within)
        if finite is not None:
            scale, means = scale.where(finite, 0.0), [without(part, ~finite) for part in means]
        if grid:
            return torch.cat([on_grid(part.mul_(scale[:, None]), grid).sum(0) for part in means])
        return torch.cat([scale @ part for part in means])

    def _prepare(self, x: Tensor, y: Tensor, each: int, formed: bool, spanned: bool) -> tuple[Way, int, bool]:
        """The way, chosen by public facts alone and checked here, how long a chunk is, and whether bases are used."""
        while True:
            units = len(x) // each
            spanned = spanned and self.takes_bases(units, each)  # then all are one chunk
            held = each * self._way.held + (self._layout.size if formed else 0)
            width = len(x) if spanned else ceil(units / ceil(units / max(1, _ELEMENTS // held))) * each
            key = (self._way, width, each, formed, spanned, x.shape[1:], x.dtype, y.shape[1:], y.dtype, *_settings())
            if isinstance(self._way, OneByOne) or key in self._checked:
                return self._way, width, spanned
            try:
                if self._keeps_apart(self._way, x, y, width, each, formed, spanned):
                    self._checked.add(key)
                    return self._way, width, spanned
                why = "the kernels of this machine do not keep the rounding of examples apart"
            except NotApart:
                self._way = self._others.pop()
                continue
            except ByValue as error:
                why = str(error)
            except RuntimeError as error:
                why = f"it raises for some values: {error}".partition("\n")[0]
            self._way = self._alone
            _LOG.warning("one example a call, some 200 times slower than a batch: %s", why)

    def _keeps_apart(self, way: Way, x: Tensor, y: Tensor, width: int, each: int, formed: bool, spanned: bool) -> bool:
        """Whether rows, and persons' means, keep their bits at their places among dummies, whatever else is there.

        The weights are random: a server could choose some under which every row is NaN.
        """
        layout, generator = self._layout, torch.Generator().manual_seed(0)
        states = [(g, g.get_state()) for g in (*generators_of(self._model), self._generator) if g is not None]
        weights = layout.read(self._model)
        drawn = [torch.randn(b.shape, generator=generator).reshape(-1) for b in layout.blocks]
        fan = [max(1.0, len(one) / max(1, *b.shape[:1])) for one, b in zip(drawn, layout.blocks, strict=True)]
        random = torch.cat([one / f**0.5 for one, f in zip(drawn, fan, strict=True)])
        shape, floats = (width, *x.shape[1:]), x.is_floating_point()
        dummies = torch.randn(shape, generator=generator) if floats else torch.zeros(shape)
        labels = torch.zeros((width, *y.shape[1:]), dtype=y.dtype, device=y.device)
        some = next(self._model.parameters())

        def bits(examples: Tensor) -> list[Tensor]:
            for g, state in states:
                g.set_state(state)
            with torch.random.fork_rng(devices=[]), _without_books(way):
                torch.default_generator.manual_seed(0)
                examples = laid_out(examples)
                known = squared_norms(examples) if self.reads_examples else None
                found, losses, _ = way(examples, labels, torch.ones(width, dtype=torch.bool, device=x.device), known)
            parts = [_bits(part).view(width // each, -1) for part in (*found.parts(), losses)]
            weights = torch.full((width,), 1 / each, dtype=torch.float64)
            if spanned:  # rows of any values do
                rows = examples.reshape(width // each, each, -1)[:, :, :each].to(torch.float64)
                parts.append(_bits(found.head(weights).cores(weights, rows)).flatten(1))
            elif formed:
                means = [torch.cat(block, 1) for block in found.means(weights, each)]
                parts.append(_bits(torch.cat(means)))
            return parts

        try:
            layout.load(self._model, random.to(weights))
            dummies = as_input(dummies.to(x.dtype), some)
            if not isinstance(way, OneByOne):
                way.prepare(dummies, labels)
            before, units = bits(dummies), width // each
            unit = torch.arange(units, device=x.device)
            place = torch.arange(width, device=x.device)
            for turn, others in enumerate((unit % 2 == 0, unit % 2 == 1, unit < units // 2, unit >= units // 2)):
                values = torch.tensor(_OTHERS if floats else [1], dtype=x.dtype, device=x.device)
                rows = values[(place // 2 + turn) % len(values)].view(-1, *[1] * (x.dim() - 1))
                changed = others.repeat_interleave(each).view(rows.shape)
                after = bits(as_input(torch.where(changed, rows, dummies), some))
                if any(not torch.equal(a[~others], b[~others]) for a, b in zip(before, after, strict=True)):
                    return False
            return True
        finally:
            layout.load(self._model, weights)
            for g, state in states:
                g.set_state(state)


def _settings() -> tuple[object, ...]:
    """What kernels are chosen by beside shapes, or raise by, and others' code may set between two steps."""
    lowered = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    exact = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    return torch.get_num_threads(), lowered, *exact, torch.is_anomaly_enabled(), torch.backends.mkldnn.enabled


def _without_books(way: Way) -> torch.inference_mode:
    """Of tensors for autograd, which a chain does not use: a tenth of a small head's step."""
    return torch.inference_mode(isinstance(way, ByChain))


def laid_out(x: Tensor) -> Tensor:
    """The same values [B, ...] in the one memory order of their shape.

    Kernels are chosen by strides: where a dummy or a record that is not finite left other strides behind, it turned the
    rounding of all other rows (a sum by 13 C).
    """
    if x.dim() == 4 and x.dtype == torch.float32 and x.device.type == "cpu":
        batch, channels, height, width = x.shape
        flat = x.permute(0, 2, 3, 1).contiguous().view(-1)
        return flat.view(batch, height, width, channels).permute(0, 3, 1, 2)
    return x.contiguous().view(-1).view(x.shape)


def _scales(lengths: Tensor, within: float) -> tuple[Tensor, Tensor | None]:
    """Factors [B] that shrink vectors to a length of at most `within`, and which have a length, unless all have."""
    scale = (within / lengths).clamp_(max=1.0)
    return scale, None if all_finite(lengths) else lengths.isfinite()


def _chunk(rows: Tensor, start: int, width: int) -> Tensor:
    """Rows of a chunk in memory of their own, with dummies behind the last ones."""
    part = rows[start : start + width]
    chunk = torch.zeros_like(rows[:width])
    chunk[: len(part)] = part
    return chunk


def _bits(value: Tensor) -> Tensor:
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    copied: Tensor = value.detach().contiguous().clone()
    return copied.view(kinds[value.element_size()])
