"""Code on the pages: a table of TOML, JSON and Python is read as what it says it is."""

import json
import re
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(toml|json|py|python)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def blocks_of(page):
    """Return language and text of the fenced blocks of a page."""
    found = []
    for _, language, text in FENCE.findall(page.read_text(encoding="utf-8")):
        found.append((language, textwrap.dedent(text)))
    return found


def read(language, text):
    if language == "toml":
        tomllib.loads(text)
    elif language == "json":
        json.loads(text)
    else:  # a fragment may return, as the body of a function does
        compile("async def _():\n" + textwrap.indent(text, "    "), "page", "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_can_be_read(page):
    for language, text in blocks_of(page):
        read(language, text)


@pytest.mark.parametrize(
    ("language", "text"),
    [("toml", '[data] name = "npz" path = "x"'), ("json", "{'a': 1}"), ("py", "for x in y")],
)
def test_a_broken_block_is_noticed(language, text):
    with pytest.raises((ValueError, SyntaxError)):
        read(language, text)
