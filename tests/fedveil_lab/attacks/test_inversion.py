"""Every inversion attack brings examples back where it should, and fails or refuses where it must."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import LocalTraining
from fedveil_lab.attacks import Received, ThreatError, ThreatModel
from fedveil_lab.attacks.inversion import (
    DLG,
    IDLG,
    INVERSIONS,
    SERVER,
    SPEAR,
    Analytic,
    Cosine,
    EstimatedStatistics,
    LocalSteps,
    RunningStatistics,
    SeeThrough,
    ServerKnowledge,
    invert,
    recover_labels,
)
from fedveil_lab.attacks.inversion.matching import Matching
from fedveil_lab.attacks.inversion.metrics import labels_recovered, matched, mse
from inversion_kit import digits, model, release

X, Y = digits()


def error(attack, received, known, x, threat=SERVER):
    found = invert(received, known, attack, threat)
    images = found.images[matched(x, found.images)]
    return float(mse(x, images).max()), found


@pytest.mark.parametrize(
    ("options", "clip"),
    [
        ({}, None),
        ({"prox": 0.3}, 0.05),
        ({"epochs": 2}, {"dense1": 0.02, "dense2": 0.5}),
        ({"batch_size": 2}, None),
    ],
)
def test_the_simulated_update_is_that_of_the_trainer(options, clip):
    net = model("mlp", X, activation="tanh").double()
    local = LocalTraining(**{"batch_size": 5, "lr": 0.1, **options})
    x, y = X[:1].double(), Y[:1]
    received, known = release(net, x, y, local=local, clip=clip)
    assert torch.allclose(
        Matching(received, known).update(x[None], y), received.update, atol=1e-7, rtol=1e-5
    )


def test_examples_clipped_one_by_one_are_simulated_so():
    net = model("mlp", X, activation="tanh").double()
    received, known = release(net, X[:4].double(), Y[:4], example_clip=0.01)
    found = Matching(received, known).update(X[None, :4].double(), Y[:4])
    rows = [
        Matching(received, known).update(X[None, i : i + 1].double(), Y[i : i + 1])
        for i in range(4)
    ]
    assert all(
        float(r.norm()) == pytest.approx(0.001) for r in rows
    )  # the learning rate times the bound
    assert torch.allclose(found, torch.stack(rows).mean(0))


def test_a_dense_first_layer_gives_the_example_away_whatever_the_clipping():
    for clip in (None, 1e-3):
        received, known = release(model("mlp", X), X[:1], Y[:1], clip=clip)
        found, result = error(Analytic(), received, known, X[:1])
        assert found < 1e-8
        assert torch.equal(result.labels, Y[:1])


def test_all_rows_of_a_dense_layer_speak_against_noise():
    wide, narrow = (
        error(Analytic(), *release(model("mlp", X, hidden=(width,)), X[:1], Y[:1], nu=0.1), X[:1])[
            0
        ]
        for width in (512, 8)
    )
    assert wide < 0.01
    assert wide < narrow / 3


@pytest.mark.few(0)
def test_idlg_reconstructs_at_least_95_percent_of_digits():
    errors = []
    for i in range(20):
        net = model("small_cnn", X, seed=i, channels=(8,), dense=32, activation="sigmoid")
        received, known = release(net, X[i : i + 1], Y[i : i + 1])
        found, result = error(IDLG(), received, known, X[i : i + 1])
        assert torch.equal(result.labels, Y[i : i + 1])
        errors.append(found)
    assert sum(e < 1e-3 for e in errors) >= 19


def test_dlg_finds_the_label_too():
    received, known = release(model("mlp", X, activation="tanh"), X[3:4], Y[3:4])
    found, result = error(DLG(), received, known, X[3:4])
    assert found < 1e-6
    assert torch.equal(result.labels, Y[3:4])


def test_clipping_stops_dlg_only_if_it_does_not_know_of_it():
    net = model("small_cnn", X).double()
    received, known = release(net, X[:1].double(), Y[:1], clip=0.01)
    naive, _ = error(IDLG(clipping=False, restarts=0), received, known, X[:1])
    aware, _ = error(IDLG(), received, known, X[:1])
    assert naive > 0.1
    assert aware < 2e-8


def test_per_layer_clipping_is_known_too():
    net = model("mlp", X, activation="tanh")
    received, known = release(net, X[:1], Y[:1], clip={"dense1": 0.01, "dense2": 0.02})
    assert error(IDLG(), received, known, X[:1])[0] < 1e-6


def test_cosine_inverts_a_relu_network_and_ignores_clipping():
    net = model("small_cnn", X, activation="relu", channels=(16,))
    received, known = release(net, X[2:3], Y[2:3], clip=0.01)
    assert error(Cosine(steps=300, variation=1e-4), received, known, X[2:3])[0] < 5e-3


def test_knowing_of_the_noise_helps():
    """The same release, the noise known or not: the prior that the noise asks for wins."""
    x = torch.nn.functional.avg_pool2d(
        torch.rand(1, 1, 40, 40, generator=torch.Generator().manual_seed(0)), 13, 1
    )
    x = (x - x.min()) / (x.max() - x.min())  # smooth pictures, as photographs are
    net = model("small_cnn", x, activation="tanh", channels=(16, 16))
    received, known = release(net, x, Y[:1], nu=0.1)
    aware, _ = error(IDLG(restarts=0, steps=50), received, known, x)
    naive, _ = error(IDLG(restarts=0, steps=50), received, replace(known, noise=0.0), x)
    assert aware < naive / 2


@pytest.mark.parametrize("clip", [None, 0.01])
def test_label_counts_of_a_batch(clip):
    generator = torch.Generator().manual_seed(0)
    shares = []
    for i in range(10):
        received, known = release(
            model("mlp", X, seed=i), X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8], clip=clip
        )
        shares.append(
            labels_recovered(Y[8 * i : 8 * i + 8], recover_labels(received, known, generator))
        )
    assert sum(shares) / 10 > 0.95


def test_labels_leak_after_images_stop():
    found = []
    for i in range(20):
        received, known = release(
            model("mlp", X, seed=i), X[i : i + 1], Y[i : i + 1], nu=1.0, seed=i
        )
        found.append(int(recover_labels(received, known, torch.Generator())) == int(Y[i]))
    assert sum(found) >= 18


def test_spear_recovers_a_batch_exactly_from_a_float64_release():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(8, 1, 28, 28, generator=generator, dtype=torch.float64), torch.arange(8)
    net = model("mlp", x, hidden=(256,)).double()
    received, known = release(net, x, y)
    assert error(SPEAR(), received, known, x)[0] < 1e-18


def test_spear_survives_a_released_float32_model_with_clipping_and_some_noise():
    x, y = X[:8], Y[:8]
    received, known = release(model("mlp", x, hidden=(256,)), x, y, clip=0.01)
    assert error(SPEAR(), received, known, x)[0] < 1e-5
    received, known = release(model("mlp", x, hidden=(256,)), x, y, nu=0.003)
    assert error(SPEAR(), received, known, x)[0] < 1e-2


def test_spear_refuses_a_batch_wider_than_the_layer():
    received, known = release(model("mlp", X, hidden=(8,)), X[:8], Y[:8])
    with pytest.raises(FieldError, match="examples"):
        invert(received, known, SPEAR())


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )

    def forward(self, x):
        return self.parts(x)


@pytest.mark.slow
def test_normalisation_statistics_help_against_noise():
    x, y, net = X[:4], Y[:4], Normalised()
    received, known = release(net, x, y, labels=y, reference=X[100:200], nu=0.3)
    with torch.no_grad():
        inputs = net.parts[0](x)
    net.parts[1].running_mean.copy_(inputs.mean((0, 2, 3)))
    net.parts[1].running_var.copy_(inputs.var((0, 2, 3), correction=0))
    mighty = ThreatModel("server that knows it all", SERVER.capabilities | {"statistics", "labels"})
    steps = {"steps": 200, "variation": 1e-4}
    plain, _ = error(Cosine(**steps), received, known, x, mighty)
    running, _ = error(RunningStatistics(**steps), received, known, x, mighty)
    estimated, _ = error(EstimatedStatistics(**steps), received, known, x, mighty)
    assert running < plain / 5
    assert estimated < plain / 5
    with pytest.raises(ThreatError, match="statistics"):
        invert(
            received,
            known,
            RunningStatistics(),
            ThreatModel("server", SERVER.capabilities | {"labels"}),
        )
    other, knows = release(model("small_cnn", X), X[:1], Y[:1], reference=X[100:200])
    with pytest.raises(FieldError, match="normalisation"):
        invert(other, knows, EstimatedStatistics())


@pytest.mark.slow
def test_several_epochs_of_several_steps_are_inverted():
    local = LocalTraining(epochs=3, batch_size=1, lr=0.05)
    net = model("mlp", X, activation="tanh", hidden=(32,)).double()
    received, known = release(net, X[:2].double(), Y[:2], local=local)
    simulated, _ = error(LocalSteps(), received, known, X[:2])
    assert simulated < 0.02


@pytest.mark.slow
def test_a_group_of_seeds_agrees_on_a_batch():
    net = model("small_cnn", X, activation="tanh", channels=(32,))
    received, known = release(net, X[:4], Y[:4])
    grouped, _ = error(SeeThrough(steps=150, variation=1e-4, group=2), received, known, X[:4])
    assert grouped < 0.03


@pytest.mark.parametrize("name", INVERSIONS)
def test_a_release_that_tells_nothing_is_refused_by_every_attack(name):
    net = model("mlp", X)
    layout = Layout.from_module(net)
    start = layout.read(net)
    known = ServerKnowledge(model=net, layout=layout, local=LocalTraining(), shape=(1, 8, 8))
    threat = ThreatModel("server", SERVER.capabilities | {"statistics"})
    with pytest.raises(FieldError, match="nothing to invert"):
        invert(Received(1, 0, start[None], start.clone()), known, INVERSIONS[name](), threat)
    with pytest.raises(FieldError, match="NaN"):
        invert(Received(1, 0, start[None], start * torch.nan), known, INVERSIONS[name](), threat)
    with pytest.raises(ThreatError, match="client models"):
        invert(
            Received(1, 0, start[None], start + 1),
            known,
            INVERSIONS[name](),
            ThreatModel("client", frozenset()),
        )


def test_known_labels_need_the_capability():
    received, known = release(model("mlp", X), X[:1], Y[:1], labels=Y[:1])
    with pytest.raises(ThreatError, match="labels"):
        invert(received, known, Analytic())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("examples", 0),
        ("labels", torch.tensor([1, 2])),
        ("clip", -1.0),
        ("noise", float("nan")),
        ("pixels", (1.0, 0.0)),
        ("local", LocalTraining(optimizer="adam")),
        ("noise", {"dense9": 1.0}),
        ("reference", torch.zeros(3, 5)),
    ],
)
def test_knowledge_that_does_not_fit_is_refused(field, value):
    net = model("mlp", X)
    values = {
        "model": net,
        "layout": Layout.from_module(net),
        "local": LocalTraining(),
        "shape": (1, 8, 8),
    }
    with pytest.raises(FieldError, match=field):
        ServerKnowledge(**{**values, field: value})


def test_a_model_that_does_not_start_dense_is_refused_by_the_dense_attacks():
    received, known = release(model("small_cnn", X), X[:1], Y[:1])
    for attack in (Analytic(), SPEAR()):
        with pytest.raises(FieldError, match="dense"):
            invert(received, known, attack)
