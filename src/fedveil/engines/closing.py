"""Closing of a data set's lifetime ledger; the next ledger begins with all past costs.

Four files are written in this order: archive, head, new ledger, head. Before the new ledger replaces the old one, the
head announces it. So after a crash the ledger is either the old or the new one, and the head knows both. No release of
the old ledger is sent again.
"""

import hashlib
import json
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from fedveil.accounting import Ledger
from fedveil.accounting.carried import carried_values, gathered
from fedveil.accounting.ledger import CARRIED
from fedveil.engines.ledger_head import following
from fedveil.engines.lifetime import (
    begins_with,
    id_of,
    locked_ledger,
    parsed,
    path_of,
    read_ledger,
    second_place,
)
from fedveil.errors import FieldError, LedgerError
from fedveil.files import private_folder, write_atomic
from fedveil.reading import json_of

CLOSED = "closed"  # key of a first line: the ledger that was closed before this one


@dataclass(frozen=True, kw_only=True)
class Closed:
    """Result of closing a ledger.

    Attributes
    ----------
    archive, ledger : Path
        Paths of the closed ledger and of the new one.
    digest : str
        SHA-256 of the closed ledger's bytes, which is in the new one's first line.
    lines, releases : int
        Number of lines after the first in the closed ledger, and number of releases carried over.
    """

    archive: Path
    ledger: Path
    digest: str
    lines: int
    releases: int


def close_ledger(
    folder: str | Path, dataset: str | int, by: str, *, archive: str | Path, head: str | Path | None
) -> Closed:
    """Close the lifetime ledger of a data set, and begin the next one with all past costs.

    Every line and the head are checked first. The first line of the new ledger has each cost with its number of
    payments, the declared budget, and the closed ledger's digest. So budgets and policies continue to count. A run in
    progress is refused from then on. A key of secure sums stays bound to the closed ledger.

    Parameters
    ----------
    folder, dataset, head
        As for `fedveil.engines.lifetime.begin_ledger`.
    by : str
        Name of the person who closes it, and the reason.
    archive : str or Path
        Folder that gets the closed ledger, under its own name.

    Raises
    ------
    FieldError
        If `by` is empty, or the archive holds a ledger of that name with other bytes.
    LedgerError
        If the ledger was edited or replaced by an older copy, or is in use.
    OSError
        If a file cannot be written; the ledger is then unchanged.
    """
    if not by.strip():
        raise FieldError("by", by, "must say who closes the ledger, and why")
    path = path_of(folder, dataset).resolve()
    place = second_place(head, path, "close_ledger(..., head=FOLDER)")
    with locked_ledger(path) as file, place.locked() as key:
        place.know(key.handle)
        content = file.content()
        ledger, lines, torn = parsed(path, content, "")
        known = place.read(id_of(ledger.head or ""))
        content = content[: len(content) - torn]
        agreed = known.extended(lines, begins_with(ledger))
        digest = hashlib.sha256(content).hexdigest()
        kept = _archived(Path(archive), path, content)
        first = _first_line(ledger, lines, by, digest)
        place.write(
            replace(
                agreed, announced=following(id_of(first), Ledger("", str(dataset), first).checksum)
            )
        )
        write_atomic(path, f"{first}\n".encode())
        begun = place.read(id_of(first))
        place.write(replace(begun, by=by, begun=_now()))
        place.sums_file.unlink(missing_ok=True)
    return Closed(
        archive=kept,
        ledger=path,
        digest=digest,
        lines=len(lines),
        releases=len(ledger.all_entries),
    )


def require_closed(path: Path, closed: Path) -> None:
    """Check that a ledger carries over the costs of a closed one.

    Parameters
    ----------
    path, closed : Path
        Ledger, and archived copy of the closed one.

    Raises
    ------
    LedgerError
        If the digest or a cost differs, or one of the two was edited.
    """
    ledger, _, _ = read_ledger(path)
    before, lines, _ = read_ledger(closed)
    named = json_of(ledger.head or "{}").get(CLOSED) or {}
    if named.get("digest") != hashlib.sha256(closed.read_bytes()).hexdigest():
        raise LedgerError(f"{closed} is not the ledger that was closed before {path}")
    spent = gathered([*before.earlier, *before.entries], before.carried)
    if (spent, before.budget, len(lines)) != (ledger.carried, ledger.budget, named.get("lines")):
        raise LedgerError(f"{path} does not carry over what was spent from {closed}")


def _archived(folder: Path, path: Path, content: bytes) -> Path:
    """Copy a ledger's bytes into the archive. They may be there already, from a closing that did not finish."""
    kept = folder / path.name
    if folder.resolve() == path.parent:
        raise FieldError("archive", str(folder), "must be another folder than the ledger's")
    private_folder(folder)
    if kept.exists():
        if kept.read_bytes() != content:
            accepted = "holds another ledger of this data set: name a folder for each closing"
            raise FieldError("archive", str(folder), accepted)
        return kept
    write_atomic(kept, content, mode=0o400)
    return kept


def _first_line(ledger: Ledger, lines: list[str], by: str, digest: str) -> str:
    before = json_of(ledger.head or "{}")
    closed = {
        "ledger": id_of(ledger.head or ""),
        "digest": digest,
        "lines": len(lines),
        "begun": before.get("begun", ""),
    }
    spent = gathered([*ledger.earlier, *ledger.entries], ledger.carried)
    values = {
        "dataset": ledger.party,
        "by": by,
        "begun": _now(),
        "id": secrets.token_hex(16),
        CLOSED: closed,
        CARRIED: carried_values(spent),
    }
    if ledger.budget is not None:
        values["budget"] = ledger.budget
    return json.dumps(values)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
