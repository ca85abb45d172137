"""The site: no page but the reference and the generated ones is longer than three screens; what pages show runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LONG = {"api", "configuration", "benchmarks", "troubleshooting"}  # reference, and generated
SCREEN = 4000  # characters


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_has_at_most_three_screens(page):
    assert page.stem in LONG or len(page.read_text()) <= 3 * SCREEN


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    assert not [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in menu]


def test_the_blocks_on_extending_run_one_after_the_other(tmp_path):
    """In a process of their own: what they register stays registered."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL))
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "conditional eps=" in done.stdout
    assert "('vanilla', " in done.stdout
