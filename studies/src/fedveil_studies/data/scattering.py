"""Scattering features of grey images: two layers of Morlet wavelets, a fixed public transform that reads no data.

Source: Bruna and Mallat 2013 (arXiv 1203.1513), with J = 2 scales and L = 8 directions, as Tramèr and Boneh 2021
(arXiv 2011.11660) use it for private training. Each image [28, 28] becomes 81 averaged maps [7, 7]: the image, 16
moduli of one wavelet, 64 moduli of two.

All maps are computed at full resolution and thinned once, with the last average.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedveil.data import DataSet
from fedveil.data.sets import cache_folder
from fedveil.errors import FieldError

SCALES, DIRECTIONS = 2, 8
MARGIN = 4  # pixels of reflection on each side
STRIDE = 2**SCALES
MAPS = 1 + SCALES * DIRECTIONS + DIRECTIONS**2
AT_ONCE = 250  # images a step, so that memory stays small
VERSION = 1  # of the cached copies


def scattering(images: Tensor) -> Tensor:
    """Compute the scattering coefficients of images.

    Parameters
    ----------
    images : Tensor
        [N, H, W], H and W multiples of 4 and at least 8.

    Returns
    -------
    Tensor
        [N, 81, H / 4, W / 4], float32, not negative but for the first map.
    """
    height, width = images.shape[-2:]
    found = [_coefficients(part, height, width) for part in torch.split(images, AT_ONCE)]
    return torch.cat(found)


def features_of(images: Tensor, count: int) -> Tensor:
    """Compute features of length 1 from images alone, each image by itself.

    Each map of an image is standardised by its own mean and deviation, the whole is scaled to length 1, turned to
    `count` directions that were drawn once, and scaled to length 1 again. Nothing here is learned from data.

    Parameters
    ----------
    images : Tensor
        [N, H, W], float32; see `scattering`.
    count : int
        Number of directions, at most 81 H W / 16.

    Returns
    -------
    Tensor
        [N, count], float32.

    Raises
    ------
    FieldError
        For more directions than coefficients.
    """
    coefficients = MAPS * (images.shape[1] // STRIDE) * (images.shape[2] // STRIDE)
    if count > coefficients:
        raise FieldError("data.scattering", count, f"must be at most {coefficients}")
    turn = directions(coefficients, count)
    return torch.cat([_turned(scattering(part), turn) for part in torch.split(images, AT_ONCE)])


def standardised(images: Tensor, groups: int) -> Tensor:
    """Compute all scattering coefficients of images, standardised by image and group of neighbouring maps.

    Nothing is scaled afterwards: an image's features have at most the length sqrt(81 H W / 16), which is 63 for digits.

    Parameters
    ----------
    images : Tensor
        [N, H, W], float32; see `scattering`.
    groups : int
        Number of groups, a divisor of 81.

    Returns
    -------
    Tensor
        [N, 81 H W / 16], float32.

    Raises
    ------
    FieldError
        If `groups` does not divide 81.
    """
    if MAPS % groups:
        raise FieldError("data.scattering_groups", groups, f"must divide the {MAPS} maps")
    parts = torch.split(images, AT_ONCE)
    return torch.cat([F.group_norm(scattering(part), groups).flatten(1) for part in parts])


@cache
def directions(coefficients: int, count: int) -> Tensor:
    """Draw orthonormal directions [coefficients, count], the same for everybody."""
    drawn = torch.randn(coefficients, count, generator=torch.Generator().manual_seed(0))
    orthonormal: Tensor = torch.linalg.qr(drawn).Q
    return orthonormal


def _turned(maps: Tensor, turn: Tensor) -> Tensor:
    centred = maps - maps.mean((2, 3), keepdim=True)
    deviation = centred.square().mean((2, 3), keepdim=True).sqrt()
    unit = F.normalize((centred / (deviation + 1e-5)).flatten(1), dim=1)
    turned: Tensor = F.normalize(unit @ turn, dim=1)
    return turned


def _coefficients(images: Tensor, height: int, width: int) -> Tensor:
    average, wavelets = _filters(height + 2 * MARGIN, width + 2 * MARGIN)
    reflected = [MARGIN] * 4
    padded = F.pad(images[:, None].to(torch.float32), reflected, mode="reflect")[:, 0]
    spectrum = torch.fft.fft2(padded)
    fine, coarse = wavelets
    firsts, seconds = [], []
    for wavelet in fine:
        modulus = torch.fft.ifft2(spectrum * wavelet).abs()
        firsts.append(modulus)
        inner = torch.fft.fft2(modulus)
        seconds += [torch.fft.ifft2(inner * second).abs() for second in coarse]
    firsts += [torch.fft.ifft2(spectrum * wavelet).abs() for wavelet in coarse]
    maps = torch.stack([padded, *firsts, *seconds], dim=1)
    return (maps.flatten(2) @ average).reshape(-1, MAPS, height // STRIDE, width // STRIDE)


@cache
def _filters(height: int, width: int) -> tuple[Tensor, list[list[Tensor]]]:
    """Return what averages and thins, [height * width, places], and spectra of the wavelets by scale and direction."""
    kernel = _gabor(height, width, 0.8 * 2 ** (SCALES - 1), 0.0, 0.0, 1.0).real
    places = []
    for row in range(MARGIN, height - MARGIN, STRIDE):
        for column in range(MARGIN, width - MARGIN, STRIDE):
            places.append(np.roll(kernel, (row, column), (0, 1)).ravel())
    average = torch.from_numpy(np.stack(places, axis=1).astype(np.float32))
    wavelets = []
    for scale in range(SCALES):
        turned = []
        for k in range(DIRECTIONS):
            angle = (DIRECTIONS // 2 - 1 - k) * np.pi / DIRECTIONS
            turned.append(_spectrum(_morlet(height, width, scale, angle)))
        wavelets.append(turned)
    return average, wavelets


def _morlet(height: int, width: int, scale: int, angle: float) -> NDArray[Any]:
    """Return a Morlet wavelet: a Gabor less as much of its envelope that the sum is 0."""
    deviation, frequency, slant = 0.8 * 2**scale, 0.75 * np.pi / 2**scale, 4 / DIRECTIONS
    wave = _gabor(height, width, deviation, angle, frequency, slant)
    envelope = _gabor(height, width, deviation, angle, 0.0, slant)
    wavelet: NDArray[Any] = wave - wave.sum() / envelope.sum() * envelope
    return wavelet


def _gabor(
    height: int, width: int, deviation: float, angle: float, frequency: float, slant: float
) -> NDArray[Any]:
    """Return a periodic Gabor: a Gaussian envelope of integral 1, turned by `angle`, times a plane wave."""
    found = np.zeros((height, width), dtype=np.complex128)
    for rows, columns in _periods(height, width):
        along = rows * np.cos(angle) + columns * np.sin(angle)
        across = columns * np.cos(angle) - rows * np.sin(angle)
        envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * deviation**2))
        found += envelope * np.exp(1j * frequency * along)
    return found * slant / (2 * np.pi * deviation**2)


def _periods(height: int, width: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield coordinates of the grid and of its shifts by up to two periods each way."""
    rows, columns = np.mgrid[0:height, 0:width]
    for down in range(-2, 3):
        for right in range(-2, 3):
            yield rows + down * height, columns + right * width


def _spectrum(kernel: NDArray[Any]) -> Tensor:
    """Return the spectrum of a kernel; it is real, because kernels are symmetric about the origin."""
    return torch.from_numpy(np.fft.fft2(kernel).real.astype(np.float32))


def scattered(dataset: DataSet, count: int, groups: int = 0) -> DataSet:
    """Return a set of grey images [N, 1, H, W] with scattering features in the place of pixels.

    With `groups` they are those of `standardised`, otherwise `count` of `features_of`.
    """
    assert dataset.test_x is not None
    x = _cached(dataset.name, dataset.x[:, 0], count, groups)
    test_x = _cached(dataset.name, dataset.test_x[:, 0], count, groups)
    return replace(dataset, x=x, test_x=test_x)


def _cached(name: str, images: Tensor, count: int, groups: int) -> Tensor:
    """Compute the features of images [N, H, W] once, and keep them in the cache folder.

    A checksum of the images is part of the copy's name, so that other images have another copy.
    """
    checksum = hashlib.sha256(images.contiguous().numpy().tobytes()).hexdigest()[:12]
    height, width = images.shape[1:]
    kind, columns = f"{count}", count
    if groups:
        kind = f"groups-{groups}"
        columns = MAPS * (height // STRIDE) * (width // STRIDE)
    path = cache_folder() / f"{name}-scattering-{VERSION}-{kind}-{checksum}.npy"
    stored = _read(path, (len(images), columns))
    if stored is None:
        if groups:
            found = standardised(images, groups)
        else:
            found = features_of(images, count)
        stored = found.numpy()
        with suppress(OSError):  # without a cache they are computed again
            _write(path, stored)
    return torch.from_numpy(stored)


def _read(path: Path, shape: tuple[int, int]) -> NDArray[Any] | None:
    try:
        stored: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if stored.shape != shape or stored.dtype != np.float32:
        return None
    return stored


def _write(path: Path, features: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder, path.name)
        np.save(part, features)
        os.replace(part, path)
