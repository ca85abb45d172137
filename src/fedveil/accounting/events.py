"""Events: the noisy releases that the accountant composes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedveil.checks import Count, EventNoise, EventShift, Parameters, Rate
from fedveil.errors import FieldError, require_choice, require_count, require_non_negative

Relation = Literal["zero-out", "add/remove", "replace-one"]

# Largest change of a sum of contributions clipped to C, in units of C, when one unit changes.
FACTOR: dict[Relation, float] = {"zero-out": 1.0, "add/remove": 1.0, "replace-one": 2.0}


def factor_of(relation: str) -> float:
    """The `FACTOR` of a relation; what is none is refused."""
    return FACTOR[require_choice("relation", relation, FACTOR)]  # type: ignore[index]


# Under add/remove a Poisson lot goes into a public number of places, and one that is too large counts as nothing. That
# chance, of a lot and of all lots with so many units more, is charged to delta for every sampled step.
SPILLED, SPARE = 1e-18, 10


@dataclass(frozen=True)
class Gaussian(Parameters):
    """Gaussian noise, no sampling.

    Parameters
    ----------
    noise_multiplier : float
        z = sigma / C, where C bounds one unit's contribution (under replace-one it can move the sum by 2C).
    """

    noise_multiplier: EventNoise


@dataclass(frozen=True)
class Laplace(Parameters):
    """One-dimensional Laplace noise.

    Parameters
    ----------
    scale : float
        b / C: scale of the noise over the bound of one unit's contribution.
    """

    scale: EventNoise


@dataclass(frozen=True)
class EuclideanLaplace(Parameters):
    """n-dimensional Laplace noise, seen by two vectors at a distance.

    Parameters
    ----------
    dimension : int
        n.
    shift : float
        s = epsilon * distance; the answer is about two vectors that far apart, whatever the relation.
    """

    dimension: Count
    shift: EventShift


@dataclass(frozen=True)
class DiscreteGaussian(Parameters):
    """Discrete Gaussian noise on every coordinate of an integer vector (Canonne, Kamath and Steinke 2020).

    Accounted by concentrated DP, 1 / (2 z^2) a release, which holds in any dimension.

    Parameters
    ----------
    noise_multiplier : float
        z: parameter sigma over the Euclidean bound of one unit's contribution, both on the grid.
    """

    noise_multiplier: EventNoise


@dataclass(frozen=True)
class Mixture(Parameters):
    """Gaussian noise where a unit contributes one of several amounts, each with a probability.

    Parameters
    ----------
    noise_multiplier : float
        z.
    sensitivities, probabilities : sequence of float
        Contributions in units of C, and how likely each is.
    """

    noise_multiplier: EventNoise
    sensitivities: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in (*self.sensitivities, *self.probabilities):
            require_non_negative("mixture", value)
        if len(self.sensitivities) != len(self.probabilities) or not math.isclose(math.fsum(self.probabilities), 1.0):
            raise FieldError("probabilities", self.probabilities, "must match the sensitivities and sum to 1")
        if not any(self.sensitivities):
            raise FieldError("sensitivities", self.sensitivities, "needs one above 0: nothing else costs anything")


@dataclass(frozen=True)
class Poisson(Parameters):
    """Poisson sampling: every unit takes part independently with probability q.

    Parameters
    ----------
    rate : float
        q, from 1e-9 to 1.
    event : Gaussian or Laplace
        The noise on the sample.
    """

    rate: Rate
    event: Gaussian | Laplace


@dataclass(frozen=True)
class Changed(Parameters):
    """Poisson sampling of a unit that is in both inputs, and contributes something else in each.

    So one record sees the steps that sample its person, or its client: the unit stays, and is drawn as often. Its two
    contributions a and b are of length C at most, so a step is one of (1 - q) N(0) + q N(a) and (1 - q) N(0) + q N(b).
    That is a step of one unit against another, whose dominating pair has a = -b (Lebeda, Regehr, Kamath and Steinke
    2024, arXiv 2405.20769): it is accounted under replace-one, whatever the relation of the promise.

    Parameters
    ----------
    rate : float
        q, from 1e-9 to 1.
    event : Gaussian
        The noise on the sample.
    """

    rate: Rate
    event: Gaussian


@dataclass(frozen=True)
class FixedSize(Parameters):
    """Sampling of exactly m of n units without replacement: not Poisson sampling, and dearer.

    Parameters
    ----------
    sample, population : int
        m and n, m <= n.
    event : Gaussian
        The noise on the sample.
    """

    sample: Count
    population: Count
    event: Gaussian

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample > self.population:
            raise FieldError("sample", self.sample, f"must be at most the population of {self.population}")


Event = Gaussian | Laplace | EuclideanLaplace | DiscreteGaussian | Mixture | Poisson | Changed | FixedSize
_KNOWN = (Gaussian, Laplace, EuclideanLaplace, DiscreteGaussian, Mixture, Poisson, Changed, FixedSize)


Counted = tuple[tuple[Any, int], ...]  # events, each with how often it came


def grouped(events: Iterable[tuple[Event, int]]) -> dict[Event, int]:
    """Count equal events together, and drop sampling that takes everybody.

    Raises
    ------
    FieldError
        For what is no event, or a count that is no whole number of at least 1.
    """
    counts: dict[Event, int] = {}
    for pair in events:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], _KNOWN):
            raise FieldError("events", pair, "must be (event, count) pairs of fedveil.accounting events")
        event, count = pair[0], require_count("count", pair[1])
        if (isinstance(event, Poisson) and event.rate == 1) or (
            isinstance(event, FixedSize) and event.sample == event.population
        ):
            event = event.event
        counts[event] = counts.get(event, 0) + count
    return counts


def spilled(counts: Mapping[Event, int], relation: Relation) -> float:
    """Delta of the sampled steps whose lots may be too large for their places."""
    sampled = sum(c for e, c in counts.items() if isinstance(e, Poisson | Changed | Mixture))
    return sampled * SPILLED if relation == "add/remove" else 0.0


def size_of(event: Event) -> float:
    """How much an event costs among its own kind, to rank plans by; no privacy parameter."""
    if isinstance(event, Poisson):
        return event.rate * size_of(event.event)
    if isinstance(event, Changed):
        return 2 * event.rate * size_of(event.event)
    if isinstance(event, FixedSize):
        return event.sample / event.population * size_of(event.event)
    if isinstance(event, EuclideanLaplace):
        return event.shift
    if isinstance(event, Mixture):
        mean = sum(s * p for s, p in zip(event.sensitivities, event.probabilities, strict=True))
        return mean / event.noise_multiplier
    return 1 / (event.scale if isinstance(event, Laplace) else event.noise_multiplier)


def grown(event: Event, size: int, sampled: bool) -> Event:
    """The event as a group of `size` units sees it; `sampled` takes credit for the sampling.

    Raises
    ------
    FieldError
        For a kind without such a bound here.
    """
    if isinstance(event, Gaussian | DiscreteGaussian):
        return type(event)(event.noise_multiplier / size)
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        z = event.event.noise_multiplier
        if not sampled:
            return Gaussian(z / size)
        chances = tuple(math.comb(size, j) * event.rate**j * (1 - event.rate) ** (size - j) for j in range(size + 1))
        return Mixture(z, tuple(float(j) for j in range(size + 1)), chances)
    raise FieldError("group", size, f"{type(event).__name__} events have no bound for groups here")


def changed(event: Event) -> Event:
    """The event as a part of a unit sees it, where the whole comes, goes or counts zero: the unit stays, and changes.

    Raises
    ------
    FieldError
        For a kind without such a bound here.
    """
    if isinstance(event, Changed):
        return event
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        return Changed(event.rate, event.event)
    return louder(event, 2)


def louder(event: Event, times: float) -> Event:
    """The event for a unit that contributes so many times as much, and is sampled as often.

    Raises
    ------
    FieldError
        For a kind without such a bound here.
    """
    if isinstance(event, Gaussian):
        return Gaussian(event.noise_multiplier / times)
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        return Poisson(event.rate, Gaussian(event.event.noise_multiplier / times))
    if isinstance(event, Changed):
        return Changed(event.rate, Gaussian(event.event.noise_multiplier / times))
    raise FieldError("event", type(event).__name__, "has no bound for a larger contribution here")


def softer(events: Counted, than: Counted) -> bool:
    """Whether there are no more Laplace releases of any loudness, or above it, than among the others."""
    of_one_size = len({event.dimension for event, _ in (*events, *than)}) == 1
    loud = [[sum(n for e, n in own if e.shift >= event.shift) for event, _ in events] for own in (events, than)]
    return of_one_size and all(a <= b for a, b in zip(*loud, strict=True))


def covering(own: Counted, others: Iterable[Counted]) -> Counted:
    """Events, each as often as where it is most often: together they tell no less than those of any one."""
    most = grouped(own)
    for events in others:
        for event, count in grouped(events).items():
            most[event] = max(count, most.get(event, 0))
    return own if most == grouped(own) else tuple(most.items())


def events_to_list(events: Iterable[tuple[Event, int]]) -> list[list[Any]]:
    """(event, count) pairs as plain values for JSON."""
    return [[_plain(event), count] for event, count in events]


def events_from_list(values: Iterable[Sequence[Any]]) -> tuple[tuple[Event, int], ...]:
    """Inverse of `events_to_list`."""
    return tuple((_event(value), count) for value, count in values)


def _plain(event: Event) -> dict[str, Any]:
    values = {f.name: getattr(event, f.name) for f in fields(event)}
    for key, value in values.items():
        values[key] = _plain(value) if isinstance(value, _KNOWN) else list(value) if isinstance(value, tuple) else value
    return {"kind": type(event).__name__, **values}


def _event(value: Mapping[str, Any]) -> Event:
    kinds = {kind.__name__: kind for kind in _KNOWN}
    own = {k: v for k, v in value.items() if k != "kind"}
    for key, v in own.items():
        own[key] = _event(v) if isinstance(v, Mapping) else tuple(v) if isinstance(v, list) else v
    return kinds[require_choice("kind", value["kind"], kinds)](**own)
