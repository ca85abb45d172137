"""Exact conversions between privacy parameters (mu, epsilon, delta, rho), and bounds on attackers.

A Gaussian release with sensitivity s and deviation sigma is exactly mu-GDP with mu = s / sigma (Dong, Roth and Su 2022,
arXiv 1905.02383). Unsubsampled Gaussian releases compose exactly: mu^2 adds up. Moreover
delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang 2018, arXiv 1805.06530).

An attacker guesses which of two neighbouring inputs was used. The promise's own trade-off curve bounds the attacker's
true positive rate at each false positive rate (Dong, Roth and Su; Kulynych et al. 2024, arXiv 2407.02191). The bound is
exact for Gaussian DP, and follows from delta(epsilon) otherwise. No Gaussian is fitted to an epsilon.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import numpy as np
import scipy  # its parts load when they are first used; at once they would double the time of our import
from numpy.typing import NDArray

from fedveil.errors import require_non_negative, require_positive
from fedveil.ranges import require_within

_CERTAIN = 40.0  # Phi(40) is 1 in every float
RATES = (0.01, 0.001)  # false positive rates of the best attacker that are reported

Curve = NDArray[np.float64]


def log_delta(epsilon: float, mu: float) -> float:
    """Compute the natural logarithm of delta(epsilon) for mu-GDP, also for large mu such as 1000.

    Parameters
    ----------
    epsilon : float
        At least 0.
    mu : float
        Above 0.

    Returns
    -------
    float
        At most 0; ``-inf`` where delta underflows.
    """
    return _log_delta(mu / 2 - epsilon / mu, mu / 2 + epsilon / mu)


def _log_delta(a: float, b: float) -> float:
    """Compute `log_delta` from a = mu/2 - epsilon/mu and b = mu/2 + epsilon/mu; epsilon is then (b^2 - a^2) / 2."""
    high = float(scipy.special.log_ndtr(a))
    scaled = (
        float(scipy.special.erfcx(b / math.sqrt(2))) / 2
    )  # Phi(-b) e^(b^2/2): large mu subtracts nothing large
    if scaled <= 0:
        return high
    gap = math.log(scaled) - a * a / 2 - high
    return high + math.log(-math.expm1(gap)) if gap < 0 else -math.inf


def _root(target: float, b_of: Callable[[float], float], top: float) -> float:
    """Find the a for which log delta equals a target, with b as a function of a; `top` is an upper limit for a."""

    def excess(a: float) -> float:
        return max(_log_delta(a, b_of(a)), -1e300) - target

    lowest = -math.sqrt(-2 * target) - 1.0
    return float(
        scipy.optimize.brentq(
            excess,
            lowest,
            top,
            xtol=1e-300,
            rtol=1e-14,
            maxiter=500,
        )
    )


def delta_of_mu(mu: float, epsilon: float) -> float:
    """Compute the least delta for which mu-GDP gives (epsilon, delta)-DP."""
    mu, epsilon = require_within("mu", "mu", mu), require_non_negative("epsilon", epsilon)
    return math.exp(log_delta(epsilon, mu)) if mu > 0 else 0.0


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Compute the least epsilon for which mu-GDP gives (epsilon, delta)-DP.

    Parameters
    ----------
    mu : float
        Gaussian-DP parameter, from 0 to 1e40.
    delta : float
        From 1e-15 to below 1.

    Returns
    -------
    float
        Epsilon, exact to about 1e-12 relative.

    Raises
    ------
    FieldError
        If a parameter is beyond its limits in `fedveil.ranges`.
    """
    mu, delta = require_within("mu", "mu", mu), require_within("delta", "delta", delta)
    target = math.log(delta)
    if mu == 0 or log_delta(0.0, mu) <= target:
        return 0.0

    def b_of(a: float) -> float:
        return mu - a

    # solved for a, which stays moderate: a root in epsilon itself would lose its digits from mu = 1e8 on
    a = _root(target, b_of, min(mu / 2, _CERTAIN))
    return mu * (mu / 2 - a)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """Compute the largest mu for which mu-GDP still gives (epsilon, delta)-DP: the inverse of `epsilon_of_mu`."""
    epsilon, delta = require_positive("epsilon", epsilon), require_within("delta", "delta", delta)

    def b_of(a: float) -> float:
        return math.hypot(a, math.sqrt(2 * epsilon))  # from epsilon = (b^2 - a^2) / 2

    a = _root(math.log(delta), b_of, _CERTAIN)
    return a + b_of(a) if a > 0 else 2 * epsilon / (b_of(a) - a)


def noise_of_epsilon(epsilon: float, delta: float, change: float = 1.0) -> float:
    """Compute the least deviation of Gaussian noise for (epsilon, delta) and a sensitivity of `change`.

    The result is rounded so that it is never too small.
    """
    sigma = change / mu_of_epsilon(epsilon, delta)
    step = 1e-12
    while epsilon_of_mu(change / sigma, delta) > epsilon:
        sigma *= 1 + step
        step *= 2  # rounding is a large part of an epsilon of 1e-12
    return sigma


def compose_mu(mus: Iterable[float]) -> float:
    """Compose independent Gaussian releases: mu is the root of the sum of squares."""
    return math.hypot(
        *(require_non_negative("mu", m) for m in mus)
    )  # squares of small ones would underflow


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Compute an epsilon for which rho-zCDP gives (epsilon, delta)-DP (Canonne, Kamath and Steinke 2020, Corollary 13)."""
    rho, delta = require_non_negative("rho", rho), require_within("delta", "delta", delta)
    if rho == 0:
        return 0.0

    def bound(log_order: float) -> float:
        excess = math.exp(log_order)  # the order minus 1
        order = 1 + excess
        tail = (math.log(delta) + math.log(order)) / excess
        return order * rho + math.log1p(-1 / order) - tail

    least = scipy.optimize.minimize_scalar(
        bound,
        bounds=(-12.0, 20.0),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return max(0.0, float(least.fun))


def rounded_up(value: float, digits: int = 4) -> str:
    """Format a privacy parameter, rounded up so that the text is never below the value.

    Parameters
    ----------
    value : float
        Epsilon, mu, rho or leakage, or a noise scale that must not be too small.
    digits : int
        Significant digits.

    Examples
    --------
    >>> rounded_up(4.377178), rounded_up(2.0), rounded_up(99_999.5)
    ('4.378', '2', '1e+05')
    """
    raised = Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(value)
    return f"{float(raised):.{digits}g}"


def rounded_down(value: float, decimals: int = 2) -> str:
    """Format a lower bound proven by an attack, rounded down so that the text is never above it.

    Parameters
    ----------
    value : float
        Lower bound of an epsilon or mu.
    decimals : int
        Digits after the point.

    Examples
    --------
    >>> rounded_down(1.239), rounded_down(2.0)
    ('1.23', '2.00')
    """
    last_digit = Decimal(1).scaleb(-decimals)
    return str(Decimal(value).quantize(last_digit, rounding=ROUND_FLOOR))


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """Limits on any attacker's success in guessing which of two known neighbouring inputs was used.

    Attributes
    ----------
    accuracy : float
        Best accuracy if both inputs are equally likely; .5 is guessing.
    power : tuple of float
        Best true positive rates at the false positive rates of `RATES`.
    """

    accuracy: float
    power: tuple[float, ...]

    def describe(self) -> str:
        """Describe the limits in one line."""
        found = []
        for most, rate in zip(self.power, RATES, strict=True):
            found.append(f"{rounded_up(100 * most, 3)}% at {100 * rate:g}% false alarms")
        right = f"the best attacker is right in at most {rounded_up(100 * self.accuracy, 3)}% of cases (50% is a coin)"
        return f"{right}, and finds at most {', '.join(found)}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {"accuracy": self.accuracy}
        for rate, most in zip(RATES, self.power, strict=True):
            values[f"tpr_at_{rate:g}"] = most
        return values


def meaning_of_mu(mu: float) -> Meaning:
    """Compute the limits on attackers under mu-GDP: at false positive rate a, the true positive rate Phi(mu + Phi^-1(a))."""
    accuracy = float(scipy.special.ndtr(require_within("mu", "mu", mu) / 2))
    power = tuple(float(scipy.special.ndtr(mu + scipy.special.ndtri(rate))) for rate in RATES)
    return Meaning(accuracy=accuracy, power=power)


def _power(epsilons: Curve, deltas: Curve, rate: float) -> float:
    """Compute the largest true positive rate at a false positive rate, from points of delta(epsilon)."""
    with np.errstate(over="ignore"):
        direct = np.exp(epsilons) * rate + deltas
    indirect = 1 - np.exp(-epsilons) * (1 - deltas - rate)
    return float(min(1.0, direct.min(), indirect.min()))


def meaning_of_curve(epsilons: Curve, deltas: Curve) -> Meaning:
    """Compute the limits on attackers from points of delta(epsilon).

    Parameters
    ----------
    epsilons, deltas : ndarray
        [m] each, pairs for which the promise holds in both directions. More pairs make the limits tighter.
    """
    pure = np.tanh(epsilons / 2)
    advantage = float(
        np.min(pure + deltas * (1 - pure))
    )  # (e^epsilon - 1 + 2 delta) / (e^epsilon + 1)
    accuracy = (1 + min(1.0, advantage)) / 2
    power = tuple(_power(epsilons, deltas, rate) for rate in RATES)
    return Meaning(accuracy=accuracy, power=power)
