"""Choice of a threshold: the least probability at which the positive class is predicted, by public or made-up rows.

Private rows are refused, as no noise covers a threshold chosen on them. No export contains a threshold.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import FieldError, require_a, require_number
from fedveil.home.reading import labelled_examples
from fedveil.home.released import ReleasedModel
from fedveil.learning.classified import Classified, classified

PRIVATE_ROWS = (
    "a threshold chosen on private rows tells of them, and no promise covers it. Ways out: rows that are public, "
    '--public "where they are from"; made-up rows, --made-up; or one that was agreed on beforehand, such as 0.5, '
    "given to fedveil predict --threshold"
)


@dataclass(frozen=True)
class Threshold:
    """Threshold, with the rows on which it was chosen.

    Attributes
    ----------
    value : float
        Least probability at which the positive class is predicted.
    kind : {"public", "rehearsed"}
        Kind of the rows.
    source : str
        Origin of public rows; empty for made-up ones.
    found : Classified
        Figures on the rows on which it was chosen; they are too favourable.
    """

    value: float
    kind: Literal["public", "rehearsed"]
    source: str
    found: Classified

    def __str__(self) -> str:
        """Return the threshold with the rows on which it was chosen."""
        if self.kind == "public":
            return f"{self.value:.4g}, chosen on {self.found.rows} public rows ({self.source})"
        return f"{self.value:.4g}, rehearsed on {self.found.rows} made-up rows: it says nothing of any patient"


def choose_threshold(
    model: ReleasedModel,
    rows: str | Path,
    *,
    public: str = "",
    made_up: bool = False,
    sensitivity: float | None = None,
) -> Threshold:
    """Choose a threshold on labelled rows that are not private.

    Parameters
    ----------
    model : ReleasedModel
        Model with two classes.
    rows : path
        Table with the run's columns and target, npz file with x and y, or folder with a folder of pictures for each
        class.
    public : str
        Origin of the rows, if they are public.
    made_up : bool
        Whether the rows are made up; the threshold is then called rehearsed.
    sensitivity : float, optional
        Least share of positives to be found; the highest threshold with this share is chosen. Default: the threshold
        with the largest sum of sensitivity and specificity.

    Raises
    ------
    FieldError
        If the rows are declared neither public nor made up. Also if there are not two classes, with rows of both.
    """
    require_a("public", public, str, "must say where the rows are from")
    if bool(public.strip()) == made_up:
        raise FieldError(
            "rows", str(rows), "are public or made up, not both" if made_up else PRIVATE_ROWS
        )
    if len(model.classes) != 2:
        raise FieldError("classes", list(model.classes), "a threshold is for two classes")
    if sensitivity is not None:
        require_number(
            "sensitivity", sensitivity, lambda v: 0 < v <= 1, "must be a share above 0, up to 1"
        )
    x, labels = labelled_examples(model.about, Path(rows))
    probabilities, positive = model.predict_proba(x), model.classes.index(model.positive)
    truth = labels == positive
    if truth.all() or not truth.any():
        raise FieldError(
            "rows", str(rows), f"are all of one class: {model.positive} and the other are needed"
        )
    value = _cut(probabilities[:, positive], truth, sensitivity)
    found = classified(probabilities, labels, model.classes, model.positive, threshold=value)
    return Threshold(value, "rehearsed" if made_up else "public", public.strip(), found)


def _cut(scores: NDArray[np.float64], truth: NDArray[np.bool_], wanted: float | None) -> float:
    """Return the best threshold halfway between two scores, so that the last bits of a score do not matter."""
    levels = np.unique(scores)
    cuts = np.concatenate([[levels[0] / 2], (levels[1:] + levels[:-1]) / 2, [(levels[-1] + 1) / 2]])
    named = scores[:, None] >= cuts
    found, passed = named[truth].mean(0), (~named[~truth]).mean(0)
    best = (
        int((found + passed).argmax())
        if wanted is None
        else int(np.flatnonzero(found >= wanted).max())
    )
    return float(np.clip(cuts[best], 1e-12, 1 - 1e-12))
