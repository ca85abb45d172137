"""What arrived at the server: admitted, and as tensors."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Release, count_of, model_of
from fedveil.aggregation import RunningSum, Updates
from fedveil.clipping import Rows, norms
from fedveil.errors import FieldError, ReplyError
from fedveil.methods.facts import Releases


class Stacked(Sequence[Releases]):
    """Replies of clients that trust the server, looked at together; one of them is made when it is asked for.

    Parameters
    ----------
    models : sequence of Tensor
        n of one shape and type [d].
    start : Tensor
        [d], the model that was broadcast.
    counts : Tensor
        [n], float64.
    losses : Tensor
        [n], float64, the clients' training losses.
    """

    def __init__(self, models: Rows, start: Tensor, counts: Tensor, losses: Tensor) -> None:
        self.models, self.start, self.counts, self.losses = in_one(models), start, counts, losses

    @cached_property
    def updates(self) -> Updates:
        """What the clients changed, checked and clipped as one tensor."""
        return Updates(self.models, self.start)

    def __len__(self) -> int:
        return len(self.models)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Stacked(self.models[index], self.start, self.counts[index], self.losses[index])
        metric = Release("metric", self.losses[index], "train_loss")
        return Release("model", self.models[index]), Release("count", self.counts[index]), metric

    def sound(self, dimension: int, dtype: torch.dtype) -> bool:
        """Whether `check_reply` would admit each of them, whether or not the rule needs their counts."""
        if self.start.dtype != dtype or self.models[0].dtype != dtype or self.models[0].shape != (dimension,):
            return False
        try:
            self.updates.lengths  # noqa: B018 - of finite numbers, or an error
        except FieldError:
            return False
        least, most = self.counts.aminmax()
        return 0 <= float(least) <= float(most) <= LARGEST_COUNT


def in_one(rows: Rows) -> Rows:
    """The tensor [n, d] of which n tensors [d] are the rows, in order; the rows themselves where there is none."""
    whole = None if isinstance(rows, Tensor) or not rows else rows[0]._base
    if whole is None or whole.shape != (len(rows), *rows[0].shape) or whole.dtype != rows[0].dtype:
        return rows
    own = zip(rows, whole, strict=True)
    alike = all(a._base is whole and a.data_ptr() == b.data_ptr() and a.stride() == b.stride() for a, b in own)
    return whole if alike else rows


class Summed(Stacked):
    """Replies whose models were added as they came: they, and single replies, cannot be asked for.

    Parameters
    ----------
    updates : RunningSum
        Their sum.
    start, counts, losses : Tensor
        See `Stacked`; of those that came.
    """

    def __init__(self, updates: RunningSum, start: Tensor, counts: Tensor, losses: Tensor) -> None:
        super().__init__((), start, counts, losses)
        self.updates = updates

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: Any) -> Any:
        raise FieldError("replies", index, "were added as they came: give the federation a probe, and all are kept")

    def sound(self, dimension: int, dtype: torch.dtype) -> bool:
        """As of `Stacked`: a running sum takes nothing that is not finite, or not like the start."""
        counted = bool(((self.counts >= 0) & (self.counts <= LARGEST_COUNT)).all())
        return counted and self.start.dtype == dtype and self.start.shape == (dimension,)


class CohortReplies(Mapping[int, Releases]):
    """Replies by partition, ascending, whose models are one tensor.

    Parameters
    ----------
    partitions : sequence of int
        Ascending.
    stacked : Stacked
        In that order.
    invalid : mapping of int to str, optional
        Partitions whose reply was found to be unusable before, with the reason.
    """

    def __init__(self, partitions: Sequence[int], stacked: Stacked, invalid: Mapping[int, str] | None = None) -> None:
        self.partitions, self.stacked, self.invalid = tuple(partitions), stacked, dict(invalid or {})

    def __getitem__(self, partition: int) -> Releases:
        if partition not in self.partitions:
            raise KeyError(partition)
        return self.stacked[self.partitions.index(partition)]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[int]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)


def in_order(replies: Mapping[int, Releases]) -> Sequence[Releases]:
    """The replies in the order of the mapping."""
    return replies.stacked if isinstance(replies, CohortReplies) else list(replies.values())


UNMEASURED = "the model holds NaN, infinity or numbers too large to be measured"
LARGEST_COUNT = 2.0**53  # sums of larger ones could overflow, and would end the run for everybody


def check_reply(releases: Releases, dimension: int, dtype: torch.dtype, counted: bool = False) -> None:
    """Admit a reply to `combine`, the same under every engine; `counted` says that it has to carry its count.

    Raises
    ------
    ReplyError
        If it is not one finite model [d] of the broadcast's type and at most one count from 0 to 2^53.
    """
    try:
        model, count = model_of(releases), count_of(releases)
    except FieldError as error:
        raise ReplyError(str(error)) from error
    if model is None:
        raise ReplyError("the reply holds no model")
    if model.dtype != dtype or tuple(model.shape) != (dimension,):
        raise ReplyError(f"the model is {tuple(model.shape)} {model.dtype}; needed: ({dimension},) {dtype}")
    try:
        if not isfinite(torch.linalg.vector_norm(model)):
            norms(model)  # a finite model whose norm overflows could not be clipped, and would end everybody's run
    except FieldError as error:
        raise ReplyError(f"{UNMEASURED}: {error}") from error
    if counted and count is None:
        raise ReplyError("the example count is missing, by which the rule weighs clients")
    _check_count(count)


def check_figures(releases: Releases) -> None:
    """Admit an evaluation reply: finite metrics, and at most one count from 0 to 2^53.

    Raises
    ------
    ReplyError
        For anything else.
    """
    try:
        count = count_of(releases)
    except FieldError as error:
        raise ReplyError(str(error)) from error
    _check_count(count)
    for name, value in figures_of(releases).items():
        if not isfinite(value):
            raise ReplyError(f"the metric {name!r} is not finite")


def figures_of(releases: Releases) -> dict[str, float]:
    """The metrics of a reply, by name.

    Raises
    ------
    ReplyError
        If one is no single number.
    """
    metrics = [r for r in releases if r.kind == "metric"]
    for metric in metrics:
        if metric.value.numel() != 1:
            raise ReplyError(f"the metric {metric.name!r} has {metric.value.numel()} values; needed: one")
    return {metric.name: float(metric.value) for metric in metrics}


def _check_count(count: float | None) -> None:
    if count is not None and not 0 <= count <= LARGEST_COUNT:
        raise ReplyError(f"the example count is {count:g}; it must be from 0 to 2^53")


def models_of(replies: Sequence[Releases]) -> Rows:
    """The received models [d], one a reply, or all of them [n, d]."""
    if isinstance(replies, Stacked):
        return replies.models if not isinstance(replies, Summed) else [replies[0]]  # which refuses
    models = [m for m in map(model_of, replies) if m is not None]
    if not models or len(models) < len(replies):
        raise ReplyError("combine needs at least one reply, each with a model")
    return models


def stack_models(replies: Sequence[Releases]) -> Tensor:
    """The received models as one tensor [n, d]."""
    return torch.stack(list(models_of(replies)))


def updates_of(replies: Sequence[Releases], start: Tensor) -> Updates:
    """The received models minus the one [d] that was broadcast."""
    if isinstance(replies, Stacked) and replies.start.data_ptr() == start.data_ptr():
        return replies.updates
    return Updates(models_of(replies), start)


def stack_counts(replies: Sequence[Releases]) -> Tensor | None:
    """The received example counts [n] in float64, or None unless every reply has one."""
    if isinstance(replies, Stacked):
        return replies.counts
    counts = [count_of(r) for r in replies]
    return None if any(c is None for c in counts) else torch.tensor(counts, dtype=torch.float64)
