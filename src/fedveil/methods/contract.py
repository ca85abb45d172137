"""Contract of a method: the interfaces that its client side and server side must implement, with defaults."""

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
    """Interface of a method's client side: a frozen dataclass of public parameters.

    Attributes
    ----------
    trust : {"central", "local", "trusted sum", "secure sum"}
        Central: `protect` changes nothing, and the server is charged. Local: `protect` or training adds noise to each
        release. Trusted sum: only the sum of all clients' releases has enough noise. Secure sum: the same, and each
        single release is a random number.
    most_models : int, optional
        Largest number of hypotheses in a broadcast; None: any number. A client's choice among them is private, so a
        method that does not protect the choice has 1 here.
    composed : bool
        Whether the promise is for all `rounds` releases together, each 1 / rounds of it. No further release may then be
        made.

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
        """Names of the facts that the engine must supply: ``layer_scores``, ``noised``, ``public_layer_scores``, or none.

        ``noisy_steps`` means that training adds the noise: the client side then has attributes `noisy_steps` and
        `budget`.
        """

    def init(self) -> Any:
        """Return a client's state before its first round."""

    def quote(self, broadcast: Broadcast, state: Any) -> Spend | Refusal:
        """Return the cost of taking part in a round, before training; it depends only on the broadcast and earlier releases."""

    def protect(
        self,
        releases: Releases,
        facts: ClientFacts,
        state: Any,
        source: Source,
    ) -> Protected:
        """Protect the releases of training; drop a release that cannot be protected."""

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Return figures of a round's noise, from the deviations of each client's noise: sigma and its ratio to the clip."""

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """Return fresh filters that limit a client to a total epsilon, or to the planned rounds."""


class ClientDefaults(Parameters):
    """Default implementation of a client side: one hypothesis, no state, and a filter if a total is given."""

    trust: ClassVar[Trust] = "local"
    most_models: ClassVar[int | None] = 1
    composed: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    outside_promise: ClassVar[frozenset[str]] = (
        frozenset()
    )  # parameters that cannot change the promise

    def init(self) -> NoState:
        return NoState()

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """Return a filter on the total epsilon; none without a total."""
        return [] if epsilon is None else [Filter(epsilon, delta)]


class NoisyClientSide(ClientSide, Protocol):
    """Interface of a client side whose noise is added inside training (``noisy_steps``)."""

    @property
    def noisy_steps(self) -> NoisySteps:
        """Noisy steps that the client's trainer takes."""

    def budget(self) -> SpendFilter | None:
        """Return a filter that limits a client to the planned steps; None without a plan."""

    def question(self, broadcast: Broadcast, layout: Layout) -> SumContext | None:
        """Return the question of a broadcast to the sites of a secure sum; None for other sums."""

    def agreed(self, dimension: int) -> str:
        """Return the terms that all sites of a secure sum have to agree on; "" for other sums."""

    def require_sites(self, sites: int, field: str) -> None:
        """Refuse, with a FieldError for `field`, a number of clients with which the sum cannot be made."""

    def require_terms(self, releases: Releases) -> None:
        """Refuse, at the server, a reply whose noise was made with other parameters than the promise (`ReplyError`)."""


class ServerSide(Protocol):
    """Interface of a method's server side: a frozen dataclass of public parameters.

    Examples
    --------
    >>> server: fv.ServerSide = fv.GlobalDP(noise_multiplier=1.0)
    >>> server.hypotheses
    1
    """

    @property
    def needs(self) -> frozenset[str]:
        """Names of the fields of ServerFacts that the engine must supply."""

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

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        """Return the server's state before the first round."""

    def combine(
        self,
        replies: Sequence[Releases],
        facts: ServerFacts,
        state: Any,
        source: Source,
    ) -> Combined:
        """Compute the next models from valid replies, which are in the order of `facts.partitions`."""


class ServerDefaults(Parameters):
    """Default implementation of a server side: one model, no rule, no noise, no state."""

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
    # stacks of all updates that `combine` holds beside the replies
    working_copies: ClassVar[int] = 1

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        return NoState()


def working_copies_of(server: ServerSide) -> int:
    """Return how many stacks of all updates a server side's `combine` holds beside the replies; 1 if it does not say."""
    return getattr(server, "working_copies", ServerDefaults.working_copies)


def require_parts(method: str, side: object, contract: type) -> None:
    """Refuse a side of a method, or its class, if it lacks an attribute of its interface.

    Raises
    ------
    FieldError
        For the first missing attribute; the text names it, the method and the side.
    """
    given = {*dir(side), *getattr(side, "__dataclass_fields__", ())}
    for part in (*contract.__annotations__, *vars(contract)):
        if not part.startswith("_") and part not in given:
            kind = side if isinstance(side, type) else type(side)
            accepted = f"{kind.__name__} has no `{part}`, which a {contract.__name__} of fedveil.methods.contract needs"
            raise FieldError("method", method, accepted)


@dataclass(frozen=True)
class Method:
    """Privacy method: a client side and a server side that belong together.

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
        """Whether the method can have an epsilon, by the clients' noise or the server's."""
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
    def noise_on_grid(self) -> bool:
        """Whether noise is drawn on an integer grid: for a secure sum, or as a server's discrete noise."""
        return self.least_sites > 0 or getattr(self.server, "noise", "") == "discrete"

    @property
    def keeps_released(self) -> bool:
        """Whether the server's state may be stored, because it follows from released models alone.

        A server side of your own declares this by an attribute ``keeps_released``.
        """
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
    """Compute figures of the median client's noise, compared with the clip `bound`.

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
        `sigma`, `noise_to_clip` and `signal_to_noise`. The last is an upper bound, clip over noise, because the length
        of an update is private under local trust.
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
