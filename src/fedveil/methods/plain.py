"""The sides that add no noise: a client that trusts the server, and a server that only aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from fedveil.accounting import Relation, Spend, SpendFilter, Trust, nothing
from fedveil.aggregation import Aggregator, FedAvg, NoState, require_rule
from fedveil.checks import Parameters
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods.facts import Broadcast, ClientFacts, Combined, Protected, Releases, ServerFacts
from fedveil.methods.replies import stack_counts, updates_of


@dataclass(frozen=True)
class TrustedServer:
    """Client side of every central method: the server sees everything, `protect` is a declared identity."""

    trust: ClassVar[Trust] = "central"
    most_models: ClassVar[int | None] = None
    composed: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()

    def init(self) -> NoState:
        """Nothing to remember."""
        return NoState()

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """None on the client."""
        return {}

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """The server's total is the server's."""
        return []

    def quote(self, broadcast: Broadcast, state: NoState) -> Spend:
        """The client spends nothing itself."""
        return nothing("central")

    def protect(self, releases: Releases, facts: ClientFacts, state: NoState, source: Source) -> Protected:
        """Pass everything on."""
        return Protected(releases, nothing("central"), state)


@dataclass(frozen=True)
class Plain(Parameters):
    """Server side without noise: aggregate what arrives.

    Under local trust the replies carry no counts, so only uniform weights work.

    Parameters
    ----------
    aggregator : Aggregator
        The rule.
    """

    aggregator: Aggregator = field(default_factory=FedAvg)

    hypotheses: ClassVar[int] = 1
    relation: ClassVar[Relation] = "zero-out"
    public_clip: ClassVar[None] = None
    may_be_proven: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse what is no rule."""
        super().__post_init__()
        require_rule("aggregator", self.aggregator)

    @property
    def rule(self) -> Aggregator:
        return self.aggregator

    @property
    def needs(self) -> frozenset[str]:
        """What the rule needs."""
        return self.aggregator.needs

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        return self.aggregator.init(dimension, dtype)

    def combine(self, replies: Sequence[Releases], facts: ServerFacts, state: Any, source: Source) -> Combined:
        """Reduce and step; where fewer reply than the rule needs, absent clients count as zero updates."""
        theta, rule = facts.broadcast.models[0], self.aggregator.for_round(state, source, facts.public_update)
        updates = updates_of(replies, theta)
        weights = rule.weights(stack_counts(replies), len(updates))
        size = max(len(updates), min(rule.least, facts.broadcast.public.cohort))
        model, state = rule.step(theta, updates.reduce(rule, weights, size).to(theta.dtype), state)
        return Combined(model[None], nothing(), state, {"clients": float(len(updates))})
