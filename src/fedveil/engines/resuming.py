"""Checks of ledgers before a run continues, because a missing round would be free, and a budget would start over."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy

from fedveil.accounting import Ledger, Spend
from fedveil.engines.parties import Parties
from fedveil.engines.party import VALIDATE, listed_as
from fedveil.errors import FieldError
from fedveil.methods import TrustedServer

Asked = Mapping[int, Sequence[int]]  # rounds in which each client was asked, by partition


def require_lines(books: Mapping[str, Ledger], lines: Mapping[str, int]) -> None:
    """Refuse ledgers with fewer lines than a checkpoint counted.

    Raises
    ------
    FieldError
        For the first such ledger; the text names its party.
    """
    for party, count in lines.items():
        if party not in books or books[party].lines < count:
            accepted = f"{party!r} has fewer lines than the {count} of the checkpoint: give the ledger that has them"
            raise FieldError("ledgers", party, accepted)


def require_validated(books: Sequence[Ledger], last: int) -> None:
    """Refuse ledgers of which none has the validation loss of a round.

    Raises
    ------
    FieldError
        If none has it; the text names the round.
    """
    if not any(book.find((last, VALIDATE)) for book in books):
        raise FieldError(
            "ledgers", last, "no ledger has the validation loss of this round: give the run's own"
        )


def asked_until(
    last: int, cohort: Callable[[int], Sequence[int]], records: Callable[[int], bool]
) -> Asked:
    """List the rounds up to the last one in which each client was asked; `records` says which clients' ledgers count."""
    asked: dict[int, list[int]] = {}
    for number in range(1, last + 1):
        for partition in cohort(number):
            if records(partition):
                asked.setdefault(partition, []).append(number)
    return asked


def require_books(parties: Parties, asked: Asked) -> None:
    """Refuse a client's ledger without a round in which it was asked, unless its budget or policy made it decline.

    The cost of a round is read from the ledger of another client of the round. If a cost depends on a client's own
    releases, only a ledger without any round is noticed.

    Raises
    ------
    FieldError
        For the first such ledger; the text names the client and the round.
    """
    counted = {
        partition: rounds for partition, rounds in asked.items() if _counts(parties, partition)
    }
    held = {partition: _rounds_of(_ledger(parties, partition)) for partition in counted}
    combined = set[int]().union(*held.values())
    paid = _costs(parties, counted)
    for partition, rounds in counted.items():
        for round_ in rounds:
            if round_ in held[partition]:
                continue
            spend = paid.get((round_, id(parties.side(partition))))
            adaptive = spend is not None and spend.charge is not None and bool(held[partition])
            if round_ in combined and (
                spend is None or adaptive or _declines(parties, partition, spend)
            ):
                continue
            accepted = f"that of client {partition} lacks round {round_}, in which it was asked: the total would be "
            accepted += "too small, and its budget start over. Give the ledgers with which the run was begun"
            raise FieldError("ledgers", round_, accepted)


def _counts(parties: Parties, partition: int) -> bool:
    """Whether a client's ledger records its rounds; under central trust only if a budget or policy counts them."""
    if type(parties.method.client) is not TrustedServer or parties.policy is not None:
        return True
    return parties.budget(partition) is not None


def _ledger(parties: Parties, partition: int) -> Ledger:
    ledger, _ = parties.ledger(str(partition))
    return ledger


def _rounds_of(ledger: Ledger) -> set[int]:
    return {entry.key[0] for entry in ledger.entries}


def _costs(parties: Parties, asked: Asked) -> dict[tuple[int, int], Spend]:
    """Read from the ledgers what each round cost, by round and client side of the method (its identity)."""
    paid: dict[tuple[int, int], Spend] = {}
    for partition in asked:
        for entry in _ledger(parties, partition).entries:
            paid[entry.key[0], id(parties.side(partition))] = entry.spend
    return paid


def _declines(parties: Parties, partition: int, spend: Spend) -> bool:
    """Whether a client's budget or policy forbids this spend in addition to its ledger."""
    past = [entry.spend for entry in _ledger(parties, partition).entries]
    budget = deepcopy(parties.budget(partition))
    if budget is not None:
        admitted = [budget.admit_spend(one) for one in (*past, spend)]  # all of them are charged
        if not all(admitted):
            return True
    if parties.policy is None:
        return False
    name = listed_as(parties.method, parties.policy)
    trust, deployable = parties.method.client.trust, parties.source.deployable
    return bool(parties.policy.refusal(name, trust, deployable, spend, past))
