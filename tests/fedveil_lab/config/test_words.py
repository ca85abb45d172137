"""Words for what is protected, keys without their section, and what is said first."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.checks import require_unit
from fedveil.cli import app
from fedveil.errors import FieldError, nearest
from fedveil.units import WORDS, unit_meant
from fedveil_lab.config import load
from fedveil_lab.config.tables import ConfigError


def call(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        ("hospital Hospitals site silo clinic institution client-level", "client"),
        ("patient patients Patient_level subject individual people user users", "person"),
        ("row rows image images sample example record", "record"),
        ("none no nothing", "nothing"),
    ],
)
def test_people_have_other_words_for_a_unit(words, unit):
    assert {require_unit("--protect", word, WORDS) for word in words.split()} == {unit}


@pytest.mark.parametrize(
    "word", ["household", "visit", "case", "patiant", "", "clientele", None, 3]
)
def test_a_word_that_may_mean_less_is_refused_and_none_is_guessed(word):
    with pytest.raises(FieldError, match="--protect") as refused:
        require_unit("--protect", word, WORDS)
    assert "did you mean" not in str(refused.value)


def test_no_word_has_two_meanings():
    words = [word for unit in WORDS for word in WORDS[unit].split()]
    assert len(words) == len(set(words))
    assert [unit_meant(unit) for unit in WORDS] == list(WORDS)


def test_letters_alone_suggest_no_other_unit():
    assert "'person'" in nearest("patient", ("record", "person", "client"))
    assert "did you mean" not in nearest("hospital", ("record", "person"))


@pytest.mark.parametrize(("word", "method"), [("hospital", "global"), ("image", "record")])
def test_init_says_which_unit_was_taken(word, method, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = call("init", "my.toml", "--data", "digits", "--clients", 5, "--protect", word)
    assert found.exit_code == 0
    assert f"--protect {word}" in found.stdout
    assert load("my.toml").privacy.method == method


@pytest.mark.parametrize("options", [("--site", "hospital"), (), ("--protect", "patient")])
def test_a_missing_file_is_said_before_anything_else(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = call("init", "--data", "none.csv", *options)
    assert found.exit_code == 2
    assert "none.csv" in found.stderr
    assert not any(Path().iterdir())


@pytest.mark.parametrize(
    ("written", "places"),
    [
        ("epsilon=1", ("privacy.epsilon", "privacy.budget.epsilon")),
        ("lr=1", ("local.lr", "aggregator.lr")),
        ("alpha=1", ("data.alpha",)),
        ("hidden=[3]", ("model.hidden",)),
        ("clients=3", ("data.clients",)),
        ("data.epochs=1", ("local.epochs",)),
        ("privacy.batch_size=1", ("local.batch_size",)),
        ("local.patience=1", ("stopping.patience",)),
    ],
)
def test_a_key_without_its_section_is_told_all_places(written, places):
    with pytest.raises(ConfigError) as refused:
        load("digits-record", [written])
    assert all(place in str(refused.value) for place in places)
    assert f"write {written.partition('=')[0]} " not in str(refused.value)
