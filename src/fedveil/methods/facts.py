"""What the two sides of a method are given, and what they give back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Release, Spend, least_places
from fedveil.accounting.events import SPARE, SPILLED
from fedveil.checks import Count, Parameters
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.secure import Site, SumContext

Releases = tuple[Release, ...]
LOST = 1e-4  # chance that a lot of a public number of examples is too large for its batch, and the step is noise alone


@dataclass(frozen=True, kw_only=True)
class PublicFacts(Parameters):
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
    run, attempt, roster, terms
        Of a secure sum: names the run; which try at the round; the public keys of all sites that are asked; what all of
        them have to agree on, as `SumTerms.text` has it.
    """

    round: Count
    rounds: Count
    cohort: Count
    dimension: Count
    layer_scores: tuple[float, ...] | None = None
    run: str = ""
    attempt: int = 0
    roster: tuple[bytes, ...] = ()
    terms: str = ""


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """The server's release: k models [k, d] and the public facts of the round they open."""

    models: Tensor
    public: PublicFacts

    def __post_init__(self) -> None:
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
        C, the longest gradient of one example, or of one person (the mean over her images).
    deviation : float
        Of the noise on the sum of a step's clipped gradients.
    denominator : float
        What the noisy sum is divided by: a constant, never the size of the sample.
    public_size : bool
        Whether a silo may be refused for its number of examples (of persons).
    most : int
        The most examples (persons) of a silo whose number is private: so many places has a full batch. 0: any number,
        and every example is taken in a call of its own.
    images : int
        0: examples are clipped. Otherwise persons are, each with the first so many of her images.
    summed : bool
        Whether the noise is enough only in a sum over silos: what comes after a step must then be linear.
    lr : float
        Learning rate of a summed step, by which its noise is scaled; filled in by the trainer. 0 where it is free.
    grid : float
        Above 0: nothing is noised or learned in training; the clipped contributions are cut to whole steps of it, and
        their integer sum is what training gives.
    units : int
        With a grid: the most examples (persons) of any silo, so that sums do not overflow. 0: any number.
    """

    steps: int
    rate: float
    clip: float
    deviation: float
    denominator: float
    public_size: bool = True
    summed: bool = False
    lr: float = 0.0
    most: int = 0
    images: int = 0
    grid: float = 0.0
    units: int = 0

    @property
    def unit(self) -> str:
        """What is clipped, for messages."""
        return "persons" if self.images else "examples"

    def places(self, examples: int) -> int:
        """Places of a step's batch, examples (persons) and dummies, by public numbers alone; 0: one example a call."""
        if not self.public_size:
            most = self.most if self.rate == 1 else least_places(self.most, self.rate, SPILLED) + SPARE
            return min(most, self.most)
        return examples if self.rate == 1 else least_places(examples, self.rate, LOST)


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
    site : Site, optional
        The client's key and what it insists on, for secure sums.
    """

    broadcast: Broadcast
    layout: Layout
    chosen: int = 0
    layer_scores: Mapping[str, float] | None = None
    failed: bool = False
    noised: NoisySteps | None = None
    site: Site | None = None

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
    question : SumContext, optional
        What the sites of a secure sum were asked.
    """

    broadcast: Broadcast
    layout: Layout
    partitions: tuple[int, ...]
    public_scores: Tensor | None = None
    public_update: Tensor | None = None
    question: SumContext | None = None


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
