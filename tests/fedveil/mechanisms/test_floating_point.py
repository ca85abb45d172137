"""The low bits of a release tell nothing: what noise of a deployable source is added to lies on a grid."""

import math

import pytest
import torch
from torch import nn

from core_kit import assert_deviation
from fedveil.accounting import Release
from fedveil.layout import Layout
from fedveil.learning import LocalTraining, PrivateTrainer
from fedveil.mechanisms import (
    EuclideanLaplaceNoise,
    GaussianNoise,
    ReproducibleSource,
    SecureSource,
    noised,
)
from fedveil.methods import Broadcast, ClientFacts, PublicFacts, build
from fedveil.methods.publishing import Publishing, Validation

D = 20_000


class Deployed(ReproducibleSource):
    """The stream of a deployment, held fixed."""

    kind, deployable = "secure", True

    def child(self, *key):
        return Deployed(self._seed, _key=(*self._key, *key))


def layout():
    return Layout.from_shapes({"a.weight": (D // 2,), "b.weight": (D // 2,)})


def sent(method, update, source):
    """What a client sends of an update under a hostile broadcast of zeros, which lets every bit of it through."""
    public = PublicFacts(round=1, rounds=9, cohort=9, dimension=D, layer_scores=(1.0, 1.0))
    facts = ClientFacts(
        broadcast=Broadcast(models=torch.zeros(1, D), public=public), layout=layout()
    )
    protected = method.client.protect(
        (Release("model", update),), facts, method.client.init(), source
    )
    return protected.releases[0].value, protected.spend.scale


def on_grid(values, scale):
    steps = values.double() / 2.0 ** (math.floor(math.log2(scale)) - 20)
    return bool((steps == steps.round()).all())


LOCAL = {
    "sga-ldp": build("sga-ldp", epsilon_min=1.0, epsilon_max=1.0, clip=1.0),
    "fedre": build("fedre", scores="public", epsilon=2.0, clip=1.0),
    "group": build("group", radius=1.0),
    "group, gaussian": build("group", radius=1.0, distribution="gaussian"),
}


@pytest.mark.parametrize("name", LOCAL)
def test_low_bits_do_not_tell_which_update_it_was(name):
    """An update of zeros (the client failed) was told from one of length C with certainty, at any epsilon.

    Sums that nearly cancel are exact: of an update x they are multiples of x's last digit, of zeros they are not.
    """
    method, off = LOCAL[name], []
    known = torch.full((D,), 0.999 * D**-0.5)
    digit = 2.0 ** (math.floor(math.log2(known[0])) - 24)
    for update in (torch.zeros(D), known):
        found, _ = sent(method, update, SecureSource())
        small = found[found.abs() < known[0] / 8].double() / digit
        off.append(int((small != small.round()).sum()))
    assert off[0] == off[1] == 0


@pytest.mark.parametrize("name", LOCAL)
def test_what_a_client_sends_lies_on_a_grid_of_its_noise(name):
    found, scale = sent(LOCAL[name], torch.full((D,), 0.3 * D**-0.5), SecureSource())
    spread = math.sqrt(D + 1) / scale[0] if name == "group" else min(scale)
    assert on_grid(found, spread)
    assert not on_grid(
        sent(LOCAL[name], torch.zeros(D), ReproducibleSource(0))[0], spread
    )  # an experiment keeps its bits


def test_so_does_the_noise_inside_training_and_that_on_figures():
    model = nn.Linear(100, 1, bias=False).double()
    noisy = build("record", examples=1, noise_multiplier=1.0).client.noisy_steps
    trainer = PrivateTrainer(model, Layout.from_module(model), LocalTraining(lr=1.0), noisy)
    assert on_grid(
        trainer.idle(torch.zeros(100, dtype=torch.float64), SecureSource()).model, noisy.deviation
    )
    [loss], spend = Validation().release(0.3, "local", SecureSource())
    assert on_grid(loss.value, spend.scale[0])
    figures, counts = torch.tensor([[0.3], [0.1]]), torch.ones(2)
    published = Publishing(metrics="noised", loss_range=1.0)
    (mean, *_), spend = published.release(("loss",), figures, counts, "zero-out", SecureSource())
    assert on_grid(mean.value, spend.scale[0])
    assert on_grid(
        GaussianNoise(0.7).add_to(torch.rand(50, dtype=torch.float64), source=SecureSource()), 0.7
    )


@pytest.mark.parametrize("noise", [GaussianNoise(0.7), EuclideanLaplaceNoise(3.0)])
def test_the_grid_changes_no_more_than_half_a_step(noise):
    vector = torch.linspace(-1, 1, 5_000)
    found = noised(vector, noise, Deployed(3))
    exact = vector.double() + noise.sample(len(vector), source=Deployed(3))
    spread = 0.7 if isinstance(noise, GaussianNoise) else math.sqrt(5_001) / 3
    assert found.dtype == vector.dtype
    assert (found.double() - exact).abs().max() <= spread * 2.0**-21 + float(
        exact.abs().max()
    ) * 2.0**-24
    assert_deviation((found - vector).double().numpy(), spread)
    seeded = noised(vector, noise, ReproducibleSource(3))
    assert torch.equal(
        seeded, vector + noise.sample(len(vector), source=ReproducibleSource(3), dtype=vector.dtype)
    )
