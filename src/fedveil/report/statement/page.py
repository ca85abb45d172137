"""A report made from folders, and its three files: report.json, and from their templates report.html and card.yaml.

The page is one file without a network, for screens, paper and screen readers. The card is one release as a record of a
registry of deployments: fields and accepted values are those of opendp/deployments-registry-data at commit 3e9c812,
third tier, in the order in which NIST SP 800-226 asks (promise and unit, algorithms, trust, the rest). What only people
know is "not covered" until they say it; a release without a proof has no parameters, and the sentence why.
"""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import fedveil
from fedveil.errors import FieldError, damaged, require_choice
from fedveil.evidence import spent_of
from fedveil.files import make_folder, refuse_strangers, write_atomic
from fedveil.gdp import rounded_up
from fedveil.reading import json_of
from fedveil.report.canvas import COLOURS
from fedveil.report.statement.document import ABSENT, WORDS, Chart, Report, beside, protected, source
from fedveil.report.statement.figures import svg_of
from fedveil.report.statement.gather import Gathered, Run
from fedveil.report.statement.sections import headline_of, sections_of, unprotected_quantities
from fedveil.runs.provenance import provenance

PAGE_TEMPLATE, CARD_TEMPLATE = "report.html.j2", "card.yaml.j2"
DARK = ("#f2f2f2", "#6ab7ff", "#ff9a5c", "#3fd6a3", "#ee9cc8", "#ffc233", "#8fd3ff", "#d1b24a")  # `COLOURS` on black


def page_of(
    report: Report | Mapping[str, Any],
    pictures: Mapping[str, bytes] | None,
    drawn: Callable[[Chart], str] = svg_of,
) -> str:
    """The whole page, of a report or of the values of a report.json; without pictures their digests stand there."""

    def shown(digest: str) -> str:
        return digest if pictures is None else f"data:image/png;base64,{b64encode(pictures[digest]).decode()}"

    titles = WORDS["titles"]
    return _rendered(PAGE_TEMPLATE, report=report, light=COLOURS, dark=DARK, titles=titles, svg=drawn, shown=shown)


def form_of() -> str:
    """Digest of the page's template and words: pages of another one look otherwise."""
    return hashlib.sha256((source(PAGE_TEMPLATE) + source("words.toml")).encode()).hexdigest()[:16]


def card_of(gathered: Gathered, run: Run) -> str:
    """The record of one run's release, in YAML."""
    promise, values = run.worst, run.summary.values
    books = [*run.books.values(), *run.sites.values()]
    drawn = {e.spend.mechanism for book in books for e in book.ledger.entries if e.source != "none"}
    return _rendered(
        CARD_TEMPLATE,
        people=gathered.people,
        name=gathered.name,
        slug=re.sub(r"[^a-z0-9]+", "-", gathered.name.lower()).strip("-"),
        promise=promise,
        epsilon=float(rounded_up(promise["epsilon"])) if "epsilon" in promise else None,
        sentence=" ".join([protected(promise), *(f"{text}." for text in beside(promise))]),
        words=WORDS,
        unprotected=unprotected_quantities([run]),
        values=values,
        mechanisms=sorted(drawn),
        settings=len({other.summary.setting for other in gathered.runs}),
    )


def _rendered(template: str, **values: Any) -> str:
    import jinja2

    how: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    environment = jinja2.Environment(autoescape=template == PAGE_TEMPLATE, **how)
    environment.filters["tojson"] = _json
    try:
        return environment.from_string(source(template)).render(absent=ABSENT, **values)
    except jinja2.UndefinedError as error:
        raise ValueError(str(error)) from error


def _json(value: object) -> str:
    """A value as JSON writes it, which YAML reads: of version 1.1, too, for which 1e-05 is a text."""
    text = json.dumps(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text


REPORT, PAGE, CARD = "report.json", "report.html", "card.yaml"


def report_of(gathered: Gathered) -> Report:
    """What folders show, put into the form of a report."""
    made = provenance("", [])
    shown = {name: made[name] for name in ("command", "commit", "date")}
    shown |= {"version": fedveil.__version__, "form": form_of()}
    sets = [
        {"ledger": one.values(), "spent": spent_of(one.ledger, gathered.rule).rows} for one in gathered.sets.values()
    ]
    evidence = {"runs": [_run(run) for run in gathered.runs], "sets": sets, "policy": gathered.policy}
    return Report(gathered.name, shown, headline_of(gathered.promises), sections_of(gathered), evidence)


def refuse_another(folder: Path, gathered: Gathered) -> None:
    """Refuse a folder that holds something else than a report of the same runs.

    Raises
    ------
    FieldError
        Naming what it holds.
    """
    refuse_strangers(folder, (REPORT, PAGE, CARD))
    file = folder / REPORT
    if not file.is_file():
        return
    try:
        stored = {run["run"] for run in json_of(file.read_bytes())["evidence"]["runs"]}
    except (ValueError, KeyError, TypeError) as error:
        raise damaged("--out", file, error, "give another --out") from error
    if stored != {run.run for run in gathered.runs}:
        raise FieldError("--out", str(folder), "holds a report of other runs; give another --out")


def write_report(gathered: Gathered, folder: Path, setting: str | None = None) -> list[Path]:
    """Write report.json, report.html and card.yaml; the paths.

    Parameters
    ----------
    gathered : Gathered
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
    report, contents = report_of(gathered), dict[str, bytes]()
    contents[PAGE] = page_of(report, gathered.pictures).encode()
    if gathered.runs:
        contents[CARD] = card_of(gathered, _chosen(gathered, setting)).encode()
    elif setting is not None:
        raise FieldError("--setting", setting, "needs a run: an audit alone releases nothing")
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    contents[REPORT] = replace(report, files=digests).to_json()
    make_folder(folder)
    for name, content in contents.items():
        write_atomic(folder / name, content)
    return [folder / name for name in (REPORT, PAGE, CARD) if name in contents]


def _chosen(gathered: Gathered, setting: str | None) -> Run:
    runs = gathered.by_setting
    if setting is not None:
        return runs[require_choice("--setting", setting, runs)][0]
    return next((own[0] for own in runs.values() if "epsilon" in own[0].worst), gathered.runs[0])


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
