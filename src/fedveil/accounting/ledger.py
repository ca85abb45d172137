"""What leaves a party (Release), what it cost (Spend), and the ledger to which both were committed before.

A ledger's lines are chained by checksums. Nothing here writes a file: engines do.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from fedveil.accounting.draws import Draw
from fedveil.accounting.guarantee import BEFORE_ORDER, BEFORE_ROUNDING, PARTS, Guarantee, unprotected
from fedveil.errors import FieldError, LedgerError, require_a, require_choice
from fedveil.reading import json_of

if TYPE_CHECKING:  # whoever only plans does not wait for PyTorch
    from torch import Tensor

Kind = Literal["model", "update", "gradient", "index", "metric", "count", "sum", "share"]
_KINDS = get_args(Kind)
Key = tuple[int, str]  # (round, purpose): the party is the ledger's own
_encoded = json.JSONEncoder(sort_keys=True).encode
RUN_OF_SITES = "sites_run"  # of an opening: the framework's id, by which clients' own ledgers know the run
OPEN = "open"  # the digest of an intent: nothing was handed over yet
FORMAT = 3  # of the lines written now; what noise did not cover where one is older is said by `Entry.doubt`


@dataclass(frozen=True)
class Release:
    """One value on its way out of a party.

    Parameters
    ----------
    kind : {"model", "update", "gradient", "index", "metric", "count", "sum", "share"}
        What it is. A client's model is [d]; a server's is [k, d]; a sum on a grid, and a share of a secure one, are
        int64 [d]; the others are 0-d.
    value : Tensor
        The value itself.
    name : str
        Tells several metrics apart.
    """

    kind: Kind
    value: "Tensor"
    name: str = ""

    def __post_init__(self) -> None:
        import torch

        if self.kind not in _KINDS:
            require_choice("kind", self.kind, _KINDS)
        if not isinstance(self.value, torch.Tensor):
            raise FieldError("value", type(self.value).__name__, "must be a tensor")


def digest(releases: tuple[Release, ...]) -> str:
    """SHA-256 over kinds, names, types, shapes and bits of releases that leave together."""
    import torch

    h = hashlib.sha256()
    for r in releases:
        value = r.value.detach().cpu().contiguous()
        h.update(f"{r.kind}\x1f{r.name}\x1f{value.dtype}\x1f{tuple(value.shape)}\x1e".encode())
        common = value.dtype in (torch.float32, torch.float64)  # NumPy does not know all others
        h.update((value if common else value.reshape(-1).view(torch.uint8)).numpy().data)
    return h.hexdigest()


def model_of(releases: tuple[Release, ...]) -> "Tensor | None":
    """The model among releases, or None."""
    models = [r.value for r in releases if r.kind == "model"]
    if len(models) > 1:
        raise FieldError("releases", len(models), "a party releases at most one model a round")
    return models[0] if models else None


def count_of(releases: tuple[Release, ...]) -> float | None:
    """The example count among releases, or None."""
    counts = [r.value for r in releases if r.kind == "count"]
    if len(counts) > 1 or any(v.numel() != 1 or v.is_complex() for v in counts):
        raise FieldError("releases", [tuple(v.shape) for v in counts], "a party releases at most one count, one number")
    return float(counts[0]) if counts else None


@dataclass(frozen=True, kw_only=True)
class Spend:
    """The cost of one party's releases of one round.

    Parameters
    ----------
    guarantee : Guarantee
        What that round's release promises by itself.
    mechanism : str
        ``"gaussian"``, ``"discrete gaussian"``, ``"euclidean-laplace"`` or ``"none"``.
    scale : tuple of float
        The noise's scale: standard deviation per coordinate (one entry, or one a layer); epsilon per unit of distance
        for Euclidean Laplace. Empty without noise.
    sensitivity : float, optional
        Euclidean sensitivity that the guarantee rests on.
    charge : float, optional
        Mu of this very round where it followed earlier releases: what a filter charges. The guarantee then holds the
        public worst case, since a sum of such charges is a random number and no promise.
    leakage : float, optional
        Heuristic neighbourhood leakage n / nu of this participation (group privacy as printed), or what the reported
        index of one of k hypotheses tells at most, ln k (IFCA): no guarantee, but it is public and adds up.
    draws : tuple of Draw
        The noise behind a proven guarantee in the mechanism's own numbers, from which the guarantee is computed anew.
        Without any, a reader has the guarantee's word.

    Examples
    --------
    >>> federation = fv.Federation(model=model, clients=clients, method=fv.GlobalDP(noise_multiplier=2.0), seed=1)
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
        """From plain values, as a ledger's line has them."""
        require_a("spend", values, Mapping, "must be a table, as a ledger's line has it")
        for name in ("guarantee", "scale"):
            if name not in values:
                raise FieldError(f"spend.{name}", None, "it is needed, as in a ledger's line")
        guarantee = Guarantee.from_dict(values["guarantee"])
        draws = tuple(Draw(**draw) for draw in values.get("draws", ()))
        return cls(**{**values, "guarantee": guarantee, "scale": tuple(values["scale"]), "draws": draws})

    def values(self) -> dict[str, Any]:
        """All but the guarantee as plain values for JSON."""
        own = {name: value for name, value in vars(self).items() if name not in ("guarantee", "draws")}
        return {**own, "draws": [vars(draw) for draw in self.draws]} if self.draws else own


@cache
def nothing(trust: str = "central") -> Spend:
    """The spend of a release without noise, or of a declared identity."""
    return Spend(guarantee=unprotected("local" if trust == "local" else "central"))


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
        SHA-256 of the released bits; `OPEN` for an intent, which is charged before data are touched. The line that
        closes it has the same key and attempt, and takes its place.
    spend : Spend
        What it cost.
    source : str
        Kind of the noise's source: ``"secure"``, ``"reproducible"``, ``"none"``; empty in older ledgers.
    rounds : int, optional
        Rounds that were planned when a client released this.
    format : int
        Of the line, which tells what arithmetic the release was made with.
    """

    key: Key
    attempt: int
    digest: str
    spend: Spend
    source: str = ""
    rounds: int | None = None
    format: int = FORMAT

    @property
    def doubt(self) -> str:
        """What has to hold, or its true cost may be far above the stated one: see SECURITY.md. Empty where nothing."""
        promised = self.spend.guarantee
        if self.format >= FORMAT or promised.unit not in PARTS or not promised.proven:
            return ""
        return BEFORE_ROUNDING if self.format < 2 and promised.unit == "record" else BEFORE_ORDER


class Ledger:
    """The committed releases of one party: of one run, or of all runs on its data set (a lifetime ledger).

    Parameters
    ----------
    run : str
        The run's id.
    party : str
        ``"server"`` or the partition number; of a lifetime ledger the data set's name.
    head : str, optional
        The first line of a lifetime ledger, which says who began it and when. Without it lines of other runs are
        refused; with it they are kept apart, and every budget is charged with them.

    Attributes
    ----------
    entries : list of Entry
        Of this run: one an attempt, in the order in which they were begun.
    earlier : list of Entry
        Of other runs.
    lines : int
        Lines committed; more than entries where intents were closed or a budget was declared.
    budget : dict, optional
        Terms of the filter under which the first release was made; see `declare`.
    openings : list of dict
        What the first line binds, and the lines of a deployed run that went on; see `bind`. Empty in ledgers of earlier
        versions.

    Examples
    --------
    >>> federation = fv.Federation(model=model, clients=clients, method=fv.GlobalDP(noise_multiplier=2.0), seed=1)
    >>> _ = federation.run(2)
    >>> ledger = federation.server.ledger
    >>> [entry.key for entry in ledger.entries]
    [(1, 'combine'), (2, 'combine')]
    >>> ledger.entries[0].spend.mechanism
    'gaussian'
    """

    def __init__(self, run: str, party: str, head: str | None = None) -> None:
        self.run, self.party, self.head = run, party, head
        self.budget: dict[str, float] | None = None
        self.openings: list[dict[str, Any]] = []
        self.entries: list[Entry] = []
        self.earlier: list[Entry] = []
        self.lines = 0
        self._latest: dict[tuple[str, Key], int] = {}
        kind, of = ("ledger", run) if head is None else ("lifetime ledger", head)
        self._chain = hashlib.sha256(f"fedveil {kind}\x1f{of}\x1f{party}".encode()).hexdigest()

    @property
    def checksum(self) -> str:
        """What chains the next line to all before it."""
        return self._chain

    @property
    def all_entries(self) -> list[Entry]:
        """Everything that was ever spent from this ledger: what a budget is charged with."""
        return [*self.earlier, *self.entries]

    def find(self, key: Key) -> Entry | None:
        """The latest attempt recorded under a key in this run, or None."""
        return self._find(self.run, key)

    def _find(self, run: str, key: Key) -> Entry | None:
        at = self._latest.get((run, key))
        return None if at is None else self._of(run)[at]

    def _of(self, run: str) -> list[Entry]:
        return self.entries if run == self.run else self.earlier

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
        return self._commit(entry, self.run)

    def _commit(self, entry: Entry, run: str) -> str:
        known, entries = self._find(run, entry.key), self._of(run)
        closes = known is not None and known.digest == OPEN != entry.digest and known.attempt == entry.attempt
        if not closes and entry.attempt != (0 if known is None else known.attempt + 1):
            raise LedgerError(f"{self.party}: attempt {entry.attempt} of {entry.key} is not the next one")
        text = _encoded({"run": run, **self._body(entry)})
        line = self._chained(text.replace('"guarantee": 0', f'"guarantee": {entry.spend.guarantee.text}', 1))
        if closes:
            entries[self._latest[run, entry.key]] = entry
        else:
            self._latest[run, entry.key] = len(entries)
            entries.append(entry)
        return line

    @property
    def opening(self) -> Mapping[str, Any] | None:
        """What the first line binds; None in ledgers of earlier versions."""
        return self.openings[0] if self.openings else None

    def bind(self, opening: Mapping[str, Any]) -> str:
        """Record, as the first line, what a run is: who may release, and what every epsilon of it rests on.

        A deployed run that goes on is bound again, under the framework's new id of it (`RUN_OF_SITES`); nothing else
        may differ.

        Parameters
        ----------
        opening : mapping
            Plain values: of the server the parties by name, trust, delta, terms; of any other party the digest of
            these (`opening_digest`), as ``{"of": digest}``.

        Returns
        -------
        str
            The line to store, without its end.

        Raises
        ------
        LedgerError
            If another line is the first, or the first binds something else; for a data set's ledger, which many runs
            share.
        """
        known = self.opening
        if self.head is not None or (known is None and self.lines):
            raise LedgerError(f"{self.party}: a run is bound in the first line of its own ledger, and there is another")
        if known is not None and (RUN_OF_SITES not in known or _without_run(known) != _without_run(opening)):
            other = ", ".join(sorted(k for k in {*known, *opening} if known.get(k) != opening.get(k)))
            raise LedgerError(f"{self.party}: the ledger's first line binds another run (see {other}); start a new one")
        self.openings.append(dict(opening))
        return self._chained(_encoded({"run": self.run, "party": self.party, "opening": self.openings[-1]}))

    def declare(self, budget: Mapping[str, float]) -> str:
        """Record the budget that a filter will hold the party to: only one set before the first release is a promise.

        Parameters
        ----------
        budget : mapping of str to float
            The filter's terms (`SpendFilter.terms`).

        Returns
        -------
        str
            The line to store, without its end.

        Raises
        ------
        LedgerError
            If something was released before: a budget chosen after looking promises nothing.
        """
        if self.all_entries:
            raise LedgerError(f"{self.party}: a budget is declared before the first release, of which there are some")
        self.budget = dict(budget)
        return self._chained(_encoded({"run": self.run, "party": self.party, "budget": self.budget}))

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
        for number, line in enumerate(lines, start=1):
            where = f"ledger of {party!r}, line {number}"
            try:
                values = json_of(line)
                checksum = values.pop("checksum")
                owner, budget = (values["run"], values["party"]), values.get("budget")
                opening = _opening_of(values)
                entry = None if budget or opening is not None else _entry_of(values)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                raise LedgerError(f"{where} cannot be read ({error}); restore the file or start a new run") from error
            if owner[1] != party or (head is None and owner[0] != run):
                of = f"run {owner[0]!r}, party {owner[1]!r}"
                raise LedgerError(f"{where} belongs to {of}; restore the file or start a new run")
            if checksum != cls._checksum(ledger._chain, _encoded(values)):
                raise LedgerError(f"{where} was edited or a line before it is missing; restore it or start a new run")
            if opening is not None:
                ledger.bind(opening)
            elif entry is None:
                ledger.declare(budget)
            else:
                ledger._commit(entry, owner[0])
            ledger._chain = checksum  # of the line as it was written, by whatever version
        return ledger

    def _body(self, entry: Entry) -> dict[str, Any]:
        """A line's values; the guarantee, which many clients share, is written beside it."""
        return {
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
    """SHA-256 of what a server's first line binds, by which the other parties' first lines know it."""
    return hashlib.sha256(_encoded(dict(opening)).encode()).hexdigest()


def _opening_of(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a line binds; None for any other line."""
    if "opening" not in values:
        return None
    opening = values["opening"]
    if values.keys() != {"run", "party", "opening"} or not isinstance(opening, dict):
        raise ValueError("an opening line has run, party and a table, and nothing else")
    return opening


def _entry_of(values: Mapping[str, Any]) -> Entry:
    key = (values["round"], values["purpose"])
    spend, source, rounds = Spend.from_dict(values["spend"]), values.get("source", ""), values.get("rounds")
    return Entry(key, values["attempt"], values["digest"], spend, source, rounds, int(values.get("format", 1)))
