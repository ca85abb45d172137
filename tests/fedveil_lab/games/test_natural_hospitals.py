"""The default audit of participation plays on hospitals as they are: of unequal sizes, with all data their own."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil_lab.config import load
from fedveil_lab.games import ParticipationGame, participation, play

pytestmark = pytest.mark.usefixtures("undrawn")
SIZES = {"Aachen": 40, "Berlin": 25, "Ulm": 60}


@pytest.fixture
def hospitals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(participation, "REHEARSALS", 4)
    rows = [f"{20 + i},{i % 7},{i % 2},{name}" for name, size in SIZES.items() for i in range(size)]
    Path("h.csv").write_text("\n".join(["age,size,sick,hospital", *rows]) + "\n")

    def written(protect, more=()):
        asked = ["--data", "h.csv", "--site", "hospital", "--target", "sick", "--protect", protect]
        assert CliRunner().invoke(app, ["init", f"{protect}.toml", *asked]).exit_code == 0
        return load(
            f"{protect}.toml",
            ["rounds=1", *(["privacy.rounds=1"] if protect != "nothing" else []), *more],
        )

    return written


@pytest.mark.parametrize("protect", ["hospital", "row", "nothing"])
def test_the_default_audit_plays_on_natural_hospitals(protect, hospitals):
    game = ParticipationGame(hospitals(protect), attacks=("loss",), replicates=4)
    found = play(game)
    assert found.verdicts
    if (
        protect != "hospital"
    ):  # where a client is promised something, its relation says what to play
        assert found.values["world"] == "remove"
        assert any("--out-world remove" in note for note in found.values["notes"])


def test_a_world_that_cannot_be_played_is_refused_before_the_first_run(hospitals):
    game = ParticipationGame(hospitals("row"), attacks=("loss",), replicates=4, world="empty")
    with pytest.raises(FieldError, match="--out-world"):
        game.check()
    with pytest.raises(FieldError, match="--out-world"):
        ParticipationGame(
            hospitals("nothing"), attacks=("loss",), replicates=4, world="replace"
        ).check()


def test_shares_without_a_hospital_are_sized_for_the_others(hospitals):
    config = hospitals("row", ['privacy.sum="trusted"', "privacy.silos=3"])
    found = play(ParticipationGame(config, attacks=("loss",), replicates=4))
    assert found.verdicts
    assert found.values["world"] == "remove"


def test_a_sum_that_needs_every_site_is_refused_before_the_first_run(hospitals):
    config = hospitals("row", ['privacy.sum="secure"', "privacy.least_sites=3", "privacy.lr=0.5"])
    with pytest.raises(FieldError, match="without the target"):
        ParticipationGame(config, attacks=("loss",), replicates=4).check()


def test_a_world_that_leaves_one_site_to_sum_is_refused_before_the_first_run(hospitals):
    config = hospitals("row", ['privacy.sum="trusted"', "privacy.silos=3", "privacy.tolerated=2"])
    with pytest.raises(FieldError, match="tolerated"):
        ParticipationGame(config, attacks=("loss",), replicates=4).check()
