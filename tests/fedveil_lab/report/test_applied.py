"""One's own scans: forged for training, and what a model finds on them."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image, ImageDraw, ImageFont

from fedveil.cli import app
from fedveil.data.pages import grey_pages
from fedveil.data.tamper import forge_pages, text_boxes
from fedveil.errors import FedVeilError, FieldError
from fedveil_lab.config import parse
from fedveil_lab.report.applied import LEAST, findings
from fedveil_lab.runs import run

LINES = [(20, "TOTAL 12.50"), (52, "DATE 03.04.2026"), (84, "CASH 20.00")]


def page(name, folder):
    image = Image.new("L", (160, 128), 245)
    pen = ImageDraw.Draw(image)
    for top, text in LINES:
        pen.text((12, top), text, fill=20, font=ImageFont.load_default(size=14))
    image.save(folder / name)


@pytest.fixture
def scans(tmp_path):
    folder = tmp_path / "scans"
    folder.mkdir()
    for i in range(6):
        page(f"p{i}.png", folder)
    return folder


def test_words_are_found_where_they_stand(scans):
    boxes = text_boxes(np.asarray(Image.open(scans / "p0.png")))
    for top, _ in LINES:
        own = [box for box in boxes if top - 2 <= box.top and box.bottom <= top + 22]
        assert 1 <= len(own) <= 3
        assert min(box.left for box in own) in range(8, 16)
    assert len(boxes) == sum(box.top >= 18 for box in boxes) <= 8
    assert text_boxes(np.full((128, 160), 245, dtype=np.uint8)) == []


def test_a_page_of_16_bits_is_read_as_it_looks(scans):
    deep = np.asarray(Image.open(scans / "p0.png")).astype(np.uint16) * 257
    Image.fromarray(deep).save(scans / "deep.png")
    pages = dict(grey_pages(scans, 1 << 20))
    np.testing.assert_array_equal(pages["deep.png"], pages["p0.png"])


def test_pages_change_inside_their_masks_alone(scans, tmp_path):
    done = forge_pages(scans, tmp_path / "out", words=2, seed=1)
    assert done == {f"p{i}.png": 2 for i in range(6)}
    changed = 0
    for i in range(6):
        before, after, mask = (
            np.asarray(Image.open(folder / f"p{i}.png"))
            for folder in (scans, tmp_path / "out/images", tmp_path / "out/masks")
        )
        assert np.array_equal(before[mask == 0], after[mask == 0])
        changed += int((before != after).sum())
    assert changed > 500
    again = tmp_path / "again"
    forge_pages(scans, again, words=2, seed=1)
    for file in again.rglob("*.png"):
        assert file.read_bytes() == (tmp_path / "out" / file.relative_to(again)).read_bytes()


def test_boxes_say_where_text_stands(scans, tmp_path):
    (scans / "boxes.json").write_text(
        json.dumps({f"p{i}.png": [[12, 20, 110, 38, "TOTAL 12.50"]] for i in range(6)})
    )
    forge_pages(scans, tmp_path / "out", kinds=["retype"])
    mask = np.asarray(Image.open(tmp_path / "out/masks/p3.png"))
    assert mask[20:38, 12:110].any()
    mask = mask.copy()
    mask[20:38, 12:110] = 0
    assert not mask.any()


def test_pages_that_cannot_be_forged_are_refused_by_name(scans, tmp_path):
    Image.new("L", (160, 128), 245).save(scans / "bare.png")
    with pytest.raises(FieldError, match="bare"):
        forge_pages(scans, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (scans / "bare.png").unlink()
    (scans / "boxes.json").write_text('{"other.png": [[1, 1, 20, 20]]}')
    with pytest.raises(FieldError, match="other"):
        forge_pages(scans, tmp_path / "out")
    with pytest.raises(FedVeilError, match="nowhere"):
        forge_pages(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(FieldError, match="kinds"):
        forge_pages(scans, tmp_path / "out", kinds=["blur"])


def config(folder, **privacy):
    model = {"name": "unet", "widths": [4, 8], "mean": 0.9, "deviation": 0.3, "activation": "gelu"}
    return parse(
        {
            "name": "mine",
            "rounds": 12,
            "data": {
                "name": "documents",
                "path": str(folder),
                "tile": 32,
                "tiles": 8,
                "clients": 2,
            },
            "model": model,
            "local": {
                "lr": 0.01,
                "optimizer": "adam",
                "loss": "dice",
                "epochs": 3,
                "batch_size": 8,
            },
            "privacy": {"method": "vanilla", **privacy},
        }
    )


@pytest.mark.slow
def test_a_model_that_learned_from_them_is_shown_other_scans(scans, tmp_path):
    forged, out = tmp_path / "forged", tmp_path / "found"
    forge_pages(scans, forged, words=2, kinds=["erase"])
    run(config(forged), tmp_path / "run")
    result = CliRunner().invoke(
        app, ["apply", str(tmp_path / "run"), str(forged / "images"), "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    boxes = json.loads((out / "found.json").read_text())
    assert sorted(boxes) == [f"p{i}.png" for i in range(6)]
    inside = outside = 0.0
    for found in findings(tmp_path / "run", forged / "images"):
        truth = np.asarray(Image.open(forged / "masks" / found.name)) > 0
        assert found.score.shape == truth.shape
        inside, outside = inside + found.score[truth].mean(), outside + found.score[~truth].mean()
        mask = np.asarray(Image.open(out / found.name.replace(".png", "-mask.png"))) > 0
        assert np.array_equal(mask, found.score >= 0.5)
        for left, top, right, bottom, mean in boxes[found.name]:
            assert mask[top:bottom, left:right].sum() >= LEAST
            assert 0.5 <= mean <= 1
    assert inside > outside + 0.6
    again = CliRunner().invoke(
        app, ["apply", str(tmp_path / "run"), str(scans / "p0.png"), "--out", str(out)]
    )
    assert again.exit_code == 2
    with pytest.raises(FieldError, match="threshold"):
        list(findings(tmp_path / "run", scans, 1.0))


def test_a_run_of_another_kind_is_refused(tmp_path):
    from fedveil_lab.config import load

    run(load("digits-record", ["rounds=1", "privacy.rounds=1"]), tmp_path / "run")
    with pytest.raises(FedVeilError):
        list(findings(tmp_path / "run", tmp_path))
