"""Test whether released noise is as declared: residuals must be independent standard normal numbers.

A residual is a release minus the same release without noise, divided by the declared deviation. Residuals [parties,
rounds, coordinates] must be independent standard normal numbers. Each test below has an exact null distribution; each
kind's smallest p-value is multiplied by the tests of that kind and by the number of kinds (Bonferroni), so that p
bounds the rate of false alarms, however the tests depend on each other.

    single      the smallest number (none: a release without noise) and the largest
    size        sums of squares over blocks of 1, 2, 4, ... coordinates, over each round, odd, even, and all of them,
                and of each party: chi-squared, both sides
    rounds      correlation of two rounds, and of rounds a lag apart, over such blocks
    streams     correlation of any two releases, of any party and round; of two parties over all rounds
    coordinates correlation of two coordinates over all releases
    shape       Kolmogorov and Smirnov's distance of all numbers from the normal law

Correlations of independent normal numbers whose means are known to be 0 follow a beta law: r^2 ~ Beta(1/2, (n - 1)/2).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter
from typing import Self

import numpy as np
import scipy
from numpy.typing import NDArray
from torch import Tensor

from fedveil.errors import FieldError

Array = NDArray[np.float64]

KINDS = 6


@dataclass(frozen=True)
class Departure:
    """The test of one kind that fits the declared noise least.

    Attributes
    ----------
    kind : str
        ``"single"``, ``"size"``, ``"rounds"``, ``"streams"``, ``"coordinates"`` or ``"shape"``.
    p : float
        Upper bound on the chance of a false alarm: that noise as declared has a p-value as small in any test.
    what : str
        The test in words, with its figure, such as a share of the declared deviation, or a correlation.
    """

    kind: str
    p: float
    what: str


@dataclass(frozen=True)
class _Tests:
    """Tests of one kind: the smallest p-value, its place and figure in words, and the number of tests."""

    p: float = 1.0
    what: str = ""
    count: int = 0

    @classmethod
    def of(cls, p: Array, values: Array, say: str, places: list[str]) -> Self:
        """Collect p-values and figures of tests at some places; `say` formats a place and a value."""
        at = int(np.argmin(p))
        return cls(float(p[at]), say.format(place=places[at], value=float(values[at])), p.size)


def departures(noise: Tensor, resolution: float = 1e-12) -> list[Departure]:
    """Run all tests of declared noise; return one result per kind, the smallest p-value first.

    Parameters
    ----------
    noise : Tensor
        Residuals of k parties in t rounds over d coordinates, float64 [k, t, d], divided by the declared deviation.
    resolution : float
        Resolution of the numbers, in deviations: the width of the grid, if noise lies on one. Smaller numbers count as
        this one.

    Raises
    ------
    FieldError
        If there is nothing to test, or a number is not finite.
    """
    if (
        noise.dim() != 3
        or noise.shape[1] < 2
        or not noise.numel()
        or not bool(noise.isfinite().all())
    ):
        raise FieldError(
            "noise",
            tuple(noise.shape),
            "must be finite residuals [parties, rounds >= 2, coordinates]",
        )
    z = noise.double().numpy()
    every = {"single": _single(z, resolution), "size": _size(z), "rounds": _rounds(z)}
    every |= {"streams": _streams(z), "coordinates": _coordinates(z), "shape": _shape(z)}
    rejected = []
    for kind, tests in every.items():
        least = min(tests, key=attrgetter("p"), default=_Tests())
        count = sum(map(attrgetter("count"), tests))
        p = min(1.0, least.p * max(1, count) * KINDS)  # both corrections
        rejected.append(Departure(kind, p, least.what))
    return sorted(rejected, key=attrgetter("p"))


def _single(z: Array, resolution: float) -> list[_Tests]:
    tests, absolute = [], np.abs(z)
    for at, p, say in (
        (
            absolute.argmin(),
            scipy.special.erf(max(absolute.min(), resolution) / np.sqrt(2)),
            "smallest",
        ),
        (absolute.argmax(), scipy.special.erfc(absolute.max() / np.sqrt(2)), "largest"),
    ):
        party, round_, coordinate = np.unravel_index(at, z.shape)
        place = f"party {party}, round {round_ + 1}, coordinate {coordinate}"
        what = f"the {say} number, {absolute.flat[at]:.2g} deviations ({place})"
        tests.append(_Tests(float(p), what, z.size))
    return tests


def _blocks(d: int, name: str) -> Iterator[tuple[NDArray[np.int64], Array, list[str]]]:
    """Yield starts, widths and names of blocks of 1, 2, 4, ... coordinates; the last block has them all."""
    width = 1
    while width < d:
        starts = np.arange(0, d, width)
        widths, places = np.minimum(width, d - starts).astype(np.float64), []
        for start in starts.tolist():
            place = f"coordinate {start}"
            if width > 1:
                place = f"coordinates {start} to {min(start + width, d) - 1}"
            places.append(f"{name}, {place}")
        yield starts, widths, places
        width *= 2
    yield np.zeros(1, dtype=np.int64), np.array([float(d)]), [name]


def _size(z: Array) -> list[_Tests]:
    parties, rounds, d = z.shape
    tests, say = [], "{place}: {value:.2f} of the declared deviation"
    squares = (z**2).sum(0)
    sets = {f"round {t + 1}": [t] for t in range(rounds)}
    sets |= {"odd rounds": list(range(0, rounds, 2)), "even rounds": list(range(1, rounds, 2))}
    sets["all rounds"] = list(range(rounds))
    for name, chosen in sets.items():
        summed = squares[chosen].sum(0)
        for starts, widths, places in _blocks(d, name):
            total, freedom = np.add.reduceat(summed, starts), parties * len(chosen) * widths
            tests.append(_Tests.of(*_chi(total, freedom), say, places))
    own = _chi((z**2).sum((1, 2)), np.full(parties, float(rounds * d)))
    return [*tests, _Tests.of(*own, say, [f"party {k}" for k in range(parties)])]


def _chi(total: Array, freedom: Array) -> tuple[Array, Array]:
    """Compute two-sided p-values of sums of squares, and the shares of the declared deviation."""
    low, high = (
        scipy.special.gammainc(freedom / 2, total / 2),
        scipy.special.gammaincc(freedom / 2, total / 2),
    )
    return np.minimum(1.0, 2 * np.minimum(low, high)), np.sqrt(total / freedom)


def _correlated(products: Array, first: Array, second: Array, n: Array) -> tuple[Array, Array]:
    """Compute correlations from sums of products and squares over n numbers, and their two-sided p-values."""
    silent = (first <= 0) | (second <= 0) | (n < 2)  # no noise is found by its size
    r = np.where(silent, 0.0, products / np.sqrt(np.where(silent, 1.0, first * second)))
    p = scipy.special.betainc((np.maximum(n, 2) - 1) / 2, 0.5, np.clip(1 - r**2, 0.0, 1.0))
    return np.where(silent, 1.0, p), r


def _rounds(z: Array) -> list[_Tests]:
    """Test pairs of rounds that share no round, so that pairs are independent: single pairs, and two halves of each lag."""
    tests, (parties, rounds, d) = [], z.shape
    squares = (z**2).sum(0)
    pairs = {}
    for a, b in combinations(range(rounds), 2):
        pairs[f"rounds {a + 1} and {b + 1}"] = [(a, b)]
    for lag in range(1, rounds):
        for half in (0, 1):
            chosen = [(a, a + lag) for a in range(rounds - lag) if a // lag % 2 == half]
            if len(chosen) > 1:
                pairs[f"rounds {lag} apart, from {chosen[0][0] + 1} on"] = chosen
    for name, chosen in pairs.items():
        products = sum((z[:, a] * z[:, b]).sum(0) for a, b in chosen)
        here, there = zip(*chosen, strict=True)
        first, second = squares[list(here)].sum(0), squares[list(there)].sum(0)
        for starts, widths, places in _blocks(d, name):
            xy = np.add.reduceat(products, starts)
            xx, yy = np.add.reduceat(first, starts), np.add.reduceat(second, starts)
            tested = _correlated(xy, xx, yy, parties * len(chosen) * widths)
            tests.append(_Tests.of(*tested, "{place}: correlation {value:.2f}", places))
    return tests


def _strongest(rows: Array, say: Callable[[int, int], str]) -> _Tests:
    """Test all pairs of rows; `say` names two of them."""
    squares = np.einsum("ij,ij->i", rows, rows)
    lengths = np.sqrt(np.where(squares > 0, squares, np.inf))  # no noise is found by its size
    r = np.triu((rows / lengths[:, None]) @ (rows / lengths[:, None]).T, 1)
    i, j = divmod(int(np.abs(r).argmax()), len(rows))
    [p], [value] = _correlated(
        r[i : i + 1, j], np.ones(1), np.ones(1), np.array([float(rows.shape[1])])
    )
    return _Tests(
        float(p), f"{say(i, j)}: correlation {value:.2f}", len(rows) * (len(rows) - 1) // 2
    )


def _streams(z: Array) -> list[_Tests]:
    parties, rounds, d = z.shape
    names = [f"party {k} in round {t + 1}" for k in range(parties) for t in range(rounds)]
    tests = [_strongest(z.reshape(parties * rounds, d), lambda i, j: f"{names[i]} and {names[j]}")]
    if parties > 1:
        tests.append(
            _strongest(z.reshape(parties, rounds * d), lambda i, j: f"parties {i} and {j}")
        )
    return tests


def _coordinates(z: Array) -> list[_Tests]:
    rows = np.ascontiguousarray(z.reshape(-1, z.shape[2]).T)
    if len(rows) > 1:
        return [_strongest(rows, lambda i, j: f"coordinates {i} and {j}")]
    return []


def _shape(z: Array) -> list[_Tests]:
    test = scipy.stats.kstest(z.ravel(), "norm", method="asymp")
    return [_Tests(float(test.pvalue), f"distance {test.statistic:.4f} from the normal law", 1)]
