"""A configuration's files and modules are found beside it, from any folder."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.learning.models import MODELS, build_model
from fedveil_lab.config import load
from fedveil_lab.config.tables import ConfigError

TOML = """
name = "mine"
rounds = 1
[data]
name = "table"
path = "rows.csv"
target = "y"
classes = 2
columns = { age = [0, 120], size = [0, 10] }
clients = 3
[model]
module = "own_net_{0}:Net"
"""
NET = """
from own_layers_{0} import Block
from torch import nn


class Net(nn.Module):
    def __init__(self, input_shape, outputs):
        super().__init__()
        self.inner = Block(input_shape[0], outputs)

    def forward(self, x):
        return self.inner(x)
"""
ROWS = "age,size,y\n" + "".join(f"{20 + i},{i % 10},{i % 2}\n" for i in range(60))


@pytest.fixture
def study(tmp_path, monkeypatch, request):
    """A study in a folder; the working directory is another one. Modules bear names of their own in every test."""
    own = request.node.name.encode().hex()[-16:]
    folder, elsewhere = tmp_path / "my study", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / "my.toml").write_text(TOML.replace("{0}", own))
    (folder / f"own_net_{own}.py").write_text(NET.format(own))
    (folder / f"own_layers_{own}.py").write_text("from torch import nn\n\nBlock = nn.Linear\n")
    (folder / "rows.csv").write_text(ROWS)
    monkeypatch.chdir(elsewhere)
    return folder


def test_what_lies_beside_a_configuration_is_found_from_any_folder(study, monkeypatch):
    assert CliRunner().invoke(app, ["run", "../my study/my.toml", "--out", "out"]).exit_code == 0
    monkeypatch.chdir(study.parent)
    again = load("elsewhere/out")
    assert Path(again.data.options["path"]).samefile(study / "rows.csv")
    build_model(again.model.name, input_shape=(2,), outputs=2, seed=0)


def test_from_its_own_folder_a_configuration_stays_as_it_is_written(study, monkeypatch):
    beside = load(study / "my.toml")
    monkeypatch.chdir(study)
    own = load("my.toml")
    assert own.data.options["path"] == "rows.csv"
    assert own.model.differing() == beside.model.differing()  # one run, wherever its module lies


def test_of_two_files_of_one_name_none_is_guessed(study):
    Path("rows.csv").write_text(ROWS)
    with pytest.raises(FieldError, match=r"data\.path.*two places"):
        load(study / "my.toml")
    Path("rows.csv").unlink()
    next(study.glob("own_net*")).rename(study / "own_net.py")
    Path("own_net.py").write_text("Net = None")
    with pytest.raises(FieldError, match=r"model\.module.*two places"):
        load(study / "my.toml", ["model.module=own_net:Net"])


def test_a_module_is_not_taken_for_another_of_its_name(study):
    (study / "tomllib.py").write_text("Net = None")
    with pytest.raises(ConfigError, match="another module of that name"):
        load(study / "my.toml", ["model.module=tomllib:Net"])


def test_a_module_may_have_its_folder_before_it(study):
    name = next(study.glob("own_net*")).stem
    assert MODELS.find(f"{study}/{name}:Net") is MODELS.find(f"{study}/{name}.py:Net")
    with pytest.raises(FieldError, match="cannot be imported"):
        MODELS.find(f"{study.parent}/{name}_none:Net")


def test_a_misspelt_name_is_answered_by_those_of_the_module(study):
    name = next(study.glob("own_net*")).stem
    with pytest.raises(FieldError, match="did you mean 'Net'"):
        MODELS.find(f"{study}/{name}:Nett")
