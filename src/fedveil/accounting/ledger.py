"""Releases of a party, their cost (`Spend`), and the ledger that records both before a release is sent.

A ledger's lines are chained by checksums. Engines write the files; this module writes none.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args

from fedveil.accounting.draws import Draw
from fedveil.accounting.guarantee import (
    BEFORE_ORDER,
    BEFORE_ROUNDING,
    PARTS,
    Guarantee,
    unprotected,
)
from fedveil.errors import FieldError, LedgerError, kind_of, require_a, require_choice
from fedveil.reading import json_of

if TYPE_CHECKING:  # so that planning does not import PyTorch
    from torch import Tensor

Kind = Literal["model", "update", "gradient", "index", "metric", "count", "sum", "share"]
_KINDS = get_args(Kind)
Key = tuple[int, str]  # (round, purpose); the ledger itself names the party
_encoded = json.JSONEncoder(sort_keys=True).encode
RUN_OF_SITES = "sites_run"  # key of an opening: the framework's id of the run, which the clients' own ledgers have, too
CARRIED = "carried"  # key of a lifetime ledger's first line: costs of the closed ledger before it
OPEN = "open"  # digest of an intent, for which no release was handed over yet
FORMAT = 3  # format of new lines; `Entry.doubt` states the weakness of older ones


@dataclass(frozen=True)
class Release:
    """One value that a party sends: a model, count, metric or share.

    Parameters
    ----------
    kind : {"model", "update", "gradient", "index", "metric", "count", "sum", "share"}
        Kind of the value. A client's model is [d], a server's [k, d]. A sum on a grid and a share of a secure sum are
        int64 [d]. An index, metric or count has no dimensions.
    value : Tensor
        Value that is sent.
    name : str
        Name of a metric.
    """

    kind: Kind
    value: "Tensor"
    name: str = ""

    def __post_init__(self) -> None:
        import torch

        if self.kind not in _KINDS:
            require_choice("kind", self.kind, _KINDS)
        if not isinstance(self.value, torch.Tensor):
            raise FieldError("value", kind_of(self.value), "must be a tensor")


def digest(releases: tuple[Release, ...]) -> str:
    """Compute SHA-256 over the kinds, names, types, shapes and bits of releases that are sent together."""
    import torch

    h = hashlib.sha256()
    for r in releases:
        value = r.value.detach().cpu().contiguous()
        h.update(f"{r.kind}\x1f{r.name}\x1f{value.dtype}\x1f{tuple(value.shape)}\x1e".encode())
        common = value.dtype in (
            torch.float32,
            torch.float64,
        )  # NumPy lacks some of the other types
        h.update((value if common else value.reshape(-1).view(torch.uint8)).numpy().data)
    return h.hexdigest()


def model_of(releases: tuple[Release, ...]) -> "Tensor | None":
    """Return the model among releases; None if there is none."""
    models = [release.value for release in releases if release.kind == "model"]
    if len(models) > 1:
        raise FieldError("releases", len(models), "a party releases at most one model a round")
    return models[0] if models else None


def count_of(releases: tuple[Release, ...]) -> float | None:
    """Return the example count among releases; None if there is none."""
    counts = [release.value for release in releases if release.kind == "count"]
    if len(counts) > 1 or any(count.numel() != 1 or count.is_complex() for count in counts):
        shapes = [tuple(count.shape) for count in counts]
        raise FieldError("releases", shapes, "a party releases at most one count, one number")
    return float(counts[0]) if counts else None


@dataclass(frozen=True, kw_only=True)
class Spend:
    """Cost of one party's releases of one round.

    Parameters
    ----------
    guarantee : Guarantee
        Guarantee of this release alone.
    mechanism : str
        ``"gaussian"``, ``"discrete gaussian"``, ``"euclidean-laplace"`` or ``"none"``.
    scale : tuple of float
        Scale of the noise: standard deviation per coordinate (one entry, or one for each layer), or epsilon per unit of
        distance for Euclidean Laplace. Empty without noise.
    sensitivity : float, optional
        Euclidean sensitivity of the guarantee.
    charge : float, optional
        Mu of this round if it depended on earlier releases; filters charge this number. The guarantee then states the
        public worst case, because a sum of such charges is random and no promise.
    leakage : float, optional
        Leakage that adds up but is no guarantee. Group privacy as printed: the neighbourhood leakage n / nu of this
        participation. IFCA: ln k for the reported index of one of k hypotheses.
    draws : tuple of Draw
        Numbers of the noise from which a proven guarantee can be computed again.

    Examples
    --------
    >>> federation = fv.Federation(
    ...     model=model, clients=clients, method=fv.GlobalDP(noise_multiplier=2.0), seed=1
    ... )
    >>> spend = federation.run(1).rounds[0].round.spend
    >>> spend.mechanism, spend.guarantee.scope
    ('gaussian', 'round')
    """

    guarantee: Guarantee
    mechanism: str = "none"
    scale: tuple[float, ...] = ()
    sensitivity: float | None = None
    charge: float | None = None
    leakage: float | None = None
    draws: tuple[Draw, ...] = ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Spend":
        """Read a spend from the plain values of a ledger's line."""
        require_a("spend", values, Mapping, "must be a table, as a ledger's line has it")
        for name in ("guarantee", "scale"):
            if name not in values:
                raise FieldError(f"spend.{name}", None, "it is needed, as in a ledger's line")
        require_a("spend.scale", values["scale"], (list, tuple), "must be a list of numbers")
        for value in values["scale"]:
            require_a("spend.scale", value, (int, float), "must be a list of numbers")
        for name in ("sensitivity", "charge", "leakage"):
            value = values.get(name)
            require_a(f"spend.{name}", value, (int, float, NoneType), "must be a number, or null")
        require_a("spend.mechanism", values.get("mechanism", ""), str, "must be a name")
        guarantee = Guarantee.from_dict(values["guarantee"])
        draws = tuple(Draw(**draw) for draw in values.get("draws", ()))
        read = {"guarantee": guarantee, "scale": tuple(values["scale"]), "draws": draws}
        return cls(**{**values, **read})

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON, without the guarantee."""
        values = dict(vars(self))
        del values["guarantee"], values["draws"]
        if self.draws:
            values["draws"] = [vars(draw) for draw in self.draws]
        return values


@cache
def nothing(trust: str = "central") -> Spend:
    """Return the spend of a release without noise; nothing is promised."""
    return Spend(guarantee=unprotected("local" if trust == "local" else "central"))


@dataclass(frozen=True)
class Entry:
    """One release in a ledger, with its cost.

    Attributes
    ----------
    key : tuple of (int, str)
        Round and purpose.
    attempt : int
        Number of the attempt, from 0; drawing the noise again after a crash is a new attempt.
    digest : str
        SHA-256 of the released bits, or `OPEN` for an intent. An intent is charged before data are touched. The
        release's own line has the same key and attempt, and replaces it.
    spend : Spend
        Cost of the release.
    source : str
        Kind of the noise's random source: ``"secure"``, ``"reproducible"``, ``"none"``; empty in older ledgers.
    rounds : int, optional
        Planned number of rounds, in a client's release.
    format : int
        Format of the line; it tells by which version of the arithmetic the release was computed.
    receipt : mapping of str to object
        Plain values of `ShareReceipt` in a client's line, of `Receipt` in a server's. Empty in lines of earlier
        versions, in intents, and under central trust.
    """

    key: Key
    attempt: int
    digest: str
    spend: Spend
    source: str = ""
    rounds: int | None = None
    format: int = FORMAT
    receipt: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def doubt(self) -> str:
        """Condition that a release of an old version needs, as its true cost may otherwise be far higher (SECURITY.md); or ""."""
        promised = self.spend.guarantee
        if self.format >= FORMAT or promised.unit not in PARTS or not promised.proven:
            return ""
        unrounded = self.format < 2 and promised.unit == "record"
        return BEFORE_ROUNDING if unrounded else BEFORE_ORDER


class Ledger:
    """Record of all releases of one party, in one run or in all runs on its data set (a lifetime ledger).

    Parameters
    ----------
    run : str
        Id of the run.
    party : str
        ``"server"`` or the partition number; in a lifetime ledger the data set's name.
    head : str, optional
        First line of a lifetime ledger, with its author and date. Without it lines of other runs are refused. With it
        they are kept apart, and every budget is charged with them.

    Attributes
    ----------
    entries : list of Entry
        Entries of this run, one for each attempt, in the order in which attempts began.
    earlier : list of Entry
        Entries of other runs.
    lines : int
        Number of recorded lines. It exceeds the number of entries by closed intents and a declared budget.
    budget : dict, optional
        Terms of the filter that was set before the first release (`declare`).
    carried : tuple of (int, Entry)
        Costs of other runs' releases without their lines, each with the number of times it was paid. They come from a
        closed ledger (then `head` has them), or from lines that a head confirms.
    asked : frozenset of str
        Questions of secure sums that these releases answered, by their purposes.
    openings : list of dict
        Content of the first line, and of the lines by which a deployed run was bound again (`bind`). Empty in ledgers
        of earlier versions.

    Examples
    --------
    >>> federation = fv.Federation(
    ...     model=model, clients=clients, method=fv.GlobalDP(noise_multiplier=2.0), seed=1
    ... )
    >>> _ = federation.run(2)
    >>> ledger = federation.server.ledger
    >>> [entry.key for entry in ledger.entries]
    [(1, 'combine'), (2, 'combine')]
    >>> ledger.entries[0].spend.mechanism
    'gaussian'
    """

    def __init__(self, run: str, party: str, head: str | None = None) -> None:
        if head is not None:
            require_a("head", head, str, "must be the first line of a lifetime ledger")
        self.run, self.party, self.head = run, party, head
        self.budget: dict[str, float] | None = None
        self.carried: tuple[tuple[int, Entry], ...] = ()
        self.asked: frozenset[str] = frozenset()
        if head is not None and CARRIED in head:
            self.carried, self.budget = _carried_in(head)
        self.openings: list[dict[str, Any]] = []
        self.entries: list[Entry] = []
        self.earlier: list[Entry] = []
        self.lines = 0
        self._latest: dict[tuple[str, Key], int] = {}
        self._spends: dict[Spend, Spend] = {}  # equal costs are held once
        kind, of = ("ledger", run) if head is None else ("lifetime ledger", head)
        self._chain = hashlib.sha256(f"fedveil {kind}\x1f{of}\x1f{party}".encode()).hexdigest()

    @property
    def checksum(self) -> str:
        """Checksum of the last line, from which the next line's checksum is computed."""
        return self._chain

    @property
    def all_entries(self) -> list[Entry]:
        """All entries that count for a budget; carried ones come first, without their rounds."""
        carried: list[Entry] = []
        for times, entry in self.carried:
            carried += [entry] * times
        return [*carried, *self.earlier, *self.entries]

    def was_asked(self, key: Key) -> bool:
        """Whether another run made a release with this key."""
        return key[1] in self.asked or any(entry.key == key for entry in self.earlier)

    def find(self, key: Key) -> Entry | None:
        """Return the latest attempt with this key (round, purpose) in this run; None without one."""
        return self._find(self.run, key)

    def _find(self, run: str, key: Key) -> Entry | None:
        place = self._latest.get((run, key))
        return None if place is None else self._of(run)[place]

    def _of(self, run: str) -> list[Entry]:
        return self.entries if run == self.run else self.earlier

    def commit(self, entry: Entry) -> str:
        """Record a release, before it is sent.

        Returns
        -------
        str
            Line to store, without the line break.

        Raises
        ------
        LedgerError
            If this attempt is already recorded: one attempt never has two digests.
        """
        return self._commit(entry, self.run)

    def _commit(self, entry: Entry, run: str) -> str:
        known, entries = self._find(run, entry.key), self._of(run)
        closes = (
            known is not None
            and known.digest == OPEN != entry.digest
            and known.attempt == entry.attempt
        )
        following = 0 if known is None else known.attempt + 1
        if not closes and entry.attempt != following:
            raise LedgerError(
                f"{self.party}: attempt {entry.attempt} of {entry.key} is not the next one"
            )
        text = _encoded({"run": run, **self._body(entry)})
        line = self._chained(
            text.replace('"guarantee": 0', f'"guarantee": {entry.spend.guarantee.text}', 1)
        )
        held = replace(entry, spend=self._spends.setdefault(entry.spend, entry.spend))
        if closes:
            entries[self._latest[run, entry.key]] = held
        else:
            self._latest[run, entry.key] = len(entries)
            entries.append(held)
        return line

    @property
    def opening(self) -> Mapping[str, Any] | None:
        """Content of the first line; None in ledgers of earlier versions."""
        return self.openings[0] if self.openings else None

    def bind(self, opening: Mapping[str, Any]) -> str:
        """Record the first line, which binds a run to its parties and to the terms of every epsilon.

        A deployed run that continues is bound again under the framework's new id (`RUN_OF_SITES`); nothing else may
        differ.

        Parameters
        ----------
        opening : mapping
            Plain values. For the server: the parties by name, trust, delta, terms. For other parties: the digest of
            these (`opening_digest`), as ``{"of": digest}``.

        Returns
        -------
        str
            Line to store, without the line break.

        Raises
        ------
        LedgerError
            If the ledger begins with another line, or is bound to other values. Also for a lifetime ledger, as many
            runs share it.
        """
        known = self.opening
        if self.head is not None or (known is None and self.lines):
            raise LedgerError(
                f"{self.party}: this ledger already begins with another line, so it cannot be bound to this run"
            )
        if known is not None and (
            RUN_OF_SITES not in known or _without_run(known) != _without_run(opening)
        ):
            differing = [
                name for name in {*known, *opening} if known.get(name) != opening.get(name)
            ]
            other = ", ".join(sorted(differing))
            raise LedgerError(
                f"{self.party}: the ledger's first line binds another run (see {other}); start a new one"
            )
        self.openings.append(dict(opening))
        return self._chained(
            _encoded({"run": self.run, "party": self.party, "opening": self.openings[-1]})
        )

    def declare(self, budget: Mapping[str, float]) -> str:
        """Record the budget of a filter; it is a promise only if it is set before the first release.

        Parameters
        ----------
        budget : mapping of str to float
            Terms of the filter (`SpendFilter.terms`).

        Returns
        -------
        str
            Line to store, without the line break.

        Raises
        ------
        LedgerError
            If a release was made before: a budget chosen afterwards promises nothing.
        """
        if self.all_entries:
            raise LedgerError(
                f"{self.party}: a budget has to be declared before the first release, and there is one"
            )
        self.budget = dict(budget)
        return self._chained(
            _encoded({"run": self.run, "party": self.party, "budget": self.budget})
        )

    def _chained(self, text: str) -> str:
        self._chain = self._checksum(self._chain, text)
        self.lines += 1
        return f'{text[:-1]}, "checksum": "{self._chain}"}}'

    @classmethod
    def parse(cls, run: str, party: str, lines: Iterable[str], head: str | None = None) -> "Ledger":
        """Rebuild a ledger from its lines.

        Raises
        ------
        LedgerError
            If a line was edited, is out of order, or belongs to another run or party.
        """
        require_a("lines", lines, Iterable, "must be the lines of a ledger's file")
        ledger = cls(run, party, head)
        ledger.extend(lines)
        return ledger

    def extend(self, lines: Iterable[str]) -> None:
        """Read further lines that another process stored.

        Raises
        ------
        LedgerError
            If a line was edited, is out of order, or belongs to another run or party.
        """
        for line in lines:
            where = f"ledger of {self.party!r}, line {self.lines + 1}"
            try:
                values = json_of(line)
                checksum = values.pop("checksum")
                owner, budget = (values["run"], values["party"]), values.get("budget")
                opening = _opening_of(values)
                entry = None if budget or opening is not None else _entry_of(values)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                raise LedgerError(
                    f"{where} cannot be read ({error}); restore the file or start a new run"
                ) from error
            if owner[1] != self.party or (self.head is None and owner[0] != self.run):
                of = f"run {owner[0]!r}, party {owner[1]!r}"
                raise LedgerError(f"{where} belongs to {of}; restore the file or start a new run")
            if checksum != self._checksum(self._chain, _encoded(values)):
                raise LedgerError(
                    f"{where} was edited or a line before it is missing; restore it or start a new run"
                )
            if opening is not None:
                self.bind(opening)
            elif entry is None:
                self.declare(budget)
            else:
                self._commit(entry, owner[0])
            self._chain = (
                checksum  # the checksum of the line itself, as another version may have written it
            )

    def go_on_from(self, lines: int, checksum: str) -> None:
        """Continue after lines that are stored elsewhere: set their number, and the checksum of the last one."""
        self.lines, self._chain = lines, checksum

    def _body(self, entry: Entry) -> dict[str, Any]:
        """Return a line's values with 0 in place of the guarantee; many clients share the guarantee's text."""
        receipt = {"receipt": dict(entry.receipt)} if entry.receipt else {}
        return {
            **receipt,
            "party": self.party,
            "round": entry.key[0],
            "purpose": entry.key[1],
            "attempt": entry.attempt,
            "digest": entry.digest,
            "spend": {**entry.spend.values(), "guarantee": 0},
            "source": entry.source,
            "rounds": entry.rounds,
            "format": entry.format,
        }

    @staticmethod
    def _checksum(chain: str, text: str) -> str:
        return hashlib.sha256((chain + text).encode()).hexdigest()


def _without_run(opening: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in opening.items() if name != RUN_OF_SITES}


def opening_digest(opening: Mapping[str, Any]) -> str:
    """Return SHA-256 of the server's first line; the other parties' first lines refer to it."""
    return hashlib.sha256(_encoded(dict(opening)).encode()).hexdigest()


def _opening_of(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of an opening line; None for other lines."""
    if "opening" not in values:
        return None
    opening = values["opening"]
    if values.keys() != {"run", "party", "opening"} or not isinstance(opening, dict):
        raise ValueError("an opening line has run, party and a table, and nothing else")
    return opening


def _carried_in(head: str) -> tuple[tuple[tuple[int, Entry], ...], dict[str, float] | None]:
    """Read the costs and the budget of a closed ledger from the first line of its successor."""
    try:
        values = json_of(head)
        return read_carried(values[CARRIED]), values.get("budget")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise LedgerError(
            f"the ledger's first line carries what cannot be read ({error}): restore it"
        ) from error


def read_carried(values: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, Entry], ...]:
    """Read costs, and the number of times each was paid, from values of `fedveil.accounting.carried.carried_values`."""
    carried = []
    for value in values:
        times = value["times"]
        if type(times) is not int or times < 1:
            raise ValueError("times is no number from 1 on")
        carried.append((times, _entry_of(value)))
    return tuple(carried)


def _entry_of(values: Mapping[str, Any]) -> Entry:
    key = (values["round"], values["purpose"])
    kinds = {"round": int, "purpose": str, "attempt": int, "digest": str}
    for name, kind in kinds.items():
        if type(values[name]) is not kind:
            raise ValueError(f"{name} is no {kind.__name__}")
    spend, source, rounds = (
        Spend.from_dict(values["spend"]),
        values.get("source", ""),
        values.get("rounds"),
    )
    receipt = values.get("receipt", {})
    if not isinstance(receipt, dict):
        raise ValueError("receipt is no table")
    return Entry(
        key,
        values["attempt"],
        values["digest"],
        spend,
        source,
        rounds,
        int(values.get("format", 1)),
        receipt,
    )
