"""Say what it cost: guarantees, releases, spends, ledgers, filters, composition and plans."""

from fedveil.accounting.advice import Choice, Reading, advise, reading
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
    Relation,
)
from fedveil.accounting.filters import Filter, LeakageFilter, ParticipationFilter, SpendFilter
from fedveil.accounting.guarantee import VACUOUS, Guarantee, Trust, guarantee_values, total, unprotected
from fedveil.accounting.ledger import OPEN, Entry, Ledger
from fedveil.accounting.meaning import Meaning
from fedveil.accounting.planning import Plan, delta_warning, plan
from fedveil.accounting.policy import Limits, Policy
from fedveil.accounting.release import Release, count_of, digest, model_of
from fedveil.accounting.spend import Spend, nothing
from fedveil.accounting.steps import StepFilter, least_noise, least_places, step_event
from fedveil.gdp import compose_mu, delta_of_mu, epsilon_of_mu, mu_of_epsilon

__all__ = [
    "OPEN",
    "VACUOUS",
    "Choice",
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
    "Limits",
    "Meaning",
    "Mixture",
    "ParticipationFilter",
    "Plan",
    "Poisson",
    "Policy",
    "Reading",
    "Relation",
    "Release",
    "Spend",
    "SpendFilter",
    "StepFilter",
    "Trust",
    "advise",
    "compose_mu",
    "count_of",
    "delta_of_mu",
    "delta_warning",
    "digest",
    "epsilon",
    "epsilon_of_mu",
    "euclidean_laplace_delta",
    "euclidean_laplace_epsilon",
    "guarantee_values",
    "least_noise",
    "least_places",
    "model_of",
    "mu_of_epsilon",
    "nothing",
    "plan",
    "reading",
    "renyi_epsilon",
    "step_event",
    "total",
    "unprotected",
]
