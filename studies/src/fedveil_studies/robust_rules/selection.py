"""Measure which clients a robust rule used: honest and rare clients left out, and the share of malicious ones."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from fedveil.accounting import model_of
from fedveil.aggregation import Aggregator
from fedveil.engines import Seen
from fedveil.learning import ClientData
from fedveil.mechanisms import ReproducibleSource


def rare_clients(clients: Sequence[ClientData], among: Collection[int], classes: int) -> list[int]:
    """Select the quarter of some clients (at least one) whose class shares differ most from those of all clients.

    Parameters
    ----------
    clients : sequence of ClientData
        All clients.
    among : collection of int
        Partitions to select from, such as the honest ones.
    classes : int
        Number of classes.
    """
    counts = torch.stack([torch.bincount(c.y, minlength=classes).double() for c in clients])
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    away = (shares - counts.sum(0) / counts.sum()).abs().sum(1)
    order = torch.argsort(away, descending=True, stable=True).tolist()
    farthest = [partition for partition in order if partition in among]
    return sorted(farthest[: max(1, len(farthest) // 4)])


class SelectionProbe:
    """Probe of a rule's choice: shares of honest and of rare clients left out, and weight of malicious ones.

    A client is left out where its share in the result is 0. The rule is asked again about what arrived; where it draws
    (buckets), about another draw. Rules that treat each coordinate by itself cannot say, and give no figures.

    Parameters
    ----------
    rule : Aggregator
        The server's aggregation rule.
    malicious, rare : collection of int
        Partitions of malicious clients, and of rare honest ones.
    """

    def __init__(self, rule: Aggregator, malicious: Collection[int], rare: Collection[int]) -> None:
        self.rule, self.malicious, self.rare = rule, frozenset(malicious), frozenset(rare)
        self.says = type(rule).effective_weights is not Aggregator.effective_weights

    @property
    def name(self) -> str:
        """Name with the rule and the malicious clients."""
        return f"selection of {self.rule!r}, malicious {sorted(self.malicious)}, rare {sorted(self.rare)}"

    @property
    def figures(self) -> Collection[str]:
        """Names of the three figures; empty if the rule gives none."""
        if not self.says:
            return ()
        return ("honest_rejected", "rare_rejected", "malicious_share")

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Return the figures of a round; a client whose reply could not be used counts as left out."""
        if not self.says:
            return {}
        start, used = seen.broadcast.models[0], seen.record.round.used
        models = []
        for partition in used:
            model = model_of(seen.received[partition])
            if model is not None:
                models.append(model)
        updates = torch.stack(models) - start
        own: Tensor | None = None
        if "public_update" in self.rule.needs and seen.federation.server.tutor is not None:
            own = seen.federation.server.tutor(start, seen.broadcast.public.round) - start
        rule = self.rule.for_round(
            self.rule.init(len(start), start.dtype), ReproducibleSource(0), own
        )
        weights = torch.full((len(used),), 1 / len(used), dtype=torch.float64)
        shares = rule.effective_weights(updates, weights)
        assert shares is not None
        got = dict(zip(used, shares.tolist(), strict=True))
        honest = [p for p in seen.received if p not in self.malicious]
        rare = [p for p in honest if p in self.rare]
        theirs = 0.0
        for p in self.malicious:
            theirs += got.get(p, 0.0)
        return {
            "honest_rejected": _left_out(got, honest),
            "rare_rejected": _left_out(got, rare),
            "malicious_share": theirs,
        }


def _left_out(shares: Mapping[int, float], clients: Sequence[int]) -> float:
    if not clients:
        return 0.0
    return sum(shares.get(p, 0.0) <= 0 for p in clients) / len(clients)
