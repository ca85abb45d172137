"""The search over rounding and canaries, through an app's own loop instead of the trainer's."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch

import test_rounding as rounding
from fedveil.learning import AppLoop, PrivateTrainer, trainers
from fedveil.learning.losses import loss_of, outputs_of
from fedveil.learning.per_example import PerExample

PLAIN = PerExample.clipped_sum  # before a test watches it


class ByApp(PrivateTrainer):
    """A trainer whose rounds an app's loop plays, as somebody writes it."""

    def train_noisily(self, starts, clients, keys, sources):
        own = self.noisy
        self.noisy = replace(own, by_app=True)
        try:
            given = zip(starts, clients, sources, strict=True)
            return [replace(self._played(*each), noised=own) for each in given]
        finally:
            self.noisy = own

    def _played(self, start, client, source):
        model = deepcopy(self._spare)
        momentum = self.local.momentum
        optimizer = torch.optim.SGD(model.parameters(), lr=self.local.rate(), momentum=momentum)
        criterion = loss_of(self.local.loss)
        with AppLoop(self, model, optimizer, client, start, source) as loop:
            for x, y in loop:
                optimizer.zero_grad()
                criterion(outputs_of(model(x)), y).backward()
                optimizer.step()
        return loop.trained

    def mean_gradients(self, x, y):
        """Weights that leave rounding alone round otherwise in the app's batch: nothing is compared, nor watched."""
        self._sums.clipped_sum = partial(PLAIN, self._sums)
        try:
            first, _ = super().mean_gradients(x, y)
        finally:
            del self._sums.clipped_sum
        return first, first + 1e30


@pytest.fixture
def by_app(monkeypatch):
    monkeypatch.setattr(rounding, "PrivateTrainer", ByApp)
    return monkeypatch


@pytest.mark.few(2)
@pytest.mark.parametrize("own", [False, True], ids=["layers", "own code"])
@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_a_record_that_is_missing_turns_nobody_else(by_app, own, rate):
    rounding.test_a_record_that_is_missing_turns_nobody_else(by_app, "sigmoid", own, rate)


@pytest.mark.few(1)
@pytest.mark.parametrize("own", [False, True], ids=["layers", "own code"])
def test_a_record_that_overflows_turns_nobody_else(by_app, own):
    rounding.test_a_record_that_overflows_turns_nobody_else(
        by_app, own, "softplus", 0, "replace-one"
    )


def test_a_record_that_raises_turns_nobody_else(by_app):
    """The app's own code raises on its lot; what leaves is the plan's steps all the same."""
    rounding.test_a_record_that_raises_turns_nobody_else(by_app)


@pytest.mark.parametrize("noise", [1e-3, 3.0])
def test_canaries_are_found_under_vacuous_noise_alone(monkeypatch, noise):
    from fedveil import Federation
    from fedveil.learning import ClientData, LocalTraining, build_model
    from fedveil.methods import build
    from fedveil_lab.attacks.membership import confidence, one_run, record_canaries

    played = []

    class Counted(ByApp):
        def _played(self, start, client, source):
            played.append(client.examples)
            return super()._played(start, client, source)

    monkeypatch.setattr(trainers, "PrivateTrainer", Counted)
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.rand(40, 1, 16, 16, generator=generator) - 0.5,
        torch.randint(0, 2, (40,), generator=generator),
    )
    clients = [ClientData(x[i::2], y[i::2]) for i in range(2)]
    clients[0], canaries, inside = record_canaries(clients[0], 200, 2)
    method = build("record", examples=100, clip=4.0, noise_multiplier=noise, rounds=40)
    model = build_model("logistic", input_shape=(1, 16, 16), outputs=2, seed=0)
    federation = Federation(
        model=model, clients=clients, local=LocalTraining(lr=0.3), method=method, seed=1
    )
    guarantee = federation.run(40).guarantee
    odds = confidence(
        federation.learner.model, federation.layout, federation.models, canaries.x, canaries.y
    )[0]
    found = one_run(odds[inside], odds[~inside])
    assert len(played) == 80
    if noise < 1:
        assert found.mu > 0.5
    assert found.mu <= guarantee.mu
