"""Ledger: what a party committed to before it let anything go, chained by checksums. Pure: engines write the lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedveil.accounting.spend import Spend
from fedveil.errors import LedgerError

Key = tuple[int, str]  # (round, purpose): the party is the ledger's own


@dataclass(frozen=True)
class Entry:
    """One committed release.

    Attributes
    ----------
    key : tuple of (int, str)
        Round and purpose.
    attempt : int
        Counts redraws after a crash, from 0.
    digest : str
        SHA-256 of the released bits.
    spend : Spend
        What it cost.
    """

    key: Key
    attempt: int
    digest: str
    spend: Spend


class Ledger:
    """The committed releases of one party of one run.

    Parameters
    ----------
    run : str
        The run's id.
    party : str
        ``"server"`` or the partition number.
    """

    def __init__(self, run: str, party: str) -> None:
        self.run, self.party = run, party
        self.entries: list[Entry] = []
        self._latest: dict[Key, Entry] = {}
        self._chain = self._head()

    def _head(self) -> str:
        return hashlib.sha256(f"fedveil ledger\x1f{self.run}\x1f{self.party}".encode()).hexdigest()

    def find(self, key: Key) -> Entry | None:
        """The latest attempt recorded under a key, or None."""
        return self._latest.get(key)

    def commit(self, entry: Entry) -> str:
        """Record a release before it is handed over.

        Returns
        -------
        str
            The line to store, without its end.

        Raises
        ------
        LedgerError
            If the attempt was recorded before: a key never goes out under two digests of one attempt.
        """
        known = self.find(entry.key)
        if entry.attempt != (0 if known is None else known.attempt + 1):
            raise LedgerError(f"{self.party}: attempt {entry.attempt} of {entry.key} is not the next one")
        text = json.dumps(self._body(entry), sort_keys=True)
        self._chain = self._checksum(self._chain, text)
        self.entries.append(entry)
        self._latest[entry.key] = entry
        return f'{text[:-1]}, "checksum": "{self._chain}"}}'

    @classmethod
    def parse(cls, run: str, party: str, lines: Iterable[str]) -> Ledger:
        """Rebuild a ledger from its lines.

        Raises
        ------
        LedgerError
            If a line was edited, is out of order, or belongs to another run or party.
        """
        ledger = cls(run, party)
        for number, line in enumerate(lines, start=1):
            where = f"ledger of {party!r}, line {number}"
            try:
                values = json.loads(line)
                checksum = values.pop("checksum")
                spend = Spend.from_dict(values["spend"])
                entry = Entry((values["round"], values["purpose"]), values["attempt"], values["digest"], spend)
                owner = (values["run"], values["party"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise LedgerError(f"{where} cannot be read ({error}); restore the file or start a new run") from error
            if owner != (run, party):
                of = f"run {owner[0]!r}, party {owner[1]!r}"
                raise LedgerError(f"{where} belongs to {of}; restore the file or start a new run")
            if checksum != cls._checksum(ledger._chain, json.dumps(values, sort_keys=True)):
                raise LedgerError(f"{where} was edited or a line before it is missing; restore it or start a new run")
            ledger.commit(entry)
        return ledger

    def _body(self, entry: Entry) -> dict[str, Any]:
        return {
            "run": self.run,
            "party": self.party,
            "round": entry.key[0],
            "purpose": entry.key[1],
            "attempt": entry.attempt,
            "digest": entry.digest,
            "spend": entry.spend.to_dict(),
        }

    @staticmethod
    def _checksum(chain: str, text: str) -> str:
        return hashlib.sha256((chain + text).encode()).hexdigest()
