"""What a run leaves in memory, under every engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from fedveil.accounting import Filter, Guarantee, Ledger, total, unprotected
from fedveil.accounting.bounds import Heuristic
from fedveil.engines.party import SERVER, VALIDATORS, begun_midway
from fedveil.engines.server import Round
from fedveil.errors import FieldError, nearest
from fedveil.learning import Figures


@dataclass(frozen=True)
class Best:
    """The models with the least validation loss so far, and what came after them.

    Attributes
    ----------
    loss : float
        As released.
    round : int
        Whose models they are; 0 before the first validation.
    waited : int
        Validations since then.
    models : Tensor, optional
        [k, d].
    """

    loss: float = inf
    round: int = 0
    waited: int = 0
    models: Tensor | None = None


@dataclass(frozen=True)
class RoundRecord:
    """One finished round.

    Attributes
    ----------
    round : Round
        Who took part, and the server's figures.
    metrics : dict of str to float, optional
        Figures of the new models on all clients' held-out examples, pooled, by name: every example counts the same.
        Where clients keep statistics of their own, each one's examples are answered by the model with these, so that
        the figure is a mean over clients and no single model's. Measured by the experimenter in one process: in a
        deployment these figures would be releases.
    client_metrics : list of dict
        The same, client by client.
    client_scales : dict of int to tuple of float
        Scale of each client's own noise (local trust); the experimenter's view.
    seconds : float
        Wall-clock time of the round, evaluation included.
    published : dict of str to float
        The aggregated metrics that clients were shown; empty unless publishing is on.
    figures : dict of str to float
        What the run's probes measured.
    zeroed : dict of int to str
        Clients of which something failed under local trust, with the reason; the experimenter's view.
    validation : float, optional
        The validation clients' loss, as released; None where none was due.

    Examples
    --------
    >>> history = fv.Federation(model=model, clients=[(*c, *c) for c in clients]).run(1)
    >>> record = history.rounds[-1]
    >>> "accuracy" in record.metrics, len(record.client_metrics)
    (True, 3)
    """

    round: Round
    metrics: Figures | None
    client_metrics: Sequence[Figures]
    client_scales: Mapping[int, tuple[float, ...]]
    seconds: float
    published: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    zeroed: Mapping[int, str] = field(default_factory=dict)
    validation: float | None = None


@dataclass(frozen=True, repr=False)
class History:
    """What a run leaves in memory.

    Attributes
    ----------
    rounds : list of RoundRecord
        In order.
    models : Tensor
        [k, d], the last broadcast.
    state_dicts : list of dict
        The same as named parameters, the frozen ones among them: ``model.load_state_dict(history.state_dicts[0])``.
        Running statistics that clients keep stand in their ``buffers``: ``{**state, **federation.clients[0].buffers}``.
    guarantee : Guarantee
        Total of the trusted server, or of the client that spent most (local trust).
    guarantees : dict of str to Guarantee
        Total of every party that released something.
    stopped : str
        Why the run ended early, or "".
    source : str
        ``"secure"``, or ``"reproducible, not for deployment"``: whoever knows the seed can take the noise off.
    best : Best, optional
        The models with the least validation loss, where there are validation clients.
    validation : Guarantee, optional
        What is promised to validation clients that released losses themselves: the total of the one that spent most,
        or none. It stands beside `guarantee`, which is that of those who train.

    Examples
    --------
    >>> history = fv.Federation(model=model, clients=clients).run(2)
    >>> len(history.rounds), history.models.shape
    (2, torch.Size([1, 10]))
    >>> _ = model.load_state_dict(history.state_dicts[0])
    """

    rounds: Sequence[RoundRecord]
    models: Tensor
    state_dicts: Sequence[Mapping[str, Tensor]]
    guarantee: Guarantee
    guarantees: Mapping[str, Guarantee]
    stopped: str = ""
    source: str = ""
    best: Best | None = None
    validation: Guarantee | None = None

    @property
    def metrics(self) -> Figures:
        """Pooled metrics after the last round; empty where nothing was measured, and a figure asked of it says why."""
        figures = self.rounds[-1].metrics if self.rounds else None
        unheld = "no client holds out examples: give (x, y, test_x, test_y)"
        return Measured(figures or {}, unheld if self.rounds else self.stopped or "no round ran")

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value:.3g}" for name, value in self.metrics.items() if name != "examples")
        promise = self.guarantee.describe(1e-5)
        return f"<History of {len(self.rounds)} rounds: {figures or 'nothing measured'}; {promise}>"


class Measured(dict[str, float]):
    """Figures by name, and why one may be missing."""

    def __init__(self, figures: Figures, why: str) -> None:
        super().__init__(figures)
        self.why = why

    def __missing__(self, name: str) -> float:
        """Refuse a figure that was not measured."""
        raise FieldError(f"metrics[{name!r}]", None, nearest(name, self) if self else self.why)


def total_of(ledger: Ledger) -> Guarantee:
    """What all releases of a party promise together: the sum of the worst cases, or the declared budget if less."""
    worst = total(entry.spend.guarantee for entry in ledger.entries)
    doubts = dict.fromkeys(doubt for doubt in (*(e.doubt for e in ledger.entries), begun_midway(ledger)) if doubt)
    if worst.proven and doubts:
        worst = replace(worst, conditions=(*worst.conditions, *doubts))
    return worst if ledger.budget is None else Filter(**ledger.budget).held(worst, [e.spend for e in ledger.entries])


def worst_of(guarantees: Iterable[Guarantee]) -> Guarantee | None:
    """What holds for all of them: the one that promises least, on the conditions of all, over the distances of any.

    Least is nothing proven, else the largest parameter, widened to what the others' releases tell at a distance. Proven
    ones of several kinds, units, relations or trusts have no common parameter to compare: nothing is then said to hold
    for all. None of none.
    """
    every = list(guarantees)
    worst = max(every, key=lambda g: (not g.proven, g.cost), default=None)
    if worst and worst.proven and len({(type(g.bound), g.unit, g.relation, g.trust, g.group) for g in every}) > 1:
        reason = "the parties' promises are of several kinds, of which none holds for all: see the ledger of each"
        worst = replace(worst, bound=Heuristic(reason), conditions=())
    elif worst and worst.proven:
        conditions = dict.fromkeys(condition for g in (worst, *every) for condition in g.conditions)
        bound = worst.bound.covering(list(dict.fromkeys(g.bound for g in every)))
        held = min(g.silos_per_person for g in every)
        worst = replace(worst, bound=bound, silos_per_person=held, conditions=tuple(conditions))
    apart = max((g.hypotheses_apart for g in every if g.hypotheses_apart is not None), default=None)
    return worst if worst is None or apart is None else replace(worst, hypotheses_apart=apart)


class Totals(NamedTuple):
    """What all releases of a run promise together.

    Attributes
    ----------
    clients, validators : dict of str to Guarantee
        Of clients that protect themselves, and of validation clients, where they released something.
    worst : Guarantee
        What counts: the trusted server's total, or what holds for every client.
    """

    clients: dict[str, Guarantee]
    validators: dict[str, Guarantee]
    worst: Guarantee

    @property
    def validation(self) -> Guarantee | None:
        """What holds for every validation client; None where none released a loss itself."""
        return worst_of(self.validators.values())


def totals_of(trust: str, books: Mapping[str, Ledger], on: Sequence[str] = ()) -> Totals:
    """Add up everybody's releases; `on` are conditions of a run's configuration, which no ledger knows."""
    # a participation that is only counted, under central trust, promises nothing and takes nothing away
    totals = {p: total_of(b) for p, b in books.items() if any(e.source != "none" for e in b.entries)}
    if on:
        totals |= {p: replace(g, conditions=(*g.conditions, *on)) for p, g in totals.items() if g.proven}
    validators = {p: g for p, g in totals.items() if p.startswith(VALIDATORS)}
    if trust == "central":
        return Totals({}, validators, totals.get(SERVER, unprotected()))
    clients = {p: g for p, g in totals.items() if p not in (SERVER, *validators)}
    return Totals(clients, validators, worst_of(clients.values()) or unprotected("local"))


def publishable(single: Sequence[Figures]) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Clients' metrics as `ServerParty.publish` takes them: names, figures [N, m] (NaN: not measured), counts [N]."""
    names = ("loss", "accuracy") if any("accuracy" in m for m in single) else ("loss",)
    rows = [[m.get(name, float("nan")) for name in names] for m in single]
    return names, torch.tensor(rows, dtype=torch.float64), torch.tensor([m["examples"] for m in single])
