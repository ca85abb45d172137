"""What a run's ledgers carry, with no word of anybody beside them: parties, trust, delta, conditions and promises.

The first lines of a run's ledgers bind its parties and the terms of every epsilon (`fedveil_lab.runs.opening`). Ledgers
of earlier versions bind nothing: what only an opening says is then taken from the author, and `Carried.bound` tells so.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.accounting import Ledger
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
    """One run, as its ledgers have it.

    Attributes
    ----------
    run : str
        The id in its ledgers.
    bound : bool
        Whether the ledgers' first lines bind the parties and the terms; else the author said them.
    setting, method, trust, delta, engine : str, str, str, float, str
        Of the run.
    clients : int or None
        That train; None where the ledgers do not know.
    rounds : int
        The server's last one.
    source : str
        Of the noise.
    mechanisms : list of str
        That drew it.
    budgets : list of dict
        Declared before the first release.
    promises : dict
        By party, of whoever released something under a promise, or without one.
    ledgers : list of dict
        Heads and digests, by party.
    sites : list of dict
        The same, of clients' own data sets.
    faults : list of str
        What contradicts itself, or is missing.
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
        """One head of all ledgers together: SHA-256 over parties and heads."""
        heads = "".join(f"{one['party']} {one['head']}\n" for one in (*self.ledgers, *self.sites))
        return hashlib.sha256(heads.encode()).hexdigest()


def carried(run: str, books: Mapping[str, Book], told: Mapping[str, Any], sets: Mapping[str, Book]) -> Carried:
    """Add up one run's ledgers.

    Parameters
    ----------
    run : str
        Its id.
    books : mapping of str to Book
        Its ledgers, by party.
    told : mapping
        What the author says; used where no opening says it.
    sets : mapping of str to Book
        Ledgers of clients' own data sets.
    """
    ledgers = {party: book.ledger for party, book in sorted(books.items())}
    opening = ledgers[SERVER].opening if SERVER in ledgers else None
    terms = dict(told) if opening is None else opening
    trust = _trust_of(ledgers, str(terms["trust"])) if opening is None else str(terms["trust"])
    delta = float(terms["delta"])
    promises: dict[str, dict[str, Any]] = {}
    if ledgers and (trust == "central" or len(ledgers) > 1):  # of a deployed run the clients' ledgers lie with them
        totals = totals_of(trust, ledgers, terms["conditions"])
        promises[SERVER if trust == "central" else CLIENT] = plain(totals.worst, delta)
        if totals.validation is not None:
            promises[VALIDATION] = plain(totals.validation, delta)
    own = books_of_sites(books, told, sets)
    promises |= promise_of_sites(trust, own, delta)
    every = [*ledgers.values(), *(book.ledger for book in own.values())]
    entries = [entry for ledger in every for entry in ledger.entries]
    weaker = [too_small(ledger.party, ledger.entries, terms.get("terms", {})) for ledger in every]
    kinds = {entry.source for entry in entries} - {"none", ""}
    values = Carried(
        run=run,
        bound=opening is not None,
        setting=str(terms["setting"]),
        method=str(terms["method"]),
        trust=trust,
        delta=delta,
        engine=str(terms["engine"]),
        clients=terms["clients"],
        rounds=max((e.key[0] for e in entries if e.key[1] == COMBINE), default=0),
        source=REPRODUCIBLE if "reproducible" in kinds else ", ".join(sorted(kinds)) or "none",
        mechanisms=sorted({entry.spend.mechanism for entry in entries if entry.source != "none"}),
        budgets=_distinct([ledger.budget for ledger in ledgers.values() if ledger.budget]),
        promises=promises,
        ledgers=[book.values() for _, book in sorted(books.items())],
        sites=[book.values() for _, book in sorted(own.items())],
        faults=[*_of_parties(ledgers, trust), *filter(None, weaker)],
    )
    return Carried(**json.loads(json.dumps(vars(values))))  # as a report holds it


def books_of_sites(books: Mapping[str, Book], told: Mapping[str, Any], sets: Mapping[str, Book]) -> dict[str, Book]:
    """Ledgers of clients' own data sets, as far as they are of one deployed run; see `carried` for the arguments."""
    runs = _runs_of_sites({party: book.ledger for party, book in books.items()}, told)
    seen = {name: whole.of(*runs) for name, whole in sets.items()} if runs else {}
    return {name: book for name, book in seen.items() if book.ledger.entries}


def _runs_of_sites(ledgers: Mapping[str, Ledger], told: Mapping[str, Any]) -> list[str]:
    """The framework's ids of a deployed run: one, and more where its server went on."""
    openings = ledgers[SERVER].openings if SERVER in ledgers else []
    named = [one.get(RUN_OF_SITES) for one in openings] if openings else [told.get(RUN_OF_SITES)]
    return list(dict.fromkeys(str(name) for name in named if name))


def _distinct(budgets: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    return [budget for i, budget in enumerate(budgets) if budget not in budgets[:i]]


def _trust_of(ledgers: Mapping[str, Ledger], told: str) -> str:
    """The trust model, from lines of an earlier version: that of clients which protect themselves, if any do."""
    clients = [ledger for party, ledger in ledgers.items() if party != SERVER]
    apart = sorted({entry.spend.guarantee.trust for ledger in clients for entry in ledger.entries} - {"central"})
    return apart[0] if apart else told


def _of_parties(ledgers: Mapping[str, Ledger], trust: str) -> Iterator[str]:
    """Parties that are missing or unknown, and first lines of another run."""
    opening = ledgers[SERVER].opening if SERVER in ledgers else None
    if opening is None:
        if any(ledger.opening is not None for ledger in ledgers.values()):
            yield "the server's ledger, which names the parties, is missing or names none"
        return
    bound, mark = set(opening["parties"]), opening_digest(opening)
    for party in sorted(bound - ledgers.keys()):
        yield f"{party} is bound in the run's first line, and its ledger is missing"
    for party in sorted(ledgers.keys() - bound):
        silent = trust == "central" and all(entry.source == "none" for entry in ledgers[party].entries)
        if not silent:
            yield f"{party} is not bound in the run's first line"
    for party in sorted((bound & ledgers.keys()) - {SERVER}):
        if ledgers[party].opening != {"of": mark}:
            yield f"the ledger of {party} begins another run"
