"""Group privacy for personalised models: Laplace noise on each client, k-means on the server.

Source: the group-privacy paper, Algorithms 1 and 2. Trust model: untrusted server. The server broadcasts k hypotheses.
A client trains the best one for its data. It sends the trained *model* plus n-dimensional Laplace noise with epsilon =
n / (nu * ||delta||). The server clusters the received models by k-means, which starts at the hypotheses. It is a
heuristic, as epsilon depends on the length ||delta|| of the private step. The leakage n / nu of a participation is
public and adds up. The client's choice of a hypothesis is private too. Its protection depends on the distance between
hypotheses, and every spend states that distance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedveil.accounting import EuclideanLaplace, Release, Spend, model_of, nothing, of_round
from fedveil.accounting.bounds import Bound, Heuristic, MetricDP, MetricGDP
from fedveil.accounting.guarantee import LIVENESS
from fedveil.aggregation import NoState, cluster_means, halves
from fedveil.calibration import NeighbourhoodLaplace
from fedveil.checks import Hypotheses, Natural, NonNegative, Radius
from fedveil.clipping import norms
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.mechanisms import EuclideanLaplaceNoise, GaussianNoise, Source, noised
from fedveil.methods.contract import ClientDefaults, ServerDefaults
from fedveil.methods.facts import Broadcast, ClientFacts, Combined, Protected, Releases, ServerFacts
from fedveil.methods.replies import stack_models


@dataclass(frozen=True, kw_only=True)
class GroupPrivacy(ClientDefaults):
    """Client side of group privacy.

    Parameters
    ----------
    noise_multiplier : float
        nu: expected length of the noise, divided by the length of the client's step; 0 means no noise.
    radius : float, optional
        Public radius r that replaces the private length of the step (the sound variant). Each release is
        then epsilon-d-private with epsilon = n / (nu * r), for n parameters.
    fallback_radius : float
        Public radius for a client whose step has length 0 because training failed or changed nothing.
    distribution : {"laplace", "gaussian"}
        Distribution of the noise. Gaussian noise of the same expected length nu * r needs a public radius. Two models D
        apart are then (D / sigma)-GDP apart, in any dimension.

    Examples
    --------
    >>> fv.GroupPrivacy(radius=0.5).trust
    'local'
    """

    noise_multiplier: NonNegative = 5.0
    radius: Radius | None = None
    fallback_radius: Radius = 1.0
    distribution: Literal["laplace", "gaussian"] = "laplace"

    most_models: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        """Check nu and the radii."""
        super().__post_init__()
        if self.radius is None and self.distribution == "gaussian":
            raise FieldError("radius", None, "Gaussian noise takes a public radius")

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Return figures of the median client's noise; without a public radius the ratio to the step is always nu."""
        if self.distribution == "gaussian":
            return {"sigma": median(scale[0] for scale in scales)}
        figures = {"sigma": median(math.sqrt(layout.size + 1) / scale[0] for scale in scales)}
        if self.radius:
            return figures
        return {
            **figures,
            "noise_to_step": self.noise_multiplier,
            "signal_to_noise": 1 / self.noise_multiplier,
        }

    def quote(self, broadcast: Broadcast, state: NoState) -> Spend:
        """Return the cost of taking part, the same every time: a heuristic with the public leakage n / nu.

        With a `radius` r it is a conditional promise: epsilon = n / (nu r) for each unit of distance.
        """
        return self._spend((), broadcast)

    def protect(
        self,
        releases: Releases,
        facts: ClientFacts,
        state: NoState,
        source: Source,
    ) -> Protected:
        """Add noise to the model; everything else (counts, metrics, the chosen index) stays on the client."""
        model = model_of(releases)
        if model is None:
            return Protected((), nothing("local"), state)
        if self.noise_multiplier == 0:
            return Protected((Release("model", model),), self._spend((), facts.broadcast), state)
        norms(
            model
        )  # refuses NaN, infinity, and numbers so large that the noise would be lost in rounding
        step = model - facts.start
        if self.distribution == "gaussian":
            spend = self._spend((), facts.broadcast)
            loud = noised(model, GaussianNoise(spend.scale[0]), source)
            return Protected((Release("model", loud),), spend, state)
        if self.radius is None and not facts.failed and bool(step.any()):
            epsilon = NeighbourhoodLaplace(self.noise_multiplier).epsilon(step)
        else:
            radius = self.fallback_radius if self.radius is None else self.radius
            epsilon = self._public_epsilon(radius, len(model))
        released = noised(model, EuclideanLaplaceNoise(epsilon), source)
        return Protected(
            (Release("model", released),), self._spend((epsilon,), facts.broadcast), state
        )

    def _public_epsilon(self, radius: float, dimension: int) -> float:
        return dimension / (self.noise_multiplier * radius)

    def _spend(self, scale: tuple[float, ...], broadcast: Broadcast) -> Spend:
        if self.noise_multiplier == 0:
            return nothing("local")
        apart = broadcast.apart if len(broadcast.models) > 1 else None
        spend = _spend_of(self, broadcast.public.dimension, apart)
        if scale and self.radius is None:
            return replace(spend, scale=scale)
        return spend


@lru_cache(maxsize=256)
def _spend_of(side: GroupPrivacy, dimension: int, apart: float | None) -> Spend:
    """Return the cost of taking part without the private scale, which is the same for all clients of a round."""
    leakage: float | None = NeighbourhoodLaplace(side.noise_multiplier).leakage(dimension)
    bound: Bound = Heuristic("epsilon depends on the length of the client's private step")
    scale: tuple[float, ...] = ()
    mechanism = "euclidean-laplace"
    if side.radius is not None:
        epsilon = side._public_epsilon(side.radius, dimension)
        seen = ((EuclideanLaplace(dimension, epsilon), 1),)
        bound = MetricDP(epsilon, seen)
        scale = (epsilon,)
        if side.distribution == "gaussian":
            sigma = side.noise_multiplier * side.radius / mean_length(dimension)
            bound, scale, leakage, mechanism = MetricGDP(1 / sigma), (sigma,), None, "gaussian"
    conditions = () if side.radius is None else (LIVENESS,)
    guarantee = of_round(bound, "local", "replace-one", *conditions)
    guarantee = replace(guarantee, unit="parameter vector", hypotheses_apart=apart)
    return Spend(guarantee=guarantee, mechanism=mechanism, scale=scale, leakage=leakage)


def mean_length(dimension: int) -> float:
    """Return the expected Euclidean length of a standard normal vector."""
    log_ratio = math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2)
    return math.sqrt(2) * math.exp(log_ratio)


@dataclass(frozen=True)
class Idle:
    """Number of consecutive rounds in which each hypothesis [k] had no member."""

    rounds: Tensor


@dataclass(frozen=True, kw_only=True)
class Clusters(ServerDefaults):
    """Server side of group privacy: k-means that starts at the hypotheses, then the mean of each cluster.

    Parameters
    ----------
    hypotheses : int
        k, the number of models.
    divide : int
        Rounds without a member after which a hypothesis gets half of the largest cluster; 0: never, as in the paper.
    """

    hypotheses: Hypotheses = 2  # type: ignore[misc]
    divide: Natural = 0
    working_copies: ClassVar[int] = (
        4  # all models, the members of one cluster, and these in float64
    )

    def init(self, dimension: int, dtype: torch.dtype) -> NoState | Idle:
        """Return the state before the first round: no hypothesis has been idle."""
        if not self.divide:
            return NoState()
        return Idle(torch.zeros(self.hypotheses, dtype=torch.int64))

    def combine(
        self,
        replies: Sequence[Releases],
        facts: ServerFacts,
        state: NoState | Idle,
        source: Source,
    ) -> Combined:
        """Cluster the models and average each cluster; a hypothesis without members stays, or takes half a cluster."""
        models, starts = stack_models(replies), facts.broadcast.models
        return self._combined(models, starts, *cluster_means(models, starts), state)

    def _combined(
        self,
        models: Tensor,
        starts: Tensor,
        centres: Tensor,
        labels: Tensor,
        state: NoState | Idle,
    ) -> Combined:
        """Make the next hypotheses from the means [k, d] and each model's cluster (-1: none)."""
        sizes = torch.bincount(labels[labels >= 0], minlength=len(starts))
        report: dict[str, float] = {}
        if isinstance(state, Idle):
            state = Idle(torch.where(sizes > 0, 0, state.rounds + 1))
            anew, largest = int(state.rounds.argmax()), int(sizes.argmax())
            members = models[labels == largest]
            second = halves(members, starts[largest])
            report["divided"] = float(state.rounds[anew] >= self.divide and bool(second.any()))
            if report["divided"]:
                centres[largest], centres[anew] = mean(members[~second]), mean(members[second])
                state.rounds[anew] = 0
        for number, size in enumerate(sizes):
            report[f"cluster_{number}"] = float(size)
        assigned = float((labels >= 0).sum())
        return Combined(centres, nothing("local"), state, {"clients": assigned, **report})


def mean(models: Tensor) -> Tensor:
    """Compute the mean of models [n, d], summed in float64."""
    return models.to(torch.float64).mean(0).to(models.dtype)
