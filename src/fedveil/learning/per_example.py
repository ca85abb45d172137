"""Sums of clipped gradients of single examples. Each example's part of a sum depends on that example alone, bit by bit.

The bits of an example's gradient depend only on that example, its place in the batch and public facts. This holds even
if other examples are missing, overflow or raise errors. Otherwise one example could change another's gradient, and a
gradient that is only rounding error is still scaled to length C. Kernels guarantee this (checked at start-up on the
machine) if the shape is public and no example changes its place. So the caller sets the number of rows of a batch, some
of them dummies, and the batch is never computed again in another shape. Later steps are in float64, and need only a
bound. Consider two sums of n clipped gradients that differ in one gradient. Rounding adds less than 2 n^2 2^-53 C to
their difference; C is lowered by that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn

from fedveil.clipping import SHRINK
from fedveil.errors import FieldError, lacks_memory
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
    """Settings of a step that are the same for all its chunks.

    Attributes
    ----------
    rule : GradientRule
        Rule that computes gradients.
    within : float
        Length to which each vector is clipped.
    each : int
        Number of rows of one person.
    grid : float
        Grid, as in `PerExample.clipped_sum`.
    """

    rule: GradientRule
    within: float
    each: int
    grid: float


@dataclass(frozen=True)
class _Batch:
    """Rows of a chunk, with values that were computed from them before.

    Attributes
    ----------
    x, y : Tensor
        [B, ...], examples and labels.
    here : Tensor
        [B], False for a dummy.
    lengths : Tensor, optional
        [B], squared norms of the examples.
    bases : Bases, optional
        Factors of the persons' inputs.
    blanked : _Batch, optional
        Same rows with their marked coordinates blanked; the differences of both gradients are then clipped.
    """

    x: Tensor
    y: Tensor
    here: Tensor
    lengths: Tensor | None = None
    bases: Bases | None = None
    blanked: "_Batch | None" = None

    def chunk(self, start: int, width: int) -> "_Batch":
        """Copy `width` rows from `start` on to new memory, filled up with dummies."""
        return _Batch(
            _padded(self.x, start, width),
            _padded(self.y, start, width),
            _padded(self.here, start, width),
            blanked=None if self.blanked is None else self.blanked.chunk(start, width),
        )


class PerExample:
    """Clipped sums of a module's gradients of single examples: the core of DP-SGD.

    Models of known layers take the fast rule (`fedveil.learning.layerwise`). Other models are traced to a fixed list of
    operators. If there is no such list, or the machine's kernels do not keep examples apart, each example has its own
    call.

    Parameters
    ----------
    model : torch.nn.Module
        Module in training mode; its parameters are only read, and get no gradients.
    layout : Layout
        Layout of the model.
    loss : {"cross_entropy", "mse"} or callable
        Loss of an example; a callable is a PyTorch loss that is a mean over examples.
    generator : torch.Generator, optional
        Source of the random numbers that the module takes from PyTorch's global state.
    class_weights : sequence of float
        Weight of each class. A clipped gradient is multiplied by its weight over the largest weight, so it never
        becomes longer. A person's mean weighs her examples in this way, and is multiplied by the mean of their weights.
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
        self._said: set[object] = set()

    @property
    def rule_name(self) -> str:
        """Name of the gradient rule: ``"layers"``, ``"operators"``, or ``"one by one"``."""
        return _KINDS[type(self._rule)]

    @property
    def reads_examples(self) -> bool:
        """Whether squared norms of the examples, computed once (`lengths`), save work in each step."""
        return reads_examples(self._rule)

    def takes_bases(self, units: int, each: int) -> bool:
        """Whether `clipped_sum` uses factors of inputs, for `units` persons (a public number) of `each` rows."""
        head = self._rule.head if isinstance(self._rule, ByChain) else None
        if head is None or each < 2:
            return False
        outputs, inputs = head[0].shape
        numbers = units * each * (outputs + inputs + each)
        return 2 * each <= inputs and 0 < numbers <= _ELEMENTS

    def bases(self, x: Tensor, present: Tensor) -> Bases:
        """Factorise the persons' inputs x [n * each, ...] that are present [n, each], for a model of one dense layer."""
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

        A person's mean is formed in float64, and that vector is clipped. If long gradients of images cancel, a length
        from products of norms (or a Gram matrix) would be only rounding error. With `bases` the mean's factor is
        clipped instead.

        Parameters
        ----------
        x, y : Tensor
            [B, ...], examples and labels; B is public unless `alone`.
        clip : float
            C. An example counts as zero if its gradient is not finite, it raises an error, or its label is no class.
        present : Tensor, optional
            [B], False for a dummy; by default every row is an example.
        each : int
            Number of rows of one person; her mean is over those that are present.
        alone : bool
            Whether each example has its own call, so that nothing depends on B.
        grid : float
            If above 0: each clipped vector is rounded towards zero to multiples of it, and the sum is exact.
        lengths : Tensor, optional
            [B] in float64, squared norms of the examples if they are known already.
        bases : Bases, optional
            Factors of these persons' inputs; ignored unless `takes_bases`.
        blanked : tuple of Tensor, optional
            x and y [B, ...] with marked coordinates blanked. The difference of both gradients is formed row by row, and
            clipped in place of the gradient (`fedveil.learning.regions`).

        Returns
        -------
        sum : Tensor
            [d], float64, or int64 with a grid. In float32 one example could move a sum of many by more than its share.
        losses : Tensor
            Losses of the examples that have one.

        Raises
        ------
        Exception
            If no example has a loss.
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
        terms = (
            len(x) if spanned else len(x) / each
        )  # terms of a sum, each at most as long as the clip
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
        """Apply `_part` to chunks of a batch; add the sums, and join losses and marks."""
        total, own_losses, own_counted = self._part(step, batch.chunk(0, width))
        losses = [own_losses]
        counted = [own_counted]
        for start in range(width, len(batch.x), width):
            part, own_losses, own_counted = self._part(step, batch.chunk(start, width))
            total += part  # at once, as a list of all parts is many times as large as the model
            losses.append(own_losses)
            counted.append(own_counted)
        return total, torch.cat(losses), torch.cat(counted)

    def _part(self, step: _Step, batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the clipped sum [d], losses [B], and a bool [B] that marks the examples with finite results."""
        drawing = None if self._generator is None else self._generator.get_state()
        gradients, losses, good = self._gradients(step, batch)
        blank_gradients: Gradients | None = None
        if batch.blanked is not None:
            if self._generator is not None and drawing is not None:
                self._generator.set_state(drawing)  # the same dropout masks for both
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
        """Return gradients, losses [B], and a bool [B] that marks the examples with finite results."""
        x, here, lengths = self._without_infinities(step, batch)
        return step.rule(x, batch.y, here, lengths)

    def _without_infinities(
        self,
        step: _Step,
        batch: _Batch,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return examples in the fixed memory order, a bool [B] of those present and finite, and squared norms if used."""
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
        """Choose a rule that passes the check of this machine's kernels, and the form of a chunk, from public facts alone."""
        while True:
            form = self._form(len(x), each, formed, spanned)
            if isinstance(self._rule, OneByOne):
                return self._rule, form
            self._say_micro_batches(len(x), form)
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
                what = "it raises for some values"
                if lacks_memory(error):
                    what = f"a batch of {form.width} does not fit into memory"
                reason = f"{what}: {error}".partition("\n")[0]
            self._go_one_by_one(reason, x, y)

    def warn_if_slow(self, x: Tensor, y: Tensor) -> None:
        """Try the model on made-up x and y [N, ...], and warn if it needs one call for each example.

        A failure of the machine's kernels shows only later, in batches of their real shape.
        """
        if isinstance(self._rule, ByOperators):
            try:
                self._rule.trace_forward(x)
            except ByValue as error:
                self._go_one_by_one(str(error), x, y)

    def say_micro_batches(self, rows: int, each: int, formed: bool) -> None:
        """Log the size and number of micro-batches of a step of this many rows (a public number), if it has several.

        Parameters
        ----------
        rows, each
            Number of rows of a step, and of each person.
        formed : bool
            Whether whole vectors are formed, as for persons, regions and secure sums.
        """
        if rows and not isinstance(self._rule, OneByOne):
            self._say_micro_batches(rows, self._form(rows, each, formed, spanned=not formed))

    def _say_micro_batches(self, rows: int, form: BatchForm) -> None:
        """Log the micro-batches of a form once, if there are several."""
        if form.width >= rows or (rows, form) in self._said:
            return
        self._said.add((rows, form))
        number = ceil(rows / form.width)
        _LOG.warning(
            "a step of %d places goes in %d micro-batches of %d, so that the gradients of single examples fit into memory",
            rows,
            number,
            form.width,
        )

    def _go_one_by_one(self, reason: str, x: Tensor, y: Tensor) -> None:
        """Switch to one call for each example; log the reason and the slowdown."""
        self._rule = self._one_by_one
        own = self._generator
        before = None if own is None else own.get_state()
        with torch.random.fork_rng(devices=[]):
            times = times_slower(self._model, x, y, self._one_by_one.loss)
        if (
            own is not None and before is not None
        ):  # a trial must not move a stream, as a resumed run would then draw other numbers
            own.set_state(before)
        _LOG.warning("one example a call, %s: %s", _slowdown(times), reason)

    def _form(self, rows: int, each: int, formed: bool, spanned: bool) -> BatchForm:
        """Return the form of a chunk: as many persons, of `each` rows, as fit into memory."""
        units = rows // each
        if spanned and self.takes_bases(units, each):
            return BatchForm(rows, each, formed, spanned=True)  # all rows are one chunk
        numbers = each * self._rule.numbers_an_example
        if formed:
            numbers += self._layout.size
        at_once = max(1, _ELEMENTS // numbers)
        chunks = ceil(units / at_once)
        return BatchForm(ceil(units / chunks) * each, each, formed, spanned=False)


def _slowdown(times: float | None) -> str:
    """Return in words how much longer single examples take than a batch; None if that was not measured."""
    if times is None:
        return "much slower than a batch"
    if times < 1.5:
        return "about as fast as a batch"
    return f"about {times:.0f} times slower than a batch"


def lowered(clip: float, terms: float) -> float:
    """Lower a clip by the rounding error of a float64 sum of `terms` terms, so that one unit moves the sum by at most `clip`.

    From about 67 million terms on the result is 0, and a step is noise alone.
    """
    return clip * max(0.0, 1 - max(SHRINK, 2 * terms**2 * 2.0**-53))


def _weights_of_persons(
    shares: Tensor,
    here: Tensor,
    good: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the weight [B] of each example in its person's mean, and the factor [U] of each person's mean.

    A person's mean weighs her examples by their class weights `shares` [B]; its factor is the mean of these. Examples
    that are present (`here`, [U, each]) but not `good` count as zero.
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
    """Return the sum [d] of the clipped gradients of good examples [B], times `shares` [B]; also which had a finite length."""
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
    """Return the sum [d] of persons' mean gradients times `shares` [U]; each mean's factor is clipped (`Bases`)."""
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
    """Yield the differences of two streams of gradients, in blocks of U gradients, one part [U, size] for each array.

    The difference itself is formed. A length computed without it would be only rounding error if both gradients are
    long.
    """
    for own, other in zip(full, blanked, strict=True):
        yield [part.sub_(blank) for part, blank in zip(own, other, strict=True)]


def _sum_of_formed(
    blocks: Iterator[list[Tensor]],
    step: _Step,
    shares: Tensor,
) -> Tensor:
    """Return the sum [d] of clipped vectors times `shares` [U]; vectors are formed and clipped block by block."""
    means = next(blocks)
    done = len(means[0])
    total = _clipped(means, step, shares[:done])
    for means in blocks:
        persons = len(means[0])
        total += _clipped(means, step, shares[done : done + persons])
        done += persons
    return total


def _clipped(means: list[Tensor], step: _Step, shares: Tensor) -> Tensor:
    """Return the sum [d] of clipped vectors times `shares` [U]; the vectors are given as parts [U, size]."""
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
    """Return class weights [K] divided by the largest, so that each is at most 1; None without weights."""
    if not len(class_weights):
        return None
    weights = torch.tensor(list(class_weights), dtype=torch.float64)
    return weights / weights.max()


def share_of_rows(shares: Tensor, y: Tensor) -> Tensor:
    """Return the scaled class weight [B] of each label [B]; 0 for a label that is no class.

    Raises
    ------
    FieldError
        If labels are not one class for each example.
    """
    if y.is_floating_point() or y.dim() != 1:
        raise FieldError(
            "class_weights", tuple(y.shape), "are of one class an example: leave them out"
        )
    known = (y >= 0) & (y < len(shares))
    return shares.to(y.device)[y.clamp(0, len(shares) - 1)].where(known, 0.0)


def _scales(lengths: Tensor, within: float) -> tuple[Tensor, Tensor | None]:
    """Return factors [B] that shrink vectors to length `within`, and a bool [B] of finite lengths (None if all are)."""
    scale = (within / lengths).clamp_(max=1.0)
    return scale, None if all_finite(lengths) else lengths.isfinite()


def _padded(rows: Tensor, start: int, width: int) -> Tensor:
    """Copy `width` rows from `start` on to new memory, filled up with zeros."""
    part = rows[start : start + width]
    chunk = torch.zeros_like(rows[:width])
    chunk[: len(part)] = part
    return chunk
