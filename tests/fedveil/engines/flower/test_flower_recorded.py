"""What a Flower server stored is attacked without training anew: membership, participation and inversion."""

import runpy
from pathlib import Path

import pytest

from fedveil_lab.config import load
from fedveil_lab.games.game import play
from fedveil_lab.games.recorded import RecordedGame

pytestmark = [pytest.mark.flower, pytest.mark.slow]
FOLDER = Path(__file__).parents[4] / "examples" / "recorded"
SITES = ["local.batch_size=8", "local.lr=0.1", 'privacy={method="vanilla"}']
ONE_IMAGE = [[2] + [0] * 9, [0, 2] + [0] * 8, [0, 0, 2] + [0] * 7]  # half of them to train on


def attacked(folder, family, counts, rounds, *more):
    """Train under Flower, attack what the server stored; return verdicts, and reasons of what was not played."""
    data = [f"data.clients={len(counts)}", f"data.counts={counts}", f"rounds={rounds}"]
    changes = [*SITES, *data, *more]
    runpy.run_path(str(FOLDER / "deployed.py"))["main"](str(folder), changes)
    config = load(str(FOLDER / "sites.toml"), changes)
    found = play(RecordedGame(folder, config, attacks=(family,), replicates=1))
    reasons = {one.attack: one.reason for one in found.refused}
    return {one.attack: one for one in found.verdicts}, reasons


def test_who_was_trained_on_is_attacked(tmp_path):
    verdicts, reasons = attacked(tmp_path / "run", "membership", [[8] * 10] * 3, 2)
    played = {"membership: loss", "membership: loss-trajectory", "membership: fedmia"}
    assert played <= set(verdicts), reasons
    assert all(0 <= one.low <= one.point <= one.high <= 1 for one in verdicts.values())


def test_who_took_part_is_attacked_where_the_server_draws_its_clients(tmp_path):
    some = (tmp_path / "some", "participation", [[4] * 10] * 4, 5)
    verdicts, _ = attacked(*some, "clients_per_round=2")
    assert verdicts["participation: calibrated-loss"].n == 10
    _, reasons = attacked(tmp_path / "all", "participation", [[4] * 10] * 4, 1)
    assert "every round" in reasons["participation"]


def test_answers_of_sites_with_one_image_give_it_away(tmp_path):
    verdicts, _ = attacked(tmp_path / "run", "inversion", ONE_IMAGE, 1)
    assert verdicts["inversion: analytic"].point < 1e-3
