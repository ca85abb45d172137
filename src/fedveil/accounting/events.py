"""Events: kinds of noisy releases for the accountant to compose."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from fedveil.checks import Count, EventNoise, EventShift, Parameters, Rate
from fedveil.errors import FieldError, kind_of, require_choice, require_count, require_non_negative

Relation = Literal["zero-out", "add/remove", "replace-one"]

# Largest change of a sum of contributions clipped to C when one unit changes, in units of C.
FACTOR: dict[Relation, float] = {"zero-out": 1.0, "add/remove": 1.0, "replace-one": 2.0}


def factor_of(relation: str) -> float:
    """Return the `FACTOR` of a relation, and refuse an unknown relation."""
    return FACTOR[require_choice("relation", relation, FACTOR)]  # type: ignore[index]


# Under add/remove a Poisson lot must fit into a public number of places; a larger lot counts as nothing. The
# probability of that, even with SPARE more units, is added to delta for every sampled step.
SPILLED, SPARE = 1e-18, 10


@dataclass(frozen=True)
class Gaussian(Parameters):
    """Gaussian noise on a sum over all units (no sampling).

    Parameters
    ----------
    noise_multiplier : float
        z = sigma / C, with C the bound on one unit's contribution. Under replace-one a unit can move the sum by 2C.
    """

    noise_multiplier: EventNoise


@dataclass(frozen=True)
class Laplace(Parameters):
    """One-dimensional Laplace noise.

    Parameters
    ----------
    scale : float
        b / C: scale of the noise, divided by the bound on one unit's contribution.
    """

    scale: EventNoise


@dataclass(frozen=True)
class EuclideanLaplace(Parameters):
    """n-dimensional Laplace noise on a vector, compared with another vector at a given distance.

    Parameters
    ----------
    dimension : int
        n, the number of coordinates.
    shift : float
        s = epsilon * distance. The loss is that between two vectors at this distance, whatever the relation.
    """

    dimension: Count
    shift: EventShift


@dataclass(frozen=True)
class DiscreteGaussian(Parameters):
    """Discrete Gaussian noise on every coordinate of an integer vector (Canonne, Kamath and Steinke 2020).

    It is accounted by concentrated DP: each release costs 1 / (2 z^2), in any dimension.

    Parameters
    ----------
    noise_multiplier : float
        z: parameter sigma divided by the Euclidean bound on one unit's contribution, both on the grid.
    """

    noise_multiplier: EventNoise


@dataclass(frozen=True)
class Mixture(Parameters):
    """Gaussian noise on a unit that contributes one of several amounts at random.

    Parameters
    ----------
    noise_multiplier : float
        z, as in `Gaussian`.
    sensitivities, probabilities : sequence of float
        Contributions in units of C, and the probability of each.
    """

    noise_multiplier: EventNoise
    sensitivities: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in (*self.sensitivities, *self.probabilities):
            require_non_negative("mixture", value)
        matched = len(self.sensitivities) == len(self.probabilities)
        if not matched or not math.isclose(math.fsum(self.probabilities), 1.0):
            raise FieldError(
                "probabilities", self.probabilities, "must match the sensitivities and sum to 1"
            )
        if not any(self.sensitivities):
            raise FieldError(
                "sensitivities",
                self.sensitivities,
                "must hold one above 0: nothing else costs anything",
            )


@dataclass(frozen=True)
class Poisson(Parameters):
    """Poisson sampling: each unit takes part independently with probability q.

    Parameters
    ----------
    rate : float
        q, from 1e-9 to 1.
    event : Gaussian or Laplace
        Noise on the sum over the sample.
    """

    rate: Rate
    event: Gaussian | Laplace


@dataclass(frozen=True)
class Changed(Parameters):
    """Poisson sampling of a unit that is in both inputs, with another contribution in each.

    It describes one record in steps that sample its person or client: the person or client stays, and is sampled as
    often as before. Its two contributions a and b have length at most C. So a step is distributed as (1 - q) N(0) + q
    N(a), or with b in place of a. This is the same as for one unit in place of another. The dominating pair has a = -b
    (Lebeda, Regehr, Kamath and Steinke 2024, arXiv 2405.20769). It is accounted under replace-one, whatever the
    relation of the promise.

    Parameters
    ----------
    rate : float
        q, from 1e-9 to 1.
    event : Gaussian
        Noise on the sum over the sample.
    """

    rate: Rate
    event: Gaussian


@dataclass(frozen=True)
class FixedSize(Parameters):
    """Sampling of exactly m of n units without replacement; it costs more than Poisson sampling.

    Parameters
    ----------
    sample, population : int
        m and n, m <= n.
    event : Gaussian
        Noise on the sum over the sample.
    """

    sample: Count
    population: Count
    event: Gaussian

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample > self.population:
            raise FieldError(
                "sample", self.sample, f"must be at most the population of {self.population}"
            )


Event = (
    Gaussian
    | Laplace
    | EuclideanLaplace
    | DiscreteGaussian
    | Mixture
    | Poisson
    | Changed
    | FixedSize
)
_KNOWN = (
    Gaussian,
    Laplace,
    EuclideanLaplace,
    DiscreteGaussian,
    Mixture,
    Poisson,
    Changed,
    FixedSize,
)


Counted = tuple[tuple[Any, int], ...]  # events, each with the number of times it occurred


def count_events(events: Iterable[tuple[Event, int]]) -> dict[Event, int]:
    """Add the counts of equal events; sampling with rate 1 becomes the event without sampling.

    Raises
    ------
    FieldError
        For anything but an event, or a count that is not a whole number of at least 1.
    """
    counts: dict[Event, int] = {}
    for pair in events:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], _KNOWN):
            raise FieldError(
                "events", pair, "must be (event, count) pairs of fedveil.accounting events"
            )
        event, count = _without_full_sampling(pair[0]), require_count("count", pair[1])
        counts[event] = counts.get(event, 0) + count
    return counts


def _without_full_sampling(event: Event) -> Event:
    if isinstance(event, Poisson) and event.rate == 1:
        return event.event
    if isinstance(event, FixedSize) and event.sample == event.population:
        return event.event
    return event


def overflow_delta(counts: Mapping[Event, int], relation: Relation) -> float:
    """Return the delta for the chance that a sampled lot has more units than places, over all sampled steps."""
    if relation != "add/remove":
        return 0.0
    sampled = sum(
        count for event, count in counts.items() if isinstance(event, Poisson | Changed | Mixture)
    )
    return sampled * SPILLED


def size_of(event: Event) -> float:
    """Return a number that ranks events of one kind by cost; it is no privacy parameter."""
    if isinstance(event, Poisson):
        return event.rate * size_of(event.event)
    if isinstance(event, Changed):
        return 2 * event.rate * size_of(event.event)
    if isinstance(event, FixedSize):
        return event.sample / event.population * size_of(event.event)
    if isinstance(event, EuclideanLaplace):
        return event.shift
    if isinstance(event, Mixture):
        amounts = map(operator.mul, event.sensitivities, event.probabilities)
        return float(sum(amounts)) / event.noise_multiplier
    if isinstance(event, Laplace):
        return 1 / event.scale
    return 1 / event.noise_multiplier


def event_of_group(event: Event, size: int, sampled: bool) -> Event:
    """Return the event for `size` units together; with `sampled` the bound uses that each is sampled.

    Raises
    ------
    FieldError
        For a kind of event without such a bound here.
    """
    if isinstance(event, Gaussian | DiscreteGaussian):
        return type(event)(event.noise_multiplier / size)
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        z = event.event.noise_multiplier
        if not sampled:
            return Gaussian(z / size)
        amounts, chances = [], []
        for drawn in range(size + 1):
            amounts.append(float(drawn))
            others = (1 - event.rate) ** (size - drawn)
            chances.append(math.comb(size, drawn) * event.rate**drawn * others)
        return Mixture(z, tuple(amounts), tuple(chances))
    raise FieldError("group", size, f"{type(event).__name__} events have no bound for groups here")


def event_of_part(event: Event) -> Event:
    """Return the event for a part of a unit, such as a record of a person, from the whole's event.

    The whole's event is for zero-out or add/remove. For its part the whole stays, and its contribution changes.

    Raises
    ------
    FieldError
        For a kind of event without such a bound here.
    """
    if isinstance(event, Changed):
        return event
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        return Changed(event.rate, event.event)
    return scaled_event(event, 2)


def scaled_event(event: Event, times: float) -> Event:
    """Return the event for a unit whose contribution is `times` as large; it is sampled as often.

    Raises
    ------
    FieldError
        For a kind of event without such a bound here.
    """
    if isinstance(event, Gaussian):
        return Gaussian(event.noise_multiplier / times)
    if isinstance(event, Poisson) and isinstance(event.event, Gaussian):
        return Poisson(event.rate, Gaussian(event.event.noise_multiplier / times))
    if isinstance(event, Changed):
        return Changed(event.rate, Gaussian(event.event.noise_multiplier / times))
    raise FieldError("event", kind_of(event), "has no bound for a larger contribution here")


def is_dominated(events: Counted, by: Counted) -> bool:
    """Whether Laplace releases cost no more than the releases `by`, all of one dimension.

    It holds if, for each shift s, `events` has no more releases with a shift of at least s than `by`.
    """
    dimensions = {event.dimension for event, _ in (*events, *by)}
    if len(dimensions) != 1:
        return False
    shifts = [event.shift for event, _ in events]
    return all(_number_from(events, shift) <= _number_from(by, shift) for shift in shifts)


def _number_from(events: Counted, shift: float) -> int:
    """Count the Laplace releases whose shift is at least `shift`."""
    return sum(count for event, count in events if event.shift >= shift)


def most_of_each(own: Counted, others: Iterable[Counted]) -> Counted:
    """Take each event with its largest count in any of the lists; the result costs at least as much as each list."""
    first = count_events(own)
    most = dict(first)
    for events in others:
        for event, count in count_events(events).items():
            most[event] = max(count, most.get(event, 0))
    return own if most == first else tuple(most.items())


def events_to_list(events: Iterable[tuple[Event, int]]) -> list[list[Any]]:
    """Write (event, count) pairs as plain values for JSON."""
    return [[_plain(event), count] for event, count in events]


def events_from_list(values: Iterable[Sequence[Any]]) -> tuple[tuple[Event, int], ...]:
    """Read the (event, count) pairs that `events_to_list` wrote."""
    return tuple((_event(value), count) for value, count in values)


def _plain(event: Event) -> dict[str, Any]:
    values: dict[str, Any] = {"kind": type(event).__name__}
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, _KNOWN):
            value = _plain(value)
        elif isinstance(value, tuple):
            value = list(value)
        values[field.name] = value
    return values


def _event(value: Mapping[str, Any]) -> Event:
    kinds = {kind.__name__: kind for kind in _KNOWN}
    own: dict[str, Any] = {}
    for name, part in value.items():
        if isinstance(part, Mapping):
            own[name] = _event(part)
        elif isinstance(part, list):
            own[name] = tuple(part)
        else:
            own[name] = part
    kind = own.pop("kind")
    return kinds[require_choice("kind", kind, kinds)](**own)
