"""Make a report's three files from its subject alone: report.json, and by templates report.html and card.yaml.

The page is one file without a network or a script, for screens, paper and screen readers. The card is one release as a
record of a registry of deployments: fields and accepted values are those of opendp/deployments-registry-data at commit
3e9c812, third tier, in the order in which NIST SP 800-226 asks (promise and unit, algorithms, trust, the rest). What
only people know is "not covered" until they say it; a release without a proof has no parameters, and the sentence why.
"""

import hashlib
import json
import re
from base64 import b64encode
from dataclasses import replace
from functools import cache
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any

from fedveil.errors import FieldError, damaged
from fedveil.files import make_folder, refuse_strangers, write_atomic
from fedveil.gdp import rounded_up
from fedveil.reading import json_of
from fedveil_lab.report.canvas import COLOURS
from fedveil_lab.report.statement.document import ABSENT, WORDS, Report, beside, source
from fedveil_lab.report.statement.pen import svg_of
from fedveil_lab.report.statement.sections import (
    headline_of,
    sections_of,
    sentence_of,
    unprotected_quantities,
)
from fedveil_lab.report.statement.subject import Subject

REPORT, PAGE, CARD = "report.json", "report.html", "card.yaml"
TEMPLATES = {PAGE: "report.html.j2", CARD: "card.yaml.j2"}
STYLE = "style.css.j2"
DARK = (
    "#f2f2f2",
    "#6ab7ff",
    "#ff9a5c",
    "#3fd6a3",
    "#ee9cc8",
    "#ffc233",
    "#8fd3ff",
    "#d1b24a",
)  # `COLOURS` on black
STROKES = ("", "", "", "7 3", "7 3 2 3", "2 3", "7 3", "7 3 2 3")  # dashes of each colour


def report_of(subject: Subject) -> Report:
    """Make the report of a subject, without digests of its files."""
    headline, sections = headline_of(subject), sections_of(subject)
    return Report(subject.name, form_of(), headline, sections, subject.evidence, subject.said)


def files_of(subject: Subject) -> dict[str, bytes]:
    """Return the bytes of each file by its name; they are the same on every machine."""
    report, contents = report_of(subject), dict[str, bytes]()
    contents[PAGE] = _page(report, subject).encode()
    if subject.runs:
        contents[CARD] = _card(subject).encode()
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return {REPORT: replace(report, files=digests).to_json(), **contents}


@cache
def form_of() -> str:
    """Return the digest of this package's code, templates and words, which make the pages."""
    digest = hashlib.sha256()
    for part in sorted(files(__package__).iterdir(), key=attrgetter("name")):
        if part.is_file():
            digest.update(f"{part.name}\x1f".encode() + part.read_bytes())
    return digest.hexdigest()[:16]


def _page(report: Report, subject: Subject) -> str:
    """Write the whole page. It names the digest of its style sheet, so a browser applies no other one."""
    most = 0  # lines of a chart
    for section in report.sections:
        for chart in section.charts:
            most = max(most, len(chart.series))
    style = _rendered(STYLE, light=COLOURS, dark=DARK, strokes=STROKES, lines=range(most)).strip()
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()

    def shown(picture: str) -> str:
        return f"data:image/png;base64,{b64encode(subject.pictures[picture]).decode()}"

    how = {"style": style, "digest": digest, "svg": svg_of, "shown": shown, "colours": len(COLOURS)}
    return _rendered(
        TEMPLATES[PAGE], report=report, made=report.said["made"], titles=WORDS["titles"], **how
    )


def _card(subject: Subject) -> str:
    """Write the record of one run's release, in YAML."""
    run = subject.on_card
    promise, epsilon = run.worst, None
    if "epsilon" in promise:
        epsilon = float(rounded_up(promise["epsilon"]))
    sentences = [sentence_of([run], run.counts, promise)]
    for text in beside(promise):
        sentences.append(f"{text}.")
    return _rendered(
        TEMPLATES[CARD],
        people=subject.people,
        name=subject.name,
        slug=re.sub(r"[^a-z0-9]+", "-", subject.name.lower()).strip("-"),
        promise=promise,
        epsilon=epsilon,
        sentence=" ".join(sentences),
        words=WORDS,
        unprotected=unprotected_quantities([run]),
        run=run.carried,
        said=run.said,
        settings=len(subject.by_setting),
    )


def _rendered(template: str, **values: Any) -> str:
    import jinja2

    how: dict[str, Any] = {
        "trim_blocks": True,
        "lstrip_blocks": True,
        "undefined": jinja2.StrictUndefined,
    }
    environment = jinja2.Environment(autoescape=template == TEMPLATES[PAGE], **how)
    environment.filters["tojson"] = _json
    try:
        return environment.from_string(source(template)).render(absent=ABSENT, **values)
    except jinja2.UndefinedError as error:
        raise ValueError(str(error)) from error


def _json(value: object) -> str:
    """Write a value as JSON that YAML reads, also version 1.1 (where 1e-05 would be a text)."""
    text = json.dumps(value)
    if isinstance(value, float) and "e" in text and "." not in text:
        return text.replace("e", ".0e")
    return text


def refuse_another(folder: Path, subject: Subject) -> None:
    """Refuse a folder with other contents than a report of the same runs.

    Raises
    ------
    FieldError
        If the folder has other contents; the text names them.
    """
    refuse_strangers(folder, (REPORT, PAGE, CARD))
    file = folder / REPORT
    if not file.is_file():
        return
    try:
        stored = {run["run"] for run in json_of(file.read_bytes())["evidence"]["runs"]}
    except (ValueError, KeyError, TypeError) as error:
        raise damaged("--out", file, error, "give another --out") from error
    if stored != {run.carried.run for run in subject.runs}:
        raise FieldError("--out", str(folder), "holds a report of other runs; give another --out")


def write_report(subject: Subject, folder: Path) -> list[Path]:
    """Write report.json, report.html and, if there are runs, card.yaml; return their paths.

    Parameters
    ----------
    subject : Subject
        Subject of the report.
    folder : Path
        Folder to write, made if absent; files of an earlier report are replaced.
    """
    contents = files_of(subject)
    make_folder(folder)
    for name, content in contents.items():
        write_atomic(folder / name, content)
    return [folder / name for name in (REPORT, PAGE, CARD) if name in contents]
