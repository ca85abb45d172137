"""Checks of a run's receipts against the sites' ledgers, on any machine; see docs/receipts.md for what they show.

Each accepted share must have one ledger line that paid for it. The roots must be those that the sites saw. The given
ledgers contain names, but the result of this check contains none.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedveil.accounting import Entry, Receipt, Release, ShareReceipt, digest
from fedveil.engines.party import COMBINE, SERVER
from fedveil.engines.sealed import unsealed
from fedveil.errors import FieldError, LedgerError
from fedveil.evidence.books import Book, Books, read_books
from fedveil.evidence.carried import books_of_sites, runs_of_sites
from fedveil.evidence.check import Checked
from fedveil.files import MODEL

CHECKPOINT = "checkpoint/round.safetensors"
SECURE = "secure sum"


@dataclass(frozen=True)
class Paid:
    """Line of a ledger that paid for a share.

    Attributes
    ----------
    party : str
        Party of the ledger.
    entry : Entry
        Entry of the line.
    held : ShareReceipt
        Receipt in the line.
    """

    party: str
    entry: Entry
    held: ShareReceipt

    @property
    def round(self) -> int:
        """Number of the round."""
        return self.entry.key[0]


def check_receipts(run: Path, ledgers: Sequence[Path]) -> list[Checked]:
    """Check the receipts of a run against ledgers of its sites.

    Parameters
    ----------
    run : Path
        Folder of the run, or the ledger of its server.
    ledgers : sequence of Path
        Files and folders with ledgers of sites.

    Returns
    -------
    list of Checked
        Checks in the order of the rounds. Nothing is certified without the checks of kind "promise".

    Raises
    ------
    FieldError
        If there is no server's ledger, or it has no receipts.
    """
    if not run.exists():
        raise FieldError("RUN", str(run), "there is no such file or folder")
    try:
        place = run / "ledger" if (run / "ledger").is_dir() else run
        server, names = server_of(read_books([place]), run)
        books = read_books([place, *ledgers])
        rounds = receipts_of(server)
        lines, number = paid_lines(books, names, server)
    except LedgerError as error:
        return [Checked("ledgers", False, str(error))]
    if not rounds:
        accepted = "has no receipts: a server or the receiver of a sum is trusted there, or an earlier version wrote it"
        raise FieldError("RUN", str(run), accepted)
    checks = [*_lines(lines)]
    secure = any(paid.entry.spend.guarantee.trust == SECURE for paid in lines)
    before: tuple[Entry, Receipt] | None = None
    for entry, receipt in rounds:
        mine = [paid for paid in lines if paid.round == entry.key[0]]
        checks += _round(entry, receipt, before, mine, number, secure)
        before = entry, receipt
    if run.is_dir():
        checks += _published(run, rounds[-1][0])
    return checks


def receipts_of(server: Book) -> list[tuple[Entry, Receipt]]:
    """List the receipts in a server's ledger in the order of the rounds, each with its line (the last attempt).

    Raises
    ------
    LedgerError
        If a line's receipt is invalid, or a round in between lacks one.
    """
    latest: dict[int, Entry] = {}
    for entry in server.ledger.entries:
        if entry.key[1] == COMBINE:
            latest[entry.key[0]] = entry
    found: list[tuple[Entry, Receipt]] = []
    for number in sorted(latest):
        entry = latest[number]
        if not entry.receipt:
            if found:
                raise LedgerError(f"the server's ledger has no receipt of round {number}")
            continue
        try:
            found.append((entry, Receipt.of(entry.receipt)))
        except FieldError as error:
            raise LedgerError(f"the server's ledger, round {number}: {error}") from error
    return found


def paid_lines(books: Books, names: Sequence[str], server: Book) -> tuple[list[Paid], int]:
    """Collect the lines of a run's sites that have receipts, and count the ledgers of sites.

    Parameters
    ----------
    books : Books
        All ledgers.
    names : sequence of str
        Ids of the run.
    server : Book
        Ledger of the server.
    """
    sites: dict[str, Book] = {}
    for name in names:
        for party, book in books.runs.get(name, {}).items():
            if party != SERVER:
                sites[f"{name} {party}"] = book
    for party, book in books_of_sites({SERVER: server}, {}, books.sets).items():
        sites[f"data set {party}"] = book
    lines = []
    for party, book in sites.items():
        for entry in book.ledger.entries:
            held = ShareReceipt.of(entry)
            if held is not None:
                lines.append(Paid(party, entry, held))
    return lines, len(sites)


def server_of(own: Books, run: Path) -> tuple[Book, list[str]]:
    """Return the server's ledger among a folder's ledgers, and the ids of its run."""
    for name, parties in own.runs.items():
        if SERVER in parties:
            return parties[SERVER], [name, *runs_of_sites(parties, {})]
    raise FieldError("RUN", str(run), "holds no ledger of a server: ledger/server.jsonl")


def _lines(lines: Sequence[Paid]) -> Iterator[Checked]:
    """Check that each line's leaf follows from its digest, its terms and its salt."""
    wrong = []
    for paid in lines:
        try:
            follows = paid.held.leaf_of(paid.entry) == paid.held.leaf
        except LedgerError:
            follows = False
        if not follows:
            wrong.append(paid)
    rounds = sorted({paid.round for paid in wrong})
    why = f"{len(wrong)} of them, of rounds {rounds}, do not: a digest, the terms or a salt was changed"
    yield Checked(
        "lines: leaves follow from digest, terms and salt", not wrong, why if wrong else ""
    )


def _round(
    entry: Entry,
    receipt: Receipt,
    before: tuple[Entry, Receipt] | None,
    lines: Sequence[Paid],
    ledgers: int,
    secure: bool,
) -> Iterator[Checked]:
    """Check one round: its receipt, its shares, and what its sites saw."""
    name = f"round {entry.key[0]}"
    why = _chain(entry, receipt, before)
    yield Checked(f"{name}: root", not why, why)
    yield _shares(name, receipt, lines, ledgers)
    yield from _missing(name, receipt, lines)
    why = _views(receipt, lines, secure)
    yield Checked(f"{name}: sites saw one view", not why, why)
    if before is not None:
        same = receipt.opened == before[0].digest
        why = "other models than the round before released: the app made a step of its own, or they were exchanged"
        yield Checked(
            f"{name}: opened with the released models", True if same else None, "" if same else why
        )


def _chain(entry: Entry, receipt: Receipt, before: tuple[Entry, Receipt] | None) -> str:
    """Return the reason why a receipt does not belong to its round; "" if it does."""
    if receipt.round != entry.key[0]:
        return f"its receipt is of round {receipt.round}"
    if receipt.model != entry.digest:
        return "its receipt is of other models than the line's"
    expected = Receipt(run=receipt.run, round=receipt.round - 1, asked=0)
    if before is not None:
        expected = before[1]
    if receipt.previous != expected.root or receipt.run != expected.run:
        return "its receipt does not follow that of the round before"
    return ""


def _shares(name: str, receipt: Receipt, lines: Sequence[Paid], ledgers: int) -> Checked:
    """Check that one line paid for each accepted share, and that each site has one share."""
    what = f"{name}: {len(receipt.leaves)} shares of {receipt.asked} sites, each paid for"
    payers = Counter(paid.held.leaf for paid in lines)
    twice = [leaf for leaf in receipt.leaves if payers[leaf] > 1]
    if twice:
        return Checked(what, False, f"{len(twice)} are claimed by more than one line", "promise")
    accepted = [paid.party for paid in lines if paid.held.leaf in receipt.leaves]
    doubled = [party for party, count in Counter(accepted).items() if count > 1]
    if doubled:
        return Checked(what, False, f"{len(doubled)} sites have more than one", "promise")
    unpaid = sum(not payers[leaf] for leaf in receipt.leaves)
    if not unpaid:
        return Checked(what, True, "", "promise")
    if ledgers >= receipt.asked:
        return Checked(
            what, False, f"{unpaid} are paid for in none of {ledgers} ledgers", "promise"
        )
    why = f"{unpaid} are paid for in none of the {ledgers} ledgers; the others are not given"
    return Checked(what, None, why, "promise")


def _missing(name: str, receipt: Receipt, lines: Sequence[Paid]) -> Iterator[Checked]:
    """Check that no more paid shares are missing in a receipt than it states."""
    asked = [paid for paid in lines if paid.held.question == receipt.question]
    left = [paid for paid in asked if paid.held.leaf not in receipt.leaves]
    if not left:
        return
    room = receipt.asked - len(receipt.leaves)
    what = f"{name}: {len(left)} shares paid for and left out"
    if len(left) > room:
        yield Checked(
            what, False, f"the receipt leaves room for {room}: they were left out, or altered"
        )
        return
    yield Checked(
        what, None, "the server did not receive them, could not use them, or did not want them"
    )


def _views(receipt: Receipt, lines: Sequence[Paid], secure: bool) -> str:
    """Describe how many sites saw another root or question than the server's ledger has; "" if none did."""
    roots = sum(paid.held.seen != receipt.previous for paid in lines)
    if roots:
        return f"{roots} lines name another root of the round before: the server showed several"
    others = sum(paid.held.question != receipt.question for paid in lines)
    if others and not secure:
        return f"{others} lines answer another question: the server showed several models, or other facts"
    return ""


def _published(run: Path, last: Entry) -> Iterator[Checked]:
    """Compare the folder's models with the digest in the server's last line."""
    checkpoint = run / CHECKPOINT
    if not checkpoint.is_file():
        return
    try:
        models = unsealed(checkpoint)[0]["models"]
    except (OSError, ValueError, KeyError) as error:
        yield Checked(CHECKPOINT, False, f"cannot be read: {error}")
        return
    same = digest((Release("model", models),)) == last.digest
    why = "its models are not those of the server's last line"
    yield Checked(f"{CHECKPOINT}: models of round {last.key[0]}", same, "" if same else why)
    if not same or not (run / MODEL).is_file():
        return
    try:
        arrays = load((run / MODEL).read_bytes())
    except (OSError, SafetensorError) as error:
        yield Checked(MODEL, False, f"cannot be read: {error}")
        return
    same = all(
        _holds(model, _of_hypothesis(arrays, j, len(models))) for j, model in enumerate(models)
    )
    why = "its arrays are not those models"
    yield Checked(MODEL, same, "" if same else why)


def _of_hypothesis(arrays: Mapping[str, Tensor], number: int, count: int) -> list[Tensor]:
    """Return the arrays of one model among several in a file."""
    prefix = "" if count == 1 else f"hypothesis.{number}."
    return [value for name, value in arrays.items() if name.startswith(prefix)]


def _holds(model: Tensor, arrays: Iterable[Tensor]) -> bool:
    """Whether arrays in some order make up the vector [d]; further arrays may be buffers."""
    rest = [array.reshape(-1) for array in arrays if array.dtype == model.dtype]
    place = 0
    while place < len(model):
        found = None
        for number, array in enumerate(rest):
            part = model[place : place + len(array)]
            if len(array) and torch.equal(part, array):
                found = number
                break
        if found is None:
            return False
        place += len(rest.pop(found))
    return True
