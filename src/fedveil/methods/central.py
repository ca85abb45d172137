"""Server-side Gaussian noise around any aggregation rule: what global DP and metric privacy share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedveil.accounting import Guarantee, Relation, Spend
from fedveil.accounting.planning import FACTOR
from fedveil.aggregation import Aggregator, FedAvg
from fedveil.clipping import clip, norms
from fedveil.errors import FieldError, require_choice, require_positive
from fedveil.layout import Layout
from fedveil.mechanisms import Gaussian, Source
from fedveil.methods.contract import Combined, Releases, ServerFacts, stack_counts, stack_models

Order = Literal["formal", "printed"]


@dataclass(frozen=True)
class CentralNoise(ABC):
    """Clip every update, aggregate, add Gaussian noise.

    With ``order="formal"`` the noise goes between the rule's two halves: clients that did not reply count as zero
    updates of the planned cohort, weights are uniform, and the rule's optimiser never sees an un-noised mean. With
    ``order="printed"`` (the papers) the noise goes on the rule's output and n is the number of valid replies.

    Parameters
    ----------
    aggregator : Aggregator
        The rule inside.
    noise_multiplier : float
        z: the noise's deviation is z * C / n (formal: z times the rule's zero-out sensitivity, the same for a mean).
    clip : float
        C.
    order : {"formal", "printed"}
        Where the noise goes.
    relation : {"zero-out", "add/remove", "replace-one"}
        Which cohorts are neighbours, for the guarantee.
    """

    aggregator: Aggregator = field(default_factory=FedAvg)
    noise_multiplier: float = field(default=0.01, kw_only=True)
    clip: float = field(default=5.0, kw_only=True)
    order: Order = field(default="formal", kw_only=True)
    relation: Relation = field(default="zero-out", kw_only=True)

    needs: ClassVar[frozenset[str]] = frozenset()
    hypotheses: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        require_positive("noise_multiplier", self.noise_multiplier)
        require_positive("clip", self.clip)
        require_choice("order", self.order, ("formal", "printed"))
        require_choice("relation", self.relation, FACTOR)
        if self.order == "formal":
            if getattr(self.aggregator, "weighting", "uniform") != "uniform":
                raise FieldError(
                    "weighting",
                    "examples",
                    'formal noise needs public weights: use weighting="uniform" or order="printed"',
                )
            self._sensitivity(torch.full((1,), 1.0, dtype=torch.float64))

    def init(self, dimension: int, dtype: torch.dtype) -> Any:
        """The rule's state."""
        return self.aggregator.init(dimension, dtype)

    def combine(self, replies: Sequence[Releases], facts: ServerFacts, state: Any, source: Source) -> Combined:
        """Clip, aggregate, add noise (Algorithm 1 of the metric-privacy paper, with theta + clip(update))."""
        theta = facts.broadcast.models[0]
        updates = stack_models(replies) - theta
        clipped = clip(updates, self.clip)
        lengths = norms(updates)
        report = {
            "clients": float(len(updates)),
            "clipped_fraction": float((lengths > self.clip).double().mean()),
            "update_norm_median": float(lengths.median()),
        }
        if self.order == "formal":
            clipped = _pad(clipped, facts.broadcast.public.cohort)
            weights = torch.full((len(clipped),), 1 / len(clipped), dtype=torch.float64)
            base = self.noise_multiplier * self._sensitivity(weights)
        else:
            weights = self.aggregator.weights(stack_counts(replies), len(clipped))
            base = self.noise_multiplier * self.clip / len(clipped)
        sigma, figures = self._scale(base, updates, clipped[: len(updates)], facts.layout)
        noise = Gaussian(sigma).sample(theta.numel(), source=source, dtype=theta.dtype)
        reduced = self.aggregator.reduce(clipped, weights)
        if self.order == "formal":
            model, state = self.aggregator.step(theta, reduced + noise, state)
        else:
            model, state = self.aggregator.step(theta, reduced, state)
            model = model + noise
        report |= {"sigma": sigma, "noise_to_clip": sigma * theta.numel() ** 0.5 / self.clip, **figures}
        return Combined(model[None], self._spend(sigma, weights), state, report)

    @abstractmethod
    def _scale(self, base: float, updates: Tensor, clipped: Tensor, layout: Layout) -> tuple[float, dict[str, float]]:
        """Deviation of the noise from the uncalibrated one `base`, and figures for the log."""

    @abstractmethod
    def _spend(self, sigma: float, weights: Tensor) -> Spend:
        """The cost of one round."""

    def _sensitivity(self, weights: Tensor, relation: Relation = "zero-out") -> float:
        bound = self.aggregator.sensitivity(self.clip, weights, relation)
        if bound is None:
            name = type(self.aggregator).__name__
            raise FieldError(
                "aggregator", name, 'has no sensitivity: formal noise is impossible; order="printed" is heuristic'
            )
        return bound

    def _heuristic(self, reason: str, sigma: float) -> Spend:
        guarantee = Guarantee(
            unit="client", relation=self.relation, trust="central", status="heuristic", scope="round", reason=reason
        )
        return Spend(guarantee=guarantee, mechanism="gaussian", scale=(sigma,))


def _pad(updates: Tensor, cohort: int) -> Tensor:
    """Zero updates for planned clients that did not reply."""
    if len(updates) > cohort:
        raise FieldError("cohort", cohort, f"is less than the number of replies ({len(updates)})")
    return torch.cat([updates, updates.new_zeros(cohort - len(updates), updates.shape[1])])
