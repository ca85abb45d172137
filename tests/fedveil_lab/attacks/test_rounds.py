"""Marked content searched in releases: the steps of region level, several rounds together, what a server must know."""

from dataclasses import replace

import pytest
import torch

from fedveil.engines import Execution, Federation
from fedveil.errors import FieldError
from fedveil.learning import ClientData, LocalTraining
from fedveil.learning.regions import blanked, marks_of
from fedveil.methods import build
from fedveil_lab.attacks.inversion import SERVER, play_round
from fedveil_lab.attacks.inversion.knowledge import Marking
from fedveil_lab.attacks.inversion.matching import Matching
from fedveil_lab.attacks.inversion.rounds import _Together, by_distance, require_rounds
from fedveil_lab.attacks.observation import ThreatError
from inversion_kit import digits, model

X, Y = digits()
MASKS = torch.zeros(1, 8, 8, dtype=torch.bool)
MASKS[:, 5:] = True
CLIENT = ClientData(X[:1], Y[:1], masks=MASKS)


def captured(noise, seed=0, unit="region"):
    """The release of one step on one image, and what the server knows of it."""
    method = build("record", unit=unit, examples=1, clip=0.05, noise_multiplier=noise)
    federation = Federation(
        model=model("mlp", X, hidden=(8,), activation="tanh"),
        clients=[CLIENT, CLIENT],
        method=method,
        local=LocalTraining(batch_size=1, lr=0.1),
        execution=Execution(single_examples=True),
        seed=seed,
    )
    one = play_round(federation, reference=X[100:140])[0]
    hidden = blanked(CLIENT, 0.0)
    marking = Marking(marks_of(CLIENT), 0.0, unit == "region", hidden.x, hidden.y)
    return one.received, replace(one.known, labels=CLIENT.y, marking=marking)


def misfit(received, known):
    """How far the simulated update of the true image lies from the release, as a share of the latter."""
    simulated = Matching(received, known).update(X[:1].double()[None], Y[:1])
    return float((simulated - received.update).norm() / received.update.norm())


def test_the_simulated_step_of_region_level_is_the_one_that_clients_take():
    received, known = captured(1e-6)
    assert misfit(received, known) < 1e-3
    # the mistake that this finds: the whole gradient clipped, as at record level
    whole = replace(known, marking=replace(known.marking, differences=False))
    assert misfit(received, whole) > 0.1
    # inversion, which does not know the rest of the image, simulates that step too
    unknown = replace(known, marking=replace(known.marking, x=None, y=None))
    assert misfit(received, unknown) < 1e-3


def test_the_simulated_step_of_record_level_clips_the_whole_gradient():
    received, known = captured(1e-6, unit="record")
    assert misfit(received, known) < 1e-3
    wrong = replace(known, marking=replace(known.marking, differences=True))
    assert misfit(received, wrong) > 0.1


def test_marked_content_is_found_without_noise_and_the_rest_is_what_was_known():
    found = by_distance([captured(1e-6)], steps=60)
    marks = MASKS[:, None]
    assert torch.equal(found[~marks], X[:1].double()[~marks])
    assert float((found - X[:1])[marks].abs().mean()) < 0.02


def test_releases_with_noise_add_up_to_one_of_less_noise():
    one, two = captured(1.0, seed=0), captured(1.0, seed=1)
    alone = [Matching(*release).weight for release in (one, two)]
    together = _Together([one, two], 0, torch.float64)
    assert 1 / together._each[0].weight == pytest.approx(1 / alone[0] + 1 / alone[1])
    assert sum(together._shares) == pytest.approx(1.0)
    silent = _Together([one, captured_without_noise()], 0, torch.float64)
    assert silent._shares == [0.0, 1.0]
    assert silent._each[0].weight == 0.0


def captured_without_noise():
    received, known = captured(1e-6)
    return received, replace(known, noise=0.0)


def test_a_server_that_may_not_know_the_rest_is_refused():
    release = captured(1.0)
    with pytest.raises(ThreatError, match="unmarked"):
        require_rounds([release], SERVER)
    with pytest.raises(FieldError, match="releases"):
        require_rounds([], SERVER)
