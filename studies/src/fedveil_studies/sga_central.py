"""SGA-LDP as its section B reads: the server sees each raw update, works out its budget, and adds its noise.

Source: the SGA-LDP paper, section III-B ("each incoming client update is compared ..."), and of its outlook (sections
V and VI) similarity by clusters and thresholds that follow the round.

Trust model: the server is trusted with every raw update, so nothing here is local privacy, whatever the paper calls it.
What it is good for: a malicious client cannot lie about its similarity or leave its noise out. Heuristic: the noise's
size follows the private updates.

    S_i       = max over references r of cos(Delta_i, r)
    epsilon_i = epsilon_min + (epsilon_max - epsilon_min) s(S_i)      s: max(0, S_i), or the share of the round's range
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedveil.accounting import Heuristic, Release, Spend, of_round
from fedveil.aggregation import cluster_means
from fedveil.calibration import AlignmentLDP, cosine
from fedveil.checks import Count, Delta, Positive
from fedveil.clipping import clip, norms
from fedveil.errors import FieldError
from fedveil.mechanisms import GaussianNoise, Source, noised
from fedveil.methods import (
    AroundRule,
    Combined,
    Plain,
    Releases,
    ServerFacts,
    Sides,
    TrustedServer,
    models_of,
)


@dataclass(frozen=True)
class References:
    """State of the rule, and reference directions [k, d] with which updates are compared; None before the first round."""

    rule: Any
    directions: Tensor | None = None


@dataclass(frozen=True)
class SGACentral(AroundRule):
    """Server side of SGA-LDP's section B.

    Parameters
    ----------
    aggregator : Aggregator
        The rule that combines the noised updates; the paper's is the mean.
    epsilon_min, epsilon_max, delta, clip : float
        As for `SGALDP`; epsilon_max above epsilon_min, since with one budget for all this is global DP.
    clusters : int
        1: the reference is the last global update. k: the means of k clusters of the last round's clipped updates, of
        which the nearest counts, so that a rare client may be like other rare ones.
    thresholds : {"fixed", "round"}
        ``"round"``: the least similarity of the round gets epsilon_min and the largest epsilon_max, whatever they are.
    """

    epsilon_min: Positive = field(default=1.0, kw_only=True)
    epsilon_max: Positive = field(default=5.0, kw_only=True)
    delta: Delta = field(default=1e-5, kw_only=True)
    clip: Positive = field(default=1.0, kw_only=True)
    clusters: Count = field(default=1, kw_only=True)
    thresholds: Literal["fixed", "round"] = field(default="fixed", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._calibrator()
        if self.epsilon_min == self.epsilon_max:
            accepted = 'must be above epsilon_min: one budget for all needs no similarity, take method = "global"'
            raise FieldError("epsilon_max", self.epsilon_max, accepted)

    @property
    def public_clip(self) -> float:  # type: ignore[override]
        """Clip C."""
        return self.clip

    def init(self, dimension: int, dtype: torch.dtype) -> References:
        return References(self.aggregator.init(dimension, dtype))

    def combine(
        self, replies: Sequence[Releases], facts: ServerFacts, state: References, source: Source
    ) -> Combined:
        """Clip and noise each update by its own similarity, then aggregate."""
        theta, calibrator = facts.broadcast.models[0], self._calibrator()
        raw = [model - theta for model in models_of(replies)]
        lengths = torch.stack([norms(update) for update in raw])
        clipped = torch.stack([clip(update, self.clip) for update in raw])
        epsilons = map(calibrator.epsilon_at, self._similarities(clipped, state))
        sigmas = list(map(calibrator.sigma, epsilons))
        sent = []
        for u, sigma, p, reply in zip(clipped, sigmas, facts.partitions, replies, strict=True):
            noisy = noised(u, GaussianNoise(sigma), source.child("sga", p))
            model = Release("model", theta + noisy)
            sent.append(tuple(model if one.kind == "model" else one for one in reply))
        combined = Plain(self.aggregator).combine(sent, facts, state.rule, source)
        if self.clusters == 1:
            directions = combined.models - theta
        else:
            # the first centres are updates spread over the order of partitions
            centres = clipped[torch.linspace(0, len(clipped) - 1, self.clusters).long()]
            if state.directions is not None:
                centres = state.directions
            directions = cluster_means(clipped, centres)[0]
        squares = [sigma * sigma for sigma in sigmas]
        sigma = math.sqrt(sum(squares)) / len(sigmas)  # of their mean
        why = Heuristic("the noise's size depends on the clients' unprotected updates")
        report = {
            **combined.report,
            "clip": self.clip,
            "clipped_fraction": float((lengths > self.clip).double().mean()),
            "update_norm_median": float(lengths.median()),
            "sigma": sigma,
            "noise_to_clip": sigma * theta.numel() ** 0.5 / self.clip,
        }
        spend = Spend(guarantee=of_round(why, "central"), mechanism="gaussian", scale=(sigma,))
        return Combined(combined.models, spend, References(combined.state, directions), report)

    def _calibrator(self) -> AlignmentLDP:
        return AlignmentLDP(self.epsilon_min, self.epsilon_max, self.delta, self.clip)

    def _similarities(self, clipped: Tensor, state: References) -> list[float]:
        """Compute the similarity of every update [n, d], in [0, 1]; 0 without a reference."""
        if state.directions is None:
            return [0.0] * len(clipped)
        cosines = []
        for update in clipped:
            cosines.append(max(cosine(update, direction) for direction in state.directions))
        low, high = min(cosines), max(cosines)
        if self.thresholds == "fixed" or low == high:
            return [max(0.0, s) for s in cosines]
        return [(s - low) / (high - low) for s in cosines]


SIDES = Sides(
    TrustedServer, SGACentral, "SGA-LDP, section B: the server sees updates and adds noise"
)
