"""The newcomer's way: every block of docs/tutorial.md and of the README, in an empty folder, as it stands."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.data.sets import find
from fedveil_lab.runs import Summary

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


PAGE = ROOT / "docs" / "tutorial.md"
SMALLER = {  # the same way with a seventh of the examples, fewer clients and rounds
    "x_train=images[:1200], y_train=labels[:1200]": "x_train=images[:180], y_train=labels[:180]",
    "clients = 30": "clients = 4",
    "rounds = 5\n\n[data]": "rounds = 1\n\n[data]",
    "rounds = 5\ndelta": "rounds = 1\ndelta",
    "epochs = 2\n": "epochs = 1\n",
    "fedveil compare hospitals-breast --out runs/first": "",  # played elsewhere
    "fedveil data show mine.toml": "",
    "--set rounds=2 --set privacy.rounds=2": "",
    "for i in range(30)": "for i in range(3)",
    "rounds=3": "rounds=1",
    "examples=20, epsilon=8, rounds=20, clip=0.5, silos=30": "examples=4, epsilon=8, rounds=1, clip=0.5, silos=3",
    '"people": 10': '"people": 2',
    'sum="trusted", epsilon=8, rounds=20, clip=0.5, silos=30': 'sum="trusted", epsilon=8, rounds=1, clip=0.5, silos=3',
    "local=local).run(20)": "local=local).run(1)",
}


def play(page, scope):
    """Run the blocks of a page in order; a first line ``# name.ext`` names the file that a block is saved as."""
    shown = []
    for kind, text in BLOCK.findall(page):
        first = re.match(r"# (\S+\.\w+)\n", text)
        if first:
            Path(first[1]).write_text(text)
        elif kind == "python":
            exec(compile(text, PAGE.name, "exec"), scope)
        elif kind == "console":
            for line in filter(None, text.splitlines()):
                result = CliRunner().invoke(app, shlex.split(line)[1:])
                assert result.exit_code == 0, f"{line}\n{result.output}"
                shown.append(result.output)
    return shown


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mynet", raising=False)
    yield tmp_path
    sys.modules.pop("mynet", None)


@pytest.mark.usefixtures("undrawn")
def test_the_newcomers_way_in_small(empty, capsys):
    page = PAGE.read_text()
    for written, smaller in SMALLER.items():
        assert written in page
        page = page.replace(written, smaller)
    shown = play(page, {})
    assert Summary.read(empty / "runs" / "mine").values["clients"] == 4
    assert len(Summary.read(empty / "runs" / "mine").rows) == 1
    assert (empty / "runs" / "mine-compare" / "curves.png").exists()
    assert any("promised formal eps=8" in text for text in shown)
    assert "promised: formal eps=8" in capsys.readouterr().out


@pytest.mark.slow
def test_the_tutorial_runs_as_it_stands(empty, capsys):
    tmp_path = empty
    shown = play(PAGE.read_text(), {})
    assert "formal eps=8" in shown[0]
    mine = Summary.read(tmp_path / "runs" / "mine")
    assert mine.values["guarantees"]["server"]["epsilon"] == pytest.approx(8, abs=1e-9)
    assert mine.values["test_metrics"]["accuracy"] > 0.3
    assert (tmp_path / "runs" / "mine" / "metrics.csv").exists()
    assert (tmp_path / "runs" / "audit" / "audit.json").exists()
    python = capsys.readouterr().out
    assert "epsilon 8" in python
    assert "promised: formal eps=8" in python


@pytest.mark.data
def test_the_real_hospitals_of_the_tutorial(empty):
    if find("heart_disease_uci_4_centres.csv") is None:
        pytest.skip("the heart patients are not here")
    page = PAGE.read_text()
    [command] = re.findall(r"`fedveil (run fed-heart [^`]*)`", page)
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    summary = Summary.read(empty / "runs" / "hearts").values
    [stated] = re.findall(r"(\d+\.\d)% of all held-out patients", page)
    assert summary["metrics"]["accuracy"] == pytest.approx(float(stated) / 100, abs=5.1e-3)
    [promise] = {round(one["epsilon"], 3) for one in summary["guarantees"].values()}
    assert promise == 8.0


@pytest.mark.parametrize(
    "link", re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / "docs" / "tutorial.md").read_text())
)
def test_links_lead_somewhere(link):
    assert (ROOT / "docs" / link).exists()
