"""Verdict: the result of one attack against one setting, and notes on how it may be read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from fedveil.errors import FieldError
from fedveil_lab.attacks.bounds import EpsilonBound, epsilon_bound
from fedveil_lab.attacks.statistics import (
    RESAMPLES,
    Estimate,
    advantage,
    auc_interval,
    best_threshold,
    runs_for_rate,
    true_rate_at,
)

ALPHAS = (0.1, 0.01, 0.001)
NO_RATE = "too few runs for the true positive rate"  # the note on missing rates begins so
RUN = "one run of the federation"
_WORK = 2e9  # pairs times resamples of the bootstrap


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of one attack against one setting: a figure with its uncertainty.

    Parameters
    ----------
    attack, setting : str
        Names of the attack, and of the setting that was attacked.
    figure : str
        The measured figure, with its unit: ``"AUC"``, ``"MSE (pixel range 1)"``, ``"success rate"``.
    point, low, high : float
        The estimate and its 95% interval; `low` and `high` equal `point` where there is no replication.
    n : int
        Independent units behind the interval.
    replication : str
        Kind of unit: a run, an image or a client.
    without_defence : float or None
        The same figure of the same attack without a defence.
    valid : bool or None
        Whether the attack beats guessing without the defence, see `beats_guessing`. If it does not, the figure says
        nothing about the defence. None if that was not measured, or in too few runs for an interval.
    threat : str
        The adversary's capabilities.
    details : mapping of str to float
        Further figures by name.
    notes : sequence of str
        Notes that belong beside the figures.

    Raises
    ------
    FieldError
        If the interval does not hold the point, or there is no unit behind it.
    """

    attack: str
    setting: str
    figure: str
    point: float
    low: float
    high: float
    n: int
    replication: str
    without_defence: float | None = None
    valid: bool | None = None
    threat: str = ""
    details: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isfinite(self.point) or not self.low <= self.point <= self.high:
            raise FieldError(
                "point",
                self.point,
                f"must be finite and lie in its interval [{self.low}, {self.high}]",
            )
        if self.n < 1:
            raise FieldError("n", self.n, "must be at least 1")

    @classmethod
    def of(cls, estimate: Estimate | float, **rest: Any) -> Self:
        """Make a verdict from an estimate, or from a figure without an interval."""
        if isinstance(estimate, Estimate):
            one = estimate
        else:
            one = Estimate(estimate, estimate, estimate)
        return cls(point=one.point, low=one.low, high=one.high, **rest)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def beats_guessing(figure: Estimate | None, guess: float) -> bool | None:
    """Return whether guessing is ruled out: the 95% interval of a figure lies above the result of a guess.

    The column ``valid`` of every audit is this value for the same attack without the defence.

    Parameters
    ----------
    figure : Estimate or None
        Larger is better for the attacker; None without an interval, and then the answer is None.
    guess : float
        Result of a guess: .5 for an AUC, 0 for what is gained over a guess.
    """
    if figure is None:
        return None
    return bool(figure.low > guess)


@dataclass(frozen=True, kw_only=True)
class Participation(Verdict):
    """Result of one attack on participation in one setting: its area under the ROC curve, and what follows from it.

    Attributes
    ----------
    runs : tuple of int
        Number of runs with and without the target.
    threshold : float or None
        Threshold from rehearsals; None without any.
    advantage, epsilon : Estimate, EpsilonBound or None
        Advantage, and bound of epsilon, at that threshold.
    relation : str
        Relation between the two worlds, for which `epsilon` is a bound.
    true_rates : dict of str to (Estimate or None)
        True positive rate at each false positive rate, None where there are too few runs.
    """

    figure: str = "AUC"
    replication: str = RUN
    runs: tuple[int, int]
    threshold: float | None = None
    advantage: Estimate | None = None
    epsilon: EpsilonBound | None = None
    relation: str = ""
    true_rates: Mapping[str, Estimate | None] = field(default_factory=dict)

    @property
    def auc(self) -> Estimate:
        """Area under the ROC curve, with its interval."""
        return Estimate(self.point, self.low, self.high)

    @property
    def succeeds(self) -> bool:
        """Whether the attack is better than chance, by its interval."""
        return bool(beats_guessing(self.auc, 0.5))

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        auc = {name: values.pop(name) for name in ("point", "low", "high")}
        return {
            **values,
            "auc": auc,
            "unit": values.pop("replication"),
            "valid_without_defence": values.pop("valid"),
        }


def judge(
    attack: str,
    setting: str,
    inside: ArrayLike,
    outside: ArrayLike,
    *,
    rehearsed: tuple[ArrayLike, ArrayLike] | None = None,
    threshold: float | None = None,
    delta: float = 0.0,
    relation: str = "",
    threat: str = "",
) -> Participation:
    """Judge a participation attack by its scores of runs.

    Parameters
    ----------
    attack, setting : str
        Names of the attack and of the attacked setting.
    inside, outside : array
        [n], [m] final scores of the evaluated runs.
    rehearsed : pair of array, optional
        Final scores of other runs, for the threshold.
    threshold : float, optional
        Threshold, e.g. 0 for a log-likelihood ratio.
    delta : float
        Delta of the bounded epsilon.
    relation, threat
        Relation between the worlds, and capabilities, for the result.
    """
    inside, outside = np.asarray(inside, dtype=np.float64), np.asarray(outside, dtype=np.float64)
    resamples = int(min(RESAMPLES, max(200, _WORK // max(1, inside.size * outside.size))))
    area = auc_interval(inside, outside, resamples=resamples)
    notes = list[str]()
    if area.point < 0.5:
        notes.append(
            f"below chance: whoever flipped the answer would have {1 - area.point:.3f}; the direction was fixed "
            "before the runs, and is not fitted to them"
        )
    gain, bound = None, None
    if rehearsed is not None:
        threshold = best_threshold(*rehearsed)
    if threshold is not None:
        gain = advantage(inside, outside, threshold)
        bound = epsilon_bound(inside, outside, threshold, delta=delta)
    rates = {f"{alpha:g}": true_rate_at(inside, outside, alpha) for alpha in ALPHAS}
    unknown = [
        f"{alpha:g} (needs {runs_for_rate(alpha)})"
        for alpha in ALPHAS
        if rates[f"{alpha:g}"] is None
    ]
    if unknown:
        notes.append(f"{NO_RATE} at a false positive rate of {', '.join(unknown)}")
    return Participation.of(
        area,
        attack=attack,
        setting=setting,
        n=inside.size + outside.size,
        runs=(inside.size, outside.size),
        threat=threat,
        threshold=threshold,
        advantage=gain,
        epsilon=bound,
        relation=relation,
        true_rates=rates,
        notes=tuple(notes),
    )
