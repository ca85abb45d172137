"""Replies at the server: their checks, and their models and counts as tensors."""

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
    """Replies of a round, with their models and counts as tensors that are computed once.

    Parameters
    ----------
    releases : sequence of Releases
        Releases of each client, in the order of `ServerFacts.partitions`.
    added : RunningSum, optional
        Sum of the models, if each was added on arrival. No reply then holds its model.
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
        """Received models: a list with one tensor [d] for each reply, or one tensor [n, d].

        Raises
        ------
        ReplyError
            If a reply holds no model.
        """
        if not self._models or len(self._models) < len(self):
            raise ReplyError("combine needs at least one reply, each with a model")
        return in_one(self._models)

    @cached_property
    def counts(self) -> Tensor | None:
        """Received example counts [n] in float64; None unless every reply has one."""
        if len(self._counts) != len(self):
            return None
        return torch.tensor(self._counts, dtype=torch.float64)

    def updates(self, start: Tensor) -> Updates:
        """Return the received models less the broadcast model [d]."""
        if self._added is not None:
            return self._added
        if self._changed is None or self._changed[0].data_ptr() != start.data_ptr():
            self._changed = start, Updates(self.models, start)
        return self._changed[1]

    def sound(self, start: Tensor, counted: bool) -> bool:
        """Whether `check_reply` would accept each reply, computed for all replies together."""
        try:
            if not self._fit(start):
                return False
            self.updates(start).lengths  # noqa: B018 - of finite numbers, or an error
            counts = self.counts
        except (FieldError, ReplyError):
            return False
        if counts is None:
            return not (counted or self._counts)
        least, most = map(float, counts.aminmax())
        return 0 <= least <= most <= LARGEST_COUNT

    def _fit(self, start: Tensor) -> bool:
        """Whether all models have the type and shape of the start; with a running sum, whether all models are in it."""
        if self._added is not None:
            return not self._models
        return all(
            model.dtype == start.dtype and model.shape == start.shape for model in self._models
        )

    @cached_property
    def _models(self) -> list[Tensor]:
        return [model for model in map(model_of, self._releases) if model is not None]

    @cached_property
    def _counts(self) -> list[float]:
        return [count for count in map(count_of, self._releases) if count is not None]


def in_one(rows: Sequence[Tensor]) -> Rows:
    """Return the tensor [n, d] whose rows are these tensors [d] in order; if there is no such tensor, the list of rows."""
    whole = rows[0]._base if rows else None
    if whole is None or whole.dtype != rows[0].dtype:
        return rows
    if whole.shape != (len(rows), *rows[0].shape):
        return rows
    for row, own in zip(rows, whole, strict=True):
        same_place = row.data_ptr() == own.data_ptr() and row.stride() == own.stride()
        if row._base is not whole or not same_place:
            return rows
    return whole


UNMEASURED = "the model holds NaN, infinity or numbers too large to be measured"
LARGEST_COUNT = 2.0**53  # sums of larger counts could overflow and end the run for everybody


def check_reply(
    releases: Releases,
    dimension: int,
    dtype: torch.dtype,
    counted: bool = False,
    added: bool = False,
) -> None:
    """Refuse a reply that cannot be combined; the check is the same under every engine.

    Parameters
    ----------
    releases : Releases
        Reply of one client.
    dimension, dtype
        Dimension and type of the broadcast model.
    counted : bool
        Whether the reply must have a count.
    added : bool
        Whether the model was added to a running sum on arrival. The reply still holds a model only if that failed.

    Raises
    ------
    ReplyError
        Unless the reply is one finite model [d] of the broadcast's type, with at most one count from 0 to 2^53.
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
        raise ReplyError(
            f"the model is {tuple(model.shape)} {model.dtype}; needed: ({dimension},) {dtype}"
        )
    try:
        if not isfinite(torch.linalg.vector_norm(model)):
            norms(
                model
            )  # clipping fails for a finite model whose norm overflows, which would end everybody's run
    except FieldError as error:
        raise ReplyError(f"{UNMEASURED}: {error}") from error


def check_figures(releases: Releases) -> None:
    """Refuse an evaluation reply unless its metrics are finite and it has at most one count, from 0 to 2^53.

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
    """Return the metrics of a reply, by name.

    Raises
    ------
    ReplyError
        If a metric is not a single number.
    """
    figures = {}
    for release in releases:
        if release.kind != "metric":
            continue
        if release.value.numel() != 1:
            raise ReplyError(
                f"the metric {release.name!r} has {release.value.numel()} values; needed: one"
            )
        figures[release.name] = float(release.value)
    return figures


def _check_count(count: float | None) -> None:
    if count is not None and not 0 <= count <= LARGEST_COUNT:
        raise ReplyError(f"the example count is {count:g}; it must be from 0 to 2^53")


def models_of(replies: Sequence[Releases]) -> Rows:
    """Return the received models: a list with one tensor [d] for each reply, or one tensor [n, d]."""
    return _as_replies(replies).models


def stack_models(replies: Sequence[Releases]) -> Tensor:
    """Return the received models as one tensor [n, d]."""
    return torch.stack(list(models_of(replies)))


def updates_of(replies: Sequence[Releases], start: Tensor) -> Updates:
    """Return the received models less the broadcast model [d]."""
    return _as_replies(replies).updates(start)


def stack_counts(replies: Sequence[Releases]) -> Tensor | None:
    """Return the received example counts [n] in float64; None unless every reply has one."""
    return _as_replies(replies).counts


def _as_replies(replies: Sequence[Releases]) -> Replies:
    return replies if isinstance(replies, Replies) else Replies(replies)
