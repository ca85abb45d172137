"""The game of membership, as the registry plays it."""

import json

import pytest

from fedveil.audit import game_of, play
from fedveil.config import load
from fedveil.errors import FieldError

TEXT = """
name = "small"
rounds = 4
[data]
name = "digits"
clients = 5
partition = "iid"
holdout = 0.4
[model]
name = "mlp"
[model.options]
hidden = [32]
[local]
epochs = 8
lr = 0.3
batch_size = 16
[privacy]
method = "sga-ldp"
epsilon_min = 5.0
epsilon_max = 5.0
similarity = "released"
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TEXT.replace("[model.options]\n", ""))
    return load(str(path), [])


def game(config, **options):
    return game_of(config, "membership", **{"replicates": 3, **options})


def test_a_server_tells_members_without_a_defence_and_not_under_local_noise(config, tmp_path):
    found = play(game(config), tmp_path / "audit")
    verdicts = {(v.setting, v.attack): v for v in found.verdicts}
    assert {setting for setting, _ in verdicts} == {"vanilla", "sga-ldp"}
    plain, hidden = verdicts["vanilla", "fedmia-by-class"], verdicts["sga-ldp", "fedmia-by-class"]
    assert plain.low > 0.52
    assert plain.valid
    assert hidden.low <= 0.5 <= hidden.high
    assert hidden.without_defence == plain.point
    assert verdicts["vanilla", "source"].low > 0.05
    assert abs(verdicts["sga-ldp", "source"].point) < 0.1
    assert all(v.n == 3 and v.replication == "one run" for v in found.verdicts)
    kept = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert kept["game"] == "membership"
    assert len(kept["results"]) == len(found.verdicts)
    again = play(game(config, attacks=("fedmia",)), tmp_path / "audit")  # nothing is run twice
    assert {v.attack for v in again.verdicts} == {"fedmia"}
    assert again.verdicts[0].point == verdicts["vanilla", "fedmia"].point


def test_what_cannot_be_asked_is_refused(config):
    with pytest.raises(FieldError, match="--attack"):
        game(config, attacks=("fedmai",))
    alone = config.model_copy(update={"data": config.data.model_copy(update={"holdout": 0.0})})
    with pytest.raises(FieldError, match="holdout"):
        play(game(alone))
