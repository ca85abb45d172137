"""The updates of a round, computed block of columns by block of columns while the received models stay as they are."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedveil.aggregation.base import Aggregator, weighted_sum
from fedveil.clipping import blocks_of, clip, factors, norms, parts_of, require_finite
from fedveil.errors import FieldError


class Updates:
    """What clients changed: received models minus the model they started from, possibly clipped.

    Only a rule or a distance that has to see all coordinates at once makes the whole stack [n, d].

    Parameters
    ----------
    models : sequence of Tensor
        n received models [d].
    start : Tensor
        [d], the broadcast model.
    """

    def __init__(self, models: Sequence[Tensor], start: Tensor) -> None:
        self._models, self._start = models, start
        self._bound: float | None = None
        self._before: Updates | None = None  # clipping; never itself: a cycle would keep models alive

    def __len__(self) -> int:
        return len(self._models)

    def clipped(self, bound: float) -> "Updates":
        """The same, each scaled down to a norm of at most `bound`."""
        result = Updates(self._models, self._start)
        result._bound, result._before, result.lengths = bound, self, self.lengths
        return result

    @cached_property
    def stack(self) -> Tensor:
        """All of them, [n, d]."""
        return self._columns(slice(None))

    @cached_property
    def lengths(self) -> Tensor:
        """Norms [n] before clipping, float64."""
        if self._fits:
            return norms(self._wide)
        width = blocks_of(len(self), len(self._start))[0].stop
        parts = torch.empty(-(-len(self._start) // width), len(self), dtype=torch.float64)
        for some, columns, part in parts_of(self._models, self._start, width):
            for i, block in enumerate(torch.split(part, width, 1), columns.start // width):
                torch.linalg.vector_norm(block, dim=-1, out=parts[i, some])
        return require_finite(parts.square_().sum(0).sqrt_())

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Columns and the updates [n, w] there, in order."""
        if "stack" in self.__dict__ or self._fits:
            yield slice(None), self.stack
            return
        for columns in blocks_of(len(self._models), len(self._start)):
            yield columns, self._columns(columns)

    def reduce(self, rule: Aggregator, weights: Tensor, cohort: int | None = None) -> Tensor:
        """The rule's update [d] (float64); where a `cohort` is planned, clients without a reply count as zero updates.

        Raises
        ------
        FieldError
            If there are more replies than planned.
        """
        size = len(self) if cohort is None else cohort
        _require_room(len(self), size)
        if not rule.columnwise:
            return rule.reduce(padded(self.stack, size), weights)
        if rule.linear:  # absent clients add nothing, and clipping is a factor, better applied in float64
            weights = weights[: len(self)]
            weights = weights if self._bound is None else weights * factors(self.lengths, self._bound)
            if self._fits:
                return rule.reduce(self._unclipped._wide, weights)
            return weighted_sum(self._models, weights, self._start)
        total = torch.empty(len(self._start), dtype=torch.float64)
        for columns, block in self.blocks():
            total[columns] = rule.reduce(padded(block, size), weights)
        return total

    @property
    def _unclipped(self) -> "Updates":
        return self if self._before is None else self._before

    @property
    def _fits(self) -> bool:
        """Whether the stack is one block."""
        return len(blocks_of(len(self._models), len(self._start))) == 1

    @cached_property
    def _wide(self) -> Tensor:
        """The stack in float64, converted once for norms and sum."""
        return self.stack.to(torch.float64)

    def _columns(self, columns: slice) -> Tensor:
        if "stack" in self._unclipped.__dict__:
            block = self._unclipped.stack[:, columns]
        else:
            whole = columns == slice(None)  # then nothing is cut: cutting twenty models takes as long as adding them
            models = list(self._models) if whole else [model[columns] for model in self._models]
            block = torch.stack(models).sub_(self._start[columns])
        return block if self._bound is None else clip(block, self._bound, lengths=self.lengths)


def padded(rows: Tensor, cohort: int) -> Tensor:
    """Zeros for planned clients that did not reply; of updates [n, d] or weights [n].

    Raises
    ------
    FieldError
        If there are more rows than planned.
    """
    _require_room(len(rows), cohort)
    if len(rows) == cohort:
        return rows
    return torch.cat([rows, rows.new_zeros(cohort - len(rows), *rows.shape[1:])])


def _require_room(replies: int, cohort: int) -> None:
    if replies > cohort:
        raise FieldError("cohort", cohort, f"is less than the number of replies ({replies})")
