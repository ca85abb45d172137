"""Decisions of a node about messages, for its operator's log: the rule behind a refusal, or the cost of a release."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fedveil.accounting import Denied, Ledger, Policy
from fedveil.methods import Refusal

_SEEN: ContextVar[dict[str, Any] | None] = ContextVar("decision", default=None)


@contextmanager
def decided() -> Iterator[dict[str, Any]]:
    """Collect the decisions noted within this context; none of them is part of a reply."""
    seen: dict[str, Any] = {}
    before = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(before)


def note_decision(**facts: Any) -> None:
    """Record a decision; outside `decided` it is dropped."""
    seen = _SEEN.get()
    if seen is not None:
        seen.update(facts)


def note_verdict(verdict: Any, ledger: Ledger, policy: Policy | None) -> None:
    """Note the decision on a round: the rule that refuses it, or each limit with the past cost."""
    if isinstance(verdict, Refusal):
        note_decision(verdict="refused", **why(verdict.reason))
        return
    costs: Mapping[str, tuple[int, float, float | None]] = {}
    if policy is not None:
        costs = policy.standing(entry.spend for entry in ledger.all_entries)
    named = {
        kind: {"releases": n, "spent": cost, "limit": most}
        for kind, (n, cost, most) in costs.items()
    }
    rules = [f"total.{kind}" for kind, values in named.items() if values["limit"] is not None]
    note_decision(verdict="allowed", rules=rules, costs=named)


def why(reason: str) -> dict[str, str]:
    """Return the text of a reason and its key in the policy, "" if it has none."""
    return {"rule": reason.rule if isinstance(reason, Denied) else "", "why": str(reason)}
