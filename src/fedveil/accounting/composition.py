"""One accountant: epsilon of any mixture of events, by the tightest sound way there is.

Gaussian rounds compose in closed form. Subsampling, Laplace, Euclidean Laplace and mixtures go through privacy-loss
distributions; fixed-size sampling and discrete Gaussians through Renyi DP. dp-accounting does the numerical work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fedveil.accounting.euclidean_laplace import discretised
from fedveil.accounting.events import (
    DiscreteGaussian,
    EuclideanLaplace,
    Event,
    FixedSize,
    Gaussian,
    Laplace,
    Mixture,
    Poisson,
    grouped,
)
from fedveil.accounting.guarantee import Relation
from fedveil.accounting.planning import FACTOR
from fedveil.errors import FieldError, require_choice, require_delta
from fedveil.gdp import compose_mu, epsilon_of_mu

_INTERVAL = 1e-4
_LARGEST_GRID = 2e6  # the grid of a Gaussian's loss grows as mu^2 / interval


def epsilon(events: Iterable[tuple[Event, int]], delta: float, relation: Relation = "zero-out") -> float:
    """Epsilon of all events together.

    Parameters
    ----------
    events : iterable of (event, count)
        What was released, and how often.
    delta : float
        Strictly between 0 and 1.
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
    delta = require_delta("delta", delta)
    factor = FACTOR[require_choice("relation", relation, FACTOR)]  # type: ignore[index]
    if not counts:
        return 0.0
    mu = compose_mu(factor / e.noise_multiplier * math.sqrt(c) for e, c in counts.items() if isinstance(e, Gaussian))
    others: dict[Event, int] = {e: c for e, c in counts.items() if not isinstance(e, Gaussian)}
    if not others:
        return epsilon_of_mu(mu, delta)
    if any(isinstance(e, FixedSize | DiscreteGaussian) for e in others):
        return _renyi(others, mu, factor, delta, relation)
    return _loss_distribution(others, mu, factor, delta, relation)


def renyi_epsilon(events: Iterable[tuple[Event, int]], delta: float, relation: Relation = "zero-out") -> float:
    """The same by Renyi DP alone: looser, an independent check.

    Raises
    ------
    FieldError
        For events without a Renyi bound.
    """
    counts = grouped(events)
    factor = FACTOR[require_choice("relation", relation, FACTOR)]  # type: ignore[index]
    mu = compose_mu(factor / e.noise_multiplier * math.sqrt(c) for e, c in counts.items() if isinstance(e, Gaussian))
    others: dict[Event, int] = {e: c for e, c in counts.items() if not isinstance(e, Gaussian)}
    return _renyi(others, mu, factor, require_delta("delta", delta), relation)


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        message = 'needs dp-accounting: pip install "fedveil[accounting]"'
        raise FieldError("events", "subsampling or Laplace", message) from error
    return dp_accounting


def _loss_distribution(others: dict[Event, int], mu: float, factor: float, delta: float, relation: Relation) -> float:
    _library()
    from dp_accounting.pld import privacy_loss_distribution as pld

    interval = max(_INTERVAL, 10 * mu * mu / _LARGEST_GRID)
    parts = [_distribution(event, factor, relation, interval).self_compose(count) for event, count in others.items()]
    if mu > 0:
        parts.append(pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval))
    total = parts[0]
    for part in parts[1:]:
        total = total.compose(part)
    return float(total.get_epsilon_for_delta(delta))


def _distribution(event: Event, factor: float, relation: Relation, interval: float) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = {"value_discretization_interval": interval}
    if isinstance(event, EuclideanLaplace):
        return discretised(event.dimension, event.shift, interval)
    if isinstance(event, Laplace):
        return pld.from_laplace_mechanism(event.scale / factor, **grid)
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        # the library doubles the sensitivity itself under replace-one, so z goes in as it is
        neighbours = {
            "add/remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
            "zero-out": NeighboringRelation.REPLACE_SPECIAL,
            "replace-one": NeighboringRelation.REPLACE_ONE,
        }[relation]
        z = event.event.noise_multiplier
        return pld.from_gaussian_mechanism(z, sampling_prob=event.rate, neighboring_relation=neighbours, **grid)
    if relation == "replace-one":
        raise FieldError(
            "relation", relation, f"{type(event).__name__} events are accounted for zero-out and add/remove"
        )
    if isinstance(event, Poisson) and isinstance(event.event, Laplace):
        return pld.from_laplace_mechanism(event.event.scale, sampling_prob=event.rate, **grid)
    if isinstance(event, Mixture):
        return pld.from_mixture_gaussian_mechanism(
            event.noise_multiplier, list(event.sensitivities), list(event.probabilities), **grid
        )
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
