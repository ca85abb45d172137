"""The README's ten lines run as they stand, and its commands exist."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedveil.cli import app

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_ten_lines_run(capsys):
    block = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    scope: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), scope)
    history = scope["history"]
    assert history.metrics["accuracy"] > 0.7  # type: ignore[attr-defined]
    assert history.guarantee.status == "formal"  # type: ignore[attr-defined]
    printed = capsys.readouterr().out
    assert "formal eps=" in printed
    assert "total" in printed


def test_settings_are_compared_and_attacked_as_the_block_says(capsys):
    scope: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[:2]:
        exec(compile(block, "README.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert all(label in printed for label in scope["settings"])
    assert "promised: formal eps=8" in printed


@pytest.mark.flower
def test_the_flower_block_runs_as_it_stands_and_learns(capsys):
    pytest.importorskip("flwr")
    block = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[2]
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert float(re.search(r"accuracy ([.\d]+); formal eps=8 ", printed)[1]) > 0.75


def test_the_commands_exist():
    commands = {line.split()[1] for line in README.read_text().splitlines() if line.startswith("    fedveil ")}
    assert commands == {"init", "run", "compare", "advise", "plan", "audit", "reproduce", "presets", "data"}
    for command in commands:
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0


def test_the_plan_of_the_readme_says_that_it_is_hopeless():
    line = next(x for x in README.read_text().splitlines() if x.startswith("    fedveil plan"))
    result = CliRunner().invoke(app, line.split()[1:])
    assert result.exit_code == 0
    assert "6.71" in result.output
    assert "hopeless" in result.output


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text()))
def test_links_lead_somewhere(link):
    assert (README.parent / link).exists()
