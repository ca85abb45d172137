"""Say what it cost: guarantees, releases, spends, ledgers, filters, composition and plans."""

from fedveil.accounting.composition import epsilon, renyi_epsilon
from fedveil.accounting.euclidean_laplace import euclidean_laplace_delta, euclidean_laplace_epsilon
from fedveil.accounting.events import (
    DiscreteGaussian,
    EuclideanLaplace,
    Event,
    FixedSize,
    Gaussian,
    Laplace,
    Mixture,
    Poisson,
)
from fedveil.accounting.filters import Filter, LeakageFilter, Odometer, ParticipationFilter, SpendFilter
from fedveil.accounting.guarantee import VACUOUS, Guarantee, Relation, Trust, total, unprotected
from fedveil.accounting.ledger import Entry, Ledger
from fedveil.accounting.planning import Plan, delta_warning, plan
from fedveil.accounting.release import Release, count_of, digest, model_of
from fedveil.accounting.spend import Spend, nothing
from fedveil.gdp import compose_mu, delta_of_mu, epsilon_of_mu, mu_of_epsilon

__all__ = [
    "VACUOUS",
    "DiscreteGaussian",
    "Entry",
    "EuclideanLaplace",
    "Event",
    "Filter",
    "FixedSize",
    "Gaussian",
    "Guarantee",
    "Laplace",
    "LeakageFilter",
    "Ledger",
    "Mixture",
    "Odometer",
    "ParticipationFilter",
    "Plan",
    "Poisson",
    "Relation",
    "Release",
    "Spend",
    "SpendFilter",
    "Trust",
    "compose_mu",
    "count_of",
    "delta_of_mu",
    "delta_warning",
    "digest",
    "epsilon",
    "epsilon_of_mu",
    "euclidean_laplace_delta",
    "euclidean_laplace_epsilon",
    "model_of",
    "mu_of_epsilon",
    "nothing",
    "plan",
    "renyi_epsilon",
    "total",
    "unprotected",
]
