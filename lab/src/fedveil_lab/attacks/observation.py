"""Observations, data and capabilities of an adversary; an attack that needs more is refused."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from fedveil.accounting import model_of
from fedveil.engines import Seen
from fedveil.errors import FedVeilError, FieldError, require_choice
from fedveil.layout import Layout
from fedveil.learning import ClientData, Inputs, LossFunction, loss_of, outputs_of
from fedveil.registry import Registry

CAPABILITIES: dict[str, str] = {
    "models": "receives every broadcast model",
    "shadow": "holds examples of, or like, the target's",
    "metrics": "sees the aggregated metrics that the server publishes after each round",
    "reference": "holds examples of the same kind on which nobody trains",
    "own updates": "takes part, and knows what it sent",
    "colluders": "shares what other clients sent",
    "rehearsals": "can run the same federation on other data, with and without the target",
    "crafted updates": "sends what it likes instead of what it trained",
    "client models": "receives each client's own model, as the server does",
    "training": "knows the architecture and how clients train",
    "labels": "knows the labels of the examples that a client trained on",
    "unmarked": "knows all of a client's examples but their marked content",
    "statistics": "knows the normalisation statistics of a client's batch",
}


Kind = TypeVar("Kind", bound=Any)
WorkedOut = Callable[["Knowledge", Tensor, ClientData], Tensor]


class ThreatError(FedVeilError, ValueError):
    """An attack needs a capability that the adversary lacks."""


@dataclass(frozen=True)
class ThreatModel:
    """Name and capabilities of an adversary.

    Parameters
    ----------
    who : str
        Name of the adversary, for reports.
    capabilities : frozenset of str
        Names of `CAPABILITIES`.
    lacking : mapping of str to str
        Reason for each missing capability, for error messages.

    Raises
    ------
    FieldError
        For an unknown capability.
    """

    who: str
    capabilities: frozenset[str]
    lacking: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for word in sorted({*self.capabilities, *self.lacking}):
            require_choice("capabilities", word, CAPABILITIES)

    def require(self, attack: str, needs: frozenset[str]) -> None:
        """Refuse an attack that needs more than the adversary has.

        Raises
        ------
        ThreatError
            If a capability is missing; the message names it, with the reason if known.
        """
        missing = [
            f"{c!r} ({self.lacking.get(c, CAPABILITIES[c])})"
            for c in sorted(needs - self.capabilities)
        ]
        if missing:
            raise ThreatError(
                f"attack {attack!r} needs what a {self.who} lacks: {', '.join(missing)}"
            )


@dataclass(frozen=True, eq=False)
class Observation:
    """Everything that an adversary received in one run of R rounds.

    Attributes
    ----------
    models : Tensor
        All broadcasts [R + 1, k, d], the first one included.
    cohort : int
        Planned number of clients per round, which is public.
    published : sequence of mapping
        Metrics that clients were shown, for each of the R rounds; empty without any.
    sent : Tensor
        Updates that the adversary's c clients sent, relative to the broadcast, [c, R, d]; 0 if a client took no part.
    """

    models: Tensor
    cohort: int
    published: Sequence[Mapping[str, float]] = ()
    sent: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0))

    def __post_init__(self) -> None:
        if self.models.dim() != 3 or len(self.models) < 2:
            raise FieldError(
                "models", tuple(self.models.shape), "must be [rounds + 1, hypotheses, d]"
            )
        if self.published and len(self.published) != self.rounds:
            raise FieldError(
                "published", len(self.published), f"must hold one mapping a round ({self.rounds})"
            )
        if len(self.sent) and self.sent.shape[1:] != (self.rounds, self.models.shape[2]):
            wanted = ("clients", self.rounds, self.models.shape[2])
            raise FieldError("sent", tuple(self.sent.shape), f"must be {wanted}")

    @property
    def rounds(self) -> int:
        """Number of rounds, R."""
        return len(self.models) - 1


@dataclass(frozen=True, eq=False)
class Received:
    """One client's model as the server received it, with the broadcast that the client had received.

    Attributes
    ----------
    round : int
        Number of the round, from 1.
    partition : int
        Client that sent it.
    starts : Tensor
        Broadcast of the round, [k, d].
    model : Tensor
        Model that arrived, after every protection, [d].
    """

    round: int
    partition: int
    starts: Tensor
    model: Tensor

    @property
    def start(self) -> Tensor:
        """The broadcast hypothesis [d] nearest to the model, taken as the start of the client's training."""
        return self.starts[int((self.starts - self.model).norm(dim=1).argmin())]

    @property
    def update(self) -> Tensor:
        """The client's update [d], including its noise."""
        return self.model - self.start


class ServerView:
    """Probe that keeps what an adversary at the server sees: each received model with its start.

    Attributes
    ----------
    received : list of Received
        Releases sorted by round and partition; replies that are not a finite model [d] are left out.
    """

    name = "server view"
    figures: Collection[str] = ()

    def __init__(self) -> None:
        self.received: list[Received] = []

    def __call__(self, seen: Seen) -> dict[str, float]:
        number, starts = seen.broadcast.public.round, seen.broadcast.models
        for partition in sorted(seen.received):
            model = model_of(seen.received[partition])
            if (
                model is not None
                and model.shape == starts[0].shape
                and bool(model.isfinite().all())
            ):
                self.received.append(Received(number, partition, starts, model))
        return {}


def _once(work_out: WorkedOut) -> WorkedOut:
    """Cache the result of a method of `Knowledge` by its models and data."""

    @wraps(work_out)
    def kept(knowledge: "Knowledge", at: Tensor, data: ClientData) -> Tensor:
        # An entry holds on to its models and data, so that nothing else comes to lie at their addresses.
        key = (work_out, at.data_ptr(), at.shape, at.stride(), at.dtype, id(data))
        if key not in knowledge._known:
            knowledge._known[key] = (at, data, work_out(knowledge, at, data))
        return knowledge._known[key][2]

    return kept


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What an adversary knows before a run begins.

    Losses and gradients are cached, as several attacks use the same ones.

    Attributes
    ----------
    model : torch.nn.Module
        Model architecture, which every client knows.
    layout : Layout
        Layout of the model.
    loss : str
        Name of the loss that clients minimise.
    shadow : ClientData
        Data that the adversary uses as the target's.
    reference : ClientData, optional
        Examples of the same kind on which nobody trains.
    outsider : Tensor, optional
        Model [d] that the adversary trained on reference and own data, without the target.
    clip : float, optional
        Public norm to which the server clips updates.
    """

    model: nn.Module
    layout: Layout
    loss: str | LossFunction
    shadow: ClientData
    reference: ClientData | None = None
    outsider: Tensor | None = None
    clip: float | None = None
    _known: dict[Any, tuple[Tensor, ClientData, Tensor]] = field(
        default_factory=dict, init=False, repr=False
    )

    @cached_property
    def _writable(self) -> nn.Module:
        """Copy the model in evaluation mode, once; parameters are later written into the copy.

        Its kernels have the memory order that `predict` gives them.
        """
        copy = deepcopy(self.model).eval().requires_grad_()
        for parameter in copy.parameters():
            parameter.data = self._inputs.stored(parameter.data)
        return copy

    @cached_property
    def _inputs(self) -> Inputs:
        return Inputs.of(self.model)

    @_once
    def gradient(self, vector: Tensor, data: ClientData) -> Tensor:
        """Compute the gradient [d] of the mean loss on data, at one model [d], in evaluation mode."""
        model, inputs = self._writable, self._inputs
        self.layout.load(model, vector)
        output = outputs_of(model(inputs(data.x)))
        named = dict(model.named_parameters())
        blocks = [named[block.name] for block in self.layout.blocks]
        loss = loss_of(self.loss)(output, data.y.to(inputs.like.device))
        parts = torch.autograd.grad(loss, blocks, allow_unused=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in parts]).to(self.layout.dtype).cpu()

    @_once
    def loss_of(self, models: Tensor, data: ClientData) -> Tensor:
        """Compute the mean loss on data of [R] broadcasts [R, k, d], each by its best hypothesis; float64 [R]."""
        function, model, rows = loss_of(self.loss), self._writable, []
        batches = [self._inputs(part) for part in torch.split(data.x, 1024)]
        with torch.no_grad():
            for broadcast in models:
                losses = []
                for vector in broadcast:
                    self.layout.load(model, vector)
                    output = torch.cat([outputs_of(model(part)).cpu() for part in batches])
                    losses.append(float(function(output.to(torch.float64), data.y)))
                rows.append(min(losses))
        return torch.tensor(rows, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Attack(ABC):
    """Base class of participation attacks; each documents its source, its needs and its equation.

    Parameters
    ----------
    knowledge : Knowledge
        The adversary's data and models.
    threat : ThreatModel
        The adversary's capabilities.

    Attributes
    ----------
    name, summary : str
        Name in the registry, and a one-line summary for tables.
    needs : frozenset of str
        Capabilities that the attack needs.
    cumulative : bool
        Whether a score covers all rounds so far; otherwise the evidence is the mean of the scores.
    """

    knowledge: Knowledge
    threat: ThreatModel

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    cumulative: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse an adversary that lacks a capability this attack needs."""
        self.threat.require(self.name, self.needs)

    @abstractmethod
    def run(self, observation: Observation) -> Tensor:
        """Score each round, float64 [R]; higher means that the target takes part."""

    @classmethod
    def evidence(cls, scores: Tensor) -> Tensor:
        """Compute the adversary's belief after each round, [..., R]; the last entry is the verdict."""
        if cls.cumulative:
            return scores
        rounds = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
        return scores.cumsum(-1) / rounds


class Attacks(Registry[Kind]):
    """Registry of attacks; each registered class gets its name."""

    def register(self, name: str) -> Callable[[Kind], Kind]:
        """Make a decorator that registers the class; see `Registry`."""

        def add(kind: Kind) -> Kind:
            kind.name = name
            return super(Attacks, self).register(name)(kind)

        return add


ATTACKS: Attacks[type[Attack]] = Attacks("--attack", {}, group="fedveil.attacks")
