"""Sums of a lifetime ledger's first lines, stored beside its head, so that opening a ledger does not read them again.

The file ``<dataset>.sums`` holds the costs of the first lines and the position of each run's lines, authenticated by
the key of the ledger's head. Opening a ledger takes these costs, and reads only the lines of its own run and those
after the sums. An edit in other lines changes no cost; `fedveil ledger show` reads all lines. Sums that are missing,
damaged or another ledger's are computed again from all lines.
"""

import hmac
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedveil.accounting import OPEN, Ledger
from fedveil.accounting.carried import Carried, carried_values, gathered, without
from fedveil.accounting.ledger import read_carried
from fedveil.engines.ledger_head import Head, SecondPlace
from fedveil.errors import LedgerError
from fedveil.files import LockedFile, write_atomic
from fedveil.reading import json_of

UNSUMMED = 256  # lines after which the sums are computed again; reading this many takes a few hundredths of a second
_LINE = b"fedveil ledger sums\n"  # no head begins with this line, so a code of one is never valid for the other


@dataclass(frozen=True)
class Stretch:
    """Consecutive lines of one run: their first and last byte, and the checksum of the last line."""

    start: int
    end: int
    checksum: str


@dataclass(frozen=True, kw_only=True)
class Sums:
    """Summed costs of a ledger's first lines, with the position of each run's lines.

    Attributes
    ----------
    ledger : str
        SHA-256 of the ledger's first line.
    count, size, checksum : int, int, str
        Number of lines after the first one, bytes up to their end, and checksum of the last one.
    budget : dict, optional
        Budget that the ledger declares.
    carried : tuple of (int, Entry)
        Costs of all runs, each with the number of times it was paid.
    asked : Counter of str
        Number of runs that answered each question of a secure sum, by the question's purpose.
    runs : dict of str to list of Stretch
        Positions of each run's lines.
    """

    ledger: str
    count: int = 0
    size: int
    checksum: str
    budget: dict[str, float] | None = None
    carried: Carried = ()
    asked: Counter[str] = field(default_factory=Counter)
    runs: dict[str, list[Stretch]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Ledger opened for one run.

    Attributes
    ----------
    ledger : Ledger
        Ledger with the entries of its run, and the costs of all others.
    own, since : list of str
        Lines of the run within the summed lines, and all lines after these.
    torn : int
        Bytes of an incomplete line at the end.
    sums : Sums
        Sums with which the ledger was opened.
    """

    ledger: Ledger
    own: list[str]
    since: list[str]
    torn: int
    sums: Sums

    def extended(self, known: Head) -> Head:
        """Check the ledger against its known head, and return the head for all its lines.

        Raises
        ------
        LedgerError
            If head and ledger do not agree.
        """
        return known.extended(self.since, self.sums.checksum, self.sums.count)

    def summed(self) -> Sums:
        """Compute the sums of all lines, from the old sums and the later lines."""
        runs = {run: list(stretches) for run, stretches in self.sums.runs.items()}
        place = self.sums.size
        for line in self.since:
            values = json_of(line)
            end = place + len(line.encode()) + 1
            stretches = runs.setdefault(values["run"], [])
            start = place
            if stretches and stretches[-1].end == place:
                start = stretches.pop().start
            stretches.append(Stretch(start, end, values["checksum"]))
            place = end
        ledger = self.ledger
        entries = [*ledger.earlier, *ledger.entries]
        asked = Counter(ledger.asked)
        asked.update(entry.key[1] for entry in entries if " " in entry.key[1])
        return Sums(
            ledger=self.sums.ledger,
            count=ledger.lines,
            size=place,
            checksum=ledger.checksum,
            budget=ledger.budget,
            carried=gathered(entries, ledger.carried),
            asked=asked,
            runs=runs,
        )


def open_from(sums: Sums, file: LockedFile, run: str, dataset: str, first: str) -> Opened:
    """Open a ledger from the costs of its first lines.

    Parameters
    ----------
    sums : Sums
        Sums of this ledger.
    file : LockedFile
        File of the ledger.
    run, dataset : str
        Run whose lines are read completely, and data set of the ledger.
    first : str
        First line of the ledger.

    Raises
    ------
    LedgerError
        If a line that is read was edited, or the file ends before the sums do.
    """
    last = f'"checksum": "{sums.checksum}"}}\n'.encode()
    if sums.count and file.content(sums.size - len(last), sums.size) != last:
        raise LedgerError(f"the ledger of {dataset!r} has another line {sums.count} than its sums")
    since, torn = whole_lines(file.content(sums.size), dataset)
    ledger, own = Ledger(run, dataset, first), []
    beginning = len(first.encode()) + 1
    checksums = {beginning: ledger.checksum}
    for stretches in sums.runs.values():
        checksums |= {stretch.end: stretch.checksum for stretch in stretches}
    carried, ledger.carried = ledger.carried, ()
    if sums.count:
        carried = sums.carried
    needed = {run, *_runs_to_read(since, sums)}
    asked = Counter(sums.asked)
    for owner, stretch in _in_order(sums, needed):
        lines, left = whole_lines(file.content(stretch.start, stretch.end), dataset)
        ledger.go_on_from(0, checksums[stretch.start])
        ledger.extend(lines)
        if ledger.checksum != stretch.checksum or left:
            raise LedgerError(f"the ledger of {dataset!r}: lines of run {owner!r} were edited")
        if owner == run:
            own += lines
    read = [*ledger.earlier, *ledger.entries]
    asked.subtract(entry.key[1] for entry in read)
    ledger.carried, ledger.asked = without(carried, read), frozenset(+asked)
    ledger.budget = sums.budget if sums.count else ledger.budget
    ledger.go_on_from(sums.count, sums.checksum)
    ledger.extend(since)
    return Opened(ledger=ledger, own=own, since=since, torn=torn, sums=sums)


def nothing_summed(ledger: str, dataset: str, first: str) -> Sums:
    """Return empty sums; a ledger opened from them reads all lines."""
    size = len(first.encode()) + 1
    return Sums(ledger=ledger, size=size, checksum=Ledger("", dataset, first).checksum)


def whole_lines(content: bytes, dataset: str) -> tuple[list[str], int]:
    """Split a ledger's bytes into complete lines; also return the bytes of an incomplete line at the end.

    Raises
    ------
    LedgerError
        If the bytes are not text.
    """
    whole, end, torn = content.rpartition(b"\n")
    try:
        return (whole.decode().split("\n") if end else []), len(torn)
    except ValueError as error:
        raise LedgerError(f"the ledger of {dataset!r} is no text: {error}; restore it") from error


def _runs_to_read(since: Sequence[str], sums: Sums) -> set[str]:
    """Return the runs whose earlier lines are needed: a later line closes their intent or continues their attempts."""
    runs, begun = set(), set()
    for values in map(json_of, since):
        run = values.get("run")
        key = run, values.get("round"), values.get("purpose")
        fresh = values.get("attempt") == 0 and values.get("digest") == OPEN
        if not fresh and key not in begun and run in sums.runs:
            runs.add(run)
        begun.add(key)
    return runs


def _in_order(sums: Sums, runs: Iterable[str]) -> Iterator[tuple[str, Stretch]]:
    found = [(run, stretch) for run in runs for stretch in sums.runs.get(run, ())]
    yield from sorted(found, key=lambda pair: pair[1].start)


def read_sums(place: SecondPlace, ledger: str) -> Sums | None:
    """Read the sums of a ledger; None if they are missing, incomplete, forged or another ledger's."""
    try:
        mark, text = place.sums_file.read_bytes().split(b"\n", 1)
        if not hmac.compare_digest(mark, place.mark(_LINE + text)):
            return None
        values = json_of(text)
        if values["ledger"] != ledger:
            return None
        runs = {
            run: [Stretch(*stretch) for stretch in stretches]
            for run, stretches in values["runs"].items()
        }
        read: dict[str, Any] = {
            "carried": read_carried(values["carried"]),
            "asked": Counter(values["asked"]),
            "runs": runs,
        }
        return Sums(**{**values, **read})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_sums(place: SecondPlace, sums: Sums) -> None:
    """Replace the sums of a ledger atomically."""
    runs = {
        run: [[one.start, one.end, one.checksum] for one in stretches]
        for run, stretches in sums.runs.items()
    }
    own = {
        "carried": carried_values(sums.carried),
        "asked": sorted(sums.asked.elements()),
        "runs": runs,
    }
    text = json.dumps({**vars(sums), **own}).encode()
    write_atomic(place.sums_file, place.mark(_LINE + text) + b"\n" + text)
