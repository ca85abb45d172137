"""Warnings: each trouble is told once, with its figure, under every engine; never from private data to a server."""

import logging
import warnings

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.engines import Execution

X, Y = torch.randn(120, 20, generator=torch.Generator().manual_seed(0)), torch.arange(120) % 2
X = X + Y[:, None]
DEALT = [(X[i : i + 30], Y[i : i + 30], X[i : i + 30], Y[i : i + 30]) for i in range(0, 120, 30)]


def told(method=None, rounds=2, clients=DEALT, made=fv.Federation, **options):
    lines = []
    arguments = {
        "model": lambda: nn.Linear(20, 2),
        "clients": clients,
        "method": method,
        "seed": 1,
        **options,
    }
    federation = made(**arguments, execution=Execution(tell=lines.append))
    federation.run(rounds=rounds)
    assert list(federation.warnings.said.values()) == lines
    return federation.warnings.said


CASES = {
    "hopeless noise": ("noise", {"method": fv.GlobalDP(noise_multiplier=40.0, clip=1.0)}),
    "hopeless noise without trust": (
        "noise",
        {"method": fv.SGALDP(epsilon_min=1.0, epsilon_max=1.0, clip=1.0)},
    ),
    "a far clip": ("clip", {"method": fv.GlobalDP(noise_multiplier=1.0, clip=50.0)}),
    "a loss that explodes": ("trained", {"local": fv.LocalTraining(lr=2000.0)}),
    "rounds beyond the plan": (
        "planned",
        {"method": fv.GlobalDP(epsilon=8, delta=1e-5, rounds=1, clip=1.0)},
    ),
    "a trimmed mean of everybody": (
        "trimmed",
        {"method": fv.methods.build("vanilla", fv.TrimmedMean(0.2))},
    ),
}


@pytest.mark.parametrize("engine", ["embedded", "flower"])
@pytest.mark.parametrize("case", CASES)
def test_each_trouble_is_told_once(case, engine):
    kind, options = CASES[case]
    made = fv.Federation
    if engine == "flower":
        pytest.importorskip("flwr")
        from fedveil.flower import FlowerFederation

        made = FlowerFederation
    assert kind in told(made=made, **options)


def test_a_trimmed_mean_that_cuts_off_somebody_is_told_nothing():
    assert "trimmed" not in told(fv.methods.build("vanilla", fv.TrimmedMean(0.25)))


def test_a_sensible_run_says_nothing():
    clients = [
        (x + 1e-4 * i, y) for i, (x, y, *_) in enumerate(DEALT * 10)
    ]  # nobody holds what another holds
    assert not told(fv.GlobalDP(epsilon=8, delta=1e-5, rounds=2, clip=0.15), clients=clients)
    assert not told(None, local=fv.LocalTraining(lr=0.1, epochs=3))


def test_data_are_looked_at_before_anything_is_trained():
    one_class = [(x[y == i % 2], y[y == i % 2]) for i, (x, y, *_) in enumerate(DEALT)]
    with pytest.warns(UserWarning, match="single class"):
        fv.Federation(model=nn.Linear(20, 2), clients=one_class)
    with pytest.warns(UserWarning, match=r"1 of 5 clients.*client 4"):
        fv.Federation(model=nn.Linear(20, 2), clients=[*DEALT, (X[:0], Y[:0])])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fv.Federation(model=nn.Linear(20, 2), clients=DEALT)
        regression = [(x, x[:, 0]) for x, *_ in DEALT]
        fv.Federation(
            model=nn.Linear(20, 1), clients=regression, local=fv.LocalTraining(loss="mse")
        )


@pytest.mark.flower
def test_under_local_trust_a_server_is_told_nothing_that_follows_data(caplog):
    """Two federations whose clients hold other data, one of which diverges: the server's own log is the same."""
    pytest.importorskip("flwr")
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp

    from fedveil.engines.warning import Warnings
    from fedveil.flower import FedVeilStrategy, learner_client_app, run_in_process
    from fedveil.learning.learner import Learner

    method, model = (
        fv.methods.build("sga-ldp", epsilon_min=50.0, epsilon_max=50.0, clip=1.0),
        nn.Linear(20, 2),
    )
    layout = fv.Layout.from_module(model)

    def played(scale):
        node, lines = [], caplog.records
        clients = [fv.learning.ClientData(scale * x, y) for x, y, *_ in DEALT]
        learner = Learner(model, layout, fv.LocalTraining(lr=1.0))
        watch = Warnings(method, layout, node.append)
        app = learner_client_app(learner, clients, method, seed=0, ledger="run", warnings=watch)
        server = ServerApp()

        @server.main()
        def main(grid, context):
            FedVeilStrategy(method, layout, rounds=1, seed=0).start(
                grid, ArrayRecord(model.state_dict())
            )

        lines.clear()
        with caplog.at_level(logging.WARNING, logger="flwr"):
            run_in_process(server, app, 4)
        return [r.getMessage() for r in lines if r.levelno >= logging.WARNING], node

    (quiet, _), (loud, node) = played(1.0), played(1e4)
    assert quiet == loud
    assert any("diverges" in line for line in node)


def test_a_run_and_a_comparison_keep_what_was_told(tmp_path):
    config = fv.config.load(
        "digits-compare", ["rounds=1", "data.clients=4", "privacy.noise_multiplier=200.0"]
    )
    noisy = next(s for s in fv.compare(config) if s.values["method"] == "global")
    assert any("hopeless" in line for line in noisy.values["data"]["warnings"])
