"""Say what it cost: guarantees, releases, spends, ledgers, filters and plans."""

from fedveil.accounting.filters import Filter, LeakageFilter, ParticipationFilter, SpendFilter
from fedveil.accounting.guarantee import VACUOUS, Guarantee, Relation, Trust, total, unprotected
from fedveil.accounting.ledger import Entry, Ledger
from fedveil.accounting.planning import Plan, plan
from fedveil.accounting.release import Release, count_of, digest, model_of
from fedveil.accounting.spend import Spend, nothing
from fedveil.gdp import compose_mu, delta_of_mu, epsilon_of_mu, mu_of_epsilon

__all__ = [
    "VACUOUS",
    "Entry",
    "Filter",
    "Guarantee",
    "LeakageFilter",
    "Ledger",
    "ParticipationFilter",
    "Plan",
    "Relation",
    "Release",
    "Spend",
    "SpendFilter",
    "Trust",
    "compose_mu",
    "count_of",
    "delta_of_mu",
    "digest",
    "epsilon_of_mu",
    "model_of",
    "mu_of_epsilon",
    "nothing",
    "plan",
    "total",
    "unprotected",
]
