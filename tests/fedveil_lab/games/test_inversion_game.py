"""One round of a federation of every method, as its server receives it, inverted."""

import os
import time

import pytest
import torch

from fedveil.data import MissingDataError, load
from fedveil.engines import Execution, Federation, Shared
from fedveil.errors import FieldError
from fedveil.learning import ClientData, LocalTraining
from fedveil.methods import GroupPrivacy, Method, Plain, build
from fedveil_lab.attacks.inversion import (
    IDLG,
    SERVER,
    SPEAR,
    Analytic,
    Reconstruction,
    RunningStatistics,
    compare_inversion,
    invert,
    judge_inversion,
    play_round,
    scores,
)
from fedveil_lab.report.audits import draw_inversion, inversion_table
from inversion_kit import digits, model
from inversion_kit import release as release_of

X, Y = digits()
CLIENTS = 6
PLAIN = {
    "vanilla": {},
    "global": {"noise_multiplier": 1.0, "clip": 1.0},
    "metric": {"noise_multiplier": 1.0, "clip": 1.0},
    "group": {"noise_multiplier": 0.0},
}
STRONG = {
    "group": {"noise_multiplier": 10.0},
    "fedre": {"clip": 0.2},
    "sga-ldp": {"clip": 0.5},
    "record": {"examples": 1, "clip": 1.0, "noise_multiplier": 1.0},
}


def play(name, options, **more):
    clients = [
        ClientData(X[i : i + 1], Y[i : i + 1], X[100:140], Y[100:140]) for i in range(CLIENTS)
    ]
    values = {"model": lambda: model("mlp", X, hidden=(32,), activation="tanh"), "clients": clients}
    values |= {"shared": Shared(region=(0, 0, 4, 4), public_data=clients[0])}
    values["local"] = LocalTraining(batch_size=1, lr=0.1)
    values |= {"execution": Execution(single_examples=True)}
    return play_round(
        Federation(**{**values, **more}, method=build(name, **options)), reference=X[200:240]
    )


def judged(name, options, attack):
    units = []
    for release in play(name, options):
        found = invert(release.received, release.known, attack)
        units.append(
            scores(release.data.x, release.data.y, found, data_range=1.0, others=release.others)
        )
    return units


@pytest.fixture(scope="module")
def undefended():
    return judged("vanilla", {}, IDLG())


@pytest.mark.parametrize("name", PLAIN)
def test_central_trust_keeps_nothing_from_the_server(name):
    units = judged(name, PLAIN[name], IDLG())
    assert all(u["success"] == u["identified"] == u["labels"] == 1 for u in units)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", STRONG)
def test_local_noise_stops_the_attack_that_works_without_it(undefended, name):
    found = judge_inversion(
        IDLG(),
        name,
        judged(name, STRONG[name], IDLG(restarts=0)),
        threat=SERVER,
        undefended=undefended,
    )
    assert found.valid
    assert found.point > 0.02 > 1e-3 > found.without_defence
    assert found.n == CLIENTS


@pytest.mark.parametrize("name", STRONG)
def test_the_server_knows_clipping_and_the_size_of_the_noise(name):
    for release in play(name, STRONG[name]):
        known, told = release.known, release.known.deviations()
        # the noise dominates here, so that the update's squared length is its own
        assert float(
            release.received.update.double().square().sum() / told.square().sum()
        ) == pytest.approx(1, abs=0.15)
        layers = dict.fromkeys(
            known.layout.groups("module"), 0.2
        )  # each layer to 0.2, not the update
        assert known.clip == {"fedre": layers, "sga-ldp": 0.5}.get(name)
        assert known.example_clip == (1.0 if name == "record" else None)


def test_without_noise_none_is_told():
    assert play("group", {"noise_multiplier": 0.0})[0].known.noise == 0.0


def test_layers_are_told_apart_where_noise_differs():
    known = play("fedre", {"clip": 0.2})[0].known
    assert set(known.noise) == {"dense1", "dense2"}
    assert len(known.deviations().unique()) == 2


def test_per_example_clipping_with_little_noise_is_inverted():
    release = play("record", {"examples": 1, "clip": 0.5, "noise_multiplier": 1e-4})[0]
    found = invert(release.received, release.known, IDLG())
    assert torch.equal(found.labels, release.data.y)
    assert float((found.images - release.data.x).square().mean()) < 1e-3
    assert (
        float(
            (invert(release.received, release.known, Analytic()).images - release.data.x)
            .square()
            .mean()
        )
        < 1e-3
    )


def test_an_attacker_with_reference_images_is_never_worse_off_than_by_guessing_their_mean():
    clients = [
        ClientData(X[i : i + 1], Y[i : i + 1], X[100:140], Y[100:140]) for i in range(CLIENTS)
    ]
    noise = Method("noise", GroupPrivacy(noise_multiplier=3.0), Plain())
    federation = Federation(model=lambda: model("lenet", X), clients=clients, method=noise)
    for release in play_round(federation, reference=X[200:400]):
        found = invert(release.received, release.known, IDLG(restarts=0))
        guess = X[200:400].mean(0)
        assert float((found.images - release.data.x).square().mean()) < 1.2 * float(
            (guess - release.data.x).square().mean()
        )


def test_attacks_are_compared_each_beside_itself_without_a_defence(tmp_path):
    settings = {"none": play("vanilla", {}), "loud": play("sga-ldp", {"clip": 0.5})}
    attacks = [Analytic(), SPEAR(sweeps=3), RunningStatistics()]
    found = compare_inversion(settings, attacks, undefended="none", figure="success")
    assert [(v.attack, v.setting, v.point) for v in found.verdicts[:2]] == [
        ("analytic", "none", 1),
        ("analytic", "loud", 0),
    ]
    assert all(v.valid and v.without_defence == 1 for v in found.verdicts[:2])
    assert found.verdicts[0].replication == "image"
    assert "statistics" in found.refused["running-statistics"]
    assert torch.allclose(found.images["analytic", "none"].float(), found.originals, atol=1e-4)
    picture = draw_inversion(found, "analytic", tmp_path / "picture.png").stat()
    assert picture.st_size > 1000
    assert os.name != "posix" or picture.st_mode & 0o777 == 0o600  # it shows clients' examples
    with pytest.raises(FieldError, match="statistics"):
        draw_inversion(found, "running-statistics", tmp_path / "none.png")
    with pytest.raises(FieldError, match="settings"):
        compare_inversion(
            {"none": settings["none"], "few": settings["loud"][:2]}, [Analytic()], undefended="none"
        )


def test_what_clients_mark_as_sensitive_is_judged_apart():
    masks = torch.zeros(1, 8, 8, dtype=torch.bool)
    masks[:, :, :4] = True
    marked = [
        ClientData(X[i : i + 1], Y[i : i + 1], X[100:140], Y[100:140], masks=masks)
        for i in range(CLIENTS - 1)
    ]
    bare = ClientData(
        X[5:6], Y[5:6], X[100:140], Y[100:140], masks=torch.zeros_like(masks)
    )  # has no region
    settings = {"none": play("vanilla", {}, clients=[*marked, bare])}
    found = compare_inversion(settings, [Analytic()], undefended="none")
    details = found.verdicts[0].details
    assert details["region_mse"] < 1e-8
    assert details["rest_ssim"] > 0.99
    guess = scores(
        X[:1],
        Y[:1],
        Reconstruction(torch.cat([X[:1, ..., :4], 0 * X[:1, ..., 4:]], -1), Y[:1], 0.0),
        data_range=1.0,
        others=X[100:140],
        mask=masks,
    )
    assert guess["region_mse"] == 0
    assert guess["rest_mse"] == pytest.approx(float(X[0, 0, :, 4:].square().mean()))
    assert {"region MSE", "rest MSE"} <= set(inversion_table(found).header)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "options"),
    [("cifar10-subset", {}), ("bloodmnist", {}), ("alzheimer", {"resolution": 32})],
)
def test_real_pictures_are_reconstructed_within_ten_seconds(source, options):
    try:
        found = load(source, **options)
    except MissingDataError as error:
        pytest.skip(str(error))
    for i in range(3):
        x, y = found.x[i : i + 1], found.y[i : i + 1]
        received, known = release_of(model("lenet", x, seed=i), x, y)
        began = time.process_time()
        images = invert(received, known, IDLG(restarts=0)).images
        assert time.process_time() - began < 10
        assert float((images - x).square().mean()) < 1e-3
