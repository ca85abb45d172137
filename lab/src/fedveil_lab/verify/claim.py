"""Privacy claims as one line of text, such as ``"eps=1 delta=1e-5 zero-out client total central"``."""

import math
from dataclasses import dataclass
from typing import get_args

from fedveil.accounting import Relation, Trust, epsilon_of_mu, mu_of_epsilon
from fedveil.errors import FieldError, require_a, require_choice, require_non_negative
from fedveil.gdp import rounded_up
from fedveil.units import UNITS

FIELD = "--claim"
EXAMPLE = "eps=1 delta=1e-5 zero-out client total central"
RELATIONS: tuple[str, ...] = get_args(Relation)
TRUSTS: tuple[str, ...] = get_args(Trust)
SCOPES = ("total", "round")
KINDS = ("gaussian",)
EPSILONS = ("eps", "epsilon", "ε")
DELTAS = ("delta", "δ")
MUS = ("mu", "μ")


@dataclass(frozen=True, kw_only=True)
class PrivacyClaim:
    """Privacy claim for a mechanism, which is to be tested.

    Attributes
    ----------
    epsilon, delta : float or None
        Claimed (epsilon, delta)-DP; None if a mu is claimed.
    mu : float or None
        Claimed mu of Gaussian DP; None if an epsilon is claimed.
    relation : str
        Neighbouring relation: zero-out, add/remove or replace-one.
    unit : str
        Unit of protection: client, record, or person (several records of one client).
    scope : str
        total: the claim is for everything that the mechanism returns. round: for each of its rounds alone.
    trust : str
        central: the adversary sees what is published. local: the adversary is the server.
    gaussian : bool
        Whether the mechanism is described as Gaussian noise without sampling. Then epsilon and delta are converted to a
        mu.
    """

    epsilon: float | None = None
    delta: float | None = None
    mu: float | None = None
    relation: str
    unit: str
    scope: str
    trust: str
    gaussian: bool = False

    @classmethod
    def parse(cls, text: str) -> "PrivacyClaim":
        """Read a claim; its words may stand in any order.

        Raises
        ------
        FieldError
            For a word that is unknown, stands twice, or is missing.
        """
        require_a(FIELD, text, str, f"must be text, as in {EXAMPLE!r}")
        numbers: dict[str, float] = {}
        words: dict[str, str] = {}
        for word in text.replace(",", " ").split():
            if "=" in word:
                name, value = _number(text, word)
                _once(text, numbers, name)
                numbers[name] = value
            else:
                name = _kind(text, word.lower())
                _once(text, words, name)
                words[name] = word.lower()
        for name, choices in (
            ("relation", RELATIONS),
            ("unit", UNITS),
            ("scope", SCOPES),
            ("trust", TRUSTS),
        ):
            if name not in words:
                raise FieldError(
                    FIELD,
                    text,
                    f"says no {name}: add one of {', '.join(choices)}, as in {EXAMPLE!r}",
                )
        if ("epsilon" in numbers) == ("mu" in numbers):
            raise FieldError(FIELD, text, f"must say either eps= or mu=, as in {EXAMPLE!r}")
        if "epsilon" in numbers and "delta" not in numbers:
            raise FieldError(FIELD, text, "says no delta: add delta=1e-5, say, or delta=0")
        if "mu" in numbers and "delta" in numbers:
            raise FieldError(FIELD, text, "a mu holds at every delta: leave delta= away")
        gaussian = words.pop("kind", "") == "gaussian"
        return cls(**numbers, **words, gaussian=gaussian)  # type: ignore[arg-type]

    @classmethod
    def given(cls, text: str | None, heard: str = "") -> "PrivacyClaim":
        """Read a claim that is needed.

        Parameters
        ----------
        text : str or None
            The claim.
        heard : str
            What the subject prints itself, for the refusal.

        Raises
        ------
        FieldError
            If there is none, or it cannot be read.
        """
        if text is None:
            raise FieldError(FIELD, text, f"say what is claimed, as in {EXAMPLE!r}{heard}")
        return cls.parse(text)

    def require_total(self, subject: str) -> None:
        """Refuse a claim of one round for what is judged by all that it sends.

        Raises
        ------
        FieldError
            For the scope "round".
        """
        if self.scope == "round":
            accepted = f"{subject} is judged by all that it sends: let it run one round, and claim the total"
            raise FieldError(FIELD, self.describe(), accepted)

    @property
    def judged_by_mu(self) -> bool:
        """Whether the claim is judged by a lower bound of mu; else it is judged by epsilon at its delta."""
        return self.mu is not None or (self.gaussian and bool(self.delta))

    @property
    def most(self) -> float:
        """The largest figure that the claim allows: a mu if mu judges it, else an epsilon."""
        if self.mu is not None:
            return self.mu
        assert self.epsilon is not None
        if self.judged_by_mu:
            assert self.delta is not None
            return mu_of_epsilon(self.epsilon, self.delta)
        return self.epsilon

    @property
    def figure(self) -> str:
        """Name of the figure that judges the claim: mu or epsilon."""
        return "mu" if self.judged_by_mu else "epsilon"

    def epsilon_at(self, delta: float) -> float:
        """The epsilon that the claim allows: its own, or the epsilon of its mu at `delta`."""
        if self.mu is not None:
            return epsilon_of_mu(self.mu, delta)
        assert self.epsilon is not None
        return self.epsilon

    def describe(self) -> str:
        """Write the claim in one line."""
        kind = " gaussian" if self.gaussian else ""
        words = f"{self.relation} {self.unit} {self.scope} {self.trust}{kind}"
        if self.mu is not None:
            return f"mu={rounded_up(self.mu)} {words}"
        return f"eps={self.epsilon:g} delta={self.delta:g} {words}"


def _number(text: str, word: str) -> tuple[str, float]:
    """Split a word such as ``eps=1`` into name and value."""
    name, _, written = word.partition("=")
    names = {
        **dict.fromkeys(EPSILONS, "epsilon"),
        **dict.fromkeys(DELTAS, "delta"),
        **dict.fromkeys(MUS, "mu"),
    }
    known = names[require_choice(FIELD, name.lower(), names)]
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FieldError(FIELD, text, f"{word!r} holds no number, as in {EXAMPLE!r}")
    require_non_negative(f"{FIELD}: {name}", value)
    if known == "delta" and value >= 1:
        raise FieldError(f"{FIELD}: delta", value, "must be below 1")
    return known, value


def _kind(text: str, word: str) -> str:
    """Return which part of a claim a word gives: relation, unit, scope, trust or kind."""
    kinds = {"relation": RELATIONS, "unit": UNITS, "scope": SCOPES, "trust": TRUSTS, "kind": KINDS}
    for kind, words in kinds.items():
        if word in words:
            return kind
    if word in ("region", "regions"):
        accepted = "claims a region, and no world here changes a part of a row: claim the record or person that holds it"
        raise FieldError(FIELD, text, accepted)
    known = [one for words in kinds.values() for one in words]
    require_choice(FIELD, word, known)
    raise FieldError(FIELD, text, "cannot be read")


def _once(text: str, seen: dict[str, float] | dict[str, str], name: str) -> None:
    if name in seen:
        raise FieldError(FIELD, text, f"says its {name} twice")
