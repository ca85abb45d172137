"""Methods without noise: a plain client and server, and IFCA.

IFCA: personalised models by clusters, the baseline of group privacy. Source: Ghosh et al. 2020 (arXiv 2006.04088),
model averaging. Trust model: the server is trusted. It broadcasts k hypotheses. A client trains the hypothesis that
fits its data best, and reports its index. The server averages the models of each cluster. The index has a maximal
leakage of ln k in each round, which the client's ledger counts. The model has no such bound, so nothing is promised.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from fedveil.accounting import Release, Spend, SpendFilter, Trust, nothing
from fedveil.aggregation import Aggregator, FedAvg, NoState, require_rule
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods.contract import ClientDefaults, ServerDefaults
from fedveil.methods.facts import Broadcast, ClientFacts, Combined, Protected, Releases, ServerFacts
from fedveil.methods.group_privacy import Clusters, Idle, mean
from fedveil.methods.replies import stack_counts, stack_models, updates_of


@dataclass(frozen=True)
class TrustedServer(ClientDefaults):
    """Client side of every method with a trusted server: all releases are sent without protection."""

    trust: ClassVar[Trust] = "central"
    most_models: ClassVar[int | None] = None

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Return no figures, as a client adds no noise."""
        return {}

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """Return no filters, as the server is charged."""
        return []

    def quote(self, broadcast: Broadcast, state: NoState) -> Spend:
        """Return a spend without cost, as the server is charged."""
        return nothing("central")

    def protect(
        self,
        releases: Releases,
        facts: ClientFacts,
        state: NoState,
        source: Source,
    ) -> Protected:
        """Return all releases unchanged."""
        return Protected(releases, nothing("central"), state)


@dataclass(frozen=True)
class AroundRule(ServerDefaults):
    """Base of server sides that use an aggregation rule, for one model.

    Parameters
    ----------
    aggregator : Aggregator
        Aggregation rule.
    """

    aggregator: Aggregator = field(default_factory=FedAvg)

    def __post_init__(self) -> None:
        """Refuse anything but an aggregation rule."""
        super().__post_init__()
        require_rule("aggregator", self.aggregator)

    @property
    def rule(self) -> Aggregator:  # type: ignore[override]
        return self.aggregator

    @property
    def working_copies(self) -> int:  # type: ignore[override]
        """How many stacks combining holds: none for a rule that works on blocks of columns."""
        return 0 if self.aggregator.columnwise else 1 + self.aggregator.working_copies

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """Facts that the rule needs."""
        return self.aggregator.needs

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        """Return the rule's state before the first round."""
        return self.aggregator.init(dimension, dtype)


@dataclass(frozen=True)
class Plain(AroundRule):
    """Server side that aggregates the replies without noise.

    Under local trust replies hold no counts, so only uniform weights work.

    Parameters
    ----------
    aggregator : Aggregator
        Aggregation rule.
    """

    def combine(
        self,
        replies: Sequence[Releases],
        facts: ServerFacts,
        state: Any,
        source: Source,
    ) -> Combined:
        """Reduce the updates and step; if fewer clients reply than the rule needs, absent ones count as zero updates."""
        theta, rule = (
            facts.broadcast.models[0],
            self.aggregator.for_round(state, source, facts.public_update),
        )
        updates = updates_of(replies, theta)
        weights = rule.weights(stack_counts(replies), len(updates))
        size = max(len(updates), min(rule.least, facts.broadcast.public.cohort))
        reduced = updates.reduce(rule, weights, size).to(theta.dtype)
        model, state = rule.step(theta, reduced, state)
        return Combined(model[None], nothing(), state, {"clients": float(len(updates))})


@dataclass(frozen=True)
class ReportsIndex(TrustedServer):
    """Client side of IFCA: all releases are sent, with the index of the trained hypothesis."""

    def quote(self, broadcast: Broadcast, state: NoState) -> Spend:
        """Return the leakage of the reported index, at most ln k; nothing is promised."""
        k = len(broadcast.models)
        if k == 1:
            return nothing("central")
        return replace(nothing("central"), leakage=math.log(k))

    def protect(
        self,
        releases: Releases,
        facts: ClientFacts,
        state: NoState,
        source: Source,
    ) -> Protected:
        index = Release("index", torch.tensor(float(facts.chosen), dtype=torch.float64))
        return Protected((*releases, index), self.quote(facts.broadcast, state), state)


@dataclass(frozen=True, kw_only=True)
class ReportedClusters(Clusters):
    """Server side of IFCA: for each hypothesis the mean of the models that report its index; see `Clusters`."""

    def combine(
        self,
        replies: Sequence[Releases],
        facts: ServerFacts,
        state: NoState | Idle,
        source: Source,
    ) -> Combined:
        """Average each cluster; a hypothesis without members stays, and a reply without an index is left out."""
        models, starts = stack_models(replies), facts.broadcast.models
        labels = torch.tensor([_index(reply, len(starts)) for reply in replies])
        centres = starts.clone()
        for j in set(labels.tolist()) - {-1}:
            centres[j] = mean(models[labels == j])
        return replace(
            self._combined(
                models,
                starts,
                centres,
                labels,
                state,
            ),
            spend=nothing(),
        )


def _index(reply: Releases, k: int) -> int:
    """Read the index in a reply; -1 if it has none of the k hypotheses."""
    reported = [
        release.value for release in reply if release.kind == "index" and release.value.numel() == 1
    ]
    if len(reported) != 1:
        return -1
    index = float(reported[0])
    return int(index) if index in range(k) else -1
