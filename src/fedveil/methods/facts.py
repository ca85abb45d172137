"""Arguments and results of a method's two sides: public facts, broadcasts, private facts, results."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any

import torch
from torch import Tensor

from fedveil.accounting import Release, Spend, digest, least_places
from fedveil.accounting.events import SPARE, SPILLED
from fedveil.checks import Check, Count, Natural, Parameters
from fedveil.errors import FieldError, kind_of, require_non_negative
from fedveil.layout import Layout
from fedveil.secure import Site, SumContext

Releases = tuple[Release, ...]
LOST = 1e-4  # probability that a lot of public size overflows its batch, so that the step is noise alone


def _require_words(field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise FieldError(field, kind_of(value), "must be text")


def _require_keys(field: str, value: Any) -> None:
    if not isinstance(value, tuple | list) or not all(isinstance(key, bytes) for key in value):
        raise FieldError(field, kind_of(value), "must be a list of public keys, as bytes")


def _require_scores(field: str, value: Any) -> None:
    if not isinstance(value, tuple | list):
        raise FieldError(field, kind_of(value), "must be one number a layer")
    for score in value:
        require_non_negative(field, score)


@dataclass(frozen=True, kw_only=True)
class PublicFacts(Parameters):
    """Public facts about a round, known before it begins.

    Attributes
    ----------
    round : int
        Number of this round, from 1.
    rounds : int
        Planned number of rounds.
    cohort : int
        Planned number of clients in this round; fewer may reply.
    dimension : int
        Number of shared parameters d.
    layer_scores : tuple of float, optional
        Score of each layer (module, in layout order) of the broadcast model on public data; some methods split a budget
        by these.
    run : str
        Name of the run, for a secure sum.
    attempt : int
        Number of the attempt at this round, for a secure sum.
    roster : tuple of bytes
        Public keys of all sites that are asked to join a secure sum.
    terms : str
        Terms that all sites of a secure sum have to agree on (`SumTerms.text`).
    receipt : str
        Receipt of the previous round (`fedveil.accounting.Receipt.text`); empty without receipts.
    """

    round: Count
    rounds: Count
    cohort: Count
    dimension: Count
    layer_scores: Annotated[tuple[float, ...], Check(_require_scores)] | None = None
    run: Annotated[str, Check(_require_words)] = ""
    attempt: Natural = 0
    roster: Annotated[tuple[bytes, ...], Check(_require_keys)] = ()
    terms: Annotated[str, Check(_require_words)] = ""
    receipt: Annotated[str, Check(_require_words)] = ""


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """Message of the server that opens a round: k models [k, d] and public facts."""

    models: Tensor
    public: PublicFacts

    def __post_init__(self) -> None:
        if self.models.dim() != 2:
            raise FieldError("models", tuple(self.models.shape), "a broadcast holds [k, d]")

    @cached_property
    def finite(self) -> bool:
        """Whether every number of the models is finite."""
        return bool(torch.isfinite(self.models).all())

    @cached_property
    def apart(self) -> float:
        """Largest Euclidean distance between two hypotheses; 0 if there is only one."""
        if len(self.models) < 2:
            return 0.0
        return float(torch.pdist(self.models.double()).max())

    @cached_property
    def opened(self) -> str:
        """Digest of the models, equal to the one in the server's ledger."""
        return digest((Release("model", self.models),))

    @cached_property
    def facts(self) -> str:
        """Digest of the public facts, without the previous round's receipt and the planned cohort.

        So a server that is restarted with another planned cohort still gets the same release from a client.
        """
        values = asdict(self.public)
        del values["receipt"], values["cohort"]
        text = json.dumps(values, sort_keys=True, default=bytes.hex)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class NoisySteps:
    """Parameters of noised training steps (DP-SGD); also the record of how a model was trained.

    Attributes
    ----------
    steps : int
        Number of noisy steps of a round.
    rate : float
        Poisson sampling rate of each step; 1 is the full batch.
    clip : float
        C, the clipping norm of the gradient of one example, or of one person (the mean over her images).
    deviation : float
        Deviation of the noise on the sum of a step's clipped gradients.
    denominator : float
        Divisor of the noisy sum: a constant, never the size of the sample.
    public_size : bool
        Whether the number of examples (persons) is public. Then a silo may be refused for it.
    most : int
        Most examples (persons) that a silo may have if their number is private; a full batch has as many places. 0: any
        number, and gradients are computed one example at a time.
    images : int
        0: gradients of examples are clipped. Otherwise gradients of persons are, and this is the most images used of
        one person (her first ones).
    summed : bool
        Whether only the sum over silos has enough noise (trusted sum). All computation after a step must then be
        linear.
    lr : float
        Learning rate of a summed step, filled in by the trainer; it scales the step's noise. 0: any.
    grid : float
        0, or the grid of a secure sum. Training then adds no noise and changes no model: it returns the integer sum of
        the contributions, clipped and rounded to the grid.
    units : int
        Most examples (persons) of any silo, so that sums on a grid do not overflow. 0: any number.
    by_app : bool
        Whether an app's own loop may take the steps, which is a condition of the promise.
    regions : bool
        Whether only the difference between an example's gradient and that of its blanked copy is clipped and noised.
        The gradient of the blanked copy is then added (`fedveil.learning.regions`).
    blank : float
        Value of blanked coordinates.
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
    by_app: bool = False
    regions: bool = False
    blank: float = 0.0

    @property
    def unit(self) -> str:
        """Name of the clipped unit, for messages."""
        return "persons" if self.images else "examples"

    def places(self, examples: int) -> int:
        """Return the number of places in a step's batch, dummies included; 0: one example at a time.

        The number follows from public numbers alone.
        """
        if self.public_size:
            return examples if self.rate == 1 else least_places(examples, self.rate, LOST)
        if self.rate == 1:
            return self.most
        return min(least_places(self.most, self.rate, SPILLED) + SPARE, self.most)


@dataclass(frozen=True, kw_only=True)
class ClientFacts:
    """Arguments of `protect` besides the releases. They are private and never leave the client.

    Attributes
    ----------
    broadcast : Broadcast
        Broadcast that the client received.
    layout : Layout
        Layout of the model.
    chosen : int
        Index of the hypothesis that the client trained.
    layer_scores : mapping of str to float, optional
        Score S_l of each layer, measured on the client's sensitive regions.
    failed : bool
        Whether training failed. The model is then the start, or noise alone if training adds the noise. The method's
        public fallback replaces any scale from private values.
    noised : NoisySteps, optional
        Noise that the client's trainer added.
    site : Site, optional
        Key and terms of the client, for secure sums.
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
        """Model [d] that training started from."""
        return self.broadcast.models[self.chosen]


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """Arguments of `combine` besides the replies. They follow from releases and public data alone.

    Attributes
    ----------
    broadcast : Broadcast
        Broadcast that opened the round.
    layout : Layout
        Layout of the model.
    partitions : tuple of int
        Partitions of the replying clients, ascending.
    public_scores : Tensor, optional
        [n, L], layer scores of the received models on public data.
    public_update : Tensor, optional
        [d], update of the broadcast model by training on public data, as a client would train it.
    question : SumContext, optional
        Question that the sites of a secure sum were asked.
    """

    broadcast: Broadcast
    layout: Layout
    partitions: tuple[int, ...]
    public_scores: Tensor | None = None
    public_update: Tensor | None = None
    question: SumContext | None = None


@dataclass(frozen=True)
class Refusal:
    """Answer of a client that does not take part in a round, with a public reason."""

    reason: str


@dataclass(frozen=True)
class Protected:
    """Result of `protect`: the protected releases, their cost, and the client's next state."""

    releases: Releases
    spend: Spend
    state: Any


@dataclass(frozen=True)
class Combined:
    """Result of `combine`: the next models [k, d], their cost, the next state, and figures for the log."""

    models: Tensor
    spend: Spend
    state: Any
    report: Mapping[str, float] = field(default_factory=dict)
