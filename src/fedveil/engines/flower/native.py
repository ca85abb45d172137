"""Accountant for Flower's own DP strategies, by Flower's `PrivacyAccountant` protocol (flwr 1.41)."""

import math
from collections.abc import Mapping

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from fedveil.accounting.composition import curve, epsilon
from fedveil.accounting.events import Event, Gaussian, Poisson, Relation
from fedveil.errors import FieldError, kind_of, require_count
from fedveil.gdp import compose_mu, delta_of_mu

_VERSION = 1


class ExactAccountant:
    """Exact accountant of one of Flower's own DP strategies: ``strategy(..., accountant=ExactAccountant(config))``.

    Gaussian releases compose in closed form, Poisson-sampled ones by their privacy-loss distribution (which needs
    dp-accounting). Sampling without replacement counts as no sampling, which gives an upper bound. The accountant
    relies on the noise that the strategy states, and on the strategy's clipping and weights. To continue a run, first
    load the earlier accountant's `state_dict` by `load_state_dict`.

    Parameters
    ----------
    config : PrivacyConfig
        Configuration of Flower.
    """

    def __init__(self, config: PrivacyConfig) -> None:
        self.config = config
        self._counts: dict[Event, int] = {}
        replaced = config.neighboring_relation is NeighboringRelation.REPLACE_ONE
        self._relation: Relation = "replace-one" if replaced else "add/remove"

    @property
    def num_releases(self) -> int:
        """Number of releases composed so far."""
        return sum(self._counts.values())

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Add `count` releases of this kind."""
        self._counts = self._with(event, count)

    def get_epsilon(self, delta: float) -> float:
        """Return epsilon of all releases at a delta."""
        return epsilon(self._counts.items(), delta, self._relation)

    def get_delta(self, epsilon: float) -> float:
        """Return delta of all releases at an epsilon."""
        if not self._counts:
            return 0.0
        if all(isinstance(event, Gaussian) for event in self._counts):
            factor = 2.0 if self._relation == "replace-one" else 1.0
            mu = compose_mu(
                factor / _gaussian(e).noise_multiplier * math.sqrt(c)
                for e, c in self._counts.items()
            )
            return delta_of_mu(mu, epsilon)
        epsilons, deltas = curve(self._counts.items(), self._relation)
        return float(
            min((d for e, d in zip(epsilons, deltas, strict=True) if e <= epsilon), default=1.0)
        )

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Return the spent epsilon, at the given delta or the configuration's."""
        at = self.config.target_delta if delta is None else delta
        exact = all(isinstance(event, Gaussian) for event in self._counts)
        return PrivacySpent(self.get_epsilon(at), at, self.num_releases, "gdp" if exact else "pld")

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether further releases would exceed a limit on epsilon, by default the configuration's."""
        limit = self.config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise FieldError("max_epsilon", None, "give a limit here or in the PrivacyConfig")
        return (
            epsilon(self._with(event, count).items(), self.config.target_delta, self._relation)
            > limit
        )

    def state_dict(self) -> dict[str, object]:
        """Return all composed releases as plain values, for `load_state_dict`."""
        events = [
            {
                "noise_multiplier": _gaussian(e).noise_multiplier,
                "rate": getattr(e, "rate", 1.0),
                "count": c,
            }
            for e, c in self._counts.items()
        ]
        return {"version": _VERSION, "relation": self._relation, "events": events}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a `state_dict` for the same relation; refuse one without releases composed here before."""
        if state.get("version") != _VERSION or state.get("relation") != self._relation:
            given = (state.get("version"), state.get("relation"))
            raise FieldError(
                "state", given, f"must be of version {_VERSION} and relation {self._relation!r}"
            )
        events = state.get("events")
        if not isinstance(events, list):
            raise FieldError("state", kind_of(events), "must hold a list of events")
        found = {
            _event(float(e["noise_multiplier"]), float(e["rate"])): int(e["count"]) for e in events
        }
        if any(found.get(event, 0) < count for event, count in self._counts.items()):
            accepted = "lacks releases that were composed here, which would be forgotten: load it into a new accountant"
            raise FieldError("state", sum(found.values()), accepted)
        self._counts = found

    def _with(self, event: GaussianPrivacyEvent, count: int) -> dict[Event, int]:
        if event.population_size != self.config.population_size:
            accepted = f"the configuration says {self.config.population_size}"
            raise FieldError("population_size", event.population_size, accepted)
        sampled = self.config.sampling_method is SamplingMethod.POISSON
        one = _event(
            event.noise_multiplier, event.sample_size / event.population_size if sampled else 1.0
        )
        return {**self._counts, one: self._counts.get(one, 0) + require_count("count", count)}


def _event(noise_multiplier: float, rate: float) -> Event:
    return Gaussian(noise_multiplier) if rate == 1.0 else Poisson(rate, Gaussian(noise_multiplier))


def _gaussian(event: Event) -> Gaussian:
    inner = event.event if isinstance(event, Poisson) else event
    assert isinstance(inner, Gaussian)
    return inner
