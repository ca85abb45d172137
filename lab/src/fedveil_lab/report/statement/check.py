"""Check a report on any machine: its evidence against ledgers, and its files against the evidence.

The page, the card and report.json are made again from the evidence and the author's words, and compared byte for byte.
"""

import hashlib
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedveil.evidence import REPORT, Checked, check_promises
from fedveil_lab.report.statement.page import PAGE, files_of, form_of
from fedveil_lab.report.statement.subject import Subject

MISSING = "does not lie beside the report"
OTHER = "is of another version of FedVeil: its figures are checked, and what it looks like is not"


def check(report: Path, ledgers: Sequence[Path], heads: Path | None = None) -> list[Checked]:
    """Compare a report's evidence with ledgers, and its files with the evidence.

    Parameters
    ----------
    report : Path
        report.json; the page and the card lie beside it.
    ledgers : sequence of Path
        Ledgers of runs and data sets, or folders with such files.
    heads : Path, optional
        Folder of the heads of data sets' ledgers.

    Raises
    ------
    FieldError
        If the file is no report.
    """
    return check_promises(report, ledgers, heads, _files)


def _files(report: Path, raw: bytes, values: Mapping[str, Any]) -> Iterator[Checked]:
    """Make all files again from the report's evidence and its author's words, and compare each byte for byte."""
    if values["form"] != form_of():
        yield from _other(report.parent, values["files"])
        return
    page, shown = (
        report.parent / PAGE,
        [one["digest"] for one in values["said"]["attacked"]["pictures"]],
    )
    if shown and not page.is_file():
        yield Checked(PAGE, None, MISSING, "file")
        return
    there = _pictures(page.read_bytes()) if shown else {}
    subject = Subject.again(values, {digest: there.get(digest, b"") for digest in shown})
    for name, content in files_of(subject).items():
        if name == REPORT:
            yield Checked(
                "what follows",
                raw == content,
                "report.json says what does not follow from it",
                "file",
            )
        elif not (report.parent / name).is_file():
            yield Checked(name, None, MISSING, "file")
        else:
            same = (report.parent / name).read_bytes() == content
            yield Checked(name, same, "is not the file that follows from the report", "file")


def _other(folder: Path, files: Mapping[str, str]) -> Iterator[Checked]:
    """Compare digests only, for files that another version made."""
    for name, digest in files.items():
        file = folder / name
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            yield Checked(name, False, "is not the file that was written with the report", "file")
        else:
            yield Checked(name, None, OTHER if file.is_file() else MISSING, "file")


def _pictures(page: bytes) -> dict[str, bytes]:
    """Return the PNGs on a page by their SHA-256."""
    found = {}
    for text in re.findall(rb'data:image/png;base64,([^"]*)"', page):
        try:
            content = b64decode(text, validate=True)
        except NotBase64:
            continue
        found[hashlib.sha256(content).hexdigest()] = content
    return found
