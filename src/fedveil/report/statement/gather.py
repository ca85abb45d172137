"""What a report is about, read from folders: runs with their ledgers, and audits."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isclose
from pathlib import Path
from typing import Any

from fedveil.accounting import Policy
from fedveil.accounting.guarantee import read_off
from fedveil.engines.lifetime import read_policy
from fedveil.errors import FieldError, LedgerError, damaged, nearest
from fedveil.evidence import Book, Books, promise_of_sites, promises, read_books
from fedveil.files import AUDIT, CELLS, COMPARISON, CONFIG, kind_of
from fedveil.reading import json_of, toml_of
from fedveil.report.statement.document import WORDS
from fedveil.runs.summary import Summary
from fedveil.tables import grouped_by

COMPARED, AUDITED, CANARIES = "comparison.json", "audit.json", "canaries.json"
Promises = Mapping[str, Mapping[str, Any]]  # by party
OF_A_RUN = ("participations", "leakage", "curve", "over clients")  # figures of a summary that are no promise


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
    sites : dict of str to Book
        Of a deployed run, the ledgers of clients' own data sets that know it, by data set.
    digests : dict of str to str
        SHA-256 of its configuration and figures, by file.
    config : dict
        The configuration; empty for a deployed run, whose server knows none.
    beside : sequence of str
        Conditions that follow from it alone.
    """

    summary: Summary
    promises: Promises
    run: str
    books: Mapping[str, Book]
    sites: Mapping[str, Book]
    digests: Mapping[str, str]
    config: Mapping[str, Any]
    beside: Sequence[str] = ()

    @property
    def worst(self) -> Mapping[str, Any]:
        """The promise that counts."""
        return next(iter(self.promises.values()))


@dataclass(frozen=True, eq=False)
class Gathered:
    """Everything that a report is made from; `pictures` are PNGs, by their SHA-256."""

    name: str
    runs: Sequence[Run]
    audits: Sequence[Mapping[str, Any]]
    pictures: Mapping[str, bytes]
    sets: Mapping[str, Book]
    policy: Mapping[str, Any]
    people: Mapping[str, Any]

    @property
    def by_setting(self) -> dict[str, list[Run]]:
        """Runs by their setting's label; several are repetitions under other seeds."""
        return grouped_by(self.runs, lambda run: run.summary.setting)

    @property
    def promises(self) -> dict[str, Promises]:
        """The weakest promise of each setting."""
        return {label: largest_epsilon([run.promises for run in own]) for label, own in self.by_setting.items()}

    @property
    def rule(self) -> Policy:
        """The policy in force; without one, one that counts what is spent."""
        return Policy.from_dict(self.policy) if self.policy else Policy(distance=1.0)


def largest_epsilon(promises: Sequence[Promises]) -> Promises:
    """Of the repetitions of a setting, the weakest promise."""
    return max(promises, key=lambda own: next(iter(own.values())).get("epsilon", inf))


def gather(
    folders: Sequence[Path],
    ledgers: Sequence[Path],
    policy: Path | None,
    people: Path | None,
    *,
    pictures: bool = False,
) -> Gathered:
    """Read folders of runs, comparisons and audits, and what stands beside them.

    Parameters
    ----------
    folders : sequence of Path
        Of runs, comparisons, audits, canaries.
    ledgers : sequence of Path
        Of data sets.
    policy, people : Path, optional
        TOML files: the policy in force, and what only people know.
    pictures : bool
        Whether pictures of reconstructions, which show clients' examples, are put into the report.

    Raises
    ------
    FieldError
        If a folder holds nothing finished, or a file cannot be read.
    LedgerError
        If a ledger was edited, or does not give what a summary says.
    """
    runs, audits, names, drawn = list[Run](), list[Mapping[str, Any]](), list[str](), dict[str, bytes]()
    sets = read_books(ledgers).sets
    for folder in folders:
        if (folder / CONFIG).is_file():
            names.append(str(_read(folder / CONFIG).get("name", folder.resolve().name)))  # of any version
        kind = kind_of(folder)
        inner = folder / "audit" if kind == COMPARISON else folder
        if (inner / AUDITED).is_file() or kind == AUDIT:
            audits.append(_audit(inner, drawn if pictures else None))
        if (folder / CANARIES).is_file():
            audits.append(_canaries(folder / CANARIES))
        if kind == COMPARISON:
            runs += _compared(folder, sets)
        elif (folder / "summary.json").is_file():
            runs.append(_run(folder, Summary.read(folder), sets))
        elif not any((inner / name).is_file() for name in (AUDITED, CANARIES)):
            raise FieldError("RUN", str(folder), "holds no finished run, comparison or audit")
    known = read_people(people)
    name = (
        known.get("name") or ", ".join(dict.fromkeys(names)) or ", ".join(folder.resolve().name for folder in folders)
    )
    read_policy(policy)  # refuses what no policy can say
    rule = {} if policy is None else toml_of(policy.read_text(encoding="utf-8"))
    for path in ("ledger", "head"):
        rule.get("node", {}).pop(path, None)  # folders of a site are nobody else's business
    return Gathered(name, runs, audits, drawn, sets, rule, known)


def _audit(folder: Path, drawn: dict[str, bytes] | None) -> dict[str, Any]:
    """A finished audit; its pictures of reconstructions are added to `drawn`, by digest."""
    values, pictures = _read(folder / AUDITED), {}
    for file in sorted(folder.glob("inversion-*.png")):
        content = file.read_bytes()
        pictures[file.stem.removeprefix("inversion-")] = digest = hashlib.sha256(content).hexdigest()
        if drawn is not None:
            drawn[digest] = content
    return {**values, "pictures": pictures}


def _canaries(file: Path) -> dict[str, Any]:
    """What `fedveil verify --canaries` measured of methods as they are; settings with a planted bug name it."""
    values = _read(file)
    honest = [one for one in values["verdicts"] if ": " not in one["setting"]]
    for one in honest:
        one["details"] = {k: v for k, v in one["details"].items() if k in ("declared", "ceiling")}
    return {"game": "canaries", "canaries": values["canaries"], "results": honest}


def read_people(file: Path | None) -> dict[str, Any]:
    """What only people know, from a TOML file with the keys of words.toml.

    Raises
    ------
    FieldError
        For a file that cannot be read, or a key that is not there.
    """
    values = {} if file is None else _read(file, "--people", "write it as TOML")
    for name, value in values.items():
        if name not in WORDS["people"]:
            raise FieldError("--people", name, nearest(name, WORDS["people"]))
        if name not in ("curators", "authors"):
            values[name] = str(value)
        elif not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise FieldError(f"--people: {name}", value, "must be a list of texts")
    return values


def _compared(folder: Path, sets: Mapping[str, Book]) -> list[Run]:
    """The runs of a comparison under their settings' labels; its cells hold the rest."""
    cells = {_same(_read(path)): path.parent for path in sorted((folder / CELLS).glob("*/summary.json"))}
    runs = []
    for values in _read(folder / COMPARED):
        cell = cells.get(_same(values))
        if cell is None:
            raise FieldError("RUN", str(folder), f"has no finished run of {values['setting']!r}: compare --resume")
        runs.append(_run(cell, Summary(values, Summary.read(cell).rows), sets))
    return runs


def _same(values: Mapping[str, Any]) -> tuple[str, int, str]:
    return str(values["name"]), int(values["seed"]), str(values["metrics"])


def _run(folder: Path, summary: Summary, sets: Mapping[str, Book]) -> Run:
    """A run with its ledgers, which have to give what its summary says."""
    values = summary.values
    ledgers = read_books([folder / "ledger"]) if (folder / "ledger").is_dir() else Books()
    run, books = next(iter(ledgers.runs.items()), ("", {}))
    files = {name: folder / name for name in (CONFIG, "metrics.jsonl", "summary.json")}
    digests = {name: hashlib.sha256(p.read_bytes()).hexdigest() for name, p in files.items() if p.is_file()}
    config = _read(files[CONFIG]) if CONFIG in digests else {}
    beside = read_off(config.get("read_off", ()))
    stated = {party: _promised(promise) for party, promise in values["guarantees"].items()}
    delta = next((g["delta"] for g in stated.values() if "delta" in g), 1e-5)
    sites = {name: own for name, book in sets.items() if (own := book.of(values.get("run", ""))).ledger.entries}
    counted = promise_of_sites(values["trust"], sites, values["clients"], delta)
    if books and next(iter(stated)) in ("server", "worst client"):  # quotes of a deployed run lie in no ledger of its
        held = promises(values["trust"], books, delta, beside)
        for party, promise in held.items():
            if not agree(promise, stated.get(party, {})):
                raise LedgerError(f"{folder}: the ledgers give {promise['text']}, summary.json {values['guarantee']}")
    else:
        kept = {party: promise for party, promise in stated.items() if party != "median client"} | counted
        held = dict(sorted(kept.items(), key=lambda item: -item[1].get("epsilon", inf)))
    return Run(summary, held, run, books, sites if counted else {}, digests, config, beside)


def _promised(promise: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in promise.items() if not k.startswith("events") and k not in OF_A_RUN}


def agree(first: Any, second: Any) -> bool:
    """Whether two plain values are the same, numbers to nine digits: other versions round otherwise."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(agree(first[k], second[k]) for k in first)
    if isinstance(first, float) and isinstance(second, int | float):
        return isclose(first, second)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(agree, first, second))
    return bool(first == second)


def _read(path: Path, field: str = "RUN", fix: str = "finish it first, or restore the file") -> Any:
    """What a file of JSON or TOML holds."""
    try:
        return (json_of if path.suffix == ".json" else toml_of)(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(field, path, error, fix) from error
