"""What a poisoner wants, and how far it got: success rate, source recall and main accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from torch import Tensor, nn

from fedveil.attacks.statistics import rate
from fedveil.attacks.verdict import Verdict
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import predict


@dataclass(frozen=True, eq=False)
class Goal:
    """Examples on which an attack wants to be wrong.

    Attributes
    ----------
    x, y : Tensor
        [N, ...] and [N]: the examples as the attack presents them, with their true classes.
    target : int or None
        The class they are to be taken for; None if any wrong one will do.
    """

    x: Tensor
    y: Tensor
    target: int | None = None

    def __post_init__(self) -> None:
        """Refuse a goal without examples: no rate could be given."""
        if not len(self.x):
            raise FieldError("source", None, "no example of the source class is in the test data")


@dataclass(frozen=True)
class Poisoned:
    """How one poisoned (or clean) run ended; all are rates in [0, 1].

    Attributes
    ----------
    success : float
        Share of the goal's examples taken for the target (or for any wrong class, where there is no target).
    recall : float
        Share of them taken for what they are: of the source class, in a label flip.
    accuracy : float
        Share of all test examples, unchanged, that are right.
    examples : int
        Of the goal.
    honest_rejected, rare_rejected, malicious_share : float or None
        Shares of honest clients, and of rare but honest ones, that the rule left out, and the malicious clients'
        share in its result, averaged over rounds; None where the rule cannot say.
    """

    success: float
    recall: float
    accuracy: float
    examples: int
    honest_rejected: float | None = None
    rare_rejected: float | None = None
    malicious_share: float | None = None


def measure(
    model: nn.Module, layout: Layout, vector: Tensor, x: Tensor, y: Tensor, goal: Goal | None = None
) -> Poisoned:
    """Measure a model [d] on test data x, y [N]; without a goal any error is a success."""
    said = predict(model, layout, vector, x).argmax(1)
    accuracy = float((said == y).double().mean())
    if goal is None:
        return Poisoned(1 - accuracy, accuracy, accuracy, len(y))
    taken = predict(model, layout, vector, goal.x).argmax(1)
    recall = float((taken == goal.y).double().mean())
    success = 1 - recall if goal.target is None else float((taken == goal.target).double().mean())
    return Poisoned(success, recall, accuracy, len(goal.x))


def success_rate(
    attack: str,
    setting: str,
    runs: Sequence[Poisoned],
    clean: Sequence[Poisoned],
    undefended: Sequence[Poisoned] | None = None,
) -> Verdict:
    """The attack's success rate over runs, beside the same rate where nobody attacks.

    Parameters
    ----------
    attack, setting : str
        For reports.
    runs : sequence of Poisoned
        Of poisoned runs, one a seed.
    clean : sequence of Poisoned
        The same runs with honest clients only, measured on the same goal.
    undefended : sequence of Poisoned, optional
        Poisoned runs under the plain mean.

    Returns
    -------
    Verdict
        With three runs or more the interval is Student's over runs; with fewer it is exact over the goal's examples
        of the first run, and says nothing about other runs.
    """
    points = np.array([r.success for r in runs])
    point, last = float(points.mean()), runs[0]
    if len(runs) >= 3:
        half = float(scipy.stats.t.ppf(0.975, len(runs) - 1) * points.std(ddof=1) / len(runs) ** 0.5)
        low, high, n, unit = max(0.0, point - half), min(1.0, point + half), len(runs), "one run"
    else:
        exact = rate(round(last.success * last.examples), last.examples)
        point, low, high, n, unit = last.success, exact.low, exact.high, last.examples, "one example of one run"
    base = _mean([c.success for c in clean])
    bare = None if undefended is None else _mean([u.success for u in undefended])
    details = {
        "clean rate": base,
        "gain": point - base,
        "source recall": _mean([r.recall for r in runs]),
        "clean source recall": _mean([c.recall for c in clean]),
        "accuracy": _mean([r.accuracy for r in runs]),
        "clean accuracy": _mean([c.accuracy for c in clean]),
    }
    for name in ("honest_rejected", "rare_rejected", "malicious_share"):
        known = [v for v in (getattr(r, name) for r in runs) if v is not None]
        if known:
            details[name.replace("_", " ")] = _mean(known)
    return Verdict(
        attack=attack,
        setting=setting,
        figure="success rate",
        point=point,
        low=low,
        high=high,
        n=n,
        replication=unit,
        without_defence=bare,
        valid=None if bare is None else bare > base + 0.1,
        threat="malicious clients",
        details=details,
    )


def with_shares(outcome: Poisoned, figures: Sequence[Mapping[str, float]]) -> Poisoned:
    """An outcome with the figures of `SelectionProbe`, averaged over rounds."""
    found: dict[str, Any] = {name: _mean([f[name] for f in figures]) for name in (figures[0] if figures else ())}
    return replace(outcome, **found)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
