"""A peer of a real swarm whose process is killed from outside, in the middle of a round of a secure sum."""

import json
import os
import signal
import time
from contextlib import suppress

import pytest
import recipes_needed  # noqa: F401
import torch
from nvflare.recipe import ProdEnv
from safetensors.torch import load_file

from fedveil.nvflare import protect
from hello_kit import FOUR, SITES
from poc_kit import ADMIN, PATIENCE, Poc, privacy, scope
from test_nvflare_swarm import LAYOUT, ROUNDS, SECURE, swarm

pytestmark = [pytest.mark.nvflare, pytest.mark.deploy]
SEED, GONE = 1, "site-3"
PLANNED = {**SECURE, "rounds": ROUNDS + 1}  # a question that is put again is one more release
TRAINING = {"data": "hello_kit:halted", "local": {"lr": 0.1}}
TIMES = {"wait": 20.0, "ack": 20, "timeout": 120.0}
OWN = privacy(
    [
        scope(
            "sum",
            model="hello_kit:SimpleNetwork",
            seed=SEED,
            method="record",
            parameters=PLANNED,
            training=TRAINING,
            swarm=True,
        )
    ],
    swarm=True,
)


def killed(running, names, whole, gone=GONE, **more):
    """Start a swarm, and kill a peer once the third one trains: the process of the job, or the `whole` site; the job's id."""
    recipe = swarm(names, min_clients=3, **more)
    given = {"site": OWN, "seed": SEED, "sites": names, "say": lambda text: None}
    protect(recipe, **given, **TIMES)
    env = ProdEnv(startup_kit_location=str(running.kits / ADMIN), login_timeout=60)
    job = recipe.execute(env).get_job_id()
    halted, until = running.folder / "halted", time.monotonic() + PATIENCE
    while not (halted.exists() and halted.read_text()):
        assert time.monotonic() < until, running.tail()
        time.sleep(0.2)
    pids = [int(halted.read_text())]
    assert pids[0] in running.pids(GONE)
    if whole:
        own = running.processes[gone].pid  # first: it would report the other's death
        pids = [own, *(pid for pid in running.pids(gone) if pid != own)]
        assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return job


def log_of(running, names, job):
    """What the peers that are left wrote."""
    return "".join(running.log(name, job) for name in names if name != GONE)


@pytest.mark.parametrize("names", [SITES, FOUR], ids=["three", "four"])
def test_where_the_sites_own_process_tells_of_it_flare_ends_the_job_at_once(names, tmp_path):
    """A site whose process of a job dies reports that, and FLARE's server then fails the job, whoever is left."""
    with Poc(tmp_path, dict.fromkeys(names, OWN)) as running:
        job = killed(running, names, whole=False)
        status = running.ended(job)
        told = running.log("server")
        models = list(running.kits.rglob("fedveil/model.safetensors"))
        text = log_of(running, names, job)
    assert status == "FINISHED:EXECUTION_EXCEPTION"
    assert f"due to reported failure from {GONE}" in told
    assert models == []
    assert "peers\n" not in text  # no round was combined


def test_three_peers_wait_for_a_site_that_is_gone_and_then_stop_and_nothing_is_summed(tmp_path):
    with Poc(tmp_path, dict.fromkeys(SITES, OWN)) as running:
        job = killed(running, SITES, whole=True)
        status = running.ended(job)
        text = log_of(running, SITES, job)
        models = list(running.kits.rglob("fedveil/model.safetensors"))
    assert status != "FINISHED:COMPLETED"
    assert "2 peers are left, and a sum is of 3 at least" in text, (status, text[-3000:])
    assert models == []
    assert "of 3 peers" not in text  # no round was combined


def test_four_peers_go_on_without_a_site_that_is_gone(tmp_path):
    """FLARE's server says so up to a quarter of an hour later: it waits for what the site would report."""
    left, models = [name for name in FOUR if name != GONE], []
    expected = {"rounds": ROUNDS, "of": ROUNDS, "answered": left}
    with Poc(tmp_path, dict.fromkeys(FOUR, OWN)) as running:
        job = killed(running, FOUR, whole=True)
        until = time.monotonic() + PATIENCE
        while [said_by(running, name, job) for name in left] != [expected] * 3:
            assert time.monotonic() < until, log_of(running, FOUR, job)[-3000:]
            time.sleep(1)
        text = log_of(running, FOUR, job)
        for name in left:
            saved = load_file(running.kits / name / job / "fedveil" / "model.safetensors")
            models.append(LAYOUT.flatten(saved))
    assert all(torch.equal(models[0], model) for model in models)
    assert "round 1 is asked again, of 3 peers" in text


def test_a_swarm_whose_aggregator_is_gone_ends_without_a_model(tmp_path):
    """The first peer combines the first round. FLARE's server ends the job once a peer too many is silent."""
    with Poc(tmp_path, dict.fromkeys(SITES, OWN)) as running:
        silent = {"max_status_report_interval": 30}
        job = killed(running, SITES, whole=True, gone=SITES[0], **silent)
        status = running.ended(job)
        told = running.log("server", job) if (running.kits / "server" / job).exists() else ""
        models = list(running.kits.rglob("fedveil/model.safetensors"))
    assert status == "FINISHED:EXECUTION_EXCEPTION", told[-3000:]
    assert models == []


def said_by(running, name, job):
    """What a peer says of the rounds that it has, if it says something."""
    with suppress(OSError, ValueError):
        return json.loads((running.kits / name / job / "fedveil" / "swarm.json").read_text())
