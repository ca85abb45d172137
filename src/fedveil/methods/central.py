"""Gaussian noise on the server around any aggregation rule: common part of global DP and metric privacy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedveil.accounting import Draw, Relation, Spend, compose_mu, of_round
from fedveil.accounting.bounds import GDP, ZCDP, Bound, Heuristic
from fedveil.accounting.guarantee import FIXED_COHORT
from fedveil.aggregation import Updates, WeightedMean, padded, require_rule
from fedveil.aggregation.base import even
from fedveil.checks import Clip, NoiseLevel
from fedveil.clipping import QuantileClip
from fedveil.errors import FieldError, require_choice
from fedveil.mechanisms import (
    MECHANISMS,
    DiscreteGaussianNoise,
    GaussianNoise,
    Mechanism,
    Source,
    to_grid,
)
from fedveil.methods.facts import Combined, Releases, ServerFacts
from fedveil.methods.plain import AroundRule
from fedveil.methods.replies import stack_counts, updates_of
from fedveil.ranges import require_within

Order = Literal["formal", "printed"]

STEPS = 1024  # deviation of discrete noise, in steps of its grid
_of_round = lru_cache(maxsize=16)(
    of_round
)  # most rounds have the same guarantee, so its text is made once
PROVEN = {"gaussian": "gaussian", "discrete": "discrete gaussian"}  # mechanisms with a known cost


@dataclass(frozen=True)
class CentralState:
    """State of the server between rounds. Only `rule` and `own` in the printed order are private.

    Attributes
    ----------
    clip : float
        C of the next round.
    rule : object
        State of the rule.
    released : Tensor, optional
        [d], model before the last round.
    sigma : float
        Deviation of the last round's noise; 0 before the first.
    own : Tensor, optional
        [d], last model without its noise, if the rule's next step starts there.
    """

    clip: float
    rule: Any
    released: Tensor | None = None
    sigma: float = 0.0
    own: Tensor | None = None


@dataclass(frozen=True)
class CentralNoise(AroundRule, ABC):
    """Server side that clips every update, aggregates the updates, and adds Gaussian noise.

    With ``order="formal"`` the noise is added to the reduced update, so the rule's optimiser never sees a mean without
    noise. Weights are uniform over the planned cohort; a client without a reply counts as a zero update. With
    ``order="printed"`` (the papers) the noise is added to the rule's output, and n is the number of valid replies.

    Parameters
    ----------
    aggregator : Aggregator
        Aggregation rule.
    noise_multiplier : float
        z. Formal order: the noise's deviation is z times the rule's zero-out sensitivity, which is C / n for a mean.
        Printed order: z * C / n.
    clip : float or QuantileClip
        C, or the rule that adapts it.
    order : {"formal", "printed"}
        Place of the noise.
    step_from : {"released", "own"}
        Where a server optimiser's step begins in the printed order: at the released model, or at the server's own model
        without noise (as in Flower's former strategies).
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring cohorts of the guarantee.
    noise : str
        ``"gaussian"``, ``"discrete"``, or a name in `fedveil.mechanisms.MECHANISMS` (your own is a heuristic).
        Discrete: updates are rounded to a grid and summed as integers with discrete Gaussian noise, so floating point
        leaks nothing. It needs a uniform mean and the formal order; its cost is stated in concentrated DP.
    """

    noise_multiplier: NoiseLevel = field(default=0.01, kw_only=True)
    clip: Clip | QuantileClip = field(default=5.0, kw_only=True)
    order: Order = field(default="formal", kw_only=True)
    step_from: Literal["released", "own"] = field(default="released", kw_only=True)
    relation: Relation = field(default="zero-out", kw_only=True)  # type: ignore[misc]
    noise: str = field(default="gaussian", kw_only=True)

    outside_promise: ClassVar[frozenset[str]] = frozenset({"step_from"})

    def __post_init__(self) -> None:
        """Refuse combinations of parameters that cannot work."""
        self._require_names()
        super().__post_init__()
        if self.step_from == "own" and self.order == "formal":
            raise FieldError(
                "step_from", "own", 'needs order="printed": formal noise goes before the step'
            )
        require_choice("noise", self.noise, (*MECHANISMS, "discrete"))
        if not isinstance(self.clip, QuantileClip):
            require_within("sigma", "noise_multiplier * clip", self.noise_multiplier * self.clip)
        if self.noise == "discrete":
            uniform = (
                isinstance(self.aggregator, WeightedMean) and self.aggregator.weighting == "uniform"
            )
            if self.order != "formal" or not uniform:
                raise FieldError(
                    "noise", "discrete", 'needs order="formal" and a uniform mean inside'
                )
            if isinstance(self.clip, QuantileClip):
                raise FieldError(
                    "clip",
                    self.clip,
                    "discrete noise needs a fixed C: a quantile is noised in floats",
                )
        if self.order == "formal":  # both refuse what has no public bound
            self.aggregator.planned_weights(torch.ones(1), 1, 1)
            self._sensitivity(1.0, 1, self.relation)

    def _require_names(self) -> None:
        """Refuse a number in place of a rule or of a mechanism's name."""
        require_rule("aggregator", self.aggregator)
        if not isinstance(self.noise, str):
            raise FieldError(
                "noise", self.noise, f"names a mechanism; write noise_multiplier={self.noise}"
            )

    @property
    def public_clip(self) -> float | None:  # type: ignore[override]
        """C, the clipping norm of every update; None if it adapts."""
        return None if isinstance(self.clip, QuantileClip) else self.clip

    @property
    def working_copies(self) -> int:  # type: ignore[override]
        """How many stacks combining holds; a rule that needs all coordinates gets clipped updates beside unclipped."""
        if self.noise == "discrete":
            return 6
        held = super().working_copies
        return held + 1 if held else 0

    @property
    def may_be_proven(self) -> bool:  # type: ignore[override]
        """Whether noise of a public scale can have an epsilon with this order, rule and relation."""
        return self.order == "formal" or (
            self.aggregator.identity_step and self.relation != "add/remove"
        )

    @property
    def keeps_released(self) -> bool:  # type: ignore[override]
        """Whether the state follows from released models alone, so that it may be stored."""
        return self.order == "formal" or self.aggregator.identity_step

    def multiplier_for(self, sigma: float, cohort: int) -> float:
        """Return the noise multiplier whose noise has deviation `sigma` in this cohort, before any scaling by a distance.

        Raises
        ------
        FieldError
            If the clipping norm adapts: the deviation then changes with it.
        """
        if isinstance(self.clip, QuantileClip):
            raise FieldError(
                "clip", "a table", "no sigma can be matched while the clipping norm adapts"
            )
        unit = (
            self._sensitivity(self.clip, cohort) if self.order == "formal" else self.clip / cohort
        )
        return sigma / unit

    def init(self, dimension: int, dtype: torch.dtype) -> CentralState:
        """Return the state before the first round: the first C and the rule's state."""
        first = self.clip.initial if isinstance(self.clip, QuantileClip) else self.clip
        return CentralState(first, self.aggregator.init(dimension, dtype))

    def combine(
        self,
        replies: Sequence[Releases],
        facts: ServerFacts,
        state: CentralState,
        source: Source,
    ) -> Combined:
        """Clip, aggregate and add noise (Algorithm 1 of the metric-privacy paper, with theta + clip(update) as a model)."""
        theta, cohort, bound = facts.broadcast.models[0], facts.broadcast.public.cohort, state.clip
        updates, counts = updates_of(replies, theta), stack_counts(replies)
        lengths, clipped = updates.lengths, updates.clipped(bound)
        if self.order == "formal":
            weights = padded(self.aggregator.planned_weights(counts, len(updates), cohort), cohort)
            _check_weights(
                weights, float(weights.max()) * cohort <= 1 + 1e-9, f"be at most 1/{cohort} each"
            )
            base = self.noise_multiplier * self._sensitivity(bound, cohort)
        else:
            weights = self.aggregator.weights(counts, len(updates))
            _check_weights(weights, abs(float(weights.sum()) - 1) <= 1e-6, "sum to 1")
            base = self.noise_multiplier * bound / len(updates)
        sigma, figures = self._scale(base, updates, clipped, facts, state)
        own: Tensor | None = None
        if self.noise == "discrete":
            reduced = _integer_mean(clipped.stack, bound, sigma, cohort, source)
            model, inner = self.aggregator.step(theta, reduced, state.rule)
        else:
            noise = MECHANISMS[self.noise](sigma)
            rule = self.aggregator.for_round(state.rule, source, facts.public_update)
            size = cohort if self.order == "formal" else max(len(updates), min(rule.least, cohort))
            reduced = clipped.reduce(rule, weights, size)
            # rounding the sum to another type could move it further than the clip allows
            if reduced.dtype != torch.float64 or reduced.shape != theta.shape:
                accepted = f"its reduce must return float64 {tuple(theta.shape)}"
                raise FieldError(
                    f"{type(rule).__name__}.reduce",
                    f"{reduced.dtype} {tuple(reduced.shape)}",
                    accepted,
                )
            # an identity step after the noise changes nothing but rounding, which is then post-processing
            noise_first = self.order == "formal" or self.aggregator.identity_step
            if (
                noise_first
            ):  # in float64, so that nothing is rounded to the model's type before it has noise
                rounded = _noised(reduced, noise, source, theta.dtype)
                model, inner = self.aggregator.step(theta, rounded, state.rule)
            else:
                model, own, inner = self._optimised(theta, reduced.to(theta.dtype), state)
                noise.add_to(model, source=source)
        report = {
            "clients": float(len(updates)),
            "clip": bound,
            "clipped_fraction": int((lengths > bound).sum()) / len(updates),
            "update_norm_median": float(lengths.median()),
            "sigma": sigma,
            "noise_to_clip": sigma * theta.numel() ** 0.5 / bound,
            **figures,
        }
        spend = self._spend(sigma, bound, weights, cohort)
        if isinstance(self.clip, QuantileClip):
            bound = self.clip.next(bound, padded(lengths, cohort), float(source.normal(1)[0]))
            spend = _with_bit(spend, self.clip)
        return Combined(
            model[None],
            spend,
            CentralState(
                bound,
                inner,
                theta.clone(),
                sigma,
                own,
            ),
            report,
        )

    def _optimised(
        self,
        theta: Tensor,
        reduced: Tensor,
        state: CentralState,
    ) -> tuple[Tensor, Tensor | None, Any]:
        """Make the optimiser's step from the reduced update.

        Returns
        -------
        tuple
            Next model, start of the next step (None: the released model), and the rule's state.
        """
        start = theta if self.step_from == "released" or state.own is None else state.own
        model, inner = self.aggregator.step(start, reduced + (theta - start), state.rule)
        return model, model.clone() if self.step_from == "own" else None, inner

    def _scale(
        self,
        base: float,
        updates: Updates,
        clipped: Updates,
        facts: ServerFacts,
        state: CentralState,
    ) -> tuple[float, dict[str, float]]:
        """Return the deviation of the noise, and figures for the log; here `base` without any calibration."""
        return base, {}

    @abstractmethod
    def _spend(self, sigma: float, bound: float, weights: Tensor, cohort: int) -> Spend:
        """Return the cost of one round's model, with updates clipped to `bound`."""

    def _sensitivity(
        self,
        bound: float,
        cohort: int,
        relation: Relation = "zero-out",
    ) -> float:
        """Return the rule's sensitivity over a planned cohort; an absent client counts as a zero update."""
        weights = even(cohort)
        fixed: Relation = "zero-out" if relation == "add/remove" else relation
        value = self.aggregator.sensitivity(bound, weights, fixed)
        if value is None:
            name = type(self.aggregator).__name__
            raise FieldError(
                "aggregator", name, "has no sensitivity, so formal noise is impossible"
            )
        return value

    def _proven(
        self,
        sigma: float,
        bound: float,
        weights: Tensor,
        cohort: int,
    ) -> Spend:
        """Return the cost of noise with a public scale: proven if the rule has a sensitivity, else heuristic."""
        if self.noise not in PROVEN:
            return self._heuristic(f"nothing is proven of {self.noise!r} noise", sigma)
        conditions: tuple[str, ...] = ()
        if self.order == "formal":
            sensitivity: float | None = self._sensitivity(bound, cohort, self.relation)
            weights = even(
                cohort
            )  # upper bound of the weights; a share that follows a count is private
            if self.relation == "add/remove":
                conditions += (FIXED_COHORT,)
        elif not self.aggregator.identity_step:
            return self._heuristic("the server's optimiser saw the mean before the noise", sigma)
        elif self.relation == "add/remove":
            return self._heuristic(
                "divisor and noise follow the number of replies, which add/remove is to hide", sigma
            )
        else:
            sensitivity = self.aggregator.sensitivity(bound, weights, self.relation)
            conditions += ("who replies with a usable model does not depend on private data",)
            if self.aggregator.by_examples:
                conditions += ("example counts are public",)
        if sensitivity is None:
            return self._heuristic("the aggregation rule has no sensitivity", sigma)
        slope = self.aggregator.lipschitz(weights)
        if self.order == "formal" and self.aggregator.by_examples:
            slope = None  # a private count moves the release even if the update stays the same
        if self.noise == "discrete":
            proven: Bound = ZCDP((sensitivity / sigma) ** 2 / 2)
        else:
            proven = GDP(sensitivity / sigma, None if slope is None else slope / sigma)
        guarantee = _of_round(proven, "central", self.relation, *conditions)
        curve = None if self.noise == "discrete" else slope
        drawn = (
            Draw(
                unit="client",
                relation=self.relation,
                moved=sensitivity,
                noise=sigma,
                slope=curve,
            ),
        )
        mechanism = PROVEN[self.noise]
        return Spend(
            guarantee=guarantee,
            mechanism=mechanism,
            scale=(sigma,),
            sensitivity=sensitivity,
            draws=drawn,
        )

    def _heuristic(self, reason: str, sigma: float) -> Spend:
        guarantee = _of_round(Heuristic(reason), "central", self.relation)
        return Spend(
            guarantee=guarantee,
            mechanism=PROVEN.get(self.noise, self.noise),
            scale=(sigma,),
        )


def _noised(
    reduced: Tensor,
    noise: Mechanism,
    source: Source,
    dtype: torch.dtype,
) -> Tensor:
    """Return a copy of an update [d] with noise, in another number type; the update itself is unchanged."""
    if isinstance(noise, GaussianNoise):
        return noise.add_to(reduced, source=source, into=torch.empty_like(reduced, dtype=dtype))
    noised = reduced.clone()
    noise.add_to(noised, source=source)
    return noised.to(dtype)


def _check_weights(weights: Tensor, kept: bool, rule: str) -> None:
    """Refuse weights that would make the stated sensitivity wrong."""
    if not kept or not bool((weights >= 0).all()):
        given = f"from {float(weights.min()):g} to {float(weights.max()):g}, sum {float(weights.sum()):g}"
        raise FieldError("weights", given, f"a rule's weights must not be negative and must {rule}")


def _with_bit(spend: Spend, adaptive: QuantileClip) -> Spend:
    """Add to a spend the cost of the noised share of clipped updates, from which the next C follows."""
    if spend.guarantee.mu is None:
        return spend
    bit = 1 / adaptive.bit_noise
    both = compose_mu((spend.guarantee.mu, bit))
    charge = None if spend.charge is None else compose_mu((spend.charge, bit))
    drawn = Draw(
        unit="client",
        relation=spend.guarantee.relation,
        moved=1.0,
        noise=adaptive.bit_noise,
    )
    # a client's bit changes with its update, and the curve over the update's distance leaves the bit out
    guarantee = replace(spend.guarantee, bound=GDP(both))
    return replace(
        spend,
        guarantee=guarantee,
        charge=charge,
        draws=(*spend.draws, drawn),
    )


def _integer_mean(
    clipped: Tensor,
    bound: float,
    sigma: float,
    cohort: int,
    source: Source,
) -> Tensor:
    """Compute the noised mean over a planned cohort in integers, on a grid of sigma * cohort / STEPS."""
    grid = sigma * cohort / STEPS
    noise = DiscreteGaussianNoise(STEPS).sample(clipped.shape[1], source=source)
    steps = to_grid(clipped, bound, grid).sum(0) + noise
    return (steps.to(torch.float64) * (grid / cohort)).to(clipped.dtype)
