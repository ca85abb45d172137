"""Composition: epsilon of any mixture of events together, by the tightest sound bound available.

Gaussian rounds compose in closed form. Subsampling, Laplace, Euclidean Laplace and mixtures go through privacy-loss
distributions; fixed-size sampling and discrete Gaussians through Renyi DP. dp-accounting does the numerical work.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedveil.accounting.euclidean_laplace import discretised, greatest_loss
from fedveil.accounting.events import (
    Changed,
    DiscreteGaussian,
    EuclideanLaplace,
    Event,
    FixedSize,
    Gaussian,
    Laplace,
    Mixture,
    Poisson,
    Relation,
    count_events,
    factor_of,
    overflow_delta,
)
from fedveil.errors import FieldError, kind_of
from fedveil.gdp import Curve, compose_mu, delta_of_mu, epsilon_of_mu
from fedveil.ranges import require_within
from fedveil.registry import optional

# Losses are rounded up to a grid; a coarser grid gives a looser bound. Small noise has large losses, so without a limit
# on the number of points the grid would take all memory.
_INTERVAL = 1e-4
_FIRST_POINTS = 2_000  # points of the widest single loss, for a first estimate of the composed loss
_POINTS = 1_000_000  # points of the composed loss
_SLOW_POINTS: dict[type[Event], int] = {
    EuclideanLaplace: 1_000,
    Mixture: 10_000,
}  # fewer points for kinds that take long for each point
_RARE = 1e-9
_CURVE = 1000  # points of delta(epsilon)
# Above these losses e^loss or the grid overflows: the first for Laplace kinds, the second for Gaussian kinds or all
# kinds together.
_LAPLACE_OVERFLOW, _OVERFLOW = 650.0, 1e5


def epsilon(
    events: Iterable[tuple[Event, int]], delta: float, relation: Relation = "zero-out"
) -> float:
    """Compute an upper bound on epsilon of all events together.

    Parameters
    ----------
    events : iterable of (event, count)
        Releases, each with the number of times it was made.
    delta : float
        From 1e-15 to below 1.
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs. Noise multipliers are sigma / C under every relation; this function doubles the sensitivity
        under replace-one.

    Returns
    -------
    float
        Upper bound on epsilon; exact for Gaussians without sampling.

    Raises
    ------
    FieldError
        For a combination that cannot be bounded.
    """
    counts = count_events(events)
    factor, mu, others = _split(counts, relation)
    if not counts:
        return 0.0
    lost = overflow_delta(counts, relation)
    if require_within("delta", "delta", delta) <= lost:
        raise FieldError(
            "delta",
            delta,
            f"must be above {lost:.2g}, the chance that a lot of these steps is too large",
        )
    delta -= lost
    if _needs_renyi(counts):
        return _renyi(others, mu, factor, delta, relation)
    loss = _total_loss(tuple(others.items()), mu, factor, relation)
    return loss.added + loss.epsilon(delta)


def _split(
    counts: Mapping[Event, int], relation: Relation
) -> tuple[float, float, dict[Event, int]]:
    """Return the relation's factor, the composed mu of all Gaussians without sampling, and the other events."""
    factor = factor_of(relation)
    others: dict[Event, int] = {}
    mus = []
    for event, count in counts.items():
        if isinstance(event, Gaussian):
            mus.append(factor / event.noise_multiplier * math.sqrt(count))
        else:
            others[event] = count
    return factor, compose_mu(mus), others


def _needs_renyi(counts: Iterable[Event]) -> bool:
    return any(isinstance(event, FixedSize | DiscreteGaussian) for event in counts)


def _library() -> Any:
    return optional(
        "dp_accounting", "composing sampled steps needs dp-accounting", '"fedveil[accounting]"'
    )


def curve(
    events: Iterable[tuple[Event, int]], relation: Relation = "zero-out"
) -> tuple[Curve, Curve]:
    """Compute points of the privacy curve delta(epsilon) of all events together, for `fedveil.gdp`.

    Parameters
    ----------
    events : iterable of (event, count)
        Releases, each with the number of times it was made.
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs.

    Returns
    -------
    epsilons, deltas : ndarray
        [m] each, pairs that hold for both orders of the neighbouring inputs. They begin at epsilon 0, or above 0 with a
        Laplace kind or a Renyi bound.
    """
    counts = count_events(events)
    if _needs_renyi(counts):
        deltas = np.geomspace(1e-12, 0.5, _CURVE)
        return np.array(
            [epsilon(counts.items(), float(delta), relation) for delta in deltas]
        ), deltas
    factor, mu, others = _split(counts, relation)
    loss = _total_loss(tuple(others.items()), mu, factor, relation)
    epsilons = np.linspace(0.0, loss.epsilon(_RARE), _CURVE)
    lost = overflow_delta(counts, relation)
    return loss.added + epsilons, loss.deltas(epsilons) + lost


@dataclass(frozen=True)
class _Loss:
    """Privacy loss of all events together, as a distribution or as Gaussian DP.

    Attributes
    ----------
    composed : object, optional
        dp-accounting's distribution of the loss; None if `mu` bounds everything.
    mu : float
        Parameter of Gaussian DP, if there is no distribution.
    added : float
        Epsilon to add at every delta.
    """

    composed: Any
    mu: float
    added: float

    def epsilon(self, delta: float) -> float:
        """Return epsilon at a delta, without `added`."""
        if self.composed is None:
            return epsilon_of_mu(self.mu, delta)
        return float(self.composed.get_epsilon_for_delta(delta))

    def deltas(self, epsilons: Curve) -> Curve:
        """Return delta at each epsilon [m], without `added`."""
        if self.composed is None:
            return np.array([delta_of_mu(self.mu, float(epsilon)) for epsilon in epsilons])
        return np.asarray(self.composed.get_delta_for_epsilon(epsilons), np.float64)


@lru_cache(maxsize=8)
def _total_loss(
    items: tuple[tuple[Event, int], ...],
    mu: float,
    factor: float,
    relation: Relation,
) -> _Loss:
    """Compose events with Gaussian releases; the Gaussian releases have the total `mu`."""
    if not items:
        return _Loss(None, mu, 0.0)
    _library()
    others = dict(items)
    if relation == "replace-one":
        _require_replaceable(others)
    others, mu, added = _without_large_losses(others, mu, factor)
    if not others:
        return _Loss(None, mu, added)
    widths = {event: _largest_loss(event, factor) for event in others}
    widest = max(_gaussian_loss(mu), *widths.values())
    mean = math.fsum(_mean_loss(event, factor) * count for event, count in others.items())
    first = max(_INTERVAL, widest / _FIRST_POINTS, mean / _POINTS)
    composed = _composed(others, mu, factor, relation, first)
    reach = composed.get_epsilon_for_delta(
        _RARE
    )  # nearly all of the composed loss lies within this range
    needed = widest if math.isinf(reach) else max(reach, widest)
    interval = max(_INTERVAL, needed / _POINTS)
    for event, width in widths.items():
        points = _SLOW_POINTS.get(type(event))
        if points is not None:
            interval = max(interval, width / points)
    if interval < first:
        composed = _composed(others, mu, factor, relation, interval)
    return _Loss(composed, mu, added)


def _require_replaceable(events: Iterable[Event]) -> None:
    """Refuse events without an accounting under replace-one."""
    for event in events:
        sampled_laplace = isinstance(event, Poisson) and isinstance(event.event, Laplace)
        if isinstance(event, Mixture) or sampled_laplace:
            accepted = f"{type(event).__name__} events are accounted for zero-out and add/remove"
            raise FieldError("relation", "replace-one", accepted)


def _composed(
    others: dict[Event, int],
    mu: float,
    factor: float,
    relation: Relation,
    interval: float,
) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    parts = []
    for event, count in others.items():
        loss = _distribution(event, factor, relation, interval)
        parts.append(loss.self_compose(count))
    if mu > 0:
        parts.append(pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval))
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    return total


def _without_large_losses(
    others: dict[Event, int], mu: float, factor: float
) -> tuple[dict[Event, int], float, float]:
    """Bound events in closed form if their losses are too large for a numerical grid.

    Laplace kinds are bounded by the sum of their epsilons, Gaussian kinds as if there were no sampling.

    Returns
    -------
    others : dict
        Remaining events.
    mu : float
        Parameter of Gaussian DP, composed with the removed Gaussian kinds.
    added : float
        Epsilon of the removed Laplace kinds; it holds at delta 0.
    """
    laplace = {event for event in others if _is_laplace(event)}
    large = {event for event in others if _largest_loss(event, factor) > _limit_of_loss(event)}
    rest = [event for event in others if event not in large]
    mean = math.fsum(_mean_loss(event, factor) * others[event] for event in rest)
    if max(mean, _gaussian_loss(_mu_with(mu, others, large - laplace, factor))) > _OVERFLOW:
        large = set(others)  # otherwise the grid of all events together would be too wide
    added = math.fsum(others[event] * _pure(event, factor) for event in large & laplace)
    mu = _mu_with(mu, others, large - laplace, factor)
    return {event: count for event, count in others.items() if event not in large}, mu, added


def _mu_with(
    mu: float,
    counts: Mapping[Event, int],
    gaussian: Iterable[Event],
    factor: float,
) -> float:
    """Compose mu with Gaussian kinds as if they were not sampled."""
    mus = [_sampled_mu(event, factor) * math.sqrt(counts[event]) for event in gaussian]
    return compose_mu([mu, *mus])


def _is_laplace(event: Event) -> bool:
    return isinstance(_inner(event), Laplace | EuclideanLaplace)


def _limit_of_loss(event: Event) -> float:
    return _LAPLACE_OVERFLOW if _is_laplace(event) else _OVERFLOW


def _inner(event: Event) -> Event:
    """Return the noise inside a sampled event; any other event itself."""
    return event.event if isinstance(event, Poisson | Changed) else event


def _pure(event: Event, factor: float) -> float:
    """Return epsilon at delta 0 of one release of a Laplace kind, for a unit in the sample; infinity for other kinds."""
    inner = _inner(event)
    if isinstance(inner, EuclideanLaplace):
        return inner.shift
    if isinstance(inner, Laplace):
        return factor / inner.scale
    return math.inf


def _gaussian_loss(mu: float) -> float:
    """Return a privacy loss that a Gaussian release almost never exceeds."""
    return mu * (mu / 2 + 10)


def _sampled_mu(event: Event, factor: float) -> float:
    """Return mu of a Gaussian kind for a unit that is in the sample and contributes as much as possible."""
    inner = _inner(event)
    if isinstance(inner, Mixture):
        return max(inner.sensitivities) / inner.noise_multiplier
    if not isinstance(inner, Gaussian):
        return 0.0
    factor = 2.0 if isinstance(event, Changed) else factor
    return factor / inner.noise_multiplier


def _largest_loss(event: Event, factor: float) -> float:
    """Return a privacy loss that one release almost never exceeds; sampling makes it rarer, not smaller."""
    if isinstance(event, EuclideanLaplace):
        return greatest_loss(event.dimension, event.shift)
    if isinstance(_inner(event), Laplace):
        return _pure(event, factor)
    return _gaussian_loss(_sampled_mu(event, factor))


def _mean_loss(event: Event, factor: float) -> float:
    """Estimate the mean loss of one release."""
    rate = event.rate if isinstance(event, Poisson | Changed) else 1.0
    if not _is_laplace(event):
        return rate * _sampled_mu(event, factor) ** 2 / 2
    inner = _inner(event)
    dimension = inner.dimension if isinstance(inner, EuclideanLaplace) else 1
    shift = _pure(event, factor)
    return rate * shift * min(1.0, shift / dimension)


def _distribution(
    event: Event,
    factor: float,
    relation: Relation,
    interval: float,
) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = {"value_discretization_interval": interval}
    if isinstance(event, EuclideanLaplace):
        return discretised(event.dimension, event.shift, interval)
    if isinstance(event, Laplace):
        return pld.from_laplace_mechanism(event.scale / factor, **grid)
    inner = _inner(event)
    if isinstance(event, Poisson | Changed) and isinstance(inner, Gaussian):
        # the library itself doubles the sensitivity under replace-one, so z is passed unchanged
        neighbours = {
            "add/remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
            "zero-out": NeighboringRelation.REPLACE_SPECIAL,
            "replace-one": NeighboringRelation.REPLACE_ONE,
        }
        kind = neighbours["replace-one" if isinstance(event, Changed) else relation]
        z = inner.noise_multiplier
        return pld.from_gaussian_mechanism(
            z,
            sampling_prob=event.rate,
            neighboring_relation=kind,
            **grid,
        )
    if isinstance(event, Poisson) and isinstance(event.event, Laplace):
        return pld.from_laplace_mechanism(event.event.scale, sampling_prob=event.rate, **grid)
    if isinstance(event, Mixture):
        z, amounts, chances = (
            event.noise_multiplier,
            list(event.sensitivities),
            list(event.probabilities),
        )
        try:
            return pld.from_mixture_gaussian_mechanism(z, amounts, chances, **grid)
        except ValueError:  # differences of logarithms are only rounding error: bound it as if all units were drawn every time
            return pld.from_gaussian_mechanism(z / max(amounts), **grid)
    raise FieldError("events", kind_of(event), "has no privacy-loss distribution")


def _renyi(
    others: dict[Event, int],
    mu: float,
    factor: float,
    delta: float,
    relation: Relation,
) -> float:
    dp = _library()
    fixed = any(isinstance(event, FixedSize) for event in others)
    if fixed and relation == "add/remove":
        raise FieldError(
            "relation", relation, "fixed-size sampling publishes n: use zero-out or replace-one"
        )
    # zero-out is a special case of replacement, so the bound for replacement covers it
    neighbours = (
        dp.NeighboringRelation.REPLACE_ONE if fixed else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    accountant = dp.rdp.RdpAccountant(neighboring_relation=neighbours)
    if mu > 0:
        accountant.compose(dp.GaussianDpEvent(1 / mu))
    for event, count in others.items():
        accountant.compose(_renyi_event(dp, event, factor, fixed, relation), count)
    return float(accountant.get_epsilon(delta))


def _renyi_event(
    dp: Any,
    event: Event,
    factor: float,
    fixed: bool,
    relation: Relation,
) -> Any:
    if isinstance(event, DiscreteGaussian):
        # concentrated DP of the discrete Gaussian equals that of the continuous one (arXiv 2004.00010, Theorem 14)
        return dp.GaussianDpEvent(event.noise_multiplier / factor)
    if isinstance(event, FixedSize):
        # another unit replaces the one that leaves the sample, so the sum moves by 2C under zero-out, too. The
        # library's bound misses this factor under replace-one, so z / 2 is passed
        inner = dp.GaussianDpEvent(event.event.noise_multiplier / 2)
        return dp.SampledWithoutReplacementDpEvent(event.population, event.sample, inner)
    known = not fixed and relation != "replace-one"
    if known and isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        return dp.PoissonSampledDpEvent(
            event.rate, dp.GaussianDpEvent(event.event.noise_multiplier)
        )
    if isinstance(event, Laplace):
        return dp.LaplaceDpEvent(event.scale / factor)
    raise FieldError("events", kind_of(event), f"has no Renyi bound here under {relation}")
