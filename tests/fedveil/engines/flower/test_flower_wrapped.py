"""Flower's optimisers behind FedVeil's noise: they see what is released, and cost nothing."""

import flwr.serverapp.strategy as flower
import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp

from fedveil.errors import FieldError
from fedveil.flower import FedVeilStrategy, WrappedStrategy, from_arrays, run_in_process, to_arrays
from fedveil.methods import build
from test_flower_strategy import LAYOUT, app

pytestmark = pytest.mark.flower
NOISY = build("global", noise_multiplier=2.0, clip=1.5)


def play(strategy, method, partitions=3):
    results = []
    server = ServerApp()

    @server.main()
    def main(grid, context):
        results.append(strategy.start(grid, to_arrays(LAYOUT, torch.zeros(6))))

    run_in_process(server, app(method=method), partitions)
    return from_arrays(LAYOUT, results[0].arrays)


def wrapped(inner, method=NOISY, rounds=3):
    return WrappedStrategy(inner, method, LAYOUT, rounds=rounds, seed=3, evaluate=False)


def spied(inner):
    """The inner strategy, and the arrays of every reply that it was given."""
    seen, combine = [], type(inner).aggregate_train

    def aggregate_train(server_round, replies):
        replies = list(replies)
        seen.append([dict(m.content["arrays"].items()) for m in replies])
        return combine(inner, server_round, replies)

    inner.aggregate_train = aggregate_train
    return seen


def test_plain_averaging_inside_changes_no_bit():
    alone = play(FedVeilStrategy(NOISY, LAYOUT, rounds=3, seed=3, evaluate=False), NOISY)
    assert torch.equal(play(wrapped(flower.FedAvg()), NOISY), alone)


@pytest.mark.parametrize(
    "make", [flower.FedAvgM, flower.FedAdam, flower.FedYogi, flower.FedAdagrad, flower.FedProx]
)
def test_an_optimiser_sees_one_released_mean_a_round_and_costs_nothing(make):
    own = (
        {"server_momentum": 0.9}
        if make is flower.FedAvgM
        else {"proximal_mu": 0.1}
        if make is flower.FedProx
        else {}
    )
    strategy = wrapped(inner := make(**own))
    seen, released = spied(inner), []
    combine = strategy.server.combine

    def noted(*arguments, **named):
        released.append(combine(*arguments, **named))
        return released[-1]

    strategy.server.combine = noted
    model = play(strategy, NOISY)
    assert [len(replies) for replies in seen] == [1, 1, 1]
    for [arrays], (opened, _) in zip(seen, released, strict=True):
        assert np.array_equal(arrays["weight"].numpy(), opened.models[0].numpy())
    alone = FedVeilStrategy(NOISY, LAYOUT, rounds=3, seed=3, evaluate=False)
    play(alone, NOISY)
    assert strategy.guarantee == alone.guarantee
    assert torch.equal(model, strategy.models[0])
    if make is not flower.FedProx:
        assert not torch.equal(model, alone.models[0])  # the optimiser did something


def test_momentum_is_that_of_the_noised_means():
    # Flower's own wrappers noise what FedAvgM returns: its state keeps the mean without noise
    strategy = wrapped(inner := flower.FedAvgM(server_momentum=0.5))
    seen = spied(inner)
    play(strategy, NOISY)
    means, model, momentum = (
        [torch.tensor(arrays["weight"].numpy()) for [arrays] in seen],
        torch.zeros(6),
        0,
    )
    for mean in means:
        momentum = 0.5 * momentum + (model - mean)
        model = model - momentum
    assert torch.allclose(torch.tensor(inner.momentum_vector[0]), momentum, atol=1e-5)
    assert torch.allclose(strategy.models[0], model, atol=1e-5)


@pytest.mark.parametrize(
    "inner",
    [flower.FedMedian(), flower.FedTrimmedAvg(), flower.Krum(), flower.MultiKrum(), flower.Bulyan(),
     flower.QFedAvg(client_learning_rate=0.1), flower.FedXgbBagging(), flower.FedXgbCyclic(),
     flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(), 1.0, 1.0, 2)],
    ids=lambda inner: type(inner).__name__,
)  # fmt: skip
def test_a_rule_whose_sensitivity_is_not_known_is_refused(inner):
    with pytest.raises(FieldError, match="inner"):
        wrapped(inner)


def test_a_combination_of_ones_own_is_refused_and_other_changes_are_not():
    class Mine(flower.FedAvg):
        def aggregate_train(self, server_round, replies):
            return ArrayRecord(), MetricRecord()

    class Chatty(flower.FedAdam):
        def summary(self):
            pass

    with pytest.raises(FieldError, match="Mine"):
        wrapped(Mine())
    assert wrapped(Chatty()).rounds == 3


def test_several_models_are_refused():
    with pytest.raises(FieldError, match="several models"):
        wrapped(flower.FedAvg(), build("group", hypotheses=2))
