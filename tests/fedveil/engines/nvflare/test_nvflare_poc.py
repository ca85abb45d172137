"""Each method through `ProdEnv`: a server and three sites on loopback, whose own privacy.json protects them."""

import json

import pytest
import recipes_needed  # noqa: F401
import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from safetensors.torch import load_file
from site_module import data, held

import fedveil as fv
from fedveil.engines import Execution
from fedveil.learning import LocalTraining
from fedveil.methods import build
from fedveil.nvflare import protect
from flare_kit import MODEL, SEED, SITES, Net
from poc_kit import HERE, Poc, privacy, scope
from test_nvflare_executor import CASES as METHODS
from test_nvflare_executor import LOCAL, RECORD, ROUNDS, TRAINING, embedded, training_of

pytestmark = [pytest.mark.nvflare, pytest.mark.deploy]
CASES = {
    "vanilla": METHODS["vanilla"],
    "global": ("global", {"noise_multiplier": 0.01}),
    "metric": ("metric", {}),
    "sga-ldp": ("sga-ldp", {}),
    "record": METHODS["record"],
    "person": METHODS["person"],
    "trusted sum": METHODS["trusted sum"],
    "secure sum": METHODS["secure sum"],
    "secure sum of persons": METHODS["secure sum of persons"],
    "fedre": METHODS["fedre, equal weights"],
    "group": METHODS["group, three hypotheses"],
    "ifca": METHODS["ifca"],
}
WATCHER, NOISED = SITES[2], {"losses": "noised", "noise_multiplier": 2.0, "releases": 3}
WATCHED = "validation"


def scopes_of(site):
    """The scopes of a site: one a method, and one in which the last site validates."""
    shared = {"model": MODEL, "seed": SEED}
    found = []
    for case, (method, parameters) in CASES.items():
        own = {"method": method, "parameters": parameters, "training": training_of(method)}
        found.append(scope(case, **shared, **own))
    own = {"method": "record", "parameters": RECORD, "training": TRAINING}
    if site == WATCHER:
        own |= {"training": {**TRAINING, "data": "site_module:held"}, "validation": NOISED}
    return [*found, scope(WATCHED, **shared, **own)]


@pytest.fixture(scope="module")
def poc(tmp_path_factory):
    kits = {site: privacy(scopes_of(site)) for site in SITES}
    with Poc(tmp_path_factory.mktemp("poc"), kits) as running:
        yield running


def protected(case, rounds=ROUNDS, **server):
    """A recipe of a scope, protected for a site that has it."""
    given = {"name": "study", "min_clients": len(SITES), "num_rounds": rounds, "model": Net()}
    recipe = FedAvgRecipe(**given, train_script=str(HERE / "hello_client.py"))
    [own] = [one for one in scopes_of(SITES[0]) if one["name"] == case]
    return protect(recipe, site=privacy([own]), seed=SEED, say=lambda text: None, **server)


def same(folder, federation, models):
    """Whether the models of a job's folder have these bits."""
    saved = load_file(folder / "model.safetensors")
    for place, model in enumerate(models):
        begin = f"hypothesis.{place}." if len(models) > 1 else ""
        own = {n.removeprefix(begin): v for n, v in saved.items() if n.startswith(begin)}
        assert torch.equal(federation.layout.flatten(own), model)


def folder_of(poc, job, tmp_path):
    [summary] = poc.result(job, tmp_path).rglob("fedveil/summary.json")
    return summary.parent


@pytest.mark.parametrize("case", CASES)
def test_a_job_of_production_ends_in_the_embedded_bits(case, poc, tmp_path):
    method, parameters = CASES[case]
    status, job = poc.run(protected(case), case)
    assert status == "FINISHED:COMPLETED", poc.tail()
    folder = folder_of(poc, job, tmp_path)
    lines = (folder / "ledger" / "server.jsonl").read_text().splitlines()
    federation = embedded(method, parameters, json.loads(lines[-1])["run"])
    same(folder, federation, federation.run(ROUNDS).models)


def test_a_site_that_only_validates_gives_the_embedded_best_and_last_model(poc, tmp_path):
    rounds, stopping = 4, {"patience": 2, "validation": NOISED}
    recipe = protected(WATCHED, rounds, stopping=stopping, validators=[WATCHER])
    status, job = poc.run(recipe, WATCHED)
    assert status == "FINISHED:COMPLETED", poc.tail()
    folder = folder_of(poc, job, tmp_path)
    rule = fv.EarlyStopping(clients=[held("")], patience=2, validation=fv.Validation(**NOISED))
    federation = fv.Federation(
        model=Net,
        clients=[data(site) for site in SITES[:2]],
        method=build("record", **RECORD),
        seed=SEED,
        local=LocalTraining(**LOCAL),
        evaluation=fv.Evaluation(stopping=rule),
        execution=Execution(trainer="sequential", run_id="nvflare"),
    )
    found = federation.run(rounds)
    same(folder, federation, found.models)
    best = load_file(folder / "best.safetensors")
    assert torch.equal(federation.layout.flatten(best), found.best.models[0])


def test_a_job_of_another_method_than_the_sites_is_declined_by_each_of_them(poc):
    status, job = poc.run(protected("record"), "sga-ldp")
    assert status != "FINISHED:COMPLETED"
    for site in SITES:
        assert "FieldError: method" in poc.log(site, job), poc.log(site, job)[-2000:]
