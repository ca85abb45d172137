"""Updates of a round's clients, computed by blocks of columns without changing the received models."""

from collections.abc import Iterator
from functools import cached_property
from threading import Lock

import torch
from torch import Tensor

from fedveil.aggregation.base import Aggregator, add_weighted, weighted_sum
from fedveil.clipping import WIDTH, Rows, blocks_of, clip, factors, norms, parts_of, require_finite
from fedveil.errors import FieldError
from fedveil.mechanisms import zeros


class Updates:
    """Updates of clients: received models less the broadcast model, possibly clipped.

    The whole stack [n, d] is only made if a rule or a distance needs all coordinates at once.

    Parameters
    ----------
    models : sequence of Tensor or Tensor
        n received models [d], or all of them [n, d].
    start : Tensor
        [d], broadcast model.
    """

    def __init__(self, models: Rows, start: Tensor) -> None:
        self._models, self._start = models, start
        self._bound: float | None = None
        self._before: Updates | None = (
            None  # updates before clipping; never self, as a cycle would keep models alive
        )

    def __len__(self) -> int:
        return len(self._models)

    def clipped(self, bound: float) -> "Updates":
        """Return the updates, each scaled down to a norm of at most `bound`."""
        result = Updates(self._models, self._start)
        result._bound, result._before, result.lengths = bound, self, self.lengths
        return result

    @cached_property
    def stack(self) -> Tensor:
        """All updates, [n, d]."""
        return self._columns(slice(None))

    @cached_property
    def lengths(self) -> Tensor:
        """Norms [n] of the updates before clipping, float64."""
        if self._fits:
            return norms(self._wide)
        width = blocks_of(len(self), len(self._start))[0].stop
        blocks = -(-len(self._start) // width)
        parts = torch.empty(blocks, len(self), dtype=torch.float64)
        for some, columns, part in parts_of(self._models, self._start, width):
            for i, block in enumerate(torch.split(part, width, 1), columns.start // width):
                torch.linalg.vector_norm(block, dim=-1, out=parts[i, some])
        return require_finite(parts.square_().sum(0).sqrt_())

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks of columns, in order, each with the updates [n, w] in these columns."""
        if "stack" in self.__dict__ or self._fits:
            yield slice(None), self.stack
            return
        for columns in blocks_of(len(self._models), len(self._start)):
            yield columns, self._columns(columns)

    def reduce(
        self,
        rule: Aggregator,
        weights: Tensor,
        cohort: int | None = None,
    ) -> Tensor:
        """Apply a rule, and return its update [d] (float64); absent clients of a planned `cohort` count as zero updates.

        Raises
        ------
        FieldError
            If there are more replies than planned.
        """
        size = len(self) if cohort is None else cohort
        _require_room(len(self), size)
        if not rule.columnwise:
            return rule.reduce(padded(self.stack, size), weights)
        if (
            rule.linear
        ):  # absent clients add nothing, and clipping is a factor, better applied in float64
            weights = weights[: len(self)]
            if self._bound is not None:
                weights = weights * factors(self.lengths, self._bound)
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
        """Whether all updates together are one block."""
        return len(blocks_of(len(self._models), len(self._start))) == 1

    @cached_property
    def _wide(self) -> Tensor:
        """All updates in float64, converted once for norms and sum."""
        return self.stack.to(torch.float64)

    def _columns(self, columns: slice) -> Tensor:
        if "stack" in self._unclipped.__dict__:
            block = self._unclipped.stack[:, columns]
        elif isinstance(self._models, Tensor):
            block = self._models[:, columns] - self._start[columns]
        else:
            models = list(self._models)
            if columns != slice(None):  # cutting twenty models takes as long as adding them
                models = [model[columns] for model in models]
            block = torch.stack(models).sub_(self._start[columns])
        if self._bound is None:
            return block
        return clip(block, self._bound, lengths=self.lengths)


class RunningSum(Updates):
    """Weighted sum of updates; each is clipped and added on arrival, so that few are in memory at once.

    They may arrive in any order and from several threads. They are added in the order of their places, two at a time,
    and the sum has the same bits as that of `Updates`.

    Parameters
    ----------
    start : Tensor
        [d], broadcast model.
    bound : float
        Clipping norm of the updates.
    weights : Tensor
        [n], float64, weights of all updates that may arrive.
    """

    def __init__(self, start: Tensor, bound: float, weights: Tensor) -> None:
        super().__init__((), start)
        self._bound: float = bound
        self._weights, self._every = weights, torch.full_like(weights, torch.nan)
        self._total, self._added, self._lock = zeros(len(start)), 0, Lock()
        self._waiting: dict[int, Tensor | None] = {}

    @staticmethod
    def worthwhile(n: int, d: int) -> bool:
        """Whether a running sum saves memory: n models [d] are more than one block, and wide enough to add two at a time."""
        return len(blocks_of(n, d)) > 1 and d >= WIDTH

    def __len__(self) -> int:
        return int(self._arrived.sum())

    @property
    def _arrived(self) -> Tensor:
        return ~self._every.isnan()

    @property
    def lengths(self) -> Tensor:
        """Norms of the arrived updates before clipping, float64."""
        return self._every[self._arrived]

    def take(self, place: int, model: Tensor | None) -> None:
        """Add the model of the client at a place (None: it has none); the model's memory is overwritten.

        Raises
        ------
        FieldError
            If the model is not finite, or has another shape or type than the start. Nothing is then added.
        """
        update: Tensor | None = None
        try:
            if model is not None:
                if (model.shape, model.dtype) != (self._start.shape, self._start.dtype):
                    raise FieldError(
                        "model",
                        tuple(model.shape),
                        f"must be like the start, {tuple(self._start.shape)}",
                    )
                self._measure(place, model.sub_(self._start))
                update = model
        finally:
            with self._lock:
                self._waiting[place] = update
                self._add()
                if update is not None and place in self._waiting:
                    self._waiting[place] = update.clone()

    def _measure(self, place: int, update: Tensor) -> None:
        n, d = len(self._weights), len(update)
        width = blocks_of(n, d)[0].stop
        whole = d // width
        parts = torch.zeros(whole + 1, n, dtype=torch.float64)
        for some, _, part in parts_of(update[: whole * width].view(whole, width), None, width):
            torch.linalg.vector_norm(part, dim=-1, out=parts[some, place])
        parts[whole, place] = torch.linalg.vector_norm(update[whole * width :].to(torch.float64))
        self._every[place] = require_finite(parts.square_().sum(0).sqrt_())[place]

    def _add(self) -> None:
        """Add arrived updates in the order of their places, up to the first missing pair."""
        n = len(self._weights)
        while self._added < n:
            pair = range(self._added, min(self._added + 2, n))
            if not self._waiting.keys() >= set(pair):
                return
            rows: dict[int, Tensor] = {}
            for place in pair:
                update = self._waiting.pop(place)
                if update is not None:
                    rows[place] = update
            if rows:
                some = torch.tensor(list(rows))
                weights = self._weights[some] * factors(self._every[some], self._bound)
                add_weighted(self._total, list(rows.values()), weights)
            self._added = pair.stop

    def _columns(self, columns: slice) -> Tensor:
        raise FieldError(
            "updates",
            "a stack",
            "were each added as they came: only their sum and their lengths are kept",
        )

    def clipped(self, bound: float) -> "RunningSum":
        """Return itself, as updates were clipped on arrival; refuse another bound than the constructor's."""
        if bound != self._bound:
            raise FieldError(
                "bound", bound, f"must be {self._bound}, to which updates were clipped as they came"
            )
        return self

    def reduce(
        self,
        rule: Aggregator,
        weights: Tensor,
        cohort: int | None = None,
    ) -> Tensor:
        """Return the sum as `Updates.reduce` does, without a copy: do not change it.

        Raises
        ------
        FieldError
            If the rule is no weighted sum, the weights are not the constructor's, or an update is missing.
        """
        same = torch.equal(weights[: len(self)], self._weights[self._arrived])
        if not (rule.linear and same and self._added == len(self._weights)):
            raise FieldError(
                "weights",
                weights.tolist(),
                "must be those with which updates were added as they came",
            )
        return self._total


def padded(rows: Tensor, cohort: int) -> Tensor:
    """Add zeros to updates [n, d] or weights [n] for planned clients that did not reply.

    Raises
    ------
    FieldError
        If there are more rows than planned.
    """
    _require_room(len(rows), cohort)
    if len(rows) == cohort:
        return rows
    absent = rows.new_zeros(cohort - len(rows), *rows.shape[1:])
    return torch.cat([rows, absent])


def _require_room(replies: int, cohort: int) -> None:
    if replies > cohort:
        raise FieldError("cohort", cohort, f"is less than the number of replies ({replies})")
