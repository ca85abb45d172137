"""`fedveil audit --attack inversion`: the table, the pictures, the refusals."""

import json

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil_lab.config import load
from fedveil_lab.games import InversionGame, game_of, play


@pytest.mark.slow
def test_every_setting_stands_beside_no_defence_and_a_scale_of_noise(tmp_path):
    given = [
        "audit",
        "digits-sga-ldp",
        "--attack",
        "inversion",
        "--attack",
        "analytic",
        "--replicates",
        "2",
    ]
    done = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out" / "audit.json").read_text())
    by_setting = {r["setting"]: r for r in found["results"]}
    assert list(by_setting) == [
        "vanilla",
        "sga-ldp",
        *(f"nu = {nu:g}" for nu in (0.001, 0.01, 0.1, 1, 3)),
    ]
    assert by_setting["vanilla"]["point"] < 1e-8 < 1e-3 < by_setting["sga-ldp"]["point"]
    assert all(
        r["valid"] and r["n"] == 2 and r["replication"] == "image" for r in by_setting.values()
    )
    assert (tmp_path / "out" / "inversion-analytic.png").is_file()


@pytest.mark.parametrize(
    ("preset", "setting"), [("digits-record", "record"), ("digits-group", "group")]
)
@pytest.mark.slow
def test_other_methods_are_attacked_too(preset, setting):
    found = play(InversionGame(load(preset), attacks=("analytic",), replicates=2))
    points = {v.setting: v.point for v in found.verdicts}
    assert points["vanilla"] < 1e-8 < 1e-3 < points[setting]


def test_what_is_sent_in_float64_is_read_exactly():
    errors = []
    for double in (False, True):
        game = InversionGame(
            load("digits-sga-ldp"), attacks=("analytic",), replicates=1, double=double
        )
        verdicts = {v.setting: v.point for v in play(game).verdicts}
        errors.append(verdicts["vanilla"])
        assert verdicts["nu = 1"] > 1e-6
    assert errors[1] < 1e-24 < 1e-18 < errors[0]


def test_the_reading_of_a_trusted_server_is_said_to_be_no_breach():
    game = game_of(load("digits-cia"), attacks=("analytic",), replicates=1)
    assert any("trusted" in note for note in game.check())


@pytest.mark.parametrize(
    ("changes", "options", "field"),
    [
        (["local.optimizer=adam"], {}, "optimizer"),
        ([], {"images": 500}, "images"),
        ([], {"attacks": ("dlgg",)}, "did you mean 'dlg'"),
        (["data.clients=1"], {}, "clients"),
    ],
)
def test_what_cannot_be_inverted_is_refused_before_anything_is_written(
    tmp_path, changes, options, field
):
    with pytest.raises(FieldError, match=field):
        play(InversionGame(load("digits-sga-ldp", changes), **options), tmp_path / "out")
    assert not (tmp_path / "out" / "audit.json").exists()
