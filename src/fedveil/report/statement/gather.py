"""What a report is about, read from folders: runs with their ledgers, and audits."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.accounting import Policy
from fedveil.config.folders import AUDIT, CELLS, COMPARISON, CONFIG, kind_of
from fedveil.engines.lifetime import read_policy
from fedveil.errors import FieldError, LedgerError, damaged, nearest
from fedveil.reading import json_of, toml_of
from fedveil.report.statement.books import Book, FoundLedgers, promises, read_books
from fedveil.runs.summary import Summary

COMPARED, AUDITED = "comparison.json", "audit.json"
PEOPLE = {
    "name": "what the model is called",
    "description": "what it is",
    "curators": "who publishes it (a list)",
    "intended_use": "what for",
    "region": "whose data, whose law",
    "sector": "Technology, Healthcare, Education, Government, Energy or Finance",
    "publication_date": "YYYY-MM-DD",
    "data_domain": "which data could have been in it",
    "data_changes": "Static or Dynamic",
    "access": "who may touch the data",
    "tuning": "what was chosen on which data, and whether that was charged",
    "personal_data": "whether the model counts as personal data, and who decided it",
    "transport": "how messages were protected on their way",
    "justification": "why these parameters",
    "sources": "where to read more",
    "approved_by": "name and role",
    "approved_on": "YYYY-MM-DD",
    "authors": "who filled this in (a list)",
}
"""What only people know, by the key of the file that says it."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run.

    Attributes
    ----------
    summary : Summary
        Its figures.
    promises : dict
        By party, as the ledgers have it where there are some, else as the summary says.
    run : str
        The id in its ledgers, or an empty text without any.
    books : dict of str to Book
        By party.
    digests : dict of str to str
        SHA-256 of its configuration and figures, by file.
    config : dict
        The configuration; empty for a deployed run, whose server knows none.
    """

    summary: Summary
    promises: Mapping[str, Mapping[str, Any]]
    run: str
    books: Mapping[str, Book]
    digests: Mapping[str, str]
    config: Mapping[str, Any]

    @property
    def worst(self) -> Mapping[str, Any]:
        """The promise that counts."""
        return next(iter(self.promises.values()))


@dataclass(frozen=True, eq=False)
class Gathered:
    """Everything that a report is made from."""

    name: str
    runs: Sequence[Run]
    audits: Sequence[Mapping[str, Any]]
    sets: Mapping[str, Book]
    policy: Mapping[str, Any]
    people: Mapping[str, Any]

    @property
    def rule(self) -> Policy:
        """The policy in force; without one, one that counts what is spent."""
        return Policy.from_dict(self.policy) if self.policy else Policy(distance=1.0)


def gather(folders: Sequence[Path], ledgers: Sequence[Path], policy: Path | None, people: Path | None) -> Gathered:
    """Read folders of runs, comparisons and audits, and what stands beside them.

    Raises
    ------
    FieldError
        If a folder holds nothing finished, or a file cannot be read.
    LedgerError
        If a ledger was edited, or does not give what a summary says.
    """
    runs, audits, names = list[Run](), list[Mapping[str, Any]](), list[str]()
    for folder in folders:
        if (folder / CONFIG).is_file():
            names.append(str(_toml(folder / CONFIG).get("name", folder.resolve().name)))  # of any version
        kind = kind_of(folder)
        if kind == AUDIT or (folder / AUDITED).is_file():
            audits.append(_json(folder / AUDITED))
            continue
        if kind == COMPARISON:
            runs += _compared(folder)
            if (folder / "audit" / AUDITED).is_file():
                audits.append(_json(folder / "audit" / AUDITED))
        elif (folder / "summary.json").is_file():
            runs.append(_run(folder, Summary.read(folder)))
        else:
            raise FieldError("RUN", str(folder), "holds no finished run, comparison or audit")
    told = read_people(people)
    name = told.get("name") or ", ".join(dict.fromkeys(names)) or ", ".join(folder.resolve().name for folder in folders)
    read_policy(policy)  # refuses what no policy can say
    rule = {} if policy is None else toml_of(policy.read_text(encoding="utf-8"))
    return Gathered(name, runs, audits, read_books(ledgers).sets, rule, told)


def read_people(file: Path | None) -> dict[str, Any]:
    """What only people know, from a TOML file with keys of `PEOPLE`.

    Raises
    ------
    FieldError
        For a file that cannot be read, or a key that is not there.
    """
    if file is None:
        return {}
    try:
        values = toml_of(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise damaged("--people", file, error, "write it as TOML") from error
    for name, value in values.items():
        if name not in PEOPLE:
            raise FieldError("--people", name, nearest(name, PEOPLE))
        listed = name in ("curators", "authors")
        if not (isinstance(value, list) and all(isinstance(v, str) for v in value) if listed else str(value)):
            raise FieldError(f"--people: {name}", value, f"must be {'a list of texts' if listed else 'a text'}")
    return {name: value if isinstance(value, list) else str(value) for name, value in values.items()}


def _compared(folder: Path) -> list[Run]:
    """The runs of a comparison under their settings' labels; its cells hold the rest."""
    cells = {}
    for path in sorted((folder / CELLS).glob("*/summary.json")):
        values = _json(path)
        cells[_same(values)] = path.parent
    found = []
    for values in _json(folder / COMPARED):
        cell = cells.get(_same(values))
        if cell is None:
            raise FieldError("RUN", str(folder), f"has no finished run of {values['setting']!r}: compare --resume")
        found.append(_run(cell, Summary(values, Summary.read(cell).rows)))
    return found


def _same(values: Mapping[str, Any]) -> tuple[str, int, str]:
    return str(values["name"]), int(values["seed"]), str(values["metrics"])


def _run(folder: Path, summary: Summary) -> Run:
    """A run with its ledgers, which have to give what its summary says."""
    values = summary.values
    found = read_books([folder / "ledger"]) if (folder / "ledger").is_dir() else FoundLedgers()
    run, books = next(iter(found.runs.items()), ("", {}))
    stated = {party: _plain(promise) for party, promise in values["guarantees"].items()}
    delta = next((g["delta"] for g in stated.values() if "delta" in g), None)
    held = {}
    if books and next(iter(stated)) in ("server", "worst client"):  # quotes of a deployed run lie in no ledger of its
        held = promises(values["trust"], books, delta or 1e-5)
        for party, promise in held.items():
            if not agree(promise, stated.get(party, {})):
                raise LedgerError(f"{folder}: the ledgers give {promise['text']}, summary.json {values['guarantee']}")
    files = {name: folder / name for name in (CONFIG, "metrics.jsonl", "summary.json")}
    digests = {name: hashlib.sha256(p.read_bytes()).hexdigest() for name, p in files.items() if p.is_file()}
    config = _toml(files[CONFIG]) if CONFIG in digests else {}
    kept = {party: promise for party, promise in stated.items() if party != "median client"}
    return Run(summary, held or kept, run, books, digests, config)


def _plain(promise: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in promise.items() if not k.startswith("events") and k not in OF_A_RUN}


OF_A_RUN = ("participations", "leakage", "curve", "over clients")  # figures of a summary that are no promise


def agree(first: Any, second: Any) -> bool:
    """Whether two plain values are the same, numbers to nine digits: other versions round otherwise."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(agree(first[k], second[k]) for k in first)
    if isinstance(first, float) and isinstance(second, int | float):
        return bool(first == second or abs(first - second) <= 1e-9 * max(abs(first), abs(second)))
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(agree, first, second))
    return bool(first == second)


def _json(path: Path) -> Any:
    try:
        return json_of(path.read_bytes())
    except (OSError, ValueError) as error:
        raise damaged("RUN", path, error, "finish it first, or restore the file") from error


def _toml(path: Path) -> dict[str, Any]:
    try:
        return toml_of(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise damaged("RUN", path, error, "restore the file") from error
