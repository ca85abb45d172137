"""Pictures are what a viewer shows, or are refused by their file's name."""

import struct
import zlib
from io import BytesIO

import numpy as np
import pytest

from fedveil.data import load
from fedveil.data.pictures import decode
from fedveil.errors import FieldError

image = pytest.importorskip("PIL.Image")
ops = pytest.importorskip("PIL.ImageOps")

RAMP = (np.arange(12, dtype=np.uint8) * 20).reshape(3, 4)
DEEP = (np.arange(12, dtype=np.uint16) * 5000).reshape(3, 4)
COLOURS = np.stack([RAMP, RAMP[::-1], 255 - RAMP], axis=2)


def stored(picture, suffix="png", **options):
    content = BytesIO()
    picture.save(content, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix), **options)
    return content.getvalue()


def shown(content, suffix="png", **options):
    return decode(f"a.{suffix}", content, **options)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_their_orientation_says(suffix, orientation):
    tags = image.Exif()
    tags[0x0112] = orientation
    content = stored(image.fromarray(RAMP), suffix, exif=tags)
    with image.open(BytesIO(content)) as opened:
        opened.load()
        wanted = np.asarray(ops.exif_transpose(opened))
    found = shown(content, suffix)
    np.testing.assert_array_equal(found, wanted)
    assert found.shape == ((4, 3) if orientation > 4 else (3, 4))
    assert shown(content, suffix, size=(2, 2)).shape == (2, 2)


def test_sixteen_bits_one_bit_and_palettes():
    np.testing.assert_allclose(shown(stored(image.fromarray(DEEP))), DEEP / 65535, rtol=1e-6)
    np.testing.assert_allclose(
        shown(stored(image.fromarray(DEEP), "tif"), "tif"), DEEP / 65535, rtol=1e-6
    )
    swapped = image.frombytes("I;16B", (4, 3), DEEP.astype(">u2").tobytes())
    np.testing.assert_allclose(shown(stored(swapped, "tif"), "tif"), DEEP / 65535, rtol=1e-6)
    for suffix in ("png", "tif", "bmp"):
        bits = shown(stored(image.fromarray(RAMP > 100), suffix), suffix)
        np.testing.assert_array_equal(bits, np.where(RAMP > 100, 255, 0))
    grey = image.fromarray(RAMP).convert("P")
    np.testing.assert_array_equal(shown(stored(grey)), RAMP)
    assert shown(stored(image.fromarray(COLOURS).quantize(12))).shape == (3, 4, 3)


def test_white_may_be_the_lowest_number():
    content = stored(image.fromarray(255 - RAMP), "tif", tiffinfo={262: 0})
    with image.open(BytesIO(content)) as opened:
        np.testing.assert_array_equal(shown(content, "tif"), np.asarray(opened))


ALPHA = np.dstack([COLOURS, np.full((3, 4), 100, np.uint8)])


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        (stored(image.fromarray(ALPHA)), "png"),
        (stored(image.fromarray(np.ascontiguousarray(ALPHA[..., 2:]), "LA")), "png"),
        (stored(image.fromarray(RAMP).convert("P"), transparency=0), "png"),
        (stored(image.fromarray(RAMP), transparency=0), "png"),
        (stored(image.fromarray(COLOURS), transparency=(0, 160, 255)), "png"),
        (stored(image.fromarray(COLOURS).convert("CMYK"), "jpg"), "jpg"),
        (stored(image.fromarray(DEEP), "tif", tiffinfo={262: 0}), "tif"),
        (stored(image.fromarray(RAMP.astype(np.int32)), "tif"), "tif"),
        (stored(image.fromarray(RAMP.astype(np.float32)), "tif"), "tif"),
    ],
)
def test_what_is_neither_grey_nor_rgb_is_refused_by_its_name(content, suffix):
    with pytest.raises(FieldError) as refused:
        shown(content, suffix)
    assert refused.value.field == f"a.{suffix}"


def test_frames_and_damage_are_refused():
    frames = [image.fromarray(RAMP), image.fromarray(RAMP[::-1])]
    for suffix in ("gif", "tif", "png"):
        moving = stored(frames[0], suffix, save_all=True, append_images=frames[1:])
        with pytest.raises(FieldError, match="2 frames"):
            shown(moving, suffix)
    noise = image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8))
    for suffix in ("png", "jpg", "bmp", "gif", "tif"):
        whole = stored(noise, suffix)
        with pytest.raises(FieldError, match="cannot be read"):
            shown(whole[: len(whole) * 2 // 3], suffix)


@pytest.mark.parametrize(
    "other",
    [RAMP[:, :3], DEEP, COLOURS],
    ids=["another size", "sixteen bits beside eight", "colours beside grey"],
)
def test_a_folder_of_different_pictures_is_refused_by_the_first_that_differs(tmp_path, other):
    for label, picture in (("a", RAMP), ("b", other)):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(
            stored(image.fromarray(np.ascontiguousarray(picture)))
        )
    with pytest.raises(FieldError, match=r"1\.png"):
        load("folder", path=str(tmp_path))


OPAQUE = np.dstack([COLOURS, np.full((3, 4), 255, np.uint8)])


@pytest.mark.parametrize("mode", ["auto", "rgb"])
def test_an_opaque_alpha_channel_is_dropped(mode):
    np.testing.assert_array_equal(shown(stored(image.fromarray(OPAQUE)), mode=mode), COLOURS)
    grey = image.fromarray(np.ascontiguousarray(np.dstack([RAMP, OPAQUE[..., 3]])), "LA")
    found = shown(stored(grey), mode=mode)
    np.testing.assert_array_equal(found if mode == "auto" else found[..., 0], RAMP)


@pytest.mark.parametrize("mode", ["auto", "grey", "rgb"])
@pytest.mark.parametrize("kind", ["alpha", "grey and alpha", "palette", "colour"])
def test_what_is_transparent_in_places_is_refused_in_each_mode(kind, mode):
    hidden = OPAQUE.copy()
    hidden[0, 0, 3] = 254
    content = {
        "alpha": stored(image.fromarray(hidden)),
        "grey and alpha": stored(image.fromarray(np.ascontiguousarray(hidden[..., 2:]), "LA")),
        "palette": stored(image.fromarray(RAMP).convert("P"), transparency=0),
        "colour": stored(image.fromarray(COLOURS), transparency=tuple(map(int, COLOURS[0, 0]))),
    }[kind]
    with pytest.raises(FieldError) as refused:
        shown(content, mode=mode)
    assert refused.value.field == "a.png"


def png(width, depth, colour, rows):
    """A PNG file written by hand: Pillow writes no colours of 16 bits."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0))]
    parts += [
        (b"IDAT", zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows))),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("mode", ["auto", "grey", "rgb"])
@pytest.mark.parametrize(
    ("colour", "channels"), [(2, 3), (6, 4), (4, 2)], ids=["RGB", "RGBA", "grey and alpha"]
)
def test_colours_of_sixteen_bits_are_refused(colour, channels, mode):
    rows = np.full((3, 4, channels), 65535, np.uint16)
    rows[..., 0] = DEEP
    with pytest.raises(FieldError) as refused:
        shown(png(4, 16, colour, rows), mode=mode)
    assert refused.value.field == "a.png"


DIM = (np.arange(12, dtype=np.uint16) * 100).reshape(3, 4)


def test_sixteen_bits_of_grey_are_read_and_twelve_of_them_are_said(tmp_path):
    np.testing.assert_allclose(shown(png(4, 16, 0, DEEP)), DEEP / 65535, rtol=1e-6)
    for label, scale in (("a", 1), ("b", 2)):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(png(4, 16, 0, DIM * np.uint16(scale)))
    assert "2200 of 65535" in load("folder", path=str(tmp_path)).note
    (tmp_path / "b" / "1.png").write_bytes(png(4, 16, 0, DEEP))
    assert "65535" not in load("folder", path=str(tmp_path)).note
