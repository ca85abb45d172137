import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, build_model, evaluate, evaluate_clients, metrics


def test_metrics_by_hand():
    # predictions 0, 0, 1, 1 for labels 0, 1, 1, 1: class 0 has precision 1/2, recall 1; class 1 has 1 and 2/3
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    found = metrics(logits, torch.tensor([0, 1, 1, 1]))
    assert found["examples"] == 4
    assert found["accuracy"] == 0.75
    assert found["precision"] == pytest.approx((0.5 + 1.0) / 2)
    assert found["f1"] == pytest.approx((2 / 3 + 0.8) / 2)
    softplus = [math.log1p(math.exp(v)) for v in (-2.0, 1.0, -1.0, -3.0)]
    assert found["loss"] == pytest.approx(sum(softplus) / 4)
    # margins 2, -1, 1, 3 of the right class; micro pairs: right scores against wrong ones (their complements)
    right, wrong = (2, -1, 1, 3), (-2, 1, -1, -3)
    wins = sum((r > w) + 0.5 * (r == w) for r in right for w in wrong)
    assert found["micro_auc"] == pytest.approx(wins / 16)
    # of class 1, scores -2, -1, 1, 3 for the labels 0, 1, 1, 1: the negative is the lowest
    assert found["auc"] == 1.0
    assert list(found) == ["examples", "loss", "accuracy", "f1", "precision", "auc", "micro_auc"]


@given(
    n=st.integers(1, 40),
    classes=st.integers(2, 6),
    seed=st.integers(0, 1000),
    decimals=st.integers(0, 8),
)
@settings(deadline=None, max_examples=60)
def test_agrees_with_scikit_learn(n, classes, seed, decimals):
    from sklearn.metrics import f1_score, precision_score, roc_auc_score
    from sklearn.preprocessing import label_binarize

    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=g, dtype=torch.float64).round(
        decimals=decimals
    )  # few decimals: ties
    y = torch.randint(0, classes, (n,), generator=g)
    found, labels, predicted = metrics(logits, y), y.numpy(), logits.argmax(1).numpy()
    assert found["f1"] == pytest.approx(
        f1_score(labels, predicted, average="macro", zero_division=0)
    )
    assert found["precision"] == pytest.approx(
        precision_score(labels, predicted, average="macro", zero_division=0)
    )
    truth = label_binarize(labels, classes=[*range(classes), classes])[:, :classes]
    expected = roc_auc_score(truth.ravel(), logits.softmax(1).numpy().ravel())
    assert found["micro_auc"] == pytest.approx(expected, abs=1e-12)


def test_regression_by_hand():
    found = metrics(torch.tensor([[1.0], [4.0]]), torch.tensor([0.0, 0.0]))
    assert found == {"examples": 2, "loss": 8.5, "rmse": 8.5**0.5}


def test_undefined_figures_are_none():
    found = metrics(torch.tensor([[float("nan"), 0.0]]), torch.tensor([0]))
    assert found == {"examples": 1, "loss": math.inf, "accuracy": 1.0, "f1": 1.0, "precision": 1.0}
    assert "auc" not in metrics(torch.zeros(2, 1), torch.tensor([0, 0]))


def setup():
    model = build_model("logistic", input_shape=(2,), outputs=3, seed=0)
    layout = Layout.from_module(model)
    g = torch.Generator().manual_seed(0)
    models = torch.randn(2, layout.size, generator=g)
    x, y = torch.randn(9, 2, generator=g), torch.arange(9) % 3
    return model, layout, models, x, y


def test_pooled_is_computed_on_all_predictions_together():
    model, layout, models, x, y = setup()
    clients = [ClientData(x, y, x[a:b], y[a:b]) for a, b in ((0, 2), (2, 7), (7, 9))]
    clients.insert(1, ClientData(x, y))
    before = layout.read(model)
    single, pooled = evaluate_clients(model, layout, models, clients, [1, 0, 0, 1])
    assert [m["examples"] for m in single] == [2, 0, 5, 2]
    assert single[1] == {"examples": 0}
    assert pooled["examples"] == 9
    assert pooled["accuracy"] == pytest.approx(
        sum(m["accuracy"] * m["examples"] for m in single if m["examples"]) / 9
    )
    alone = evaluate(model, layout, models[0], x[2:7], y[2:7])
    assert single[2]["accuracy"] == alone["accuracy"]
    assert single[2]["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    assert torch.equal(before, layout.read(model))
    assert model.training


def test_nothing_held_out():
    model, layout, models, x, y = setup()
    single, pooled = evaluate_clients(model, layout, models, [ClientData(x, y)], [0])
    assert single == [{"examples": 0}]
    assert pooled == {"examples": 0}
    assert evaluate(model, layout, models[0], x[:0], y[:0]) == {"examples": 0}


def test_an_index_of_no_hypothesis_is_refused():
    model, layout, models, x, y = setup()
    with pytest.raises(FieldError, match="chosen"):
        evaluate_clients(model, layout, models, [ClientData(x, y, x, y)], [2])


def test_batches_do_not_change_the_figures():
    model, layout, models, x, y = setup()
    many_x, many_y = x.repeat(150, 1), y.repeat(150)
    many, few = (evaluate(model, layout, models[0], *data) for data in ((many_x, many_y), (x, y)))
    assert many["accuracy"] == few["accuracy"]
