"""The contract of the phases: what every method must offer, and what it may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from fedveil.accounting import Release, Spend, Trust, count_of, model_of
from fedveil.clipping import norms
from fedveil.errors import FieldError, ReplyError, require_count
from fedveil.layout import Layout
from fedveil.mechanisms import Source

Releases = tuple[Release, ...]

LARGEST_COUNT = 2.0**53  # sums of larger ones could overflow, and would end the run for everybody

# The condition of every proven local guarantee: silence is a release too.
ALWAYS_REPLIES = "whether a client's training fails does not depend on its data"


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """What everybody may know before a round begins.

    Attributes
    ----------
    round : int
        This round, from 1.
    rounds : int
        Rounds planned.
    cohort : int
        Clients planned for this round (not the number that will reply).
    dimension : int
        Number of shared parameters d.
    layer_scores : tuple of float, optional
        Score of each layer (module, in layout order) of the broadcast model on public data, for methods that split a
        budget by it.
    """

    round: int
    rounds: int
    cohort: int
    dimension: int
    layer_scores: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check all."""
        for name in ("round", "rounds", "cohort", "dimension"):
            require_count(name, getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """The server's release: k models [k, d] and the public facts of the round they open."""

    models: Tensor
    public: PublicFacts

    def __post_init__(self) -> None:
        """Check the shape."""
        if self.models.dim() != 2:
            raise FieldError("models", tuple(self.models.shape), "a broadcast holds [k, d]")


@dataclass(frozen=True, kw_only=True)
class ClientFacts:
    """What a client's method needs beside its releases; it never leaves the client.

    Attributes
    ----------
    broadcast : Broadcast
        What the client received.
    layout : Layout
        Names the layers.
    chosen : int
        The hypothesis it trained.
    layer_scores : mapping of str to float, optional
        S_l of each layer on the client's sensitive regions.
    """

    broadcast: Broadcast
    layout: Layout
    chosen: int = 0
    layer_scores: Mapping[str, float] | None = None

    @property
    def start(self) -> Tensor:
        """The model [d] that training started from."""
        return self.broadcast.models[self.chosen]


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """What the server's method needs beside the replies: broadcasts, public data, received releases; nothing else.

    Attributes
    ----------
    broadcast : Broadcast
        What opened the round.
    layout : Layout
        Names the layers.
    partitions : tuple of int
        Who sent the replies, ascending.
    public_scores : Tensor, optional
        [n, L], layer scores of the received models on public data.
    """

    broadcast: Broadcast
    layout: Layout
    partitions: tuple[int, ...]
    public_scores: Tensor | None = None


@dataclass(frozen=True)
class Refusal:
    """A client will not take part, for a public reason."""

    reason: str


@dataclass(frozen=True)
class Protected:
    """What `protect` hands back: what may leave, what it cost, and the client's next state."""

    releases: Releases
    spend: Spend
    state: Any


@dataclass(frozen=True)
class Combined:
    """What `combine` hands back: the next models [k, d], their cost, the next state, and figures for the log."""

    models: Tensor
    spend: Spend
    state: Any
    report: Mapping[str, float] = field(default_factory=dict)


class ClientSide(Protocol):
    """The client's half of a method: a frozen dataclass of public parameters.

    Attributes
    ----------
    trust : {"central", "local"}
        Central: `protect` is a declared identity and the server's spend is what counts. Local: `protect` adds noise.
    """

    trust: ClassVar[Trust]

    @property
    def needs(self) -> frozenset[str]:
        """What must be filled in: ``layer_scores`` (of ClientFacts), ``public_layer_scores`` (of PublicFacts)."""

    def init(self) -> Any:
        """The state before the first participation."""

    def quote(self, broadcast: Broadcast, state: Any) -> Spend | Refusal:
        """Cost of taking part, from the broadcast and earlier releases alone; called before training."""

    def protect(self, releases: Releases, facts: ClientFacts, state: Any, source: Source) -> Protected:
        """Make everything that is about to leave safe to leave; what it cannot protect is removed."""


class ServerSide(Protocol):
    """The server's half of a method: a frozen dataclass of public parameters."""

    @property
    def needs(self) -> frozenset[str]:
        """Fields of ServerFacts that the engine must fill in."""

    @property
    def hypotheses(self) -> int:
        """How many models it broadcasts."""

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        """The state before the first round."""

    def combine(self, replies: Sequence[Releases], facts: ServerFacts, state: Any, source: Source) -> Combined:
        """Turn valid replies (in the order of `facts.partitions`) into the next models."""


@dataclass(frozen=True)
class Method:
    """A client side and the server side that understands it."""

    name: str
    client: ClientSide
    server: ServerSide

    def __post_init__(self) -> None:
        """Refuse weights that would need what local trust keeps on the client."""
        rule = getattr(self.server, "aggregator", None)
        if self.client.trust == "local" and getattr(rule, "weighting", "uniform") == "examples":
            raise FieldError(
                "weighting", "examples", 'example counts stay on the client under local trust: use "uniform"'
            )


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
