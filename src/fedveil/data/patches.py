"""Image features learned without labels on public images: distances to common whitened patches.

Source: Coates, Ng and Lee (2011), "An analysis of single-layer networks in unsupervised feature learning". Patches are
normalised and whitened, and k-means finds k of them. Feature j of a pixel is how much nearer than average its patch is
to centre j. Features are averaged over the quarters of the image. A private image influences only its own features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedveil.errors import FieldError, require_count
from fedveil.mechanisms import keyed_seed

SIZE = 6  # pixels of a patch's edge
LENGTH = 4.0  # length of an image's features, chosen so that a bias, whose input is 1, takes a small share of a clipped gradient
RINGS = 4
_LEAST = 0.003  # added to the variances of windows of pixels in [0, 1] before whitening
_RIDGE = 0.1  # of the features' mean variance, added before whitening
SAMPLED, AT_ONCE = 40_000, 128


@dataclass(frozen=True, eq=False)
class Patches:
    """Features from learned patches: centres, and scale of the features on the public images.

    Attributes
    ----------
    mean : Tensor
        [p], mean of normalised patches.
    whiten : Tensor
        [p, p], matrix that whitens patches.
    centres : Tensor
        [k, p], centres of whitened patches.
    shift, scale : Tensor
        [4k], mean and deviation of the public images' features.
    directions : Tensor or None
        [4k, m], directions on which features are projected; None: no projection.
    """

    mean: Tensor
    whiten: Tensor
    centres: Tensor
    shift: Tensor
    scale: Tensor
    directions: Tensor | None = None

    def features(self, images: Tensor) -> Tensor:
        """Compute features [N, 4k or m] of images [N, channels, height, width].

        Each example's features have length `LENGTH`, which bounds gradients.
        """
        scaled = F.normalize((self._pooled(images) - self.shift) / self.scale, dim=1)
        if self.directions is not None:
            scaled = F.normalize(scaled @ self.directions, dim=1)
        return LENGTH * scaled

    def projected(
        self,
        images: Tensor,
        components: int,
        how: Literal["public", "random"],
        seed: int,
    ) -> "Patches":
        """Reduce the features to principal components of public images' features, or to random directions.

        Raises
        ------
        FieldError
            If there are fewer features than components.
        """
        features = len(self.shift)
        if require_count("components", components) > features:
            raise FieldError("components", components, f"there are {features} features: 4 a patch")
        if how == "random":
            generator = torch.Generator().manual_seed(keyed_seed("directions", seed))
            drawn = torch.randn(features, components, generator=generator)
            basis = torch.linalg.qr(drawn).Q
        else:
            x = self.features(images)
            basis = torch.linalg.svd(x.T @ x).U[:, :components]
        return replace(self, directions=basis)

    def _pooled(self, images: Tensor) -> Tensor:
        """Return the mean features over the quarters of images, [N, 4k]."""
        pooled: list[Tensor] = []
        rows = images.shape[2] - SIZE + 1
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
        raise FieldError(
            "patches",
            tuple(images.shape[1:]),
            f"needs images of at least {2 * SIZE} x {2 * SIZE} pixels",
        )
    generator = torch.Generator().manual_seed(seed)
    windows = _normal(_drawn(images, SIZE, generator))
    mean, whiten, centres = dictionary(windows, count, 0.1, seed)
    bare = Patches(mean, whiten, centres, torch.zeros(4 * count), torch.ones(4 * count))
    pooled = bare._pooled(images)
    return Patches(mean, whiten, centres, pooled.mean(0), pooled.std(0) + 1e-6)


def dictionary(
    windows: Tensor,
    count: int,
    least: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean [p] of public windows [N, p], a matrix [p, p] that whitens them, and `count` centres [count, p].

    The centres are k-means of the whitened windows. Whitening divides by the root of each variance plus `least`.
    """
    from sklearn.cluster import MiniBatchKMeans

    mean = windows.mean(0)
    centred = windows - mean
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(windows))
    whiten = vectors @ torch.diag((values + least).rsqrt()) @ vectors.T
    white = (centred @ whiten).numpy()
    means = MiniBatchKMeans(count, n_init=1, random_state=seed, batch_size=4096).fit(white)
    return mean, whiten, torch.from_numpy(means.cluster_centers_).to(windows.dtype)


def nearer(windows: Tensor, centres: Tensor) -> Tensor:
    """Return how much nearer than average whitened windows [..., N, p] are to each centre (at least 0), [..., N, k]."""
    own = windows.square().sum(2, keepdim=True)
    lengths = centres.square().sum(1)
    squares = own - 2 * windows @ centres.T + lengths
    distances = squares.clamp_(min=0).sqrt_()
    return F.relu(distances.mean(2, keepdim=True) - distances)


def _normal(patches: Tensor) -> Tensor:
    """Give each patch mean 0 and variance of about 1."""
    centred = patches - patches.mean(-1, keepdim=True)
    variance = centred.square().sum(-1, keepdim=True) / (centred.shape[-1] - 1)
    return centred / (variance + 1e-3).sqrt()


@dataclass(frozen=True, eq=False)
class RingFeatures:
    """Features from learned windows of several sizes, averaged over rings: centres, and whitening on the public images.

    Attributes
    ----------
    sizes : tuple of int
        Edges of the windows, in pixels.
    learned : tuple of (mean, whiten, centres)
        Parameters of `dictionary` for each size.
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
        """Compute features [N, components] of images [N, channels, height, width]; each example's have length `LENGTH`."""
        parts = [self._of(part) for part in torch.split(images, AT_ONCE)]
        if not parts:
            return images.new_zeros(0, self.directions.shape[1])
        return torch.cat(parts)

    def _of(self, images: Tensor) -> Tensor:
        pooled = _pooled(images, self.sizes, self.learned)
        scaled = (pooled - self.shift) / self.scale
        return LENGTH * F.normalize(scaled @ self.directions, dim=1)


def learn_rings(
    images: Tensor,
    count: int,
    sizes: Sequence[int],
    components: int,
    seed: int,
) -> RingFeatures:
    """Learn ring features on public images: centres for each window size, and a whitening.

    Parameters
    ----------
    images : Tensor
        [N, channels, height, width], public images with pixels in [0, 1].
    count : int
        Number of centres for each size.
    sizes : sequence of int
        Edges of the windows, in pixels.
    components : int
        Number of features kept: those with the largest variance on the public images.
    seed : int
        Seed of the drawn windows and of k-means.

    Raises
    ------
    FieldError
        If images are too small for a window and four rings, or too few for this number of components.
    """
    count = require_count("patches", count)
    components = require_count("components", components)
    for size in sizes:
        least = require_count("patch_sizes", size) + 2 * RINGS - 1
        if images.dim() != 4 or min(images.shape[2:]) < least:
            accepted = (
                f"needs images of at least {least} pixels, these have {tuple(images.shape[2:])}"
            )
            raise FieldError("patch_sizes", size, accepted)
    most = min(len(images) - 1, RINGS * count * len(sizes))
    if components > most:
        raise FieldError(
            "components",
            components,
            f"must be at most {most} for so many public images and patches",
        )
    generator = torch.Generator().manual_seed(seed)
    dictionaries: list[tuple[Tensor, Tensor, Tensor]] = []
    for size in sizes:
        windows = _drawn(images, size, generator)
        dictionaries.append(dictionary(windows, count, _LEAST, seed))
    learned = tuple(dictionaries)
    pooled = torch.cat([_pooled(part, sizes, learned) for part in torch.split(images, AT_ONCE)])
    shift = pooled.mean(0)
    scale = pooled.std(0) + 1e-6
    scaled = ((pooled - shift) / scale).double()
    values, vectors = torch.linalg.eigh(scaled.T @ scaled / len(scaled))
    largest = values.flip(0)[:components]
    principal = vectors.flip(1)[:, :components]
    ridge = _RIDGE * float(scaled.square().mean())
    directions = principal / (largest + ridge).sqrt()
    return RingFeatures(tuple(sizes), learned, shift, scale, directions.to(images.dtype))


def _drawn(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Draw windows at random places of random images, [SAMPLED, p]."""
    height = images.shape[2] - size + 1
    width = images.shape[3] - size + 1
    places = height * width  # of one image
    drawn = torch.randint(len(images) * places, (SAMPLED,), generator=generator)
    image = drawn // places
    place = drawn % places
    windows = images.unfold(2, size, 1).unfold(3, size, 1)
    return windows[image, :, place // width, place % width].flatten(1)


def _pooled(
    images: Tensor,
    sizes: Sequence[int],
    learned: Sequence[tuple[Tensor, Tensor, Tensor]],
) -> Tensor:
    """Return the square roots of the mean features over each ring, [N, rings x centres of all sizes]."""
    pooled: list[Tensor] = []
    for size, (mean, whiten, centres) in zip(sizes, learned, strict=True):
        windows = F.unfold(images, size).transpose(1, 2)
        near = nearer((windows - mean) @ whiten, centres)
        rings = _rings(images.shape[2] - size + 1, images.shape[3] - size + 1).to(images)
        pooled.append((rings @ near).flatten(1))
    return torch.cat(pooled, 1).sqrt()


def _rings(height: int, width: int) -> Tensor:
    """Return weights [rings, height x width] for averages over a disc, two rings, and the corners with the rest."""
    y = _from_centre(height)
    x = _from_centre(width)
    radius = (y[:, None] ** 2 + x**2).sqrt().flatten()
    inner = torch.tensor([0.0, 0.3, 0.6, 0.9])[:, None]
    outer = torch.tensor([0.3, 0.6, 0.9, 9.0])[:, None]
    inside = ((radius >= inner) & (radius < outer)).to(torch.float32)
    return inside / inside.sum(1, keepdim=True)


def _from_centre(side: int) -> Tensor:
    """Return the distance of each pixel from the middle of an axis; 1 is half the axis."""
    return (torch.arange(side) - (side - 1) / 2) / (side / 2)
