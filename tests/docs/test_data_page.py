"""The page on data: its blocks run as they stand, in order, and so do its commands."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.data import SCHEMES, SOURCES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()
PYTHON = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    [first] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    *_, second, third = re.findall(r"```python\n(.*?)```", PYTHON, re.DOTALL)
    exec(compile(first, "data.md", "exec"), {})
    (tmp_path / "ward.toml").write_text(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0])
    commands = [
        line.split("#")[0].strip() for line in PAGE.splitlines() if line.startswith("    fedveil ")
    ]
    scans = [command for command in commands if re.search(r" forge | mine\.toml | apply ", command)]
    assert (len(commands), len(scans)) == (
        9,
        3,
    )  # scans have tests of their own: tests/fedveil_lab/report/test_applied.py
    for command in [command for command in commands if command not in scans]:
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, (command, result.output)
    assert (tmp_path / "runs" / "ward" / "summary.json").exists()
    assert (tmp_path / "runs" / "ward-data" / "partition.png").exists()
    names = {}
    exec(compile(second, "python.md", "exec"), names)
    assert capsys.readouterr().out.strip() == "(13, 13, 14)"
    exec(compile(third, "python.md", "exec"), names)
    assert len(names["history"].rounds) == 2


def test_the_page_names_every_source_and_partition():
    named = set(re.findall(r"`([a-z0-9-]+)`", PAGE))
    assert set(SOURCES) <= named
    assert set(SCHEMES) <= named
