"""The same rule gives the same model under Flower's strategies, on the same replies; where it does not, we say how."""

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from core_kit import combine
from fedveil.aggregation import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedOpt,
    FedProx,
    FedYogi,
    Krum,
    MultiKrum,
    TrimmedMean,
)
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import GlobalDP, Plain

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower

LAYOUT = Layout.from_shapes({"a.weight": (3, 4), "a.bias": (4,), "scale": ()}, torch.float64)
COUNTS = [10, 40, 25, 25]


def message(model, count):
    """A reply as a strategy sees it (a real Message can only be made inside Flower's runtime)."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

    arrays = ArrayRecord(
        {n: Array(np.asarray(v.numpy())) for n, v in LAYOUT.unflatten(model).items()}
    )
    content = RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({"num-examples": count, "loss": 1.0})}
    )
    return SimpleNamespace(
        content=content, has_error=lambda: False, metadata=SimpleNamespace(src_node_id=count)
    )


def flower_round(strategy, theta, updates, round_):
    from flwr.app import Array, ArrayRecord

    if hasattr(strategy, "current_arrays"):  # configure_train notes them before it asks the clients
        noted = {n: v.numpy() for n, v in LAYOUT.unflatten(theta).items()}
        if type(strategy).__name__ == "FedAvgM":
            noted = ArrayRecord({n: Array(np.asarray(v)) for n, v in noted.items()})
        strategy.current_arrays = noted
    replies = [message(theta + u, c) for u, c in zip(updates, COUNTS, strict=True)]
    arrays, _ = strategy.aggregate_train(round_, replies)
    return LAYOUT.flatten({n: torch.from_numpy(np.array(a.numpy())) for n, a in arrays.items()})


def rounds(n=5):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, len(COUNTS), LAYOUT.size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "rule"),
    [("FedAvg", FedAvg(weighting="examples")), ("FedMedian", FedMedian())],
    ids=["mean", "median"],
)
def test_mean_and_median_agree_over_rounds(name, rule):
    from flwr.serverapp import strategy

    theirs, side = getattr(strategy, name)(), Plain(rule)
    ours = theta = torch.zeros(LAYOUT.size, dtype=torch.float64)
    state = side.init(LAYOUT.size, torch.float64)
    for number, updates in enumerate(rounds(), start=1):
        theta = flower_round(theirs, theta, updates, number)
        combined = combine(side, ours, updates, counts=COUNTS, layout=LAYOUT, state=state)
        ours, state = combined.models[0], combined.state
        torch.testing.assert_close(ours, theta, rtol=1e-12, atol=1e-12)


RULES = {
    "FedAvgM": (
        FedAvgM(weighting="examples", lr=0.3, momentum=0.5),
        {"server_learning_rate": 0.3, "server_momentum": 0.5},
    ),
    "FedOpt": (
        FedOpt(weighting="examples"),
        {"eta": 0.01},
    ),  # Flower's base class does not use its rate: it is FedAvg
    "FedProx": (FedProx(weighting="examples", mu=0.5), {"proximal_mu": 0.5}),
    "FedAdagrad": (FedAdagrad(weighting="examples", lr=0.1), {"eta": 0.1}),
    "FedYogi": (FedYogi(weighting="examples", lr=0.01), {"eta": 0.01}),
    "FedTrimmedAvg": (TrimmedMean(0.25), {"beta": 0.25}),
    "Krum": (
        Krum(),
        {"num_malicious_nodes": 0},
    ),  # with one neighbour each, mutual neighbours would tie
}


@pytest.mark.parametrize("name", RULES)
def test_the_other_rules_agree_over_rounds(name):
    from flwr.serverapp import strategy

    rule, options = RULES[name]
    home = import_module("flwr.serverapp.strategy.fedopt") if name == "FedOpt" else strategy
    theirs, side = getattr(home, name)(**options), Plain(rule)
    ours = theta = torch.zeros(LAYOUT.size, dtype=torch.float64)
    state = side.init(LAYOUT.size, torch.float64)
    for number, updates in enumerate(rounds(), start=1):
        theta = flower_round(theirs, theta, updates, number)
        combined = combine(side, ours, updates, counts=COUNTS, layout=LAYOUT, state=state)
        ours, state = combined.models[0], combined.state
        torch.testing.assert_close(ours, theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["FedAvg", "FedAvgM", "FedOpt", "FedYogi"])
def test_with_noise_the_rules_step_as_flower_s_former_strategies_do_inside_its_wrapper(
    name, monkeypatch
):
    from flwr import common
    from flwr.server import strategy
    from flwr.server.strategy import dp_fixed_clipping

    def add(parameters, multiplier, clip, clients):
        [values] = common.parameters_to_ndarrays(parameters)
        return common.ndarrays_to_parameters(
            [
                values
                + multiplier * clip / clients * draws.normal(len(values), torch.float64).numpy()
            ]
        )

    rule, options = {"FedAvg": (FedAvg(weighting="examples"), {}), **RULES}[name]
    former = {k: v for k, v in options.items() if name != "FedOpt"}
    first = np.zeros(LAYOUT.size)
    inner = getattr(strategy, name)(
        initial_parameters=common.ndarrays_to_parameters([first]), **former
    )
    theirs = strategy.DifferentialPrivacyServerSideFixedClipping(inner, 2.0, 5.0, len(COUNTS))
    draws = ReproducibleSource(0)
    monkeypatch.setattr(dp_fixed_clipping, "add_gaussian_noise_to_params", add)
    optimised = not rule.identity_step
    side = GlobalDP(rule, noise_multiplier=2.0, clip=5.0, order="printed", step_from="own")
    ours, source, state = (
        torch.from_numpy(first),
        ReproducibleSource(0),
        side.init(LAYOUT.size, torch.float64),
    )
    for number, updates in enumerate(rounds(), start=1):
        theirs.current_round_params = [ours.numpy().copy()]  # what configure_fit notes
        replies = [[(theirs.current_round_params[0] + u.numpy())] for u in updates]
        results = [
            (
                None,
                common.FitRes(
                    common.Status(common.Code.OK, ""), common.ndarrays_to_parameters(r), count, {}
                ),
            )
            for r, count in zip(replies, COUNTS, strict=True)
        ]
        parameters, _ = theirs.aggregate_fit(number, results, [])
        combined = combine(
            side, ours, updates, counts=COUNTS, layout=LAYOUT, state=state, source=source
        )
        ours, state = combined.models[0], combined.state
        flower = torch.from_numpy(common.parameters_to_ndarrays(parameters)[0])
        torch.testing.assert_close(
            ours, flower, rtol=1e-6, atol=1e-6
        )  # Flower clips by a factor of 32 bits
    released = replace(side, step_from="released")
    other = combine(
        released,
        ours,
        updates,
        counts=COUNTS,
        layout=LAYOUT,
        state=state,
        source=ReproducibleSource(1),
    )
    again = combine(
        side, ours, updates, counts=COUNTS, layout=LAYOUT, state=state, source=ReproducibleSource(1)
    )
    assert (
        torch.equal(other.models, again.models) is not optimised
    )  # an optimiser remembers, a mean does not


def test_multikrum_selects_as_flower_does_and_averages_uniformly():
    from flwr.serverapp import strategy

    theirs = strategy.MultiKrum(num_malicious_nodes=0, num_nodes_to_select=2)
    side, pairs = Plain(MultiKrum(selected=2)), [(i, j) for i in range(4) for j in range(i)]
    theta = torch.zeros(LAYOUT.size, dtype=torch.float64)
    for number, updates in enumerate(rounds(), start=1):
        flower = flower_round(theirs, theta, updates, number)
        ours = combine(side, theta, updates, counts=COUNTS, layout=LAYOUT).models[0]
        # Flower weighs the two selected by examples, which has no sensitivity; ours are weighed alike
        chosen = next(
            p for p in pairs if torch.allclose(theta + (updates[p[0]] + updates[p[1]]) / 2, ours)
        )
        weights = torch.tensor([float(COUNTS[i]) for i in chosen], dtype=torch.float64)
        expected = theta + (weights[:, None] * updates[list(chosen)]).sum(0) / weights.sum()
        torch.testing.assert_close(flower, expected, rtol=1e-9, atol=1e-12)
        theta = flower


def test_flowers_krum_cancels_for_close_models():
    # Flower takes |x|^2 + |y|^2 - 2 x.y in the models' own type: of float32 models 1e-3 apart nothing is left of it.
    # In float64 both choose the same; in float32 ours still does, and Flower mostly another
    from flwr.app import Array, ArrayRecord, RecordDict
    from flwr.serverapp.strategy.multikrum import select_multikrum

    def flower(models):
        contents = [
            RecordDict({"arrays": ArrayRecord({"w": Array(row)})}) for row in models.numpy()
        ]
        (chosen,) = select_multikrum(contents, 3, 1)
        return next(i for i, content in enumerate(contents) if content is chosen)

    def ours(models):
        reduced = Krum(malicious=3).reduce(models, torch.full((len(models),), 1 / len(models)))
        return int((models == reduced).all(1).nonzero())

    generator, wrong = torch.Generator().manual_seed(0), 0
    for _ in range(20):
        common = 3 * torch.randn(30, generator=generator)
        models = common + 1e-3 * torch.randn(12, 30, generator=generator)
        assert ours(models) == ours(models.double()) == flower(models.double())
        wrong += flower(models) != ours(models)
    assert wrong > 5


def test_adam_differs_by_the_bias_correction_alone():
    # Flower multiplies eta by sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)) in round t; the paper (Reddi et al.,
    # Algorithm 2) and we do not. The moments are the same, so each step differs by exactly this factor.
    from flwr.serverapp import strategy

    theirs = strategy.FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3)
    side = Plain(FedAdam(weighting="examples", lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3))
    ours = theta = torch.zeros(LAYOUT.size, dtype=torch.float64)
    state = side.init(LAYOUT.size, torch.float64)
    for number, updates in enumerate(rounds(), start=1):
        after = flower_round(theirs, theta, updates, number)
        combined = combine(side, ours, updates, counts=COUNTS, layout=LAYOUT, state=state)
        factor = np.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1))
        torch.testing.assert_close(
            after - theta, factor * (combined.models[0] - ours), rtol=1e-9, atol=1e-12
        )
        if number == 1:
            assert factor == pytest.approx(0.742460, abs=1e-6)  # sqrt(.0199) / .19
        theta, ours, state = after, combined.models[0], combined.state
