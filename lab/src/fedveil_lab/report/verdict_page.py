"""Write a verdict of `fedveil verify` as one HTML file without scripts or network access."""

import hashlib
from base64 import b64encode
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.errors import FieldError
from fedveil.files import make_folder, write_atomic
from fedveil_lab.report.canvas import COLOURS
from fedveil_lab.report.statement.document import source
from fedveil_lab.report.statement.page import DARK, STROKES, STYLE

if TYPE_CHECKING:
    from fedveil_lab.verify.judged import Judged

TEMPLATE = "verdict.html.j2"
ENDINGS = (".html", ".htm")


def page_of(judged: "Judged", made: dict[str, Any]) -> str:
    """Make the HTML page of one verdict.

    Parameters
    ----------
    judged : Judged
        The verdict.
    made : dict
        Provenance of the verdict: command, version, commit.
    """
    import jinja2

    how: dict[str, Any] = {
        "trim_blocks": True,
        "lstrip_blocks": True,
        "undefined": jinja2.StrictUndefined,
    }
    plain = jinja2.Environment(autoescape=False, **how)
    colours: dict[str, Any] = {"light": COLOURS, "dark": DARK, "strokes": STROKES}
    style = plain.from_string(source(STYLE)).render(lines=[], **colours).strip()
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    template = files("fedveil_lab.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    page = jinja2.Environment(autoescape=True, **how).from_string(template)
    rows, notes = [], list[str]()
    for name, text in judged.table().rows:
        lines = str(text).splitlines()
        if name:
            rows.append((str(name), lines))
        else:
            notes += lines
    effort = dict(judged.effort)
    seeds = effort.pop("seeds", [])
    return page.render(
        subject=judged.subject,
        answer=judged.answer,
        rows=rows,
        notes=notes,
        tables=judged.details(),
        effort=effort,
        seeds=seeds,
        made=made,
        style=style,
        digest=digest,
    )


def write_page(file: Path, judged: "Judged", made: dict[str, Any]) -> None:
    """Write the HTML page of one verdict to a file.

    Raises
    ------
    FieldError
        If the file name does not end with .html.
    """
    require_page(file)
    make_folder(file.parent)
    write_atomic(file, page_of(judged, made).encode())


def require_page(file: Path) -> None:
    """Refuse a folder, and a file name that does not end with .html."""
    if file.suffix.lower() not in ENDINGS or file.is_dir():
        raise FieldError("--page", str(file), "must be a file whose name ends with .html")
