"""What is said where examples go one a call: nothing of PyTorch's own, and whose operator it is."""

import logging
import warnings

import pytest
import torch
from torch import nn

import fedveil as fv

G = torch.Generator().manual_seed(0)


class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.head = nn.Linear(3, 8), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.start(x).mean(1).topk(2).values)


class Sorting(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.head = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.start(x).sort(-1).values.mean(1))


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return torch.sin(self.head(x.mean(1)))


def trained(model, loss="cross_entropy"):
    clients = [(torch.randn(6, 5, 3, generator=G), torch.arange(6) % 2) for _ in range(2)]
    method = fv.methods.build("record", epsilon=8.0, delta=1e-5, rounds=1, examples=6, clip=1.0)
    return fv.Federation(model=model, clients=clients, method=method, local=fv.LocalTraining(loss=loss)).run(1)


@pytest.mark.parametrize("make", [Chooses, Sorting])
def test_no_warning_of_pytorchs_own_reaches_the_user(make, caplog):
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        trained(make())
    assert make.__name__ in caplog.text


@pytest.mark.parametrize(
    ("model", "loss", "named"),
    [
        (Waves, nn.CrossEntropyLoss(label_smoothing=0.1), "CrossEntropyLoss"),
        (Sorting, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), "Sorting"),
    ],
)
def test_the_model_is_not_blamed_for_the_loss(model, loss, named, caplog):
    with caplog.at_level(logging.WARNING):
        trained(model(), loss)
    [said] = [record.getMessage() for record in caplog.records if "one example a call" in record.getMessage()]
    assert f"{named} uses" in said


class Deep(nn.Module):
    """A layer that sorts, inside another one."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), Sorting())

    def forward(self, x):
        return self.body(x)


class Gates(nn.Module):
    def forward(self, x):
        return x * (x.sum().item() > 0)


def said_before(model, caplog):
    """What is said while the federation is built, and then while it runs."""
    clients = [(torch.randn(6, 5, 3, generator=G), torch.arange(6) % 2) for _ in range(2)]
    method = fv.methods.build("record", epsilon=8.0, delta=1e-5, rounds=1, examples=6, clip=1.0)
    texts = []
    with caplog.at_level(logging.WARNING):
        federation = fv.Federation(model=model, clients=clients, method=method)
        texts.append(caplog.text)
        federation.run(1)
    return *texts, caplog.text.removeprefix(texts[0])


def test_a_slow_part_is_named_before_the_run(caplog):
    before, later = said_before(Deep(), caplog)
    assert "body.1 (Sorting)" in before
    assert "times slower" in before
    assert "one example a call" not in later


def test_a_layer_that_cannot_be_traced_is_named(caplog):
    before, _ = said_before(nn.Sequential(nn.Linear(3, 3), Gates(), Sorting()), caplog)
    assert "1 (Gates)" in before
