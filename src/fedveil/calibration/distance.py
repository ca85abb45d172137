"""Global and metric calibration of the server's noise (metric-privacy paper, section 6 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedveil.errors import FieldError, require_choice, require_count, require_non_negative, require_positive
from fedveil.layout import Grouping, Layout

Direction = Literal["less", "more"]

_DIRECT = 8  # up to this many models, pairs are subtracted directly; above, a centred Gram matrix is faster
_COLUMNS = 1 << 15


def max_pairwise_distance(
    models: Tensor, layout: Layout, grouping: Grouping = "array", metric: str = "layer_frobenius"
) -> float:
    """Largest distance between two models of a round.

    Parameters
    ----------
    models : Tensor
        [n, d], the clients' models (or their updates: the common start cancels).
    layout : Layout
        Says what a layer is.
    grouping : {"array", "module"}
        ``"array"`` counts weight and bias as two layers, as the authors' code does.
    metric : str
        A name of `METRICS`. ``"layer_frobenius"``: the mean over layers of the Frobenius norm of the difference;
        ``"euclidean"``: the norm of the whole difference.

    Returns
    -------
    float
        d_r; 0 for a single model or identical ones.

    Raises
    ------
    FieldError
        For an unknown metric, a wrong shape, NaN or infinity.
    """
    layout.check(models, "models")
    if models.dim() != 2:
        raise FieldError("models", tuple(models.shape), "must be [n, d]")
    if not torch.isfinite(models).all():
        raise FieldError("models", "NaN or infinity", "must be finite: drop damaged replies first")
    distances = METRICS[require_choice("metric", metric, METRICS)](models, layout, grouping)
    return float(distances.max()) if len(models) > 1 else 0.0


def layer_frobenius(models: Tensor, layout: Layout, grouping: Grouping) -> Tensor:
    """Mean over layers of the distance between each pair's layers; [n, n] float64."""
    groups = list(layout.groups(grouping).values())
    total = torch.zeros(len(models), len(models), dtype=torch.float64)
    for slices in groups:
        total += sum(squared_distances(models[:, s]) for s in slices).sqrt()  # type: ignore[union-attr]
    return total / len(groups)


def euclidean(models: Tensor, layout: Layout, grouping: Grouping) -> Tensor:
    """Distance between whole models; [n, n] float64."""
    return squared_distances(models).sqrt()


METRICS: dict[str, Callable[[Tensor, Layout, Grouping], Tensor]] = {
    "layer_frobenius": layer_frobenius,
    "euclidean": euclidean,
}


def squared_distances(block: Tensor) -> Tensor:
    """Squared Euclidean distances between rows [n, d], as [n, n] in float64; worked on in column blocks."""
    n = len(block)
    total = torch.zeros(n, n, dtype=torch.float64)
    for start in range(0, block.shape[1], _COLUMNS):
        part = block[:, start : start + _COLUMNS].to(torch.float64)
        if n <= _DIRECT:
            for i in range(n):
                total[i] += (part - part[i]).square().sum(1)
        else:  # centred first: a raw Gram matrix cancels catastrophically for close models
            part = part - part.mean(0)
            gram = part @ part.T
            diagonal = gram.diagonal()
            total += diagonal[:, None] + diagonal[None, :] - 2 * gram
    total = total.clamp_min_(0.0)
    return total.fill_diagonal_(0.0)


@dataclass(frozen=True)
class GlobalCalibrator:
    """Global DP's scale: sigma = z * C / n.

    Parameters
    ----------
    noise_multiplier : float
        z, positive.
    clip : float
        C, positive.
    """

    noise_multiplier: float
    clip: float

    def __post_init__(self) -> None:
        """Check both."""
        require_positive("noise_multiplier", self.noise_multiplier)
        require_positive("clip", self.clip)

    def sigma(self, n: int) -> float:
        """Standard deviation per coordinate of the noise on an average over n clients."""
        return self.noise_multiplier * self.clip / require_count("n", n)


@dataclass(frozen=True)
class MetricCalibrator:
    """Metric privacy's scale: sigma = z * C / (n * d). A heuristic: sigma itself depends on private models.

    Parameters
    ----------
    noise_multiplier, clip : float
        z and C, positive.
    direction : {"less", "more"}
        ``"less"``: a larger distance gives less noise (the paper's formula and budget). ``"more"``: it gives more (what
        the paper's text says), sigma = z * C * d / n.
    """

    noise_multiplier: float
    clip: float
    direction: Direction = "less"

    def __post_init__(self) -> None:
        """Check all."""
        require_positive("noise_multiplier", self.noise_multiplier)
        require_positive("clip", self.clip)
        require_choice("direction", self.direction, ("less", "more"))

    def sigma(self, n: int, distance: float) -> float:
        """Standard deviation per coordinate; a distance of 0 gives the global scale, never a division by zero."""
        base = GlobalCalibrator(self.noise_multiplier, self.clip).sigma(n)
        d = require_non_negative("distance", distance)
        if d == 0:
            return base
        return base / d if self.direction == "less" else base * d
