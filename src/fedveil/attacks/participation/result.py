"""The verdict on one attack: figures, their uncertainty, and what they may not be read as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from fedveil.attacks.verdict import Verdict

ALPHAS = (0.1, 0.01, 0.001)
RUN = "one run of the federation"


@dataclass(frozen=True, kw_only=True)
class Participation(Verdict):
    """What one attack on participation reached in one setting: its area under the ROC curve, and what follows of it.

    Attributes
    ----------
    runs : tuple of int
        With and without the target.
    threshold : float or None
        From rehearsals; None without any.
    advantage, epsilon : Estimate, EpsilonBound or None
        At that threshold.
    relation : str
        Between the two worlds; what `epsilon` is about.
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
        """The point and its interval."""
        return Estimate(self.point, self.low, self.high)

    @property
    def succeeds(self) -> bool:
        """Whether chance is ruled out."""
        return self.low > 0.5

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        auc = {name: values.pop(name) for name in ("point", "low", "high")}
        return {**values, "auc": auc, "unit": values.pop("replication"), "valid_without_defence": values.pop("valid")}


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
) -> Participation:
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
    return Participation(
        attack=attack,
        setting=setting,
        point=found.point,
        low=found.low,
        high=found.high,
        n=np.size(inside) + np.size(outside),
        runs=(np.size(inside), np.size(outside)),
        threat=threat,
        threshold=threshold,
        advantage=gain,
        epsilon=bound,
        relation=relation,
        true_rates=rates,
        notes=tuple(said),
    )
