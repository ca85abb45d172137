"""Refusals name what the user wrote, once, and the fix that works."""

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import fedveil as fv
from fedveil.cli import app
from fedveil_lab.config import parse
from fedveil_lab.report.applied import model_of
from fedveil_lab.runs.prepare import prepare


@pytest.mark.parametrize("words", [["runn"], ["data", "lisst"], ["ledger", "shoow"]])
def test_a_misspelt_command_has_one_suggestion(words):
    assert CliRunner().invoke(app, words).stderr.count("Did you mean") == 1


def test_a_comparison_is_no_run_and_its_runs_are_named(tmp_path):
    (tmp_path / "comparison.json").write_text("[]")
    (tmp_path / "vanilla").mkdir()
    (tmp_path / "vanilla" / "model.safetensors").touch()
    with pytest.raises(fv.FieldError, match="vanilla"):
        model_of(tmp_path)


@pytest.mark.parametrize("name", ["nowhere:Net", "torch.nn:Nowhere", "torch.nn:Linear"])
def test_a_module_is_refused_by_the_key_that_names_it(name):
    config = {
        "name": "m",
        "rounds": 1,
        "data": {"name": "breast-cancer", "clients": 3},
        "model": {"module": name},
    }
    with pytest.raises(fv.FedVeilError, match=r"model\.module") as refused:
        prepare(parse(config))
    assert "model.name" not in str(refused.value)


X, IMAGES = torch.rand(6, 3), torch.rand(6, 1, 8, 8)
ONES, PIXELS = torch.ones(6), torch.zeros(6, 8, 8, dtype=torch.int64)
SHAPES = [
    (nn.Linear(3, 1), X, ONES, nn.BCEWithLogitsLoss(), "y.reshape(-1, 1)"),
    (nn.Linear(3, 1), X, ONES, nn.SoftMarginLoss(), "y.reshape(-1, 1)"),
    (nn.Linear(3, 1), X, ONES.long(), nn.SoftMarginLoss(), "y.reshape(-1, 1)"),
    (nn.Linear(3, 2), X, ONES[:, None], nn.BCEWithLogitsLoss(), "[N, 1]"),
    (
        nn.Linear(3, 2),
        X,
        ONES,
        nn.MultiLabelSoftMarginLoss(),
        "[N]",
    ),  # two examples of two outputs would broadcast
    (nn.Linear(3, 2), X, ONES.long()[:, None], "cross_entropy", "y.reshape(-1)"),
    (nn.Conv2d(1, 3, 1), IMAGES, PIXELS[:, None], "cross_entropy", "y.squeeze(1)"),
    (nn.Conv2d(1, 3, 1), IMAGES, PIXELS[:, None], nn.CrossEntropyLoss(), "y.squeeze(1)"),
    (nn.Conv2d(1, 1, 1), IMAGES, PIXELS.float(), nn.BCEWithLogitsLoss(), "y.reshape(-1, 1, 8, 8)"),
]


@pytest.mark.parametrize(("model", "x", "y", "loss", "fix"), SHAPES)
def test_targets_of_another_shape_are_refused_with_what_makes_them_fit(model, x, y, loss, fix):
    local = fv.LocalTraining(loss=loss)
    with pytest.raises(fv.FieldError) as refused:
        fv.Federation(model=model, clients=[(x, y)] * 2, local=local)
    assert fix in str(refused.value)
    if fix.startswith("y."):
        fv.Federation(model=model, clients=[(x, eval(fix, {"y": y}))] * 2, local=local)
