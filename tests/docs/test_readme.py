"""The front page and the pages it leads to: blocks run as they stand, commands exist, links lead somewhere."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedveil.cli import app

README = Path(__file__).resolve().parents[2] / "README.md"
DOCS = README.parent / "docs"
STUDY = README.parent / "studies" / "src" / "fedveil_studies" / "published"
PAGES = [README, *(DOCS / f"{name}.md" for name in ("python", "flower", "commands", "guarantees"))]
COMMANDS = [
    x for x in (DOCS / "commands.md").read_text().splitlines() if x.startswith("    fedveil ")
]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_ten_lines_run(capsys):
    block = BLOCK.findall(README.read_text())[0]
    scope: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), scope)
    history = scope["history"]
    assert history.metrics["accuracy"] > 0.7  # type: ignore[attr-defined]
    assert history.guarantee.status == "formal"  # type: ignore[attr-defined]
    printed = capsys.readouterr().out
    assert "formal eps=" in printed
    assert "total" in printed


def test_the_estimator_runs_as_the_page_says(capsys):
    scope: dict[str, Any] = {}
    for block in BLOCK.findall((DOCS / "python.md").read_text()):
        exec(compile(block, "python.md", "exec"), scope)
    assert scope["learner"].score(scope["x"], scope["y"]) > 0.7


@pytest.mark.flower
def test_the_flower_block_runs_as_it_stands_and_learns(capsys):
    pytest.importorskip("flwr")
    block = BLOCK.findall((DOCS / "flower.md").read_text())[0]
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert float(re.search(r"accuracy ([.\d]+); formal eps=8 ", printed)[1]) > 0.75


def test_the_commands_exist():
    commands = {line.split()[1] for line in COMMANDS}
    made = {"init", "run", "compare", "advise", "plan", "audit", "reproduce", "presets", "data"}
    assert commands == made | {"apply", "predict", "export", "threshold"}
    for command in commands:
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0


def test_the_plan_of_the_readme_says_that_it_is_hopeless():
    line = next(x for x in COMMANDS if x.startswith("    fedveil plan"))
    result = CliRunner().invoke(app, line.split()[1:])
    assert result.exit_code == 0
    assert "6.71" in result.output
    assert "hopeless" in result.output


LINKS = [
    (page, link)
    for page in PAGES
    for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text())
]


@pytest.mark.parametrize(
    ("page", "link"), LINKS, ids=[f"{page.stem}-{link}" for page, link in LINKS]
)
def test_links_lead_somewhere(page, link):
    assert (page.parent / link).exists()


def test_the_front_page_stays_short():
    assert len(README.read_text().splitlines()) <= 100


def published_rows():
    """Return (data, epsilon, figures) of each row of the front page's table."""
    table = README.read_text().partition("| data, measure")[2].split("\n\n")[0].splitlines()[2:]
    rows, data = [], ""
    for line in table:
        name, epsilon, *figures = [cell.strip() for cell in line.split("|")[1:-1]]
        data = name.partition(",")[0] or data
        rows.append((data, re.split("[ ,]", epsilon)[0], figures))
    return rows


def of_file(table):
    """Return the values of a published table's file, by row and setting."""
    path = README.parent / "results" / "published" / "hospitals" / f"table-{table}.json"
    rows = json.loads(path.read_text())["rows"]
    return {(r["row"], r["setting"], r["figure"]): r.get("value") for r in rows}


@pytest.mark.skipif(
    not (README.parent / "results").is_dir(), reason="results/ are the repository's"
)
def test_the_table_of_the_front_page_stands_in_its_files():
    published = list(csv.DictReader((STUDY / "published.csv").open()))
    printed = {(p["table"], p["row"]): float(p["value"]) for p in published}
    tables = {
        "four": ("heart", "{}", "accuracy"),
        "readmission": ("stays", "person level, {}", "auc"),
    }
    found = published_rows()
    assert len(found) == 8
    for data, epsilon, (theirs, alone, together) in found:
        if data == "MNIST":
            places = [("one silo, 3", "alone"), ("ten silos, 3", "sum")]
            table, figure = "mnist", "accuracy"
        else:
            table, row, figure = tables[data.split(" ")[0]]
            row = row.format(epsilon)
            [row] = {r for r, _, _ in of_file(table) if r == row or r.startswith(f"{row} (")}
            settings = ("vanilla", "vanilla") if epsilon == "none" else ("alone", "sum")
            places = [(row, setting) for setting in settings]
        shown = [value.partition(",")[0] for value in (theirs, alone, together)]
        ours = [of_file(table)[(*place, figure)] for place in places]
        known = printed.get((table, places[0][0]))
        assert shown[0] == ("" if known is None else three(known))
        assert shown[1:] == [three(value) for value in ours]


def three(value):
    """Write a share with three digits, as the pages do."""
    return f"{value:.3f}".lstrip("0")
