"""Promises of ledger lines computed again from the noise in the lines, and compared with the stated ones.

A line states a promise and its draws (`fedveil.accounting.Draw`): the change by one unit, the noise, steps, rate, and
the number of parties with countable noise. A promise that claims less cost than its draws give is refused. Every
attempt has its own line and is charged. Lines of earlier versions, and of methods without draws, state at most a
sensitivity and a scale. Their promise may not cost less than these give, and `on_their_word` counts such lines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isclose, isfinite, sqrt
from types import MappingProxyType
from typing import Any

from fedveil.accounting import OPEN, Entry, Guarantee, Spend, compose_mu
from fedveil.accounting.bounds import GDP, PLD, ZCDP, Bound, MetricDP, MetricGDP
from fedveil.accounting.draws import Draw
from fedveil.accounting.events import FACTOR, Event, Gaussian, Poisson

SLACK = 1e-6  # of a promise beside its noise: lines hold decimal numbers
GAUSSIAN = ("gaussian", "discrete gaussian")
LAPLACE = "euclidean-laplace"


def too_small(
    party: str, entries: Sequence[Entry], terms: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Describe the first promise that claims less cost than the noise in its line gives; "" if there is none.

    Parameters
    ----------
    party : str
        Party of the ledger.
    entries : sequence of Entry
        Entries of one run, or of all runs on a data set.
    terms : mapping, optional
        Options of the method, from the first line of the run's ledger.
    """
    whole = _shares(terms)
    for entry in entries:
        why = _fault(entry, whole)
        if why:
            return f"{party}, round {entry.key[0]}: {why}"
    return ""


def on_their_word(entries: Iterable[Entry]) -> int:
    """Count proven promises that must be believed, as their lines lack draws, or a scale for a distance.

    If the noise depends on the update, an intent has no draws. It counts as supported if another line with draws has
    the same promise.
    """
    entries = list(entries)
    founded = [entry.spend.guarantee for entry in entries if entry.spend.draws]
    return sum(_unfounded(entry, founded) for entry in entries)


def _unfounded(entry: Entry, founded: Sequence[Guarantee]) -> bool:
    spend = entry.spend
    if not spend.guarantee.proven:
        return False
    if spend.guarantee.by_distance:
        return not _scale_is_read(spend)
    if entry.digest == OPEN and not spend.scale:
        return spend.guarantee not in founded
    return not spend.draws


def _fault(entry: Entry, whole: float) -> str:
    """Return the reason why a line's promise is refused; "" if it is accepted."""
    spend = entry.spend
    if not spend.guarantee.proven:
        return ""
    if spend.guarantee.by_distance:
        return _fault_over_distance(entry)
    if _below_scale(entry, whole):
        return "the promise is stronger than its noise carries"
    return _fault_of_draws(entry, whole) if spend.draws else ""


def _fault_of_draws(entry: Entry, whole: float) -> str:
    spend, promise = entry.spend, entry.spend.guarantee
    labels = (promise.unit, promise.relation, promise.silos_per_person)
    if any((draw.unit, draw.relation, draw.silos_per_person) != labels for draw in spend.draws):
        return "its draws are of another unit, relation or number of silos than its promise"
    summed = promise.trust in ("trusted sum", "secure sum")
    if any(_counted(draw) < 1 or _counted(draw) > (whole if summed else 1) for draw in spend.draws):
        return "its draws count on the noise of more parties than there are"
    if not all(isfinite(_moved_by_noise(draw) * sqrt(draw.steps)) for draw in spend.draws):
        return "no promise is as weak as its draws carry"
    if promise.group != 1:
        return "its promise is for a group, and its draws are for one unit"
    bounds = [promise.bound] if spend.charge is None else [promise.bound, GDP(spend.charge)]
    if not all(_covers(bound, spend.draws) for bound in bounds):
        return "the promise is stronger than its draws carry"
    return ""


def _counted(draw: Draw) -> int:
    """Return the number of parties whose noise in a sum counts."""
    return draw.parties - draw.lost


def _moved_by_noise(draw: Draw) -> float:
    """Return mu of one sum for a unit that contributes to it."""
    return draw.moved / (draw.noise * sqrt(_counted(draw)))


def _covers(bound: Bound, draws: Sequence[Draw]) -> bool:
    """Whether a bound costs at least as much as the draws give."""
    mu = compose_mu(_moved_by_noise(draw) * sqrt(draw.steps) for draw in draws)
    if isinstance(bound, GDP):
        return bound.mu >= mu * (1 - SLACK) and _slope_covers(bound.mu_per_distance, draws)
    if isinstance(bound, ZCDP):
        return bound.rho >= mu * mu / 2 * (1 - 2 * SLACK)
    return isinstance(bound, PLD) and len(draws) == 1 and _among(dict(bound.events), draws[0])


def _among(stated: Mapping[Event, int], draw: Draw) -> bool:
    """Whether a bound's events cover a draw: as many steps, no more noise, and no smaller rate."""
    noise = FACTOR[draw.relation] / _moved_by_noise(draw) * (1 + SLACK)
    for event, count in stated.items():
        rate = event.rate if isinstance(event, Poisson) else 1.0
        inner = event.event if isinstance(event, Poisson) else event
        loud = isinstance(inner, Gaussian) and inner.noise_multiplier <= noise
        if loud and count >= draw.steps and rate >= draw.rate * (1 - SLACK):
            return True
    return False


def _slope_covers(stated: float | None, draws: Sequence[Draw]) -> bool:
    """Whether a slope over distance is at least what the draws give; without a slope nothing is promised."""
    if stated is None:
        return True
    if any(draw.slope is None for draw in draws):
        return False
    slopes = [(draw.slope or 0.0) / draw.noise * sqrt(draw.steps) for draw in draws]
    return stated >= compose_mu(slopes) * (1 - SLACK)


def _fault_over_distance(entry: Entry) -> str:
    """Return the reason why a promise over a distance is refused, from the noise's scale; "" if it is accepted."""
    spend, bound = entry.spend, entry.spend.guarantee.bound
    if not _scale_is_read(spend):
        return ""
    [scale] = spend.scale
    weaker = True
    if isinstance(bound, MetricGDP):
        weaker = bound.mu_per_distance >= (1 - SLACK) / scale
    elif isinstance(bound, MetricDP):
        events = bound.events_per_distance
        seen = sum(event.shift * count for event, count in events)
        weaker = bound.epsilon_per_distance >= scale * (1 - SLACK)
        weaker = weaker and (not events or isclose(seen, bound.epsilon_per_distance, rel_tol=SLACK))
    return "" if weaker else "the promise is stronger than its noise carries"


def _scale_is_read(spend: Spend) -> bool:
    """Whether a promise over a distance follows from a scale of noise of its kind."""
    if len(spend.scale) != 1 or not spend.scale[0] > 0:
        return False
    if isinstance(spend.guarantee.bound, MetricGDP):
        return spend.mechanism in GAUSSIAN
    return isinstance(spend.guarantee.bound, MetricDP) and spend.mechanism == LAPLACE


def _shares(terms: Mapping[str, Any]) -> float:
    """Return the number of shares of a sum whose noise counts: n - t, or m - c; 1 without a sum, infinity if unknown."""
    kinds = {"trusted": ("silos", "tolerated"), "secure": ("least_sites", "colluding")}
    if terms.get("sum") in kinds:
        most, lost = kinds[terms["sum"]]
        return float(terms[most] - terms[lost])
    return 1.0 if terms else inf


def _below_scale(entry: Entry, whole: float) -> bool:
    """Whether a line states a smaller cost than sensitivity divided by noise gives."""
    spend, guarantee = entry.spend, entry.spend.guarantee
    if (
        spend.mechanism not in GAUSSIAN
        or not spend.sensitivity
        or len(spend.scale) != 1
        or spend.scale[0] <= 0
    ):
        return False
    shares = whole if guarantee.trust in ("trusted sum", "secure sum") else 1.0
    if not shares > 0:  # nobody's noise counts
        return True
    least = spend.sensitivity / (spend.scale[0] * sqrt(shares))
    if isinstance(guarantee.bound, GDP):
        return guarantee.bound.mu < least * (1 - SLACK)
    quietest = min(_multipliers(guarantee.bound.values().get("events", [])), default=0.0)
    return quietest * least > FACTOR[guarantee.relation] * (
        1 + SLACK
    )  # events count noise over C, moved by 2C or C


def _multipliers(values: object) -> Iterator[float]:
    """Yield every noise multiplier in a bound's events."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            if name == "noise_multiplier":
                yield float(value)
            else:
                yield from _multipliers(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _multipliers(value)
