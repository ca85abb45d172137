"""Figures and findings of attacks in words."""

from __future__ import annotations

from collections.abc import Sequence

from fedveil.attacks import Participation
from fedveil.attacks.statistics import Estimate


def in_words(value: Estimate) -> str:
    """A figure with its interval."""
    return f"{value.point:.3f} ({value.low:.2f}-{value.high:.2f})"


def answered(label: str, own: Sequence[Participation], best: Participation | None) -> str:
    """What attacks on a setting found, by the strongest that counts, in a sentence."""
    if best is None:
        return f"{label}: open, none of {len(own)} attacks works here even without a defence."
    answer = "yes" if best.auc.low > 0.5 else "not shown"
    return f"{label}: {answer}, the strongest attack ({best.attack}) has an AUC of {in_words(best.auc)}."
