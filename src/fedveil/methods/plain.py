"""The sides that add no noise: a client that trusts the server, and a server that only aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from fedveil.accounting import Spend, Trust, nothing
from fedveil.aggregation import Aggregator, FedAvg, NoState, Updates
from fedveil.mechanisms import Source
from fedveil.methods.contract import (
    Broadcast,
    ClientFacts,
    Combined,
    Protected,
    Releases,
    ServerFacts,
    models_of,
    stack_counts,
)


@dataclass(frozen=True)
class TrustedServer:
    """Client side of every central method: the server sees everything, `protect` is a declared identity."""

    trust: ClassVar[Trust] = "central"
    needs: ClassVar[frozenset[str]] = frozenset()

    def init(self) -> NoState:
        """Nothing to remember."""
        return NoState()

    def quote(self, broadcast: Broadcast, state: NoState) -> Spend:
        """The client spends nothing itself."""
        return nothing("central")

    def protect(self, releases: Releases, facts: ClientFacts, state: NoState, source: Source) -> Protected:
        """Pass everything on."""
        return Protected(releases, nothing("central"), state)


@dataclass(frozen=True)
class Plain:
    """Server side without noise: aggregate what arrives.

    Under local trust the replies carry no counts, so only uniform weights work.

    Parameters
    ----------
    aggregator : Aggregator
        The rule.
    """

    aggregator: Aggregator = field(default_factory=FedAvg)

    needs: ClassVar[frozenset[str]] = frozenset()
    hypotheses: ClassVar[int] = 1

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        """The rule's state."""
        return self.aggregator.init(dimension, dtype)

    def combine(self, replies: Sequence[Releases], facts: ServerFacts, state: Any, source: Source) -> Combined:
        """Reduce and step."""
        theta = facts.broadcast.models[0]
        updates = Updates(models_of(replies), theta)
        weights = self.aggregator.weights(stack_counts(replies), len(updates))
        model, state = self.aggregator.step(theta, updates.reduce(self.aggregator, weights), state)
        return Combined(model[None], nothing(), state, {"clients": float(len(updates))})
