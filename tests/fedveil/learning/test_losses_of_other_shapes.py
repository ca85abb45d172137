"""Losses whose outputs are no answer to a label, one by one: the loss alone is measured."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedveil as fv

X = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
Y = X[:, 0].clone()
YES = (Y > 0).float()


def gauss(output, y):
    return F.gaussian_nll_loss(output[:, 0], y.reshape(-1), F.softplus(output[:, 1]) + 1e-3)


def quantiles(output, y):
    errors = [(q, y - output[:, i]) for i, q in enumerate((0.1, 0.5, 0.9))]
    return sum(torch.maximum(q * error, (q - 1) * error).mean() for q, error in errors)


def classes_as_numbers(output, y):
    return F.cross_entropy(output, y.long())


def one_column(output, y):
    return F.binary_cross_entropy_with_logits(output[:, 1], y)


def tasks(output, y):
    return F.mse_loss(output[:, 0], y[:, 0]) + F.binary_cross_entropy_with_logits(
        output[:, 1] + output[:, 2], y[:, 1]
    )


CASES = {
    "gauss": (gauss, 2, Y),
    "quantiles": (quantiles, 3, Y),
    "classes as numbers": (classes_as_numbers, 2, YES),
    "one column": (one_column, 2, YES),
    "tasks": (tasks, 3, torch.stack([Y, YES], 1)),
}


def clients(y, held):
    return [(X[:40], y[:40], X[80 : 80 + held], y[80 : 80 + held]), (X[40:80], y[40:80])]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("held", [1, 20])
def test_the_loss_is_measured_alone(name, held):
    loss, outputs, y = CASES[name]
    local = fv.LocalTraining(loss=loss)
    model = nn.Linear(5, outputs)
    found = fv.Federation(model=model, clients=clients(y, held), local=local, seed=1).run(1)
    with torch.no_grad():
        fv.Layout.from_module(model).load(model, found.models[0])
        wanted = float(loss(model(X[80 : 80 + held]), y[80 : 80 + held]))
    assert found.metrics == {"examples": held, "loss": pytest.approx(wanted, rel=1e-5)}


def test_a_metric_that_does_not_exist_there_is_refused_before_the_first_round():
    local, evaluation = fv.LocalTraining(loss=gauss), fv.Evaluation(metrics=["rmse"])
    with pytest.raises(fv.FieldError, match="metrics"):
        fv.Federation(
            model=nn.Linear(5, 2), clients=clients(Y, 20), local=local, evaluation=evaluation
        )
