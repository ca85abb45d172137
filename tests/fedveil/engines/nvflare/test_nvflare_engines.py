"""The embedded engine and FLARE run the same parties, so they must agree to the bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedveil as fv
from fedveil.engines import memory
from fedveil.engines.nvflare.shareables import read_reply
from fedveil.engines.nvflare.validating import VALIDATION_TASK
from fedveil.errors import FieldError
from fedveil.nvflare import FedVeilController, PrivacyFilter, ReleaseFilter, UnprotectedError
from fedveil_lab.report.statement.check import check
from fedveil_lab.report.statement.gather import gather
from fedveil_lab.report.statement.page import write_report
from fedveil_lab.runs import Summary
from flare_kit import MODEL, ROUNDS, SEED, SITES, Trainer, embedded, learner, run, sites_of

pytestmark = pytest.mark.nvflare
GLOBAL = {"noise_multiplier": 0.01}
CASES = {
    "vanilla": ("vanilla", {}, None),
    "global": ("global", GLOBAL, None),
    "metric": ("metric", {}, None),
    "metric, printed, by a median": ("metric", {"order": "printed"}, "fedmedian"),
    "a server optimiser": ("global", GLOBAL, "fedadam"),
    "group": ("group", {"hypotheses": 1}, None),
    "sga-ldp": ("sga-ldp", {}, None),
    "sga-central": ("sga-central", {}, None),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES)
def test_same_bits_as_embedded_though_sites_answer_in_another_order(case, tmp_path):
    method, parameters, rule = CASES[case]
    federation = fv.Federation(**embedded(method, parameters, rule))
    expected = federation.run(ROUNDS)
    sites = sites_of(tmp_path, method, parameters)
    found = run(tmp_path, sites, method=method, parameters=parameters, aggregator=rule)
    assert (found.engine.panics, found.stopped) == ([], "")
    assert torch.equal(found.models, expected.models)
    assert [r.report for r in found.history] == [r.round.report for r in expected.rounds]
    assert [r.used for r in found.history] == [(0, 1, 2)] * ROUNDS
    if federation.method.client.trust == "central":
        assert found.guarantee == expected.guarantee
    else:  # what each site recorded, entry by entry
        for partition, site in enumerate(sites):
            [memory] = site.scope.task_data_filters["in"][0]._memories.values()
            recorded = memory.ledger("job-1", partition).entries
            assert recorded == federation.party(partition).ledger.entries
            assert len(recorded) == ROUNDS


def test_the_run_folder_tells_what_happened(tmp_path):
    found = run(tmp_path, sites_of(tmp_path, "global", GLOBAL), method="global", parameters=GLOBAL)
    folder = tmp_path / "server" / "job-1" / "fedveil"
    summary = Summary.read(folder)
    assert (summary.values["engine"], summary.values["rounds"], summary.values["clients"]) == (
        "nvflare",
        ROUNDS,
        3,
    )
    assert torch.equal(
        learner().layout.flatten(load_file(folder / "model.safetensors")), found.models[0]
    )
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == ROUNDS
    assert (folder / "ledger" / "server.jsonl").read_text().count('"combine"') == ROUNDS
    report, *_ = write_report(gather([folder], [], None, None), tmp_path / "report")
    checked = {one.what: one.holds for one in check(report, [folder])}
    assert checked["global: promise"] is True
    assert False not in checked.values()


def test_a_cohort_is_drawn_as_in_the_embedded_engine(tmp_path):
    expected = fv.Federation(**embedded("vanilla", clients_per_round=2)).run(ROUNDS)
    found = run(tmp_path, sites_of(tmp_path, "vanilla"), clients_per_round=2)
    assert [r.used for r in found.history] == [r.round.used for r in expected.rounds]
    assert torch.equal(found.models, expected.models)


def test_a_site_that_fails_or_lies_leaves_the_others(tmp_path):
    def broken(result, task, fl_ctx):
        raise RuntimeError("age 47, diagnosis C50")

    executors = [Trainer(0), Trainer(1, extra=broken), Trainer(2)]
    found = run(tmp_path, sites := sites_of(tmp_path, "vanilla", executors=executors))
    assert [r.used for r in found.history] == [(0, 2)] * ROUNDS
    assert all("EXECUTION_RESULT_ERROR" in r.failed[1] for r in found.history)
    assert "diagnosis" not in str(found.history) + str(sites[1].sent)


def test_a_site_without_filters_ends_the_job_and_names_the_fix(tmp_path):
    sites = sites_of(tmp_path, "vanilla")
    for site in sites:
        site.scope.task_data_filters["in"].clear()
        site.scope.task_result_filters["out"].clear()
    found = run(tmp_path, sites)
    assert "not protected" in found.engine.panics[0]
    assert "PrivacyFilter" in found.engine.panics[0]
    assert found.history == []


def test_a_job_of_another_method_than_the_sites_is_declined_before_its_data_are_touched(tmp_path):
    sites = [*sites_of(tmp_path, "vanilla")[:2], sites_of(tmp_path / "other", "sga-ldp")[2]]
    found = run(tmp_path, sites)
    assert [r.used for r in found.history] == [(0, 1)] * ROUNDS
    assert sites[2].executor.trained == 0
    assert {reply.get_return_code() for reply in sites[2].sent} == {"TASK_DATA_FILTER_ERROR"}


def test_where_the_server_names_no_method_another_one_is_its_failure(tmp_path, monkeypatch):
    sites = [*sites_of(tmp_path, "vanilla")[:2], sites_of(tmp_path / "other", "sga-ldp")[2]]
    monkeypatch.setattr("fedveil.engines.nvflare.filters.require_own_method", lambda *named: None)
    found = run(tmp_path, sites)
    assert [r.used for r in found.history] == [(0, 1)] * ROUNDS
    assert "give both the same method" in found.history[0].failed[2]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("global", {"noise_multiplier": 40.0}),
        ("sga-ldp", {"epsilon_min": 0.1, "epsilon_max": 0.2}),
    ],
)
def test_a_job_that_cannot_learn_at_its_noise_says_so(method, parameters, tmp_path, caplog):
    given = {"method": method, "parameters": parameters}
    run(tmp_path, sites_of(tmp_path, method, parameters), rounds=1, **given)
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert any("hopeless" in line for line in warned)


def test_under_add_remove_a_drawn_cohort_is_refused(tmp_path):
    own = {"method": "global", "parameters": {"relation": "add/remove", "noise_multiplier": 1.0}}
    sites = sites_of(tmp_path, **own)
    found = run(tmp_path, sites, clients_per_round=2, **own)
    assert "relation" in found.engine.panics[0]
    assert [site.executor.trained for site in sites] == [0, 0, 0]


def test_under_add_remove_sites_have_to_be_named(tmp_path):
    own = {"method": "global", "parameters": {"relation": "add/remove", "noise_multiplier": 1.0}}
    sites = sites_of(tmp_path, **own)
    found = run(tmp_path, sites, **own)
    assert "sites" in found.engine.panics[0]
    assert [site.executor.trained for site in sites] == [0, 0, 0]


def test_results_that_do_not_fit_into_memory_end_the_job_before_anybody_trains(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(memory, "WORTH_ASKING", 0)
    monkeypatch.setattr(memory, "available", lambda: 3 * 4 * learner().layout.size - 1)
    sites = sites_of(tmp_path, "vanilla")
    found = run(tmp_path, sites)
    assert "clients_per_round" in found.engine.panics[0]
    assert [site.executor.trained for site in sites] == [0, 0, 0]


def test_too_few_replies_end_the_job(tmp_path):
    found = run(tmp_path, sites_of(tmp_path, "vanilla")[:1])
    assert "min_clients is 2" in found.stopped
    assert "did not reply in time" in found.stopped


def test_the_servers_budget_ends_the_run_with_the_last_model(tmp_path):
    given = {"method": "global", "parameters": GLOBAL}
    cost = run(tmp_path / "free", sites_of(tmp_path / "a", "global", GLOBAL), rounds=2, **given)
    epsilon = cost.guarantee.epsilon(1e-5) * 1.001
    found = run(tmp_path, sites_of(tmp_path, "global", GLOBAL), epsilon=epsilon, **given)
    assert (len(found.history), found.engine.panics) == (2, [])
    assert "budget" in found.stopped


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"method": "fedre"}, "method"),
        ({"method": "record", "parameters": {"epsilon": 8.0, "rounds": 2}}, None),
        ({"method": "ifca", "parameters": {"hypotheses": 2}}, "method"),
        ({"method": "group"}, "method"),
        ({"method": "vanilla", "aggregator": "fltrust"}, "method"),
        ({"method": "vanilla", "aggregator": {"name": "fedavgm", "momentun": 0.9}}, "momentun"),
        ({"method": "metrik"}, "method"),
        ({"method": "vanilla", "rounds": 0}, "rounds"),
    ],
)
def test_what_cannot_work_is_refused_when_the_job_is_made(arguments, field):
    with pytest.raises(FieldError) as refused:
        FedVeilController(**{"model": MODEL, "rounds": ROUNDS, **arguments})
    assert field is None or refused.value.field == field
    own = {key: value for key, value in arguments.items() if key in ("method", "parameters")}
    if own["method"] not in ("vanilla",):
        with pytest.raises(FieldError):
            PrivacyFilter(model=MODEL, seed=0, **own)


def test_a_differing_start_is_added_to_the_broadcast_model():
    from nvflare.apis.dxo import DXO, DataKind

    from fedveil.engines.nvflare.shareables import read_trained
    from fedveil.methods import Broadcast, PublicFacts

    layout = learner().layout
    start = torch.arange(layout.size, dtype=torch.float32)
    broadcast = Broadcast(
        models=start[None], public=PublicFacts(round=1, rounds=1, cohort=1, dimension=layout.size)
    )
    step = layout.flatten({n: torch.ones(shape) for n, shape in layout.shapes.items()})
    arrays = {n: v.numpy() for n, v in layout.views(step).items()}
    [model] = read_trained(DXO(DataKind.WEIGHT_DIFF, arrays).to_shareable(), layout, broadcast)
    assert torch.equal(model.value, start + 1)
    for kind, data in (
        (DataKind.METRICS, {"loss": 1.0}),
        (DataKind.WEIGHTS, {**arrays, "patients": step.numpy()}),
    ):
        with pytest.raises(FieldError):
            read_trained(DXO(kind, data).to_shareable(), layout, broadcast)
    with pytest.raises(UnprotectedError):
        read_reply(DXO(DataKind.METRICS, {}).to_shareable(), layout, None)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vanilla", "global", "metric", "sga-ldp"])
def test_same_bits_in_flares_simulator(method, tmp_path, monkeypatch):
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.defs import FilterType
    from nvflare.job_config.script_runner import ScriptRunner

    here, parameters = Path(__file__).parent, GLOBAL if method == "global" else {}
    source = str(Path(fv.__file__).parents[1])
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([source, str(here), os.environ.get("PYTHONPATH", "")])
    )
    given = {"model": MODEL, "method": method, "parameters": parameters, "seed": SEED}
    job = FedJob("fedveil", min_clients=len(SITES))
    job.set_app_packages(["fedveil", "flare_kit"])
    job.to_server(FedVeilController(rounds=2, **given))
    for site in SITES:
        job.to(ScriptRunner(str(here / "client_script.py")), site)
        job.to(PrivacyFilter(**given), site, filter_type=FilterType.TASK_DATA)
        job.to(ReleaseFilter(), site, filter_type=FilterType.TASK_RESULT)
    assert job.simulator_run(str(tmp_path), threads=len(SITES), log_config="concise") in (
        0,
        None,
    )  # FLARE 2.7: None
    expected = fv.Federation(**embedded(method, parameters)).run(2)
    found = load_file(tmp_path / "server" / "simulate_job" / "fedveil" / "model.safetensors")
    assert torch.equal(learner().layout.flatten(found), expected.models[0])
    config = json.loads(
        (tmp_path / "site-a/simulate_job/app_site-a/config/config_fed_client.json").read_text()
    )
    for kind in ("task_data_filters", "task_result_filters"):
        assert set(config[kind][0]["tasks"]) == {"train", VALIDATION_TASK}  # "*" is no task
    assert not list(tmp_path.rglob("fedveil/engines")), "FedVeil itself travelled with the job"
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left


@pytest.mark.slow
def test_the_example_job_runs_as_the_page_says(tmp_path):
    example = Path(__file__).resolve().parents[4] / "examples" / "nvflare-job" / "job.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(example), str(tmp_path / "work")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, timeout=300
    )
    accuracy, promise = done.stdout.split("accuracy ")[1].split(";")
    assert float(accuracy) > 0.85
    assert "formal eps=8 " in promise
