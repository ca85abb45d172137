"""One accountant: epsilon of any mixture of events, by the tightest sound way there is.

Gaussian rounds compose in closed form. Subsampling, Laplace, Euclidean Laplace and mixtures go through privacy-loss
distributions; fixed-size sampling and discrete Gaussians through Renyi DP. dp-accounting does the numerical work.
"""

import math
from collections.abc import Iterable, Mapping
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
    factor_of,
    grouped,
    spilled,
)
from fedveil.errors import FieldError
from fedveil.gdp import Curve, compose_mu, delta_of_mu, epsilon_of_mu
from fedveil.ranges import require_within
from fedveil.registry import optional

# The grid on which losses lie. Losses are rounded up to it, so that a coarse one is a looser bound; without a limit a
# small noise multiplier, whose losses are large, would take all memory.
_INTERVAL = 1e-4
_FIRST, _POINTS = 2_000, 1_000_000  # of the widest single loss in a first look, and of the composed one
_SLOW: dict[type[Event], int] = {EuclideanLaplace: 1_000, Mixture: 10_000}  # kinds whose points take long, and how many
_RARE = 1e-9
_CURVE = 1000  # points of delta(epsilon)
_OVERFLOW = 650.0, 1e5  # losses of Laplace kinds, and of Gaussian kinds or in all, for which e^loss or the grid breaks


def epsilon(events: Iterable[tuple[Event, int]], delta: float, relation: Relation = "zero-out") -> float:
    """Epsilon of all events together.

    Parameters
    ----------
    events : iterable of (event, count)
        What was released, and how often.
    delta : float
        From 1e-15 to below 1.
    relation : {"zero-out", "add/remove", "replace-one"}
        Neighbouring inputs. Noise multipliers are sigma / C throughout; the doubled sensitivity of replace-one is
        taken care of here.

    Returns
    -------
    float
        An upper bound; exact for Gaussians without sampling.

    Raises
    ------
    FieldError
        For a combination that cannot be bounded.
    """
    counts = grouped(events)
    factor, mu, others = _apart(counts, relation)
    if not counts:
        return 0.0
    lost = spilled(counts, relation)
    if require_within("delta", "delta", delta) <= lost:
        raise FieldError("delta", delta, f"must be above {lost:.2g}, the chance that a lot of these steps is too large")
    delta -= lost
    if _needs_renyi(counts):
        return _renyi(others, mu, factor, delta, relation)
    composed, mu, added = _total_loss(tuple(others.items()), mu, factor, relation)
    return added + (epsilon_of_mu(mu, delta) if composed is None else float(composed.get_epsilon_for_delta(delta)))


def _apart(counts: Mapping[Event, int], relation: Relation) -> tuple[float, float, dict[Event, int]]:
    """The relation's factor, mu of the Gaussians without sampling, and the other events."""
    factor = factor_of(relation)
    mu = compose_mu(factor / e.noise_multiplier * math.sqrt(c) for e, c in counts.items() if isinstance(e, Gaussian))
    return factor, mu, {e: c for e, c in counts.items() if not isinstance(e, Gaussian)}


def _needs_renyi(counts: Iterable[Event]) -> bool:
    return any(isinstance(e, FixedSize | DiscreteGaussian) for e in counts)


def _library() -> Any:
    return optional("dp_accounting", "composing sampled steps needs dp-accounting", '"fedveil[accounting]"')


def curve(events: Iterable[tuple[Event, int]], relation: Relation = "zero-out") -> tuple[Curve, Curve]:
    """Points of delta(epsilon) of all events together, for `fedveil.gdp`.

    Returns
    -------
    epsilons, deltas : ndarray
        [m], pairs that hold in both directions, from epsilon 0 (unless a Laplace kind or Renyi bound starts higher).
    """
    counts = grouped(events)
    factor, mu, others = _apart(counts, relation)
    if _needs_renyi(counts):
        deltas = np.geomspace(1e-12, 0.5, _CURVE)
        return np.array([epsilon(counts.items(), float(d), relation) for d in deltas]), deltas
    composed, mu, added = _total_loss(tuple(others.items()), mu, factor, relation)
    largest = epsilon_of_mu(mu, _RARE) if composed is None else float(composed.get_epsilon_for_delta(_RARE))
    epsilons, lost = np.linspace(0.0, largest, _CURVE), spilled(counts, relation)
    if composed is None:
        return added + epsilons, np.array([delta_of_mu(mu, float(e)) for e in epsilons]) + lost
    return added + epsilons, np.asarray(composed.get_delta_for_epsilon(epsilons), np.float64) + lost


@lru_cache(maxsize=8)
def _total_loss(
    items: tuple[tuple[Event, int], ...], mu: float, factor: float, relation: Relation
) -> tuple[Any, float, float]:
    """The composed loss distribution (None: everything is in mu), mu of what is not in it, and epsilon to be added."""
    if not items:
        return None, mu, 0.0
    _library()
    others = dict(items)
    for event in others if relation == "replace-one" else ():
        if isinstance(event, Mixture) or (isinstance(event, Poisson) and isinstance(event.event, Laplace)):
            name = type(event).__name__
            raise FieldError("relation", relation, f"{name} events are accounted for zero-out and add/remove")
    others, mu, added = _without_the_vast(others, mu, factor)
    if not others:
        return None, mu, added
    widths = {event: _largest_loss(event, factor) for event in others}
    widest = max(_gaussian_loss(mu), *widths.values())
    first = max(_INTERVAL, widest / _FIRST, math.fsum(_mean_loss(e, factor) * c for e, c in others.items()) / _POINTS)
    composed = _composed(others, mu, factor, relation, first)
    reach = composed.get_epsilon_for_delta(_RARE)  # nearly all of the composed loss lies within
    needed = widest if math.isinf(reach) else max(reach, widest)
    slow = (width / _SLOW[type(event)] for event, width in widths.items() if type(event) in _SLOW)
    interval = max(_INTERVAL, needed / _POINTS, *slow)
    return composed if interval >= first else _composed(others, mu, factor, relation, interval), mu, added


def _composed(others: dict[Event, int], mu: float, factor: float, relation: Relation, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    parts = [_distribution(event, factor, relation, interval).self_compose(count) for event, count in others.items()]
    if mu > 0:
        parts.append(pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval))
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    return total


def _without_the_vast(others: dict[Event, int], mu: float, factor: float) -> tuple[dict[Event, int], float, float]:
    """Bound events of vast losses in closed form: Laplace kinds by their sum, Gaussian kinds as if nobody was sampled.

    Returns
    -------
    others : dict
        The events that are left.
    mu : float
        With the Gaussian kinds.
    added : float
        Epsilon of the Laplace kinds, which hold at delta 0.
    """
    laplace = {e for e in others if isinstance(_inner(e), Laplace | EuclideanLaplace)}

    def gaussian(events: set[Event]) -> float:
        return compose_mu([mu, *(_sampled_mu(e, factor) * math.sqrt(others[e]) for e in events - laplace)])

    vast = {e for e in others if _largest_loss(e, factor) > _OVERFLOW[0 if e in laplace else 1]}
    mean = math.fsum(_mean_loss(e, factor) * others[e] for e in set(others) - vast)
    if max(mean, _gaussian_loss(gaussian(vast))) > _OVERFLOW[1]:  # the grid of all together would be too wide
        vast = set(others)
    added = math.fsum(others[e] * _pure(e, factor) for e in vast & laplace)
    return {e: c for e, c in others.items() if e not in vast}, gaussian(vast), added


def _inner(event: Event) -> Event:
    """What is sampled, or the event itself."""
    return event.event if isinstance(event, Poisson | Changed) else event


def _pure(event: Event, factor: float) -> float:
    """Epsilon of one release of a Laplace kind at delta 0, for a unit that is in the sample."""
    inner = _inner(event)
    if isinstance(inner, EuclideanLaplace):
        return inner.shift
    return factor / inner.scale if isinstance(inner, Laplace) else math.inf


def _gaussian_loss(mu: float) -> float:
    """A loss that hardly any draw of a Gaussian release exceeds."""
    return mu * (mu / 2 + 10)


def _sampled_mu(event: Event, factor: float) -> float:
    """Mu of a Gaussian kind for a unit that is in the sample, and contributes the most it can."""
    inner = _inner(event)
    if isinstance(inner, Mixture):
        return max(inner.sensitivities) / inner.noise_multiplier
    factor = 2.0 if isinstance(event, Changed) else factor
    return factor / inner.noise_multiplier if isinstance(inner, Gaussian) else 0.0


def _largest_loss(event: Event, factor: float) -> float:
    """A loss that one release hardly ever exceeds; sampling makes it rarer, not smaller."""
    if isinstance(event, EuclideanLaplace):
        return greatest_loss(event.dimension, event.shift)
    return _pure(event, factor) if isinstance(_inner(event), Laplace) else _gaussian_loss(_sampled_mu(event, factor))


def _mean_loss(event: Event, factor: float) -> float:
    """About the mean loss of one release."""
    rate = event.rate if isinstance(event, Poisson | Changed) else 1.0
    if isinstance(_inner(event), Laplace | EuclideanLaplace):
        shift, inner = _pure(event, factor), _inner(event)
        return rate * shift * min(1.0, shift / (inner.dimension if isinstance(inner, EuclideanLaplace) else 1))
    return rate * _sampled_mu(event, factor) ** 2 / 2


def _distribution(event: Event, factor: float, relation: Relation, interval: float) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = {"value_discretization_interval": interval}
    if isinstance(event, EuclideanLaplace):
        return discretised(event.dimension, event.shift, interval)
    if isinstance(event, Laplace):
        return pld.from_laplace_mechanism(event.scale / factor, **grid)
    inner = _inner(event)
    if isinstance(event, Poisson | Changed) and isinstance(inner, Gaussian):
        # the library doubles the sensitivity itself under replace-one, so z goes in as it is
        neighbours = {
            "add/remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
            "zero-out": NeighboringRelation.REPLACE_SPECIAL,
            "replace-one": NeighboringRelation.REPLACE_ONE,
        }["replace-one" if isinstance(event, Changed) else relation]
        z = inner.noise_multiplier
        return pld.from_gaussian_mechanism(z, sampling_prob=event.rate, neighboring_relation=neighbours, **grid)
    if isinstance(event, Poisson) and isinstance(event.event, Laplace):
        return pld.from_laplace_mechanism(event.event.scale, sampling_prob=event.rate, **grid)
    if isinstance(event, Mixture):
        amounts = list(event.sensitivities)
        try:
            return pld.from_mixture_gaussian_mechanism(
                event.noise_multiplier, amounts, list(event.probabilities), **grid
            )
        except ValueError:  # of differences of logarithms that are rounding alone: as if all were drawn every time
            return pld.from_gaussian_mechanism(event.noise_multiplier / max(amounts), **grid)
    raise FieldError("events", type(event).__name__, "has no privacy-loss distribution")


def _renyi(others: dict[Event, int], mu: float, factor: float, delta: float, relation: Relation) -> float:
    dp = _library()
    fixed = any(isinstance(e, FixedSize) for e in others)
    if fixed and relation == "add/remove":
        raise FieldError("relation", relation, "fixed-size sampling publishes n: use zero-out or replace-one")
    # zero-out is one kind of replacement, so the bound for replacement covers it
    neighbours = dp.NeighboringRelation.REPLACE_ONE if fixed else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = dp.rdp.RdpAccountant(neighboring_relation=neighbours)
    if mu > 0:
        accountant.compose(dp.GaussianDpEvent(1 / mu))
    for event, count in others.items():
        accountant.compose(_renyi_event(dp, event, factor, fixed, relation), count)
    return float(accountant.get_epsilon(delta))


def _renyi_event(dp: Any, event: Event, factor: float, fixed: bool, relation: Relation) -> Any:
    if isinstance(event, DiscreteGaussian):
        # concentrated DP of the discrete Gaussian equals that of the continuous one (arXiv 2004.00010, Theorem 14)
        return dp.GaussianDpEvent(event.noise_multiplier / factor)
    if isinstance(event, FixedSize):
        # whichever unit leaves the sample, another takes its place: 2C also under zero-out. The library's bound
        # forgets that factor under replace-one, so z / 2 goes in
        inner = dp.GaussianDpEvent(event.event.noise_multiplier / 2)
        return dp.SampledWithoutReplacementDpEvent(event.population, event.sample, inner)
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian) and not fixed and relation != "replace-one":
        return dp.PoissonSampledDpEvent(event.rate, dp.GaussianDpEvent(event.event.noise_multiplier))
    if isinstance(event, Laplace):
        return dp.LaplaceDpEvent(event.scale / factor)
    raise FieldError("events", type(event).__name__, f"has no Renyi bound here under {relation}")
