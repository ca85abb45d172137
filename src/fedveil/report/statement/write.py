"""A report made from folders, and its three files."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fedveil
from fedveil.errors import FieldError, require_choice
from fedveil.report.spent import texts_of
from fedveil.report.statement.document import Report
from fedveil.report.statement.figures import largest_epsilon
from fedveil.report.statement.gather import Gathered, Run
from fedveil.report.statement.page import card_of, form_of, page_of
from fedveil.report.statement.sections import by_setting, headline_of, sections_of
from fedveil.runs.disk import make_folder, write_atomic
from fedveil.runs.provenance import provenance

REPORT, PAGE, CARD = "report.json", "report.html", "card.yaml"


def report_of(found: Gathered) -> Report:
    """What folders show, put into the form of a report."""
    made = provenance("", [])
    promises = {label: largest_epsilon(own).promises for label, own in by_setting(found.runs).items()}
    shown = {name: made[name] for name in ("command", "commit", "date")}
    shown |= {"version": fedveil.__version__, "form": form_of()}
    sets = [{"ledger": one.values(), "spent": texts_of(one.ledger, found.rule)} for one in found.sets.values()]
    evidence = {"runs": [_run(run) for run in found.runs], "sets": sets, "policy": found.policy}
    return Report(found.name, shown, headline_of(promises), sections_of(found), evidence)


def write_report(found: Gathered, folder: Path, setting: str | None = None) -> list[Path]:
    """Write report.json, report.html and card.yaml; the paths.

    Parameters
    ----------
    found : Gathered
        What it is about.
    folder : Path
        Made if it is not there; files of an earlier report are replaced.
    setting : str, optional
        Whose release the card is about; default: the first with a proof, else the first. Without a run there is none.

    Raises
    ------
    FieldError
        If there is no such setting.
    """
    report, contents = report_of(found), dict[str, bytes]()
    contents[PAGE] = page_of(report, found.pictures).encode()
    if found.runs:
        contents[CARD] = card_of(found, _chosen(found, setting)).encode()
    elif setting is not None:
        raise FieldError("--setting", setting, "needs a run: an audit alone releases nothing")
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    contents[REPORT] = replace(report, files=digests).to_json()
    make_folder(folder)
    for name, content in contents.items():
        write_atomic(folder / name, content)
    return [folder / name for name in (REPORT, PAGE, CARD) if name in contents]


def _chosen(found: Gathered, setting: str | None) -> Run:
    runs = by_setting(found.runs)
    if setting is not None:
        require_choice("--setting", setting, runs)
        return runs[setting][0]
    return next((own[0] for own in runs.values() if "epsilon" in own[0].worst), found.runs[0])


def _run(run: Run) -> Mapping[str, Any]:
    values = run.summary.values
    return {
        "setting": values["setting"],
        "seed": values.get("seed"),
        "run": run.run,
        "trust": values["trust"],
        "delta": next((p["delta"] for p in run.promises.values() if "delta" in p), 1e-5),
        "promises": run.promises,
        "beside": list(run.beside),
        "ledgers": [book.values() for _, book in sorted(run.books.items())],
        "sites": {"run": values.get("run", ""), "names": sorted(run.sites), "clients": values["clients"]},
        "files": run.digests,
        "data": values.get("data", {}).get("digest"),
        "versions": values["versions"],
    }
