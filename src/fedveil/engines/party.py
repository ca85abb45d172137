"""Common base of the parties of a federation; see `fedveil.engines.client` and `fedveil.engines.server`.

Each party has a state, a filter (budget) and a ledger. For every release the order is: admit, draw, record, return.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedveil.accounting import OPEN, Entry, Ledger, Policy, Spend, SpendFilter, digest
from fedveil.errors import BudgetError, FieldError, LedgerError, require_a
from fedveil.files import SERVER as SERVER
from fedveil.files import LineStore as LineStore
from fedveil.mechanisms import Source
from fedveil.methods import Method, Releases, registered_as

VALIDATORS = "validation-"  # prefix of the names of validation clients' ledgers
COMBINE, PUBLISH, VALIDATE = "combine", "publish", "validate"


def forget(line: str) -> None:
    """Do nothing with a ledger's line, for ledgers that stay in memory."""


def lacking_rounds(ledger: Ledger, done: int = 0) -> tuple[int, ...]:
    """List the rounds that a server's ledger lacks, up to `done` or to its own last round; ascending.

    A server combines every round. So a ledger that lacks a round begins in the middle of a run, and its total is too
    small. A client's ledger may lack rounds, because a client is not asked in each.
    """
    held = {entry.key[0] for entry in ledger.entries if entry.key[1] == COMBINE}
    last = max(done, *held, 0)
    return tuple(sorted(set(range(1, last + 1)) - held))


def begun_midway(ledger: Ledger) -> str:
    """Return the condition that a total gets if its server's ledger lacks rounds; empty if it lacks none.

    Ledgers of older Flower servers may lack rounds after a continuation with ``done=``, see SECURITY.md.
    """
    lacking = lacking_rounds(ledger)
    if not lacking:
        return ""
    which = f"round {lacking[0]}"
    if len(lacking) > 1:
        which = f"rounds {lacking[0]} to {lacking[-1]}"
    return f"nothing was released in {which}, which the server's ledger lacks: it begins in the middle of a run"


def require_declared(ledger: Ledger, budget: SpendFilter | None) -> None:
    """Refuse to continue without a ledger's declared budget, as its stated total relies on that budget.

    Raises
    ------
    FieldError
        For a missing or larger budget, one for another unit or measure, or a value that is no budget.
    """
    if budget is not None:
        require_a(
            "budget",
            budget,
            SpendFilter,
            "must be a SpendFilter, such as Filter(epsilon=8, delta=1e-5)",
        )
    declared = ledger.budget
    if declared is None:
        return
    terms: Mapping[str, float] = {}
    if budget is not None:
        terms = budget.terms or {}
    if terms.get("delta") != declared["delta"] or terms["epsilon"] > declared["epsilon"]:
        given = terms.get("epsilon")
        accepted = (
            f"the ledger of {ledger.party!r} declares Filter(epsilon={declared['epsilon']:g}, "
        )
        accepted += f"delta={declared['delta']:g}) before its first release, and states totals under it: give that, or "
        raise FieldError("budget", given, f"{accepted}a smaller epsilon")


def listed_as(method: Method, policy: Policy) -> str:
    """Return the name by which a policy judges a method: its own name if the policy lists it, else its registered name."""
    return method.name if method.name in (policy.methods or ()) else registered_as(method)


class Party:
    """Base of client and server: ledger, filter and source of noise, with the policy of a client's owner."""

    policy: Policy | None = None

    def __init__(
        self,
        ledger: Ledger,
        source: Source,
        budget: SpendFilter | None = None,
        store: LineStore = forget,
    ) -> None:
        require_declared(ledger, budget)
        self.ledger, self.budget = ledger, budget
        self._source, self._store = source, store
        self._overspent = self._unwritten = False
        if budget is not None:  # after a resume, a fresh filter would allow the budget twice
            for entry in ledger.all_entries:
                # costs beyond a lowered budget were spent all the same, so nothing more may be admitted
                self._overspent |= not budget.admit_spend(entry.spend)

    def _charge(self, spend: Spend) -> bool:
        """Charge the filter for a spend if there is a filter; return False if the budget does not allow it."""
        return self.budget is None or (not self._overspent and self.budget.admit_spend(spend))

    def _forbidden(self, method: Method, spend: Spend) -> str:
        """Return the reason why the owner's policy forbids this release; "" if it does not."""
        if self.policy is None:
            return ""
        past = [entry.spend for entry in self.ledger.all_entries]
        name = listed_as(method, self.policy)
        return (
            self.policy.refusal(name, method.client.trust, self._source.deployable, spend, past)
            or ""
        )

    def _require_written(self) -> None:
        if (
            self._unwritten
        ):  # the entry is in memory but not on the disk, so the same bits must not leave
            raise LedgerError(
                f"the ledger of {self.ledger.party!r} could not be written: go on from what is stored"
            )

    def _draw(
        self,
        round_: int,
        purpose: str,
        make: Callable[[Source], tuple[Releases, Spend]],
        once: bool = False,
        receipt: Callable[[str], Mapping[str, Any]] | None = None,
    ) -> Releases:
        """Draw a release, record it in the ledger with its receipt, and only then return it.

        If this round's release is already in the ledger, it is drawn again. If the draw has the same bits, it is
        returned. Otherwise it is the next attempt and is charged and recorded again; with `once` it is refused.
        """
        self._require_written()
        known = self.ledger.find((round_, purpose))
        attempt = 0 if known is None else known.attempt
        while True:
            key = (self.ledger.party, round_, purpose, attempt)
            releases, spend = make(self._source.child(*key))
            mark = digest(releases)
            if known is not None and known.attempt == attempt:
                if known.digest == mark:
                    return releases
                if once:
                    raise BudgetError(self._recorded(round_))
                attempt += 1
                continue
            if not self._charge(spend):
                stands = "the last released model stands"
                if known is not None:
                    stands = "a release of it is recorded, whose bits a crash took: the last checkpointed model stands"
                raise BudgetError(
                    f"round {round_}: the {self.ledger.party}'s budget is used up; {stands}"
                )
            entry = Entry((round_, purpose), attempt, mark, spend, self._source.kind)
            if receipt is not None:
                entry = replace(entry, receipt=receipt(mark))
            self._commit(entry)
            return releases

    def _recorded(self, round_: int) -> str:
        return (
            f"round {round_}: the {self.ledger.party} recorded a sum of it, and another one would tell shares apart; "
            "the last checkpointed model stands"
        )

    def forecast_release(self, round_: int, purpose: str, spend: Spend) -> bool:
        """Charge and record a cost without drawing the release, for a forecast; False if the budget does not allow it.

        If the spend has a `charge`, its real cost depends on earlier releases, so the filter is not charged. As many
        rounds as possible are then admitted, and the total is the smaller of the budget and the sum of the worst cases.
        """
        least = spend if spend.charge is None else replace(spend, charge=0.0)
        if not self._charge(least):
            return False
        self._commit(Entry((round_, purpose), 0, OPEN, least, self._source.kind))
        return True

    def _commit(self, entry: Entry) -> None:
        terms = None if self.budget is None else self.budget.terms
        # a budget that is set later would promise nothing
        if terms not in (None, self.ledger.budget) and not self.ledger.all_entries:
            self._keep(self.ledger.declare(terms or {}))
        self._keep(self.ledger.commit(entry))

    def _keep(self, line: str) -> None:
        self._unwritten = True
        self._store(line)
        self._unwritten = False
