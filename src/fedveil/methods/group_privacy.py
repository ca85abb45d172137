"""Group privacy for personalised models: Laplace noise on each client, k-means on the server.

Source: the group-privacy paper, Algorithms 1 and 2. Trust model: untrusted server. The server broadcasts k hypotheses;
a client trains the one that fits its data best and sends that *model* plus n-dimensional Laplace noise with
epsilon = n / (nu * ||delta||); the server clusters what it receives, started at the hypotheses. Heuristic: epsilon
depends on the private step. The leakage n / nu of a participation is public and adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedveil.accounting import Guarantee, Release, Spend, Trust, model_of, nothing
from fedveil.aggregation import NoState, cluster_means
from fedveil.calibration import NeighbourhoodLaplace
from fedveil.errors import FieldError, require_count, require_non_negative, require_positive
from fedveil.mechanisms import EuclideanLaplace, Source
from fedveil.methods.contract import (
    ALWAYS_REPLIES,
    Broadcast,
    ClientFacts,
    Combined,
    Protected,
    Releases,
    ServerFacts,
    stack_models,
)


@dataclass(frozen=True, kw_only=True)
class GroupPrivacy:
    """Client side of group privacy.

    Parameters
    ----------
    noise_multiplier : float
        nu: the expected length of the noise over the length of the client's step; 0 means no noise.
    radius : float, optional
        The sound variant: a public radius r takes the place of the private length, epsilon = n / (nu * r), and each
        release is epsilon-d-private.
    """

    noise_multiplier: float = 5.0
    radius: float | None = None

    trust: ClassVar[Trust] = "local"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        """Check nu."""
        require_non_negative("noise_multiplier", self.noise_multiplier)
        if self.radius is not None:
            require_positive("radius", self.radius)

    def init(self) -> NoState:
        """Nothing to remember."""
        return NoState()

    def quote(self, broadcast: Broadcast, state: NoState) -> Spend:
        """A heuristic participation; its leakage n / nu is public and the same every time."""
        return self._spend((), broadcast.public.dimension)

    def protect(self, releases: Releases, facts: ClientFacts, state: NoState, source: Source) -> Protected:
        """Noise the model; everything else (counts, metrics, the chosen index) stays on the client."""
        model = model_of(releases)
        if model is None:
            return Protected((), nothing("local"), state)
        if self.noise_multiplier == 0:
            return Protected((Release("model", model),), self._spend((), len(model)), state)
        if not torch.isfinite(model).all():
            raise FieldError("model", "NaN or infinity", "must be finite")
        epsilon = self._public_epsilon(len(model))
        if epsilon is None:
            epsilon = NeighbourhoodLaplace(self.noise_multiplier).epsilon(model - facts.start)
        noise = EuclideanLaplace(epsilon).sample(len(model), source=source, dtype=model.dtype)
        return Protected((Release("model", model + noise),), self._spend((epsilon,), len(model)), state)

    def _public_epsilon(self, dimension: int) -> float | None:
        return None if self.radius is None else dimension / (self.noise_multiplier * self.radius)

    def _spend(self, scale: tuple[float, ...], dimension: int) -> Spend:
        if self.noise_multiplier == 0:
            return nothing("local")
        leakage = NeighbourhoodLaplace(self.noise_multiplier).leakage(dimension)
        epsilon = self._public_epsilon(dimension)
        if epsilon is not None:
            guarantee = Guarantee(
                unit="parameter vector",
                relation="replace-one",
                trust="local",
                status="conditional",
                scope="round",
                epsilon_per_distance=epsilon,
                conditions=(ALWAYS_REPLIES,),
            )
            return Spend(guarantee=guarantee, mechanism="euclidean-laplace", scale=(epsilon,), leakage=leakage)
        guarantee = Guarantee(
            unit="parameter vector",
            relation="replace-one",
            trust="local",
            status="heuristic",
            scope="round",
            reason="epsilon depends on the length of the client's private step",
        )
        return Spend(guarantee=guarantee, mechanism="euclidean-laplace", scale=scale, leakage=leakage)


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Server side of group privacy: k-means from the hypotheses, then the mean of each cluster.

    Parameters
    ----------
    hypotheses : int
        k.
    """

    hypotheses: int = 2

    needs: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        """Check k."""
        require_count("hypotheses", self.hypotheses)

    def init(self, dimension: int, dtype: torch.dtype) -> NoState:
        """Nothing to remember."""
        return NoState()

    def combine(self, replies: Sequence[Releases], facts: ServerFacts, state: NoState, source: Source) -> Combined:
        """Cluster and average; a hypothesis without members is carried over."""
        centres, labels = cluster_means(stack_models(replies), facts.broadcast.models)
        sizes = torch.bincount(labels, minlength=len(centres))
        report = {f"cluster_{j}": float(size) for j, size in enumerate(sizes)}
        return Combined(centres, nothing("local"), state, {"clients": float(len(labels)), **report})
