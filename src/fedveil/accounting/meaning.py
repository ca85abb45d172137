"""What a promise means for an attacker: the most it can tell two neighbouring inputs apart, from the trade-off curve.

An attacker guesses which of two neighbouring inputs was used. Its true positive rate at a false positive rate is
bounded by the promise's own trade-off curve (Dong, Roth and Su 2022, arXiv 1905.02383; Kulynych et al. 2024,
arXiv 2407.02191): exactly under Gaussian DP; from delta(epsilon) of the composed loss distribution otherwise. No
Gaussian is fitted to an epsilon.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fedveil.errors import require_non_negative
from fedveil.gdp import rounded_up

RATES = (0.01, 0.001)  # false positive rates that are reported
Curve = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """Bounds on every attacker that knows all but which of two neighbouring inputs was used.

    Attributes
    ----------
    accuracy : float
        Best accuracy where both inputs are equally likely; .5 is guessing.
    power : tuple of float
        Best true positive rates at the false positive rates of `RATES`.
    """

    accuracy: float
    power: tuple[float, ...]

    def describe(self) -> str:
        """One line."""
        pairs = zip(self.power, RATES, strict=True)
        shares = ", ".join(f"{rounded_up(most, 3)} at {100 * rate:g}% false positives" for most, rate in pairs)
        return f"best attacker: accuracy {rounded_up(self.accuracy, 3)}, true positives {shares}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"accuracy": self.accuracy, **{f"tpr_at_{r:g}": v for r, v in zip(RATES, self.power, strict=True)}}


def meaning_of_mu(mu: float) -> Meaning:
    """What mu-GDP means: at a false positive rate a, the best attacker's true positive rate is Phi(mu + Phi^-1(a))."""
    accuracy = float(scipy.special.ndtr(require_non_negative("mu", mu) / 2))
    power = tuple(float(scipy.special.ndtr(mu + scipy.special.ndtri(rate))) for rate in RATES)
    return Meaning(accuracy=accuracy, power=power)


def _power(epsilons: Curve, deltas: Curve, rate: float) -> float:
    """True positive rate of the best attacker at a false positive rate, from points of delta(epsilon)."""
    with np.errstate(over="ignore"):
        direct = np.exp(epsilons) * rate + deltas
    indirect = 1 - np.exp(-epsilons) * (1 - deltas - rate)
    return float(min(1.0, direct.min(), indirect.min()))


def meaning_of_curve(epsilons: Curve, deltas: Curve) -> Meaning:
    """What points of delta(epsilon) mean together.

    Parameters
    ----------
    epsilons, deltas : ndarray
        [m], pairs for which the promise holds in both directions; more of them make the bound tighter.
    """
    pure = np.tanh(epsilons / 2)
    advantage = float(np.min(pure + deltas * (1 - pure)))  # (e^epsilon - 1 + 2 delta) / (e^epsilon + 1)
    accuracy = (1 + min(1.0, advantage)) / 2
    return Meaning(accuracy=accuracy, power=tuple(_power(epsilons, deltas, rate) for rate in RATES))
