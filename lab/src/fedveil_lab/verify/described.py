"""Compute the epsilon that follows from a description of a mechanism's steps.

A reader of the code writes the description. This module does not look into the code.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedveil.accounting import DiscreteGaussian, Event, FixedSize, Gaussian, Laplace, Poisson
from fedveil.accounting import epsilon as epsilon_of
from fedveil.errors import FieldError, nearest, require_choice, require_count, require_positive
from fedveil.gdp import rounded_up
from fedveil_lab.verify.claim import PrivacyClaim

FIELD = "[verify.steps]"
WORDS: dict[str, dict[str, str]] = {  # what each word makes of the proof: empty where it stands
    "lots": {"all": "", "poisson": "", "shuffled": "", "fixed size": ""},
    "noise": {"gaussian": "", "laplace": "", "discrete gaussian": ""},
    "seed": {
        "fresh": "",
        "guessable": "the noise follows a seed that can be guessed, and can be subtracted",
    },
    "normaliser": {
        "public": "",
        "private": "private statistics scale the data: one record moves all others",
    },
    "denominator": {
        "public": "",
        "private": "the sum is divided by a private count, which also sizes the noise",
    },
    "weights": {
        "uniform": "",
        "examples": "weights follow private counts: one client's share has no public bound",
    },
    "clipped": {
        "every round": "",
        "first round": "later rounds are not clipped: their sensitivity has no bound",
    },
    "noised": {"all": "", "some": "some coordinates carry no noise"},
    "noise_drawn": {
        "every round": "",
        "reused": "noise that is used twice cancels in a difference of rounds",
    },
}
POINTERS = (
    "lots",
    "seed",
    "normaliser",
    "denominator",
    "weights",
    "noised",
    "noise_drawn",
    "clipped",
)


@dataclass(frozen=True, kw_only=True)
class MechanismSteps:
    """Steps of a mechanism, as somebody describes them.

    Attributes
    ----------
    noise : str
        Noise law: gaussian, laplace or discrete gaussian.
    noise_multiplier : float, optional
        Standard deviation (Laplace: scale) of the noise, divided by `sensitivity`, or by `clip` if there is no
        sensitivity.
    sigma : float, optional
        Standard deviation (Laplace: scale) of the noise on the sum.
    clip : float
        Largest norm of a contribution that the code lets through.
    sensitivity : float, optional
        Sensitivity for which the code sizes the noise, if it is not `clip`.
    per_unit : int
        Number of contributions, each clipped to `clip`, that one unit can make to one step.
    rate : float, optional
        Sampling rate: share of the units that take part in a step.
    lots : str
        How a step's units are drawn: all, poisson, shuffled or fixed size.
    population : int, optional
        Number of units, needed for fixed size.
    rounds, steps : int
        Number of rounds, and of noisy steps per round.
    epochs : int, optional
        Passes over the data per round, for shuffled lots.
    seed, normaliser, denominator, weights, clipped, noised, noise_drawn : str
        Properties of the code, each a value from `WORDS`.
    """

    noise: str = "gaussian"
    noise_multiplier: float | None = None
    sigma: float | None = None
    clip: float = 1.0
    sensitivity: float | None = None
    per_unit: int = 1
    rate: float | None = None
    lots: str = "all"
    population: int | None = None
    rounds: int = 1
    steps: int = 1
    epochs: int | None = None
    seed: str = "fresh"
    normaliser: str = "public"
    denominator: str = "public"
    weights: str = "uniform"
    clipped: str = "every round"
    noised: str = "all"
    noise_drawn: str = "every round"

    def __post_init__(self) -> None:
        for name, words in WORDS.items():
            require_choice(f"{FIELD} {name}", getattr(self, name), words)
        for name in ("noise_multiplier", "sigma", "sensitivity", "rate"):
            if getattr(self, name) is not None:
                require_positive(f"{FIELD} {name}", getattr(self, name))
        require_positive(f"{FIELD} clip", self.clip)
        for name in ("per_unit", "rounds", "steps", "population", "epochs"):
            if getattr(self, name) is not None:
                require_count(f"{FIELD} {name}", getattr(self, name))
        if (self.noise_multiplier is None) == (self.sigma is None):
            raise FieldError(
                f"{FIELD} noise_multiplier", self.noise_multiplier, "say either it or sigma"
            )
        self._require_sampling()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "MechanismSteps":
        """Read the steps from a TOML table.

        Raises
        ------
        FieldError
            For an unknown key, or a value that is not allowed.
        """
        known = [one.name for one in fields(cls)]
        for name in values:
            if name not in known:
                raise FieldError(f"{FIELD} {name}", values[name], nearest(name, known))
        return cls(**values)

    @classmethod
    def parse(cls, text: str) -> "MechanismSteps":
        """Read ``"noise_multiplier=1.1 rate=0.01 lots=poisson steps=1000"``; spaces inside a value are written as underscores."""
        values: dict[str, Any] = {}
        for word in text.replace(",", " ").split():
            name, equals, written = word.partition("=")
            if not equals:
                raise FieldError("--steps", word, "write name=value, as in noise_multiplier=1.1")
            values[name] = _value(written)
        return cls.of(values)

    @property
    def true_multiplier(self) -> float:
        """Noise divided by the most by which one unit can move the sum when it is added or removed."""
        if self.sigma is not None:
            deviation = self.sigma
        else:
            assert self.noise_multiplier is not None
            deviation = self.noise_multiplier * (self.sensitivity or self.clip)
        return deviation / (self.clip * self.per_unit)

    @property
    def claimed_multiplier(self) -> float:
        """Noise divided by the sensitivity for which the code sized it."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.sigma is not None
        return self.sigma / (self.sensitivity or self.clip)

    def _require_sampling(self) -> None:
        """Refuse a description that does not say how units are sampled."""
        if self.lots == "all":
            if self.rate not in (None, 1):
                raise FieldError(
                    f"{FIELD} lots", self.lots, "a rate needs poisson, shuffled or fixed size"
                )
            return
        if self.lots == "shuffled":
            if self.epochs is None:
                raise FieldError(
                    f"{FIELD} epochs", self.epochs, "shuffled lots need the passes of a round"
                )
            if self.steps != 1:
                raise FieldError(
                    f"{FIELD} steps", self.steps, "shuffled lots count epochs: leave steps away"
                )
            return
        if self.rate is None or self.rate > 1:
            raise FieldError(
                f"{FIELD} rate", self.rate, f"lots of {self.lots} need one, above 0 and at most 1"
            )
        if self.lots == "fixed size" and self.population is None:
            raise FieldError(f"{FIELD} population", self.population, "lots of a fixed size need it")


@dataclass(frozen=True)
class Proven:
    """Epsilon that the accountant computes for described steps.

    Attributes
    ----------
    epsilon : float or None
        Epsilon at `delta`; None if nothing can be proven.
    delta : float
        Delta of the claim, or the one that was asked for.
    how : str
        The composition in words.
    faults : tuple of (str, str)
        Faults that the description shows: (key, sentence).
    """

    epsilon: float | None
    delta: float
    how: str
    faults: tuple[tuple[str, str], ...]

    def describe(self) -> str:
        """Write the epsilon in one line."""
        if self.epsilon is None:
            return "nothing: " + "; ".join(text for _, text in self.faults)
        return f"eps={rounded_up(self.epsilon)} at delta={self.delta:g} ({self.how})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "how": self.how,
            "faults": [list(f) for f in self.faults],
        }


def prove(steps: MechanismSteps, claim: PrivacyClaim, delta: float | None = None) -> Proven:
    """Compute the epsilon of the described steps under the claim's relation.

    Parameters
    ----------
    steps : MechanismSteps
        The described steps.
    claim : PrivacyClaim
        The claim, which gives relation, scope and delta.
    delta : float, optional
        Delta to use if the claim is of mu.
    """
    at = claim.delta if claim.delta is not None else (delta or 1e-5)
    faults = []
    for name in POINTERS:
        reason = WORDS[name][getattr(steps, name)]
        if reason:
            faults.append((name, reason))
    if faults:
        return Proven(None, at, "", tuple(faults))
    if steps.lots == "shuffled" and claim.relation == "add/remove":
        why = (
            "shuffled lots shift when a unit comes or goes; no bound is known here under add/remove"
        )
        return Proven(None, at, "", (("lots", why),))
    event, count, how = _composed(steps, 1 if claim.scope == "round" else steps.rounds)
    if at > 0:
        found = epsilon_of([(event, count)], at, claim.relation)  # type: ignore[arg-type]
    elif isinstance(event, Laplace):
        found = (2.0 if claim.relation == "replace-one" else 1.0) * count / event.scale
    else:
        return Proven(
            None, at, "", (("noise", f"{steps.noise} noise has no epsilon at delta 0 here"),)
        )
    notes = []
    if steps.lots == "shuffled":
        notes.append(("lots", "lots are shuffled: no gain by sampling can be proven"))
    if not math.isclose(steps.true_multiplier, steps.claimed_multiplier):
        true, sized = f"{steps.true_multiplier:.3g}", f"{steps.claimed_multiplier:.3g}"
        why = f"noise is {true} of what one unit moves, and was sized as {sized}"
        notes.append(("sensitivity", why))
    return Proven(found, at, how, tuple(notes))


def _composed(steps: MechanismSteps, rounds: int) -> tuple[Event, int, str]:
    """Return the event of one step, how often it occurs, and both in words."""
    z = steps.true_multiplier
    times = rounds * steps.steps
    if steps.noise == "laplace":
        if steps.lots not in ("all", "poisson"):
            raise FieldError(
                f"{FIELD} lots", steps.lots, "Laplace noise is composed for all or poisson"
            )
        noise: Gaussian | Laplace | DiscreteGaussian = Laplace(z)
    elif steps.noise == "discrete gaussian":
        if steps.lots not in ("all", "shuffled"):
            raise FieldError(
                f"{FIELD} lots", steps.lots, "discrete noise is composed without sampling alone"
            )
        noise = DiscreteGaussian(z)
    else:
        noise = Gaussian(z)
    word = f"{steps.noise} noise {z:.4g}"
    if steps.lots == "shuffled":
        assert steps.epochs is not None
        passes = rounds * steps.epochs
        return noise, passes, f"{word}, {passes} passes, in each of which a unit is in one lot"
    if steps.lots == "poisson":
        assert steps.rate is not None
        assert isinstance(noise, Gaussian | Laplace)
        return (
            Poisson(steps.rate, noise),
            times,
            f"{word}, Poisson lots of {steps.rate:.4g}, {times} steps",
        )
    if steps.lots == "fixed size":
        assert steps.rate is not None
        assert steps.population is not None
        assert isinstance(noise, Gaussian)
        sample = max(1, round(steps.rate * steps.population))
        event = FixedSize(sample, steps.population, noise)
        return event, times, f"{word}, {sample} of {steps.population} drawn, {times} steps"
    return noise, times, f"{word}, everybody in {times} steps"


def _value(written: str) -> Any:
    """Read a number if the text is one, else a word."""
    for kind in (int, float):
        try:
            return kind(written)
        except ValueError:
            continue
    return written.replace("_", " ")
