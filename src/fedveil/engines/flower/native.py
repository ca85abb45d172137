"""Flower's own strategies: their optimisers behind FedVeil's noise, and their noise under FedVeil's accountant.

`WrappedStrategy` puts the optimiser of one of Flower's strategies behind FedVeil's noise: it is handed one reply, the
released mean, and nothing else. `ExactAccountant` stands behind Flower's `PrivacyAccountant` protocol (flwr 1.41).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import GaussianPrivacyEvent, Grid, NeighboringRelation, PrivacyConfig, PrivacySpent, SamplingMethod
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from torch import Tensor

from fedveil.accounting.composition import curve, epsilon
from fedveil.accounting.events import Event, Gaussian, Poisson, Relation
from fedveil.engines.flower.grid import SERVER_NODE, InProcessGrid
from fedveil.engines.flower.records import ARRAYS, to_arrays
from fedveil.engines.flower.strategy import FedVeilStrategy
from fedveil.engines.messages import METRICS_KEY
from fedveil.errors import FieldError, require_count
from fedveil.gdp import compose_mu, delta_of_mu

MEANS = (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)  # whatever inherits how one of them combines is a mean, too
_VERSION = 1


class WrappedStrategy(FedVeilStrategy):
    """FedVeil's strategy with the optimiser of one of Flower's strategies behind the noise.

    The method combines the protected replies and adds its noise. What it released is the one reply that the inner
    strategy sees; its momentum, its steps and its state are post-processing, at no cost.

    Parameters
    ----------
    inner : flwr.serverapp.strategy.FedAvg
        FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam or FedYogi, or a class that combines as one of them does. How many
        nodes it asks is not looked at.
    *arguments, **options
        As for `FedVeilStrategy`.

    Raises
    ------
    FieldError
        If the inner strategy's rule is no mean: of a median, of Krum or of loss-weighted means the sensitivity is not
        bounded by clip / n, and of one reply they are the identity. Choose a rule of `fedveil.aggregation` instead.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAdam
    >>> strategy = WrappedStrategy(FedAdam(eta=0.01), method, layout, rounds=10)  # doctest: +SKIP
    """

    def __init__(self, inner: FedAvg, *arguments: Any, **options: Any) -> None:
        combining = getattr(type(inner), "aggregate_train", None)
        if combining not in [mean.aggregate_train for mean in MEANS]:
            known = ", ".join(mean.__name__ for mean in MEANS)
            accepted = f"combines otherwise than {known}: with unknown sensitivity. Take a rule of fedveil.aggregation"
            raise FieldError("inner", type(inner).__name__, accepted)
        if options.get("done"):
            accepted = "would forget the inner strategy's state, and its models are in no ledger: FedVeilStrategy with "
            accepted += "a server optimiser of fedveil.aggregation goes on"
            raise FieldError("done", options["done"], accepted)
        if getattr(options.get("folder"), "resume", False):
            accepted = "would forget the inner strategy's state: FedVeilStrategy with a server optimiser of "
            accepted += "fedveil.aggregation goes on"
            raise FieldError("resume", str(options["folder"].path), accepted)
        super().__init__(*arguments, **options)
        if self.method.server.hypotheses != 1:
            raise FieldError("method", self.method.name, "has several models, and a Flower strategy keeps one")
        self._inner = inner

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As `FedVeilStrategy`, with what the inner strategy tells its clients (FedProx's proximal-mu)."""
        most = max(self._inner.min_available_nodes, self._inner.min_train_nodes, 1)
        nobody = InProcessGrid({}, [{}] * most)  # the inner strategy's messages are not sent
        list(self._inner.configure_train(server_round, arrays, config, nobody))
        return super().configure_train(server_round, arrays, config, grid)

    def _stepped(self, server_round: int, released: Tensor) -> Tensor:
        """Hand what was released to the inner strategy, and take its model."""
        arrays = to_arrays(self.layout, released[0])
        content = RecordDict({ARRAYS: arrays, METRICS_KEY: MetricRecord({self._inner.weighted_by_key: 1})})
        one = Message(content, SERVER_NODE, MessageType.TRAIN)
        stepped, _ = self._inner.aggregate_train(server_round, [one])
        if stepped is None:
            raise FieldError("inner", type(self._inner).__name__, "made no model of the released one")
        named = {n: torch.from_numpy(array.numpy()).to(self.layout.dtype) for n, array in stepped.items()}
        return self.layout.flatten(named)[None]


class ExactAccountant:
    """Accounts for one of Flower's own DP strategies: ``strategy(..., accountant=ExactAccountant(config))``.

    Gaussian releases compose in closed form, Poisson-sampled ones by their privacy-loss distribution (which needs
    dp-accounting). For sampling without replacement no amplification is counted: an upper bound. It accounts for what
    the strategy states of its noise; what Flower's strategies clip and weigh is theirs. One made in the middle of a run
    knows of no release before: give it `load_state_dict` of the earlier one's `state_dict` first.

    Parameters
    ----------
    config : PrivacyConfig
        Flower's own.
    """

    def __init__(self, config: PrivacyConfig) -> None:
        self.config = config
        self._counts: dict[Event, int] = {}
        replaced = config.neighboring_relation is NeighboringRelation.REPLACE_ONE
        self._relation: Relation = "replace-one" if replaced else "add/remove"

    @property
    def num_releases(self) -> int:
        """Releases composed so far."""
        return sum(self._counts.values())

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Add releases."""
        self._counts = self._with(event, count)

    def get_epsilon(self, delta: float) -> float:
        """Epsilon of everything composed, at a delta."""
        return epsilon(self._counts.items(), delta, self._relation)

    def get_delta(self, epsilon: float) -> float:
        """Delta of everything composed, at an epsilon."""
        if not self._counts:
            return 0.0
        if all(isinstance(event, Gaussian) for event in self._counts):
            factor = 2.0 if self._relation == "replace-one" else 1.0
            mu = compose_mu(factor / _gaussian(e).noise_multiplier * math.sqrt(c) for e, c in self._counts.items())
            return delta_of_mu(mu, epsilon)
        epsilons, deltas = curve(self._counts.items(), self._relation)
        return float(min((d for e, d in zip(epsilons, deltas, strict=True) if e <= epsilon), default=1.0))

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """What was spent; at the configuration's delta unless another is given."""
        at = self.config.target_delta if delta is None else delta
        exact = all(isinstance(event, Gaussian) for event in self._counts)
        return PrivacySpent(self.get_epsilon(at), at, self.num_releases, "gdp" if exact else "pld")

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether further releases would end above a limit, by default the configuration's."""
        limit = self.config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise FieldError("max_epsilon", None, "give a limit here or in the PrivacyConfig")
        return epsilon(self._with(event, count).items(), self.config.target_delta, self._relation) > limit

    def state_dict(self) -> dict[str, object]:
        """Everything composed, as plain values."""
        events = [
            {"noise_multiplier": _gaussian(e).noise_multiplier, "rate": getattr(e, "rate", 1.0), "count": c}
            for e, c in self._counts.items()
        ]
        return {"version": _VERSION, "relation": self._relation, "events": events}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a `state_dict` of the same relation; one that lacks what was composed here is refused."""
        if state.get("version") != _VERSION or state.get("relation") != self._relation:
            given = (state.get("version"), state.get("relation"))
            raise FieldError("state", given, f"must be of version {_VERSION} and relation {self._relation!r}")
        events = state.get("events")
        if not isinstance(events, list):
            raise FieldError("state", type(events).__name__, "must hold a list of events")
        found = {_event(float(e["noise_multiplier"]), float(e["rate"])): int(e["count"]) for e in events}
        if any(found.get(event, 0) < count for event, count in self._counts.items()):
            accepted = "lacks releases that were composed here, which would be forgotten: load it into a new accountant"
            raise FieldError("state", sum(found.values()), accepted)
        self._counts = found

    def _with(self, event: GaussianPrivacyEvent, count: int) -> dict[Event, int]:
        if event.population_size != self.config.population_size:
            accepted = f"the configuration says {self.config.population_size}"
            raise FieldError("population_size", event.population_size, accepted)
        sampled = self.config.sampling_method is SamplingMethod.POISSON
        one = _event(event.noise_multiplier, event.sample_size / event.population_size if sampled else 1.0)
        return {**self._counts, one: self._counts.get(one, 0) + require_count("count", count)}


def _event(noise_multiplier: float, rate: float) -> Event:
    return Gaussian(noise_multiplier) if rate == 1.0 else Poisson(rate, Gaussian(noise_multiplier))


def _gaussian(event: Event) -> Gaussian:
    inner = event.event if isinstance(event, Poisson) else event
    assert isinstance(inner, Gaussian)
    return inner
