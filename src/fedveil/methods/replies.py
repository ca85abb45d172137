"""What arrived at the server: admitted, and as tensors."""

from collections.abc import Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import count_of, model_of
from fedveil.aggregation import RunningSum, Updates
from fedveil.clipping import Rows, norms
from fedveil.errors import FieldError, ReplyError
from fedveil.methods.facts import Releases


class Replies(Sequence[Releases]):
    """The replies that a round combines; what is computed of all of them is computed once.

    Parameters
    ----------
    releases : sequence of Releases
        One a client, in the order of `ServerFacts.partitions`.
    added : RunningSum, optional
        The sum of their models, where these were added as they came: no reply holds its own.
    """

    def __init__(self, releases: Sequence[Releases], added: RunningSum | None = None) -> None:
        self._releases, self._added = releases, added
        self._changed: tuple[Tensor, Updates] | None = None

    def __len__(self) -> int:
        return len(self._releases)

    def __getitem__(self, index: Any) -> Any:
        return self._releases[index]

    @cached_property
    def models(self) -> Rows:
        """The received models [d], one a reply, or all of them [n, d].

        Raises
        ------
        ReplyError
            If a reply holds none.
        """
        if not self._models or len(self._models) < len(self):
            raise ReplyError("combine needs at least one reply, each with a model")
        return in_one(self._models)

    @cached_property
    def counts(self) -> Tensor | None:
        """The received example counts [n] in float64, or None unless every reply has one."""
        return torch.tensor(self._counts, dtype=torch.float64) if len(self._counts) == len(self) else None

    def updates(self, start: Tensor) -> Updates:
        """The received models minus the one [d] that was broadcast."""
        if self._added is not None:
            return self._added
        if self._changed is None or self._changed[0].data_ptr() != start.data_ptr():
            self._changed = start, Updates(self.models, start)
        return self._changed[1]

    def sound(self, start: Tensor, counted: bool) -> bool:
        """Whether `check_reply` would admit each of them; they are looked at together."""
        try:
            if not self._alike(start):
                return False
            self.updates(start).lengths  # noqa: B018 - of finite numbers, or an error
            counts = self.counts
        except (FieldError, ReplyError):
            return False
        if counts is None:
            return not (counted or self._counts)
        least, most = map(float, counts.aminmax())
        return 0 <= least <= most <= LARGEST_COUNT

    def _alike(self, start: Tensor) -> bool:
        """Whether the models are like the start; a reply with a model that was to be added has one that no sum took."""
        if self._added is not None:
            return not self._models
        return all(model.dtype == start.dtype and model.shape == start.shape for model in self._models)

    @cached_property
    def _models(self) -> list[Tensor]:
        return [model for model in map(model_of, self._releases) if model is not None]

    @cached_property
    def _counts(self) -> list[float]:
        return [count for count in map(count_of, self._releases) if count is not None]


def in_one(rows: Sequence[Tensor]) -> Rows:
    """The tensor [n, d] of which n tensors [d] are the rows, in order; the rows themselves where there is none."""
    whole = rows[0]._base if rows else None
    if whole is None or whole.shape != (len(rows), *rows[0].shape) or whole.dtype != rows[0].dtype:
        return rows
    own = zip(rows, whole, strict=True)
    same = all(a._base is whole and a.data_ptr() == b.data_ptr() and a.stride() == b.stride() for a, b in own)
    return whole if same else rows


UNMEASURED = "the model holds NaN, infinity or numbers too large to be measured"
LARGEST_COUNT = 2.0**53  # sums of larger ones could overflow, and would end the run for everybody


def check_reply(
    releases: Releases, dimension: int, dtype: torch.dtype, counted: bool = False, added: bool = False
) -> None:
    """Admit a reply to `combine`, the same under every engine.

    Parameters
    ----------
    releases : Releases
        The reply.
    dimension, dtype
        Of the model that was broadcast.
    counted : bool
        Whether the reply has to carry its count.
    added : bool
        Whether its model was added to a sum as it came: then it holds none, unless that failed.

    Raises
    ------
    ReplyError
        If it is not one finite model [d] of the broadcast's type and at most one count from 0 to 2^53.
    """
    try:
        model, count = model_of(releases), count_of(releases)
    except FieldError as error:
        raise ReplyError(str(error)) from error
    if model is None and not added:
        raise ReplyError("the reply holds no model")
    if model is not None:
        _check_model(model, dimension, dtype)
        if added:
            raise ReplyError(UNMEASURED)
    if counted and count is None:
        raise ReplyError("the example count is missing, by which the rule weighs clients")
    _check_count(count)


def _check_model(model: Tensor, dimension: int, dtype: torch.dtype) -> None:
    if model.dtype != dtype or tuple(model.shape) != (dimension,):
        raise ReplyError(f"the model is {tuple(model.shape)} {model.dtype}; needed: ({dimension},) {dtype}")
    try:
        if not isfinite(torch.linalg.vector_norm(model)):
            norms(model)  # a finite model whose norm overflows could not be clipped, and would end everybody's run
    except FieldError as error:
        raise ReplyError(f"{UNMEASURED}: {error}") from error


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
    return _together(replies).models


def stack_models(replies: Sequence[Releases]) -> Tensor:
    """The received models as one tensor [n, d]."""
    return torch.stack(list(models_of(replies)))


def updates_of(replies: Sequence[Releases], start: Tensor) -> Updates:
    """The received models minus the one [d] that was broadcast."""
    return _together(replies).updates(start)


def stack_counts(replies: Sequence[Releases]) -> Tensor | None:
    """The received example counts [n] in float64, or None unless every reply has one."""
    return _together(replies).counts


def _together(replies: Sequence[Releases]) -> Replies:
    return replies if isinstance(replies, Replies) else Replies(replies)
