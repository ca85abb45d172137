"""IFCA: personalised models by clusters, without noise; the baseline of group privacy.

Source: Ghosh et al. 2020 (arXiv 2006.04088), model averaging. Trust model: the server is trusted. It broadcasts k
hypotheses; a client trains the one that fits its data best and reports which one that was; the server averages the
models of each cluster. The index tells up to log2(k) bits a round about the client's data, beside the model itself.
Nothing is promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedveil.accounting import Release, nothing
from fedveil.aggregation import NoState
from fedveil.mechanisms import Source
from fedveil.methods.facts import ClientFacts, Combined, Protected, Releases, ServerFacts
from fedveil.methods.group_privacy import Clusters, Idle, mean
from fedveil.methods.plain import TrustedServer
from fedveil.methods.replies import stack_models


@dataclass(frozen=True)
class ReportsIndex(TrustedServer):
    """Client side of IFCA: everything leaves, and so does the index of the hypothesis that was trained."""

    def protect(self, releases: Releases, facts: ClientFacts, state: NoState, source: Source) -> Protected:
        index = Release("index", torch.tensor(float(facts.chosen), dtype=torch.float64))
        return Protected((*releases, index), nothing("central"), state)


@dataclass(frozen=True, kw_only=True)
class ReportedClusters(Clusters):
    """Server side of IFCA: the mean of the models that report the same hypothesis; see `Clusters`."""

    def combine(
        self, replies: Sequence[Releases], facts: ServerFacts, state: NoState | Idle, source: Source
    ) -> Combined:
        """Average each cluster; a hypothesis without members is carried over, a reply without an index left out."""
        models, starts = stack_models(replies), facts.broadcast.models
        labels = torch.tensor([_index(reply, len(starts)) for reply in replies])
        centres = starts.clone()
        for j in set(labels.tolist()) - {-1}:
            centres[j] = mean(models[labels == j])
        return replace(self._combined(models, starts, centres, labels, state), spend=nothing())


def _index(reply: Releases, k: int) -> int:
    """What a reply reports, or -1 if that is none of the k hypotheses."""
    found = [float(r.value) for r in reply if r.kind == "index" and r.value.numel() == 1]
    return int(found[0]) if len(found) == 1 and found[0] in range(k) else -1
