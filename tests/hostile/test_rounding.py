"""One record, and the rounding of all others: a server whose weights leave nothing but rounding of an output.

Two twin units cancel in exact arithmetic, whatever the record; what a kernel rounds is multiplied by 2^24 and decides
which way every example's gradient points. Where rounding followed the shape of a batch or a row's place, one record's
presence turned all the others round: with 16 records the sum moved by 29 C (promised: C).
"""

import pytest
import torch
from torch import nn

from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.learning.per_example import PerExample
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods.record import RecordDP

CLIP, WIDE = 1.0, 5
ACTIVATIONS = {"sigmoid": nn.Sigmoid, "softplus": nn.Softplus}


class Own(nn.Module):
    """The same layers behind code of its own."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return self.layers(x * 1.0)


class Lots(ReproducibleSource):
    """Draws that are the same for an example, however many there are."""

    def child(self, *key):
        return Lots(self._seed, _key=(*self._key, *key))

    def uniform(self, size):
        return super().uniform(2000)[:size]


def twins(kind, z, gain):
    """Weights [d] under which an output is the rounding of two twin units alone, and the last two inputs overflow."""
    first = torch.zeros(2, WIDE)
    first[:, -2:] = torch.tensor([3e38, -3e38])  # of inputs that one record alone has
    both = torch.tensor([z, -z])
    if kind == "sigmoid":  # s(z) + s(-z) = 1
        second, bias = torch.tensor([[gain, gain]]), torch.tensor([-gain])
    else:  # f(z) - f(-z) = z
        second, bias = torch.tensor([[gain, -gain]]), -gain * both[:1]
    return torch.cat([first.reshape(-1), both, second.reshape(-1), bias])


def servers(kind, seed=0, tries=25):
    generator = torch.Generator().manual_seed(seed)
    for z in (torch.rand(tries, generator=generator) * 6).tolist():
        for gain in (2.0**24, -(2.0**24)):
            yield twins(kind, z, gain)


def silo(n, seed=1):
    x = torch.rand(n, WIDE, generator=torch.Generator().manual_seed(seed))
    x[:, -2:] = 0
    return x, torch.full((n, 1), 0.5)


class Sums:
    """The sums of a trainer's steps, before their noise."""

    def __init__(self, monkeypatch):
        self.found, self.inside, plain = [], False, PerExample.clipped_sum

        def watched(sums, *args, **more):
            if self.inside:
                return plain(sums, *args, **more)
            self.inside = True
            try:
                found = plain(sums, *args, **more)
                self.found.append(found[0])
                return found
            finally:
                self.inside = False

        monkeypatch.setattr(PerExample, "clipped_sum", watched)

    def of(self, trainer, weights, data, seed=0):
        self.found = [torch.zeros(len(weights), dtype=torch.float64)]
        trainer.train_noisily(weights[None], [ClientData(*data)], [(0,)], [Lots(seed)])
        return torch.stack(self.found).sum(0)


def apart(sums, method, model, worlds, kind):
    """The most that any of these servers moves the sum, in C, over two data sets with equal lots and places."""
    layout, local = Layout.from_module(model), LocalTraining(lr=1.0, loss="mse")
    trainer = PrivateTrainer(model, layout, local, method.noisy_steps)
    seed = drawn(len(worlds[0][0]), method.rate)
    found = [[sums.of(trainer, weights, world, seed) for world in worlds] for weights in servers(kind)]
    return max(float((first - second).norm()) / CLIP for first, second in found)


def drawn(n, rate):
    """A seed under which a lot has 16 records, the last one among them: with 15, kernels round otherwise."""
    lots = (Lots(seed).child("lots").uniform(n) < rate for seed in range(1000))
    return next(seed for seed, lot in enumerate(lots) if lot[-1] and lot.sum() == 16)


def without_last(x, y):
    return x[:-1], y[:-1]


def overflowing(x, y):
    x = x.clone()
    x[-1, -2:] = 1e3
    return x, y


def network(kind, own):
    layers = nn.Sequential(nn.Linear(WIDE, 2), ACTIVATIONS[kind](), nn.Linear(2, 1))
    return Own(layers) if own else layers


BOUND = 1 + 1e-6


@pytest.mark.parametrize("own", [False, True], ids=["layers", "own code"])
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_a_record_that_is_missing_turns_nobody_else(monkeypatch, kind, own, rate):
    """It was 29 C in a full batch of 16."""
    n = 16 if rate == 1 else 60
    method = RecordDP(examples=n, noise_multiplier=1.0, clip=CLIP, relation="add/remove", rate=rate)
    worlds = silo(n), without_last(*silo(n))
    assert apart(Sums(monkeypatch), method, network(kind, own), worlds, kind) <= BOUND


@pytest.mark.parametrize("own", [False, True], ids=["layers", "own code"])
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_a_record_that_overflows_turns_nobody_else(monkeypatch, own, relation):
    """The others were computed again in a batch without it: 28 C."""
    method = RecordDP(examples=16, noise_multiplier=1.0, clip=CLIP, relation=relation)
    worlds = silo(16), overflowing(*silo(16))
    assert apart(Sums(monkeypatch), method, network("sigmoid", own), worlds, "sigmoid") <= BOUND


class Raising(nn.Module):
    """Raises for one record."""

    def __init__(self):
        super().__init__()
        self.layers = network("sigmoid", False)

    def forward(self, x):
        if bool((x[..., -1] > 1).any()):
            raise ValueError("out of range")
        return self.layers(x)


def test_a_record_that_raises_turns_nobody_else(monkeypatch):
    """The batch was halved until it was alone."""
    method = RecordDP(examples=16, noise_multiplier=1.0, clip=CLIP, relation="replace-one")
    worlds = silo(16), overflowing(*silo(16))
    assert apart(Sums(monkeypatch), method, Raising(), worlds, "sigmoid") <= BOUND


class Scaled(nn.Module):
    """Divides a batch by its largest number, where that is above what a check tries."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(x / x.max() if x.max() > 1 else x)


def hooked():
    """Normalises the gradients of a batch on their way back, in layers that are all known."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    model[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] / outputs[0].norm(),))
    return model


@pytest.mark.parametrize(("make", "clip"), [(Scaled, 1e-3), (hooked, 0.01)])
def test_a_model_that_evades_the_check_for_mixing_mixes_nothing(monkeypatch, make, clip):
    """One record moved the sum by 278 C through the first, by 394 C through the second."""
    torch.manual_seed(0)
    model, n = make(), 400
    x, y = torch.rand(n, 4), torch.full((n, 1), 3.0)
    x[-1], y[-1] = 1e4, 1e8
    method = RecordDP(examples=n, noise_multiplier=1.0, clip=clip, relation="add/remove")
    layout = Layout.from_module(model)
    trainer = PrivateTrainer(model, layout, LocalTraining(lr=1.0, loss="mse"), method.noisy_steps)
    sums = Sums(monkeypatch)
    first, second = (sums.of(trainer, layout.read(model), data) for data in ((x, y), (x[:-1], y[:-1])))
    assert first.norm() > 100 * clip
    assert float((first - second).norm()) <= clip * BOUND
