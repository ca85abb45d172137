"""Image features learned without labels on public images: distances to the commonest whitened patches.

Source: Coates, Ng and Lee (2011), "An analysis of single-layer networks in unsupervised feature learning". Patches are
normalised and whitened, k-means finds k of them, and a pixel's feature j is how much nearer than average its patch is
to centre j; features are averaged over the quarters of the image. Of images that are not public nothing is used but
their own features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.errors import FieldError, require_count
from fedveil.mechanisms import keyed_seed

SIZE = 6  # pixels of a patch's edge
LENGTH = 4.0  # of an image's features: a bias, whose input is 1, then takes a small share of a clipped gradient
RINGS = 4
_LEAST = 0.003  # added to the variances of windows of pixels in [0, 1] before whitening
_RIDGE = 0.1  # of the features' mean variance, added before whitening
SAMPLED, AT_ONCE = 40_000, 128


@dataclass(frozen=True, eq=False)
class Patches:
    """Learned centres, and the scale of the features on the public images.

    Attributes
    ----------
    mean : Tensor
        [p], of normalised patches.
    whiten : Tensor
        [p, p].
    centres : Tensor
        [k, p].
    shift, scale : Tensor
        [4k], mean and deviation of the public images' features.
    directions : Tensor or None
        [4k, m], on which features are projected.
    """

    mean: Tensor
    whiten: Tensor
    centres: Tensor
    shift: Tensor
    scale: Tensor
    directions: Tensor | None = None

    def features(self, images: Tensor) -> Tensor:
        """Features [N, 4k or m] of images [N, channels, height, width], of length `LENGTH`, which bounds gradients."""
        scaled = F.normalize((self._pooled(images) - self.shift) / self.scale, dim=1)
        return LENGTH * (scaled if self.directions is None else F.normalize(scaled @ self.directions, dim=1))

    def projected(self, images: Tensor, components: int, how: Literal["public", "random"], seed: int) -> "Patches":
        """The same with fewer features: the principal components of public images' features, or random directions.

        Raises
        ------
        FieldError
            If there are not so many features.
        """
        of = len(self.shift)
        if require_count("components", components) > of:
            raise FieldError("components", components, f"there are {of} features: 4 a patch")
        if how == "random":
            generator = torch.Generator().manual_seed(keyed_seed("directions", seed))
            basis = torch.linalg.qr(torch.randn(of, components, generator=generator)).Q
        else:
            x = self.features(images)
            basis = torch.linalg.svd(x.T @ x).U[:, :components]
        return replace(self, directions=basis)

    def _pooled(self, images: Tensor) -> Tensor:
        pooled, rows = [], images.shape[2] - SIZE + 1
        for part in torch.split(images, AT_ONCE):
            windows = _normal(F.unfold(part, SIZE).transpose(1, 2))
            near = nearer((windows - self.mean) @ self.whiten, self.centres).transpose(1, 2)
            maps = near.reshape(len(part), len(self.centres), rows, -1)
            pooled.append(F.adaptive_avg_pool2d(maps, 2).flatten(1))
        return torch.cat(pooled)


def learn_patches(images: Tensor, count: int, seed: int) -> Patches:
    """Learn `count` centres on public images [N, channels, height, width].

    Raises
    ------
    FieldError
        For images smaller than a patch, or too few of them.
    """
    count = require_count("patches", count)
    if images.dim() != 4 or min(images.shape[2:]) < 2 * SIZE:
        raise FieldError("patches", tuple(images.shape[1:]), f"needs images of at least {2 * SIZE} x {2 * SIZE} pixels")
    generator = torch.Generator().manual_seed(seed)
    mean, whiten, centres = dictionary(_normal(_drawn(images, SIZE, generator)), count, 0.1, seed)
    bare = Patches(mean, whiten, centres, torch.zeros(4 * count), torch.ones(4 * count))
    pooled = bare._pooled(images)
    return Patches(mean, whiten, centres, pooled.mean(0), pooled.std(0) + 1e-6)


def dictionary(windows: Tensor, count: int, least: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [p], whitening [p, p] and `count` centres of public windows [N, p]; `least` is added to their variances."""
    from sklearn.cluster import MiniBatchKMeans

    mean = windows.mean(0)
    values, vectors = torch.linalg.eigh((windows - mean).T @ (windows - mean) / len(windows))
    whiten = vectors @ torch.diag((values + least).rsqrt()) @ vectors.T
    white = ((windows - mean) @ whiten).numpy()
    means = MiniBatchKMeans(count, n_init=1, random_state=seed, batch_size=4096).fit(white)
    return mean, whiten, torch.from_numpy(means.cluster_centers_).to(windows.dtype)


def nearer(windows: Tensor, centres: Tensor) -> Tensor:
    """How much nearer than average each whitened window [..., N, p] is to each centre, at least 0: [..., N, k]."""
    lengths = centres.square().sum(1)
    apart = (windows.square().sum(2, keepdim=True) - 2 * windows @ centres.T + lengths).clamp_(min=0).sqrt_()
    return F.relu(apart.mean(2, keepdim=True) - apart)


def _normal(patches: Tensor) -> Tensor:
    centred = patches - patches.mean(-1, keepdim=True)
    return centred / (centred.square().sum(-1, keepdim=True) / (math.prod(centred.shape[-1:]) - 1) + 1e-3).sqrt()


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
        parts = [self._of(part) for part in torch.split(images, AT_ONCE)]
        return torch.cat(parts) if parts else images.new_zeros(0, self.directions.shape[1])

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
    pooled = []
    for size, (mean, whiten, centres) in zip(sizes, learned, strict=True):
        near = nearer((F.unfold(images, size).transpose(1, 2) - mean) @ whiten, centres)
        rings = _rings(images.shape[2] - size + 1, images.shape[3] - size + 1).to(images)
        pooled.append((rings @ near).flatten(1))
    return torch.cat(pooled, 1).sqrt()


def _rings(height: int, width: int) -> Tensor:
    """Weights [rings, height x width] that average over a disc, two rings, and the corners with the rest."""
    y, x = (((torch.arange(n) - (n - 1) / 2) / (n / 2)) for n in (height, width))
    radius = (y[:, None] ** 2 + x**2).sqrt().flatten()
    inner = torch.tensor([0.0, 0.3, 0.6, 0.9])[:, None]
    outer = torch.tensor([0.3, 0.6, 0.9, 9.0])[:, None]
    inside = ((radius >= inner) & (radius < outer)).to(torch.float32)
    return inside / inside.sum(1, keepdim=True)
