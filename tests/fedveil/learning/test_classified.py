"""What a physician asks of a classifier: by hand, against scikit-learn and SciPy, and with persons of several rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    roc_auc_score,
)

from fedveil.errors import FieldError
from fedveil.learning.classified import classified, wilson


def two(scores):
    scores = np.asarray(scores, dtype=float)
    return np.stack([1 - scores, scores], 1)


def test_by_hand():
    found = classified(
        two([0.9, 0.8, 0.3, 0.6, 0.2, 0.1]), [1, 1, 1, 0, 0, 0], ["well", "ill"], "ill"
    )
    assert found.confusion == [
        [2, 1],
        [1, 2],
    ]  # of the well two named well, one ill; of the ill one missed
    assert {name: round(one.value, 6) for name, one in found.figures.items()} == {
        "accuracy": 0.666667,
        "balanced_accuracy": 0.666667,
        "sensitivity": 0.666667,
        "specificity": 0.666667,
        "auc": 0.888889,  # of nine pairs one is the wrong way round
        "brier": round((0.01 + 0.04 + 0.49 + 0.36 + 0.04 + 0.01) / 6, 6),
    }
    assert (found.rows, found.persons, found.positive) == (6, 0, "ill")


def test_the_named_class_decides_and_not_its_place():
    scores, y = [0.9, 0.8, 0.3, 0.6], [1, 1, 1, 0]
    ill = classified(two(scores), y, ["well", "ill"], "ill").figures
    well = classified(two(scores), y, ["well", "ill"], "well").figures
    assert (ill["sensitivity"], ill["specificity"]) == (well["specificity"], well["sensitivity"])
    assert ill["auc"].value == well["auc"].value
    turned = classified(two(scores)[:, ::-1], [1 - v for v in y], ["ill", "well"], "ill").figures
    assert turned["sensitivity"] == ill["sensitivity"]
    with pytest.raises(FieldError, match="positive"):
        classified(two(scores), y, ["well", "ill"], "sick")


@given(st.integers(0, 1000))
def test_as_scikit_learn_has_it(seed):
    rng = np.random.default_rng(seed)
    y = np.r_[0, 1, rng.integers(0, 2, 60)]
    scores = np.round(np.clip(rng.normal(0.4 + 0.2 * y, 0.2), 0, 1), 1)  # with ties
    found = classified(two(scores), y, ["a", "b"])
    assert found.confusion == confusion_matrix(y, two(scores).argmax(1)).tolist()
    assert found.figures["auc"].value == pytest.approx(roc_auc_score(y, scores))
    assert found.figures["brier"].value == pytest.approx(brier_score_loss(y, scores))
    assert found.figures["balanced_accuracy"].value == pytest.approx(
        balanced_accuracy_score(y, two(scores).argmax(1))
    )
    for one in found.figures.values():
        assert 0 <= one.low <= one.value <= one.high


def test_several_classes_one_against_the_rest():
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1, 2], 30)
    p = rng.dirichlet([1, 1, 1], 90) + 0.5 * np.eye(3)[y]
    p /= p.sum(1, keepdims=True)
    found = classified(p, y, ["a", "b", "c"])
    assert found.figures["auc"].value == pytest.approx(roc_auc_score(y, p, multi_class="ovr"))
    assert found.figures["brier"].value == pytest.approx(((p - np.eye(3)[y]) ** 2).sum(1).mean())
    assert set(found.by_class) == {"a", "b", "c"}
    assert "sensitivity" not in found.figures
    matrix = confusion_matrix(y, p.argmax(1))
    assert found.by_class["b"]["sensitivity"].value == pytest.approx(matrix[1, 1] / 30)


def test_calibration_is_scikit_learns_curve():
    rng = np.random.default_rng(2)
    scores = rng.uniform(size=500)
    y = (rng.uniform(size=500) < scores**2).astype(int)
    found = classified(two(scores), y, ["a", "b"]).calibration
    share, said = calibration_curve(y, scores, n_bins=10)
    assert [one.found.value for one in found] == pytest.approx(share.tolist())
    assert [one.said for one in found] == pytest.approx(said.tolist())
    assert sum(one.rows for one in found) == 500


@pytest.mark.parametrize(("hits", "rows"), [(0, 5), (5, 5), (7, 9), (300, 1000)])
def test_a_share_has_wilsons_interval(hits, rows):
    known = binomtest(hits, rows).proportion_ci(method="wilson")
    assert wilson(hits / rows, rows) == pytest.approx((known.low, known.high), abs=1e-12)
    y = np.r_[np.ones(rows, int), 0]
    scores = np.r_[np.full(hits, 0.9), np.full(rows - hits, 0.1), 0.2]
    one = classified(two(scores), y, ["a", "b"]).figures["sensitivity"]
    assert (one.low, one.high) == pytest.approx((known.low, known.high), abs=1e-12)


def test_the_area_varies_as_delong_says():
    rng = np.random.default_rng(3)
    y = np.r_[np.zeros(80, int), np.ones(60, int)]
    scores = np.clip(rng.normal(0.4 + 0.2 * y, 0.2), 0, 1)
    wins = (scores[y == 1][:, None] > scores[y == 0]) + 0.5 * (
        scores[y == 1][:, None] == scores[y == 0]
    )
    area = wins.mean()
    variance = wins.mean(1).var(ddof=1) / 60 + wins.mean(0).var(ddof=1) / 80
    one = classified(two(scores), y, ["a", "b"]).figures["auc"]
    width = 1.96 * np.sqrt(variance) / (area * (1 - area))
    known = 1 / (1 + np.exp(-(np.log(area / (1 - area)) + np.array([-width, width]))))
    assert (one.low, one.high) == pytest.approx(tuple(known), abs=0.004)


def test_copies_of_a_persons_rows_tell_nothing_new():
    rng = np.random.default_rng(4)
    y = np.r_[np.zeros(25, int), np.ones(25, int)]
    scores = np.clip(rng.normal(0.4 + 0.2 * y, 0.2), 0, 1)
    alone = classified(two(scores), y, ["a", "b"])
    copied = np.repeat(np.arange(50), 8)
    many = classified(two(scores[copied]), y[copied], ["a", "b"], persons=copied)
    blind = classified(two(scores[copied]), y[copied], ["a", "b"])
    assert (many.persons, many.rows) == (50, 400)
    for name, one in alone.figures.items():
        wide, own, narrow = (x.figures[name] for x in (alone, many, blind))
        assert own.value == pytest.approx(one.value)
        assert own.high - own.low == pytest.approx(wide.high - wide.low, rel=0.03)
        assert narrow.high - narrow.low < 0.5 * (own.high - own.low)


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(5)
    held = dict.fromkeys(("sensitivity", "auc", "balanced_accuracy", "brier"), 0)
    runs = 300
    big = rng.normal(size=200_000)
    whole_y = (rng.uniform(size=200_000) < 1 / (1 + np.exp(-big))).astype(int)
    noisy = 1 / (1 + np.exp(-(big + rng.normal(size=200_000))))
    truth = {
        name: one.value for name, one in classified(two(noisy), whole_y, ["a", "b"]).figures.items()
    }
    for _ in range(runs):
        rows = rng.integers(0, 200_000, 120)
        found = classified(two(noisy[rows]), whole_y[rows], ["a", "b"]).figures
        for name in held:
            held[name] += found[name].low <= truth[name] <= found[name].high
    for name, count in held.items():
        assert 0.91 <= count / runs <= 0.99, name  # too narrow and too wide both fail


def test_what_cannot_be_measured_is_refused_or_left_out():
    one_class = classified(two([0.9, 0.4]), [1, 1], ["a", "b"])
    assert set(one_class.figures) == {"accuracy", "balanced_accuracy", "sensitivity", "brier"}
    single = classified(two([0.9]), [1], ["a", "b"])
    assert single.figures["brier"].low is None
    for p, y in (((0, 2), []), ((2, 3), [0, 1])):
        with pytest.raises(FieldError, match="probabilities"):
            classified(np.zeros(p), y, ["a", "b"])
    with pytest.raises(FieldError, match="finite"):
        classified(np.full((1, 2), np.nan), [0], ["a", "b"])
    with pytest.raises(FieldError, match="labels"):
        classified(two([0.1]), [2], ["a", "b"])
