"""PyTorch's losses at record level: the sum of clipped gradients of single examples, in every way."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedveil as fv
from fedveil.learning.per_example import PerExample

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(12, 6, generator=GENERATOR)
CLASSES = torch.arange(12) % 3
BITS = (torch.arange(12) % 2).float()[:, None]
TARGETS = torch.randn(12, 3, generator=GENERATOR)
WEIGHTS = torch.tensor([1.0, 2.0, 5.0])


class Own(nn.Module):
    """Goes as a fixed list of operators."""

    def __init__(self, outputs, logs=False):
        super().__init__()
        self.scale, self.head, self.logs = nn.Parameter(torch.ones(6)), nn.Linear(6, outputs), logs

    def forward(self, x):
        out = self.head(x * self.scale.abs())
        return out.log_softmax(1) if self.logs else out


class Branches(Own):
    """Goes one example a call."""

    def forward(self, x):
        return super().forward(x if x.sum() > 0 else 2 * x)


class Log(nn.Module):
    def forward(self, x):
        return x.log_softmax(1)


CASES = {
    "cross-entropy": (nn.CrossEntropyLoss(), CLASSES),
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHTS), CLASSES),
    "class weights of the function": (partial(F.cross_entropy, weight=WEIGHTS), CLASSES),
    "label smoothing": (nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), CLASSES),
    "an ignored class": (nn.CrossEntropyLoss(ignore_index=2), CLASSES),
    "soft labels": (nn.CrossEntropyLoss(weight=WEIGHTS), TARGETS.softmax(1)),
    "log-probabilities": (nn.NLLLoss(weight=WEIGHTS), CLASSES),
    "two classes": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])), BITS),
    "two classes, the function": (F.binary_cross_entropy_with_logits, BITS),
    "several labels": (nn.BCEWithLogitsLoss(), (TARGETS > 0).float()),
    "squares": (nn.MSELoss(), TARGETS),
    "lengths": (nn.L1Loss(), TARGETS),
    "Huber": (nn.HuberLoss(delta=0.5), TARGETS),
    "smooth": (F.smooth_l1_loss, TARGETS),
}


def each(loss, output, y):
    """Losses of examples, written anew: the mean over an example's labels."""
    if isinstance(loss, partial):
        return F.cross_entropy(output, y, reduction="none", **loss.keywords)
    if isinstance(loss, nn.Module):
        given = {
            k: getattr(loss, k)
            for k in ("weight", "pos_weight", "label_smoothing", "ignore_index", "delta")
            if hasattr(loss, k)
        }
        if given.get("weight") is None:
            given.pop("weight", None)
        loss = type(loss)(reduction="none", **given)
        return loss(output, y).reshape(len(y), -1).mean(1)
    return loss(output, y, reduction="none").reshape(len(y), -1).mean(1)


@pytest.mark.few(30)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["layers", "operators", "one by one"])
@pytest.mark.parametrize(
    "clip", [0.3, 3.0]
)  # where all are cut, a weight of a class changes nothing
def test_sums_are_of_single_examples_clipped(name, way, clip):
    loss, y = CASES[name]
    outputs, logs = (1 if y.shape[1:] == (1,) else 3), name == "log-probabilities"
    torch.manual_seed(0)
    model = {"operators": Own, "one by one": Branches}.get(way, lambda n, logs: None)(outputs, logs)
    if model is None:
        layers = [
            nn.Linear(6, 5),
            nn.Tanh(),
            nn.Linear(5, outputs),
            *([nn.LogSoftmax(1)] if logs else []),
        ]
        model = nn.Sequential(*layers)
    layout = fv.Layout.from_module(model)
    rows = []
    for i in range(12):
        one = each(loss, model(X[i : i + 1]), y[i : i + 1]).sum()
        gradient = torch.cat(
            [g.reshape(-1) for g in torch.autograd.grad(one, list(model.parameters()))]
        ).double()
        rows.append(gradient * min(1.0, clip / max(float(gradient.norm()), 1e-12)))
    total, losses = PerExample(model, layout, loss).clipped_sum(X, y, clip)
    assert len(losses) == 12
    torch.testing.assert_close(total, torch.stack(rows).sum(0), rtol=1e-4, atol=1e-4)


def test_labels_that_are_no_class_count_as_zero():
    model = nn.Sequential(nn.Linear(6, 3))
    sums = PerExample(model, fv.Layout.from_module(model), nn.CrossEntropyLoss(weight=WEIGHTS))
    wrong = CLASSES.clone()
    wrong[0] = 7
    with_one, losses = sums.clipped_sum(X, wrong, 1.0)
    without, _ = sums.clipped_sum(X, CLASSES, 1.0, torch.arange(12) > 0)
    assert len(losses) == 11
    torch.testing.assert_close(with_one, without)


def test_a_federation_trains_with_them_and_says_what_is_supported_otherwise():
    record = fv.methods.build(
        "record", fv.FedAvg(), noise_multiplier=1.0, clip=1.0, examples=6, rounds=1
    )
    clients = [(X[:6], BITS[:6]), (X[6:], BITS[6:])]
    local = fv.LocalTraining(loss=nn.BCEWithLogitsLoss())
    federation = fv.Federation(model=nn.Linear(6, 1), clients=clients, method=record, local=local)
    assert not federation.run(1).rounds[0].zeroed
    for loss in (
        nn.BCELoss(),
        nn.MSELoss(reduction="sum"),
        lambda out, y: (out - y).square().mean(),
    ):
        model = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())
        with pytest.raises(fv.FieldError, match="BCEWithLogitsLoss"):
            fv.Federation(
                model=model, clients=clients, method=record, local=fv.LocalTraining(loss=loss)
            )


@pytest.mark.parametrize("loss", [nn.L1Loss(), nn.MSELoss(), nn.HuberLoss()])
def test_targets_of_another_shape_are_refused_and_not_spread_out(loss):
    model = nn.Sequential(nn.Linear(6, 1))
    with pytest.raises(fv.FieldError):
        PerExample(model, fv.Layout.from_module(model), loss).clipped_sum(X, BITS[:, 0], 1.0)


class Squeezed(nn.Module):
    """A regression as people write it: outputs [N]."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


@pytest.mark.parametrize(
    "loss", [nn.MSELoss(), nn.L1Loss(), nn.HuberLoss(delta=0.5), nn.SmoothL1Loss(), "mse"]
)
def test_a_regression_with_squeezed_outputs_goes_in_batches(loss):
    torch.manual_seed(0)
    model, y = Squeezed(), TARGETS[:, 0]
    sums = PerExample(model, fv.Layout.from_module(model), loss)
    total, losses = sums.clipped_sum(X, y, 3.0)
    assert sums.rule_name == "operators"
    rows = []
    each_loss = nn.MSELoss() if loss == "mse" else loss
    for i in range(12):
        value = each_loss(model(X[i : i + 1]), y[i : i + 1])
        gradient = torch.cat(
            [g.reshape(-1) for g in torch.autograd.grad(value, list(model.parameters()))]
        ).double()
        rows.append(gradient * min(1.0, 3.0 / float(gradient.norm())))
    assert len(losses) == 12
    torch.testing.assert_close(total, torch.stack(rows).sum(0), rtol=1e-4, atol=1e-4)
