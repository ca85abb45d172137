"""`fedveil audit --game region`: glyphs read off releases, of digits and of made-up documents; refusals."""

import numpy as np
import pytest
import torch

from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil_lab.config import load
from fedveil_lab.games import RegionGame, game_of, play
from fedveil_lab.games.region import size_of
from fedveil_lab.games.region_images import cut, images_of

DIGITS = """
name = "read"
rounds = {rounds}

[data]
name = "digits"
clients = 5
partition = "iid"
region = [4, 0, 8, 8]
public_examples = 16

[model]
name = "mlp"
hidden = [16]
activation = "tanh"

[local]
batch_size = 1000
lr = 0.5

[privacy]
method = "record"
unit = "region"
relation = "replace-one"
epsilon = {epsilon}
clip = 0.5
examples = 1
"""


UNET = 'name = "unet"\nwidths = [8]\npatch = 8\nactivation = "gelu"\nresiduals = false'


def written(folder, rounds=1, epsilon=1.0):
    path = folder / "read.toml"
    path.write_text(DIGITS.format(rounds=rounds, epsilon=epsilon))
    return path


@pytest.mark.slow
def test_marked_content_comes_back_without_a_defence_and_not_at_region_level(tmp_path):
    game = RegionGame(
        load(written(tmp_path)), attacks=("distance",), replicates=2, glyph="4x4", steps=50
    )
    found = play(game)
    read = {v.setting: v.details["read"] / v.details["glyphs"] for v in found.verdicts}
    assert list(read) == [
        "no defence",
        "blanked",
        "FedRE, printed epsilon of 50",
        "FedRE, noise .1 of the clip",
        "region level",
        "record level",
    ]
    assert read["no defence"] == 1.0
    assert max(read["blanked"], read["region level"], read["record level"]) <= 0.5
    assert found.verdicts[0].valid
    assert len(game.images.others.windows) > 100
    assert set(found.values["answers"]["no defence"]) == {"distance, round 1"}


@pytest.mark.slow
def test_all_rounds_and_trained_models_are_read_too(tmp_path):
    game = RegionGame(
        load(written(tmp_path, rounds=2)), attacks=("distance",), replicates=1, steps=5
    )
    answers = play(game).values["answers"]["region level"]
    assert list(answers) == [f"distance, {view}" for view in ("round 1", "round 2", "all rounds")]


@pytest.fixture
def documents(tmp_path):
    """Eight made-up pages of black strokes, each with a line of text that is marked."""
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    for name in ("images", "masks", "sensitive/total"):
        (tmp_path / "pages" / name).mkdir(parents=True)
    for i in range(8):
        page, forged, marked = (np.zeros((40, 40), dtype=np.uint8) for _ in range(3))
        page[:] = 230
        page[4:34, 4:36] = draw.choice([20, 230], (30, 32))
        forged[5:8, 5:20] = 255
        marked[12:32, 6:34] = 255
        for folder, pixels in (("images", page), ("masks", forged), ("sensitive/total", marked)):
            image.fromarray(pixels).save(tmp_path / "pages" / folder / f"{i}.png")
    return tmp_path


@pytest.mark.slow
def test_documents_of_ones_own_are_read_in_glyphs(documents):
    own = {
        'name = "digits"': f'name = "documents"\npath = "{documents}/pages"\ntile = 32\ntiles = 2',
        "region = [4, 0, 8, 8]": 'sensitive = [["total"]]',
        "public_examples = 16": "public_examples = 2",
        'name = "mlp"\nhidden = [16]\nactivation = "tanh"': UNET,
    }
    text = DIGITS.format(rounds=1, epsilon=1.0)
    for given, instead in own.items():
        assert given in text
        text = text.replace(given, instead)
    path = documents / "read.toml"
    path.write_text(text)
    game = RegionGame(load(path), attacks=("distance",), replicates=1, steps=3)
    found = play(game)
    assert game.images.glyph == (10, 7)
    assert {v.details["glyphs"] for v in found.verdicts} == {len(game.images.true.windows)}
    assert len(game.images.true.windows) >= 2


@pytest.mark.parametrize(
    ("changes", "options", "field"),
    [
        (["privacy.unit=record"], {}, "privacy.unit"),
        (["data.clients=1"], {}, "data.clients"),
        (["local.optimizer=adam"], {}, "optimizer"),
        ([], {"glyph": "9x9"}, "--glyph"),
        ([], {"glyph": "ten"}, "--glyph"),
        ([], {"attacks": ("cosine",)}, "--attack"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_is_written(
    tmp_path, changes, options, field
):
    with pytest.raises(FieldError, match=field):
        play(RegionGame(load(written(tmp_path), changes), **options), tmp_path / "out")
    assert not (tmp_path / "out" / "audit.json").exists()


def test_a_name_of_a_search_asks_for_this_game(tmp_path):
    assert isinstance(game_of(load(written(tmp_path)), attacks=("direction",)), RegionGame)
    assert size_of("12x8") == (12, 8)
    assert size_of(None) is None


def test_a_clients_first_image_with_a_glyph_is_attacked_and_the_last_client_never():
    x = torch.zeros(2, 1, 8, 8)
    x[1, 0, ::2, ::2] = 1.0  # ink in the second image alone
    masks = torch.zeros(2, 8, 8, dtype=torch.bool)
    masks[:, 2:6, 2:6] = True
    clients = [ClientData(x, torch.tensor([0, 1]), masks=masks) for _ in range(3)]
    found = images_of(clients, most=5, glyph=(4, 4))
    assert [int(one.y) for one in found.clients] == [1, 1]
    assert torch.equal(found.public, x)
    assert len(found.others.windows) == 1
    assert len(cut([x[1:]], [found.clients[0]], (4, 4)).windows) == 1
