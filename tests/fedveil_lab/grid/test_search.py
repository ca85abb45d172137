"""A choice among private settings: which one, on which rows, and what it costs."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fedveil as fv
from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil_lab.config import Config, parse
from fedveil_lab.config.foresight import Shape, made_up
from fedveil_lab.grid.search import only
from fedveil_lab.runs.promised import prepared, promised

RECORD = {"method": "record", "delta": 1e-5, "rounds": 20, "examples": 100.0, "clip": 0.2}
RATES = [
    {"label": "plain", "method": "vanilla"},
    {"label": "still", "local": {"lr": 1e-4}},
    {"label": "usual", "local": {"lr": 1.0}},
]


def config(settings=RATES, **more) -> Config:
    values = {
        "name": "x",
        "rounds": 20,
        "data": {"name": "digits", "clients": 10},
        "model": {"name": "logistic"},
        "privacy": {**RECORD, "epsilon": 1},
        "compare": {"settings": settings},
    }
    return parse({**values, **more})


def test_the_setting_that_learns_is_chosen_and_nothing_is_charged() -> None:
    found = fv.search(config())
    assert (found.label, found.read) == ("usual", ())
    assert found.scores["usual"] > found.scores["still"] + 0.1
    chosen = only(config(), found.label)
    assert [setting.label for setting in chosen.compare.settings] == ["plain", "usual"]
    total = promised(prepared(chosen)).guarantee.epsilon(1e-5)
    assert total == pytest.approx(1.0, abs=1e-3)  # as of one run: had both been seen, 1.47


def test_what_was_read_off_is_named() -> None:
    found = fv.search(config(read_off=["privacy.examples"]))
    assert found.read == ("privacy.examples",)
    assert "conditional" in str(found)


def test_no_value_of_a_private_row_is_read(tmp_path) -> None:
    found = []
    for name, factor in (("a.npz", 0.0), ("b.npz", 1.0)):
        y = np.arange(80) % 2
        np.savez(tmp_path / name, x=factor * np.eye(80, 5, dtype=np.float32), y=y)
        data = {"name": "npz", "path": str(tmp_path / name), "classes": 2, "clients": 2}
        found.append(fv.search(config(data=data, privacy={**RECORD, "examples": 30, "epsilon": 8})))
    assert found[0] == found[1]


def test_public_rows_are_the_ones_that_are_played_on() -> None:
    data = {"name": "digits", "clients": 10, "public_examples": 600}
    found = fv.search(config(data=data), by="public")
    assert (found.by, found.label) == ("public", "usual")
    with pytest.raises(FieldError) as refused:
        fv.search(config(), by="public")
    assert refused.value.field == "by"


@pytest.mark.parametrize(
    ("settings", "by", "field"),
    [
        (RATES, "runs", "by"),  # figures of private runs
        (RATES[:2], "rehearsal", "compare.settings"),  # one alone
        (
            [{"label": "a", "epsilon": 8}, {"label": "b", "epsilon": 1}],
            "rehearsal",
            "compare.settings",
        ),
    ],
)
def test_what_is_no_free_choice_is_refused(settings, by, field) -> None:
    with pytest.raises(FieldError) as refused:
        fv.search(config(settings), by=by)
    assert refused.value.field == field


@pytest.mark.parametrize("classes", [2, 5])
def test_the_made_up_task_is_as_clear_as_asked_for(classes) -> None:
    shape = Shape(classes=classes, inputs=12, image=False, units=9000, rows=1, held_out=1000)
    x, y, unit = made_up(shape, 0.8, 3)
    assert (x.shape, unit.max() > 9000) == ((10_000, 12), torch.tensor(True))
    middles = torch.stack([x[y == k].mean(0) for k in range(classes)])
    rest = x - middles[y]
    spread = torch.linalg.inv(rest.T @ rest / len(x))
    apart = x[:, None] - middles
    nearest = torch.einsum("nki,ij,nkj->nk", apart, spread, apart).argmin(1)
    assert float((nearest == y).double().mean()) == pytest.approx(0.8, abs=0.02)


def test_numbers_are_explained_as_asked_for() -> None:
    shape = Shape(classes=0, inputs=6, image=False, units=9000, rows=2, held_out=100)
    x, y, _ = made_up(shape, 0.3, 3)
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    rest = y - design @ torch.linalg.lstsq(design, y[:, None]).solution[:, 0]
    assert float(1 - rest.std() / y.std()) == pytest.approx(0.3, abs=0.02)


@pytest.mark.slow
def test_a_comparison_runs_what_was_chosen(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text(config().to_toml())
    done = CliRunner().invoke(app, ["compare", "x.toml", "--out", "out", "--choose", "rehearsal"])
    assert done.exit_code == 0, done.stderr
    cells = sorted(path.name.partition("-")[0] for path in (tmp_path / "out" / "cells").iterdir())
    assert cells == ["plain", "usual"]
