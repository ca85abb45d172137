"""Folders of images: what is loaded, and what is refused by the name of the file."""

import struct
import zlib

import numpy as np
import pytest
import torch

from fedveil.data import MissingDataError, federate, load
from fedveil.errors import FieldError
from fedveil_lab.config.first import first_config

image = pytest.importorskip("PIL.Image")


def save(path, level=100, shape=(6, 8), mode="L", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    full = (*shape, len(mode)) if mode in ("RGB", "RGBA") else shape
    image.fromarray(np.full(full, level, dtype=np.uint8)).save(path, **options)
    return path


@pytest.fixture
def pets(tmp_path):
    for label, level in (("cat", 0), ("dog", 255)):
        for i, suffix in enumerate(("png", "jpg", "bmp", "tif", "gif")):
            save(tmp_path / "pets" / label / f"{i}.{suffix}", level)
    (tmp_path / "pets" / "cat" / ".hidden").touch()
    (tmp_path / "pets" / "cat" / "Thumbs.db").touch()
    return tmp_path / "pets"


def test_a_folder_a_class_in_the_order_of_the_names(pets):
    data = load("folder", path=str(pets))
    assert data.x.shape == (10, 1, 6, 8)
    assert data.y.tolist() == [0] * 5 + [1] * 5
    assert data.x[:, 0, 3, 3].tolist() == [0.0] * 5 + [1.0] * 5
    assert (data.class_names, data.test_x, data.owner) == (("cat", "dog"), None, None)
    turned = load("folder", path=pets, classes=["dog", "cat"])
    assert turned.y.tolist() == [1] * 5 + [0] * 5


def test_train_and_test_and_colour(tmp_path):
    for half in ("train", "test"):
        for label in ("a", "b"):
            save(tmp_path / half / label / "0.png", 51, mode="RGB")
    data = load("folder", path=tmp_path)
    assert data.x.shape == data.test_x.shape == (2, 3, 6, 8)
    assert data.x.unique().tolist() == [pytest.approx(0.2)]
    assert load("folder", path=tmp_path, mode="grey").input_shape == (1, 6, 8)


def test_clients_are_folders_too(tmp_path):
    for client, labels in (("north", "ab"), ("south", "a")):
        for label in labels:
            save(tmp_path / client / label / "0.png")
            save(tmp_path / client / label / "1.png")
    (tmp_path / "east" / "a").mkdir(parents=True)
    data = load("folder", path=tmp_path, layout="clients")
    assert data.owners == ("north", "south")
    assert "Clients without an image, left out: east." in data.note
    assert data.owner.tolist() == [0, 0, 0, 0, 1, 1]
    clients = federate(data, clients="natural", seed=0, holdout=0.0)
    assert [(c.name, c.examples) for c in clients] == [("north", 4), ("south", 2)]


def test_sixteen_bits_and_other_sizes(tmp_path):
    (tmp_path / "a").mkdir()
    for name, shape in (("0.png", (4, 4)), ("1.png", (8, 8))):
        image.fromarray(np.full(shape, 13107, dtype=np.uint16)).save(tmp_path / "a" / name)
    with pytest.raises(
        FieldError, match=r"1\.png = '8 x 8 grey 16-bit': must be like a/0\.png, 4 x 4.*data\.size"
    ):
        load("folder", path=tmp_path)
    data = load("folder", path=tmp_path, size=[2, 3])
    assert data.x.shape == (2, 1, 2, 3)
    torch.testing.assert_close(data.x, torch.full_like(data.x, 0.2))


def chunk(kind, content):
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def bomb(path):
    """A PNG whose header declares 60,000 x 60,000 pixels and whose data would unpack to more than it should."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    content = zlib.compress(b"\0" * 100_000)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", content)
        + chunk(b"IEND", b"")
    )


def disguised(path):
    path.write_bytes(b"P5 2 2 255\n\0\0\0\0")  # a decoder that is not let near


def frames(path):
    image.new("L", (8, 6)).save(path, save_all=True, append_images=[image.new("L", (8, 6), 255)])


def truncated(path):
    noise = np.random.default_rng(0).integers(0, 255, (60, 80), dtype=np.uint8)
    image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:800])


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        (
            "9.png",
            lambda p: p.write_bytes(b"no image"),
            r"dog/9\.png = 'UnidentifiedImageError': cannot be read",
        ),
        ("9.png", truncated, r"dog/9\.png.*cannot be read"),
        ("9.png", bomb, r"dog/9\.png = .*(60000 x 60000|Bomb)"),
        ("9.png", disguised, r"dog/9\.png.*cannot be read"),
        ("9.png", lambda p: p.touch(), r"dog/9\.png.*cannot be read"),
        ("9.gif", frames, r"dog/9\.gif = '2 frames': must hold a single one"),
        ("9.png", lambda p: save(p, shape=(6, 9)), r"dog/9\.png = '6 x 9 grey'.*data\.size"),
        ("9.png", lambda p: save(p, mode="RGB"), r"dog/9\.png = '6 x 8 RGB'.*data\.mode"),
        ("9.png", lambda p: save(p, mode="RGBA"), r"dog/9\.png = 'RGBA, transparent in places'"),
        ("9.txt", lambda p: p.write_text("a note"), r"dog/9\.txt = '\.txt': is no image"),
        ("deep", lambda p: p.mkdir(), r"dog/deep'?: is a folder.*layout = \"clients\""),
        ("../loose.png", save, r"pets'?: holds loose\.png.*<class>/<image>"),
        ("../hen", lambda p: p.mkdir(), r"pets/hen = 'no image': is empty"),
    ],
)
def test_refusals_name_the_file(pets, name, make, message):
    make(pets / "dog" / name)
    with pytest.raises(FieldError, match=message):
        load("folder", path=pets)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"classes": ["cat", "dogs"]},
            r"class folder = 'dog': is not in data\.classes; did you mean 'dogs'",
        ),
        ({"classes": ["cat", "dog", "hen"]}, r"data\.classes = 'hen': has no image"),
        ({"classes": ["cat", "dog", "dog"]}, "must name each class once"),
        ({"absent": ["hen"]}, r"list all of them in data\.classes"),
        (
            {"max_pixels": 40},
            r"cat/0\.png = '8 x 6': may hold at most 40 pixels; raise data\.max_pixels",
        ),
        ({"max_images": 4}, r"raise data\.max_images"),
        ({"max_gib": 1e-7}, r"raise it, or shrink them by data\.size"),
        ({"size": [3]}, r"data\.size = \[3\]: must be \[height, width\]"),
        ({"size": 3}, r"data\.size = 3: must be \[height, width\]"),
        ({"mode": "gray"}, "did you mean 'grey'"),
        ({"layout": "clients"}, "<client>/<class>/<image>"),
    ],
)
def test_options_that_do_not_fit(pets, options, message):
    with pytest.raises(FieldError, match=message):
        load("folder", path=pets, **options)
    allowed = load("folder", path=pets, classes=["cat", "dog", "hen"], absent=["hen"])
    assert allowed.classes == 3


def test_folders_that_are_none(tmp_path):
    with pytest.raises(MissingDataError, match="is no folder"):
        load("folder", path=tmp_path / "nowhere")
    with pytest.raises(FieldError, match="<class>/<image>"):
        load("folder", path=tmp_path)
    save(tmp_path / "test" / "a" / "0.png")
    with pytest.raises(FieldError, match="holds test but no train"):
        load("folder", path=tmp_path)
    save(tmp_path / "train" / "a" / "0.png")
    save(tmp_path / "val" / "a" / "0.png")
    with pytest.raises(FieldError, match="holds val beside train"):
        load("folder", path=tmp_path)


@pytest.mark.parametrize(
    ("one", "other"), [("Cat", "cat"), ("cat", "cat "), ("no_tumor", "no-tumor"), ("1", "01")]
)
def test_a_class_that_is_spelt_twice_is_refused_until_both_are_declared(tmp_path, one, other):
    for label in (one, other, "dog"):
        save(tmp_path / label / "0.png")
    with pytest.raises(FieldError, match="class folder"):
        load("folder", path=tmp_path)
    assert load("folder", path=tmp_path, classes=[one, other, "dog"]).classes == 3


def test_a_single_class_is_no_first_experiment(tmp_path):
    for i in range(3):
        save(tmp_path / "cat" / f"{i}.png")
    with pytest.raises(FieldError, match="cat"):
        first_config("mine", str(tmp_path), 2, "client")
