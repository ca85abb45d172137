"""Contract of a method: the interfaces of its client side and server side, with defaults."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar, Protocol, cast

import torch

from fedveil.accounting import Filter, Relation, Spend, SpendFilter, Trust
from fedveil.aggregation import Aggregator, NoState
from fedveil.checks import Parameters
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods.facts import (
    Broadcast,
    ClientFacts,
    Combined,
    NoisySteps,
    Protected,
    Refusal,
    Releases,
    ServerFacts,
)
from fedveil.secure import SumContext


class ClientSide(Protocol):
    """Client side of a method: a frozen dataclass of public parameters.

    Attributes
    ----------
    trust : {"central", "local", "trusted sum", "secure sum"}
        Central: `protect` changes nothing, and the cost is the server's. Local: releases are noised by `protect` or in
        training. Trusted sum: only the sum of the releases has enough noise. Secure sum: the same, and each single
        release is a random number.
    most_models : int, optional
        Largest number of hypotheses in a broadcast; None for any. A client's choice among them is private, so a method
        that does not protect the choice takes one hypothesis.
    composed : bool
        Whether each release costs 1 / rounds of a promised total. No more than `rounds` releases may then leave.

    Examples
    --------
    >>> side = fv.SGALDP(epsilon_min=1.0, epsilon_max=2.0)
    >>> side.trust, sorted(side.needs)
    ('local', [])
    """

    most_models: ClassVar[int | None]
    composed: ClassVar[bool]

    @property
    def trust(self) -> Trust:
        """Trust model; see the attributes of the class."""

    @property
    def needs(self) -> frozenset[str]:
        """Facts that the engine must supply: ``layer_scores`` and ``noised`` of ClientFacts, ``public_layer_scores``.

        ``noisy_steps`` means that training adds the noise: the client side then has attributes `noisy_steps` and
        `budget`.
        """

    def init(self) -> Any:
        """Return the state before the first participation."""

    def quote(self, broadcast: Broadcast, state: Any) -> Spend | Refusal:
        """Return the cost of taking part, from the broadcast and earlier releases alone; called before training."""

    def protect(
        self,
        releases: Releases,
        facts: ClientFacts,
        state: Any,
        source: Source,
    ) -> Protected:
        """Protect the releases before they leave, and drop a release that cannot be protected."""

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Return figures of a round's noise from the scales of each client: sigma and its ratio to the clip."""

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """Return fresh filters that hold a client to a total epsilon, or to the planned rounds."""


class ClientDefaults(Parameters):
    """Defaults of client sides: noise on one model, no state, and a limit on the total if there is one."""

    trust: ClassVar[Trust] = "local"
    most_models: ClassVar[int | None] = 1
    composed: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    outside_promise: ClassVar[frozenset[str]] = (
        frozenset()
    )  # parameters that cannot change the promise
    working_copies: ClassVar[int] = 1

    def init(self) -> NoState:
        return NoState()

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """Return a filter on the total epsilon; none without a total."""
        return [] if epsilon is None else [Filter(epsilon, delta)]


class NoisyClientSide(ClientSide, Protocol):
    """Client side that needs ``noisy_steps``: training adds its noise."""

    @property
    def noisy_steps(self) -> NoisySteps:
        """Noisy steps that the client's trainer has to take."""

    def budget(self) -> SpendFilter | None:
        """Return a filter that holds a client to the planned steps; None without a plan."""

    def question(self, broadcast: Broadcast, layout: Layout) -> SumContext | None:
        """Return the question that a broadcast puts to the sites of a secure sum; None for other sums."""

    def agreed(self, dimension: int) -> str:
        """Return the terms that all sites of a secure sum have to agree on; "" for other sums."""

    def require_sites(self, sites: int, field: str) -> None:
        """Refuse a number of clients in a round, named `field`, with which the sum cannot be made (`FieldError`)."""

    def require_terms(self, releases: Releases) -> None:
        """Refuse, on the server, a reply whose noise was made on other terms than the promise (`ReplyError`)."""


class ServerSide(Protocol):
    """Server side of a method: a frozen dataclass of public parameters.

    Examples
    --------
    >>> server: fv.ServerSide = fv.GlobalDP(noise_multiplier=1.0)
    >>> server.hypotheses
    1
    """

    @property
    def needs(self) -> frozenset[str]:
        """Fields of ServerFacts that the engine must supply."""

    @property
    def hypotheses(self) -> int:
        """Number of models in a broadcast."""

    @property
    def rule(self) -> Aggregator | None:
        """Aggregation rule of the server side; None if it has none."""

    @property
    def relation(self) -> Relation:
        """Neighbouring cohorts between which the server's guarantee holds."""

    @property
    def public_clip(self) -> float | None:
        """Norm to which the server clips every update; None if it is not known in advance."""

    @property
    def may_be_proven(self) -> bool:
        """Whether the server's noise can have an epsilon."""

    @property
    def working_copies(self) -> int:
        """How many stacks of all updates `combine` holds at once beside the replies: what a server needs room for."""

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        """Return the state before the first round."""

    def combine(
        self,
        replies: Sequence[Releases],
        facts: ServerFacts,
        state: Any,
        source: Source,
    ) -> Combined:
        """Turn valid replies (in the order of `facts.partitions`) into the next models."""


class ServerDefaults(Parameters):
    """Defaults of server sides: one model, no rule, no noise, and no state."""

    needs: ClassVar[frozenset[str]] = frozenset()
    hypotheses: ClassVar[int] = 1
    rule: ClassVar[Aggregator | None] = None
    relation: ClassVar[Relation] = "zero-out"
    public_clip: ClassVar[float | None] = None
    may_be_proven: ClassVar[bool] = False
    keeps_released: ClassVar[bool] = (
        True  # whether the state follows from released models alone and may be stored
    )
    outside_promise: ClassVar[frozenset[str]] = (
        frozenset()
    )  # parameters that cannot change the promise

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        return NoState()


def require_parts(method: str, side: object, contract: type) -> None:
    """Refuse a side of a method, or its class, that lacks a part of its contract; called before a run.

    Raises
    ------
    FieldError
        With the method, the side and the part that it lacks.
    """
    given = {*dir(side), *getattr(side, "__dataclass_fields__", ())}
    for part in (*contract.__annotations__, *vars(contract)):
        if not part.startswith("_") and part not in given:
            kind = side if isinstance(side, type) else type(side)
            accepted = f"{kind.__name__} has no `{part}`, which a {contract.__name__} of fedveil.methods.contract needs"
            raise FieldError("method", method, accepted)


@dataclass(frozen=True)
class Method:
    """Client side and server side that belong together.

    Examples
    --------
    >>> method = fv.methods.build("global", noise_multiplier=1.0)
    >>> method.name, type(method.client).__name__, type(method.server).__name__
    ('global', 'TrustedServer', 'GlobalDP')
    """

    name: str
    client: ClientSide
    server: ServerSide

    @property
    def noisy(self) -> NoisyClientSide | None:
        """Client side if training adds its noise, else None."""
        if "noisy_steps" not in self.client.needs:
            return None
        return cast(NoisyClientSide, self.client)

    @property
    def may_promise(self) -> bool:
        """Whether the method can have an epsilon, by noise on the clients, in training or on the server."""
        return self.client.trust != "central" or self.server.may_be_proven

    @property
    def client_clip(self) -> Any:
        """Norm to which the client side clips: one number, one for each layer, or None without clipping."""
        return getattr(self.client, "clip", None)

    @property
    def planned(self) -> int | None:
        """Number of rounds for which the noise was planned, or None."""
        return getattr(self.server, "rounds", None) or getattr(self.client, "rounds", None)

    @property
    def least_sites(self) -> int:
        """Number of sites in the smallest roster of a secure sum; 0 for other sums."""
        return int(getattr(self.client, "least_sites", 0))

    @property
    def keeps_released(self) -> bool:
        """Whether the server's state may be stored; a server side of your own declares it by ``keeps_released``."""
        return bool(getattr(self.server, "keeps_released", False))

    def __post_init__(self) -> None:
        """Refuse an incomplete side, and a rule that weighs by counts if counts stay on the client (local trust)."""
        require_parts(self.name, self.client, ClientSide)
        require_parts(self.name, self.server, ServerSide)
        if self.noisy is not None:
            require_parts(self.name, self.client, NoisyClientSide)
        rule = self.server.rule
        if self.client.trust != "central" and rule is not None and rule.by_examples:
            raise FieldError(
                "weighting",
                "examples",
                f'under {self.client.trust} trust counts stay: use "uniform"',
            )


def noise_figures(
    scales: Sequence[tuple[float, ...]], layout: Layout, bound: float
) -> dict[str, float]:
    """Return figures of the median client's noise, compared with the clip `bound`.

    Parameters
    ----------
    scales : sequence of tuple of float
        Deviations of each client's noise: one, or one for each layer (module).
    layout : Layout
        Layout of the model.
    bound : float
        Clipping norm of an update.

    Returns
    -------
    dict of str to float
        `sigma`, `noise_to_clip` and `signal_to_noise`. The last is a bound, clip over noise, as under local trust the
        length of an update is private.
    """
    sizes = list(layout.sizes("module").values())
    lengths = []
    for deviations in scales:
        of_each = sizes if len(deviations) > 1 else [layout.size]
        squares = [
            deviation * deviation * size
            for deviation, size in zip(deviations, of_each, strict=True)
        ]
        lengths.append(math.sqrt(sum(squares)))
    length = median(lengths)
    sigma = length / math.sqrt(layout.size)
    return {"sigma": sigma, "noise_to_clip": length / bound, "signal_to_noise": bound / length}
