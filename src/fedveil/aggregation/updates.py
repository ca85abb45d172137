"""The updates of a round, computed block of columns by block of columns while the received models stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedveil.aggregation.base import Aggregator
from fedveil.clipping import blocks_of, clip, norms
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

    def __len__(self) -> int:
        """How many."""
        return len(self._models)

    def clipped(self, bound: float) -> Updates:
        """The same, each scaled down to a norm of at most `bound`."""
        result = Updates(self._models, self._start)
        result._bound, result.lengths = bound, self.lengths
        if "stack" in self.__dict__:
            result.stack = clip(self.stack, bound, lengths=self.lengths)
        return result

    @cached_property
    def stack(self) -> Tensor:
        """All of them, [n, d]."""
        return self._columns(slice(None))

    @cached_property
    def lengths(self) -> Tensor:
        """Norms [n] before clipping, float64."""
        return torch.stack([norms(block).square() for _, block in self.blocks()]).sum(0).sqrt()

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Columns and the updates [n, w] there, in order."""
        if "stack" in self.__dict__:
            yield slice(None), self.stack
            return
        slices = blocks_of(len(self._models), len(self._start))
        if len(slices) == 1:
            yield slice(None), self.stack
            return
        for columns in slices:
            yield columns, self._columns(columns)

    def reduce(self, rule: Aggregator, weights: Tensor, cohort: int | None = None) -> Tensor:
        """The rule's update [d] from these; where a `cohort` is planned, clients without a reply count as zero updates.

        Raises
        ------
        FieldError
            If there are more replies than planned.
        """
        size = len(self) if cohort is None else cohort
        if not rule.columnwise:
            return rule.reduce(padded(self.stack, size), weights)
        total = torch.empty_like(self._start)
        for columns, block in self.blocks():
            total[columns] = rule.reduce(padded(block, size), weights)
        return total

    def _columns(self, columns: slice) -> Tensor:
        block = torch.stack([model[columns] for model in self._models]).sub_(self._start[columns])
        return block if self._bound is None else clip(block, self._bound, lengths=self.lengths)


def padded(rows: Tensor, cohort: int) -> Tensor:
    """Zeros for planned clients that did not reply; of updates [n, d] or weights [n].

    Raises
    ------
    FieldError
        If there are more rows than planned.
    """
    if len(rows) > cohort:
        raise FieldError("cohort", cohort, f"is less than the number of replies ({len(rows)})")
    if len(rows) == cohort:
        return rows
    return torch.cat([rows, rows.new_zeros(cohort - len(rows), *rows.shape[1:])])
