"""Commands on machines as they are: a notebook's variables, no home, terminals without letters, folders of any name."""

import os
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil_lab.report.audit_figures import roc_figure
from fedveil_lab.report.canvas import keep

SMALL = """
name = "s"
rounds = 2
[data]
name = "breast-cancer"
clients = 3
[model]
name = "logistic"
[compare]
settings = [{ label = "größe ±", method = "vanilla" }]
"""
DRAW = "from fedveil_lab.report.plotting import Figure; f = Figure(); f.subplots(); f.savefig('drawn.png')"


def called(*arguments, cwd, **variables):
    environment = {
        name: value for name, value in {**os.environ, **variables}.items() if value is not None
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "variables",
    [
        {"MPLBACKEND": "module://matplotlib_inline.backend_inline"},
        {"MPLBACKEND": "no such backend"},
        {"MATPLOTLIBRC": "damaged"},
        {"MPLCONFIGDIR": "damaged/inside-a-file"},
        {"HOME": "/proc/none", "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None},
    ],
)
def test_nobodys_settings_stop_a_figure(variables, tmp_path):
    (tmp_path / "damaged").write_bytes(b"backend: none\n\xff\xfe: 3\n")
    ended = called("-c", DRAW, cwd=tmp_path, **variables)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "drawn.png").is_file()


def test_nobodys_style_changes_a_figure(tmp_path):
    rates = {"vanilla": {"loss": [[0.1, 0.5, 1.0], [0.2, 0.9, 1.0]]}}
    plain = keep(roc_figure(rates), tmp_path / "plain.png", 60).read_bytes()
    styled = {
        "font.size": 30,
        "text.usetex": True,
        "savefig.transparent": True,
        "axes.facecolor": "black",
    }
    with matplotlib.rc_context(styled):
        assert keep(roc_figure(rates), tmp_path / "styled.png", 60).read_bytes() == plain
        assert matplotlib.rcParams["font.size"] == 30


@pytest.mark.few(0)
def test_a_comparison_in_a_notebooks_shell_whose_encoding_lacks_letters(tmp_path):
    folder = tmp_path / "my 'Größe' \"data\""
    folder.mkdir()
    (folder / "s.toml").write_text(SMALL, encoding="utf-8")
    variables = {
        "MPLBACKEND": "module://nowhere",
        "PYTHONIOENCODING": "ascii",
        "NO_COLOR": "1",
        "COLUMNS": "40",
    }
    ended = called(
        "-m",
        "fedveil",
        "compare",
        "s.toml",
        "--seeds",
        "2",
        "--out",
        "ö 1",
        cwd=folder,
        **variables,
    )
    assert ended.returncode == 0, ended.stderr
    assert (folder / "ö 1" / "curves.png").is_file()
    assert "größe ±" in (folder / "ö 1" / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("out", ["file", "file/inside", "/proc/none/inside"])
def test_a_folder_that_cannot_be_made_is_refused_by_name(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("somebody's")
    Path("s.toml").write_text(SMALL, encoding="utf-8")
    found = CliRunner().invoke(app, ["run", "s.toml", "--out", out])
    assert found.exit_code == 2
    assert "--out" in found.stderr
    assert Path("file").read_text() == "somebody's"
