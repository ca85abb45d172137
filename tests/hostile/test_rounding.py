"""One record, and the rounding of all others: a server whose weights leave nothing but rounding of an output.

Two twin units cancel in exact arithmetic, whatever the record; what a kernel rounds is multiplied by 2^24 and decides
which way every example's gradient points. Where rounding followed the shape of a batch or a row's place, one record's
presence turned all the others round: with 16 records the sum moved by 29 C (promised: C).
"""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, PrivateTrainer
from fedveil.learning.clients import OnDemand
from fedveil.learning.gradients import Bases, Products, squared_norms
from fedveil.learning.inputs import Inputs
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
    found = [
        [sums.of(trainer, weights, world, seed) for world in worlds] for weights in servers(kind)
    ]
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


@pytest.mark.few(3)
@pytest.mark.parametrize("own", [False, True], ids=["layers", "own code"])
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_a_record_that_is_missing_turns_nobody_else(monkeypatch, kind, own, rate):
    """It was 29 C in a full batch of 16."""
    n = 16 if rate == 1 else 60
    method = RecordDP(examples=n, noise_multiplier=1.0, clip=CLIP, relation="add/remove", rate=rate)
    worlds = silo(n), without_last(*silo(n))
    assert apart(Sums(monkeypatch), method, network(kind, own), worlds, kind) <= BOUND


@pytest.mark.few(3)
@pytest.mark.parametrize("own", [False, True], ids=["layers", "own code"])
@pytest.mark.parametrize(("kind", "counts"), [("softplus", 0), ("sigmoid", 1)])
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_a_record_that_overflows_turns_nobody_else(monkeypatch, own, kind, counts, relation):
    """The others were computed again in a batch without it: 28 C.

    Softplus of infinity cancels to NaN on every machine, and the record counts zero; under sigmoid it is NaN where
    products are rounded before they are added, and a record with another gradient where they are not.
    """
    method = RecordDP(examples=16, noise_multiplier=1.0, clip=CLIP, relation=relation)
    worlds = silo(16), overflowing(*silo(16))
    assert (
        apart(Sums(monkeypatch), method, network(kind, own), worlds, kind) <= (1 + counts) * BOUND
    )


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
    model[1].register_full_backward_hook(
        lambda module, inputs, outputs: (inputs[0] / outputs[0].norm(),)
    )
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
    first, second = (
        sums.of(trainer, layout.read(model), data) for data in ((x, y), (x[:-1], y[:-1]))
    )
    assert first.norm() > 100 * clip
    assert float((first - second).norm()) <= clip * BOUND


# ---- the oracle: bits of rows at equal places, and coupled sums, for networks, sizes and neighbours drawn at random


class Attends(nn.Module):
    """Code of its own: attention over the parts of an example."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.inner(x.unflatten(1, (4, 4))).split(4, dim=-1)
        return self.out((torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v).mean(-2))


def pictures():
    """A convolution before a normalisation: the gradient of its shifts is rounding alone."""
    layers = (nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(16, 3))
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *layers)


def convolutions():
    """Channels as wide as a register, strides, dilation, groups: other kernels than a few channels take."""
    inner = (
        nn.Conv2d(16, 32, 3, padding=2, dilation=2, groups=2),
        nn.SiLU(),
        nn.Conv2d(32, 32, 2, stride=2, groups=32),
    )
    layers = (
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.Sigmoid(),
        *inner,
        nn.Flatten(),
        nn.Linear(128, 3),
    )
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *layers)


def many_channels():
    """Few places and many channels, as in the last stage of a ResNet: weights' gradients are products with patches."""
    layers = (
        nn.Conv2d(1, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.SiLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(8, 64),
        nn.SiLU(),
        nn.Conv2d(64, 40, (1, 2), bias=False),
        nn.Flatten(),
        nn.Linear(80, 3),
    )
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *layers)


class Encodes(nn.Module):
    """Positions as parameters, attention of two heads, LayerNorm."""

    def __init__(self):
        super().__init__()
        self.inner, self.places = nn.Linear(4, 8), nn.Parameter(torch.zeros(1, 4, 8))
        self.block, self.out = (
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        return self.out(self.block(self.inner(x.unflatten(1, (4, 4))) + self.places)[:, 0])


class Reads(nn.Module):
    """Words, one of which the table does not have where a value is vast, and the table again as outputs."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, x):
        words = (x.abs() * 3).nan_to_num(99.0, 99.0, 99.0).clamp(max=99.0).long()
        return self.out(
            (self.table(words) @ self.table.weight.T).softmax(-1) @ self.table.weight
        ).mean(1)


class Recurs(nn.Module):
    """A recurrent layer over parts of an example, in both directions."""

    def __init__(self, kind):
        super().__init__()
        self.cells, self.out = kind(4, 6, batch_first=True, bidirectional=True), nn.Linear(12, 3)

    def forward(self, x):
        return self.out(self.cells(x.unflatten(1, (4, 4)))[0][:, -1])


def upwards():
    """A transposed convolution, statistics of each channel, slopes that are trained."""
    layers = (
        nn.ConvTranspose2d(2, 4, 2, stride=2),
        nn.InstanceNorm2d(4, affine=True),
        nn.PReLU(4),
        nn.Flatten(),
    )
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 4)), nn.Conv2d(2, 2, 1, groups=2), *layers, nn.Linear(128, 3)
    )


NETWORKS = {
    "encoder": Encodes,
    "words": Reads,
    "LSTM": lambda: Recurs(nn.LSTM),
    "GRU": lambda: Recurs(nn.GRU),
    "upwards": upwards,
    "dense": lambda: nn.Sequential(nn.Linear(16, 7), nn.Sigmoid(), nn.Linear(7, 3)),
    "one unit": lambda: nn.Sequential(nn.Linear(16, 1), nn.Softplus(), nn.Linear(1, 3)),
    "normed": lambda: nn.Sequential(nn.Linear(16, 9), nn.LayerNorm(9), nn.SiLU(), nn.Linear(9, 3)),
    "pictures": pictures,
    "convolutions": convolutions,
    "many channels": many_channels,
    "attention": Attends,
    "own code": lambda: Own(nn.Sequential(nn.Linear(16, 5), nn.Sigmoid(), nn.Linear(5, 3))),
}


def null_space(x, rows, generator):
    """Rows [rows, d] at right angles to most records: what is left of a product is rounding, and is scaled up."""
    basis = torch.linalg.svd(x[: min(len(x), x.shape[1] - 1)].double())[2][
        -max(1, x.shape[1] - len(x)) :
    ]
    return (
        1e7 * torch.randn(rows, len(basis), generator=generator, dtype=torch.float64) @ basis
    ).float()


def worst(name, n, generator):
    """Whether rows kept their bits, and the most in C that a sum moved, over neighbours of a data set of n records."""
    model, places = NETWORKS[name](), n + int(torch.randint(1, 9, (), generator=generator))
    layout = Layout.from_module(model)
    x, y = torch.randn(n, 16, generator=generator), torch.randint(0, 3, (n,), generator=generator)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
        first = next(model.parameters())
        if first.dim() == 2 and first.shape[1] == 16:
            first.copy_(null_space(x, len(first), generator))
    sums, order = (
        PerExample(model, layout, "cross_entropy"),
        torch.randperm(places, generator=generator)[:n],
    )

    def world(changed):
        batch, labels = torch.zeros(places, 16), torch.zeros(places, dtype=torch.int64)
        present = torch.zeros(places, dtype=torch.bool)
        batch[order], labels[order], present[order] = x, y, True
        if changed == "missing":
            batch[order[-1]], labels[order[-1]], present[order[-1]] = 0, 0, False
        elif changed == "label":
            labels[order[-1]] = 9
        elif changed is not None:
            batch[order[-1]] = changed
        found = sums.clipped_sum(batch, labels, CLIP, present)[0]
        rows = sums._rule(batch, labels.clamp(max=2), present)[0].parts()
        return found, [r[order[:-1]].contiguous().view(torch.int32) for r in rows]

    total, bits = world(None)
    kept, moved = sums.rule_name != "one by one", 0.0
    for changed in ("missing", "label", 0.0, 1e38, float("inf"), float("nan"), 1e-42):
        other, later = world(changed)
        kept = kept and all(torch.equal(a, b) for a, b in zip(bits, later, strict=True))
        replaced = 2 if changed in (0.0, 1e38, 1e-42) else 1
        moved = max(moved, float((total - other).norm()) / CLIP / replaced)
    return kept, moved


def worst_of_persons(n, each, generator, *, bias=True):
    """As `worst`, of n persons at a dense head whose inputs are factorised: bits of B' R, and sums of clipped means.

    The last one is missing, lacks an image, has another label, or overflows; others' images agree but for their last
    digits, so that means are what is left of terms that cancel.
    """
    places = n + int(torch.randint(1, 9, (), generator=generator))
    model = nn.Sequential(nn.Linear(16, 3, bias=bias))
    x, y = (
        torch.randn(n, each, 16, generator=generator),
        torch.randint(0, 3, (n, each), generator=generator),
    )
    x[::2] = x[::2, :1] * (1 + 1e-7 * torch.randn(x[::2].shape, generator=generator))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
        model[0].weight.copy_(null_space(x.flatten(0, 1), 3, generator))
    sums, order = (
        PerExample(model, Layout.from_module(model), "cross_entropy"),
        torch.randperm(places, generator=generator)[:n],
    )
    assert sums.takes_bases(places, each)
    cores, plain = [], Products.cores

    def watched(piece, *given):
        cores.append(plain(piece, *given))
        return cores[-1]

    def world(changed):
        own, labels, present = x.clone(), y.clone(), torch.ones(n, each, dtype=torch.bool)
        if changed == "missing":
            present[-1] = False
        elif changed == "image":
            present[-1, 0] = False
        elif changed == "label":
            labels[-1, -1] = 9
        elif changed is not None:
            own[-1, : each // 2] = changed
        m = n - (changed == "missing")
        own[~present], labels[~present] = 0, 0
        batch, here = torch.zeros(places, each, 16), torch.zeros(places, each, dtype=torch.bool)
        numbers = torch.zeros(places, each, dtype=torch.int64)
        batch[order], numbers[order], here[order] = own, labels, present
        bases = sums.bases(own[:m].flatten(0, 1), present[:m]).at(
            torch.arange(m), order[:m], places
        )
        found, _ = sums.clipped_sum(
            batch.flatten(0, 1), numbers.view(-1), CLIP, here.view(-1), each=each, bases=bases,
            lengths=squared_norms(batch.flatten(0, 1)),
        )  # fmt: skip
        return found, cores[-1][order[:-1]].view(torch.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Products, "cores", watched)
        total, bits = world(None)
        kept, moved = sums.rule_name == "layers", 0.0
        for changed in ("missing", "image", "label", 0.0, 1e38, float("inf"), float("nan"), 1e-42):
            other, later = world(changed)
            kept = kept and torch.equal(bits, later)
            moved = max(
                moved, float((total - other).norm()) / CLIP / (1 if changed == "missing" else 2)
            )
    return kept, moved


def explored(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    found = {(name, n): worst(name, n, generator) for name in NETWORKS for n in sizes}
    return found | {
        ("persons", n): worst_of_persons(n, 2 + n % 6, generator, bias=n % 2 > 0) for n in sizes
    }


@pytest.mark.few(4)
@pytest.mark.parametrize("name", NETWORKS)
def test_rows_keep_their_bits_and_sums_their_bound(name):
    generator = torch.Generator().manual_seed(0)
    for n in (2, 15, 16, 33):
        kept, moved = worst(name, n, generator)
        assert kept
        assert moved <= BOUND


@pytest.mark.few(2)
@pytest.mark.parametrize("each", [2, 3, 8])
@pytest.mark.parametrize("bias", [False, True])
def test_factored_means_keep_their_bits_and_sums_their_bound(each, bias):
    generator = torch.Generator().manual_seed(each)
    found = [worst_of_persons(n, each, generator, bias=bias) for n in (2, 3, 15, 16, 33)]
    assert all(kept for kept, _ in found)
    assert 0.3 < max(moved for _, moved in found) <= BOUND


@pytest.mark.parametrize("company", [0.0, 1.0, 1e38, 1e-42, float("nan"), float("inf")])
def test_factors_follow_a_persons_own_images(company):
    generator = torch.Generator().manual_seed(0)
    for each, width in ((2, 4), (3, 64), (5, 33), (31, 130)):
        own, here = (
            torch.randn(each, width, generator=generator),
            torch.ones(1, each, dtype=torch.bool),
        )
        own[-1] = own[0]  # of no full rank
        alone = Bases.of(own[None], here, True)
        for n in (2, 3, 7):
            for place in (0, n - 1):
                x = torch.full((n, each, width), company)
                x[place] = own
                among = Bases.of(x, here.expand(n, -1), True)
                assert torch.equal(among.rows[place], alone.rows[0])
                assert torch.equal(among.basis[place], alone.basis[0])


IMAGES = {
    "any": lambda x: x,
    "one image twice": lambda x: x[:1].expand_as(x).clone(),
    "twins but for the last digit": lambda x: x[:1] * (1 + 1e-7 * x),
    "zeros among them": lambda x: x * (torch.arange(len(x)) % 2)[:, None],
    "nothing but zeros": torch.zeros_like,
    "the smallest numbers": lambda x: 1e-45 * (x > 0),
    "the largest numbers": lambda x: 3e38 * x.sign(),
    "lengths of all sizes": lambda x: x * 10.0 ** torch.linspace(-37, 37, len(x))[:, None],
    "columns of all sizes": lambda x: x * 10.0 ** torch.linspace(-37, 37, x.shape[1]),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("images", IMAGES)
@pytest.mark.parametrize("each", [2, 5])
def test_no_server_makes_a_factored_mean_longer_than_the_clip(images, each):
    """Residuals of up to 1e30, that cancel or do not: what is added is as long as what was measured."""
    generator = torch.Generator().manual_seed(each)
    longest = 0.0
    for exponent in torch.linspace(-20, 30, 11).tolist():
        x = IMAGES[images](torch.randn(each, 12, generator=generator))
        for bias in (False, True):
            model = nn.Sequential(nn.Linear(12, 2, bias=bias))
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(torch.randn(p.shape, generator=generator) * 10.0 ** (exponent / 2))
            y = torch.randn(each, 2, generator=generator) * 10.0**exponent
            y -= y.mean(0)
            sums = PerExample(model, Layout.from_module(model), "mse")
            bases = sums.bases(x, torch.ones(1, each, dtype=torch.bool))
            found, _ = sums.clipped_sum(
                x, y, CLIP, each=each, bases=bases, lengths=squared_norms(x)
            )
            longest = max(longest, float(found.norm()))
            formed, _ = sums.clipped_sum(x, y, CLIP, each=each)
            assert float((found - formed).norm()) <= 2 * CLIP
    assert longest <= CLIP
    assert longest > CLIP / 2 or "zeros" in images or "smallest" in images


def test_norms_of_gram_matrices_would_not_do():
    """Two images that differ by 1e-8 of their length, and errors of 1e10 that cancel: a length of 100 C passes as 0."""
    generator, passed = torch.Generator().manual_seed(0), []
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    nn.init.zeros_(model[0].weight)
    sums = PerExample(model, Layout.from_module(model), "mse")
    for _ in range(50):
        x = torch.rand(1, 4, generator=generator).repeat(2, 1)
        x[:, 1] = torch.tensor([2e-8, 1e-8])
        y = torch.tensor([[-1e10], [1e10]])
        grads, wide = -y.double(), x.double()  # 2 (output - y), of a mean of two
        assert float((grads.T @ (wide - wide[1])).norm()) > 90 * CLIP  # the rest cancels
        passed.append(float(((grads @ grads.T) * (wide @ wide.T)).sum()) < CLIP**2)
        bases = sums.bases(x, torch.ones(1, 2, dtype=torch.bool))
        found, _ = sums.clipped_sum(x, y, CLIP, each=2, bases=bases)
        assert float(found.norm()) <= CLIP
    assert any(passed)


def test_the_clip_of_factored_means_pays_for_all_rows():
    """A sum of 10,000 means of 10 rows is one of 100,000 products."""
    model = nn.Sequential(nn.Linear(20, 1, bias=False)).double()
    nn.init.zeros_(model[0].weight)
    sums, people, each = PerExample(model, Layout.from_module(model), "mse"), 10_000, 10
    x, y = (
        torch.zeros(people * each, 20, dtype=torch.float64),
        torch.zeros(people * each, 1, dtype=torch.float64),
    )
    x[0, 0], y[0] = 1.0, -100.0
    bases = sums.bases(x, torch.ones(people, each, dtype=torch.bool))
    found, _ = sums.clipped_sum(x, y, CLIP, each=each, bases=bases)
    assert 0.99 * CLIP < float(found.norm()) <= CLIP * (1 - 2 * 1e10 * 2.0**-53 * (1 - 1e-6))


def test_a_person_whose_basis_is_not_orthonormal_counts_as_zero():
    """Numbers of float64 whose lengths are beyond it."""
    model = nn.Sequential(nn.Linear(8, 1)).double()
    sums = PerExample(model, Layout.from_module(model), "mse")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 8, generator=generator, dtype=torch.float64)
    here, y = torch.ones(3, 2, dtype=torch.bool), torch.zeros(6, 1, dtype=torch.float64)
    total, _ = sums.clipped_sum(
        x.flatten(0, 1), y, CLIP, each=2, bases=sums.bases(x.flatten(0, 1), here)
    )
    for vast in (1e200, 1e305, 1.7e308):
        x[1] = vast
        bases = sums.bases(x.flatten(0, 1), here)
        found, _ = sums.clipped_sum(
            torch.where(x < 1e100, x, 0).flatten(0, 1), y, CLIP, each=2, bases=bases
        )
        assert found.isfinite().all()
        assert float((found - total).norm()) <= 2 * CLIP * BOUND
    assert bases.rows[1].isnan().all()


def test_factors_that_are_found_again_are_the_same(monkeypatch):
    method = RecordDP(unit="person", people=5, records_per_person=3, noise_multiplier=1.0)
    model = nn.Sequential(nn.Linear(12, 3))
    layout, generator, found = Layout.from_module(model), torch.Generator().manual_seed(0), []
    silos = [
        ClientData(
            torch.randn(15, 12, generator=generator), torch.randint(0, 3, (15,), generator=generator),
            person=torch.arange(15) % 5,
        )
        for _ in range(3)
    ]  # fmt: skip
    calls, plain = [], Bases.of
    monkeypatch.setattr(Bases, "of", lambda *given: calls.append(1) or plain(*given))
    for kept in (1 << 26, 0):
        monkeypatch.setattr("fedveil.learning.lots.KEPT", kept)
        trainer, models = (
            PrivateTrainer(model, layout, LocalTraining(lr=1.0), method.noisy_steps),
            [],
        )
        for round_ in range(3):
            sources, keys = [ReproducibleSource(round_)] * 3, [(round_, i) for i in range(3)]
            starts = layout.read(model).expand(3, -1)
            models += [one.model for one in trainer.train_noisily(starts, silos, keys, sources)]
        found.append(torch.stack(models))
    assert len(calls) == 3 + 9
    assert torch.equal(*found)


@pytest.mark.parametrize("fits", [True, False])
def test_whether_factors_fit_into_memory_follows_the_number_that_is_promised(monkeypatch, fits):
    """Asked of the persons that there are, one more turned everybody to other arithmetic: 5,462 C."""
    people, each, inputs = 6, 2, 9
    room = people * each * (1 + inputs + each)  # of one more than there are, or not
    monkeypatch.setattr("fedveil.learning.per_example._ELEMENTS", room if fits else room - 1)
    taken, plain = [], PerExample.clipped_sum

    def watched(sums, *args, bases=None, **more):
        taken.append(bases is not None)
        return plain(sums, *args, bases=bases, **more)

    monkeypatch.setattr(PerExample, "clipped_sum", watched)
    method = RecordDP(
        unit="person",
        people=people,
        most=people,
        records_per_person=each,
        noise_multiplier=1.0,
        relation="add/remove",
    )
    model = nn.Sequential(nn.Linear(inputs, 1))
    layout, x = Layout.from_module(model), torch.randn(people * each, inputs)
    for n in (people - 1, people):
        trainer = PrivateTrainer(
            model, layout, LocalTraining(lr=1.0, loss="mse"), method.noisy_steps
        )
        person = torch.arange(n * each) // each
        client = ClientData(x[: n * each], torch.zeros(n * each, 1), person=person)
        trainer.train_noisily(layout.read(model)[None], [client], [(0,)], [ReproducibleSource(0)])
    assert taken == [fits, fits]


SETS = {
    "this processor's": {},
    "AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "SSE4.2": {
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("instructions", SETS)
def test_the_law_holds_on_other_instruction_sets(instructions, threads):
    """Batches of 2 to 70, in a process of its own: rows keep their bits, or it is one example a call."""
    program = (
        "import sys, json, torch; sys.path.insert(0, sys.argv[1]); import test_rounding as t;"
        f"torch.set_num_threads({threads});"
        "found = t.explored(range(2, 71), 1);"
        "print(json.dumps([torch.backends.cpu.get_cpu_capability(), len(found), sum(k for k, _ in found.values()),"
        " max(m for _, m in found.values())]))"
    )
    here = str(Path(__file__).parent)
    environment = {**os.environ, **SETS[instructions]}
    done = subprocess.run(
        [sys.executable, "-c", program, here], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kind, cases, kept, moved = json.loads(done.stdout.splitlines()[-1])
    print(
        f"\n{instructions} ({kind}), threads {threads}: {cases} cases, {kept} in batches, at most {moved:.9f} C"
    )
    assert moved <= BOUND


# ---- what one record can do beside its values: raise, draw, or come first


class Chances(nn.Module):
    """Draws with chances that records say: one beyond 1 raises, for the whole batch."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(x) * torch.bernoulli(torch.where(x[:, :3] == 7, 2.0, 0.5))


class Divides(nn.Module):
    """Divides whole numbers by what records say: one of 0 raises, for the whole batch."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        parts = (x[:, :3] * 16).nan_to_num(1, 1, 1).long() - 112
        return self.out(x) + torch.ones_like(parts).remainder(parts).float()


class Turns(nn.Module):
    """Sets its own weights in each call, as constraints of norms do: one example a call."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        self.out.weight.data.mul_(-1)
        return self.out(x)


class Chooses(nn.Module):
    """Draws as Python and NumPy do, and branches by what records say: one example a call."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        scale = 0.0 if float(x.sum()) > 1e30 else 1 + float(np.random.rand())  # noqa: NPY002
        return self.out(x) * scale * (1 if random.random() < 0.5 else -1)


class Drops(nn.Module):
    """An operator of no known kind, so one example a call, behind masks."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.out(nn.functional.dropout(self.inner(x).sort(-1).values, 0.5))


@pytest.mark.few(3)
@pytest.mark.parametrize("make", [Chances, Divides, Drops, Turns, Chooses])
@pytest.mark.parametrize("gone", [False, True], ids=["raises", "missing"])
def test_a_record_that_raises_or_is_missing_changes_nobody_elses_draws(make, gone):
    """The sum moved by 4.0, 5.5 and 2.6 C: all counted zero, or everybody after it drew others."""
    torch.manual_seed(0)
    model, x, y = make(), torch.rand(16, 4), torch.arange(16) % 3
    own, present = torch.Generator(), torch.ones(16, dtype=torch.bool)
    sums = PerExample(model, Layout.from_module(model), "cross_entropy", own)
    found = []
    for other in (False, True):
        batch, here = x.clone(), present.clone()
        if other:
            here[3], batch[3] = not gone, 0.0 if gone else 7.0
        own.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        found.append(
            [sums.clipped_sum(batch, y, CLIP, here)[0] for _ in range(2)]
        )  # the next step, too
    replaced = not gone and make in (Drops, Turns, Chooses)  # where nothing raises
    for one, later in zip(*found, strict=True):
        assert float((one - later).norm()) <= CLIP * BOUND * (1 + replaced)


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_what_is_set_between_two_steps_is_checked_anew():
    """Where torch looks for NaN on the way back, one record that has some took the whole step with it."""
    torch.manual_seed(0)
    model, x, y = (
        nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)),
        torch.rand(16, 4),
        torch.arange(16) % 3,
    )
    sums, vast = (
        PerExample(model, Layout.from_module(model), "cross_entropy", torch.Generator()),
        x.clone(),
    )
    vast[3] = 3e38
    sums.clipped_sum(x, y, CLIP)
    assert sums.rule_name == "layers"
    torch.autograd.set_detect_anomaly(True)
    try:
        one, other = (sums.clipped_sum(batch, y, CLIP)[0] for batch in (x, vast))
    finally:
        torch.autograd.set_detect_anomaly(False)
    assert other.norm() > CLIP
    assert float((one - other).norm()) <= CLIP * BOUND


# ---- data sets that are read each time: their code raises, draws, and says another thing the next time


def read_anew(read, n=16):
    """A silo of n records whose values another's code gives: row number -> example [WIDE]."""
    x = OnDemand(
        lambda rows: torch.stack([read(int(row)) for row in rows]), (n, WIDE), torch.float32
    )
    return ClientData(x, silo(n)[1])


def steps_of(monkeypatch, data, relation):
    method = RecordDP(examples=16, noise_multiplier=1.0, clip=CLIP, relation=relation, steps=2)
    torch.manual_seed(0)
    model = network("softplus", False)
    layout = Layout.from_module(model)
    trainer = PrivateTrainer(
        model, layout, LocalTraining(lr=1e-300, loss="mse"), method.noisy_steps
    )
    sums, plain = [], PerExample.clipped_sum

    def watched(*args, **more):
        found = plain(*args, **more)
        sums.append(found[0])
        return found

    monkeypatch.setattr(PerExample, "clipped_sum", watched)
    [found] = trainer.train_noisily(
        layout.read(model)[None], [data], [(0,)], [ReproducibleSource(3)]
    )
    monkeypatch.setattr(PerExample, "clipped_sum", plain)
    assert not isinstance(found, Exception)
    return sums


def test_a_record_that_cannot_be_read_counts_as_zero_alone(monkeypatch):
    """The step was noise alone: of 16 records nobody counted; where it was the first one, the round failed."""
    x = silo(16)[0]
    for bad in (0, 5):

        def read(row, bad=bad):
            if row == bad:
                raise OSError("cannot be read")
            return x[row]

        worlds = [
            steps_of(monkeypatch, read_anew(own), "replace-one") for own in (x.__getitem__, read)
        ]
        for one, other in zip(*worlds, strict=True):
            assert other.norm() > 0
            assert float((one - other).norm()) <= CLIP * BOUND


def test_draws_of_a_data_set_do_not_follow_who_else_is_read(monkeypatch):
    """One record less gave all after it other draws."""
    x = silo(16)[0]

    def read(row):
        return x[row] + torch.randn(WIDE) + float(np.random.rand()) + random.random()  # noqa: NPY002

    worlds = []
    for n in (16, 15):
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        worlds.append(steps_of(monkeypatch, read_anew(read, n), "add/remove"))
    for one, other in zip(*worlds, strict=True):
        assert float((one - other).norm()) <= CLIP * BOUND


def test_a_record_that_reads_longer_than_before_is_clipped(monkeypatch):
    """Its length was that of an earlier reading: the sum of 8 was 625 C long."""
    x = silo(16)[0]
    for long in (1, 2, 3):
        readings = Counter()

        def read(row, readings=readings, long=long):
            readings[row] += 1
            return x[row] * (1e4 if readings[row] == long else 1e-4)

        assert all(
            float(one.norm()) <= 16 * CLIP
            for one in steps_of(monkeypatch, read_anew(read), "replace-one")
        )


def test_a_round_that_is_asked_again_reads_what_it_read_before():
    """The batch of an earlier round was kept, so that a process begun later answered with other bits."""
    x, method = silo(16)[0], RecordDP(examples=16, noise_multiplier=1.0, clip=CLIP)
    data = read_anew(lambda row: x[row] + torch.randn(WIDE))
    torch.manual_seed(0)
    model = network("softplus", False)
    layout = Layout.from_module(model)

    def answers(*rounds):
        trainer = PrivateTrainer(
            model, layout, LocalTraining(lr=1.0, loss="mse"), method.noisy_steps
        )
        start = layout.read(model)[None]
        return [
            trainer.train_noisily(start, [data], [(0, r, 0)], [ReproducibleSource(r)])[0].model
            for r in rounds
        ]

    assert torch.equal(answers(1, 2)[1], answers(2)[0])


def test_a_method_that_is_replaced_in_one_layer_is_code_of_somebodys_own():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 3))
    assert PerExample(model, Layout.from_module(model), "cross_entropy").rule_name == "layers"
    model[0]._conv_forward = lambda x, w, b: nn.functional.conv2d(
        x / x.abs().max().clamp(min=1e30), w, b
    )
    assert PerExample(model, Layout.from_module(model), "cross_entropy").rule_name != "layers"


def test_persons_places_do_not_follow_the_order_of_their_first_images(monkeypatch):
    """Numbered by their first images, three persons were at the same places in every round: another's images moved
    them, also where their number is public."""
    seen, plain = [], PerExample.clipped_sum

    def watched(sums, x, *args, **more):
        seen.append(tuple(x[::2, 0].int().tolist()))
        return plain(sums, x, *args, **more)

    monkeypatch.setattr(PerExample, "clipped_sum", watched)
    method = RecordDP(unit="person", people=3, records_per_person=2, noise_multiplier=1.0, steps=2)
    model = nn.Linear(WIDE, 1)
    layout, local = Layout.from_module(model), LocalTraining(lr=1.0, loss="mse")
    trainer = PrivateTrainer(model, layout, local, method.noisy_steps)
    x = torch.tensor([1.0, 2.0, 2.0, 3.0])[:, None].expand(-1, WIDE).contiguous()
    client = ClientData(x, torch.zeros(4, 1), person=torch.tensor([5, 7, 7, 2]))
    for round_ in range(60):
        trainer.train_noisily(
            layout.read(model)[None], [client], [(0, round_)], [ReproducibleSource(round_)]
        )
    assert set(seen) == set(permutations((1, 2, 3)))


def twins_of_maps(channels, gain):
    """Images whose two scores differ by the rounding of equal maps alone."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(channels, 16, 3),
        nn.Softplus(),
        nn.Conv2d(16, 2, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[:1].expand_as(model[0].weight))
        model[0].bias.fill_(0.1)
        weights, order = torch.randn(16, 3, 3), torch.randperm(16)
        model[2].weight[0], model[2].weight[1] = gain * weights, gain * weights[order]
        model[2].bias.zero_()
    return model


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_that_is_not_finite_or_missing_leaves_the_others_their_memory_order(channels):
    """What was blanked came back in another order of memory, and all rows went through other kernels: 5.9 C, 8 C."""
    model, generator = twins_of_maps(channels, 1e8), torch.Generator().manual_seed(5)
    x, y = (
        torch.rand(64, channels, 12, 12, generator=generator),
        torch.randint(0, 2, (64,), generator=generator),
    )
    per_example = PerExample(model, Layout.from_module(model), "cross_entropy")
    x = Inputs.of(model)(x)
    broken, here = x.clone(), torch.ones(64, dtype=torch.bool)
    broken[0, 0, 0, 0], here[0] = float("nan"), False
    whole = per_example.clipped_sum(x, y, CLIP)[0]
    blank, finite = torch.zeros_like(x[:1]), per_example.clipped_sum(broken, y, CLIP)[0]
    missing = per_example.clipped_sum(torch.cat([blank, x[1:]]).contiguous(), y, CLIP, here)[0]
    assert float((whole - finite).norm()) <= CLIP * BOUND
    assert torch.equal(finite, missing)
    pairs = per_example.clipped_sum(x, y, CLIP, here, each=2)[0]
    assert (
        float((per_example.clipped_sum(x, y, CLIP, each=2)[0] - pairs).norm()) <= 2 * CLIP * BOUND
    )


# ---- persons' factors, and private numbers that may choose the arithmetic


def twice(people, seed):
    """Persons of two equal images, whose targets cancel but for rounding."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(people, 1, 12_288, generator=generator).repeat(1, 2, 1)
    y = 1e25 * torch.randn(people, 1, 1, generator=generator) * torch.tensor([[[1.0], [-1.0]]])
    return ClientData(x.flatten(0, 1), y.flatten(0, 1), person=torch.arange(2 * people) // 2)


def sums_of_persons(monkeypatch, silos, most, threads=(1,)):
    """Of each round and silo, the sum before its noise and whether factors were used."""
    method = RecordDP(
        unit="person",
        people=most,
        most=most,
        records_per_person=2,
        noise_multiplier=1.0,
        relation="add/remove",
    )
    model = nn.Sequential(nn.Linear(silos[0].x.shape[1], 1, bias=False))
    layout, found, plain = Layout.from_module(model), [], PerExample.clipped_sum

    def watched(sums, *args, bases=None, **more):
        total, losses = plain(sums, *args, bases=bases, **more)
        found.append((total, bases is not None))
        return total, losses

    trainer = PrivateTrainer(model, layout, LocalTraining(lr=1.0, loss="mse"), method.noisy_steps)
    starts, keys = torch.zeros(len(silos), layout.size), [(i,) for i in range(len(silos))]
    before = torch.get_num_threads()
    with monkeypatch.context() as patch:
        patch.setattr(PerExample, "clipped_sum", watched)
        for count in threads:
            torch.set_num_threads(count)
            trainer.train_noisily(
                starts, silos, keys, [ReproducibleSource(i) for i in range(len(silos))]
            )
    torch.set_num_threads(before)
    return found


def test_factors_do_not_follow_whether_examples_fit_into_memory(monkeypatch):
    """A GiB and one person more were read each time: means were formed for all, 7 C."""
    held = twice(16, 0)
    read = OnDemand(lambda rows: held.x[torch.as_tensor(rows)], held.x.shape, held.x.dtype)
    worlds = held, ClientData(read, held.y, person=held.person)
    (one, first), (other, second) = (
        sums_of_persons(monkeypatch, [world], 16)[0] for world in worlds
    )
    assert first
    assert second
    assert torch.equal(one, other)
    assert float(one.norm()) > 1e-3 * CLIP


@pytest.mark.few(0)
def test_factors_do_not_follow_how_many_persons_other_silos_hold(monkeypatch):
    """One more elsewhere had a silo's found anew, by other threads, which round otherwise: 2 C."""
    monkeypatch.setattr("fedveil.learning.lots.KEPT", 2 * 12_288 * 16)
    found = []
    for other in (0, 1):
        silos = [twice(16, 1), twice(other, 2), twice(2, 3)]
        found.append(
            [total for total, _ in sums_of_persons(monkeypatch, silos, 16, threads=(1, 2))]
        )
    first, other = found[0], [found[1][place] for place in (0, 2, 3, 5)]  # an empty silo has no sum
    assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
