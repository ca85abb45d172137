"""Whose the folder of an audit is: one game's and one question's, wherever it is played."""

import json

import pytest

from fedveil.errors import FieldError
from fedveil.files import CONFIG, SPEC
from fedveil_lab.config import load
from fedveil_lab.games.folder import differing, refuse_another

ASKED = {"game": "membership", "replicates": 8, "levels": [0.1]}


@pytest.fixture
def folder(tmp_path):
    config = load("digits-record")
    (tmp_path / SPEC).write_text(json.dumps(ASKED))
    (tmp_path / CONFIG).write_text(config.to_toml())
    return tmp_path


def test_the_same_question_goes_on(folder):
    assert not differing(folder, ASKED, load("digits-record"))
    assert not differing(folder, {**ASKED, "replicates": 99}, load("digits-record"))
    refuse_another(folder, ASKED, load("digits-record"))


@pytest.mark.parametrize("changed", [{"game": "participation"}, {"levels": [0.2]}])
def test_another_game_or_question_is_refused(folder, changed):
    with pytest.raises(FieldError, match=next(iter(changed))):
        refuse_another(folder, {**ASKED, **changed}, load("digits-record"))


def test_of_another_game_nothing_else_is_compared(folder):
    other = {"game": "participation", "levels": [0.3], "rounds": 2}
    assert differing(folder, other, load("digits-record", ["seed=3"])) == ["--game"]


def test_the_place_is_no_other_audit_and_another_configuration_is(folder):
    elsewhere = load("digits-record", ["device=cpu", "workers=2"])
    assert not differing(folder, ASKED, elsewhere)
    assert differing(folder, ASKED, load("digits-record", ["seed=3"])) == ["seed"]


def test_a_folder_without_an_audit_differs_in_nothing(tmp_path):
    assert not differing(tmp_path, ASKED, load("digits-record"))
