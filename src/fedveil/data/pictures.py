"""Decoding of image files to arrays by Pillow, with limits on their size."""

import warnings
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedveil.data.dicom import grey_slice
from fedveil.errors import FieldError, require_count
from fedveil.registry import optional

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".dcm")
MODES = ("auto", "grey", "rgb")
MAX_PIXELS = 1 << 24  # 4096 x 4096

_PLAIN_MODES = {
    "1": "L",
    "L": "L",
    "LA": "L",
    "RGB": "RGB",
    "RGBA": "RGB",
}  # to grey or colours without loss
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "GIF")  # only these decoders are let near a file


def decode(
    name: str,
    source: Path | bytes,
    *,
    mode: str = "auto",
    size: tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Array:
    """Decode one image file to an array.

    Parameters
    ----------
    name : str
        Name of the file, for refusals.
    source : Path or bytes
        Path of the file, or its content.
    mode : {"auto", "grey", "rgb"}
        Mode to which the image is converted. "auto" keeps 8-bit and 16-bit grey and RGB, replaces a palette by its
        greys or colours, and refuses anything else (CMYK, floating point). An opaque alpha channel is dropped. Every
        mode refuses transparent pixels and 16-bit colours.
    size : tuple of int, optional
        (height, width) to which the image is resized: by means of pixels (box filter) if it shrinks, bilinear if it
        grows.
    max_pixels : int
        Most pixels of the image; checked in the header before decoding.

    Returns
    -------
    ndarray
        [H, W] or [H, W, 3], uint8; float32 in [0, 1] for 16-bit grey.

    Raises
    ------
    FieldError
        If the file is damaged, too large, or of another kind; the text names it.
    """
    pillow()
    is_dicom = name.lower().endswith(".dcm")
    if is_dicom:
        _pydicom()
    stream = BytesIO(source) if isinstance(source, bytes) else source
    try:
        if is_dicom:
            image = _dicom_image(name, stream, max_pixels)
        else:
            image = _plain_image(name, stream, max_pixels)
        return _pixels(name, image, mode, size)
    except FieldError:
        raise
    except Exception as error:  # decoders raise many kinds of error for damaged files
        kinds = ", ".join((*_FORMATS, "DICOM"))
        text = str(error)
        cause: Exception | None = error
        if isinstance(source, Path) and name != str(source):  # the path may contain a person's name
            text = text.replace(str(source), name)
            cause = None
        raise FieldError(
            name, type(error).__name__, f"cannot be read as {kinds}: {text}"
        ) from cause


def _pydicom() -> Any:
    return optional("pydicom", "reading DICOM needs pydicom", '"fedveil[dicom]"')


def _dicom_image(name: str, stream: Path | BytesIO, max_pixels: int) -> "Image":
    """Read the image of a DICOM file."""
    opened = _pydicom().dcmread(stream)
    image: Image = pillow().fromarray(grey_slice(name, opened, max_pixels))
    return image


def _plain_image(name: str, stream: Path | BytesIO, max_pixels: int) -> "Image":
    """Read the image of any other file, turned upright by its EXIF orientation."""
    module = pillow()
    with warnings.catch_warnings():
        warnings.simplefilter("error", module.DecompressionBombWarning)
        with module.open(stream, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                accepted = (
                    f"may hold at most {max_pixels} pixels; raise data.max_pixels if it is meant"
                )
                raise FieldError(name, f"{width} x {height}", accepted)
            if getattr(image, "n_frames", 1) != 1:
                raise FieldError(
                    name, f"{image.n_frames} frames", "must hold a single one: split it"
                )
            _refuse_unread(name, image)
            return _upright(image)


def stack(
    sources: Iterable[tuple[str, Path | bytes]],
    count: int,
    like: tuple[str, Path | bytes],
    max_bytes: float,
    **options: Any,
) -> Array:
    """Decode N images of the same size and mode to one array, [N, H, W] or [N, H, W, 3].

    Parameters
    ----------
    sources : iterable of str and (Path or bytes)
        Names and images.
    count : int
        Number of images, N.
    like : str and (Path or bytes)
        Name and image whose size and mode all others must have.
    max_bytes : float
        Most memory in bytes of all decoded images (4 bytes for each number).
    **options
        ``mode``, ``size`` and ``max_pixels`` of `decode`.

    Raises
    ------
    FieldError
        For an image of another size or mode (the text names it), or if the images exceed `max_bytes`.
    """
    first = decode(*like, **options)
    if first.size * 4 > max_bytes:
        accepted = "all images together take more memory: raise it, or shrink them by data.size"
        raise FieldError("data.max_gib", _shape(first), accepted)
    stacked = np.empty((count, *first.shape), dtype=first.dtype)
    for i, (name, content) in enumerate(sources):
        one = decode(name, content, **options)
        if one.shape != first.shape or one.dtype != first.dtype:
            has_other_size = one.shape[:2] != first.shape[:2]
            fix = "data.size = [height, width]" if has_other_size else "data.mode = 'grey' or 'rgb'"
            raise FieldError(
                name,
                _shape(one),
                f"must be like {like[0]}, {_shape(first)}; {fix} makes them equal",
            )
        stacked[i] = one
    return stacked


def size_of(size: Sequence[int]) -> tuple[int, int] | None:
    """Return (height, width) from an option ``size``; None if it is empty."""
    accepted = "must be [height, width] in pixels"
    if not isinstance(size, Sequence) or isinstance(size, str):
        raise FieldError("data.size", size, accepted)
    if not size:
        return None
    if len(size) != 2:
        raise FieldError("data.size", list(size), accepted)
    return require_count("data.size", size[0]), require_count("data.size", size[1])


def pillow() -> Any:
    """Import Pillow's Image module.

    Raises
    ------
    FedVeilError
        If it is not installed.
    """
    return optional("PIL.Image", "decoding images needs Pillow", '"fedveil[data]"')


def _shape(values: Array) -> str:
    """Describe size and mode of a decoded image."""
    height, width = values.shape[:2]
    colour = "RGB" if values.ndim == 3 else "grey"
    bits = " 16-bit" if values.dtype == np.float32 else ""
    return f"{height} x {width} {colour}{bits}"


def _upright(image: "Image") -> "Image":
    """Turn an image by its EXIF orientation, as viewers do."""
    image.load()  # Pillow turns TIFF files while it loads them, and takes the tag out
    turned: Image = optional(
        "PIL.ImageOps", "decoding images needs Pillow", '"fedveil[data]"'
    ).exif_transpose(image)
    return turned


def _refuse_unread(name: str, image: "Image") -> None:
    """Refuse images that Pillow silently reads differently from viewers.

    These are transparent colours, 16-bit colours (it reads 8 bits), grey with fewer bits, and inverted grey.
    """
    stored = str(getattr(image, "tile", ()))  # how the file's pixels are packed, as "RGB;16B"
    if not image.mode.startswith("I;16") and ";16" in stored:
        accepted = "colours of 16 bits would lose 8 of them: store them as 8 bits, or as arrays in an npz file"
        raise FieldError(name, f"{image.mode}, 16 bits", accepted)
    if image.has_transparency_data:
        opacity = np.asarray(image.convert("RGBA").getchannel("A"))
        if opacity.min() < 255:
            accepted = "hides pixels, and shows another picture on each background: put it on one (flatten it)"
            raise FieldError(name, f"{image.mode}, transparent in places", accepted)
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(258)
    photometric = tags.get(262)
    is_usual = bits in (None, (16,)) and photometric in (None, 1)
    if image.mode.startswith("I;16") and not is_usual:
        shown = f"BitsPerSample {bits}, PhotometricInterpretation {photometric}"
        raise FieldError(name, shown, "must be grey of 16 bits from black to white: convert it")


def _pixels(
    name: str,
    image: "Image",
    mode: str,
    size: tuple[int, int] | None,
) -> Array:
    """Return the pixels of an image, converted to the mode and resized."""
    deep = image.mode.startswith("I;16")
    if deep and mode == "rgb":
        raise FieldError(
            name, image.mode, "16-bit grey cannot be taken as RGB: use data.mode = 'grey'"
        )
    if image.mode in ("I", "F"):
        raise FieldError(
            name,
            image.mode,
            "32-bit pixels have no known range: store them as 8 or 16 bits, or as npz",
        )
    module = pillow()
    if deep:
        values = np.asarray(image).astype(np.float32) / np.float32(65535)
        plane = module.fromarray(values)
    else:
        plane = _converted(name, image, mode)
        values = np.asarray(plane)
    if size is None or values.shape[:2] == size:
        return values
    height, width = size
    shrinks = height <= values.shape[0] and width <= values.shape[1]
    resample = module.Resampling.BOX if shrinks else module.Resampling.BILINEAR
    return np.asarray(plane.resize((width, height), resample))


def _converted(name: str, image: "Image", mode: str) -> "Image":
    """Convert an 8-bit image to grey or RGB."""
    if mode != "auto":
        return image.convert("L" if mode == "grey" else "RGB")
    if image.mode == "P":
        colours = np.asarray(image.convert("RGB"))
        is_grey = (colours == colours[..., :1]).all()
        return image.convert("L" if is_grey else "RGB")
    if image.mode in _PLAIN_MODES:
        return image.convert(_PLAIN_MODES[image.mode])
    accepted = "must be grey or RGB; data.mode = 'grey' or 'rgb' converts it"
    raise FieldError(name, f"{image.mode} ({len(image.getbands())} channels)", accepted)
