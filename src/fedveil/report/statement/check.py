"""A report recomputed from its own bytes and the ledgers, on any machine: what agrees, and what does not.

It tells edits of any one file. It does not stop a forger: charts are not compared, the parties of a run are bound in no
ledger, and whoever edits report and ledgers together leaves nothing to notice. The head of a ledger in a second place
(`fedveil ledger show --head`) and a signature on report.json are for that.
"""

import hashlib
import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Set
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.accounting import Policy
from fedveil.accounting.guarantee import DOUBTS
from fedveil.engines.party import SERVER
from fedveil.errors import FieldError, LedgerError, damaged
from fedveil.evidence import Books, promise_of_sites, promises, read_books, spent_of
from fedveil.reading import json_of
from fedveil.report.statement.document import FORMAT, encoded
from fedveil.report.statement.gather import agree, largest_epsilon
from fedveil.report.statement.page import form_of, page_of
from fedveil.report.statement.sections import headline_of, unit_of
from fedveil.tables import grouped_by


@dataclass(frozen=True)
class Checked:
    """One thing that was looked at; `holds` is None where there was nothing to look at.

    Attributes
    ----------
    what : str
        A file, or what a run says.
    holds : bool or None
        Whether it agrees.
    why : str
        Why not.
    promise : bool
        Whether it is a run's promise, composed anew.
    """

    what: str
    holds: bool | None
    why: str = ""
    promise: bool = False


def check(report: Path, ledgers: list[Path]) -> list[Checked]:
    """Recompute what a report says.

    Raises
    ------
    FieldError
        If the file is no report.
    """
    try:
        raw = report.read_bytes()
        values = json_of(raw)
        if values["format"] != FORMAT:
            raise ValueError(f"its format is {values['format']!r}, and this version reads {FORMAT!r}")
        checks = [Checked("report.json", raw == encoded(values), "its bytes are not those that were written")]
        checks += _beside(report.parent, values["files"])
        books = _known(read_books(ledgers), evidence := values["evidence"])
        for run in evidence["runs"]:
            checks += _run(run, books)
        checks += [*_sets(evidence, books), *_words(report.parent, values)]
    except LedgerError as error:
        checks.append(Checked("ledgers", False, str(error)))
    except FieldError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise damaged("REPORT", report, error, "restore the file") from error
    return [one if one.holds is not True else replace(one, why="") for one in checks]


def _known(books: Books, evidence: Mapping[str, Any]) -> Books:
    """Ledgers of data sets up to where the report knew them: they have grown since."""
    counts = {one["ledger"]["party"]: one["ledger"]["lines"] for one in evidence["sets"]}
    sets = {name: book.of("", counts[name]) for name, book in books.sets.items() if name in counts}
    return Books(books.runs, sets)


def _beside(folder: Path, files: Mapping[str, str]) -> Iterator[Checked]:
    for name, digest in files.items():
        if not (folder / name).is_file():
            yield Checked(name, None, "does not lie beside the report")
            continue
        own = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        yield Checked(name, own == digest, "is not the file that was written with the report")


def _run(run: Mapping[str, Any], books: Books) -> Iterator[Checked]:
    name = run["setting"] if run["seed"] is None else f"{run['setting']}, seed {run['seed']}"
    if not books.runs and not books.sets:
        yield Checked(f"{name}: promise", None, "there are no ledgers: give them by --ledgers", promise=True)
        return
    own, sites = books.runs.get(run["run"], {}), run["sites"]
    known = {book["party"]: book for book in run["ledgers"]}
    checks = {
        "not among --ledgers": [*(known.keys() - own.keys()), *(set(sites["names"]) - books.sets.keys())],
        "not the bytes that the report knew": [p for p in known.keys() & own.keys() if own[p].values() != known[p]],
        "not known to the report": own.keys() - known.keys(),
    }
    wrong = [f"{what}: {', '.join(sorted(parties)[:5])}" for what, parties in checks.items() if parties]
    if known or wrong:
        yield Checked(f"{name}: ledgers", not wrong, "; ".join(wrong))
    if checks["not among --ledgers"]:
        return
    given = promises(run["trust"], own, run["delta"], run.get("beside", ())) if known else {}
    held = {party: books.sets[party].of(sites["run"]) for party in sites["names"]}
    given |= promise_of_sites(run["trust"], held, sites["clients"], run["delta"])
    said = run["promises"].keys()
    yield from _parties(name, given.keys(), said) if given else ()
    if both := given.keys() & said:
        unsaid = [doubt for party in both for doubt in _without_doubts(given[party], run["promises"][party])]
        same = all(agree(given[party], run["promises"][party]) for party in both)
        yield Checked(f"{name}: promise", same, "the ledgers give another promise", promise=True)
        for doubt in dict.fromkeys(unsaid):
            yield Checked(f"{name}: lines of an earlier version", None, f"it holds if, too, {doubt}")
    else:
        yield Checked(f"{name}: promise", None, "no ledger that the report knows gives it", promise=True)


def _parties(name: str, given: Set[str], said: Set[str]) -> Iterator[Checked]:
    """Compare the parties whose promises a run's ledgers give with those that the report names.

    Where clients protect themselves in a deployment, the report has what the server was quoted, and their own ledgers:
    no ledger gives the first. A report that says so of any other run leaves its promise unchecked.
    """
    deployed = not said & {SERVER, "worst client"}
    left_out = () if deployed else given - said
    if left_out:
        yield Checked(f"{name}: parties", False, f"the report leaves out {', '.join(sorted(left_out))}")
    if unknown := said - given:
        holds = None if deployed else False
        yield Checked(f"{name}: parties", holds, f"no ledger gives the promise of {', '.join(sorted(unknown))}")


def _without_doubts(given: dict[str, Any], said: Mapping[str, Any]) -> list[str]:
    """Take out of a promise the conditions that were found after a report was written, and return them."""
    doubts = [one for one in given.get("conditions", []) if one in DOUBTS and one not in said.get("conditions", [])]
    if doubts:
        given["conditions"] = [one for one in given["conditions"] if one not in doubts]
    return doubts


def _sets(evidence: Mapping[str, Any], books: Books) -> Iterator[Checked]:
    policy = Policy.from_dict(evidence["policy"]) if evidence["policy"] else Policy(distance=1.0)
    for one in evidence["sets"]:
        name, book = one["ledger"]["party"], books.sets.get(one["ledger"]["party"])
        if book is None:
            yield Checked(f"data set {name}", False if books.runs or books.sets else None, "is not among --ledgers")
        elif book.values() != one["ledger"]:
            yield Checked(f"data set {name}", False, "its ledger is another, or was shortened")
        else:
            same = spent_of(book.ledger, policy).rows == one["spent"]
            yield Checked(f"data set {name}", same, "what was spent is not what the report says")


def _words(folder: Path, values: Mapping[str, Any]) -> Iterator[Checked]:
    """Sentences, the table of promises and the page follow from promises that were checked."""
    promises = grouped_by(values["evidence"]["runs"], lambda run: str(run["setting"]))
    owed = {label: largest_epsilon([run["promises"] for run in own]) for label, own in promises.items()}
    yield Checked("sentences", values["headline"] == headline_of(owed), "they do not follow from the promises")
    table = json_of(json.dumps(asdict(unit_of(owed))))
    yield Checked("table of promises", values["sections"][0] == table, "it does not follow from the promises")
    page = folder / "report.html"
    if not page.is_file() or values["made"]["form"] != form_of():
        yield Checked("words of the page", None, "it is not there, or of another form")
        return
    shown = re.sub(r"<svg.*?</svg>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    shown = re.sub(r"data:image/png;base64,([^\"]*)", lambda m: hashlib.sha256(b64decode(m[1])).hexdigest(), shown)
    same = shown == page_of(values, None, lambda chart: "")
    yield Checked("words of the page", same, "words or pictures are not those of report.json")
