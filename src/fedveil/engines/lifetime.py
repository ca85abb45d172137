"""Files of a node: its policy, and the lifetime ledger of all releases from one data set.

If others start the runs, a budget that starts over with every run limits nothing. So the person responsible for the
data begins the ledger (`begin_ledger`). A missing one is never created automatically, as it would be a new budget. The
first line names that person. Each further line is one intent or release, and is on the disk before anything is sent.
"""

import hashlib
import json
import secrets
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from fedveil.accounting import Ledger, Policy
from fedveil.engines.ledger_head import Head, SecondPlace, checksum_of, opens
from fedveil.engines.ledger_sums import (
    UNSUMMED,
    Opened,
    nothing_summed,
    open_from,
    read_sums,
    whole_lines,
    write_sums,
)
from fedveil.errors import FieldError, LedgerError
from fedveil.files import LockedFile, create, private_folder, sync
from fedveil.methods import METHODS, require_method
from fedveil.reading import json_of, toml_of


def begin_ledger(
    folder: str | Path, dataset: str | int, by: str, *, head: str | Path | None = None
) -> Path:
    """Begin the lifetime ledger of a data set. The person responsible for the data does this once, and is recorded.

    Parameters
    ----------
    folder : str or Path
        Folder of the ledger.
    dataset : str or int
        Name of the data set; the partition for a Flower node without a name.
    by : str
        Name of the person who begins it, and the reason.
    head : str or Path
        Another folder, preferably on another disk, for the ledger's head and its key (the second place).

    Returns
    -------
    Path
        Path of the ledger's file.

    Raises
    ------
    FieldError
        If the ledger or its head exists already; neither is replaced.
    """
    path = path_of(folder, dataset)
    place = second_place(head, path, "begin_ledger(..., head=FOLDER)")
    private_folder(path.parent)
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    first = json.dumps(
        {"dataset": str(dataset), "by": by, "begun": begun, "id": secrets.token_hex(16)}
    )
    try:
        create(path, f"{first}\n".encode())
    except FileExistsError as error:
        raise FieldError(
            "ledger", str(path), "exists: what was spent from it stays spent"
        ) from error
    try:
        sync(path.parent)
        place.make(id_of(first), 0, Ledger("", str(dataset), first).checksum, by)
    except BaseException:
        path.unlink()
        raise
    return path


def make_head(
    folder: str | Path, dataset: str | int, by: str, *, head: str | Path | None = None
) -> Head:
    """Make a head for an existing ledger, if the ledger is of an earlier version or its second place was lost.

    The ledger is accepted as it is. The person in `by` guarantees that no line is missing at its end.

    Parameters
    ----------
    folder, dataset, head
        As for `begin_ledger`.
    by : str
        Name of the person who makes it, and the reason.

    Raises
    ------
    FieldError
        If there is a head in that place already, or no ledger.
    LedgerError
        If the ledger was edited, or is in use.
    """
    path = path_of(folder, dataset)
    place = second_place(head, path, "make_head(..., head=FOLDER)")
    with locked_ledger(path) as file:
        ledger, lines, torn = parsed(path, file.content(), "")
        file.cut(torn)
        place.make(id_of(ledger.head or ""), len(lines), ledger.checksum, by)
        return place.read(id_of(ledger.head or ""))


class LifetimeLedger:
    """Lifetime ledger of a data set, as a context manager for one run; only one process at a time can enter it.

    Parameters
    ----------
    folder, dataset, head
        As for `begin_ledger`.
    run : str
        Name of the run in every line.

    Attributes
    ----------
    ledger : Ledger
        Ledger with all saved lines; available within the context.
    """

    def __init__(
        self, folder: str | Path, dataset: str | int, run: str, *, head: str | Path | None = None
    ) -> None:
        self.path, self._run, self._dataset = path_of(folder, dataset), run, str(dataset)
        self._place = second_place(
            head, self.path, "LifetimeLedger(..., head=FOLDER); on a node, privacy.head"
        )
        self.ledger = Ledger(run, self._dataset, "")
        self._lines: set[str] = set()
        self._head: Head | None = None
        self._file: LockedFile | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "LifetimeLedger":
        """Lock and read the ledger.

        Raises
        ------
        FieldError
            If there is no ledger.
        LedgerError
            If another process uses the ledger, it belongs to another data set, a line was edited, or its head knows
            other lines.
        """
        with ExitStack() as stack:
            self._file = stack.enter_context(locked_ledger(self.path))
            self._place.know(stack.enter_context(self._place.locked()).handle)
            first = _first_line(self.path, self._file.first_line())
            known = self._place.read(id_of(first))
            opened = self._opened_from(self._file, first, known)
            self.ledger = opened.ledger
            self._head = opened.extended(known)
            self._file.cut(opened.torn)  # an incomplete line, whose release never left
            if self._head != known:
                self._place.write(self._head)
            if len(opened.since) > UNSUMMED:
                write_sums(self._place, opened.summed())
            self._lines = {*opened.own, *opened.since}
            self._stack = stack.pop_all()
        return self

    def _opened_from(self, file: LockedFile, first: str, known: Head) -> Opened:
        """Open the ledger from its sums, or from all its lines if there are no matching sums."""
        none = nothing_summed(known.ledger, self._dataset, first)
        sums = read_sums(self._place, known.ledger) or none
        if sums.count <= known.count:
            try:
                return open_from(sums, file, self._run, self._dataset, first)
            except (LedgerError, ValueError, KeyError, TypeError):
                if not sums.count:
                    raise
        return open_from(none, file, self._run, self._dataset, first)

    def __exit__(self, *error: object) -> None:
        """Unlock the ledger."""
        self._stack.close()

    def require(self, *lines: str) -> None:
        """Refuse a file without these lines, which the node remembers: it was replaced by an older copy."""
        if not self._lines.issuperset(lines):
            raise LedgerError(f"{self.path} lacks a line that this run recorded: restore it")

    def store(self, line: str) -> None:
        """Write a line to the disk, and then the head; a failed write leaves the file unchanged.

        Raises
        ------
        LedgerError
            If the file is no longer the one that was locked, or somebody else wrote to it.
        OSError
            If line or head cannot be written.
        """
        assert self._head is not None, "within the context"
        assert self._file is not None
        self._file.require_alone()  # before the head announces a line that is then refused
        mark = checksum_of(line)
        if not opens(line):
            self._head = replace(self._head, announced=mark)
            self._place.write(self._head)
        self._file.append(f"{line}\n".encode())
        self._head = replace(self._head, count=self._head.count + 1, checksum=mark, announced="")
        self._place.write(self._head)


def read_ledger(path: Path) -> tuple[Ledger, list[str], int]:
    """Read a lifetime ledger without locking or changing it.

    Returns
    -------
    tuple
        Ledger without a run; its lines after the first; number of bytes of an incomplete line at the end.

    Raises
    ------
    LedgerError
        If the file is not a lifetime ledger, or was edited.
    """
    return parsed(path, path.read_bytes(), "")


def ledger_id(folder: str | Path, dataset: str | int) -> str:
    """Return the id of a data set's lifetime ledger: SHA-256 of its first line.

    Raises
    ------
    LedgerError, FieldError
        If there is no ledger.
    """
    try:
        with path_of(folder, dataset).open(encoding="utf-8") as file:
            return id_of(file.readline().rstrip("\n"))
    except (OSError, ValueError) as error:
        raise LedgerError(
            f"{path_of(folder, dataset)} is no lifetime ledger: begin it first"
        ) from error


def read_head(path: Path, head: str | Path) -> Head:
    """Read a ledger's head, and check that both agree; neither is changed.

    Raises
    ------
    LedgerError
        If there is no head, or head and ledger do not agree.
    """
    ledger, lines, _ = read_ledger(path)
    line = second_place(head, path, "--head FOLDER").look(id_of(ledger.head or ""))
    line.extended(lines, begins_with(ledger))
    return line


def read_policy(policy: Policy | str | Path | None) -> Policy | None:
    """Return a policy as it is, or read it from a TOML file.

    Raises
    ------
    FieldError
        If the file cannot be read, has an invalid value, or names an unknown method. (A misspelt method would refuse
        what was meant to be allowed.)
    """
    if isinstance(policy, str | Path):
        try:
            values = toml_of(Path(policy).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FieldError(
                "policy", Path(policy).name, f"cannot be read: {type(error).__name__}"
            ) from error
        policy = Policy.from_dict(values)
    classes = {
        side.__name__ for s in METHODS.values() for side in (s.client, s.server)
    }  # a method made from a class has the class's name
    for name in (policy.methods or ()) if policy is not None else ():
        if name not in classes:
            require_method("policy.methods", name)
    return policy


def begins_with(ledger: Ledger) -> str:
    """Return the checksum of a lifetime ledger's first line, with which its chain begins."""
    return Ledger("", ledger.party, ledger.head).checksum


def locked_ledger(path: Path) -> LockedFile:
    """Return the file of an existing ledger as a lock; refuse if there is none."""
    if not path.exists():
        call = f"begin_ledger({str(path.parent)!r}, {path.stem!r}, by=..., head=...)"
        fix = f"begin it, once: fedveil.engines.lifetime.{call}"
        raise FieldError(
            "ledger", path.name, f"there is none, and a new one would be a new budget; {fix}"
        )
    return LockedFile(path)


def parsed(path: Path, content: bytes, run: str) -> tuple[Ledger, list[str], int]:
    """Parse a lifetime ledger from bytes, for a run; results are those of `read_ledger`."""
    line, end, rest = content.partition(b"\n")
    first = _first_line(path, line + end)
    lines, torn = whole_lines(rest, path.stem)
    return Ledger.parse(run, path.stem, lines, first), lines, torn


def _first_line(path: Path, line: bytes) -> str:
    """Return the first line of a data set's ledger, without the line break.

    Raises
    ------
    LedgerError
        If the line is incomplete, or of another data set.
    """
    try:
        first = line.decode()
        if not first.endswith("\n") or json_of(first)["dataset"] != path.stem:
            raise ValueError(f"its first line is not that of the ledger of data set {path.stem!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is no lifetime ledger: {error}") from error
    return first.removesuffix("\n")


def id_of(first: str) -> str:
    """Return the id of a ledger: SHA-256 of its first line."""
    return hashlib.sha256(first.encode()).hexdigest()


def path_of(folder: str | Path, dataset: str | int) -> Path:
    """Return the path of a data set's ledger."""
    name = str(dataset)
    if not name.replace("-", "").replace("_", "").isalnum():
        raise FieldError("dataset", name, "must be letters, digits, - and _: it names a file")
    return Path(folder) / f"{name}.jsonl"


def require_head(head: str | Path | None, where: str) -> Path:
    """Return the folder of a ledger's head; refuse a missing one. `where` is the text that says where to name it."""
    if head is None:
        accepted = f"name the folder of the ledger's head, without which an older copy would pass for it: {where}"
        raise FieldError("head", None, accepted)
    return Path(head)


def second_place(given: str | Path | None, path: Path, where: str) -> SecondPlace:
    """Return the second place of a ledger; refuse none, or the ledger's own folder."""
    head = require_head(given, where)
    if head.resolve() in (path.parent.resolve(), path.resolve().parent):
        raise FieldError(
            "head",
            str(head),
            "must be another folder than the ledger's: what restores one restores both",
        )
    return SecondPlace(head, path.stem)
