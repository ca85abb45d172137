"""Rounds that FLARE's server keeps on request: what is kept, what is refused, and that `audit --recorded` reads it."""

from itertools import pairwise

import flare_needed  # noqa: F401
import pytest
import torch
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from torch import nn

import fedveil as fv
from fedveil.evidence import kept_rounds
from fedveil.evidence.kept import FOLDER
from fedveil_lab.config import parse
from fedveil_lab.games.game import play
from fedveil_lab.games.recorded import RecordedGame
from fedveil_lab.runs.prepare import prepare
from flare_kit import JOB, ROUNDS, SITES, Trainer, embedded, learner, run, sites_of

pytestmark = pytest.mark.nvflare
GLOBAL = {"noise_multiplier": 0.01}
BOTH = ["models", "updates"]
FIRST = [
    [6] * 10,
    [5] * 10,
    [4] * 10,
]  # digits of each class that a site holds, half of them to train on
SITES_DATA = {
    "name": "digits",
    "clients": 3,
    "partition": "counts",
    "counts": FIRST,
    "holdout": 0.5,
}


ONE_IMAGE = {
    **SITES_DATA,
    "counts": [[2] + [0] * 9, [0, 2] + [0] * 8, [0, 0, 2] + [0] * 7],
}  # a site trains on one image


def net(input_shape, outputs):
    """Make the network of the kit under the laboratory's names of its parts."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.LeakyReLU(), nn.Linear(6, outputs))


def folder_of(tmp_path):
    return tmp_path / "server" / JOB / "fedveil"


def model_of(answer):
    """Return the model [d] of a site's answer."""
    arrays = FLModelUtils.from_shareable(answer).params
    return learner().layout.flatten({n: torch.as_tensor(a).clone() for n, a in arrays.items()})


def test_the_kept_rounds_are_the_models_and_answers_that_were_sent(tmp_path):
    sites = sites_of(tmp_path, "vanilla")
    found = run(tmp_path, sites, keep=BOTH)
    expected = fv.Federation(**embedded("vanilla")).run(ROUNDS)
    kept = kept_rounds(folder_of(tmp_path))
    assert [one.number for one in kept] == list(range(1, ROUNDS + 1))
    assert [one.replied for one in kept] == [(0, 1, 2)] * ROUNDS
    for before, after in pairwise(kept):
        assert torch.equal(before.models, after.starts)
    assert torch.equal(kept[-1].models, found.models)
    assert torch.equal(kept[-1].models, expected.models)
    for number, one in enumerate(kept):
        for partition, site in enumerate(sites):
            assert torch.equal(one.received[partition], model_of(site.sent[number]))


def test_without_a_wish_no_round_is_kept(tmp_path):
    run(tmp_path, sites_of(tmp_path, "vanilla"))
    assert folder_of(tmp_path).is_dir()
    assert not (folder_of(tmp_path) / FOLDER).exists()


def test_under_central_trust_models_are_kept_and_answers_refused(tmp_path):
    given = {"method": "global", "parameters": GLOBAL}
    found = run(tmp_path, sites_of(tmp_path, **given), **given, keep=["models"])
    kept = kept_rounds(folder_of(tmp_path))
    assert torch.equal(kept[-1].models, found.models)
    assert [one.received for one in kept] == [{}] * ROUNDS
    other = tmp_path / "other"
    refused = run(other, sites := sites_of(other, **given), **given, keep=BOTH)
    assert "keep" in refused.engine.panics[0]
    assert refused.history == []
    assert not any(site.sent for site in sites)  # nobody was asked
    assert not (folder_of(other) / FOLDER).exists()


def test_under_local_trust_what_is_kept_is_what_the_filter_let_out(tmp_path):
    given, trained = {"method": "sga-ldp", "parameters": {}}, []

    def remember(result, shareable, fl_ctx):
        trained.append(model_of(result))
        return result

    executors = [Trainer(i, extra=remember) for i in range(len(SITES))]
    sites = sites_of(tmp_path, **given, executors=executors)
    run(tmp_path, sites, **given, keep=BOTH)
    kept = kept_rounds(folder_of(tmp_path))
    assert len(trained) == ROUNDS * len(SITES)
    for number, one in enumerate(kept):
        assert sorted(one.received) == [0, 1, 2]
        for partition, site in enumerate(sites):
            received = one.received[partition]
            assert torch.equal(received, model_of(site.sent[number]))
            assert not any(torch.equal(received, model) for model in trained)


@pytest.mark.parametrize("keep", ["models", ["gradients"]])
def test_what_cannot_be_kept_ends_the_job_before_anybody_is_asked(keep, tmp_path):
    found = run(tmp_path, sites := sites_of(tmp_path, "vanilla"), keep=keep)
    assert "keep" in found.engine.panics[0]
    assert not any(site.sent for site in sites)


def recorded(tmp_path, data, rounds=ROUNDS, cohort=3):
    """Train sites on these data, and return the configuration of the auditor and the executors."""
    values = {
        "name": "flare",
        "seed": 3,
        "rounds": rounds,
        "data": data,
        "model": {"module": "test_nvflare_recorded:net"},
        "local": {"lr": 0.1, "batch_size": 8},
        "privacy": {"method": "vanilla"},
        "clients_per_round": cohort,
    }
    config = parse(values)
    clients = prepare(config).clients
    executors = [Trainer(i, data=client) for i, client in enumerate(clients)]
    sites = sites_of(tmp_path, "vanilla", executors=executors)
    run(tmp_path, sites, keep=BOTH, rounds=rounds, clients_per_round=cohort)
    return config, executors


def test_a_recorded_run_is_attacked_without_training_anew(tmp_path):
    config, executors = recorded(tmp_path, SITES_DATA)
    trained = [one.trained for one in executors]
    judged = play(RecordedGame(folder_of(tmp_path), config))
    assert {one.attack for one in judged.verdicts} >= {
        "membership: loss",
        "membership: loss-trajectory",
        "membership: fedmia",
    }
    assert [one.trained for one in executors] == trained == [ROUNDS] * 3


def test_who_took_part_is_attacked_where_the_server_draws_its_sites(tmp_path):
    config, executors = recorded(tmp_path, SITES_DATA, rounds=10, cohort=2)
    assert sum(one.trained for one in executors) == 2 * 10
    judged = play(RecordedGame(folder_of(tmp_path), config, attacks=("participation",)))
    found = {one.attack: one.n for one in judged.verdicts}
    # each round gives one pair: a site that was asked and one that was not
    assert found == {"participation: loss": 10, "participation: calibrated-loss": 10}


@pytest.mark.slow
def test_stored_answers_of_sites_with_one_image_give_it_away(tmp_path):
    config, _ = recorded(tmp_path, ONE_IMAGE)
    asked = ("inversion", "participation")
    judged = play(RecordedGame(folder_of(tmp_path), config, attacks=asked, replicates=1))
    [analytic] = [one for one in judged.verdicts if one.attack == "inversion: analytic"]
    assert analytic.point < 1e-3
    assert "every round" in {one.attack: one.reason for one in judged.refused}["participation"]
