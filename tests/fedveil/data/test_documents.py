"""Pages with masks: folders of images and masks, DocTamper's files, and groups that are never split."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from fedveil.data import federate, load
from fedveil.data.pages import documents_of
from fedveil.data.sets import DataSet
from fedveil.errors import FedVeilError, FieldError
from fedveil.learning import build_model
from fedveil.learning.unet import _residuals


def page_and_mask(i, height=50, width=70):
    page = np.full((height, width), 200 + i, dtype=np.uint8)
    mask = np.zeros((height, width), dtype=np.uint8)
    page[10:20, 30:45], mask[10:20, 30:45] = 20, 255
    return page, mask


def encoded(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path):
    for i in range(5):
        page, mask = page_and_mask(i)
        for part, pixels in (("images", page), ("masks", mask)):
            (tmp_path / part).mkdir(exist_ok=True)
            (tmp_path / part / f"page{i}.png").write_bytes(encoded(pixels))
    return tmp_path


def test_patches_of_a_folder(folder):
    data = load("documents", path=folder, tile=32, tiles=4)
    assert (data.x.shape, data.y.shape, data.classes, data.task) == (
        (20, 1, 32, 32),
        (20, 32, 32),
        2,
        "segmentation",
    )
    assert data.group.tolist() == [i for i in range(5) for _ in range(4)]
    assert data.y[::2].flatten(1).any(1).all()  # every second patch shows what was tampered with
    assert torch.equal(data.y == 1, data.x[:, 0] < 0.2)
    assert torch.equal(load("documents", path=folder, tile=32).x, data.x)
    assert len(load("documents", path=folder, tile=32, documents=2).x) == 8


def test_a_folder_says_where_each_kind_of_what_is_sensitive_stands(folder):
    for kind, rows, pages in (("address", slice(10, 20), (0, 1)), ("total", slice(15, 30), (1, 3))):
        (folder / "sensitive" / kind).mkdir(parents=True)
        mask = np.zeros((50, 70), dtype=np.uint8)
        mask[rows] = 255
        for i in pages:
            (folder / "sensitive" / kind / f"page{i}.png").write_bytes(encoded(mask))
    data = load("documents", path=folder, tile=50, tiles=1)
    assert data.region_names == ("address", "total")
    assert [data.sensitive([kind]).any(2).sum(1).tolist() for kind in data.region_names] == [
        [10, 10, 0, 0, 0],
        [0, 15, 0, 15, 0],
    ]
    clients = federate(data, clients=5, holdout=0.0, seed=0, sensitive=[["address"]])
    assert sum(bool(c.masks.any()) for c in clients) == 2
    (folder / "sensitive" / "total" / "page3.png").write_bytes(encoded(mask[:20]))
    with pytest.raises(FieldError, match=r"page3\.png.*as large as the image"):
        load("documents", path=folder, tile=50, tiles=1)
    (folder / "sensitive" / "total" / "page9.png").write_bytes(encoded(mask))
    with pytest.raises(FieldError, match="belongs to no image"):
        load("documents", path=folder, tile=50, tiles=1)


def test_doctampers_own_files(folder, tmp_path):
    lmdb = pytest.importorskip("lmdb")
    for half in ("train", "test"):
        with (
            lmdb.open(str(tmp_path / half), map_size=1 << 22) as store,
            store.begin(write=True) as transaction,
        ):
            transaction.put(b"num-samples", b"5")
            for i in range(5):
                page, mask = page_and_mask(i)
                transaction.put(b"image-%09d" % i, encoded(page))
                transaction.put(b"label-%09d" % i, encoded(mask))
    stored = load("documents", path=tmp_path, tile=32)
    assert torch.equal(stored.x, load("documents", path=folder / "train", tile=32).x)
    assert torch.equal(stored.x, stored.test_x)
    (folder / "test" / "data.mdb").unlink()
    (folder / "test" / "lock.mdb").unlink()
    with pytest.raises(FieldError, match="images and masks"):
        load("documents", path=tmp_path, tile=32)


def test_masks_of_what_is_sensitive_beside_doctampers_file_are_not_passed_over(tmp_path):
    (tmp_path / "data.mdb").write_bytes(b"")
    (tmp_path / "sensitive" / "total").mkdir(parents=True)
    with pytest.raises(FieldError, match="whose pages have no names"):
        load("documents", path=tmp_path)


CORNERS = [30, 10, 44, 10, 44, 19, 30, 19]  # of what `page_and_mask` forges, the edge included


@pytest.fixture
def tsroie(tmp_path):
    """Two receipts a half, one of them forged, with the JSON file beside each half."""
    for half in ("train", "test"):
        (tmp_path / half).mkdir()
        names, marks = [f"X5100{i}.png" for i in range(2)], []
        for i, name in enumerate(names):
            (tmp_path / half / name).write_bytes(encoded(page_and_mask(i)[0]))
            marks.append(
                {
                    "image_id": i + 7,
                    "category_id": 1,
                    "segmentation": [[0, 30, 20, 30, 20, 40, 0, 40]],
                }
            )
        marks.append({"image_id": 8, "category_id": 2, "segmentation": CORNERS})
        content = {
            "images": [{"id": i + 7, "file_name": n} for i, n in enumerate(names)],
            "annotations": marks,
        }
        (tmp_path / f"sroie_{half}_1011.json").write_text(json.dumps(content))
    return tmp_path


def rewritten(folder, change):
    file = folder / "sroie_train_1011.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


FORMS = {
    "eight numbers": CORNERS,
    "an outline in a list": [CORNERS],
    "pairs": [CORNERS[i : i + 2] for i in range(0, 8, 2)],
    "floats": [[float(v) + 0.4 for v in CORNERS]],
    "two outlines": [[30, 10, 36, 10, 36, 19, 30, 19], [36, 10, 44, 10, 44, 14, 44, 19, 36, 19]],
}


@pytest.mark.parametrize("form", FORMS)
def test_t_sroies_own_files(tsroie, form):
    rewritten(tsroie, lambda content: content["annotations"][-1].update(segmentation=FORMS[form]))
    data = load("documents", path=tsroie, tile=50, tiles=2)
    assert (len(data.x), len(data.test_x), data.group.tolist()) == (4, 4, [0, 0, 1, 1])
    assert not data.y[:2].any()  # a genuine page, its word outlined or not
    assert torch.equal(data.y[2:] == 1, data.x[2:, 0] < 0.2)
    assert data.y[2].any()
    (tsroie / "train" / "sensitive" / "total").mkdir(parents=True)
    (tsroie / "train" / "sensitive" / "total" / "X51001.png").write_bytes(
        encoded(page_and_mask(1)[1])
    )
    marked = load("documents", path=tsroie, tile=50, tiles=2)
    assert torch.equal(marked.sensitive(["total"]), marked.y == 1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda c: c["images"].append({"id": 9, "file_name": "X51009.png"}),
            r"X51009\.png.*is missing",
        ),
        (lambda c: c["images"].append(c["images"][0]), "twice"),
        (lambda c: c["annotations"].pop(), "outlines nothing of category_id 2"),
        (lambda c: c["annotations"][-1].update(image_id=99), "99 is missing"),
        (lambda c: c["annotations"][-1].update(segmentation=CORNERS[:7]), "cannot be read"),
        (lambda c: c["annotations"][-1].update(segmentation=CORNERS[:4]), "fewer than 3 corners"),
        (lambda c: c["annotations"][-1].update(segmentation=[]), "cannot be read"),
        (
            lambda c: c["annotations"][-1].update(segmentation={"counts": "x", "size": [50, 70]}),
            "cannot be read",
        ),
        (
            lambda c: c["annotations"][-1].update(segmentation=[v + 60 for v in CORNERS]),
            "outside the image, 70 x 50",
        ),
        (lambda c: c.pop("annotations"), "'annotations' is missing"),
    ],
)
def test_files_that_are_not_t_sroies_are_refused(tsroie, change, told):
    rewritten(tsroie, change)
    with pytest.raises(FieldError, match=told):
        load("documents", path=tsroie, tile=50)


def test_which_file_outlines_a_folder_is_never_guessed(tsroie):
    (tsroie / "latest.json").write_text("{}")  # has no word "test"
    load("documents", path=tsroie, tile=50)
    (tsroie / "train-2.json").write_text("{}")
    with pytest.raises(FieldError, match="leave one"):
        load("documents", path=tsroie, tile=50)
    with pytest.raises(FieldError, match=r"data\.max_pixels"):
        load("documents", path=tsroie / "test", max_pixels=0)


def test_refusals(folder):
    with pytest.raises(FieldError, match=r"page0\.png has: 50 x 70"):
        load("documents", path=folder, tile=64)
    with pytest.raises(FieldError, match="documents"):
        load("documents", path=folder, documents=6)
    with pytest.raises(FieldError, match=r"50.*at most 3499 pixels; raise data\.max_pixels"):
        load("documents", path=folder, tile=32, max_pixels=50 * 70 - 1)
    (folder / "masks" / "page3.png").write_bytes(encoded(page_and_mask(3, width=71)[1]))
    with pytest.raises(FedVeilError, match=r"page3\.png"):
        load("documents", path=folder, tile=32)
    (folder / "masks" / "page3.png").unlink()
    with pytest.raises(FieldError, match=r"masks/page3\.png is missing"):
        load("documents", path=folder, tile=32)


@pytest.mark.parametrize("scheme", ["iid", "quantity", "natural"])
def test_groups_are_never_split(scheme):
    group = torch.tensor([2, 0, 2, 1, 1, 0, 3, 4, 4, 5] * 3)
    x = torch.stack([group.float(), torch.arange(30.0)], 1)
    y = torch.zeros(30, 4, 4, dtype=torch.int64)
    data = DataSet(
        name="d",
        x=x,
        y=y,
        classes=2,
        group=group,
        owner=(group > 2).long() if scheme == "natural" else None,
        owners=("a", "b"),
    )
    options = {"quantity": {"alpha": 1.0}}.get(scheme, {})
    clients = federate(
        data, clients="natural" if scheme == "natural" else 2, scheme=scheme, seed=1, **options
    )
    parts = [part[:, 0].unique().tolist() for c in clients for part in (c.x, c.test_x)]
    assert sorted(g for part in parts for g in part) == [0, 1, 2, 3, 4, 5]
    rows = torch.cat([part[:, 1] for c in clients for part in (c.x, c.test_x)])
    assert sorted(rows.tolist()) == list(range(30))
    if scheme == "iid":
        labelled = replace(data, y=torch.zeros(30, dtype=torch.int64))
        with pytest.raises(FieldError, match="groups"):
            federate(labelled, clients=2, scheme="counts", seed=1, counts=[[1], [1]])


def test_unet_scores_every_pixel():
    model = build_model(
        "unet", input_shape=(1, 16, 24), outputs=2, seed=0, widths=[4, 8], activation="gelu"
    )
    x = torch.rand(3, 1, 16, 24, generator=torch.Generator().manual_seed(0))
    scores = model(x)
    assert scores.shape == (3, 2, 16, 24)
    moved = x.clone()
    moved[1, 0, 3, 5] += 1
    changed = (model(moved) - scores).abs().amax((1, 2, 3)) > 0
    assert changed.tolist() == [False, True, False]  # no statistics across images
    folded = {"widths": [4, 8], "patch": 2}
    assert build_model("unet", input_shape=(1, 16, 24), outputs=2, seed=0, **folded)(x).shape == (
        3,
        2,
        16,
        24,
    )
    odd = [((1, 15, 24), {}), ((1, 16, 24), {"widths": [3]}), ((16,), {}), ((1, 16, 22), folded)]
    for shape, options in odd:
        with pytest.raises(FieldError):
            build_model("unet", input_shape=shape, outputs=2, seed=0, **options)


def test_unet_sees_residuals_of_the_image_beside_it():
    # an impulse of 0.01 at (8, 8): each filter, scaled to -1 in its middle, gives its own values around it
    x = torch.full((1, 2, 16, 16), 0.5)
    x[0, 1, 8, 8] += 0.01
    found = _residuals(x)
    assert found.shape == (1, 8, 16, 16)
    assert float(found[0, :4].abs().max()) < 1e-4  # nothing but light paper in the first channel
    middle = -3 * math.tanh(20 * 0.01 / 3)
    assert found[0, 4:, 8, 8].tolist() == pytest.approx([middle] * 4, rel=1e-3)
    beside = [1 / 2, 0, 2 / 4, 8 / 12]  # one column to the right, over the middle
    assert found[0, 4:, 8, 9].tolist() == pytest.approx(
        [3 * math.tanh(20 * 0.01 * b / 3) for b in beside], abs=1e-4
    )
    told = {"input_shape": (1, 16, 24), "outputs": 2, "seed": 0, "widths": [4, 8], "mean": 0.5}
    plain, more = build_model("unet", **told), build_model("unet", **told, residuals=True)
    assert more.down[0][0].weight.shape[1] == 5 * plain.down[0][0].weight.shape[1]
    assert more(torch.rand(2, 1, 16, 24)).shape == (2, 2, 16, 24)


def test_a_kind_that_is_sensitive_may_be_boxes(folder):
    (folder / "sensitive" / "address").mkdir(parents=True)
    mask = np.zeros((50, 70), dtype=np.uint8)
    mask[5:9, 10:30] = 255
    (folder / "sensitive" / "address" / "page1.png").write_bytes(encoded(mask))
    (folder / "sensitive" / "total.json").write_text(
        json.dumps({"page1.png": [[10, 5, 30, 9], [2, 40, 4, 41, "x"]]})
    )
    data = load("documents", path=folder, tile=50, tiles=1)
    found = {
        name: (data.regions >> j & 1).sum(dim=(1, 2)) for j, name in enumerate(data.region_names)
    }
    assert set(found) == {"address", "total"}
    assert found["address"].tolist()[0] == found["total"].tolist()[0] == 0
    both = next(document for document in documents_of(folder) if document.name == "page1.png").bits(
        (50, 70), 10**6
    )
    assert np.array_equal(both[5:9, 10:30] & 3, np.full((4, 20), 3))
    assert (both >> 1 & 1).sum() == 4 * 20 + 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"page9.png": [[1, 1, 2, 2]]}', "page9"),
        ('{"page1.png": [[80, 45, 90, 60]]}', "outside"),
        ('{"page1.png": [[9, 9, 3, 9]]}', "empty"),
        ('{"page1.png": [[1, 2, 3]]}', "left, top"),
        ("[1]", "left, top"),
        ("{", "left, top"),
    ],
)
def test_boxes_that_cannot_be_are_refused(folder, text, said):
    (folder / "sensitive").mkdir()
    (folder / "sensitive" / "total.json").write_text(text)
    with pytest.raises(FedVeilError, match=said):
        load("documents", path=folder, tile=32)
