"""The verdict on one attack: figures, their uncertainty, and what they may not be read as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedveil.attacks.statistics import (
    EpsilonBound,
    Estimate,
    advantage,
    auc_interval,
    best_threshold,
    epsilon_bound,
    runs_for_rate,
    true_rate_at,
)

ALPHAS = (0.1, 0.01, 0.001)
RUN = "one run of the federation"


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """What one attack reached in one setting.

    Attributes
    ----------
    attack, setting : str
        Which attack, and against what.
    auc : Estimate
        The point and its interval.
    runs : tuple of int
        With and without the target.
    unit : str
        What the interval was bootstrapped over: the unit of replication.
    threat : str
        Who attacks.
    threshold : float or None
        From rehearsals; None without any.
    advantage, epsilon : Estimate, EpsilonBound or None
        At that threshold.
    relation : str
        Between the two worlds; what `epsilon` is about.
    true_rates : dict of str to (Estimate or None)
        True positive rate at each false positive rate, None where there are too few runs.
    valid_without_defence : bool or None
        Whether the same attack succeeds (interval above .5) on the federation without its defence; if it does not, a
        low figure says nothing about the defence.
    notes : sequence of str
        What has to be said beside the figures.
    """

    attack: str
    setting: str
    auc: Estimate
    runs: tuple[int, int]
    unit: str = RUN
    threat: str = ""
    threshold: float | None = None
    advantage: Estimate | None = None
    epsilon: EpsilonBound | None = None
    relation: str = ""
    true_rates: Mapping[str, Estimate | None] = field(default_factory=dict)
    valid_without_defence: bool | None = None
    notes: Sequence[str] = ()

    @property
    def point(self) -> float:
        """The area under the ROC curve."""
        return self.auc.point

    @property
    def interval(self) -> tuple[float, float]:
        """Of `point`, at 95%."""
        return self.auc.low, self.auc.high

    @property
    def n(self) -> int:
        """Independent units, of both worlds together."""
        return sum(self.runs)

    @property
    def succeeds(self) -> bool:
        """Whether chance is ruled out."""
        return self.auc.low > 0.5

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


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
    notes: Sequence[str] = (),
) -> AuditResult:
    """Judge an attack by its verdicts, one a run.

    Parameters
    ----------
    attack, setting : str
        Names.
    inside, outside : array
        [n], [m] verdicts of the evaluated runs.
    rehearsed : pair of array, optional
        Verdicts of other runs, for the threshold.
    threshold : float, optional
        Or the threshold itself, e.g. 0 for a log-likelihood ratio.
    delta : float
        Of the epsilon that is bounded.
    relation, threat, notes
        For the result.
    """
    found = auc_interval(inside, outside)
    said = list(notes)
    if found.point < 0.5:
        said.append(
            f"below chance: whoever flipped the answer would have {1 - found.point:.3f}; the direction was fixed "
            "before the runs, and is not fitted to them"
        )
    gain, bound = None, None
    if rehearsed is not None:
        threshold = best_threshold(*rehearsed)
    if threshold is not None:
        gain = advantage(inside, outside, threshold)
        bound = epsilon_bound(inside, outside, threshold, delta=delta)
    rates = {f"{alpha:g}": true_rate_at(inside, outside, alpha) for alpha in ALPHAS}
    unknown = [f"{alpha:g} ({runs_for_rate(alpha)} runs)" for alpha in ALPHAS if rates[f"{alpha:g}"] is None]
    if unknown:
        said.append(f"no true positive rate at false positive rates that need more runs: {', '.join(unknown)}")
    return AuditResult(
        attack=attack,
        setting=setting,
        auc=found,
        runs=(np.size(inside), np.size(outside)),
        threat=threat,
        threshold=threshold,
        advantage=gain,
        epsilon=bound,
        relation=relation,
        true_rates=rates,
        notes=tuple(said),
    )
