"""The contract of the phases: what every method must offer, and what it may see."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from statistics import median
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from fedveil.accounting import Filter, Relation, Release, Spend, SpendFilter, Trust, count_of, model_of
from fedveil.aggregation import Aggregator
from fedveil.clipping import norms
from fedveil.errors import FieldError, ReplyError, require_count
from fedveil.layout import Layout
from fedveil.mechanisms import Source

Releases = tuple[Release, ...]

LARGEST_COUNT = 2.0**53  # sums of larger ones could overflow, and would end the run for everybody

# The condition of every proven local guarantee: a failure is answered with noise, a dead or slow process is not.
LIVENESS = "whether a client's process lives, and how long it takes, does not depend on its data"


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

    @cached_property
    def finite(self) -> bool:
        """Whether every number of the models is."""
        return bool(torch.isfinite(self.models).all())

    @cached_property
    def apart(self) -> float:
        """The largest Euclidean distance between two hypotheses; 0 for one."""
        return float(torch.pdist(self.models.double()).max()) if len(self.models) > 1 else 0.0


@dataclass(frozen=True, kw_only=True)
class NoisySteps:
    """Private training steps: what a trainer does with the noise inside, and the mark on what it trained.

    Attributes
    ----------
    steps : int
        Noisy steps of a round.
    rate : float
        Poisson sampling rate of each; 1 is the full batch.
    clip : float
        C, the longest gradient of one example.
    deviation : float
        Of the noise on the sum of a step's clipped gradients.
    denominator : float
        What the noisy sum is divided by: a constant, never the size of the sample.
    public_size : bool
        Whether a silo may be refused for its number of examples.
    summed : bool
        Whether the noise is enough only in a sum over silos: what comes after a step must then be linear.
    """

    steps: int
    rate: float
    clip: float
    deviation: float
    denominator: float
    public_size: bool = True
    summed: bool = False


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
    failed : bool
        Training left nothing that could be protected: the model is the start (or, where the noise goes inside training,
        noise alone), and a scale that would follow private values is the method's declared public fallback.
    noised : NoisySteps, optional
        The noise with which the client was trained, where its trainer added some.
    """

    broadcast: Broadcast
    layout: Layout
    chosen: int = 0
    layer_scores: Mapping[str, float] | None = None
    failed: bool = False
    noised: NoisySteps | None = None

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
    public_update : Tensor, optional
        [d], what training on public data, as a client trains, changes in the broadcast model.
    """

    broadcast: Broadcast
    layout: Layout
    partitions: tuple[int, ...]
    public_scores: Tensor | None = None
    public_update: Tensor | None = None


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
    trust : {"central", "local", "trusted sum"}
        Central: `protect` is a declared identity and the server's spend is what counts. Local: what leaves a client is
        noised, by `protect` or in training. Trusted sum: it is noised enough once it is summed.
    most_models : int, optional
        The largest number of hypotheses in a broadcast among which it may choose; None for any. The choice is private:
        a method that does not protect it takes one.
    composed : bool
        Whether a release is a share 1 / rounds of a promised total, so that no more than `rounds` may leave.
    """

    trust: ClassVar[Trust]
    most_models: ClassVar[int | None]
    composed: ClassVar[bool]

    @property
    def needs(self) -> frozenset[str]:
        """What must be filled in: ``layer_scores`` and ``noised`` (of ClientFacts), ``public_layer_scores``.

        ``noisy_steps`` says that the noise goes inside training: the client side has `NoisySteps` of that name, and a
        `budget` that holds a client to what is planned.
        """

    def init(self) -> Any:
        """The state before the first participation."""

    def quote(self, broadcast: Broadcast, state: Any) -> Spend | Refusal:
        """Cost of taking part, from the broadcast and earlier releases alone; called before training."""

    def protect(self, releases: Releases, facts: ClientFacts, state: Any, source: Source) -> Protected:
        """Make everything that is about to leave safe to leave; what it cannot protect is removed."""

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Figures of a round's noise for tables, from the scale of each client's: sigma and its ratio to the clip."""

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """Fresh filters that hold a client to a total, or to what is planned."""


class NoisyClientSide(ClientSide, Protocol):
    """A client side that needs ``noisy_steps``: its noise goes inside training."""

    @property
    def noisy_steps(self) -> NoisySteps:
        """What the client's trainer is to do."""

    def budget(self) -> SpendFilter | None:
        """A filter that holds a client to the steps planned; None without a plan."""

    def require_terms(self, releases: Releases) -> None:
        """Refuse, on the server, a reply whose noise cannot be part of what is promised about all (`ReplyError`)."""


@runtime_checkable
class CohortSide(Protocol):
    """What a client side may offer beside: many clients of one round in one computation, for simulations."""

    def protect_each(
        self, models: Tensor, facts: Sequence[ClientFacts], states: Sequence[Any], sources: Sequence[Source]
    ) -> list[Protected | None]:
        """What `protect` gives for each of n trained models [n, d], to the bit; None where only `protect` can tell."""


class ServerSide(Protocol):
    """The server's half of a method: a frozen dataclass of public parameters."""

    @property
    def needs(self) -> frozenset[str]:
        """Fields of ServerFacts that the engine must fill in."""

    @property
    def hypotheses(self) -> int:
        """How many models it broadcasts."""

    @property
    def rule(self) -> Aggregator | None:
        """The aggregation rule inside, if there is one."""

    @property
    def relation(self) -> Relation:
        """Which cohorts are neighbours for what the server states."""

    @property
    def public_clip(self) -> float | None:
        """The norm to which it cuts every update, where that is known in advance."""

    @property
    def may_be_proven(self) -> bool:
        """Whether the noise that it adds can have an epsilon."""

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

    @property
    def noisy(self) -> NoisyClientSide | None:
        """The client side, if its noise goes inside training."""
        return cast(NoisyClientSide, self.client) if "noisy_steps" in self.client.needs else None

    def __post_init__(self) -> None:
        """Refuse weights that would need what local trust keeps on the client."""
        rule = self.server.rule
        if self.client.trust != "central" and rule is not None and rule.by_examples:
            raise FieldError(
                "weighting", "examples", f'counts stay on the client under {self.client.trust} trust: use "uniform"'
            )


def noise_figures(scales: Sequence[tuple[float, ...]], layout: Layout, bound: float) -> dict[str, float]:
    """Noise of the median client: deviations of one number, or one a layer, against the clip `bound`.

    `signal_to_noise` is a bound, clip over noise: under local trust the length of an update is private.
    """
    d, groups = layout.size, layout.groups("module").values()
    sizes = [sum(s.stop - s.start for s in slices) for slices in groups]
    squares = [sum(v * v * n for v, n in zip(s, sizes if len(s) > 1 else [d], strict=True)) for s in scales]
    length = median(math.sqrt(square) for square in squares)
    return {"sigma": length / math.sqrt(d), "noise_to_clip": length / bound, "signal_to_noise": bound / length}


def held_to(epsilon: float | None, delta: float) -> list[SpendFilter]:
    """A filter on the total epsilon, if there is one."""
    return [] if epsilon is None else [Filter(epsilon, delta)]


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
