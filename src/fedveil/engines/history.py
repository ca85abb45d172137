"""Records of a run in memory, and totals of its ledgers; used by every engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedveil.accounting import Filter, Guarantee, Ledger, total, unprotected
from fedveil.accounting.bounds import Heuristic
from fedveil.engines.party import SERVER, VALIDATORS, begun_midway
from fedveil.engines.server import Round
from fedveil.errors import FieldError, nearest
from fedveil.learning import Figures

T = TypeVar("T")


@dataclass(frozen=True)
class Best:
    """Models with the least validation loss so far, and the number of validations since.

    Attributes
    ----------
    loss : float
        Released loss.
    round : int
        Round of these models; 0 before the first validation.
    waited : int
        Number of validations since then.
    models : Tensor, optional
        [k, d], models of that round.
    """

    loss: float = inf
    round: int = 0
    waited: int = 0
    models: Tensor | None = None


@dataclass(frozen=True)
class RoundRecord:
    """Record of one finished round.

    Attributes
    ----------
    round : Round
        Clients that took part, and the server's figures.
    metrics : dict of str to float, optional
        Metrics of the new models, pooled over all clients' held-out examples with equal weights. If clients keep their
        own running statistics, each client's examples are measured with its own. They are measured in one process, for
        the experimenter; in a deployment they would be releases.
    client_metrics : list of dict
        The same metrics for each client.
    client_scales : dict of int to tuple of float
        Deviation of each client's own noise under local trust, by partition; for the experimenter only.
    seconds : float
        Wall-clock time of the round, evaluation included.
    published : dict of str to float
        Metrics that were published to the clients; empty unless publishing is on.
    figures : dict of str to float
        Figures of the run's probes.
    zeroed : dict of int to str
        Clients that failed under local trust, with the reason; for the experimenter only.
    validation : float, optional
        Released loss of the validation clients; None if the round was not validated.

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
    """Result of a run: its rounds, models and guarantees.

    Attributes
    ----------
    rounds : list of RoundRecord
        Records of the rounds, in order.
    models : Tensor
        [k, d], models of the last broadcast.
    state_dicts : list of dict
        The same models as named parameters, frozen ones included: ``model.load_state_dict(history.state_dicts[0])``.
        Running statistics that clients keep are in their ``buffers``: ``{**state, **federation.clients[0].buffers}``.
    guarantee : Guarantee
        Total of the server under central trust, else of the client that spent most.
    guarantees : dict of str to Guarantee
        Total of every party that made a release.
    stopped : str
        Reason why the run ended early, or "".
    source : str
        ``"secure"``, or ``"reproducible, not for deployment"``. With the latter, anybody who knows the seed can remove
        the noise.
    best : Best, optional
        Models with the least validation loss, if there are validation clients.
    validation : Guarantee, optional
        Promise to validation clients that released losses themselves: the total of the one that spent most; None
        without such clients. `guarantee` covers only the clients that train.

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
        """Pooled metrics after the last round. A metric that was not measured raises an error with the reason."""
        if not self.rounds:
            return Measured({}, self.stopped or "no round ran")
        return Measured(
            self.rounds[-1].metrics or {},
            "no client holds out examples: give (x, y, test_x, test_y)",
        )

    def __repr__(self) -> str:
        shown = [
            f"{name} {value:.3g}" for name, value in self.metrics.items() if name != "examples"
        ]
        figures = ", ".join(shown) or "nothing measured"
        return f"<History of {len(self.rounds)} rounds: {figures}; {self.guarantee.describe(1e-5)}>"


class Measured(dict[str, float]):
    """Metrics by name; a missing name raises an error with the reason why it was not measured."""

    def __init__(self, figures: Figures, why: str) -> None:
        super().__init__(figures)
        self.why = why

    def __missing__(self, name: str) -> float:
        """Raise an error with the reason why this metric was not measured."""
        raise FieldError(f"metrics[{name!r}]", None, nearest(name, self) if self else self.why)


def total_of(ledger: Ledger) -> Guarantee:
    """Return the promise of all a party's releases together: composed, or the declared budget if that is less."""
    spends = [entry.spend for entry in ledger.entries]
    worst = total(spend.guarantee for spend in spends)
    doubts = [
        doubt
        for doubt in (*(entry.doubt for entry in ledger.entries), begun_midway(ledger))
        if doubt
    ]
    if worst.proven and doubts:
        worst = replace(worst, conditions=(*worst.conditions, *_once(doubts)))
    if ledger.budget is None:
        return worst
    return Filter(**ledger.budget).held(worst, spends)


def worst_of(guarantees: Iterable[Guarantee]) -> Guarantee | None:
    """Return a guarantee that holds for all parties: the weakest one, under the conditions of all.

    The weakest is one without a proof, else the one with the largest parameter. It is widened to cover the others'
    curves over distance. Proven guarantees of different kinds, units, relations or trusts cannot be compared; then no
    promise is stated for all. Without guarantees the result is None.
    """
    every = list(guarantees)
    if not every:
        return None
    worst = max(every, key=_badness)
    if worst.proven:
        worst = _for_all(worst, every)
    distances = [one.hypotheses_apart for one in every if one.hypotheses_apart is not None]
    if distances:
        worst = replace(worst, hypotheses_apart=max(distances))
    return worst


def _badness(guarantee: Guarantee) -> tuple[bool, float]:
    return not guarantee.proven, guarantee.cost


def _for_all(worst: Guarantee, every: Sequence[Guarantee]) -> Guarantee:
    """Widen a proven guarantee so that it covers all others; if they cannot be compared, state that."""
    kinds = {(type(one.bound), one.unit, one.relation, one.trust, one.group) for one in every}
    if len(kinds) > 1:
        reason = "the parties' promises are of several kinds, of which none holds for all: see the ledger of each"
        return replace(worst, bound=Heuristic(reason), conditions=())
    conditions = list(worst.conditions)
    for one in every:
        conditions += one.conditions
    bound = worst.bound.covering(_once(one.bound for one in every))
    held = min(one.silos_per_person for one in every)
    return replace(worst, bound=bound, silos_per_person=held, conditions=tuple(_once(conditions)))


def _once(values: Iterable[T]) -> list[T]:
    """Return each value once, in order."""
    return list(dict.fromkeys(values))


class Totals(NamedTuple):
    """Totals of all parties of a run.

    Attributes
    ----------
    clients, validators : dict of str to Guarantee
        Totals of clients that protect themselves, and of validation clients, if they made releases.
    worst : Guarantee
        Promise of the run: the server's total under central trust, or the promise that holds for every client.
    """

    clients: dict[str, Guarantee]
    validators: dict[str, Guarantee]
    worst: Guarantee

    @property
    def validation(self) -> Guarantee | None:
        """Promise that holds for every validation client; None if no client released a loss itself."""
        return worst_of(self.validators.values())


def totals_of(trust: str, books: Mapping[str, Ledger], on: Sequence[str] = ()) -> Totals:
    """Compute the totals of all parties; `on` are conditions from the run's configuration, as ledgers lack them."""
    clients: dict[str, Guarantee] = {}
    validators: dict[str, Guarantee] = {}
    server = unprotected()
    for party, book in books.items():
        # under central trust a counted participation promises nothing and costs nothing
        if all(entry.source == "none" for entry in book.entries):
            continue
        promise = total_of(book)
        if on and promise.proven:
            promise = replace(promise, conditions=(*promise.conditions, *on))
        if party == SERVER:
            server = promise
        elif party.startswith(VALIDATORS):
            validators[party] = promise
        else:
            clients[party] = promise
    if trust == "central":
        return Totals({}, validators, server)
    return Totals(clients, validators, worst_of(clients.values()) or unprotected("local"))


def publishable(single: Sequence[Figures]) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Convert clients' metrics to the arguments of `ServerParty.publish`.

    Returns
    -------
    names, figures, counts
        Names of the metrics, figures [N, m] (NaN: not measured), examples [N].
    """
    names: tuple[str, ...] = ("loss",)
    if any("accuracy" in measured for measured in single):
        names = ("loss", "accuracy")
    rows = []
    for measured in single:
        rows.append([measured.get(name, nan) for name in names])
    counts = [measured["examples"] for measured in single]
    return names, torch.tensor(rows, dtype=torch.float64), torch.tensor(counts)
