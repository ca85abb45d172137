"""What a node keeps: its policy's file, and the lifetime ledger of what was ever released from one data set.

A budget that starts over with every run is no budget where others start the runs. The ledger is begun by whoever
answers for the data (`begin_ledger`), and a missing one is never made on the way: it would be a new budget. Its first
line says who began it; each further line is one intent or release, on the disk before anything is handed over.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from fedveil.accounting import Ledger, Policy
from fedveil.errors import FieldError, LedgerError, require_choice
from fedveil.methods import METHODS
from fedveil.reading import json_of, toml_of

PATIENCE = 60.0  # seconds to wait for another process


def begin_ledger(folder: str | Path, dataset: str | int, by: str) -> Path:
    """Begin the lifetime ledger of a data set: an act of whoever answers for the data, and recorded as one.

    Parameters
    ----------
    folder : str or Path
        Where it is to lie.
    dataset : str or int
        Names the data set; of a Flower node without a name, its partition.
    by : str
        Who begins it, and why.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    FieldError
        If there is one already: it is not replaced.
    """
    path = _path(folder, dataset)
    if not by.strip():
        raise FieldError("by", by, "must say who begins the ledger, and why")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    head = {"dataset": str(dataset), "by": by, "begun": datetime.now(UTC).isoformat(timespec="seconds")}
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise FieldError("ledger", str(path), "exists: what was spent from it stays spent") from error
    with os.fdopen(handle, "wb") as file:
        _write(file.fileno(), json.dumps(head) + "\n")
    return path


class LifetimeLedger:
    """The lifetime ledger of a data set, open for one run; a context manager, which one process at a time can enter.

    Parameters
    ----------
    folder, dataset
        As for `begin_ledger`.
    run : str
        Names the run in every line.
    patience : float
        Seconds to wait for another process that holds it.

    Attributes
    ----------
    ledger : Ledger
        As it was left; within the context.
    """

    def __init__(self, folder: str | Path, dataset: str | int, run: str, patience: float = PATIENCE) -> None:
        self.path, self._run, self._dataset = _path(folder, dataset), run, str(dataset)
        self._lock = FileLock(f"{self.path}.lock", timeout=patience)
        self.ledger = Ledger(run, self._dataset, "")
        self._lines: set[str] = set()

    def __enter__(self) -> LifetimeLedger:
        """Lock and read it.

        Raises
        ------
        FieldError
            If there is no ledger.
        LedgerError
            If another process holds it, or it is not this data set's, or a line was edited.
        """
        if not self.path.exists():
            call = f"begin_ledger({str(self.path.parent)!r}, {self._dataset!r}, by=...)"
            fix = f"begin it, once: fedveil.engines.lifetime.{call}"
            raise FieldError("ledger", self.path.name, f"there is none, and a new one would be a new budget; {fix}")
        try:
            self._lock.acquire()
        except Timeout as error:
            raise LedgerError(f"{self.path} is in use by another process") from error
        try:
            self.ledger = self._read()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Let other processes in."""
        self._lock.release()

    def require(self, line: str) -> None:
        """Refuse a file that was put back to before a line that the node remembers."""
        if line and line not in self._lines:
            raise LedgerError(f"{self.path} lacks a line that this run recorded: restore it")

    def store(self, line: str) -> None:
        """Make a line durable; a failed write leaves the file as it was."""
        with self.path.open("ab") as file:
            before = file.tell()
            try:
                _write(file.fileno(), line + "\n")
            except OSError:
                os.truncate(self.path, before)
                raise

    def _read(self) -> Ledger:
        ledger, lines, torn = read_ledger(self.path, self._run)
        self._lines = set(lines)
        if torn:  # this ledger, as its chain says; the line was never written whole, so its release never left
            os.truncate(self.path, self.path.stat().st_size - torn)
        return ledger


def read_ledger(path: Path, run: str = "") -> tuple[Ledger, list[str], int]:
    """A lifetime ledger as it lies there, without a lock and without touching it.

    Returns
    -------
    tuple
        The ledger, seen from a run; its lines after the first; bytes of a line at the end that was never written whole.

    Raises
    ------
    LedgerError
        If the file is no lifetime ledger, or was edited.
    """
    whole, end, torn = path.read_bytes().rpartition(b"\n")
    try:
        head, *lines = whole.decode().split("\n")
        if not end or json_of(head)["dataset"] != path.stem:
            raise ValueError(f"its first line is not that of the ledger of data set {path.stem!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is no lifetime ledger: {error}") from error
    return Ledger.parse(run, path.stem, lines, head), lines, len(torn)


def read_policy(policy: Policy | str | Path | None) -> Policy | None:
    """A policy, or the one that a TOML file holds.

    Raises
    ------
    FieldError
        If the file cannot be read, says what no policy can, or names a method that is not there: a misspelt one would
        refuse what was meant to be allowed.
    """
    if isinstance(policy, str | Path):
        try:
            values = toml_of(Path(policy).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FieldError("policy", Path(policy).name, f"cannot be read: {type(error).__name__}") from error
        policy = Policy.from_dict(values)
    classes = {side.__name__ for s in METHODS.values() for side in (s.client, s.server)}  # name a method made of one
    for name in (policy.methods or ()) if policy is not None else ():
        if name not in classes:
            require_choice("policy.methods", name, METHODS)
    return policy


def _path(folder: str | Path, dataset: str | int) -> Path:
    name = str(dataset)
    if not name.replace("-", "").replace("_", "").isalnum():
        raise FieldError("dataset", name, "must be letters, digits, - and _: it names a file")
    return Path(folder) / f"{name}.jsonl"


def _write(handle: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(handle, data) :]
    os.fsync(handle)
