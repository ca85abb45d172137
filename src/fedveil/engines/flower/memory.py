"""What a client remembers from one message to the next: the method's state and the ledger.

Both lie in the context's state, which Flower keeps for each node through a run. A ledger that must outlive the run lies
in a file as well, one line a release, on the disk before the release is handed over.
"""

from __future__ import annotations

import os
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context

from fedveil.accounting import Ledger
from fedveil.engines.states import pack, unpack
from fedveil.errors import LedgerError

STATE, VALUES, LEDGER = "fedveil.state", "fedveil.values", "fedveil.ledger"
_LOG = getLogger("flwr")


class Memory:
    """One client's memory.

    Parameters
    ----------
    context : Context
        Of the node.
    partition : int
        Names the ledger.
    run : str
        The run's id, in every ledger line.
    folder : str, optional
        Keeps ``<partition>.jsonl``; a file of another run is refused.

    Attributes
    ----------
    ledger : Ledger
        As it was left.
    torn : bool
        Whether the file ended in a half-written line, which was removed.
    """

    def __init__(self, context: Context, partition: int, run: str, folder: str | None = None) -> None:
        self._context, self.torn = context, False
        self._path = None if folder is None else Path(folder) / f"{partition}.jsonl"
        known = self._lines()
        lines = known if self._path is None else self._read(self._path, known)
        self.ledger = Ledger.parse(run, str(partition), lines)

    def store(self, line: str) -> None:
        """Make a ledger line durable."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self._context.state[LEDGER] = ConfigRecord({"lines": [*self._lines(), line]})

    def load(self, fresh: Any) -> Any:
        """The method's state, or `fresh`, which says of what kind it must be."""
        arrays, values = self._context.state.get(STATE), self._context.state.get(VALUES)
        if not isinstance(arrays, ArrayRecord) or not isinstance(values, ConfigRecord):
            return fresh
        plain: dict[str, Any] = dict(values)
        if plain.pop("kind", None) != type(fresh).__name__:
            return fresh
        return unpack(fresh, {n: torch.from_numpy(a.numpy()) for n, a in arrays.items()}, plain)

    def save(self, state: Any) -> None:
        """Keep the method's state."""
        tensors, values = pack(state)
        arrays = {n: Array(t.detach().cpu().contiguous().numpy()) for n, t in tensors.items()}
        self._context.state[STATE] = ArrayRecord(arrays)
        self._context.state[VALUES] = ConfigRecord({"kind": type(state).__name__, **values})

    def _lines(self) -> list[str]:
        record = self._context.state.get(LEDGER)
        lines = record.get("lines", []) if isinstance(record, ConfigRecord) else []
        return [str(line) for line in lines] if isinstance(lines, list) else []

    def _read(self, path: Path, known: list[str]) -> list[str]:
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            self.torn = True
            _LOG.warning("%s ends in a half-written line: it is removed, and counted as one more release", path)
            with path.open("rb+") as file:
                file.truncate(len(whole))
                os.fsync(file.fileno())
        lines = whole.decode().splitlines()
        if lines[: len(known)] != known:
            raise LedgerError(f"{path} lacks lines that this run recorded, or holds others: restore it")
        return lines
