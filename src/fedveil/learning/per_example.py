"""Clipped gradients of single examples, summed, so that an example's share is its own to the last bit.

The bits of an example's gradient depend on that example, its place in the batch and public facts, whatever else is in
the batch, is missing, overflows or raises. They have to: a gradient that is only rounding error is still scaled to
length C. Kernels keep that (checked at start-up, on the machine at hand) where the shape is public and nobody changes
place. So a batch has as many rows as its caller says, some of them dummies, and is never computed again in another
shape. What comes after, in float64, is only bounded: two sums of n clipped gradients of which all but one are equal
differ, by rounding, by less than 2 n^2 2^-53 C more than they should, and C is lowered by that.
"""

from math import ceil

import torch
from torch import Tensor, nn

from fedveil.clipping import SHRINK
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.chains import ByChain
from fedveil.learning.gradients import Bases, all_finite, squared_norms, without
from fedveil.learning.inputs import Inputs
from fedveil.learning.layerwise import ByLayers
from fedveil.learning.losses import LossFunction, single
from fedveil.learning.row_isolation import (
    BatchForm,
    GradientRule,
    reads_examples,
    rows_are_isolated,
    settings,
    without_autograd,
)
from fedveil.learning.rules import NotApart
from fedveil.learning.traced import ByOperators, ByValue, OneByOne, times_slower
from fedveil.logs import logger
from fedveil.secure import on_grid

_LOG = logger(__name__)
_ELEMENTS = 1 << 24  # numbers of single examples' gradients that are held at once

Known = tuple[Tensor | None, Bases | None]  # lengths and bases, from before


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
    loss : {"cross_entropy", "mse"} or callable
        Of an example; a loss of PyTorch's that is a mean over examples.
    generator : torch.Generator, optional
        What the module draws from the global random state comes from this one's stream.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        loss: str | LossFunction,
        generator: torch.Generator | None = None,
    ) -> None:
        loss = single(loss)
        self._model, self._layout, self._generator = model, layout, generator
        self._inputs = Inputs.of(model)
        self._alone = OneByOne(model, layout, loss, generator)
        self._others: list[GradientRule] = [ByOperators(model, layout, loss, generator)]
        for kind in (ByLayers, ByChain):
            try:
                self._others.append(kind(model, layout, loss))
            except NotApart as error:
                _LOG.info("%s does not take this model: %s", kind.__name__, error)
        self._rule: GradientRule = self._others.pop()
        self._checked: set[object] = set()

    @property
    def way(self) -> str:
        """How gradients are computed: ``"layers"``, ``"operators"``, or ``"one by one"``."""
        names = {ByChain: "layers", ByLayers: "layers", ByOperators: "operators", OneByOne: "one by one"}
        return names[type(self._rule)]

    @property
    def reads_examples(self) -> bool:
        """Whether norms of the examples themselves, known once, spare each step work."""
        return reads_examples(self._rule)

    def takes_bases(self, units: int, each: int) -> bool:
        """Whether `clipped_sum` takes factors of inputs: of so many persons (a public number), with few rows each."""
        head = self._rule.head if isinstance(self._rule, ByChain) else None
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
        rule: GradientRule = self._alone
        width, spanned = len(x), False
        if len(x) and not alone:
            rule, form = self._prepare(x, y, each, formed, bases is not None and not grid)
            width, spanned = form.width, form.spanned
        before = lengths, bases if spanned else None
        terms = len(x) if spanned else len(x) / each  # of a sum, each as long as the clip or less
        within = lowered(clip, 0 if alone else terms)
        with without_autograd(rule):
            if width == len(x):
                total, losses, counted = self._part(rule, x, y, here, before, within, each, grid)
            else:
                chunks = [[_chunk(t, start, width) for t in (x, y, here)] for start in range(0, len(x), width)]
                parts = [self._part(rule, a, b, c, (None, None), within, each, grid) for a, b, c in chunks]
                total = torch.stack([part[0] for part in parts]).sum(0)
                losses, counted = (torch.cat([part[i] for part in parts]) for i in (1, 2))
        if not counted.all():
            losses = losses[counted]
        if not len(losses) and here.any():
            raise self._alone.failure or FieldError("y", f"from {y.min()} to {y.max()}", "must be classes of the model")
        return total, losses

    def _part(
        self,
        rule: GradientRule,
        x: Tensor,
        y: Tensor,
        here: Tensor,
        before: Known,
        within: float,
        each: int,
        grid: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Clipped sum [d], losses [B], and which examples [B] have one."""
        x = self._inputs.in_memory_order(x)
        images: Tensor | int = 1
        if each > 1:
            images = here.view(-1, each).sum(1, keepdim=True).clamp_(min=1)
        known, bases = before
        if known is None and rule is self._rule and self.reads_examples:
            known = squared_norms(x)
        if not all_finite(x if known is None else known):
            here = here & x.isfinite().reshape(len(x), -1).all(1)
            x = self._inputs.in_memory_order(without(x, ~here))
            known = None if known is None else known.where(here, 0.0)
        gradients, losses, good = rule(x, y, here, known)
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

    def _prepare(self, x: Tensor, y: Tensor, each: int, formed: bool, spanned: bool) -> tuple[GradientRule, BatchForm]:
        """Choose, by public facts alone, a rule that this machine's kernels pass the check with, and a chunk's form."""
        while True:
            form = self._form(len(x), each, formed, spanned)
            if isinstance(self._rule, OneByOne):
                return self._rule, form
            key = (self._rule, form, x.shape[1:], x.dtype, y.shape[1:], y.dtype, *settings())
            if key in self._checked:
                return self._rule, form
            try:
                if rows_are_isolated(self._rule, self._model, self._layout, x, y, form, self._generator):
                    self._checked.add(key)
                    return self._rule, form
                why = "the kernels of this machine do not keep the rounding of examples apart"
            except NotApart:
                self._rule = self._others.pop()
                continue
            except ByValue as error:
                why = str(error)
            except RuntimeError as error:
                why = f"it raises for some values: {error}".partition("\n")[0]
            self._go_alone(why, x, y)

    def foresee(self, x: Tensor, y: Tensor) -> None:
        """Say before the first batch, on made-up examples x and y [N, ...], where a model goes one example a call.

        What a machine's kernels do shows later, in batches of the shape to come.
        """
        if isinstance(self._rule, ByOperators):
            try:
                self._rule.foresee(x)
            except ByValue as error:
                self._go_alone(str(error), x, y)

    def _go_alone(self, why: str, x: Tensor, y: Tensor) -> None:
        """Take one example a call from now on, and say why, and how much slower it is."""
        self._rule = self._alone
        with torch.random.fork_rng(devices=[]):
            times = times_slower(self._model, x, y, self._alone.loss)
        slower = "much slower" if times is None else f"about {times:.0f} times slower"
        _LOG.warning("one example a call, %s than a batch: %s", slower, why)

    def _form(self, rows: int, each: int, formed: bool, spanned: bool) -> BatchForm:
        """The form of a chunk: as many whole persons as memory holds, of so many rows each."""
        units = rows // each
        if spanned and self.takes_bases(units, each):
            return BatchForm(rows, each, formed, spanned=True)  # all are one chunk
        held = each * self._rule.held + (self._layout.size if formed else 0)
        at_once = max(1, _ELEMENTS // held)
        chunks = ceil(units / at_once)
        return BatchForm(ceil(units / chunks) * each, each, formed, spanned=False)


def lowered(clip: float, terms: float) -> float:
    """The length to clip to, so that rounding a float64 sum of so many terms moves nobody by more than the clip.

    From some 67 million terms on nothing is left of it: a step is noise alone.
    """
    return clip * max(0.0, 1 - max(SHRINK, 2 * terms**2 * 2.0**-53))


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
