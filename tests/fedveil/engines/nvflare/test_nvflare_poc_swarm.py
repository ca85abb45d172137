"""A FedVeil swarm by `ProdEnv`: three peers on loopback, whose own privacy.json protects them, end in the embedded bits."""

import json
import time

import pytest
import recipes_needed  # noqa: F401
import torch
from nvflare.recipe import ProdEnv
from safetensors.torch import load_file

import fedveil as fv
from fedveil.engines import Execution
from fedveil.learning import LocalTraining
from fedveil.methods import build
from fedveil.nvflare import protect
from hello_kit import SITES, SimpleNetwork, people
from poc_kit import ADMIN, PATIENCE, Poc, privacy, scope
from test_nvflare_swarm import PLAYED, ROUNDS, swarm

pytestmark = [pytest.mark.nvflare, pytest.mark.deploy]
SEED = 1
TRAINING = {"data": "hello_kit:people", "local": {"lr": 0.1}}


def scope_of(case):
    """A site's scope of a method, in a swarm."""
    method, parameters = PLAYED[case]
    own = {"method": method, "parameters": parameters, "training": TRAINING, "swarm": True}
    return scope(case, model="hello_kit:SimpleNetwork", seed=SEED, **own)


@pytest.fixture(scope="module")
def poc(tmp_path_factory):
    own = privacy([scope_of(case) for case in PLAYED], swarm=True)
    with Poc(tmp_path_factory.mktemp("swarm"), dict.fromkeys(SITES, own)) as running:
        yield running


@pytest.mark.parametrize("case", PLAYED)
def test_three_real_peers_end_in_the_embedded_bits_each_having_aggregated_once(case, poc):
    own = privacy([scope_of(case)], swarm=True)
    recipe = protect(swarm(), site=own, seed=SEED, sites=SITES, say=lambda text: None)
    status, job = poc.run(recipe, case)
    assert status == "FINISHED:COMPLETED", poc.tail()
    method, parameters = PLAYED[case]
    federation = fv.Federation(
        model=SimpleNetwork,
        clients=[people(site) for site in SITES],
        method=build(method, **parameters),
        seed=SEED,
        local=LocalTraining(lr=0.1),
        execution=Execution(trainer="sequential", run_id=job),
    )
    expected = federation.run(ROUNDS).models[0]
    for site in SITES:
        folder = poc.kits / site / job / "fedveil"
        said = json.loads((folder / "swarm.json").read_text())
        assert said == {"rounds": ROUNDS, "of": ROUNDS, "answered": SITES}
        saved = load_file(folder / "model.safetensors")
        assert torch.equal(federation.layout.flatten(saved), expected)
        assert poc.log(site, job).count("Start aggregation for round") == 1


def test_a_site_whose_guard_takes_part_in_no_swarm_stops_it(tmp_path):
    kits = {site: privacy([scope_of("records, no trust")], swarm=True) for site in SITES}
    kits[SITES[1]] = privacy([scope_of("records, no trust")])
    own = kits[SITES[0]]
    recipe = protect(swarm(), site=own, seed=SEED, sites=SITES, say=lambda text: None)
    with Poc(tmp_path, kits) as running:
        env = ProdEnv(startup_kit_location=str(running.kits / ADMIN), login_timeout=60)
        job = recipe.execute(env).get_job_id()  # FLARE itself waits for the third peer
        until = time.monotonic() + PATIENCE
        while "is not among the classes" not in said_by(running, SITES[1], job):
            assert time.monotonic() < until, running.tail()
            time.sleep(1)
        assert not list(running.kits.rglob("fedveil/model.safetensors"))


def said_by(poc, site, job):
    """What a job's process wrote, once it is there."""
    return poc.log(site, job) if (poc.kits / site / job).exists() else ""
