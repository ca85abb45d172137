"""Facts of a run that follow from its ledgers alone: parties, trust, delta, conditions and promises.

The first lines of a run's ledgers bind its parties and the terms of every epsilon (`fedveil_lab.runs.opening`). Ledgers
of earlier versions bind nothing. The terms are then taken from the author, and `Carried.bound` is False.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fedveil.accounting import Entry, Ledger
from fedveil.accounting.ledger import RUN_OF_SITES, opening_digest
from fedveil.engines.history import totals_of
from fedveil.engines.party import COMBINE, SERVER
from fedveil.evidence.books import Book, plain, promise_of_sites
from fedveil.evidence.recomputed import too_small
from fedveil.evidence.summary import REPRODUCIBLE

Promises = Mapping[str, Mapping[str, Any]]  # by party
CLIENT, VALIDATION = "worst client", "validation clients"


@dataclass(frozen=True, eq=False)
class Carried:
    """Facts of one run, read from its ledgers.

    Attributes
    ----------
    run : str
        Id of the run in the ledgers.
    bound : bool
        Whether the ledgers' first lines bind the parties and the terms; else the author stated them.
    setting, method, trust, delta, engine : str, str, str, float, str
        Terms of the run.
    clients : int or None
        Number of training clients; None if the ledgers do not know it.
    rounds : int
        Last round of the server.
    source : str
        Kind of the noise's source.
    mechanisms : list of str
        Mechanisms of the noise.
    budgets : list of dict
        Budgets that were declared before the first release.
    promises : dict
        Promises by party, of every party that released something.
    ledgers : list of dict
        Last checksums and digests of the ledgers, by party.
    sites : list of dict
        Last checksums and digests of the ledgers of clients' own data sets.
    faults : list of str
        Contradictions, and missing parties.
    """

    run: str
    bound: bool
    setting: str
    method: str
    trust: str
    delta: float
    engine: str
    clients: int | None
    rounds: int
    source: str
    mechanisms: Sequence[str]
    budgets: Sequence[Mapping[str, float]]
    promises: Promises
    ledgers: Sequence[Mapping[str, Any]]
    sites: Sequence[Mapping[str, Any]]
    faults: Sequence[str]

    @property
    def head(self) -> str:
        """Common head of all ledgers: SHA-256 over their parties and last checksums."""
        heads = [f"{one['party']} {one['head']}\n" for one in (*self.ledgers, *self.sites)]
        return hashlib.sha256("".join(heads).encode()).hexdigest()


def carried(
    run: str, books: Mapping[str, Book], told: Mapping[str, Any], sets: Mapping[str, Book]
) -> Carried:
    """Read the facts of one run from its ledgers, and compute its promises.

    Parameters
    ----------
    run : str
        Id of the run.
    books : mapping of str to Book
        Ledgers of the run, by party.
    told : mapping
        Statements of the author, used if no first line of a ledger makes them.
    sets : mapping of str to Book
        Ledgers of clients' own data sets.
    """
    ledgers = {party: book.ledger for party, book in sorted(books.items())}
    opening = _opening_of(ledgers)
    terms = dict(told) if opening is None else opening
    trust = str(terms["trust"])
    if opening is None:
        trust = _trust_of(ledgers, trust)
    delta = float(terms["delta"])
    own = books_of_sites(books, told, sets)
    every = [*ledgers.values(), *(book.ledger for book in own.values())]
    entries = list(chain.from_iterable(ledger.entries for ledger in every))
    values = Carried(
        run=run,
        bound=opening is not None,
        setting=str(terms["setting"]),
        method=str(terms["method"]),
        trust=trust,
        delta=delta,
        engine=str(terms["engine"]),
        clients=terms["clients"],
        rounds=_last_round(entries),
        source=_source_of(entries),
        mechanisms=sorted({entry.spend.mechanism for entry in entries if entry.source != "none"}),
        budgets=_distinct_budgets(ledgers.values()),
        promises=_promises_of_run(ledgers, trust, delta, terms)
        | promise_of_sites(trust, own, delta),
        ledgers=[book.values() for _, book in sorted(books.items())],
        sites=[book.values() for _, book in sorted(own.items())],
        faults=[*_of_parties(ledgers, trust), *_too_small(every, terms.get("terms", {}))],
    )
    return Carried(**json.loads(json.dumps(vars(values))))  # plain values, as in a report


def _opening_of(ledgers: Mapping[str, Ledger]) -> Mapping[str, Any] | None:
    """Return the first line of the server's ledger; None if it binds nothing."""
    return ledgers[SERVER].opening if SERVER in ledgers else None


def _promises_of_run(
    ledgers: Mapping[str, Ledger], trust: str, delta: float, terms: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Compute the promises from the ledgers in the server's folder, also those of a deployed run's clients."""
    central = trust == "central"
    if not ledgers or (not central and len(ledgers) == 1):
        return {}
    totals = totals_of(trust, ledgers, terms["conditions"])
    promises = {SERVER if central else CLIENT: plain(totals.worst, delta)}
    if totals.validation is not None:
        promises[VALIDATION] = plain(totals.validation, delta)
    return promises


def _last_round(entries: Iterable[Entry]) -> int:
    combined = [entry.key[0] for entry in entries if entry.key[1] == COMBINE]
    return max(combined, default=0)


def _source_of(entries: Iterable[Entry]) -> str:
    kinds = {entry.source for entry in entries} - {"none", ""}
    if "reproducible" in kinds:
        return REPRODUCIBLE
    return ", ".join(sorted(kinds)) or "none"


def _distinct_budgets(ledgers: Iterable[Ledger]) -> list[Mapping[str, float]]:
    budgets: list[Mapping[str, float]] = []
    for ledger in ledgers:
        if ledger.budget and ledger.budget not in budgets:
            budgets.append(ledger.budget)
    return budgets


def _too_small(ledgers: Iterable[Ledger], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text for each promise that is smaller than the noise in its line allows."""
    for ledger in ledgers:
        why = too_small(ledger.party, ledger.entries, options)
        if why:
            yield why


def books_of_sites(
    books: Mapping[str, Book], told: Mapping[str, Any], sets: Mapping[str, Book]
) -> dict[str, Book]:
    """Return the lines of clients' data sets' ledgers that belong to one deployed run (arguments as for `carried`)."""
    runs = runs_of_sites(books, told)
    found = {}
    for name, whole in sets.items() if runs else ():
        book = whole.of(*runs)
        if book.ledger.entries:
            found[name] = book
    return found


def runs_of_sites(books: Mapping[str, Book], told: Mapping[str, Any]) -> list[str]:
    """Return the framework's ids of a deployed run: one, or more if its server continued."""
    openings: Sequence[Mapping[str, Any]] = books[SERVER].ledger.openings if SERVER in books else ()
    named = [one.get(RUN_OF_SITES) for one in openings or (told,)]
    return list(dict.fromkeys(map(str, filter(None, named))))


def _trust_of(ledgers: Mapping[str, Ledger], told: str) -> str:
    """Return the trust model from lines of an earlier version: that of clients with their own noise, if any."""
    models = set()
    for party, ledger in ledgers.items():
        if party != SERVER:
            models |= {entry.spend.guarantee.trust for entry in ledger.entries}
    local = sorted(models - {"central"})
    return local[0] if local else told


def _of_parties(ledgers: Mapping[str, Ledger], trust: str) -> Iterator[str]:
    """Yield faults: missing or unknown parties, and first lines of another run."""
    opening = _opening_of(ledgers)
    if opening is None:
        if any(ledger.opening is not None for ledger in ledgers.values()):
            yield "the server's ledger, which names the parties, is missing or names none"
        return
    bound, mark = set(opening["parties"]), opening_digest(opening)
    for party in sorted(bound - ledgers.keys()):
        yield f"{party} is bound in the run's first line, and its ledger is missing"
    for party in sorted(ledgers.keys() - bound):
        silent = trust == "central" and all(
            entry.source == "none" for entry in ledgers[party].entries
        )
        if not silent:
            yield f"{party} is not bound in the run's first line"
    for party in sorted((bound & ledgers.keys()) - {SERVER}):
        if ledgers[party].opening != {"of": mark}:
            yield f"the ledger of {party} begins another run"
