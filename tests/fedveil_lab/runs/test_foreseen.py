"""What `init`, `advise` and `compare` say before data are used."""

import re

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil_lab.config import parse
from fedveil_lab.runs.foreseen import foreseen, shape_of
from fedveil_lab.runs.promised import prepared

RECORD = {"method": "record", "delta": 1e-5, "rounds": 20, "examples": 100.0, "clip": 0.2}
DIGITS = {
    "name": "x",
    "data": {"name": "digits", "clients": 10},
    "model": {"name": "logistic"},
    "rounds": 20,
}


def config(**more):
    return parse({**DIGITS, **more})


def score_of(line: str) -> float:
    return float(re.search(r"about (\d\.\d\d)", line)[1])


def test_a_line_for_each_noisy_setting_and_what_it_rests_on() -> None:
    settings = [
        {"method": "vanilla"},
        {"label": "eight", "epsilon": 8},
        {"label": "tiny", "epsilon": 0.01},
    ]
    first, eight, tiny, last = foreseen(
        config(
            privacy={**RECORD, "epsilon": 1},
            compare={"settings": settings},
            read_off=["privacy.examples"],
        )
    )
    assert "0.90" in first
    assert eight.startswith("eight: about")
    assert score_of(eight) > 0.8
    assert tiny.startswith("tiny: no better than the most frequent class")
    assert score_of(tiny) < 0.3
    assert last.startswith("conditional:")
    assert "privacy.examples" in last


def test_a_harder_task_is_foreseen_to_be_learned_less() -> None:
    run = config(privacy={**RECORD, "epsilon": 1})
    assert score_of(foreseen(run, 0.5)[1]) < score_of(foreseen(run, 0.95)[1])


def test_whole_clients_are_the_units_of_their_level() -> None:
    privacy = {"method": "global", "epsilon": 8, "rounds": 20, "clip": 0.1}
    setup = prepared(config(privacy=privacy))
    shape = shape_of(setup, setup.method.server)
    assert (shape.units, shape.classes, shape.inputs, shape.image) == (10, 10, 64, True)
    assert shape.rows == sum(client.examples for client in setup.clients) / 10
    silos = prepared(config(privacy={**RECORD, "epsilon": 1}))
    alone = shape_of(silos, silos.method.client)  # as declared, whatever there is
    assert (alone.units, alone.rows, alone.held_out) == (1000, 1, pytest.approx(250))


def test_nothing_is_foreseen_of_other_models_or_without_noise() -> None:
    assert foreseen(config(privacy={"method": "vanilla"})) == []
    assert foreseen(config(model={"name": "mlp"}, privacy={**RECORD, "epsilon": 1})) == []


@pytest.mark.parametrize("words", [["compare", "--out", "out"], ["advise"]])
def test_commands_take_what_is_known_to_be_possible(words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = config(privacy={**RECORD, "epsilon": 0.1}, rounds=1)
    (tmp_path / "x.toml").write_text(run.to_toml())
    refused = CliRunner().invoke(app, [words[0], "x.toml", *words[1:], "--reach", "1.5"])
    assert refused.exit_code == 2
    assert "reach = 1.5" in str(refused.exception) + refused.stderr
