"""One grey image of a DICOM file, as a viewer shows it.

Nothing of the header is used but what says how pixels are stored and shown.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import FieldError

Array = NDArray[Any]

_CONVERT = "convert it to grey (MONOCHROME2)"


def grey_slice(name: str, opened: Any, max_pixels: int) -> Array:
    """The image [H, W] from black to white, uint16.

    Its values go through the modality's transform (slope and intercept, or a table), then through the file's own table
    of display (VOI LUT), else through its first window, else from the lowest to the highest number its bits can hold.

    Parameters
    ----------
    name : str
        Of the file, for a refusal.
    opened : pydicom.Dataset
        The file.
    max_pixels : int
        Most pixels it may hold.

    Raises
    ------
    FieldError
        Naming the tag that is missing, or that has a value no viewer can use.
    """
    from pydicom.pixels.processing import apply_voi

    photometric = _needed(name, opened, "PhotometricInterpretation")
    shape = (
        *(int(_needed(name, opened, tag)) for tag in ("Rows", "Columns")),
        int(_first(opened, "NumberOfFrames") or 1),
    )
    samples = int(_needed(name, opened, "SamplesPerPixel"))
    if shape[0] * shape[1] > max_pixels or (shape[2], samples) != (1, 1):
        accepted = f"must be one grey image of at most {max_pixels} pixels; data.max_pixels, or convert it"
        raise FieldError(name, " x ".join(map(str, (*shape, samples))), accepted)
    if photometric not in ("MONOCHROME1", "MONOCHROME2"):
        colours = ", whose numbers stand for colours" if photometric == "PALETTE COLOR" else ""
        raise FieldError(name, f"PhotometricInterpretation {photometric}{colours}", _CONVERT)
    usual = "INVERSE" if photometric == "MONOCHROME1" else "IDENTITY"
    if (shown_as := _first(opened, "PresentationLUTShape")) not in (None, usual):
        raise FieldError(name, f"PresentationLUTShape {shown_as}", f"contradicts {photometric}: {_CONVERT}")
    values, low, high = _modality(name, opened, _stored(name, opened))
    if _first(opened, "VOILUTSequence") is not None:
        depth = int(opened.VOILUTSequence[0].LUTDescriptor[2])
        shown = apply_voi(np.round(values).astype(np.int32), opened) / ((1 << depth) - 1)
    elif (window := _window(name, opened)) is not None:
        shown = _windowed(values, *window)
    else:
        shown = (values - low) / (high - low)
    shown = np.clip(shown, 0, 1)
    deep: Array = np.round(65535 * (1 - shown if photometric == "MONOCHROME1" else shown)).astype(np.uint16)
    return deep


def _first(opened: Any, tag: str) -> Any:
    """The value of a tag, the first of several; None where the tag is missing or empty, as old scanners write them."""
    value = opened.get(tag)
    if value is None or (hasattr(value, "__len__") and not len(value)):
        return None
    several = hasattr(value, "__getitem__") and not isinstance(value, str | bytes)
    return value[0] if several else value


def _needed(name: str, opened: Any, tag: str) -> Any:
    value = _first(opened, tag)
    if value is None:
        raise FieldError(name, f"{tag} missing", "says how pixels are stored or shown: fill the tag in")
    return value


def _number(name: str, opened: Any, tag: str) -> float | None:
    value = _first(opened, tag)
    if value is not None and not np.isfinite(float(value)):
        raise FieldError(name, f"{tag} = {value}", "must be a finite number")
    return None if value is None else float(value)


def _stored(name: str, opened: Any) -> Array:
    """The numbers as they are stored."""
    bits, highest = int(_needed(name, opened, "BitsStored")), _first(opened, "HighBit")
    if highest not in (None, bits - 1):
        raise FieldError(name, f"HighBit = {highest}", f"must be BitsStored - 1 = {bits - 1}: {_CONVERT}")
    if "PixelData" not in opened:
        raise FieldError(
            name, "PixelData missing", "must hold whole numbers: floating-point pixels have no known range"
        )
    _needed(name, opened, "PixelRepresentation")
    pixels: Array = opened.pixel_array
    return pixels


def _modality(name: str, opened: Any, stored: Array) -> tuple[Array, float, float]:
    """Values as the modality means them, and the lowest and highest that there could be."""
    from pydicom.pixels.processing import apply_modality_lut

    if _first(opened, "ModalityLUTSequence") is not None:
        depth = int(opened.ModalityLUTSequence[0].LUTDescriptor[2])
        return apply_modality_lut(stored, opened).astype(np.float64), 0.0, float((1 << depth) - 1)
    slope, intercept = (_number(name, opened, tag) for tag in ("RescaleSlope", "RescaleIntercept"))
    if (slope is None) != (intercept is None) or slope == 0:
        tag = "RescaleIntercept" if intercept is None else "RescaleSlope"
        raise FieldError(
            name, f"{tag} {'= 0' if slope == 0 else 'missing'}", "goes with the other: fill in or remove both"
        )
    slope, intercept = (1.0, 0.0) if slope is None or intercept is None else (slope, intercept)
    bits, signed = int(opened.BitsStored), bool(opened.PixelRepresentation)
    ends = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    low, high = sorted(slope * end + intercept for end in ends)
    return slope * stored.astype(np.float64) + intercept, low, high


def _window(name: str, opened: Any) -> tuple[float, float, str] | None:
    """Centre, width and function of the first window; None where there is none."""
    centre, width = (_number(name, opened, tag) for tag in ("WindowCenter", "WindowWidth"))
    if centre is None and width is None:
        return None
    if centre is None or width is None:
        tag = "WindowCenter" if centre is None else "WindowWidth"
        raise FieldError(name, f"{tag} missing", "goes with the other: fill in or remove both")
    function = str(_first(opened, "VOILUTFunction") or "LINEAR")
    if function not in ("LINEAR", "LINEAR_EXACT", "SIGMOID"):
        raise FieldError(name, f"VOILUTFunction {function}", "must be LINEAR, LINEAR_EXACT or SIGMOID")
    if width < 1 and (function == "LINEAR" or width <= 0):
        least = "at least 1" if function == "LINEAR" else "above 0"
        raise FieldError(name, f"WindowWidth = {width:g}", f"must be {least}: correct it, or remove the window")
    return centre, width, function


def _windowed(values: Array, centre: float, width: float, function: str) -> Array:
    """Values through a window, from 0 to 1 (DICOM PS3.3 C.11.2.1.2 and C.11.2.1.3)."""
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700))))
    if function == "LINEAR":
        centre, width = centre - 0.5, width - 1
    if width == 0:
        return np.asarray(values > centre, dtype=np.float64)
    return np.asarray((values - centre) / width + 0.5)
