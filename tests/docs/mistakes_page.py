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

A refusal names a field, the value that it got, and the way out: most need no page. The tables list refusals whose cause
is not in the named field, by what was done. An interrupted run goes on with `--resume`. If an epsilon is missing or
large, see [is it true?](is-this-epsilon-true.md).
"""
# Mistakes that the page leaves out: what is printed says all, or another row says the same.
UNSHOWN = frozenset(
    {
        "a misspelt key",
        "a number as a text",
        "half a round",
        "no round",
        "rounds left out",
        "no client",
        "a cohort above the federation",
        "a rule that is not there",
        "an engine that is not there",
        "a device by another name",
        "a model that is not there",
        "a number alone, metric privacy",
        "a misspelt parameter of metric privacy",
        "a misspelt parameter of SGA-LDP",
        "a misspelt parameter of a rule",
        "a misspelt parameter of training",
        "a misspelt argument",
        "a method without noise",
        "a method that is none",
        "a method's name misspelt",
        "no model",
        "a rule's class",
        "too few labels",
        "one client's labels",
        "one client's targets",
        "a loss's class",
        "a rate below 0 by a function",
        "no seed",
        "a figure misspelt",
        "a function for rounds",
        "one client's columns",
        "a comparison without rounds",
        "a target that is not there",
        "a file that is not there",
        "objects",
        "--set of a text",
        "--set of no key",
        "--out below a file",
        "an engine misspelt",
        "a seed in words",
        "no repetition",
        "too few runs of an audit",
        "a relation misspelt",
        "a command misspelt",
        "a folder's people by another name",
        "tabs",
        "a header alone",
        "an empty file",
        "a class beyond the classes",
        "an empty folder",
        "a folder that is not there",
        "arrays of two lengths",
        "folders one level too deep",
        "a broken image",
        "a layout of another model",
        "a method misspelt",
        "a parameter misspelt",
        "a secure sum of more sites than are drawn",
        "a run without its summary",
        "--set into a value",
        "classes taken for clients",
        "test without train",
        "a GPU that is not there",
        "a rule by name",
        "settings without names",
        "a plan of everything",
        "an init of nothing",
        "an init of more clients than there is",
        "people of whom nothing is said",
        "--set without a value",
        "--out is a file",
        "people who are the target",
        "two columns of one name",
        "a file of another kind",
        "an empty class",
        "arrays without labels",
        "train and val",
        "rounds given twice",
        "a figure that nobody measured",
        "a source by name",
        "a preset misspelt",
        "texts",
        "a column that is not there",
        "YAML",
        "a name with a blank",
        "training as a dict",
        "shares sized for more silos than there are",
        "a secure sum of more sites than there are",
        "a loss of outputs alone",
        "one client's pair",
        "missing values",
        "images of two sizes",
        "a plan without delta",
        "nothing to go on with",
        "no method anywhere",
        "a number alone",
        "a misspelt parameter",
        "a key outside its table",
        "a model's class",
        "a scheduler for a rate",
        "an init of a spreadsheet",
        "--out is an option",
        "a damaged line of a run",
        "a method that is not handed on",
        "arrays of another model",
        "a text among images",
        "a value left out",
        "an init of a table that holds ids alone",
        "AdamW in a trusted sum",
        "examples planned for people",
        "a tuple between layers",
        "images with channels behind",
        "a misspelt table",
        "a method that is not there",
        "epsilon without rounds",
        "noise left out",
        "a clip below 0",
        "a data set that is not there",
        "noise as a number",
        "a method's class",
        "clients by name",
        "labels in a column",
        "labels from 1",
        "labels one-hot",
        "bytes",
        "a layer without a size",
        "a loss of every example",
        "people by name",
        "people who are not said",
        "images without a channel",
        "columns that the model does not take",
        "--out that nobody may write",
        "semicolons",
        "a text in a column of numbers",
        "images without class folders",
        "a parameter in code and in the configuration",
        "people without a number of records",
        "a secure sum of two",
        "a table as others call it",
    }
)
NAMES = re.compile(r"accepted: ((?:[\w.-]+, ){3})(?:[\w.-]+, )*[\w.-]+( \.\.\.)?")


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
    text = re.sub(r"^Usage: .*? Error: ", "", text)
    text = NAMES.sub(r"accepted: \1...", text)
    return text if len(text) <= 300 else f"{text[:300].rsplit(' ', 1)[0]} ..."


def page(every):
    """The page of a registry: mistakes by kind, each with its refusal."""
    lines = [HEAD]
    for kind, own in every.items():
        shown = {mistake: entry for mistake, entry in own.items() if mistake not in UNSHOWN}
        if not shown:
            continue
        lines += [f"## {TITLES[kind]}", "", "| what was done | what is said |", "|---|---|"]
        lines += [f"| {mistake} | {code(said(entry[0]))} |" for mistake, entry in shown.items()]
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
