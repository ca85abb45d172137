"""Every metric by name against scikit-learn, for one group and for many at once."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle

from fedveil.errors import FieldError
from fedveil.learning import METRICS, metric, metrics
from fedveil.learning.metrics import metric_names, metrics_of_groups

CLASSES = [name for name, m in METRICS.items() if "classes" in m.tasks]


def expected(logits, y, labels):
    """What scikit-learn says, where it says something."""
    predicted, chances = logits.argmax(1), torch.from_numpy(logits).softmax(1).numpy()
    kinds = logits.shape[1]
    found = {
        "loss": oracle.log_loss(y, chances, labels=labels),
        "accuracy": oracle.accuracy_score(y, predicted),
        "balanced_accuracy": oracle.balanced_accuracy_score(y, predicted),
        "precision": oracle.precision_score(y, predicted, average="macro", zero_division=0),
        "recall": oracle.recall_score(y, predicted, average="macro", zero_division=0),
        "f1": oracle.f1_score(y, predicted, average="macro", zero_division=0),
        "iou": oracle.jaccard_score(y, predicted, average="macro", zero_division=0),
        "micro_auc": oracle.roc_auc_score(np.eye(kinds)[y].ravel(), chances.ravel()),
        "sensitivity": oracle.balanced_accuracy_score(y, predicted),
        "specificity": np.mean([np.mean(predicted[y != c] != c) for c in labels if (y != c).any()]),
    }
    areas = [
        oracle.roc_auc_score(y == c, chances[:, c])
        for c in labels[kinds == 2 :]
        if (y == c).any() and (y != c).any()
    ]
    found |= {"auc": np.mean(areas)} if areas else {}
    if kinds == 2:
        positives, negatives = y == 1, y == 0
        del found["sensitivity"], found["specificity"]
        found |= {"sensitivity": np.mean(predicted[positives] == 1)} if positives.any() else {}
        found |= {"specificity": np.mean(predicted[negatives] == 0)} if negatives.any() else {}
        if positives.any() or predicted.any():
            found["positive_precision"] = oracle.precision_score(y, predicted, zero_division=0)
            found["positive_f1"] = oracle.f1_score(y, predicted, zero_division=0)
            found["positive_iou"] = oracle.jaccard_score(y, predicted, zero_division=0)
            alike = ("image_iou", "image_precision", "image_f1")  # where an image has one label
            found |= dict.fromkeys(alike, found["positive_iou"])
        found |= {"image_sensitivity": found["sensitivity"]} if positives.any() else {}
    return {"examples": len(y), **found}


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any),
    classes=st.integers(2, 4),
    seed=st.integers(0, 1000),
    decimals=st.integers(0, 6),
)
@settings(deadline=None, max_examples=25)
def test_agrees_with_scikit_learn_group_by_group(sizes, classes, seed, decimals):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(sum(sizes), classes, generator=g, dtype=torch.float64).round(
        decimals=decimals
    )
    y = torch.randint(0, classes, (sum(sizes),), generator=g)
    parts = zip(torch.split(logits, sizes), torch.split(y, sizes), strict=True)
    for found, (part, labels) in zip(
        metrics_of_groups(logits, y, sizes, CLASSES)[0], parts, strict=True
    ):
        if not len(labels):
            assert found == {"examples": 0}
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn's about single classes
            wanted = expected(part.numpy(), labels.numpy(), list(range(classes)))
        assert found == pytest.approx(wanted, abs=1e-12)


def test_a_class_a_pixel_counts_pixels():
    g = torch.Generator().manual_seed(0)
    logits, y = torch.randn(3, 2, 4, 5, generator=g), torch.randint(0, 2, (3, 4, 5), generator=g)
    flat = logits.movedim(1, -1).reshape(-1, 2)
    found, _ = metrics_of_groups(logits, y, [2, 1], CLASSES)
    assert [f["examples"] for f in found] == [2, 1]
    for f, part in zip(found, (slice(0, 40), slice(40, 60)), strict=True):
        wanted = expected(flat[part].double().numpy(), y.reshape(-1)[part].numpy(), [0, 1])
        images = [slice(i, i + 20) for i in range(part.start, part.stop, 20)]
        for name, score in (
            ("iou", "jaccard"),
            ("precision", "precision"),
            ("sensitivity", "recall"),
            ("f1", "f1"),
        ):
            alone = [
                getattr(oracle, f"{score}_score")(y.reshape(-1)[i], flat[i].argmax(1))
                for i in images
            ]
            wanted[f"image_{name}"] = np.mean(alone)
        assert f == pytest.approx({**wanted, "examples": f["examples"]})


def test_values():
    output, y = torch.tensor([[1.0], [4.0], [2.0]]), torch.tensor([0.0, 0.0, 2.0])
    assert metrics_of_groups(output, y, [2, 0, 1])[0] == [
        {"examples": 2, "loss": 8.5, "rmse": math.sqrt(8.5)},
        {"examples": 0},
        {"examples": 1, "loss": 0.0, "rmse": 0.0},
    ]


def test_names_are_checked():
    assert metric_names(None, "values") == ("loss", "rmse")
    with pytest.raises(FieldError, match="sensitivity"):
        metric_names(["sensitvity"], "classes")
    with pytest.raises(FieldError, match="does not exist where labels are values"):
        metric_names(["iou"], "values")


def test_another_metric_is_a_decorator():
    @metric(task="values")
    def mean_absolute_error(answers):
        return answers.mean(np.abs(answers.outputs - answers.labels))

    try:
        output, y = torch.tensor([[1.0], [4.0], [5.0]]), torch.zeros(3)
        found, _ = metrics_of_groups(output, y, [2, 1], ["mean_absolute_error"])
        assert [f["mean_absolute_error"] for f in found] == [2.5, 5.0]
        assert metrics(output, y, ["mean_absolute_error"])["mean_absolute_error"] == pytest.approx(
            10 / 3
        )
        with pytest.raises(FieldError, match="taken"):
            metric(task="values")(mean_absolute_error)
    finally:
        del METRICS["mean_absolute_error"]
