"""The newcomer's way: every block of docs/tutorial.md and of the README, in an empty folder, as it stands."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedveil.cli import app
from fedveil.runs import Summary

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def play(page, scope):
    """Run the blocks of a page in order; a first line ``# name.ext`` names the file that a block is saved as."""
    shown = []
    for kind, text in BLOCK.findall(page.read_text()):
        first = re.match(r"# (\S+\.\w+)\n", text)
        if first:
            Path(first[1]).write_text(text)
        elif kind == "python":
            exec(compile(text, page.name, "exec"), scope)
        elif kind == "console":
            for line in text.splitlines():
                result = CliRunner().invoke(app, shlex.split(line)[1:])
                assert result.exit_code == 0, f"{line}\n{result.output}"
                shown.append(result.output)
    return shown


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    shown = play(ROOT / "docs" / "tutorial.md", {})
    assert "formal eps=8" in shown[0]
    mine = Summary.read(tmp_path / "runs" / "mine")
    assert mine.values["guarantees"]["server"]["epsilon"] == pytest.approx(8, abs=1e-9)
    assert mine.values["test_metrics"]["accuracy"] > 0.3
    assert (tmp_path / "runs" / "mine" / "metrics.csv").exists()
    assert (tmp_path / "runs" / "audit" / "audit.json").exists()
    python = capsys.readouterr().out
    assert "epsilon 8" in python
    assert "promised: formal eps=8" in python


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / "docs" / "tutorial.md").read_text()))
def test_links_lead_somewhere(link):
    assert (ROOT / "docs" / link).exists()
