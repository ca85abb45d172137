"""Clinical figures of a classifier with confidence intervals, on people it was not trained on.

They are sensitivity and specificity of the positive class, areas under the ROC curve, balanced accuracy, the confusion
table, and calibration. The unit of replication is a person: several rows of one person are a cluster, which makes
intervals wider.

References: Wilson 1927 (proportions); Newcombe 1998 (adding squared distances); DeLong and others 1988 and Obuchowski
1997 (areas, with clustered rows); Brier 1950.
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
    """Figure of a classifier with its 95% confidence interval.

    Attributes
    ----------
    value : float
        Value on the measured rows.
    low, high : float or None
        Ends of the interval; None if there are too few data for one.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Bin:
    """Rows with nearly the same predicted probability: one point of a calibration plot.

    Attributes
    ----------
    said : float
        Mean probability that the model predicted.
    found : ClassFigure
        Share of rows that really are of the class, with an interval.
    rows : int
        Number of rows.
    """

    said: float
    found: ClassFigure
    rows: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"said": self.said, "found": self.found.to_dict(), "rows": self.rows}


@dataclass(frozen=True)
class Classified:
    """Clinical figures of a classifier with intervals, on rows that it was not trained on.

    Attributes
    ----------
    classes : tuple of str
        Names, in the order of rows and columns of `confusion`.
    positive : str
        Class of sensitivity and specificity, if there are two.
    rows, persons : int
        Numbers of rows and persons; without ids each row counts as its own person, and `persons` is 0.
    confusion : list of list of int
        Counts by true class (row) and predicted class (column).
    figures : mapping of str to ClassFigure
        accuracy, balanced_accuracy, auc, brier; with two classes also sensitivity and specificity.
    by_class : mapping
        With more than two classes: sensitivity, specificity and auc of each against the rest.
    calibration : tuple of Bin
        Calibration of the positive class; with more than two classes, of the predicted one.
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
        """Return plain values for JSON."""
        by_class = {name: _plain(own) for name, own in self.by_class.items()}
        return {
            "classes": list(self.classes),
            "positive": self.positive,
            "rows": self.rows,
            "persons": self.persons,
            "level": LEVEL,
            "confusion": self.confusion,
            "figures": _plain(self.figures),
            "by_class": by_class,
            "calibration": [one.to_dict() for one in self.calibration],
        }


def _plain(figures: Mapping[str, ClassFigure]) -> dict[str, Any]:
    return {name: figure.to_dict() for name, figure in figures.items()}


def classified(
    probabilities: Any,
    labels: Any,
    classes: Sequence[str],
    positive: str = "",
    persons: Any = None,
    threshold: float | None = None,
) -> Classified:
    """Compute the clinical figures of a classifier from its predicted probabilities and the true labels.

    Parameters
    ----------
    probabilities : array
        [N, C], probability of each class.
    labels : array
        [N], true classes as numbers from 0.
    classes : sequence of str
        C names of classes.
    positive : str
        With two classes: the class whose sensitivity is computed. Default: the second.
    persons : array, optional
        [N], person of each row.
    threshold : float, optional
        With two classes: least probability at which the positive class is predicted. Default: the likelier class is
        predicted.

    Raises
    ------
    FieldError
        For shapes that do not fit, or without rows.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    y = np.asarray(labels)
    _require_answers(p, y, classes)
    owner = _owners(persons, len(y))
    two = len(classes) == 2
    if threshold is not None and not two:
        raise FieldError("threshold", threshold, "is for two classes")
    sign = 1
    if two and positive:
        sign = classes.index(require_choice("positive", positive, classes))
    if threshold is None:
        named = p.argmax(1)
    else:
        named = np.where(p[:, sign] >= threshold, sign, 1 - sign)
    outcome = _Outcome(p, y, named, owner)
    found = outcome.shares_found()
    areas = outcome.areas()
    figures = {
        "accuracy": _share(named == y, owner),
        "balanced_accuracy": _mean_of(list(found.values())),
    }
    by_class: dict[str, dict[str, ClassFigure]] = {}
    if two:
        figures |= outcome.of_class(sign, found, areas)
        said = p[:, sign]
        true = y == sign
        loss = (said - true) ** 2
    else:
        by_class = {classes[c]: outcome.of_class(c, found, areas) for c in found}
        if areas:
            figures["auc"] = _of_areas(list(areas.values()), y, owner)
        said = p.max(1)
        true = p.argmax(1) == y
        loss = ((p - np.eye(len(classes))[y]) ** 2).sum(1)
    figures["brier"] = _average(loss, owner)
    return Classified(
        classes=tuple(classes),
        positive=classes[sign] if two else "",
        rows=len(y),
        persons=0 if persons is None else int(owner.max()) + 1,
        confusion=_confusion(y, named, len(classes)),
        figures=figures,
        by_class=by_class,
        calibration=_bins(said, true, owner),
    )


def _require_answers(p: Floats, y: NDArray[Any], classes: Sequence[str]) -> None:
    """Refuse wrong shapes, values outside 0 and 1, and labels beyond the classes."""
    if p.ndim != 2 or p.shape != (len(y), len(classes)) or not len(y):
        raise FieldError(
            "probabilities",
            p.shape,
            f"must be [{len(y)}, {len(classes)}], a row a label, at least one",
        )
    if not np.isfinite(p).all():
        raise FieldError("probabilities", "NaN or infinity", "must be finite: the model diverged")
    if y.min() < 0 or y.max() >= len(classes):
        raise FieldError("labels", (int(y.min()), int(y.max())), f"must be 0 to {len(classes) - 1}")


def _owners(persons: Any, rows: int) -> NDArray[Any]:
    """Return the number of each row's person; without persons each row is its own."""
    if persons is None:
        return np.arange(rows)
    owner = _numbered(np.asarray(persons))
    if len(owner) != rows:
        raise FieldError("persons", len(owner), f"must be one for each of the {rows} rows")
    return owner


def _numbered(values: NDArray[Any]) -> NDArray[Any]:
    """Replace each value by the number of that value among all different ones, from 0."""
    _, numbers = np.unique(values, return_inverse=True)
    return numbers


def _confusion(y: NDArray[Any], named: NDArray[Any], classes: int) -> list[list[int]]:
    """Count rows by true class and predicted class."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (y, named), 1)
    rows: list[list[int]] = counts.tolist()
    return rows


@dataclass(frozen=True, eq=False)
class _Outcome:
    """Probabilities of a classifier with the true class, the predicted class and the person of each row."""

    p: Floats
    y: NDArray[Any]
    named: NDArray[Any]
    owner: NDArray[Any]

    def shares_found(self) -> dict[int, ClassFigure]:
        """Return the sensitivity of each class that occurs: the share of its rows that was predicted correctly."""
        found: dict[int, ClassFigure] = {}
        for c in range(self.p.shape[1]):
            own = self.y == c
            if own.any():
                found[c] = _share(self.named[own] == c, self.owner[own])
        return found

    def areas(self) -> "dict[int, _Area]":
        """Return the area under the ROC curve of each class against the rest, if rows of both exist."""
        areas: dict[int, _Area] = {}
        for c in range(self.p.shape[1]):
            own = self.y == c
            if own.any() and not own.all():
                areas[c] = _area(self.p[:, c], own)
        return areas

    def of_class(
        self,
        c: int,
        found: Mapping[int, ClassFigure],
        areas: "Mapping[int, _Area]",
    ) -> dict[str, ClassFigure]:
        """Return the figures of one class against the rest; a figure is left out if it lacks rows."""
        figures: dict[str, ClassFigure] = {}
        truth = self.y == c
        if c in found:
            figures["sensitivity"] = found[c]
        if not truth.all():
            figures["specificity"] = _share(self.named[~truth] != c, self.owner[~truth])
        if c in areas:
            figures["auc"] = _of_area(areas[c], truth, self.owner)
        return figures


def wilson(share: float, rows: float) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share of independent rows; the number of rows may be fractional."""
    centre = share + _Z**2 / (2 * rows)
    half = _Z * math.sqrt(share * (1 - share) / rows + _Z**2 / (4 * rows**2))
    whole = 1 + _Z**2 / rows
    low = max(0.0, (centre - half) / whole)
    high = min(1.0, (centre + half) / whole)
    return min(share, low), max(share, high)


def _people(owner: NDArray[Any]) -> int:
    return len(np.unique(owner))


def _variance(influence: Floats, owner: NDArray[Any]) -> float:
    """Return the variance of a figure from the influence of each row; rows of one person are summed first."""
    sums = np.bincount(_numbered(owner), influence)
    people = len(sums)
    if people < 2:
        return math.nan
    return float((sums**2).sum() * people / (people - 1))


def _share(true: NDArray[np.bool_], owner: NDArray[Any]) -> ClassFigure:
    """Return a share with Wilson's interval. Rows of one person count as fewer independent rows (`_worth`)."""
    share = float(true.mean())
    influence = (true - share) / len(true)
    low, high = wilson(share, _worth(share, influence, owner))
    return ClassFigure(share, low, high)


def _worth(share: float, influence: Floats, owner: NDArray[Any]) -> float:
    """Return the number of independent rows with the same variance of the share: at least 1, at most all rows."""
    rows = len(influence)
    people = _people(owner)
    if people == rows:
        return rows
    variance = _variance(influence, owner)
    if not variance > 0:  # all rows agree, or there is only one person
        return people
    return float(np.clip(share * (1 - share) / variance, 1, rows))


def _mean_of(shares: Sequence[ClassFigure]) -> ClassFigure:
    """Return the mean of shares of disjoint rows; its interval is Newcombe's (squared distances to the ends are added)."""
    value = float(np.mean([one.value for one in shares]))
    below = above = 0.0
    for one in shares:
        low = one.low or 0.0
        high = 1.0 if one.high is None else one.high
        below += (one.value - low) ** 2
        above += (high - one.value) ** 2
    down = math.sqrt(below) / len(shares)
    up = math.sqrt(above) / len(shares)
    return ClassFigure(value, max(0.0, value - down), min(1.0, value + up))


@dataclass(frozen=True, eq=False)
class _Area:
    """Area under a ROC curve, and the influence of each row on it (DeLong's components)."""

    value: float
    influence: Floats


def _area(scores: Floats, truth: NDArray[np.bool_]) -> _Area:
    """Return the area for the scores of a class; `truth` marks the rows of that class."""
    ranks = _ranks(scores)
    yes = int(truth.sum())
    no = int((~truth).sum())
    placed = np.empty(len(scores))
    placed[truth] = (ranks[truth] - _ranks(scores[truth])) / no
    placed[~truth] = 1 - (ranks[~truth] - _ranks(scores[~truth])) / yes
    area = float(placed[truth].mean())
    influence = np.where(truth, (placed - area) / yes, (placed - area) / no)
    return _Area(area, influence)


def _ranks(values: Floats) -> Floats:
    """Return ranks from 1; equal values share their mean rank."""
    _, place, ties = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(ties) - (ties - 1) / 2
    return np.asarray(ranks[place])


def _of_area(area: _Area, truth: NDArray[np.bool_], owner: NDArray[Any]) -> ClassFigure:
    fewest = min(_people(owner[truth]), _people(owner[~truth]))
    return _on_logits(area.value, _variance(area.influence, owner), fewest)


def _of_areas(
    areas: Sequence[_Area],
    y: NDArray[Any],
    owner: NDArray[Any],
) -> ClassFigure:
    """Return the mean area under the ROC curve over the classes, each against the rest, with its interval."""
    value = float(np.mean([area.value for area in areas]))
    influence = np.mean([area.influence for area in areas], axis=0)
    fewest = min(_people(owner[y == c]) for c in np.unique(y))
    return _on_logits(value, _variance(influence, owner), fewest)


def _on_logits(area: float, variance: float, fewest: int) -> ClassFigure:
    """Return an area with its interval, computed on the logit scale so that it stays within 0 and 1.

    The interval of an area of 0 or 1 is Wilson's for as many rows as there are persons in the smallest class
    (`fewest`).
    """
    if not variance > 0 or not 0 < area < 1:
        return ClassFigure(area, *wilson(area, fewest))
    half = _Z * math.sqrt(variance) / (area * (1 - area))
    low = float(expit(logit(area) - half))
    high = float(expit(logit(area) + half))
    return ClassFigure(area, low, high)


def _average(values: Floats, owner: NDArray[Any]) -> ClassFigure:
    """Return the mean of values [N] with Student's interval; persons are the independent units."""
    value = float(values.mean())
    people = _people(owner)
    if people < 2:
        return ClassFigure(value)
    quantile = float(stdtrit(people - 1, 0.5 + LEVEL / 2))
    influence = (values - value) / len(values)
    half = quantile * math.sqrt(_variance(influence, owner))
    return ClassFigure(value, max(0.0, value - half), value + half)


def _bins(
    said: Floats,
    true: NDArray[np.bool_],
    owner: NDArray[Any],
) -> tuple[Bin, ...]:
    """Return the nonempty ones of ten bins of equal width."""
    place = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    bins: list[Bin] = []
    for number in range(BINS):
        own = place == number
        if own.any():
            found = _share(true[own], owner[own])
            bins.append(Bin(float(said[own].mean()), found, int(own.sum())))
    return tuple(bins)
