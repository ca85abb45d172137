"""What a run leaves in memory, under every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedveil.accounting import Filter, Guarantee, Ledger, SpendFilter, total
from fedveil.engines.party import Round
from fedveil.learning import Metrics
from fedveil.learning.learner import Task
from fedveil.methods import Broadcast, Releases

SERVER = "server"


@dataclass(frozen=True, eq=False)
class Asked:
    """A round that was opened, before anybody trains.

    Attributes
    ----------
    broadcast : Broadcast
        What everybody received.
    partitions : list of int
        Clients that take part.
    task : Task
        What they are to train.
    refused : dict of int to str
        Clients that declined, with the reason.
    began : float
        When, by ``time.perf_counter``.
    """

    broadcast: Broadcast
    partitions: Sequence[int]
    task: Task
    refused: Mapping[int, str]
    began: float


@dataclass(frozen=True, eq=False)
class Collected:
    """What the server received in a round.

    Attributes
    ----------
    replies : dict of int to Releases
        By partition.
    failed : dict of int to str
        Clients that trained and sent nothing, with the reason.
    scales : dict of int to tuple of float
        Scale of each client's own noise.
    """

    replies: Mapping[int, Releases]
    failed: Mapping[int, str]
    scales: Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class RoundRecord:
    """One finished round.

    Attributes
    ----------
    round : Round
        Who took part, and the server's figures.
    metrics : Metrics, optional
        The new models on all clients' held-out examples, pooled. Measured by the experimenter in one process: in a
        deployment these figures would be releases.
    client_metrics : list of Metrics
        The same, client by client.
    client_scales : dict of int to tuple of float
        Scale of each client's own noise (local trust); the experimenter's view.
    seconds : float
        Wall-clock time of the round, evaluation included.
    published : dict of str to float
        The aggregated metrics that clients were shown; empty unless publishing is on.
    """

    round: Round
    metrics: Metrics | None
    client_metrics: Sequence[Metrics]
    client_scales: Mapping[int, tuple[float, ...]]
    seconds: float
    published: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """What a run leaves in memory.

    Attributes
    ----------
    rounds : list of RoundRecord
        In order.
    models : Tensor
        [k, d], the last broadcast.
    state_dicts : list of dict
        The same as named arrays; load with ``load_state_dict(..., strict=False)``.
    guarantee : Guarantee
        Total of the trusted server, or of the client that spent most (local trust).
    guarantees : dict of str to Guarantee
        Total of every party that released something.
    stopped : str
        Why the run ended early, or "".
    source : str
        ``"secure"``, or ``"reproducible, not for deployment"``: whoever knows the seed can take the noise off.
    """

    rounds: Sequence[RoundRecord]
    models: Tensor
    state_dicts: Sequence[Mapping[str, Tensor]]
    guarantee: Guarantee
    guarantees: Mapping[str, Guarantee]
    stopped: str = ""
    source: str = ""

    @property
    def metrics(self) -> Metrics | None:
        """Pooled metrics after the last round."""
        return self.rounds[-1].metrics if self.rounds else None


def total_of(ledger: Ledger, budget: SpendFilter | None = None) -> Guarantee:
    """What all releases of a party promise together: the sum of the worst cases, or the filter's budget if less."""
    worst = total(entry.spend.guarantee for entry in ledger.entries)
    return budget.held(worst, [e.spend for e in ledger.entries]) if isinstance(budget, Filter) else worst


def publishable(single: Sequence[Metrics]) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Clients' metrics as `ServerParty.publish` takes them: names, figures [N, m] (NaN: not measured), counts [N]."""
    classes = any(m.accuracy is not None for m in single)
    names = ("loss", "accuracy") if classes else ("loss",)
    nan = float("nan")
    rows = [[nan if getattr(m, name) is None else getattr(m, name) for name in names] for m in single]
    return names, torch.tensor(rows, dtype=torch.float64), torch.tensor([m.examples for m in single])
