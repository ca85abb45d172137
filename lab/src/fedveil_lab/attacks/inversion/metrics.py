"""Measure how similar reconstructions are to their originals."""

from collections.abc import Callable, Mapping, Sequence
from math import log10
from statistics import fmean
from typing import Any

import scipy
import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.errors import FieldError, require_positive
from fedveil_lab.attacks.inversion.knowledge import Reconstruction, two_sided

Perceptual = Callable[[Tensor, Tensor], Tensor]

# A reconstruction whose mean squared error, as a share of the squared range, is below counts as a success.
SUCCESS = 1e-3
WINDOW = 7  # side of those of structural similarity, in pixels
_EXACT = "donot_use_mm_for_euclid_dist"  # products lose small distances to rounding


def mse(original: Tensor, reconstruction: Tensor) -> Tensor:
    """Return the mean squared error of each image [n, ...]; float64 [n]."""
    _check(original, reconstruction)
    return (
        (original.to(torch.float64) - reconstruction.to(torch.float64)).square().flatten(1).mean(1)
    )


def ssim(original: Tensor, reconstruction: Tensor, *, data_range: float) -> Tensor:
    """Return the structural similarity of each image [n, c, H, W], mean over channels; float64 [n].

    Source: Wang et al. 2004, with the uniform window, the unbiased covariance and the cut border of scikit-image.

    Raises
    ------
    FieldError
        For images smaller than the window.
    """
    return _similarity(original, reconstruction, data_range).flatten(1).mean(1)


def _similarity(original: Tensor, reconstruction: Tensor, data_range: float) -> Tensor:
    """Return the structural similarity of each window, float64 [n, c, H - WINDOW + 1, W - WINDOW + 1]."""
    _check(original, reconstruction)
    if not _windowed(original):
        raise FieldError(
            "window", WINDOW, f"must fit into images [n, c, H, W], not {tuple(original.shape)}"
        )
    a, b = original.to(torch.float64), reconstruction.to(torch.float64)

    def mean(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, WINDOW, stride=1)

    ma, mb, unbiased = mean(a), mean(b), WINDOW**2 / (WINDOW**2 - 1)
    va, vb, both = (
        (mean(x * y) - mx * my) * unbiased
        for x, y, mx, my in ((a, a, ma, ma), (b, b, mb, mb), (a, b, ma, mb))
    )
    c1, c2 = ((k * require_positive("data_range", data_range)) ** 2 for k in (0.01, 0.03))
    return (2 * ma * mb + c1) * (2 * both + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))


def matched(originals: Tensor, reconstructions: Tensor) -> Tensor:
    """Assign a reconstruction to each original, int64 [n], with the least error (Hungarian method)."""
    _check(originals, reconstructions)
    a, b = (x.to(torch.float64).flatten(1) for x in (originals, reconstructions))
    return torch.from_numpy(
        scipy.optimize.linear_sum_assignment(
            torch.cdist(a, b, compute_mode=_EXACT).square().numpy()
        )[1]
    )


def identified(originals: Tensor, reconstructions: Tensor, others: Tensor) -> Tensor:
    """Return whether each reconstruction [n, ...] is nearer to its original than to any other image; bool [n].

    `others` [m, ...] are similar images, such as the client's images outside this round. The other originals of the
    batch count too. An image equal to the original is ignored.
    """
    _check(originals, reconstructions)
    rows = reconstructions.to(torch.float64).flatten(1)
    own = (rows - originals.to(torch.float64).flatten(1)).norm(dim=1)
    pool = torch.cat([originals, others.to(originals.dtype)]).to(torch.float64).flatten(1)
    nearest: Tensor = torch.cdist(rows, pool, compute_mode=_EXACT).min(1).values * (1 + 1e-9)
    return torch.le(own, nearest)


def labels_recovered(truth: Tensor, recovered: Tensor) -> float:
    """Return the share of the labels [n] that were found, as multisets."""
    classes = int(torch.cat([truth, recovered]).max()) + 1
    counts = [torch.bincount(x, minlength=classes) for x in (truth, recovered)]
    return float(torch.minimum(*counts).sum()) / len(truth)


def _windowed(images: Tensor) -> bool:
    """Whether the inputs are images [n, c, H, W] into which a window fits."""
    return images.dim() == 4 and min(images.shape[2:]) >= WINDOW


def region_and_rest(
    original: Tensor, reconstruction: Tensor, mask: Tensor, *, data_range: float
) -> dict[str, Tensor]:
    """Return figures inside and outside of a mask, ``region_mse``, ``rest_mse``, ``region_psnr``, ...; float64 [n] each.

    ``ssim`` is the mean over windows whose centre lies on that side. It is left out for images smaller than the window,
    and where an image has no such window.

    Parameters
    ----------
    original, reconstruction : Tensor
        Images [n, ..., H, W].
    mask : Tensor
        Mask of sensitive pixels, bool [n, H, W].
    data_range : float
        Largest possible difference of two pixels.

    Raises
    ------
    FieldError
        If the mask does not fit, or one side of an image is empty.
    """
    _check(original, reconstruction)
    if mask.dtype != torch.bool or mask.shape != (len(original), *original.shape[-2:]):
        raise FieldError(
            "mask",
            (tuple(mask.shape), mask.dtype),
            f"must be bool [n, H, W] of {tuple(original.shape)}",
        )
    if not two_sided(mask):
        raise FieldError("mask", "empty", "must leave pixels on both sides of every image")
    squares = (original.to(torch.float64) - reconstruction.to(torch.float64)).square()
    maps = {"mse": squares.flatten(1, -3).mean(1) if squares.dim() > 3 else squares}
    sides = {"mse": mask}
    edge = WINDOW // 2
    inner = mask[:, edge : mask.shape[1] - edge, edge : mask.shape[2] - edge]
    if _windowed(original) and two_sided(inner):
        maps["ssim"], sides["ssim"] = (
            _similarity(original, reconstruction, data_range).mean(1),
            inner,
        )
    figures = {}
    for name, values in maps.items():
        for where, side in (("region", sides[name]), ("rest", ~sides[name])):
            figures[f"{where}_{name}"] = (values * side).flatten(1).sum(1) / side.flatten(1).sum(1)
    for where in ("region", "rest"):
        figures[f"{where}_psnr"] = 10 * torch.log10(
            data_range**2 / figures[f"{where}_mse"].clamp_min(1e-30)
        )
    return figures


def scores(
    originals: Tensor,
    labels: Tensor,
    reconstruction: Reconstruction,
    *,
    data_range: float,
    others: Tensor,
    mask: Tensor | None = None,
    perceptual: Perceptual | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Return all figures of one release as means over its images, and the errors of two guesses without a release.

    Parameters
    ----------
    originals, labels : Tensor
        The client's training examples [n, ...], and their labels [n].
    reconstruction : Reconstruction
        Reconstruction from the release.
    data_range : float
        Largest possible difference of two pixels.
    others : Tensor
        The client's other images [m, ...], for `identified`; their mean is the guess ``mean_image``.
    mask : Tensor, optional
        Mask [n, H, W] of a region, for figures of the region and of the rest.
    perceptual : callable, optional
        ``(originals, reconstructions) -> [n]``, such as LPIPS with weights of your own; none comes with FedVeil.
    seed : int
        Seed of the guess ``random_image``.

    Returns
    -------
    dict
        ``mse``, ``psnr`` (of the mean error), ``ssim`` (images of at least 7x7), ``success``, ``identified``,
        ``labels``, ``mean_image``, ``random_image`` (errors); ``perceptual`` and those of `region_and_rest` where asked
        for.
    """
    images = reconstruction.images[matched(originals, reconstruction.images)]
    error = mse(originals, images)
    generator = torch.Generator().manual_seed(seed)
    if len(others):
        low = min(float(originals.min()), float(others.min()))
    else:
        low = float(originals.min())
    noise = low + data_range * torch.rand(originals.shape, generator=generator, dtype=torch.float64)
    average = (
        (others if len(others) else originals).to(torch.float64).mean(0).expand(originals.shape)
    )
    result: dict[str, Any] = {
        "mse": error,
        "success": (error < SUCCESS * data_range**2).double(),
        "identified": identified(originals, images, others).double(),
        "mean_image": mse(originals, average),
        "random_image": mse(originals, noise),
    }
    if _windowed(originals):
        result["ssim"] = ssim(originals, images, data_range=data_range)
    if mask is not None:
        result |= region_and_rest(originals, images, mask, data_range=data_range)
    if perceptual is not None:
        result["perceptual"] = perceptual(originals, images)
    means = {name: float(value.mean()) for name, value in result.items()}
    means["psnr"] = 10 * log10(data_range**2 / max(means["mse"], 1e-30))
    return means | {"labels": labels_recovered(labels, reconstruction.labels)}


def mean_scores(units: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average each figure over the releases that have it (a release without a mask has none of a region)."""
    names = dict.fromkeys(name for unit in units for name in unit)
    return {name: fmean(unit[name] for unit in units if name in unit) for name in names}


def _check(original: Tensor, reconstruction: Tensor) -> None:
    if original.shape != reconstruction.shape or original.dim() < 2:
        given = (tuple(original.shape), tuple(reconstruction.shape))
        raise FieldError("reconstruction", given, "must have the shape of the originals, [n, ...]")
