"""The site: no page but the reference and the generated ones is longer than three screens; what pages show runs."""

import re
from pathlib import Path

import pytest

import fedveil as fv
from fedveil_lab.attacks.membership import MEMBERSHIPS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LONG = {"api", "configuration", "benchmarks"}  # reference, and generated
SCREEN = 4000  # characters


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_has_at_most_three_screens(page):
    assert page.stem in LONG or len(page.read_text()) <= 3 * SCREEN


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    assert not [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in menu]


def test_the_blocks_on_extending_run_one_after_the_other(capsys):
    code = "\n".join(
        re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    )
    known = dict(MEMBERSHIPS)
    try:
        exec(compile(code, "extending.md", "exec"), {"__name__": "extending"})
    finally:  # other registries are put back after every test
        MEMBERSHIPS.clear()
        MEMBERSHIPS.update(known)
    shown = capsys.readouterr().out
    assert "conditional eps=" in shown
    assert "('vanilla', " in shown


@pytest.mark.slow
def test_the_blocks_on_the_accountant_run_one_after_the_other(capsys):
    code = "\n".join(
        re.findall(r"```python\n(.*?)```", (DOCS / "accountant.md").read_text(), re.DOTALL)
    )
    exec(compile(code, "accountant.md", "exec"), {"__name__": "accountant"})
    shown = capsys.readouterr().out.splitlines()
    full, sampled, both = (float(line) for line in shown[:3])
    assert sampled < both < full
    assert shown[4] in code  # the line that the page prints beside it
    assert shown[-1].startswith("formal eps=")


EDGES = (DOCS / "sharp-edges.md").read_text()
SIDES = re.findall(r"^\| `(fv\..+?)` \| `(fv\.[^`]+)`[^|]*\|$", EDGES, re.MULTILINE)
SIDES += re.findall(r"^\| [^|`]+ \| `(fv\.[^`]+)` \| [^|`]*`(fv\.[^`]+)`", EDGES, re.MULTILINE)
SIDES = [pair for pair in SIDES if pair[0].partition("(")[0] == pair[1].partition("(")[0]]


@pytest.mark.parametrize(("wrong", "right"), SIDES, ids=[wrong for wrong, _ in SIDES])
def test_wrong_and_right_code_on_sharp_edges_is_code(wrong, right):
    made = [eval(code, {"fv": fv}) for code in (wrong, right)]
    assert made[0] != made[1]


def test_sharp_edges_shows_a_right_way_for_the_severe_ones():
    assert len(SIDES) >= 5
