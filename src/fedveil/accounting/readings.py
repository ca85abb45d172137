"""Readings: what a configuration of any library really promises."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from fedveil.accounting.bounds import PLD
from fedveil.accounting.events import Relation, factor_of
from fedveil.accounting.guarantee import VACUOUS, Guarantee, Scope, Trust, Unit, promise_of_mu
from fedveil.accounting.planning import least_noise, step_event
from fedveil.errors import FieldError, require_choice, require_count, require_positive
from fedveil.gdp import rounded_up
from fedveil.ranges import require_within

AS_READ = "one {unit} moves the value without noise by at most the clip, and every release has fresh noise"
SAMPLED = "every {unit} is in a step's sample by a coin of its own of probability {rate:g}, and nobody sees who is"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a configuration really promises, next to what it claims.

    Attributes
    ----------
    sigma : float
        Deviation of the configuration's noise.
    round, total : Guarantee
        Guarantee of one round, and of all rounds.
    delta : float
        Delta of every epsilon.
    claimed : float, optional
        Epsilon that the configuration claims, for a round or for the total.
    least_sigma : float, optional
        Least deviation for which the total stays within `claimed`.
    """

    sigma: float
    round: Guarantee
    total: Guarantee
    delta: float
    claimed: float | None = None
    least_sigma: float | None = None

    def describe(self) -> tuple[str, ...]:
        """Describe the reading, one sentence for each entry."""
        epsilon = self.total.epsilon(self.delta)
        sentences = [
            f"noise of deviation {self.sigma:.4g}: {self.round.describe()}",
            self.total.describe(self.delta),
            self.total.meaning().describe(),
        ]
        if self.claimed is not None:
            kept = "holds" if epsilon <= self.claimed else "does not hold"
            sentences.append(f"the stated epsilon of {self.claimed:g} {kept} as a total")
            sentences.append(
                f"noise of deviation {rounded_up(self.least_sigma or 0.0)} would be enough for epsilon {self.claimed:g}"
            )
        sentences += [f"condition: {condition}" for condition in self.total.conditions]
        if epsilon > VACUOUS:
            sentences.append("vacuous: it excludes nothing in practice")
        return tuple(sentences)


def reading(
    *,
    clip: float,
    rounds: int,
    delta: float = 1e-5,
    sigma: float | None = None,
    epsilon: float | None = None,
    sensitivity: float | None = None,
    formula: Literal["classic", "exact"] = "classic",
    rate: float = 1.0,
    steps: int = 1,
    unit: Unit = "client",
    trust: Trust = "local",
    relation: Relation = "zero-out",
) -> Reading:
    """Compute what a configuration really promises, from its clipping norm and its noise.

    Parameters
    ----------
    clip : float
        C: the largest distance by which one unit moves the release. The promise follows from it, not from
        `sensitivity`.
    rounds : int
        Number of rounds.
    delta : float
        Delta of every epsilon.
    sigma : float, optional
        Deviation of the noise, in the units of `clip`.
    epsilon : float, optional
        With `sigma`: the claimed total. Without `sigma`: epsilon of one round; sigma is computed from it.
    sensitivity : float, optional
        Sensitivity that the configuration used for its sigma; by default the clip.
    formula : {"classic", "exact"}
        Formula of sigma. Classic: sigma = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon, which proves nothing above
        epsilon 1. Exact: the analytic Gaussian mechanism.
    rate : float
        Probability with which a step's sample has a record or a person, each by a coin of its own. Shuffled batches
        are no such samples: with them leave it at 1, and count as many steps as batches have a unit.
    steps : int
        Number of noisy steps of a round, each with noise of deviation sigma.
    unit, trust, relation
        Fields of `Guarantee`.

    Returns
    -------
    Reading
        Guarantees of one round and of all rounds.

    Raises
    ------
    FieldError
        For a value out of range, neither sigma nor epsilon, or a sample of clients.
    """
    clip, rounds = require_within("clip", "clip", clip), require_count("rounds", rounds)
    steps = require_count("steps", steps)
    if rate != 1 and unit not in ("record", "person"):
        accepted = "is a sample of a silo's own records or persons: set unit, or leave it out"
        raise FieldError("rate", rate, accepted)
    delta = require_within("delta", "delta", delta)
    require_choice("formula", formula, ("classic", "exact"))
    change = factor_of(relation) * clip
    if epsilon is not None:
        require_within("epsilon", "epsilon", epsilon)
    if sigma is None:
        if epsilon is None:
            raise FieldError("sigma", None, "give it, or the epsilon that it is computed from")
        moved = require_positive("sensitivity", clip if sensitivity is None else sensitivity)
        if formula == "classic":
            sigma = moved * (math.sqrt(2 * math.log(1.25 / delta)) / epsilon)
        else:
            sigma = moved * least_noise(epsilon, delta, 1)
    noise = require_within("sigma", "sigma", sigma)
    least = None
    if epsilon is not None:
        least = clip * least_noise(epsilon, delta, rounds * steps, rate=rate, relation=relation)

    def promised(scope: Scope, releases: int) -> Guarantee:
        read = (AS_READ.format(unit=unit),)
        mu = change * math.sqrt(releases) / noise
        if rate == 1:
            return promise_of_mu(unit, trust, relation, scope, mu, read)
        sampled = (*read, SAMPLED.format(unit=unit, rate=rate))
        plain = promise_of_mu(unit, trust, relation, scope, mu, sampled)
        return replace(plain, bound=PLD(((step_event(noise / clip, rate), releases),)))

    return Reading(
        sigma=noise,
        round=promised("round", steps),
        total=promised("total", rounds * steps),
        delta=delta,
        claimed=epsilon,
        least_sigma=least,
    )
