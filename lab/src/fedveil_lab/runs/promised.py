"""What a run promises: before anything is trained, from its configuration; afterwards, from its ledgers alone.

Before, the parties are those of the run, with its data, its model and its budgets. They go through its rounds and
record what each release would cost; nothing is trained, and nothing leaves. Ledgers are added up the same both times.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch

from fedveil.accounting import (
    Choice,
    Guarantee,
    Ledger,
    Release,
    Spend,
    advise,
    guarantee_values,
    read_off,
    unprotected,
)
from fedveil.engines import COMBINE, SERVER, Federation, publishable, totals_of
from fedveil.errors import FieldError
from fedveil.files import Ledgers
from fedveil.gdp import rounded_up
from fedveil.mechanisms import NoSource, ReproducibleSource
from fedveil.methods import Broadcast, ClientFacts, Method, RecordDP, Refusal, Releases, ServerFacts
from fedveil.secure import FEWEST
from fedveil_lab.config import Config
from fedveil_lab.config.course import Randomness
from fedveil_lab.runs.prepare import Setup, prepare

FEW = 2  # a budget that holds fewer than one in so many rounds is said
REACH = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)  # mu of the worst client at the distances of its curve, or about


@dataclass(frozen=True)
class Promise:
    """What a run promises at most, if everybody answers and nothing stops it early.

    Attributes
    ----------
    guarantee : Guarantee
        The total that counts: the trusted server's, or what holds for every client. Of a choice among hypotheses it
        says nothing: their distance follows from training.
    validation : Guarantee or None
        Of the validation clients, where their losses are releases of their own.
    rounds, planned : int
        Rounds that the budgets allow, and those of the configuration.
    first_apart : float or None
        Distance between the first hypotheses, where there are several.
    at_most : bool
        Whether a budget is charged what releases tell, so that the run may end before these rounds.
    """

    guarantee: Guarantee
    validation: Guarantee | None
    rounds: int
    planned: int
    first_apart: float | None = None
    at_most: bool = False

    @property
    def unknown(self) -> tuple[str, ...]:
        """What cannot be said before the run, a sentence each."""
        said: tuple[str, ...] = ()
        if self.at_most:
            said = (f"how many of these {self.rounds} rounds the budget holds: it is charged what the releases tell",)
        if self.first_apart is None or not self.guarantee.by_distance:
            return said
        least = rounded_up(self.guarantee.cost * self.first_apart, 3)
        return (
            *said,
            "how much the choice among hypotheses tells: it follows their largest distance in any round. Those of the "
            f"first round are {self.first_apart:.3g} apart, which alone gives {least}; the run's summary has the whole",
        )


def prepared(config: Config) -> Setup:
    """The parties of a configuration's run, for a forecast: pretraining changes no cost, and is left out.

    Raises
    ------
    FieldError
        As `prepare`.
    """
    return prepare(config.model_copy(update={"engine": "local", "source": Randomness(), "pretraining": None}))


def promised(setup: Setup) -> Promise:
    """What the run of a setup promises.

    Raises
    ------
    FieldError
        If the method refuses the first round.
    """
    ledgers, rounds = Ledgers("forecast"), setup.config.rounds
    federation = setup.federation(ledgers)
    roster = federation.parties.site_keys.roster(range(len(federation.clients)))
    opened = federation.server.open(federation.models, 1, rounds, federation.cohort_size, roster)
    if setup.method.client.trust == "central":
        done, books = _trusted(federation, opened, rounds), ledgers.books
    else:
        done, books = _apart(federation, opened, rounds, ledgers)
    totals = totals_of(setup.method.client.trust, books, read_off(setup.config.read_off))
    first = opened.apart if len(opened.models) > 1 else None
    charged = any(entry.spend.charge is not None for book in books.values() for entry in book.entries)
    at_most = charged and setup.config.privacy.budget.epsilon is not None
    return Promise(replace(totals.worst, hypotheses_apart=None), totals.validation, done, rounds, first, at_most)


def few_rounds(setup: Setup) -> tuple[str, ...]:
    """What to say before a run whose budget holds only a few of its rounds."""
    budget, config = setup.config.privacy.budget, setup.config
    if budget.epsilon is None and budget.participations is None and budget.leakage_cap is None:
        return ()
    here = config.model_copy(update={"engine": "local", "source": Randomness()})
    with suppress(FieldError):  # what is refused, the run refuses
        promise = promised(replace(setup, config=here))
        if FEW * promise.rounds < promise.planned:
            return (
                f"[privacy.budget] holds {promise.rounds} of the {promise.planned} rounds that are asked for: plan the "
                "noise for as many as are wanted, or ask for fewer (fedveil advise says what the run promises)",
            )
    return ()


def choices(
    setup: Setup,
    promise: Promise,
    epsilon: float,
    examples: int | None = None,
    dimension: int | None = None,
    delta: float | None = None,
) -> tuple[Choice, ...]:
    """What else reaches a total epsilon for this federation, at the configuration's delta or another one."""
    config, promised = setup.config, promise.guarantee
    own = setup.config.privacy.options  # what is planned there stays planned
    people = own.get("people")
    return advise(
        clients=setup.cohort,
        examples=examples or round(own.get("examples") or 0) or max(1, int(median(c.examples for c in setup.clients))),
        dimension=dimension or setup.learner.layout.size,
        rounds=config.rounds,
        epsilon=epsilon,
        delta=delta or config.privacy.budget.delta,
        relation=promised.relation if promised.proven and not promised.by_distance else "zero-out",
        people=None if people is None else max(1, round(people)),
        unit="person" if promised.unit == "person" else None,
        records_per_person=None if setup.method.noisy is None else setup.method.noisy.noisy_steps.images or None,
        silos_per_person=own.get("silos_per_person", 1),
    )


def _trusted(federation: Federation, opened: Broadcast, rounds: int) -> int:
    """Let the server record its rounds; their number."""
    server = federation.server
    # replies of one kind cost the same: the rule is asked once for each
    known: dict[tuple[int, ...], Spend] = {}
    for round_ in range(1, rounds + 1):
        answering = _admitted(federation, opened, round_)
        if not answering:
            return round_ - 1
        counts = _counts(federation, round_, answering)
        if counts not in known:
            known[counts] = _cost(federation, opened, counts)
        if not server.forecast_release(round_, COMBINE, known[counts]):
            return round_ - 1
        if server.publishing.metrics != "off":
            figures = [{"loss": 0.0, "examples": float(c.held_out)} for c in federation.clients]
            server.publish(round_, *publishable(figures))
        if federation.validators is not None:
            federation.validators.forecast(round_)
    return rounds


def _admitted(federation: Federation, opened: Broadcast, round_: int) -> list[int]:
    """Those of a round's cohort who do not decline, by budgets that count participations; recorded as in the run."""
    broadcast, cohort = _in_round(opened, round_), federation.cohort(round_)
    verdicts = federation.parties.admit(broadcast, [p for p in cohort if federation.embedded.records(p)])
    return [p for p in cohort if not isinstance(verdicts.get(p), Refusal)]


def _in_round(opened: Broadcast, round_: int, **changes: Any) -> Broadcast:
    """The first broadcast as that of another round."""
    return replace(opened, public=replace(opened.public, round=round_, **changes))


def _counts(federation: Federation, round_: int, answering: Sequence[int]) -> tuple[int, ...]:
    """Numbers of examples of a round's replies, as far as the server's rule looks at them."""
    rule = federation.server.method.server.rule
    if rule is None or not rule.by_examples:
        return (1,) * len(answering)
    return tuple(federation.embedded.training_data(p, round_).examples for p in answering)


def _cost(federation: Federation, opened: Broadcast, counts: Sequence[int]) -> Spend:
    """What the server states for a round in which nobody moves."""
    server, start = federation.server, opened.models[0]
    facts = ServerFacts(
        broadcast=opened,
        layout=federation.layout,
        partitions=tuple(range(len(counts))),
        public_update=torch.zeros_like(start),
    )
    own, client = ClientFacts(broadcast=opened, layout=federation.layout), server.method.client
    sent = ((Release("model", start), Release("count", torch.tensor(float(c), dtype=torch.float64))) for c in counts)
    replies = [client.protect(releases, own, client.init(), NoSource()).releases for releases in sent]
    return server.method.server.combine(replies, facts, server.state, ReproducibleSource(0)).spend


def _apart(federation: Federation, opened: Broadcast, rounds: int, ledgers: Ledgers) -> tuple[int, dict[str, Ledger]]:
    """Let the clients record their rounds: the rounds' number, and everybody's ledger.

    Clients with the same parameters that are asked in the same rounds have the same ledger: one of them stands for all.
    """
    cohorts = [federation.cohort(round_) for round_ in range(1, rounds + 1)]
    asked: dict[int, list[int]] = {}
    for round_, cohort in enumerate(cohorts, 1):
        for partition in cohort:
            asked.setdefault(partition, []).append(round_)
    kinds: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for partition, when in asked.items():
        if federation.embedded.records(partition):
            kinds.setdefault((id(federation.parties.method_of(partition).client), tuple(when)), []).append(partition)
    alike = {same[0]: same for same in kinds.values()}
    stands_for = {p: first for first, same in alike.items() for p in same}
    done = 0
    for round_, cohort in enumerate(cohorts, 1):
        why = _foreseen(federation, opened, round_, cohort, stands_for)
        if why:
            if not done and not federation.party(cohort[0]).counts:  # a budget without a round is no error
                raise FieldError("privacy.method", federation.method.name, why)
            break
        done = round_
        if federation.validators is not None:
            federation.validators.forecast(round_)
    books = dict(ledgers.books)
    for first, same in alike.items():
        books |= {str(p): books[str(first)] for p in same if str(first) in books}
    return done, books


def _foreseen(
    federation: Federation, opened: Broadcast, round_: int, cohort: Sequence[int], stands_for: Mapping[int, int]
) -> str:
    """Let a cohort record what a round costs; why there is no such round, or "".

    A sum is of all who are asked: where some decline, the others are asked anew, as in the run, and are charged again.
    """
    parties, asked, attempt = federation.parties, list(cohort), 0
    while True:
        changes = {"roster": parties.site_keys.roster(asked), "attempt": attempt} if parties.site_keys else {}
        broadcast = _in_round(opened, round_, **changes)
        playing = sorted({stands_for[p] for p in asked if p in stands_for})
        if not parties.site_keys:
            verdicts = {p: federation.party(p).forecast_round(broadcast) for p in playing}
        else:
            verdicts = {p: _refusal(federation.party(p).admit(broadcast)) for p in playing}
        refused = {p: verdict.reason for p, verdict in verdicts.items() if verdict is not None}
        left = [p for p in asked if stands_for.get(p) not in refused]
        if refused and len(left) < _least(federation):
            return next(iter(refused.values()))
        if not parties.site_keys:
            return ""
        if not refused:
            for p in playing:
                federation.party(p).record_quote(broadcast)
            return ""
        asked, attempt = left, attempt + 1


def _least(federation: Federation) -> int:
    """Replies without which there is no round: a sum's noise is whole with so many shares."""
    client = federation.method.client
    if federation.parties.site_keys:
        return FEWEST
    if isinstance(client, RecordDP) and client.trust == "trusted sum":
        return client.silos - client.tolerated + 1
    return 1


def _refusal(verdict: Refusal | Releases | None) -> Refusal | None:
    return verdict if isinstance(verdict, Refusal) else None


def guarantees_of(
    method: Method, books: Mapping[str, Ledger], delta: float, on: Sequence[str] = ()
) -> tuple[Guarantee, dict[str, Any]]:
    """The guarantee that counts, and the parties': the trusted server's, or the worst and the median client's."""
    totals = totals_of(method.client.trust, books, on)
    clients, worst, validation = totals.clients, totals.worst, totals.validation
    beside = {} if validation is None else {"validation clients": guarantee_values(validation, delta)}
    if method.client.trust == "central":
        leakages = [[e.spend.leakage for e in book.entries if e.spend.leakage is not None] for book in books.values()]
        if most := max(leakages, key=math.fsum, default=[]):  # the indices that a client reported, beside its models
            index = {"participations": len(most), "leakage": math.fsum(most)}
            beside = {"worst client": guarantee_values(replace(unprotected(), scope="total"), delta) | index, **beside}
        return worst, {SERVER: guarantee_values(worst, delta), **beside}
    if not clients:
        return worst, {"worst client": guarantee_values(worst, delta), **beside}
    cost = {p: (not g.proven, g.cost, len(books[p].entries)) for p, g in clients.items()}
    order = sorted(clients, key=lambda p: (cost[p], p))
    values: dict[str, Any] = {}
    composed = worst.by_distance and find_spec("dp_accounting") is not None
    apart = [length / worst.bound.slope for length in REACH] if composed else []
    middle = order[(len(order) - 1) // 2]
    for name, party, guarantee in (("worst client", order[-1], worst), ("median client", middle, clients[middle])):
        spends = [e.spend for e in books[party].entries]
        leakage = [s.leakage for s in spends if s.leakage is not None]
        extra: dict[str, Any] = {"leakage": math.fsum(leakage)} if leakage else {}
        if composed:
            epsilons = [guarantee.epsilon_at(distance, delta) for distance in apart]
            extra["curve"] = {"distance": apart, "epsilon": epsilons, "delta": delta}
        values[name] = {**guarantee_values(guarantee, delta), "participations": len(spends), **extra}
    if composed:
        alike, one = Counter(g.bound for g in clients.values()), 1 / worst.bound.slope
        each = sorted((bound.epsilon_at(one, delta), n) for bound, n in alike.items())
        values["worst client"]["over clients"] = {
            "distance": one,
            "epsilon": [epsilon for epsilon, _ in each],
            "clients": [n for _, n in each],
            "delta": delta,
        }
    return worst, {**values, **beside}
