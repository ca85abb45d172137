"""Compute the promise of a run: before training from its configuration, afterwards from its ledgers.

For the forecast, the parties go through all rounds and record what each release would cost. Nothing is trained or sent.
In both cases the ledgers are summed in the same way.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from operator import attrgetter
from statistics import median
from typing import Any

import torch

from fedveil.accounting import (
    Choice,
    Guarantee,
    Ledger,
    Relation,
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
from fedveil.methods import Broadcast, ClientFacts, Method, RecordDP, Refusal, ServerFacts
from fedveil.secure import FEWEST
from fedveil_lab.config import Config
from fedveil_lab.config.course import Randomness
from fedveil_lab.runs.prepare import Setup, prepare

FEW = 2  # a budget that holds fewer than one in so many rounds is said
REACH = (
    0.1,
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
)  # mu of the worst client at the distances of its curve, or about


@dataclass(frozen=True)
class Promise:
    """Promise of a whole run, if all clients answer and nothing stops it early.

    Attributes
    ----------
    guarantee : Guarantee
        Main total: the trusted server's, or the one for every client. It does not cover a choice among hypotheses,
        since their distance depends on training.
    validation : Guarantee or None
        Promise for validation clients, if their losses are separate releases.
    rounds, planned : int
        Number of rounds that the budgets allow, and of configured rounds.
    first_apart : float or None
        Distance between the first hypotheses if there are several, else None.
    at_most : bool
        Whether a budget is charged by the actual releases, so that the run may end earlier.
    """

    guarantee: Guarantee
    validation: Guarantee | None
    rounds: int
    planned: int
    first_apart: float | None = None
    at_most: bool = False

    @property
    def unknown(self) -> tuple[str, ...]:
        """Facts that cannot be known before the run, one sentence each."""
        said: list[str] = []
        if self.at_most:
            said.append(
                f"how many of these {self.rounds} rounds the budget holds: it is charged what the releases tell"
            )
        if self.first_apart is not None and self.guarantee.by_distance:
            least = rounded_up(self.guarantee.cost * self.first_apart, 3)
            said.append(
                "how much the choice among hypotheses tells: it follows their largest distance in any round. Those of "
                f"the first round are {self.first_apart:.3g} apart, which alone gives {least}; the run's summary has "
                "the whole"
            )
        return tuple(said)


def prepared(config: Config) -> Setup:
    """Prepare a run for a forecast, without pretraining, which costs no privacy.

    Raises
    ------
    FieldError
        As `prepare`.
    """
    return prepare(
        config.model_copy(update={"engine": "local", "source": Randomness(), "pretraining": None})
    )


def promised(setup: Setup) -> Promise:
    """Forecast the promise of a setup's run.

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
        done, books = _by_clients(federation, opened, rounds, ledgers)
    totals = totals_of(setup.method.client.trust, books, read_off(setup.config.read_off))
    at_most = setup.config.privacy.budget.epsilon is not None and any(map(_charged, books.values()))
    guarantee, apart = replace(totals.worst, hypotheses_apart=None), None
    if len(opened.models) > 1:
        apart = opened.apart
    return Promise(guarantee, totals.validation, done, rounds, apart, at_most)


def _charged(book: Ledger) -> bool:
    """Whether a budget is charged by actual releases rather than by their worst case."""
    return any(entry.spend.charge is not None for entry in book.entries)


def few_rounds(setup: Setup) -> tuple[str, ...]:
    """Return a warning if a budget allows only a few of a run's rounds."""
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
    """List other ways to a total epsilon for this federation, at the configuration's delta or another one.

    Every promise holds under the same condition as the configuration's own: what was read off the data.
    """
    promised, noisy = promise.guarantee, setup.method.noisy
    own = setup.config.privacy.options  # what is planned there stays planned
    planned = round(own.get("examples") or 0)
    usual = max(1, int(median(client.examples for client in setup.clients)))
    people = own.get("people")
    if people is not None:
        people = max(1, round(people))
    unit = promised.unit if promised.unit == "person" else None
    images: int | None = None
    if noisy is not None:
        images = noisy.noisy_steps.images or None
    relation: Relation = "zero-out"
    if promised.proven and not promised.by_distance:
        relation = promised.relation
    conditions = read_off(setup.config.read_off)
    found = advise(
        clients=setup.cohort,
        examples=examples or planned or usual,
        dimension=dimension or setup.learner.layout.size,
        rounds=setup.config.rounds,
        epsilon=epsilon,
        delta=delta or setup.config.privacy.budget.delta,
        relation=relation,
        people=people,
        unit=unit,
        records_per_person=images,
        silos_per_person=own.get("silos_per_person", 1),
    )
    return tuple(_under(choice, conditions) for choice in found)


def _under(choice: Choice, conditions: tuple[str, ...]) -> Choice:
    """Add conditions to a choice's promise."""
    if choice.guarantee is None or not conditions:
        return choice
    every = (*choice.guarantee.conditions, *conditions)
    return replace(choice, guarantee=replace(choice.guarantee, conditions=every))


def _trusted(federation: Federation, opened: Broadcast, rounds: int) -> int:
    """Let the server record the cost of its rounds; return their number."""
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
            figures = [
                {"loss": 0.0, "examples": float(client.held_out)} for client in federation.clients
            ]
            server.publish(round_, *publishable(figures))
        if federation.validators is not None:
            federation.validators.forecast(round_)
    return rounds


def _admitted(federation: Federation, opened: Broadcast, round_: int) -> list[int]:
    """Return the clients of a cohort whose budgets allow one more participation; it is recorded as in the run."""
    cohort = federation.cohort(round_)
    asked = [partition for partition in cohort if federation.embedded.records(partition)]
    verdicts = federation.parties.admit(_in_round(opened, round_), asked)
    return [partition for partition in cohort if not isinstance(verdicts.get(partition), Refusal)]


def _in_round(opened: Broadcast, round_: int, **changes: Any) -> Broadcast:
    """Return the first broadcast with the number of another round."""
    return replace(opened, public=replace(opened.public, round=round_, **changes))


def _counts(federation: Federation, round_: int, answering: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of examples in a round's replies, if the server's rule uses them."""
    rule = federation.server.method.server.rule
    if rule is None or not rule.by_examples:
        return (1,) * len(answering)
    return tuple(federation.embedded.training_data(p, round_).examples for p in answering)


def _cost(federation: Federation, opened: Broadcast, counts: Sequence[int]) -> Spend:
    """Return the cost that the server states for a round in which no model changes."""
    server, start = federation.server, opened.models[0]
    facts = ServerFacts(
        broadcast=opened,
        layout=federation.layout,
        partitions=tuple(range(len(counts))),
        public_update=torch.zeros_like(start),
    )
    own, client = ClientFacts(broadcast=opened, layout=federation.layout), server.method.client
    replies = []
    for count in counts:
        releases = (
            Release("model", start),
            Release("count", torch.tensor(float(count), dtype=torch.float64)),
        )
        replies.append(client.protect(releases, own, client.init(), NoSource()).releases)
    return server.method.server.combine(replies, facts, server.state, ReproducibleSource(0)).spend


def _by_clients(
    federation: Federation, opened: Broadcast, rounds: int, ledgers: Ledgers
) -> tuple[int, dict[str, Ledger]]:
    """Let clients record the cost of their rounds; return the number of rounds, and all ledgers.

    Clients with the same parameters and rounds have equal ledgers, so one of them is computed for all.
    """
    cohorts = [federation.cohort(round_) for round_ in range(1, rounds + 1)]
    alike = _same_ledgers(federation, cohorts)
    stands_for: dict[int, int] = {}
    done = 0
    for first, same in alike.items():
        stands_for |= dict.fromkeys(same, first)
    for round_, cohort in enumerate(cohorts, 1):
        why = _record_round(federation, opened, round_, cohort, stands_for)
        if why:
            if not done and not federation.party(cohort[0]).counts:
                # a budget without a round is no error
                raise FieldError("privacy.method", federation.method.name, why)
            break
        done = round_
        if federation.validators is not None:
            federation.validators.forecast(round_)
    books = dict(ledgers.books)
    for first, same in alike.items():
        if str(first) in books:
            books |= dict.fromkeys(map(str, same), books[str(first)])
    return done, books


def _same_ledgers(federation: Federation, cohorts: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Group clients that have the same parameters and rounds; each group is keyed by its first client."""
    asked: dict[int, list[int]] = {}
    for round_, cohort in enumerate(cohorts, 1):
        for partition in cohort:
            if federation.embedded.records(partition):
                asked.setdefault(partition, []).append(round_)
    groups: dict[tuple[int, ...], list[int]] = {}
    for partition, when in asked.items():
        groups.setdefault((id(federation.parties.side(partition)), *when), []).append(partition)
    return {same[0]: same for same in groups.values()}


def _record_round(
    federation: Federation,
    opened: Broadcast,
    round_: int,
    cohort: Sequence[int],
    stands_for: Mapping[int, int],
) -> str:
    """Let a cohort record the cost of a round; return why the round cannot take place, or "".

    A sum needs all clients that are asked. If some decline, the others are asked again, as in the run, and are charged
    again.
    """
    keys, asked, attempt = federation.parties.site_keys, list(cohort), 0
    while True:
        broadcast = _in_round(opened, round_)
        if keys:
            broadcast = _in_round(opened, round_, roster=keys.roster(asked), attempt=attempt)
        playing = sorted({stands_for[partition] for partition in asked if partition in stands_for})
        refused: dict[int, str] = {}
        for partition in playing:
            party = federation.party(partition)
            if keys:
                verdict = party.admit(broadcast)
            else:
                verdict = party.forecast_round(broadcast)
            if isinstance(verdict, Refusal):
                refused[partition] = verdict.reason
        left = [partition for partition in asked if stands_for.get(partition) not in refused]
        if refused and len(left) < _least(federation):
            return next(iter(refused.values()))
        if not keys:
            return ""
        if not refused:
            for partition in playing:
                federation.party(partition).record_quote(broadcast)
            return ""
        asked, attempt = left, attempt + 1


def _least(federation: Federation) -> int:
    """Return the smallest number of replies for a round; a sum needs so many shares for its full noise."""
    client = federation.method.client
    if federation.parties.site_keys:
        return FEWEST
    if isinstance(client, RecordDP) and client.trust == "trusted sum":
        return client.silos - client.tolerated + 1
    return 1


def guarantees_of(
    method: Method, books: Mapping[str, Ledger], delta: float, on: Sequence[str] = ()
) -> tuple[Guarantee, dict[str, Any]]:
    """Return the main guarantee and the parties': the trusted server's, or those of the worst and the median client."""
    totals = totals_of(method.client.trust, books, on)
    worst, beside = totals.worst, dict[str, Any]()
    if totals.validation is not None:
        beside = {"validation clients": guarantee_values(totals.validation, delta)}
    if method.client.trust == "central":
        return worst, {SERVER: guarantee_values(worst, delta), **_indices(books, delta), **beside}
    if not totals.clients:
        return worst, {"worst client": guarantee_values(worst, delta), **beside}
    order = _by_cost(totals.clients, books)
    median_party = order[(len(order) - 1) // 2]
    values = {
        "worst client": _client_values(worst, books[order[-1]], worst, delta),
        "median client": _client_values(
            totals.clients[median_party], books[median_party], worst, delta
        ),
    }
    if _has_curve(worst):
        values["worst client"]["over clients"] = _over_clients(totals.clients, worst, delta)
    return worst, {**values, **beside}


def _indices(books: Mapping[str, Ledger], delta: float) -> dict[str, Any]:
    """Return the cost to the worst client of reporting hypothesis indices, under central trust."""
    worst: list[float] = []
    for book in books.values():
        leakages = [
            entry.spend.leakage for entry in book.entries if entry.spend.leakage is not None
        ]
        if math.fsum(leakages) > math.fsum(worst):
            worst = leakages
    if not worst:
        return {}
    promise = guarantee_values(replace(unprotected(), scope="total"), delta)
    return {"worst client": {**promise, "participations": len(worst), "leakage": math.fsum(worst)}}


def _by_cost(clients: Mapping[str, Guarantee], books: Mapping[str, Ledger]) -> list[str]:
    """Sort clients by their promise, the weakest last."""

    def cost(party: str) -> tuple[bool, float, int, str]:
        guarantee = clients[party]
        return not guarantee.proven, guarantee.cost, len(books[party].entries), party

    return sorted(clients, key=cost)


def _has_curve(worst: Guarantee) -> bool:
    return worst.by_distance and find_spec("dp_accounting") is not None


def _client_values(
    guarantee: Guarantee, book: Ledger, worst: Guarantee, delta: float
) -> dict[str, Any]:
    """Return a client's promise as plain values, with its participations, leakage and curve."""
    leakage = [entry.spend.leakage for entry in book.entries if entry.spend.leakage is not None]
    values = {**guarantee_values(guarantee, delta), "participations": len(book.entries)}
    if leakage:
        values["leakage"] = math.fsum(leakage)
    if _has_curve(worst):
        distances = [length / worst.bound.slope for length in REACH]
        epsilons = [guarantee.epsilon_at(distance, delta) for distance in distances]
        values["curve"] = {"distance": distances, "epsilon": epsilons, "delta": delta}
    return values


def _over_clients(
    clients: Mapping[str, Guarantee], worst: Guarantee, delta: float
) -> dict[str, Any]:
    """Count the clients by their epsilon at one distance."""
    distance = 1 / worst.bound.slope
    counts = Counter(map(attrgetter("bound"), clients.values()))
    each = []
    for bound, count in counts.items():
        each.append((bound.epsilon_at(distance, delta), count))
    epsilons, numbers = [], []
    for epsilon, count in sorted(each):
        epsilons.append(epsilon)
        numbers.append(count)
    return {"distance": distance, "epsilon": epsilons, "clients": numbers, "delta": delta}
