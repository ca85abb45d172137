"""Judge a privacy claim by scores of any membership-inference tool."""

import numpy as np
from numpy.typing import ArrayLike

from fedveil.errors import FieldError
from fedveil_lab.verify.aims import Floats
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.judged import SCORES, Judged, judge_bounds
from fedveil_lab.verify.measuring import ALPHA, ROWS, measure, scores_of

SEVERAL = 50  # values, below which a score is a grade, of which many are equal
MANY = (
    0.8  # share of the scores that differ from all others of their world, below which that is said
)


def verify_scores(
    inside: ArrayLike,
    outside: ArrayLike,
    *,
    rows: str,
    claim: str | None = None,
    delta: float | None = None,
    alpha: float = ALPHA,
    lower_is_in: bool = False,
    subject: str = "scores",
) -> Judged:
    """Compute lower bounds of epsilon and mu from attack scores, and judge a claim by them.

    Parameters
    ----------
    inside, outside : array
        [n] and [m] scores with the target and without; higher means in.
    rows : {"runs", "canaries", "records"}
        What one score belongs to. runs: an independent run. canaries: a canary of one run, put in or left out by a fair
        coin. records: a record of one run without a coin, which proves no bound.
    claim : str, optional
        ``"eps=1 delta=1e-5 zero-out client total central"``.
    delta : float, optional
        Delta at which epsilon is bounded. Default: the claim's, else 1e-5.
    alpha : float
        Probability that any bound is too large, over all methods together.
    lower_is_in : bool
        Whether lower scores mean in, as a loss does.
    subject : str
        Name of the subject in the report.

    Returns
    -------
    Judged
        Bounds by method, and whether the claim is refuted. A claim that is not refuted may still be false.

    Raises
    ------
    FieldError
        For too few scores, unknown `rows`, or a claim that cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(2.0, 1.0, 4000), rng.normal(0.0, 1.0, 4000)
    >>> claim = "eps=1 delta=1e-5 zero-out client total central"
    >>> fv.verify_scores(*scores, rows="runs", claim=claim).refuted
    True
    """
    own = None if claim is None else PrivacyClaim.parse(claim)
    at = _delta(own, delta)
    first, second = _signed("inside", inside, lower_is_in), _signed("outside", outside, lower_is_in)
    measured = measure(first, second, rows=rows, delta=at, alpha=alpha)
    notes = [ROWS[rows]]
    if rows != "records" and repeated(first, second):
        notes.append(
            "many scores stand there more than once: if a run or a canary does, no bound holds"
        )
    if measured.area.point < 0.5:
        notes.append(
            "scores without the target are the higher ones: was the other direction meant (lower_is_in)?"
        )
    if own is not None and own.scope == "round":
        notes.append("the claim is for one round: a score must be of what one round released")
    caught = judge_bounds(own, measured, SCORES)
    return Judged(subject=subject, claim=own, measured=measured, caught=caught, notes=tuple(notes))


def repeated(inside: Floats, outside: Floats) -> bool:
    """Whether many scores are equal to others although the scores take many values."""
    different = sum(len(np.unique(one)) for one in (inside, outside))
    return SEVERAL <= different < MANY * (len(inside) + len(outside))


def _delta(claim: PrivacyClaim | None, delta: float | None) -> float:
    """Return the delta at which epsilon is bounded."""
    claimed = None if claim is None else claim.delta
    if delta is None:
        return 1e-5 if claimed is None else claimed
    if claimed is not None and claimed != delta:
        raise FieldError("delta", delta, f"the claim says {claimed:g}: leave one of them away")
    return delta


def _signed(name: str, scores: ArrayLike, lower_is_in: bool) -> Floats:
    """Turn scores so that higher ones mean in."""
    if not lower_is_in:
        return scores_of(name, scores)
    return scores_of(name, -scores_of(name, scores, lowest=np.inf))
