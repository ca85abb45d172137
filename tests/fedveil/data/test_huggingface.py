"""Hugging Face data sets on disk; the package is optional, and the tests need the real one."""

import io
import sys

import numpy as np
import pytest
import torch

from fedveil.data import MissingDataError, load
from fedveil.errors import FedVeilError, FieldError


def test_without_the_package_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FedVeilError, match="pip install datasets"):
        load("huggingface", path=str(tmp_path))
    with pytest.raises(MissingDataError, match="is no folder"):
        load("huggingface", path=str(tmp_path / "nowhere"))


@pytest.fixture
def hf():
    return pytest.importorskip("datasets")


def png(level, shape=(4, 5), mode="L"):
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.fromarray(np.full(shape, level, dtype=np.uint8)).convert(mode).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def pictures(hf, levels, labels, sites=None, **options):
    columns = {"image": [png(level, **options) for level in levels], "label": labels}
    features = {"image": hf.Image(), "label": hf.ClassLabel(names=["ill", "well"])}
    if sites:
        columns["site"], features["site"] = sites, hf.Value("string")
    return hf.Dataset.from_dict(columns, features=hf.Features(features))


def test_images_of_two_splits_with_clients(tmp_path, hf):
    train = pictures(hf, [0, 51, 255], [0, 1, 0], ["b", "a", "b"])
    hf.DatasetDict({"train": train, "test": pictures(hf, [102], [1])}).save_to_disk(
        tmp_path / "set"
    )
    data = load("huggingface", path=str(tmp_path / "set"), client_column="site")
    assert data.x.shape == (3, 1, 4, 5)
    assert data.x[:, 0, 0, 0].tolist() == [0.0, pytest.approx(0.2), 1.0]
    assert (data.y.tolist(), data.test_y.tolist(), data.class_names) == (
        [0, 1, 0],
        [1],
        ("ill", "well"),
    )
    assert (data.owners, data.owner.tolist()) == (("a", "b"), [1, 0, 1])
    small = load(
        "huggingface", path=str(tmp_path / "set"), split="test", mode="rgb", size=[2, 2], absent=[0]
    )
    assert (small.x.shape, small.test_x) == ((1, 3, 2, 2), None)


def test_a_table(tmp_path, hf):
    rows = {"age": [10, 20, 30], "sex": ["f", "m", "f"], "label": [0, 1, 0], "site": [7, 7, 9]}
    hf.Dataset.from_dict(rows).save_to_disk(tmp_path / "set")
    options = {
        "path": str(tmp_path / "set"),
        "classes": 2,
        "columns": {"age": [0, 100], "sex": ["f", "m"]},
    }
    data = load("huggingface", client_column="site", **options)
    torch.testing.assert_close(data.x, torch.tensor([[0.1, 1, 0], [0.2, 0, 1], [0.3, 1, 0]]))
    assert (data.owners, data.classes) == (("7", "9"), 2)
    with pytest.raises(FieldError, match=r"raise data\.max_rows"):
        load("huggingface", max_rows=2, **options)
    with pytest.raises(FieldError, match=r"set, row 3, column age = 30\.0: is outside"):
        load("huggingface", **{**options, "columns": {"age": [0, 25]}})


def test_refusals_name_split_row_and_column(tmp_path, hf):
    def refused(name, match, dataset, **options):
        dataset.save_to_disk(tmp_path / name)
        with pytest.raises(FieldError, match=match):
            load("huggingface", path=str(tmp_path / name), **options)

    both = hf.concatenate_datasets([pictures(hf, [0], [0]), pictures(hf, [0], [1], shape=(4, 6))])
    refused("sizes", r"sizes, row 2, column image.*must be like row 1.*data\.size", both)
    refused(
        "unlabelled",
        r"unlabelled, row 2, column label is missing",
        pictures(hf, [0, 9, 9], [0, -1, 1]),
    )
    refused("gap", "no example of class 1", pictures(hf, [0, 9], [0, 0]))
    refused("target", "did you mean 'label'", pictures(hf, [0, 9], [0, 1]), target="lable")
    broken = {"bytes": b"no image", "path": None}
    features = hf.Features({"image": hf.Image(decode=False), "label": hf.Value("int64")})
    damaged = hf.Dataset.from_dict({"image": [png(0), broken], "label": [0, 1]}, features=features)
    refused("damaged", r"damaged, row 2, column image.*cannot be read", damaged, classes=2)
    lost = hf.Dataset.from_dict({"image": [png(0), None], "label": [0, 1]}, features=features)
    refused(
        "lost", "lost, row 2, column image is missing: must hold the image itself", lost, classes=2
    )
    refused(
        "split",
        "did you mean 'train'",
        hf.DatasetDict({"train": pictures(hf, [0], [0])}),
        split="trian",
    )
    refused("pixels", r"raise data\.max_pixels", pictures(hf, [0, 9], [0, 1]), max_pixels=10)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FieldError, match="is not what save_to_disk writes"):
        load("huggingface", path=str(tmp_path / "empty"))
