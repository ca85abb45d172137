"""report.html and card.yaml from their templates.

The page is one file without a network, for screens, paper and screen readers. The card is one release as a record of a
registry of deployments: fields and accepted values are those of opendp/deployments-registry-data at commit 3e9c812,
third tier, in the order in which NIST SP 800-226 asks (promise and unit, algorithms, trust, the rest). What only people
know is "not covered" until they say it; a release without a proof has no parameters, and the sentence why.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from fedveil.report.canvas import COLOURS
from fedveil.report.statement.charts import lines_of, svg_of, table_of
from fedveil.report.statement.document import ABSENT, Chart, Report
from fedveil.report.statement.gather import Gathered, Run
from fedveil.report.statement.sections import unprotected_quantities
from fedveil.report.statement.words import NEIGHBOURS, SEES, UNITS, beside, protected

DARK = ("#f2f2f2", "#6ab7ff", "#ff9a5c", "#3fd6a3", "#ee9cc8", "#ffc233", "#8fd3ff", "#d1b24a")  # `COLOURS` on black


def page_of(report: Report | Mapping[str, Any], drawn: Callable[[Chart], str] = svg_of) -> str:
    """The whole page, of a report or of the values of a report.json."""
    beside = {"svg": drawn, "lines": lines_of, "numbers": table_of}
    return _rendered("report.html.j2", report=report, light=COLOURS, dark=DARK, **beside)


def form_of() -> str:
    """Digest of the page's template: pages of another one look otherwise."""
    return hashlib.sha256(_source("report.html.j2").encode()).hexdigest()[:16]


def card_of(found: Gathered, run: Run) -> str:
    """The record of one run's release, in YAML."""
    promise, values = run.worst, run.summary.values
    drawn = {e.spend.mechanism for book in run.books.values() for e in book.ledger.all_entries if e.source != "none"}
    noised = promise["status"] != "none"
    return _rendered(
        "card.yaml.j2",
        people=found.people,
        said=lambda key: _json(found.people.get(key, ABSENT)),
        name=found.name,
        slug=re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-"),
        promise=promise,
        sentence=" ".join([protected(promise), *(f"{text}." for text in beside(promise))]),
        units=UNITS,
        neighbours=NEIGHBOURS,
        unprotected=unprotected_quantities([run]),
        values=values,
        mechanisms=", ".join(sorted(drawn)) or ("see the report" if noised else "none"),
        versions=", ".join(f"{library} {version}" for library, version in values["versions"].items()),
        sees=SEES[values["trust"] if noised else "central"],
        settings=len({other.summary.setting for other in found.runs}),
    )


def _rendered(template: str, **values: Any) -> str:
    import jinja2

    how: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    environment = jinja2.Environment(autoescape=template.endswith(".html.j2"), **how)
    environment.filters["tojson"] = _json
    return environment.from_string(_source(template)).render(absent=ABSENT, **values)


def _source(template: str) -> str:
    return files("fedveil.report.statement").joinpath(template).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """A value as JSON writes it, which YAML reads: of version 1.1, too, for which 1e-05 is a text."""
    text = json.dumps(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text
