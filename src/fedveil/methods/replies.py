"""What arrived at the server: admitted, and as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from fedveil.accounting import count_of, model_of
from fedveil.clipping import norms
from fedveil.errors import FieldError, ReplyError
from fedveil.methods.facts import Releases

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
        raise ReplyError(f"the model holds NaN, infinity or numbers too large to be measured: {error}") from error
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
    for release in releases:
        if release.kind == "metric" and not isfinite(float(release.value)):
            raise ReplyError(f"the metric {release.name!r} is not finite")


def _check_count(count: float | None) -> None:
    if count is not None and not 0 <= count <= LARGEST_COUNT:
        raise ReplyError(f"the example count is {count:g}; it must be from 0 to 2^53")


def models_of(replies: Sequence[Releases]) -> list[Tensor]:
    """The received models [d], one a reply."""
    models = [m for m in map(model_of, replies) if m is not None]
    if not models or len(models) < len(replies):
        raise ReplyError("combine needs at least one reply, each with a model")
    return models


def stack_models(replies: Sequence[Releases]) -> Tensor:
    """The received models as one tensor [n, d]."""
    return torch.stack(models_of(replies))


def stack_counts(replies: Sequence[Releases]) -> Tensor | None:
    """The received example counts [n] in float64, or None unless every reply has one."""
    counts = [count_of(r) for r in replies]
    return None if any(c is None for c in counts) else torch.tensor(counts, dtype=torch.float64)
