"""How a classifier did on people it was not trained on, with intervals: what a physician asks for.

Sensitivity and specificity of the named class, areas, balanced accuracy, the table of confusions, calibration. The unit
of replication is a person: where one has several rows, they are one observation (a cluster), and intervals are wider.

References: Wilson 1927 (proportions); Newcombe 1998 (squares of distances added); DeLong and others 1988
and Obuchowski 1997 (areas, of clustered rows); Brier 1950.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri, stdtrit

from fedveil.errors import FieldError, require_choice

LEVEL = 0.95
BINS = 10
_Z = float(ndtri(0.5 + LEVEL / 2))

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClassFigure:
    """A figure with its 95% interval; the ends are None where nothing can be said.

    Attributes
    ----------
    value : float
        Of these rows.
    low, high : float or None
        Ends.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Bin:
    """Rows of nearly the same probability.

    Attributes
    ----------
    said : float
        Mean probability that the model gave.
    found : ClassFigure
        Share for which it was so.
    rows : int
        How many.
    """

    said: float
    found: ClassFigure
    rows: int


@dataclass(frozen=True)
class Classified:
    """Figures of a classifier on rows that it was not trained on.

    Attributes
    ----------
    classes : tuple of str
        In the order of rows and columns of `confusion`.
    positive : str
        The class of sensitivity and specificity, of two.
    rows, persons : int
        What was counted; without ids each row is a person's of its own, and `persons` is 0.
    confusion : list of list of int
        Row: what is true; column: what was named.
    figures : mapping of str to ClassFigure
        accuracy, balanced_accuracy, auc, brier; of two classes sensitivity and specificity.
    by_class : mapping
        Of several classes: sensitivity, specificity, auc of each against the rest.
    calibration : tuple of Bin
        Of the positive class; of several, of whichever was named.
    """

    classes: tuple[str, ...]
    positive: str
    rows: int
    persons: int
    confusion: list[list[int]]
    figures: Mapping[str, ClassFigure]
    by_class: Mapping[str, Mapping[str, ClassFigure]] = field(default_factory=dict)
    calibration: tuple[Bin, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "classes": list(self.classes),
            "positive": self.positive,
            "rows": self.rows,
            "persons": self.persons,
            "level": LEVEL,
            "confusion": self.confusion,
            "figures": {name: one.to_dict() for name, one in self.figures.items()},
            "by_class": {c: {name: one.to_dict() for name, one in own.items()} for c, own in self.by_class.items()},
            "calibration": [{"said": b.said, "found": b.found.to_dict(), "rows": b.rows} for b in self.calibration],
        }


def classified(
    probabilities: Any,
    labels: Any,
    classes: Sequence[str],
    positive: str = "",
    persons: Any = None,
    threshold: float | None = None,
) -> Classified:
    """Measure a classifier's answers.

    Parameters
    ----------
    probabilities : array
        [N, C].
    labels : array
        [N], numbers of classes.
    classes : sequence of str
        C names.
    positive : str
        Of two classes the one that sensitivity is of. Default: the second.
    persons : array, optional
        [N], whose each row is.
    threshold : float, optional
        Of two classes: the probability from which the positive one is named. Default: the likelier one is.

    Raises
    ------
    FieldError
        For shapes that do not fit, or no row.
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    _require_answers(p, y, classes)
    owner = _owners(persons, len(y))
    two = len(classes) == 2
    sign = classes.index(require_choice("positive", positive, classes)) if two and positive else 1
    if threshold is not None and not two:
        raise FieldError("threshold", threshold, "is for two classes")
    named = p.argmax(1) if threshold is None else np.where(p[:, sign] >= threshold, sign, 1 - sign)
    there = [c for c in range(len(classes)) if (y == c).any()]
    found = {c: _share(named[y == c] == c, owner[y == c]) for c in there}
    areas = {c: _area(p[:, c], y == c) for c in there if not (y == c).all()}
    by_class = {classes[c]: _of_class(c, y, named, owner, found, areas) for c in ((sign,) if two else there)}
    figures = {"accuracy": _share(named == y, owner), "balanced_accuracy": _mean_of(list(found.values()))}
    if two:
        figures |= by_class.pop(classes[sign])
        loss = (p[:, sign] - (y == sign)) ** 2
        shown, true = p[:, sign], y == sign
    else:
        if areas:
            figures["auc"] = _of_areas(list(areas.values()), y, owner)
        loss = ((p - np.eye(len(classes))[y]) ** 2).sum(1)
        shown, true = p.max(1), p.argmax(1) == y
    figures["brier"] = _average(loss, owner)
    return Classified(
        tuple(classes),
        classes[sign] if two else "",
        len(y),
        0 if persons is None else int(owner.max()) + 1,
        _confusion(y, named, len(classes)),
        figures,
        by_class,
        _bins(shown, true, owner),
    )


def _require_answers(p: Floats, y: NDArray[Any], classes: Sequence[str]) -> None:
    """Refuse shapes that do not fit, and numbers that are no probability or no class."""
    if p.ndim != 2 or p.shape != (len(y), len(classes)) or not len(y):
        raise FieldError("probabilities", p.shape, f"must be [{len(y)}, {len(classes)}], a row a label, at least one")
    if not np.isfinite(p).all():
        raise FieldError("probabilities", "NaN or infinity", "must be finite: the model diverged")
    if y.min() < 0 or y.max() >= len(classes):
        raise FieldError("labels", (int(y.min()), int(y.max())), f"must be 0 to {len(classes) - 1}")


def _owners(persons: Any, rows: int) -> NDArray[Any]:
    """The number of each row's person; without persons each row is one."""
    owner = np.arange(rows) if persons is None else np.unique(np.asarray(persons), return_inverse=True)[1]
    if len(owner) != rows:
        raise FieldError("persons", len(owner), f"must be one for each of the {rows} rows")
    return owner


def _confusion(y: NDArray[Any], named: NDArray[Any], classes: int) -> list[list[int]]:
    """Rows by class, and by the class that was named."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (y, named), 1)
    rows: list[list[int]] = counts.tolist()
    return rows


def _of_class(
    c: int,
    y: NDArray[Any],
    named: NDArray[Any],
    owner: NDArray[Any],
    found: Mapping[int, ClassFigure],
    areas: Mapping[int, tuple[float, Floats]],
) -> dict[str, ClassFigure]:
    """Figures of one class against the rest, as far as there are rows of both."""
    own: dict[str, ClassFigure] = {}
    truth = y == c
    if c in found:
        own["sensitivity"] = found[c]
    if not truth.all():
        own["specificity"] = _share(named[~truth] != c, owner[~truth])
    if c in areas:
        own["auc"] = _of_area(*areas[c], truth, owner)
    return own


def wilson(share: float, rows: float) -> tuple[float, float]:
    """Ends of the 95% interval of a share of (perhaps a broken number of) independent rows."""
    centre = share + _Z**2 / (2 * rows)
    half = _Z * math.sqrt(share * (1 - share) / rows + _Z**2 / (4 * rows**2))
    whole = 1 + _Z**2 / rows
    return min(share, max(0.0, (centre - half) / whole)), max(share, min(1.0, (centre + half) / whole))


def _variance(influence: Floats, owner: NDArray[Any]) -> float:
    """Variance of a figure from each row's influence on it: rows of one person move together."""
    sums = np.bincount(np.unique(owner, return_inverse=True)[1], influence)
    return float((sums**2).sum() * len(sums) / (len(sums) - 1)) if len(sums) > 1 else math.nan


def _share(true: NDArray[np.bool_], owner: NDArray[Any]) -> ClassFigure:
    """A share, with Wilson's interval over as many rows as the persons' rows are worth."""
    share, people = float(true.mean()), len(np.unique(owner))
    return ClassFigure(share, *wilson(share, _worth(share, (true - share) / len(true), owner, len(true), people)))


def _worth(share: float, influence: Floats, owner: NDArray[Any], rows: int, people: int) -> float:
    """How many independent rows are as good: at most the rows, at least one."""
    variance = _variance(influence, owner)
    if people == rows:
        return rows
    if not variance > 0:  # all alike, or one person
        return people
    return float(np.clip(share * (1 - share) / variance, 1, rows))


def _mean_of(shares: Sequence[ClassFigure]) -> ClassFigure:
    """The mean of shares of different rows: distances to their ends are added as squares (Newcombe)."""
    value = float(np.mean([one.value for one in shares]))
    down = math.sqrt(sum((one.value - (one.low or 0.0)) ** 2 for one in shares)) / len(shares)
    up = math.sqrt(sum(((1.0 if one.high is None else one.high) - one.value) ** 2 for one in shares)) / len(shares)
    return ClassFigure(value, max(0.0, value - down), min(1.0, value + up))


def _area(scores: Floats, truth: NDArray[np.bool_]) -> tuple[float, Floats]:
    """The area under the ROC curve, and each row's influence on it (DeLong's components)."""
    ranks = _ranks(scores)
    yes, no = int(truth.sum()), int((~truth).sum())
    placed = np.empty(len(scores))
    placed[truth] = (ranks[truth] - _ranks(scores[truth])) / no
    placed[~truth] = 1 - (ranks[~truth] - _ranks(scores[~truth])) / yes
    area = float(placed[truth].mean())
    return area, np.where(truth, (placed - area) / yes, (placed - area) / no)


def _ranks(values: Floats) -> Floats:
    """Ranks from 1; those that tie share their mean."""
    _, place, ties = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(ties) - (ties - 1) / 2)[place])


def _of_area(area: float, influence: Floats, truth: NDArray[np.bool_], owner: NDArray[Any]) -> ClassFigure:
    fewest = min(len(np.unique(owner[truth])), len(np.unique(owner[~truth])))
    return _on_logits(area, _variance(influence, owner), fewest)


def _of_areas(areas: Sequence[tuple[float, Floats]], y: NDArray[Any], owner: NDArray[Any]) -> ClassFigure:
    """The mean of each class against the rest."""
    value = float(np.mean([area for area, _ in areas]))
    influence = np.mean([own for _, own in areas], axis=0)
    fewest = min(len(np.unique(owner[y == c])) for c in np.unique(y))
    return _on_logits(value, _variance(influence, owner), fewest)


def _on_logits(area: float, variance: float, fewest: int) -> ClassFigure:
    """An area's interval on the scale of logits, which stays within 0 and 1; at its ends as a share of the fewest."""
    if not variance > 0 or not 0 < area < 1:
        return ClassFigure(area, *wilson(area, fewest))
    half = _Z * math.sqrt(variance) / (area * (1 - area))
    return ClassFigure(area, float(expit(logit(area) - half)), float(expit(logit(area) + half)))


def _average(values: Floats, owner: NDArray[Any]) -> ClassFigure:
    value, people = float(values.mean()), len(np.unique(owner))
    if people < 2:
        return ClassFigure(value)
    half = float(stdtrit(people - 1, 0.5 + LEVEL / 2)) * math.sqrt(_variance((values - value) / len(values), owner))
    return ClassFigure(value, max(0.0, value - half), value + half)


def _bins(said: Floats, true: NDArray[np.bool_], owner: NDArray[Any]) -> tuple[Bin, ...]:
    """Ten equally wide bins, those that hold something."""
    place = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    filled = (place == b for b in range(BINS))
    return tuple(
        Bin(float(said[own].mean()), _share(true[own], owner[own]), int(own.sum())) for own in filled if own.any()
    )
