"""A round whose models do not fit into memory is refused with the numbers; one that adds them as they come is not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.engines import memory
from fedveil.engines.memory import require_room
from fedveil.errors import FieldError
from fedveil.methods import build

WIDE = 3_000
SHARES = build(
    "record", examples=4, noise_multiplier=1.0, clip=0.5, sum="secure", least_sites=3, lr=0.1
).server


def network():
    torch.manual_seed(0)
    return nn.Linear(WIDE, 12)


def federation(method, aggregator=None, **options):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(4, WIDE, generator=generator), torch.tensor([0, 1, 2, 3])
    return fv.Federation(
        model=network,
        clients=[(x + partition, y) for partition in range(20)],
        method=build(method, aggregator, **options),
        local=fv.LocalTraining(lr=0.1),
        seed=1,
        execution=fv.Execution(trainer="sequential", tell=lambda text: None),
    )


@pytest.fixture
def scarce(monkeypatch):
    """A megabyte is free; 20 models are 2.7."""
    monkeypatch.setattr(memory, "WORTH_ASKING", 0)
    monkeypatch.setattr(memory, "available", lambda: 1 << 20)


@pytest.mark.usefixtures("scarce")
@pytest.mark.parametrize("aggregator", [fv.FedAvg(), fv.aggregation.FedMedian()])
def test_models_that_do_not_fit_are_refused_with_the_number_before_training(aggregator):
    with pytest.raises(FieldError) as refused:
        federation("vanilla", aggregator).run(1)
    assert refused.value.field == "clients_per_round"
    assert refused.value.value == 20
    assert f"{WIDE * 12 + 12:,}" in str(refused.value)


@pytest.mark.usefixtures("scarce")
def test_nobody_is_charged_for_a_round_that_does_not_fit():
    refused = federation("sga-ldp", clip=0.5)
    with pytest.raises(FieldError, match="clients_per_round"):
        refused.run(1)
    assert not any(refused.parties.party(partition).ledger.entries for partition in range(20))


@pytest.mark.usefixtures("scarce")
def test_models_that_are_added_as_they_come_need_no_room():
    run = federation("global", noise_multiplier=1.0, clip=1.0).run(1)
    assert len(run.rounds) == 1


@pytest.mark.parametrize(
    ("server", "copies", "needed"),
    [
        (build("vanilla").server, 1, 720),  # 2 models of 40 bytes, and 16 of room
        (build("vanilla").server, 2, 800),
        (build("vanilla", fv.FedMedian()).server, 1, 720),
        (build("vanilla", fv.Krum(0)).server, 1, 800),
        (build("global", fv.Krum(0), noise_multiplier=1.0).server, 1, 880),
        (build("metric").server, 1, 880),
        (build("metric", fv.Krum(0)).server, 1, 960),
        (SHARES, 1, 1440),
    ],
)
def test_answers_count_as_often_as_they_are_held(server, copies, needed, monkeypatch):
    monkeypatch.setattr(memory, "WORTH_ASKING", 0)
    models = torch.zeros(1, 10)
    monkeypatch.setattr(memory, "available", lambda: needed)
    require_room(2, models, server, copies)
    monkeypatch.setattr(memory, "available", lambda: needed - 1)
    with pytest.raises(FieldError, match="clients_per_round"):
        require_room(2, models, server, copies)


def test_what_is_free_is_told_and_less_under_a_limit(monkeypatch, tmp_path):
    free = memory.available()
    if free is None:
        pytest.skip("this system does not tell")
    assert free > 1 << 20
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    assert memory.available() == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() > 1 << 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_no_combining_takes_more_than_the_server_counts():
    script = Path(__file__).with_name("combining_peaks.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert len(measured) >= 30
    short = {name: (peak, counted) for name, (peak, counted) in measured.items() if peak > counted}
    assert not short
