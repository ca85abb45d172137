"""Output of a report's checks, as a table and an exit code."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.cli.shared import fail, show, warn
from fedveil.tables import Table

if TYPE_CHECKING:
    from fedveil.evidence import Checked

WRONG = 1
UNCHECKED = 5  # a run's promise was not looked at
PAGE_UNCHECKED = 6  # figures agree; the page or the card was not compared
MOST = 3  # that are named in a refusal
SAID = {True: "agrees", False: "DIFFERS", None: "not looked at"}


def show_checked(path: Path, checks: "Sequence[Checked]") -> None:
    """Print all checks of a report; exit with an error if one fails, or if a promise could not be checked."""
    _show(path, checks)
    promises = [one for one in checks if one.kind == "promise"]
    unchecked = [one.what for one in promises if one.holds is None]
    if unchecked or not promises:
        named = unchecked[:MOST] or ["any promise"]
        if len(unchecked) > MOST:
            named.append(f"and {len(unchecked) - MOST} more")
        fail(
            f"{path}: not checked: {'; '.join(named)}. Give the ledgers that hold it by --ledgers",
            UNCHECKED,
        )
    believed = [one.what for one in checks if one.kind == "word"]
    if believed:
        warn(
            f"{path}: added up, and believed: {'; '.join(believed)}. Whoever wrote these ledgers could have written "
            "less, and this check would agree: ask for lines that name their draws"
        )
    unseen = [one.what for one in checks if one.kind == "file" and one.holds is None]
    if unseen:
        fail(
            f"{path}: figures checked, not so {', '.join(unseen)}: read report.json", PAGE_UNCHECKED
        )


def show_receipts(run: Path, checks: "Sequence[Checked]") -> None:
    """Print all checks of receipts; exit with an error unless each accepted share was paid for and all checks agree."""
    _show(run, _folded(checks))
    unpaid = [one.what for one in checks if one.kind == "promise" and one.holds is None]
    if unpaid:
        fail(f"{run}: not shown: {'; '.join(unpaid[:MOST])}. Give all sites' ledgers", UNCHECKED)


def _folded(checks: "Sequence[Checked]") -> "list[Checked]":
    """Join rounds in which everything agrees into one line."""
    from fedveil.evidence import Checked

    rounds: dict[str, list[Checked]] = {}
    for one in checks:
        name, _, of_round = one.what.partition(": ")
        if name.startswith("round ") and of_round:
            rounds.setdefault(name, []).append(one)
    whole = [name for name, own in rounds.items() if all(one.holds for one in own)]
    kept = [one for one in checks if one.what.partition(": ")[0] not in whole]
    if not whole:
        return kept
    shares = "roots, paid shares, one view, released models"
    return [*kept, Checked(f"{len(whole)} of {len(rounds)} rounds: {shares}", True)]


def _show(path: Path, checks: "Sequence[Checked]") -> None:
    """Print all checks; exit with an error if one fails."""
    rows = [(one.what, SAID[one.holds], one.why) for one in checks]
    show([Table(("what", "verdict", "why"), rows, wraps=("why",))])
    wrong = [one.what for one in checks if one.holds is False]
    if wrong:
        fail(f"{path}: does not agree: {'; '.join(wrong)}", WRONG)
