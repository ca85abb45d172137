"""Buffers: constants go with the model, statistics are refused or kept, and what writes a constant is refused."""

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.buffers import statistics

X = torch.rand(12, 5, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 2
CLIENTS = [(X[:6], Y[:6]), (X[6:], Y[6:])]


class Positions(nn.Module):
    """A table of positions, a mask and a scale, as tutorials register them."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.register_buffer("pe", torch.arange(5.0)[:, None] / 5)
        self.register_buffer("mask", torch.ones(5, 5).tril() == 0)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        x = x + self.pe[: x.shape[1]] * self.scale
        weights = (x @ x.transpose(1, 2)).masked_fill_(self.mask, -1e9).softmax(2)
        x = (weights @ x).clone()
        x += self.pe
        return self.head(x.mean(1))


class Stored(Positions):
    def forward(self, x):
        self.scale = 0.9 * self.scale + 0.1 * x.mean().detach()
        return super().forward(x)


class InPlace(Positions):
    def forward(self, x):
        self.scale.mul_(0.9).add_(0.1)
        return super().forward(x)


class Row(Positions):
    def forward(self, x):
        self.pe[0] = x.mean().detach()
        return super().forward(x)


class Data(Positions):
    def forward(self, x):
        self.pe.data[0].copy_(x.mean().detach())
        return super().forward(x)


class Normal(Positions):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("var", torch.ones(5))

    def forward(self, x):
        return super().forward(
            nn.functional.batch_norm(x, self.mean, self.var, training=self.training)
        )


class Elsewhere(Positions):
    """Written by a function of somebody's own, which no reading of methods finds."""

    def forward(self, x):
        turn(self)
        return super().forward(x)


def turn(module):
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.mul_(0.9)


def record():
    return fv.methods.build(
        "record", fv.FedAvg(), noise_multiplier=1.0, clip=1.0, examples=6, rounds=1
    )


@pytest.mark.parametrize("method", [None, record()])
def test_constants_are_taken_and_come_back_with_the_model(method):
    model = Positions()
    history = fv.Federation(model=model, clients=CLIENTS, method=method).run(1)
    model.load_state_dict(history.state_dicts[0])
    assert torch.equal(model.pe, Positions().pe)


def test_constants_need_no_keeping():
    """What is refused of statistics (validation clients, checkpoints) holds for constants."""
    federation = fv.Federation(model=Positions(), clients=CLIENTS)
    assert not federation.own_buffers
    assert federation.layout.constants == ("pe", "mask", "scale")


@pytest.mark.parametrize("made", [Stored, InPlace, Row, Data, Normal])
def test_what_a_method_writes_is_a_statistic(made):
    assert statistics(made())
    with pytest.raises(fv.FieldError, match="persistent=False"):
        fv.Layout.from_module(made())


@pytest.mark.parametrize("method", [None, record()])
def test_what_something_else_writes_is_refused_before_the_first_round(method):
    assert not statistics(Elsewhere())
    with pytest.raises(fv.FieldError, match=r"buffer|other examples"):
        fv.Federation(model=Elsewhere(), clients=CLIENTS, method=method)


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_spectral_normalisation_is_refused_or_kept(norm):
    model = nn.Sequential(nn.Flatten(), norm(nn.Linear(30, 2)))
    with pytest.raises(fv.FieldError, match="keep"):
        fv.Federation(model=model, clients=CLIENTS)
    assert (
        fv.Federation(model=model, clients=CLIENTS, shared=fv.Shared(buffers="keep")).run(1).rounds
    )


def test_the_advice_for_a_statistic_works():
    said = "Federation(..., shared=Shared(buffers"
    with pytest.raises(fv.FieldError) as refused:
        fv.Federation(model=Stored(), clients=CLIENTS)
    assert said in str(refused.value)
    assert (
        fv.Federation(model=Stored(), clients=CLIENTS, shared=fv.Shared(buffers="keep"))
        .run(1)
        .rounds
    )
