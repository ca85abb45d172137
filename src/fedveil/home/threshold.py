"""Choose where to cut the probability of the positive class: on public rows, or rehearsed on made-up ones.

On private rows a threshold is a figure of theirs that no noise covers: it is refused, and no export holds one.
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
    """Threshold, and what it rests on.

    Attributes
    ----------
    value : float
        From this probability on the positive class is named.
    kind : {"public", "rehearsed"}
        What it was chosen on.
    source : str
        Where public rows are from; empty for made-up ones.
    found : Classified
        What it gives on the very rows that it was chosen on, which flatters it.
    """

    value: float
    kind: Literal["public", "rehearsed"]
    source: str
    found: Classified

    def __str__(self) -> str:
        """The number, with what it rests on."""
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
    """Choose a threshold on labelled rows that are nobody's secret.

    Parameters
    ----------
    model : ReleasedModel
        Of two classes.
    rows : path
        A table with the run's columns and its target, an npz file with x and y, or a folder a class of pictures.
    public : str
        Where the rows are from, if they are public.
    made_up : bool
        Whether they are made up: the threshold is then called rehearsed.
    sensitivity : float, optional
        The highest threshold that finds at least this share of the positives. Default: where sensitivity and
        specificity add up to the most.

    Raises
    ------
    FieldError
        If nobody says that the rows are public or made up; if there are not two classes with rows of both.
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
    """Halfway between two scores, so that what it names does not hang on a score's last bits."""
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
