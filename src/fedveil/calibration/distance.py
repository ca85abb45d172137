"""Global and metric calibration of the server's noise (metric-privacy paper, section 6 and Algorithm 1)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedveil.calibration.pairs import strip
from fedveil.checks import Parameters, Positive
from fedveil.clipping import norms
from fedveil.errors import FieldError, require_choice, require_count, require_non_negative
from fedveil.layout import Grouping, Layout
from fedveil.registry import Registry

Direction = Literal["less", "more"]
Groups = list[list[slice]]

METRICS: Registry[Callable[[Layout, Grouping], Groups]] = Registry(
    "privacy.distance",
    {
        "layer_frobenius": lambda layout, grouping: list(layout.groups(grouping).values()),
        "euclidean": lambda layout, grouping: [[slice(0, layout.size)]],
        "cosine": lambda layout, grouping: [[slice(0, layout.size)]],
    },
)
"""A metric is the mean over some groups of coordinates of the Euclidean norm over each: all layers, or one of all.

`COSINE` is half the square of that between updates of length 1.
"""

COSINE = "cosine"

_HEIGHT = 1 << 10  # pairs are worked on for so many models at a time: the matrix of all pairs is never held
_AGAIN = (1 - 1e-5, 8)  # pairs so close to the largest, and at most so many, are measured again in float64


def max_pairwise_distance(
    models: Tensor,
    layout: Layout,
    grouping: Grouping = "array",
    metric: str = "layer_frobenius",
) -> float:
    """Largest distance between two models of a round.

    Parameters
    ----------
    models : Tensor
        [n, d], the clients' models, or their updates: the common start cancels; for a cosine, updates.
    layout : Layout
        Says what a layer is.
    grouping : {"array", "module"}
        ``"array"`` counts weight and bias as two layers, as the authors' code does.
    metric : str
        A name of `METRICS`. ``"layer_frobenius"``: the mean over layers of the Frobenius norm of the difference;
        ``"euclidean"``: the norm of the whole difference; ``"cosine"``: one less the cosine, of whatever lengths. An
        update of length 0 has no direction: it lies .5 from every other.

    Returns
    -------
    float
        d_r, relative error below 1e-6 (of a cosine, error); 0 for a single model or identical ones.

    Raises
    ------
    FieldError
        For an unknown metric, a wrong shape, NaN or infinity.

    Notes
    -----
    n^2 d / 2 multiplications, in float32 and centred (`fedveil.calibration.pairs`); the winners are measured again in
    float64, so that the result is the distance of two of the models and never above the largest.
    """
    layout.check(models, "models")
    if models.dim() != 2:
        raise FieldError("models", tuple(models.shape), "must be [n, d]")
    # without a mask as large as the models
    if not all(bool(torch.isfinite(torch.stack(torch.aminmax(row))).all()) for row in models):
        raise FieldError("models", "NaN or infinity", "must be finite: drop damaged replies first")
    groups = METRICS[require_choice("metric", metric, METRICS)](layout, grouping)
    if metric == COSINE:
        lengths = norms(models)
        models = models / torch.where(lengths > 0, lengths, 1.0)[:, None]
    pairs = _farthest(models, groups)
    again = (_strip(models, groups, torch.tensor(pair), 1, torch.float64)[0, 1] for pair in pairs)
    found = max(map(float, again), default=0.0)
    return found**2 / 2 if metric == COSINE else found


def _farthest(models: Tensor, groups: Groups) -> list[tuple[int, int]]:
    """Pairs of models that are the farthest, as far as float32 can tell."""
    n, found = len(models), list[tuple[float, int, int]]()
    for first in range(0, n - 1, _HEIGHT):
        distances = _strip(models, groups, torch.arange(first, n), min(_HEIGHT, n - first)).triu_(1)
        longest, places = distances.flatten().topk(min(_AGAIN[1], distances.numel()))
        for distance, place in zip(longest.tolist(), places.tolist(), strict=True):
            i, j = divmod(place, n - first)
            found += [(distance, first + i, first + j)] if i < j else []
    found.sort(reverse=True)
    return [(i, j) for distance, i, j in found[: _AGAIN[1]] if distance >= _AGAIN[0] * found[0][0]]


def _strip(models: Tensor, groups: Groups, members: Tensor, height: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The metric between the first few members and all of them, [h, m]."""
    total = torch.zeros(height, len(members), dtype=torch.float64)
    for columns in groups:
        total += strip((models,), columns, members, height, dtype)[0].sqrt_()
    return total.div_(len(groups))


@dataclass(frozen=True)
class MetricCalibrator(Parameters):
    """Metric privacy's scale: sigma = z * C / (n * d). A heuristic: sigma itself depends on private models.

    Parameters
    ----------
    noise_multiplier, clip : float
        z and C, positive.
    direction : {"less", "more"}
        ``"less"``: a larger distance gives less noise (the paper's formula and budget). ``"more"``: it gives more (what
        the paper's text says), sigma = z * C * d / n.
    """

    noise_multiplier: Positive
    clip: Positive
    direction: Direction = "less"

    def sigma(self, n: int, distance: float) -> float:
        """Deviation per coordinate of the noise on a mean of n; at distance 0 that of global DP, z * C / n."""
        base = self.noise_multiplier * self.clip / require_count("n", n)
        d = require_non_negative("distance", distance)
        if d == 0:
            return base
        return base / d if self.direction == "less" else base * d
