"""The site: no page but the reference and the generated ones is longer than three screens; what pages show runs."""

import re
from pathlib import Path

import pytest

from fedveil_lab.attacks.membership import MEMBERSHIPS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LONG = {"api", "configuration", "benchmarks", "troubleshooting"}  # reference, and generated
SCREEN = 4000  # characters


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_has_at_most_three_screens(page):
    assert page.stem in LONG or len(page.read_text()) <= 3 * SCREEN


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    assert not [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in menu]


def test_the_blocks_on_extending_run_one_after_the_other(capsys):
    code = "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL))
    known = dict(MEMBERSHIPS)
    try:
        exec(compile(code, "extending.md", "exec"), {"__name__": "extending"})
    finally:  # other registries are put back after every test
        MEMBERSHIPS.clear()
        MEMBERSHIPS.update(known)
    shown = capsys.readouterr().out
    assert "conditional eps=" in shown
    assert "('vanilla', " in shown
