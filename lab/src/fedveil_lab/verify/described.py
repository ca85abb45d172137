"""What can be proven for a mechanism as somebody describes it: its steps, composed by the one accountant.

A description holds what the code does, as a reader of it says; nothing here looks into the code.
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
    """The steps of a mechanism.

    Attributes
    ----------
    noise : str
        gaussian, laplace or discrete gaussian.
    noise_multiplier : float, optional
        Deviation (Laplace: scale) of the noise over `sensitivity`, or over `clip` where no sensitivity is named.
    sigma : float, optional
        The deviation (scale) itself, on the sum.
    clip : float
        The longest contribution that the code lets through.
    sensitivity : float, optional
        What the noise was sized for, where the code sizes it for something else than `clip`.
    per_unit : int
        Contributions, each clipped to `clip`, that one unit can make to one step.
    rate : float, optional
        Share of the units in a step.
    lots : str
        all, poisson, shuffled or fixed size.
    population : int, optional
        Units in all, for fixed size.
    rounds, steps : int
        Rounds, and noisy steps in each.
    epochs : int, optional
        Passes over the data in a round, for shuffled lots.
    seed, normaliser, denominator, weights, clipped, noised, noise_drawn : str
        One of `WORDS` each.
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
        """From a table of TOML.

        Raises
        ------
        FieldError
            For a key that is unknown, or a value that is none.
        """
        known = [one.name for one in fields(cls)]
        for name in values:
            if name not in known:
                raise FieldError(f"{FIELD} {name}", values[name], nearest(name, known))
        return cls(**values)

    @classmethod
    def parse(cls, text: str) -> "MechanismSteps":
        """From ``"noise_multiplier=1.1 rate=0.01 lots=poisson steps=1000"``; blanks inside a word are underscores."""
        values: dict[str, Any] = {}
        for word in text.replace(",", " ").split():
            name, equals, written = word.partition("=")
            if not equals:
                raise FieldError("--steps", word, "write name=value, as in noise_multiplier=1.1")
            values[name] = _value(written)
        return cls.of(values)

    @property
    def true_multiplier(self) -> float:
        """Noise over the most that one unit can move the sum, were it to come or go."""
        if self.sigma is not None:
            deviation = self.sigma
        else:
            assert self.noise_multiplier is not None
            deviation = self.noise_multiplier * (self.sensitivity or self.clip)
        return deviation / (self.clip * self.per_unit)

    @property
    def claimed_multiplier(self) -> float:
        """Noise over what it was sized for."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.sigma is not None
        return self.sigma / (self.sensitivity or self.clip)

    def _require_sampling(self) -> None:
        """Refuse lots that are not described."""
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
    """Promise that the accountant computes for steps.

    Attributes
    ----------
    epsilon : float or None
        At `delta`; None where nothing can be proven.
    delta : float
        Of the claim, or the one that was asked for.
    how : str
        What was composed.
    faults : tuple of (str, str)
        What reading the description finds, each with the key that shows it.
    """

    epsilon: float | None
    delta: float
    how: str
    faults: tuple[tuple[str, str], ...]

    def describe(self) -> str:
        """The figure in one line."""
        if self.epsilon is None:
            return "nothing: " + "; ".join(text for _, text in self.faults)
        return f"eps={rounded_up(self.epsilon)} at delta={self.delta:g} ({self.how})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "how": self.how,
            "faults": [list(f) for f in self.faults],
        }


def prove(steps: MechanismSteps, claim: PrivacyClaim, delta: float | None = None) -> Proven:
    """Compose the steps under the claim's relation.

    Parameters
    ----------
    steps : MechanismSteps
        The description.
    claim : PrivacyClaim
        For its relation, scope and delta.
    delta : float, optional
        For a claim of mu, which has none.
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
    """The event of one step, how often it comes, and both in words."""
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
    """A number where it is one, else a word."""
    for kind in (int, float):
        try:
            return kind(written)
        except ValueError:
            continue
    return written.replace("_", " ")
