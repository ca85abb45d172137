"""report.html and card.yaml from their templates.

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
from typing import Any

from fedveil.gdp import rounded_up
from fedveil.report.canvas import COLOURS
from fedveil.report.statement.charts import svg_of
from fedveil.report.statement.document import ABSENT, WORDS, Chart, Report, source
from fedveil.report.statement.gather import Gathered, Run
from fedveil.report.statement.sections import unprotected_quantities
from fedveil.report.statement.words import beside, protected

PAGE, CARD = "report.html.j2", "card.yaml.j2"
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
    return _rendered(PAGE, report=report, light=COLOURS, dark=DARK, titles=titles, svg=drawn, shown=shown)


def form_of() -> str:
    """Digest of the page's template and words: pages of another one look otherwise."""
    return hashlib.sha256((source(PAGE) + source("words.toml")).encode()).hexdigest()[:16]


def card_of(found: Gathered, run: Run) -> str:
    """The record of one run's release, in YAML."""
    promise, values = run.worst, run.summary.values
    books = [*run.books.values(), *run.sites.values()]
    drawn = {e.spend.mechanism for book in books for e in book.ledger.entries if e.source != "none"}
    return _rendered(
        CARD,
        people=found.people,
        name=found.name,
        slug=re.sub(r"[^a-z0-9]+", "-", found.name.lower()).strip("-"),
        promise=promise,
        epsilon=float(rounded_up(promise["epsilon"])) if "epsilon" in promise else None,
        sentence=" ".join([protected(promise), *(f"{text}." for text in beside(promise))]),
        words=WORDS,
        unprotected=unprotected_quantities([run]),
        values=values,
        mechanisms=sorted(drawn),
        settings=len({other.summary.setting for other in found.runs}),
    )


def _rendered(template: str, **values: Any) -> str:
    import jinja2

    how: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    environment = jinja2.Environment(autoescape=template == PAGE, **how)
    environment.filters["tojson"] = _json
    try:
        return environment.from_string(source(template)).render(absent=ABSENT, **values)
    except jinja2.UndefinedError as error:
        raise ValueError(str(error)) from error


def _json(value: object) -> str:
    """A value as JSON writes it, which YAML reads: of version 1.1, too, for which 1e-05 is a text."""
    text = json.dumps(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text
