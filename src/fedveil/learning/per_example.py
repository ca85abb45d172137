"""Clipped gradients of single examples, summed, so that an example's share is its own to the last bit.

The bits of an example's gradient depend on that example, its place in the batch and public facts. Other examples may be
missing, overflow or raise. This has to be so: a gradient that is only rounding error is still scaled to length C.
Kernels keep that (checked at start-up, on the machine at hand) where the shape is public and nobody changes place. So a
batch has as many rows as its caller says, some of them dummies, and is never computed again in another shape. Later
steps, in float64, need a bound only. Take two sums of n clipped gradients that are equal but for one. By rounding they
differ by less than 2 n^2 2^-53 C more than they should; C is lowered by that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn

from fedveil.clipping import SHRINK
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.chains import ByChain
from fedveil.learning.gradients import (
    Bases,
    Gradients,
    GradientsAndLosses,
    all_finite,
    squared_norms,
    without,
)
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
from fedveil.learning.rules import NotIsolated
from fedveil.learning.traced import ByOperators, ByValue, OneByOne, times_slower
from fedveil.logs import logger
from fedveil.secure import on_grid

_LOG = logger(__name__)
_ELEMENTS = 1 << 24  # numbers of single examples' gradients that are held at once

_KINDS = {ByChain: "layers", ByLayers: "layers", ByOperators: "operators", OneByOne: "one by one"}


@dataclass(frozen=True)
class _Step:
    """Treatment of the gradients of every chunk of a step.

    Attributes
    ----------
    rule : GradientRule
        How gradients are computed.
    within : float
        The length that each vector is clipped to.
    each : int
        Rows of one person.
    grid : float
        As in `PerExample.clipped_sum`.
    """

    rule: GradientRule
    within: float
    each: int
    grid: float


@dataclass(frozen=True)
class _Batch:
    """Rows of a chunk, and what is known of them from before.

    Attributes
    ----------
    x, y : Tensor
        [B, ...].
    here : Tensor
        [B], False where a row is a dummy.
    lengths : Tensor, optional
        [B], squared norms of the examples.
    bases : Bases, optional
        Factors of the persons' inputs.
    blanked : _Batch, optional
        The same rows with their marked coordinates blanked: the gradients' differences to theirs are clipped.
    """

    x: Tensor
    y: Tensor
    here: Tensor
    lengths: Tensor | None = None
    bases: Bases | None = None
    blanked: "_Batch | None" = None

    def chunk(self, start: int, width: int) -> "_Batch":
        """Return so many rows in memory of their own, with dummies behind the last ones."""
        return _Batch(
            _padded(self.x, start, width),
            _padded(self.y, start, width),
            _padded(self.here, start, width),
            blanked=None if self.blanked is None else self.blanked.chunk(start, width),
        )


class PerExample:
    """Sums of clipped per-example gradients of one module.

    Models of known layers alone take the fast rule (`fedveil.learning.layerwise`). Others are a fixed list of
    operators. One example a call is left where there is no such list, or where the machine's kernels do not keep the
    examples apart.

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
    class_weights : sequence of float
        By class: what a clipped gradient is multiplied by, over the largest of them, so that none becomes longer. A
        person's mean weighs her examples so, and is multiplied by the mean of their weights.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        loss: str | LossFunction,
        generator: torch.Generator | None = None,
        class_weights: Sequence[float] = (),
    ) -> None:
        of_example = single(loss)
        self._shares = shares_of(class_weights)
        self._model = model
        self._layout = layout
        self._generator = generator
        self._inputs = Inputs.of(model)
        self._one_by_one = OneByOne(model, layout, of_example, generator)
        self._others: list[GradientRule] = [ByOperators(model, layout, of_example, generator)]
        for kind in (ByLayers, ByChain):
            try:
                self._others.append(kind(model, layout, of_example))
            except NotIsolated as error:
                _LOG.info("%s does not take this model: %s", kind.__name__, error)
        self._rule: GradientRule = self._others.pop()
        self._checked: set[object] = set()

    @property
    def rule_name(self) -> str:
        """Way of computing gradients: ``"layers"``, ``"operators"``, or ``"one by one"``."""
        return _KINDS[type(self._rule)]

    @property
    def reads_examples(self) -> bool:
        """Whether norms of the examples themselves, known once, spare each step work."""
        return reads_examples(self._rule)

    def takes_bases(self, units: int, each: int) -> bool:
        """Return whether `clipped_sum` takes factors of inputs: of so many persons (a public number) with few rows."""
        head = self._rule.head if isinstance(self._rule, ByChain) else None
        if head is None or each < 2:
            return False
        outputs, inputs = head[0].shape
        numbers = units * each * (outputs + inputs + each)
        return 2 * each <= inputs and 0 < numbers <= _ELEMENTS

    def bases(self, x: Tensor, present: Tensor) -> Bases:
        """Factorise persons' inputs x [n * each, ...] that are present [n, each], for a dense head."""
        has_bias = len(self._layout.names) > 1
        return Bases.of(x.reshape(*present.shape, -1), present, has_bias)

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
        blanked: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Sum the examples' gradients, or persons' mean gradients, each scaled down to a norm of at most `clip`.

        A person's mean is formed, in float64, and that very vector is clipped. Where long gradients of images cancel,
        products of norms (or Gram matrices) are rounding alone. With `bases` its factor is clipped.

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
        blanked : tuple of Tensor, optional
            x and y [B, ...] with marked coordinates blanked. The gradients' differences to theirs are formed, row by
            row at equal places, and clipped in place of the gradients (`fedveil.learning.regions`).

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
        formed = each > 1 or grid > 0 or blanked is not None
        rule: GradientRule = self._one_by_one
        width = len(x)
        spanned = False
        if len(x) and not alone:
            rule, form = self._prepare(x, y, each, formed, bases is not None and not grid)
            width = form.width
            spanned = form.spanned
        terms = len(x) if spanned else len(x) / each  # of a sum, each as long as the clip or less
        step = _Step(rule, lowered(clip, 0 if alone else terms), each, grid)
        other = None if blanked is None else _Batch(*blanked, here)
        batch = _Batch(x, y, here, lengths, bases if spanned else None, other)
        with without_autograd(rule):
            if width == len(x):
                total, losses, counted = self._part(step, batch)
            else:
                total, losses, counted = self._in_chunks(step, batch, width)
        if not counted.all():
            losses = losses[counted]
        if not len(losses) and here.any():
            no_class = FieldError(
                "y", f"from {y.min()} to {y.max()}", "must be classes of the model"
            )
            raise self._one_by_one.failure or no_class
        return total, losses

    def _in_chunks(
        self,
        step: _Step,
        batch: _Batch,
        width: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `_part` does of chunks of a batch, added and joined."""
        sums: list[Tensor] = []
        losses: list[Tensor] = []
        counted: list[Tensor] = []
        for start in range(0, len(batch.x), width):
            total, own_losses, own_counted = self._part(step, batch.chunk(start, width))
            sums.append(total)
            losses.append(own_losses)
            counted.append(own_counted)
        return torch.stack(sums).sum(0), torch.cat(losses), torch.cat(counted)

    def _part(self, step: _Step, batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the clipped sum [d], losses [B], and which examples [B] have one."""
        drawing = None if self._generator is None else self._generator.get_state()
        gradients, losses, good = self._gradients(step, batch)
        blank_gradients: Gradients | None = None
        if batch.blanked is not None:
            if self._generator is not None and drawing is not None:
                self._generator.set_state(drawing)  # the same masks of dropout for both
            blank_gradients, _, blank_good = self._gradients(step, batch.blanked)
            good = good & blank_good
        each = step.each
        if self._shares is None:
            shares = torch.ones(len(batch.x), dtype=torch.float64, device=batch.x.device)
        else:
            shares = share_of_rows(self._shares, batch.y)
        if each == 1 and not step.grid and blank_gradients is None:
            total, good = _sum_of_examples(gradients, step.within, good, shares)
            return total, losses, good
        here, good_rows = batch.here.view(-1, each), good.view(-1, each)
        if self._shares is None:
            images = here.sum(1, keepdim=True).clamp_(min=1)
            weights, own = (good_rows / images).to(torch.float64).view(-1), shares[::each]
        else:
            weights, own = _weights_of_persons(shares, here, good_rows)
        if batch.bases is not None:
            return _sum_of_spanned(gradients, weights, batch.bases, step.within, own), losses, good
        formed = gradients.means(weights, each)
        if blank_gradients is not None:
            formed = _differences(formed, blank_gradients.means(weights, each))
        return _sum_of_formed(formed, step, own), losses, good

    def _gradients(self, step: _Step, batch: _Batch) -> GradientsAndLosses:
        """Return gradients, losses [B], and which examples [B] have both."""
        x, here, lengths = self._without_infinities(step, batch)
        return step.rule(x, batch.y, here, lengths)

    def _without_infinities(
        self,
        step: _Step,
        batch: _Batch,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return examples in their memory order, which are there, and their lengths if the rule reads them."""
        x = self._inputs.in_memory_order(batch.x)
        here = batch.here
        lengths = batch.lengths
        if lengths is None and step.rule is self._rule and self.reads_examples:
            lengths = squared_norms(x)
        if all_finite(x if lengths is None else lengths):
            return x, here, lengths
        here = here & x.isfinite().reshape(len(x), -1).all(1)
        x = self._inputs.in_memory_order(without(x, ~here))
        if lengths is not None:
            lengths = lengths.where(here, 0.0)
        return x, here, lengths

    def _prepare(
        self,
        x: Tensor,
        y: Tensor,
        each: int,
        formed: bool,
        spanned: bool,
    ) -> tuple[GradientRule, BatchForm]:
        """Choose, by public facts alone, a rule that this machine's kernels pass the check with, and a chunk's form."""
        while True:
            form = self._form(len(x), each, formed, spanned)
            if isinstance(self._rule, OneByOne):
                return self._rule, form
            key = (self._rule, form, x.shape[1:], x.dtype, y.shape[1:], y.dtype, *settings())
            if key in self._checked:
                return self._rule, form
            try:
                if rows_are_isolated(
                    self._rule, self._model, self._layout, x, y, form, self._generator
                ):
                    self._checked.add(key)
                    return self._rule, form
                reason = "the kernels of this machine do not keep the rounding of examples apart"
            except NotIsolated:
                self._rule = self._others.pop()
                continue
            except ByValue as error:
                reason = str(error)
            except RuntimeError as error:
                reason = f"it raises for some values: {error}".partition("\n")[0]
            self._go_one_by_one(reason, x, y)

    def warn_if_slow(self, x: Tensor, y: Tensor) -> None:
        """Say before the first batch, on made-up examples x and y [N, ...], where a model goes one example a call.

        What a machine's kernels do shows later, in batches of the shape to come.
        """
        if isinstance(self._rule, ByOperators):
            try:
                self._rule.trace_forward(x)
            except ByValue as error:
                self._go_one_by_one(str(error), x, y)

    def _go_one_by_one(self, reason: str, x: Tensor, y: Tensor) -> None:
        """Take one example a call from now on, and say why, and how much slower it is."""
        self._rule = self._one_by_one
        own = self._generator
        before = None if own is None else own.get_state()
        with torch.random.fork_rng(devices=[]):
            times = times_slower(self._model, x, y, self._one_by_one.loss)
        if (
            own is not None and before is not None
        ):  # a trial moves no stream: a run that goes on would draw otherwise
            own.set_state(before)
        slower = "much slower" if times is None else f"about {times:.0f} times slower"
        _LOG.warning("one example a call, %s than a batch: %s", slower, reason)

    def _form(self, rows: int, each: int, formed: bool, spanned: bool) -> BatchForm:
        """Return the form of a chunk: as many whole persons as memory holds, of so many rows each."""
        units = rows // each
        if spanned and self.takes_bases(units, each):
            return BatchForm(rows, each, formed, spanned=True)  # all are one chunk
        numbers = each * self._rule.numbers_an_example
        if formed:
            numbers += self._layout.size
        at_once = max(1, _ELEMENTS // numbers)
        chunks = ceil(units / at_once)
        return BatchForm(ceil(units / chunks) * each, each, formed, spanned=False)


def lowered(clip: float, terms: float) -> float:
    """Return the length to clip to, so that rounding a float64 sum of so many terms moves nobody by more than the clip.

    From some 67 million terms on nothing is left of it: a step is noise alone.
    """
    return clip * max(0.0, 1 - max(SHRINK, 2 * terms**2 * 2.0**-53))


def _weights_of_persons(
    shares: Tensor,
    here: Tensor,
    good: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the weights [B] of examples in their persons' means, and the shares [U] of these.

    A mean weighs a person's examples by their shares [B], and has the mean of these as its own. Of examples that are
    there, [U, each], those that are not good count as zero.
    """
    given = shares.view(here.shape) * here
    of_person = given.sum(1, keepdim=True)
    weights = given * good / of_person.where(of_person > 0, 1.0)
    images = here.sum(1, keepdim=True).clamp_(min=1)
    return weights.view(-1), (of_person / images)[:, 0]


def _sum_of_examples(
    gradients: Gradients,
    within: float,
    good: Tensor,
    shares: Tensor,
) -> tuple[Tensor, Tensor]:
    """Sum shares [B] of the clipped gradients [d] of the good examples [B] that have a length; return which do, too."""
    scale, finite = _scales(gradients.squares.sqrt_(), within)
    if finite is not None:
        gradients.drop(~finite)
        good = good & finite
    return gradients.sum((scale * shares).where(good, 0.0)), good


def _sum_of_spanned(
    gradients: Gradients,
    weights: Tensor,
    bases: Bases,
    within: float,
    shares: Tensor,
) -> Tensor:
    """Sum shares [U] of persons' mean gradients [d], whose factors are clipped."""
    head = gradients.head(weights)
    cores = head.cores(weights, bases.rows)
    scale, finite = _scales(torch.linalg.vector_norm(cores.flatten(1), dim=1), within)
    if finite is not None:
        cores = without(cores, ~finite)
        scale = scale.where(finite, 0.0)
    clipped = cores * (scale * shares)[:, None, None]
    return gradients.flat(head.spread(clipped, bases))


def _differences(
    full: Iterator[list[Tensor]],
    blanked: Iterator[list[Tensor]],
) -> Iterator[list[Tensor]]:
    """Form the differences of vectors [d], in blocks of parts [U, size] as they are given.

    The very difference is formed: its length from products of lengths would be rounding where both are long.
    """
    for own, other in zip(full, blanked, strict=True):
        yield [part.sub_(blank) for part, blank in zip(own, other, strict=True)]


def _sum_of_formed(
    blocks: Iterator[list[Tensor]],
    step: _Step,
    shares: Tensor,
) -> Tensor:
    """Sum shares [U] of vectors [d], formed and clipped in blocks."""
    means = next(blocks)
    done = len(means[0])
    total = _clipped(means, step, shares[:done])
    for means in blocks:
        persons = len(means[0])
        total += _clipped(means, step, shares[done : done + persons])
        done += persons
    return total


def _clipped(means: list[Tensor], step: _Step, shares: Tensor) -> Tensor:
    """Sum shares [U] of vectors [d] that are formed, in parts [U, size] that lie side by side, each clipped."""
    lengths = torch.stack([torch.linalg.vector_norm(part, dim=1) for part in means])
    scale, finite = _scales(lengths.square_().sum(0).sqrt_(), step.within)
    if finite is not None:
        scale = scale.where(finite, 0.0)
        means = [without(part, ~finite) for part in means]
    scale = scale * shares
    if not step.grid:
        return torch.cat([scale @ part for part in means])
    clipped = [part.mul_(scale[:, None]) for part in means]
    return torch.cat([on_grid(part, step.grid).sum(0) for part in clipped])


def shares_of(class_weights: Sequence[float]) -> Tensor | None:
    """Return weights [K] over the largest of them, so that each is at most 1; None where there are none."""
    if not len(class_weights):
        return None
    weights = torch.tensor(list(class_weights), dtype=torch.float64)
    return weights / weights.max()


def share_of_rows(shares: Tensor, y: Tensor) -> Tensor:
    """Return the share [B] of each label [B]; 0 where it is no class.

    Raises
    ------
    FieldError
        If labels are not one class an example.
    """
    if y.is_floating_point() or y.dim() != 1:
        raise FieldError(
            "class_weights", tuple(y.shape), "are of one class an example: leave them out"
        )
    known = (y >= 0) & (y < len(shares))
    return shares.to(y.device)[y.clamp(0, len(shares) - 1)].where(known, 0.0)


def _scales(lengths: Tensor, within: float) -> tuple[Tensor, Tensor | None]:
    """Return factors [B] that shrink vectors to a length of at most `within`, and which have a length, unless all."""
    scale = (within / lengths).clamp_(max=1.0)
    return scale, None if all_finite(lengths) else lengths.isfinite()


def _padded(rows: Tensor, start: int, width: int) -> Tensor:
    """Return rows of a chunk in memory of their own, with dummies behind the last ones."""
    part = rows[start : start + width]
    chunk = torch.zeros_like(rows[:width])
    chunk[: len(part)] = part
    return chunk
