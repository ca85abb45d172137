"""Image features learned without labels on public images: which small patches lie how far from the middle.

A patch of one pixel stands for its colour, one of three for its texture; neither is normalised, so that brightness and
colour count. k-means on public patches finds the commonest (as in `fedveil.data.patches`), and features are averaged
over rings around the middle: colours in rings do not change when an image is turned or mirrored. Square roots and a
whitening on the public images then make the features alike in size, so that noise of one size in all directions suits
them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.data.patches import AT_ONCE, LENGTH, SAMPLED, dictionary, nearer
from fedveil.errors import FieldError, require_count

RINGS = 4
_LEAST = 0.003  # added to the variances of windows of pixels in [0, 1] before whitening
_RIDGE = 0.1  # of the features' mean variance, added before whitening


@dataclass(frozen=True, eq=False)
class RingFeatures:
    """Learned centres for windows of each size, and the whitening of the features on the public images.

    Attributes
    ----------
    sizes : tuple of int
        Edges of the windows, in pixels.
    learned : tuple of (mean, whiten, centres)
        For each size.
    shift, scale : Tensor
        [f], mean and deviation of the public images' features.
    directions : Tensor
        [f, components], the whitening of scaled features.
    """

    sizes: tuple[int, ...]
    learned: tuple[tuple[Tensor, Tensor, Tensor], ...]
    shift: Tensor
    scale: Tensor
    directions: Tensor

    def features(self, images: Tensor) -> Tensor:
        """Features [N, components] of images [N, channels, height, width], each of length `LENGTH`."""
        found = [self._of(part) for part in torch.split(images, AT_ONCE)]
        return torch.cat(found) if found else images.new_zeros(0, self.directions.shape[1])

    def _of(self, images: Tensor) -> Tensor:
        scaled = (_pooled(images, self.sizes, self.learned) - self.shift) / self.scale
        return LENGTH * F.normalize(scaled @ self.directions, dim=1)


def learn_rings(images: Tensor, count: int, sizes: Sequence[int], components: int, seed: int) -> RingFeatures:
    """Learn `count` centres for each window size, and a whitening, on public images [N, channels, height, width].

    Parameters
    ----------
    images : Tensor
        Public, pixels in [0, 1].
    count : int
        Centres for each size.
    sizes : sequence of int
        Edges of the windows, in pixels.
    components : int
        Features that are kept, those that vary most on the public images.
    seed : int
        Of the windows drawn and of k-means.

    Raises
    ------
    FieldError
        For images too small for a window and four rings, or too few of them for so many components.
    """
    count, components = require_count("patches", count), require_count("components", components)
    for size in sizes:
        if images.dim() != 4 or min(images.shape[2:]) < require_count("patch_sizes", size) + 2 * RINGS - 1:
            accepted = f"needs images of at least {size + 2 * RINGS - 1} pixels, these have {tuple(images.shape[2:])}"
            raise FieldError("patch_sizes", size, accepted)
    most = min(len(images) - 1, RINGS * count * len(sizes))
    if components > most:
        raise FieldError("components", components, f"must be at most {most} for so many public images and patches")
    generator = torch.Generator().manual_seed(seed)
    learned = tuple(dictionary(_drawn(images, size, generator), count, _LEAST, seed) for size in sizes)
    pooled = torch.cat([_pooled(part, sizes, learned) for part in torch.split(images, AT_ONCE)])
    shift, scale = pooled.mean(0), pooled.std(0) + 1e-6
    scaled = ((pooled - shift) / scale).double()
    values, vectors = torch.linalg.eigh(scaled.T @ scaled / len(scaled))
    values, vectors = values.flip(0)[:components], vectors.flip(1)[:, :components]
    ridge = _RIDGE * float(scaled.square().mean())
    return RingFeatures(tuple(sizes), learned, shift, scale, (vectors / (values + ridge).sqrt()).to(images.dtype))


def _drawn(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Windows of random images at random places, [SAMPLED, p]."""
    height, width = (s - size + 1 for s in images.shape[2:])
    drawn = torch.randint(len(images) * height * width, (SAMPLED,), generator=generator)
    image, place = drawn // (height * width), drawn % (height * width)
    windows = images.unfold(2, size, 1).unfold(3, size, 1)
    return windows[image, :, place // width, place % width].flatten(1)


def _pooled(images: Tensor, sizes: Sequence[int], learned: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Square roots of the means over each ring, [N, rings x centres of all sizes]."""
    found = []
    for size, (mean, whiten, centres) in zip(sizes, learned, strict=True):
        near = nearer((F.unfold(images, size).transpose(1, 2) - mean) @ whiten, centres)
        rings = _rings(images.shape[2] - size + 1, images.shape[3] - size + 1).to(images)
        found.append((rings @ near).flatten(1))
    return torch.cat(found, 1).sqrt()


def _rings(height: int, width: int) -> Tensor:
    """Weights [rings, height x width] that average over a disc, two rings, and the corners with the rest."""
    y, x = (((torch.arange(n) - (n - 1) / 2) / (n / 2)) for n in (height, width))
    radius = (y[:, None] ** 2 + x**2).sqrt().flatten()
    inner = torch.tensor([0.0, 0.3, 0.6, 0.9])[:, None]
    outer = torch.tensor([0.3, 0.6, 0.9, 9.0])[:, None]
    inside = ((radius >= inner) & (radius < outer)).to(torch.float32)
    return inside / inside.sum(1, keepdim=True)
