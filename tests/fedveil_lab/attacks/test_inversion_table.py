"""All attacks against noise of several lengths, on real images: the table and the picture of the family.

    make slow, or: python -m pytest -m "slow and data" tests/fedveil_lab/attacks/test_inversion_table.py

With FEDVEIL_TABLES=FOLDER the figures are written there, as CSV and PNG.
"""

import csv
import os
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from fedveil.data import MissingDataError, load
from fedveil.learning import LocalTraining, build_model
from fedveil_lab.attacks import ThreatModel
from fedveil_lab.attacks.inversion import (
    DLG,
    IDLG,
    SERVER,
    SPEAR,
    Analytic,
    Cosine,
    EstimatedStatistics,
    LocalSteps,
    RunningStatistics,
    SeeThrough,
    compare_inversion,
)
from fedveil_lab.report.audits import draw_inversion
from inversion_kit import noised

NOISE = (0.0, 0.001, 0.01, 0.1, 1.0, 3.0)
MIGHTY = ThreatModel(
    "server that knows normalisation statistics", SERVER.capabilities | {"statistics"}
)


class Normalised(nn.Sequential):
    """A ReLU network with batch normalisation."""

    def __init__(self, shape):
        super().__init__(
            nn.Conv2d(shape[0], 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * shape[1] * shape[2], 10),
        )


def small(activation):
    return lambda shape: build_model(
        "small_cnn", input_shape=shape, outputs=10, seed=0, activation=activation
    )


def dense(hidden, activation="relu"):
    return lambda shape: build_model(
        "mlp", input_shape=shape, outputs=10, seed=0, hidden=(hidden,), activation=activation
    )


def lenet(shape):
    return build_model("lenet", input_shape=shape, outputs=10, seed=0)


# attack -> (the attack, its model, images a client, epochs, batch)
CASES = {
    "analytic": (Analytic(), dense(256), 1, 1, 1),
    "dlg": (DLG(restarts=0), lenet, 1, 1, 1),
    "idlg": (IDLG(restarts=0), lenet, 1, 1, 1),
    "cosine": (Cosine(steps=400, variation=3e-4), small("relu"), 1, 1, 1),
    "running-statistics": (RunningStatistics(steps=200), Normalised, 2, 1, 2),
    "estimated-statistics": (EstimatedStatistics(steps=200), Normalised, 2, 1, 2),
    "local-steps": (LocalSteps(restarts=0, steps=150), dense(128, "tanh"), 4, 2, 2),
    "see-through": (SeeThrough(steps=200, group=2), small("tanh"), 4, 1, 4),
    "spear": (SPEAR(), dense(256), 8, 1, 8),
}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("source", ["digits", "cifar10-subset", "mnist-by-writer"])
@pytest.mark.parametrize("name", CASES)
def test_noise_ends_every_attack_and_none_fails_without_it(name, source):
    try:
        found = load(source)
    except MissingDataError as error:
        pytest.skip(str(error))
    attack, build, images, epochs, batch = CASES[name]
    torch.manual_seed(0)
    net = build(found.input_shape)
    local = LocalTraining(epochs=epochs, batch_size=batch, lr=0.1)
    clients = 8 if name in ("analytic", "spear") else 4
    settings = {f"nu = {nu:g}": noised(net, found, clients, images, local, nu) for nu in NOISE}
    threat = MIGHTY if name == "running-statistics" else SERVER
    began = time.process_time()
    result = compare_inversion(settings, [attack], undefended="nu = 0", threat=threat)
    seconds = (time.process_time() - began) / len(NOISE) / clients
    assert not result.refused
    if folder := os.environ.get("FEDVEIL_TABLES"):
        write(Path(folder), source, result, seconds)
        draw_inversion(result, name, Path(folder) / f"{source}-{name}.png")
    first, last = result.verdicts[0], result.verdicts[-1]
    assert first.valid
    assert first.point < last.point / 2
    assert last.details["success"] == 0


def write(folder, source, result, seconds):
    columns = (
        "mse",
        "psnr",
        "ssim",
        "success",
        "identified",
        "labels",
        "mean_image",
        "random_image",
    )
    with (folder / "inversion.csv").open("a", newline="") as file:
        writer = csv.writer(file)
        for v in result.verdicts:
            figures = [f"{v.details.get(c, float('nan')):.4g}" for c in columns]
            bounds = [f"{x:.4g}" for x in (v.low, v.high)]
            writer.writerow(
                [
                    source,
                    v.attack,
                    v.setting,
                    v.n,
                    v.replication,
                    *figures,
                    *bounds,
                    v.valid,
                    f"{seconds:.2f}",
                ]
            )
