"""What is said where examples go one a call: nothing of PyTorch's own, and whose operator it is."""

import logging
import warnings

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.layout import Layout
from fedveil.learning import per_example
from fedveil.learning.streams import with_keyed_dropout
from fedveil.learning.traced import ByOperators

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
    return fv.Federation(
        model=model, clients=clients, method=method, local=fv.LocalTraining(loss=loss)
    ).run(1)


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
    [said] = [
        record.getMessage()
        for record in caplog.records
        if "one example a call" in record.getMessage()
    ]
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


def test_micro_batches_are_said_before_the_run_and_once(caplog, monkeypatch):
    """Six examples of 302 numbers each, of which two fit."""
    model = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 3, 5)), nn.Conv2d(1, 30, 3, padding=1))
    model.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(30, 2)])
    monkeypatch.setattr(per_example, "_ELEMENTS", 2 * 300)
    before, later = said_before(model, caplog)
    assert "3 micro-batches of 2" in before
    assert "micro-batch" not in later


def test_a_step_that_fits_is_one_batch(caplog):
    before, later = said_before(nn.Sequential(nn.Flatten(), nn.Linear(15, 2)), caplog)
    assert "micro-batch" not in before + later


class Drops(nn.Module):
    """Code of its own around a dropout layer: its gradient for the head is the mean of what was kept."""

    def __init__(self, drop):
        super().__init__()
        self.drop, self.head = drop, nn.Linear(5, 2)

    def forward(self, x):
        kept = self.drop(x).mean(-1)
        return self.head(torch.cat([kept[:, :2], kept[:, 2:]], 1))


class Block(nn.Module):
    """Attention, and a dropout beside it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.start, self.drop, self.head = nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 2)

    def forward(self, x):
        x = self.start(x)
        return self.head(self.layer(x + self.drop(x)).mean(1))


@pytest.mark.parametrize(
    "make", [Block, lambda: Drops(nn.Dropout(0.2)), lambda: Drops(nn.Dropout1d(0.2))]
)
def test_a_network_with_dropout_goes_in_batches(make, caplog):
    with caplog.at_level(logging.WARNING):
        first, again = (trained_from(3, make()) for _ in range(2))
    assert "one example a call" not in caplog.text
    assert torch.equal(first, again)
    assert not torch.equal(first, trained_from(4, make()))


def trained_from(seed, model):
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.1)
    x, y = torch.ones(6, 5, 3), torch.arange(6) % 2
    method = fv.methods.build("record", noise_multiplier=1e-3, rounds=1, examples=6, clip=1.0)
    return fv.Federation(model=model, clients=[(x, y)], method=method, seed=seed).run(1).models[0]


def masks(drop, examples=400):
    """What is kept [examples, 5] of rows of ones, by the gradients of single examples."""
    model = Drops(drop)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    with_keyed_dropout(model, torch.Generator().manual_seed(1))
    layout = Layout.from_module(model)
    way = ByOperators(model, layout, "cross_entropy", torch.Generator().manual_seed(2))
    x, y = torch.ones(examples, 5, 3), torch.zeros(examples, dtype=torch.int64)
    way.prepare(x, y)
    found, _, _ = way(x, y, torch.ones(examples, dtype=torch.bool))
    [one] = [number for number, name in enumerate(layout.names) if name == "head.weight"]
    return found.parts()[one].reshape(examples, 2, 5)[:, 1] * 2  # the second output's error is 1/2


def test_a_traced_dropout_has_a_mask_for_each_example_and_keeps_the_mean():
    kept = masks(nn.Dropout(0.25))
    assert len(kept.unique(dim=0)) > 100
    assert abs(kept.mean() - 1) < 0.03
    whole = masks(nn.Dropout1d(0.25))
    assert sorted(whole.unique().tolist()) == pytest.approx([0.0, 4 / 3])
    assert abs(whole.mean() - 1) < 0.06
