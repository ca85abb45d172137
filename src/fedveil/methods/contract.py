"""The contract of the phases: what every method must offer, and what it may see."""

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
    """The client's half of a method: a frozen dataclass of public parameters.

    Attributes
    ----------
    trust : {"central", "local", "trusted sum", "secure sum"}
        Central: `protect` is a declared identity and the server's spend is what counts. Local: what leaves a client is
        noised, by `protect` or in training. Trusted sum: it is noised enough once it is summed. Secure sum: the same,
        and what leaves is a random number until it is summed.
    most_models : int, optional
        The largest number of hypotheses in a broadcast among which it may choose; None for any. The choice is private:
        a method that does not protect it takes one.
    composed : bool
        Whether a release is a share 1 / rounds of a promised total, so that no more than `rounds` may leave.

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
        """The trust model, as above."""

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


class ClientDefaults(Parameters):
    """What most client sides have in common: they noise one model, remember nothing, and may be held to a total."""

    trust: ClassVar[Trust] = "local"
    most_models: ClassVar[int | None] = 1
    composed: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    outside_promise: ClassVar[frozenset[str]] = frozenset()  # parameters with which no promise changes

    def init(self) -> NoState:
        return NoState()

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """A filter on the total epsilon, if there is one."""
        return [] if epsilon is None else [Filter(epsilon, delta)]


class NoisyClientSide(ClientSide, Protocol):
    """A client side that needs ``noisy_steps``: its noise goes inside training."""

    @property
    def noisy_steps(self) -> NoisySteps:
        """What the client's trainer is to do."""

    def budget(self) -> SpendFilter | None:
        """A filter that holds a client to the steps planned; None without a plan."""

    def question(self, broadcast: Broadcast, layout: Layout) -> SumContext | None:
        """What the sites of a secure sum are asked by a broadcast; None where there is none."""

    def agreed(self, dimension: int) -> str:
        """What all sites of a secure sum have to agree on, for so many parameters; "" where there is none."""

    def require_sites(self, sites: int, field: str) -> None:
        """Refuse a number of clients in a round, named `field`, whose steps make no sum (`FieldError`)."""

    def require_terms(self, releases: Releases) -> None:
        """Refuse, on the server, a reply whose noise cannot be part of what is promised about all (`ReplyError`)."""


class ServerSide(Protocol):
    """The server's half of a method: a frozen dataclass of public parameters.

    Examples
    --------
    >>> server: fv.ServerSide = fv.GlobalDP(noise_multiplier=1.0)
    >>> server.hypotheses
    1
    """

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


class ServerDefaults(Parameters):
    """What most server sides have in common: one model, no rule inside, no noise, and nothing to remember."""

    needs: ClassVar[frozenset[str]] = frozenset()
    hypotheses: ClassVar[int] = 1
    rule: ClassVar[Aggregator | None] = None
    relation: ClassVar[Relation] = "zero-out"
    public_clip: ClassVar[float | None] = None
    may_be_proven: ClassVar[bool] = False
    keeps_released: ClassVar[bool] = True  # whether its state follows from released models, and may lie on a disk
    outside_promise: ClassVar[frozenset[str]] = frozenset()  # parameters with which no promise changes

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        return NoState()


def require_parts(method: str, side: object, contract: type) -> None:
    """Refuse a side of a method, or its class, that lacks a part of its contract: before a run, not in its middle.

    Raises
    ------
    FieldError
        Naming the method, the side and what it lacks.
    """
    given = {*dir(side), *getattr(side, "__dataclass_fields__", ())}
    for part in (*contract.__annotations__, *vars(contract)):
        if not part.startswith("_") and part not in given:
            name = (side if isinstance(side, type) else type(side)).__name__
            accepted = f"{name} has no `{part}`, which a {contract.__name__} of fedveil.methods.contract needs"
            raise FieldError("method", method, accepted)


@dataclass(frozen=True)
class Method:
    """A client side and the server side that understands it.

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
        """The client side, if its noise goes inside training."""
        return cast(NoisyClientSide, self.client) if "noisy_steps" in self.client.needs else None

    @property
    def may_promise(self) -> bool:
        """Whether its noise can prove something: on the clients, in training or on the server."""
        return self.client.trust != "central" or self.server.may_be_proven

    @property
    def client_clip(self) -> Any:
        """What the client side cuts updates to: one length, one a layer, or None where it cuts nothing."""
        return getattr(self.client, "clip", None)

    @property
    def planned(self) -> int | None:
        """Rounds that its noise was planned for, where it was."""
        return getattr(self.server, "rounds", None) or getattr(self.client, "rounds", None)

    @property
    def least_sites(self) -> int:
        """Sites of the smallest roster of a secure sum; 0 where there is none."""
        return int(getattr(self.client, "least_sites", 0))

    @property
    def keeps_released(self) -> bool:
        """Whether its server's state may lie on a disk; a server side of your own says so by ``keeps_released``."""
        return bool(getattr(self.server, "keeps_released", False))

    def __post_init__(self) -> None:
        """Refuse a side that lacks something, and weights that would need what local trust keeps on the client."""
        require_parts(self.name, self.client, ClientSide)
        require_parts(self.name, self.server, ServerSide)
        if self.noisy is not None:
            require_parts(self.name, self.client, NoisyClientSide)
        rule = self.server.rule
        if self.client.trust != "central" and rule is not None and rule.by_examples:
            raise FieldError("weighting", "examples", f'under {self.client.trust} trust counts stay: use "uniform"')


def noise_figures(scales: Sequence[tuple[float, ...]], layout: Layout, bound: float) -> dict[str, float]:
    """Noise of the median client: deviations of one number, or one a layer, against the clip `bound`.

    `signal_to_noise` is a bound, clip over noise: under local trust the length of an update is private.
    """
    d, groups = layout.size, layout.groups("module").values()
    sizes = [sum(s.stop - s.start for s in slices) for slices in groups]
    squares = [sum(v * v * n for v, n in zip(s, sizes if len(s) > 1 else [d], strict=True)) for s in scales]
    length = median(math.sqrt(square) for square in squares)
    return {"sigma": length / math.sqrt(d), "noise_to_clip": length / bound, "signal_to_noise": bound / length}
