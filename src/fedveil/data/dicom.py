"""Decoding of one grey image in a DICOM file, as a viewer shows it.

Only the header's tags about storage and display of pixels are used.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import FieldError

Array = NDArray[Any]

_CONVERT = "convert it to grey (MONOCHROME2)"


def grey_slice(name: str, opened: Any, max_pixels: int) -> Array:
    """Read the image as it is displayed: [H, W], uint16, 0 is black.

    First comes the modality's transform (slope and intercept, or a table), then the file's display table (VOI LUT) or
    its first window. If the file has neither table nor window, values are scaled from the lowest to the highest
    possible value.

    Parameters
    ----------
    name : str
        Name of the file, for refusals.
    opened : pydicom.Dataset
        Opened file.
    max_pixels : int
        Most pixels that the image may have.

    Raises
    ------
    FieldError
        For a tag that is missing or unusable; the text names it.
    """
    from pydicom.pixels.processing import apply_voi

    photometric = _needed(name, opened, "PhotometricInterpretation")
    _require_one_image(name, opened, max_pixels)
    is_inverted = photometric == "MONOCHROME1"
    if photometric not in ("MONOCHROME1", "MONOCHROME2"):
        colours = ", whose numbers stand for colours" if photometric == "PALETTE COLOR" else ""
        raise FieldError(name, f"PhotometricInterpretation {photometric}{colours}", _CONVERT)
    usual = "INVERSE" if is_inverted else "IDENTITY"
    shown_as = _first(opened, "PresentationLUTShape")
    if shown_as not in (None, usual):
        raise FieldError(
            name, f"PresentationLUTShape {shown_as}", f"contradicts {photometric}: {_CONVERT}"
        )
    values, low, high = _modality(name, opened, _stored(name, opened))
    if _first(opened, "VOILUTSequence") is not None:
        most = _largest_in(opened.VOILUTSequence)
        shown = apply_voi(np.round(values).astype(np.int32), opened) / most
    else:
        window = _window(name, opened)
        shown = (values - low) / (high - low) if window is None else _windowed(values, *window)
    shown = np.clip(shown, 0, 1)
    if is_inverted:
        shown = 1 - shown
    deep: Array = np.round(65535 * shown).astype(np.uint16)
    return deep


def _require_one_image(name: str, opened: Any, max_pixels: int) -> None:
    """Refuse several frames, colours, and more pixels than allowed."""
    rows = int(_needed(name, opened, "Rows"))
    columns = int(_needed(name, opened, "Columns"))
    frames = int(_first(opened, "NumberOfFrames") or 1)
    samples = int(_needed(name, opened, "SamplesPerPixel"))
    if rows * columns > max_pixels or frames != 1 or samples != 1:
        accepted = (
            f"must be one grey image of at most {max_pixels} pixels; data.max_pixels, or convert it"
        )
        raise FieldError(name, f"{rows} x {columns} x {frames} x {samples}", accepted)


def _largest_in(tables: Any) -> int:
    """Return the largest number that a look-up table holds."""
    depth = int(tables[0].LUTDescriptor[2])
    return (1 << depth) - 1


def _first(opened: Any, tag: str) -> Any:
    """Return the first value of a tag; None if it is missing or empty (as old scanners write it)."""
    value = opened.get(tag)
    if value is None or (hasattr(value, "__len__") and not len(value)):
        return None
    several = hasattr(value, "__getitem__") and not isinstance(value, str | bytes)
    return value[0] if several else value


def _needed(name: str, opened: Any, tag: str) -> Any:
    """Return the value of a tag that must be there."""
    value = _first(opened, tag)
    if value is None:
        raise FieldError(
            f"{name}: {tag}", None, "says how pixels are stored or shown: fill the tag in"
        )
    return value


def _number(name: str, opened: Any, tag: str) -> float | None:
    """Return a tag's value as a finite number; None if it is missing."""
    value = _first(opened, tag)
    if value is None:
        return None
    if not np.isfinite(float(value)):
        raise FieldError(name, f"{tag} = {value}", "must be a finite number")
    return float(value)


def _stored(name: str, opened: Any) -> Array:
    """Return the pixel values as they are stored."""
    bits = int(_needed(name, opened, "BitsStored"))
    highest = _first(opened, "HighBit")
    if highest not in (None, bits - 1):
        raise FieldError(
            name, f"HighBit = {highest}", f"must be BitsStored - 1 = {bits - 1}: {_CONVERT}"
        )
    if "PixelData" not in opened:
        accepted = "must hold whole numbers: floating-point pixels have no known range"
        raise FieldError(f"{name}: PixelData", None, accepted)
    _needed(name, opened, "PixelRepresentation")
    pixels: Array = opened.pixel_array
    return pixels


def _modality(name: str, opened: Any, stored: Array) -> tuple[Array, float, float]:
    """Return the values after the modality's transform, and the lowest and highest possible value."""
    from pydicom.pixels.processing import apply_modality_lut

    if _first(opened, "ModalityLUTSequence") is not None:
        values = apply_modality_lut(stored, opened).astype(np.float64)
        return values, 0.0, float(_largest_in(opened.ModalityLUTSequence))
    slope, intercept = _scale(name, opened)
    bits = int(opened.BitsStored)
    least, most = 0, (1 << bits) - 1
    if opened.PixelRepresentation:  # signed
        least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    low, high = sorted((slope * least + intercept, slope * most + intercept))
    return slope * stored.astype(np.float64) + intercept, low, high


def _scale(name: str, opened: Any) -> tuple[float, float]:
    """Return slope and intercept; 1 and 0 if both are missing."""
    slope = _number(name, opened, "RescaleSlope")
    intercept = _number(name, opened, "RescaleIntercept")
    if slope is None and intercept is None:
        return 1.0, 0.0
    fix = "goes with the other: fill in or remove both"
    if slope is None:
        raise FieldError(f"{name}: RescaleSlope", None, fix)
    if intercept is None:
        raise FieldError(f"{name}: RescaleIntercept", None, fix)
    if slope == 0:
        raise FieldError(name, "RescaleSlope = 0", fix)
    return slope, intercept


def _window(name: str, opened: Any) -> tuple[float, float, str] | None:
    """Return centre, width and function of the first window; None if there is none."""
    centre = _number(name, opened, "WindowCenter")
    width = _number(name, opened, "WindowWidth")
    if centre is None and width is None:
        return None
    if centre is None or width is None:
        tag = "WindowCenter" if centre is None else "WindowWidth"
        raise FieldError(f"{name}: {tag}", None, "goes with the other: fill in or remove both")
    function = str(_first(opened, "VOILUTFunction") or "LINEAR")
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        raise FieldError(
            name, f"VOILUTFunction {function}", "must be LINEAR, LINEAR_EXACT or SIGMOID"
        )
    if width < 1 and (function == "LINEAR" or width <= 0):
        least = "at least 1" if function == "LINEAR" else "above 0"
        raise FieldError(
            name, f"WindowWidth = {width:g}", f"must be {least}: correct it, or remove the window"
        )
    return centre, width, function


def _windowed(values: Array, centre: float, width: float, function: str) -> Array:
    """Map values through a window to 0 to 1 (DICOM PS3.3 C.11.2.1.2 and C.11.2.1.3)."""
    if function == "SIGMOID":
        exponent = np.clip(-4 * (values - centre) / width, -700, 700)
        return np.asarray(1 / (1 + np.exp(exponent)))
    if function == "LINEAR":
        centre -= 0.5
        width -= 1
    if width == 0:
        return np.asarray(values > centre, dtype=np.float64)
    return np.asarray((values - centre) / width + 0.5)
