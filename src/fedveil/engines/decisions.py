"""What a node decided about a message, for its operator's own record: which rule refused, or what a release cost."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fedveil.accounting import Denied, Ledger, Policy
from fedveil.methods import Refusal

_SEEN: ContextVar[dict[str, Any] | None] = ContextVar("decision", default=None)


@contextmanager
def decided() -> Iterator[dict[str, Any]]:
    """Collect what `note_decision` is told within; nothing of it is part of a reply."""
    seen: dict[str, Any] = {}
    before = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(before)


def note_decision(**facts: Any) -> None:
    """Say what was decided; outside `decided` nobody is told."""
    seen = _SEEN.get()
    if seen is not None:
        seen.update(facts)


def note_verdict(verdict: Any, ledger: Ledger, policy: Policy | None) -> None:
    """Say whether a round was admitted: the rule that refuses it, or what was spent of each limit with it."""
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
    """Return a reason, and the key of the policy that it comes from; "" where it is no rule of the policy."""
    return {"rule": reason.rule if isinstance(reason, Denied) else "", "why": str(reason)}
