"""Writes docs/troubleshooting.md out of the registry of mistakes: ``python tests/docs/mistakes_page.py``."""

import logging
import os
import re
import tempfile
import warnings
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"
TITLES = {
    "toml": "In the TOML file",
    "python": "In Python",
    "command": "On the command line",
    "files": "In files and folders",
    "flower": "Under Flower",
}
HEAD = """# What a refusal means

Every refusal names a field, the value that it got, and the way out. These are the likely ones, as they are printed;
each is a test (`tests/docs/test_registry_of_mistakes.py`), out of which this page is made. Not among them: warnings,
which begin with what is odd and end with what to do; an epsilon that is missing or large ([is it
true?](is-this-epsilon-true.md)); a run that was interrupted (`--resume` goes on). They were printed with the package of
studies (`fedveil-studies`) installed, which adds to what is accepted: the method `sga-central`, data sets and networks.
"""


def said(do):
    """How a mistake is refused, in one line without folders of this machine."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        try:
            do(Path(folder))
        except Exception as error:
            text = re.sub(r"\s+", " ", str(error)).strip()
        finally:
            os.chdir(before)
        text = (
            text.replace(f"{Path(folder).resolve()}/", "")
            .replace(f"{folder}/", "")
            .replace(folder, ".")
        )
    return text if len(text) <= 400 else f"{text[:400].rsplit(' ', 1)[0]} ..."


def page(every):
    """The page of a registry: mistakes by kind, each with its refusal."""
    lines = [HEAD]
    for kind, own in every.items():
        lines += [f"## {TITLES[kind]}", "", "| what was done | what is said |", "|---|---|"]
        lines += [f"| {mistake} | {code(said(entry[0]))} |" for mistake, entry in own.items()]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def code(text):
    """As code in a cell of a table."""
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    from test_registry_of_mistakes import EVERY

    logging.disable(logging.CRITICAL)
    PAGE.write_text(page(EVERY))
