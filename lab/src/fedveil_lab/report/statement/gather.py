"""Read the subject of a report from folders: runs with their ledgers, audits, the policy, and what people say.

A summary that contradicts its ledgers is refused here, before a page is written.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedveil
from fedveil.accounting import RUN_OF_SITES, read_off
from fedveil.engines import SERVER, read_policy
from fedveil.errors import FedVeilError, FieldError, LedgerError, damaged, nearest, require_choice
from fedveil.evidence import (
    CLIENT,
    Book,
    Books,
    read_books,
    require_carried,
    set_values,
    summary_so_far,
)
from fedveil.evidence.carried import carried
from fedveil.files import AUDIT, CELLS, COMPARISON, CONFIG, kind_of
from fedveil.reading import json_of, toml_of
from fedveil_lab.report.statement.attacked import attacked
from fedveil_lab.report.statement.document import WORDS
from fedveil_lab.report.statement.figures import accuracy_of
from fedveil_lab.report.statement.measured import with_measures
from fedveil_lab.report.statement.subject import CHOSEN, Run, Subject
from fedveil_lab.runs.provenance import provenance
from fedveil_lab.runs.summary import Summary

COMPARED, AUDITED, CANARIES = "comparison.json", "audit.json", "canaries.json"
OF_A_RUN = (
    "participations",
    "leakage",
    "curve",
    "over clients",
)  # figures of a summary that are no promise
BOUND = (
    "setting",
    "method",
    "trust",
    "engine",
    "delta",
    "conditions",
    RUN_OF_SITES,
)  # the author says, or ledgers do


def gather(
    folders: Sequence[Path],
    ledgers: Sequence[Path],
    policy: Path | None,
    people: Path | None,
    *,
    setting: str | None = None,
    pictures: bool = False,
) -> Subject:
    """Read folders of runs, comparisons and audits, with the ledgers, the policy and people's words.

    Parameters
    ----------
    folders : sequence of Path
        Folders of runs, comparisons, audits and canaries.
    ledgers : sequence of Path
        Ledgers of data sets.
    policy, people : Path, optional
        TOML files: the policy in force, and what only people know.
    setting : str, optional
        Setting whose release the card describes; default: the first with a proof, else the first.
    pictures : bool
        Whether pictures of reconstructions, which show clients' examples, are put into the report.

    Raises
    ------
    FieldError
        If a folder holds nothing finished, a file cannot be read, or there is no such setting.
    LedgerError
        If a ledger was edited, or does not give what a summary says.
    """
    try:
        return _gathered(folders, ledgers, policy, people, setting, pictures)
    except FedVeilError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        where = ", ".join(map(str, folders))
        accepted = (
            f"a file there is damaged ({type(error).__name__}: {error}): restore it, or run again"
        )
        raise FieldError("RUN", where, accepted) from error


def _gathered(
    folders: Sequence[Path],
    ledgers: Sequence[Path],
    policy: Path | None,
    people: Path | None,
    setting: str | None,
    pictures: bool,
) -> Subject:
    runs, audits, names, drawn = (
        list[tuple[Run, Summary]](),
        list[Mapping[str, Any]](),
        list[str](),
        dict[str, bytes](),
    )
    sets = read_books(ledgers).sets
    for folder in folders:
        if (folder / CONFIG).is_file():
            names.append(
                str(_read(folder / CONFIG).get("name", folder.resolve().name))
            )  # of any version
        kind = kind_of(folder)
        inner = folder
        if kind == COMPARISON:
            inner = folder / "audit"
        if (inner / AUDITED).is_file() or kind == AUDIT:
            values, drawings = _audit(inner)
            audits.append(values)
            if pictures:
                drawn |= drawings
        if (folder / CANARIES).is_file():
            audits.append(_canaries(folder / CANARIES))
        read = _runs(folder, sets)
        audited = (inner / AUDITED).is_file() or (inner / CANARIES).is_file()
        if not read and not audited and kind != COMPARISON:
            raise FieldError("RUN", str(folder), "holds no finished run, comparison or audit")
        runs += read
    known = read_people(people)
    name = known.get("name") or ", ".join(dict.fromkeys(names))
    if not name:
        name = ", ".join([folder.resolve().name for folder in folders])
    runs.sort(key=_protects_nobody)  # what protects somebody comes first
    summaries: dict[str, list[Summary]] = {}
    statuses: dict[str, str] = {}
    for run, summary in runs:
        summaries.setdefault(run.setting, []).append(summary)
        statuses.setdefault(run.setting, run.worst["status"])
    if setting is not None and not runs:
        raise FieldError("--setting", setting, "needs a run: an audit alone releases nothing")
    if setting is not None:
        require_choice("--setting", setting, summaries)
    rule = _rule(policy)
    found = Subject(
        name=name,
        runs=[run for run, _ in runs],
        sets=[set_values(book, rule) for _, book in sorted(sets.items())],
        accuracy=with_measures(accuracy_of(summaries, statuses), summaries, folders),
        attacked=attacked(audits, drawn, list(summaries)),
        policy=rule,
        people=known,
        setting=setting,
        made=_made(),
        pictures=drawn,
    )
    return found.read_back()


def _runs(folder: Path, sets: Mapping[str, Book]) -> list[tuple[Run, Summary]]:
    """Read the runs of a folder: those of a comparison, a finished one, or one that goes on; none of an audit."""
    if kind_of(folder) == COMPARISON:
        return _compared(folder, sets)
    if (folder / "summary.json").is_file():
        return [_run(folder, Summary.read(folder), sets)]
    so_far = summary_so_far(folder)
    if so_far is None:
        return []
    return [_run(folder, Summary(*so_far), sets)]


def _protects_nobody(pair: tuple[Run, Summary]) -> bool:
    run, _ = pair
    return bool(run.worst["status"] == "none")


def _made() -> dict[str, Any]:
    known = provenance("", [])
    return {
        "command": known["command"],
        "commit": known["commit"],
        "date": known["date"],
        "version": fedveil.__version__,
    }


def _rule(policy: Path | None) -> dict[str, Any]:
    read_policy(policy)  # refuses what no policy can say
    rule: dict[str, Any] = {}
    if policy is not None:
        rule = toml_of(policy.read_text(encoding="utf-8"))
    for path in ("ledger", "head"):
        rule.get("node", {}).pop(path, None)  # folders of a site are nobody else's business
    return rule


def _audit(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read a finished audit, and its pictures of reconstructions by digest."""
    values, pictures, drawn = _read(folder / AUDITED), {}, {}
    for file in sorted(folder.glob("inversion-*.png")):
        content = file.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        pictures[file.stem.removeprefix("inversion-")] = digest
        drawn[digest] = content
    return {**values, "pictures": pictures}, drawn


def _canaries(file: Path) -> dict[str, Any]:
    """Read the results of `fedveil verify --canaries`; a setting with a planted bug names it."""
    values = _read(file)
    honest = []
    for one in values["verdicts"]:
        if ": " in one["setting"]:  # a setting with a planted bug
            continue
        details = {}
        for name, value in one["details"].items():
            if name in ("declared", "ceiling"):
                details[name] = value
        honest.append({**one, "details": details})
    return {"game": "canaries", "canaries": values["canaries"], "results": honest}


def read_people(file: Path | None) -> dict[str, Any]:
    """Read what only people know from a TOML file with the keys of words.toml.

    Raises
    ------
    FieldError
        For a file that cannot be read, or a key that is not there.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values = _read(file, "--people", "write it as TOML")
    for name, value in values.items():
        if name not in WORDS["people"]:
            raise FieldError("--people", name, nearest(name, WORDS["people"]))
        if name not in ("curators", "authors"):
            values[name] = str(value)
        elif not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise FieldError(f"--people: {name}", value, "must be a list of texts")
    return values


def _compared(folder: Path, sets: Mapping[str, Book]) -> list[tuple[Run, Summary]]:
    """Read the runs of a comparison, by the labels of their settings."""
    cells = {}
    for path in sorted((folder / CELLS).glob("*/summary.json")):
        cells[_same(_read(path))] = path.parent
    runs = []
    for values in _read(folder / COMPARED):
        cell = cells.get(_same(values))
        if cell is None:
            raise FieldError(
                "RUN",
                str(folder),
                f"has no finished run of {values['setting']!r}: compare --resume",
            )
        runs.append(_run(cell, Summary(values, Summary.read(cell).rows), sets))
    return runs


def _same(values: Mapping[str, Any]) -> tuple[str, int, str]:
    return str(values["name"]), int(values["seed"]), str(values["metrics"])


def _run(folder: Path, summary: Summary, sets: Mapping[str, Book]) -> tuple[Run, Summary]:
    """Read a run and its ledgers; they have to agree with its summary."""
    values = summary.values
    run, books = _own_ledgers(folder)
    digests = {}
    for name in (CONFIG, "metrics.jsonl", "summary.json"):
        if (folder / name).is_file():
            digests[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    config, chosen = {}, {}
    if CONFIG in digests:
        config = _read(folder / CONFIG)
        for name in CHOSEN:
            chosen[name] = _chosen(config, name)
    stated, deltas = {}, []
    for party, promise in values["guarantees"].items():
        if party != "median client":
            stated[party] = _promised(promise)
            if "delta" in promise:
                deltas.append(promise["delta"])
    unfinished = ""
    if not values.get("finished", True):
        unfinished = values["stopped"]
    data, replies = values.get("data", {}), values["replies"]
    said = {
        RUN_OF_SITES: values.get("run", ""),
        "clients": values["clients"],
        "setting": values["setting"],
        "method": values["method"],
        "trust": values["trust"],
        "engine": values["engine"],
        "delta": next(iter(deltas), 1e-5),
        "conditions": list(read_off(config.get("read_off", ()))),
        "seed": values.get("seed"),
        "rounds_planned": values["rounds_planned"],
        "unfinished": unfinished,
        "published": values.get("published_metrics", {}).get("text"),
        "failed": replies["failed"] + replies["invalid"] + replies["refused"],
        "malicious": values.get("malicious") or {},
        "derived_from": values.get("derived_from") or "",
        "data": {"name": data.get("name"), "digest": data.get("digest")},
        "versions": values["versions"],
        "numerics": values["numerics"],
        "files": digests,
        "chosen": chosen,
        "promises": {},
    }
    found = carried(run, books, said, sets)
    if not {SERVER, CLIENT} & found.promises.keys():
        # of a deployed run, whose clients' quotes lie in no ledger of it
        said["promises"] = stated
    require_carried(folder, found, values, stated)
    if found.bound:  # what the ledgers bind is not the author's to say
        said = {name: value for name, value in said.items() if name not in BOUND}
    return Run(found, said), summary


def _own_ledgers(folder: Path) -> tuple[str, Mapping[str, Book]]:
    """Find the run whose ledgers a folder has, and the ledgers by party.

    Raises
    ------
    LedgerError
        If there is none, or those of several runs.
    """
    ledgers = Books()
    if (folder / "ledger").is_dir():
        ledgers = read_books([folder / "ledger"])
    if len(ledgers.runs) != 1:
        held = "it has no ledger"
        if ledgers.runs:
            held = f"its ledgers are of {len(ledgers.runs)} runs"
        raise LedgerError(
            f"{folder}: {held}, and what a run promises is added up from its own; restore the folder"
        )
    [(run, books)] = ledgers.runs.items()
    return run, books


def _chosen(config: Mapping[str, Any], name: str) -> Any:
    """Return the value of a key of a configuration; empty if it is absent."""
    table, key = name.split(".")
    return config.get(table, {}).get(key, "")


def _promised(promise: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary's promises, without its figures that promise nothing."""
    kept = {}
    for name, value in promise.items():
        if not name.startswith("events") and name not in OF_A_RUN:
            kept[name] = value
    return kept


def _read(path: Path, name: str = "RUN", fix: str = "finish it first, or restore the file") -> Any:
    """Return the contents of a JSON or TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return json_of(text)
        return toml_of(text)
    except (OSError, ValueError) as error:
        raise damaged(name, path, error, fix) from error
