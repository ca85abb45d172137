"""The site's own training under FLARE: the bits of the embedded engine, and what a job cannot decide."""

import json
import os
from pathlib import Path

import pytest
import torch
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.signal import Signal
from safetensors.torch import load_file
from site_module import data

import fedveil as fv
from fedveil.engines import Execution
from fedveil.engines.history import total_of
from fedveil.engines.nvflare.shareables import read_broadcast, read_reply, write_broadcast
from fedveil.errors import FieldError
from fedveil.learning import LocalTraining
from fedveil.methods import Broadcast, PublicFacts, build
from fedveil.nvflare import FedVeilController, FedVeilExecutor, PrivacyFilter, ReleaseFilter
from fedveil.secure import SiteKey
from flare_kit import MODEL, SEED, SITES, Engine, Net, Network, Site, Trainer, run

pytestmark = pytest.mark.nvflare
ROUNDS = 2
LOCAL = {"lr": 0.1, "batch_size": 8}
TRAINING = {"data": "site_module:data", "local": LOCAL}
RECORD = {"examples": 16, "noise_multiplier": 1.0, "clip": 0.5}
PERSON = {
    "unit": "person",
    "people": 8,
    "records_per_person": 2,
    "noise_multiplier": 1.0,
    "clip": 0.5,
}
STEP = {"rounds": ROUNDS, "silos": 3}
SECURE = {"sum": "secure", "least_sites": 3, "lr": 0.1, "rounds": ROUNDS}
CASES = {
    "vanilla": ("vanilla", {}),
    "record": ("record", RECORD),
    "record, sampled lots": (
        "record",
        {**RECORD, "rate": 0.5, "steps": 3, "relation": "add/remove"},
    ),
    "person": ("record", PERSON),
    "trusted sum": ("record", {**RECORD, **STEP, "sum": "trusted"}),
    "secure sum": ("record", {**RECORD, **SECURE}),
    "secure sum of persons": ("record", {**PERSON, **SECURE}),
    "fedre": ("fedre", {}),
    "fedre, equal weights": ("fedre", {"weighting": "equal"}),
    "group, three hypotheses": ("group", {"hypotheses": 3}),
    "ifca": ("ifca", {"hypotheses": 2}),
}


class Borrowed(FedVeilExecutor):
    """What a job could bring in the place of the executor."""


def sites_of(folder, method, parameters, training=TRAINING, executor=FedVeilExecutor, **arguments):
    given = {
        "model": MODEL,
        "method": method,
        "parameters": parameters,
        "seed": SEED,
        "training": training,
    }
    return [
        Site(name, folder, executor(), [PrivacyFilter(**{**given, **arguments}), ReleaseFilter()])
        for name in SITES
    ]


def training_of(method):
    return {**TRAINING, "region": [0, 0, 4, 4]} if method == "fedre" else TRAINING


def run_of(folder):
    """The name of the run, which the question of a secure sum holds."""
    lines = (
        (folder / "server" / "job-1" / "fedveil" / "ledger" / "server.jsonl")
        .read_text()
        .splitlines()
    )
    return json.loads(lines[-1])["run"]


def embedded(method, parameters, run="nvflare"):
    shared = (
        fv.Shared(region=(0, 0, 4, 4), public_data=data("server")) if method == "fedre" else None
    )
    return fv.Federation(
        model=Net,
        clients=[data(site) for site in SITES],
        method=build(method, **parameters),
        seed=SEED,
        local=LocalTraining(**LOCAL),
        shared=shared,
        execution=Execution(trainer="sequential", run_id=run),
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_same_bits_and_ledgers_as_embedded(case, tmp_path):
    method, parameters = CASES[case]
    sites = sites_of(tmp_path, method, parameters, training_of(method))
    given = {"method": method, "parameters": parameters, "rounds": ROUNDS, "site_training": True}
    public = training_of(method) if method == "fedre" else None
    found = run(tmp_path, sites, public=public, **given)
    assert (found.engine.panics, found.stopped) == ([], "")
    federation = embedded(method, parameters, run_of(tmp_path))
    expected = federation.run(ROUNDS)
    assert torch.equal(found.models, expected.models)
    assert [r.used for r in found.history] == [(0, 1, 2)] * ROUNDS
    assert [r.report for r in found.history] == [r.round.report for r in expected.rounds]
    for partition, site in enumerate(sites):
        [memory] = site.scope.task_data_filters["in"][0]._memories.values()
        assert (
            memory.ledger("job-1", partition).entries == federation.party(partition).ledger.entries
        )


def test_a_trainer_of_the_sites_own_trains(tmp_path):
    expected = embedded("vanilla", {}).run(ROUNDS)
    training = {**TRAINING, "trainer": "site_module:trainer"}
    found = run(
        tmp_path, sites_of(tmp_path, "vanilla", {}, training), rounds=ROUNDS, site_training=True
    )
    assert torch.equal(found.models, expected.models)


def test_several_hypotheses_are_told_apart_on_the_way():
    layout = fv.Layout.from_module(Net())
    models = torch.arange(3 * layout.size, dtype=torch.float32).reshape(3, -1)
    broadcast = Broadcast(
        models=models, public=PublicFacts(round=1, rounds=2, cohort=3, dimension=layout.size)
    )
    found, sites = read_broadcast(write_broadcast(broadcast, layout, SITES), layout, 3)
    assert torch.equal(found.models, models)
    assert sites == SITES
    for count in (1, 2, 4):
        with pytest.raises(FieldError):
            read_broadcast(write_broadcast(broadcast, layout, SITES), layout, count)


@pytest.mark.parametrize(
    ("executor", "training"),
    [(lambda: Trainer(0), TRAINING), (FedVeilExecutor, None), (Borrowed, TRAINING)],
)
def test_a_job_does_not_choose_who_trains(executor, training, tmp_path):
    sites = sites_of(tmp_path, "sga-ldp", {}, training, executor)
    found = run(tmp_path, sites, method="sga-ldp", rounds=ROUNDS)
    assert found.history == []
    assert {reply.get_return_code() for site in sites for reply in site.sent} == {
        "TASK_DATA_FILTER_ERROR"
    }


@pytest.mark.parametrize("data", ["site_module:broken", "site_module:shapeless"])
@pytest.mark.parametrize("method", ["sga-ldp", "record"])
def test_data_that_fail_are_a_zero_update_and_nothing_of_why_leaves(method, data, tmp_path):
    parameters = RECORD if method == "record" else {}
    sites = sites_of(tmp_path, method, parameters, {**TRAINING, "data": data})
    found = run(tmp_path, sites, method=method, parameters=parameters, rounds=1, site_training=True)
    assert [r.used for r in found.history] == [(0, 1, 2)]
    assert "diagnosis" not in str([site.sent for site in sites]) + str(found.history)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"training": {}}, "training"),
        ({"training": {"data": "nothing"}}, "training.data"),
        ({"training": {**TRAINING, "local": {"lr": -1.0}}}, "lr"),
        ({"training": {**TRAINING, "local": 3}}, "training.local"),
        ({"training": {**TRAINING, "script": "job.py"}}, "script"),
        ({"training": "site_module:data"}, "training"),
        ({"training": {**TRAINING, "kind": "mine"}}, "kind"),
        ({"method": "record", "parameters": {**RECORD, **SECURE}, "seed": None}, "key"),
    ],
)
def test_what_cannot_train_is_refused_when_the_filter_is_made(changes, field):
    with pytest.raises(FieldError) as refused:
        PrivacyFilter(
            **{"model": MODEL, "method": "vanilla", "seed": SEED, "training": TRAINING, **changes}
        )
    assert refused.value.field.startswith(field)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"parameters": {**RECORD, **SECURE}, "seed": None}, "keys"),
        ({"parameters": {**RECORD, **SECURE}, "keys": {"site-a": "no key"}}, "keys.site-a"),
        ({"parameters": {**RECORD, **SECURE, "lr": None}}, "lr"),
        ({"parameters": RECORD, "keys": {"site-a": "00"}}, "keys"),
        ({"parameters": RECORD, "site_training": False}, "method"),
        ({"method": "group", "parameters": {"hypotheses": 2}, "site_training": False}, "method"),
        ({"method": "vanilla", "parameters": {}, "aggregator": "fltrust"}, "method"),
    ],
)
def test_what_the_sites_cannot_give_is_refused_when_the_controller_is_made(changes, field):
    given = {
        "model": MODEL,
        "method": "record",
        "rounds": ROUNDS,
        "seed": SEED,
        "site_training": True,
        **changes,
    }
    with pytest.raises(FieldError) as refused:
        FedVeilController(**given)
    assert refused.value.field == field


def test_a_site_that_is_missing_from_a_secure_sum_is_left_out_of_the_next_question(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("flare_kit.SITES", [*SITES, "site-d"])
    parameters = {**RECORD, **SECURE}
    sites = sites_of(tmp_path, "record", parameters)
    given = {"method": "record", "parameters": parameters, "rounds": 1, "site_training": True}
    found = run(tmp_path, sites, **given)
    assert (found.stopped, [r.used for r in found.history]) == ("", [(0, 1, 2)])
    assert [len(site.sent) for site in sites] == [2, 2, 2]


def test_a_secure_sum_of_too_few_sites_ends_the_job(tmp_path):
    parameters = {**RECORD, **SECURE}
    sites = sites_of(tmp_path, "record", parameters)
    given = {"method": "record", "parameters": parameters, "rounds": 1, "site_training": True}
    found = run(tmp_path, sites[:2], **given)
    assert found.history == []
    assert found.engine.panics


def test_in_a_swarm_a_site_whose_training_fails_answers_like_any_other(tmp_path):
    """FLARE ends a swarm with the name of the peer whose executor raises: that would tell of its data."""
    replies = []
    for name in ("data", "broken"):
        training = {**TRAINING, "data": f"site_module:{name}"}
        one = sites_of(tmp_path / name, "record", RECORD, training, swarm=True)[0]
        fl_ctx = one.engine.manager.new_context()
        fl_ctx.set_prop(FLContextKey.RUNNER, one.runner, private=True)
        fl_ctx.set_prop(FLContextKey.SCOPE_OBJECT, one.scope, private=True)
        layout = fv.Layout.from_module(Net())
        public = PublicFacts(round=1, rounds=ROUNDS, cohort=3, dimension=layout.size)
        asked = Broadcast(models=torch.zeros(1, layout.size), public=public)
        task = write_broadcast(asked, layout, SITES)
        reply = one.executor.execute("train", task, fl_ctx, Signal())
        [model] = read_reply(reply, layout, build("record", **RECORD).client)
        assert model.value.abs().max() > 0
        replies.append(reply)
        assert "diagnosis" not in str(reply)
    assert [set(reply) for reply in replies] == [set(replies[0])] * 2
    assert {reply.get_return_code() for reply in replies} == {"OK"}


class Aborted(Network):
    """Somebody aborts the job while its last task runs."""

    signal, left = None, ROUNDS

    def broadcast_and_wait(self, *arguments, **options):
        super().broadcast_and_wait(*arguments, **options)
        self.left -= 1
        if not self.left:
            self.signal.trigger(True)


@pytest.mark.parametrize("case", ["record", "secure sum"])
def test_a_job_that_is_aborted_counts_the_question_that_the_sites_had_answered(case, tmp_path):
    method, parameters = CASES[case]
    sites = sites_of(tmp_path, method, parameters)
    given = {"method": method, "parameters": parameters, "rounds": ROUNDS, "site_training": True}
    controller, engine = (
        FedVeilController(model=MODEL, seed=SEED, **given),
        Engine("server", tmp_path),
    )
    network = Aborted(sites)
    network.signal = Signal()
    controller.set_communicator(network)
    controller.control_flow(network.signal, engine.manager.new_context())
    assert (controller.stopped != "", len(controller.history)) == (True, ROUNDS - 1)
    [memory] = sites[0].scope.task_data_filters["in"][0]._memories.values()
    spent = total_of(memory.ledger("job-1", 0))
    assert controller.guarantee.mu == pytest.approx(spent.mu)
    summary = json.loads((tmp_path / "server" / "job-1" / "fedveil" / "summary.json").read_text())
    assert summary["guarantee"] == controller.guarantee.describe(1e-5)


def test_a_key_that_is_not_the_sites_is_refused_and_the_server_learns_no_reason(tmp_path):
    parameters = {**RECORD, **SECURE}
    keys = {site: SiteKey.new()[0].public.hex() for site in SITES}
    sites = sites_of(tmp_path, "record", parameters)
    given = {"method": "record", "parameters": parameters, "rounds": 1, "site_training": True}
    found = run(tmp_path, sites, keys=keys, **given)
    assert found.history == []
    assert {reply.get_return_code() for site in sites for reply in site.sent} == {
        "TASK_DATA_FILTER_ERROR"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "record",
        "person",
        "fedre, equal weights",
        "trusted sum",
        "secure sum",
        "secure sum of persons",
        "group, three hypotheses",
        "ifca",
    ],
)
def test_same_bits_in_flares_simulator(case, tmp_path, monkeypatch):
    from nvflare.job_config.api import FedJob
    from nvflare.job_config.defs import FilterType

    method, parameters = CASES[case]
    here, source = str(Path(__file__).parent), str(Path(fv.__file__).parents[1])
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([source, here, os.environ.get("PYTHONPATH", "")])
    )
    given = {"model": MODEL, "method": method, "parameters": parameters, "seed": SEED}
    job = FedJob("fedveil", min_clients=len(SITES))
    job.set_app_packages(["fedveil", "flare_kit", "site_module"])
    job.to_server(FedVeilController(rounds=ROUNDS, site_training=True, **given))
    job.to_server(
        str(Path(here) / "site_module.py")
    )  # a job without code builds listed classes alone
    for site in SITES:
        job.to(str(Path(here) / "site_module.py"), site)
        job.to(FedVeilExecutor(), site, tasks=["train"])
        job.to(
            PrivacyFilter(training=training_of(method), **given),
            site,
            filter_type=FilterType.TASK_DATA,
        )
        job.to(ReleaseFilter(), site, filter_type=FilterType.TASK_RESULT)
    assert job.simulator_run(str(tmp_path), threads=len(SITES), log_config="concise") in (
        0,
        None,
    )  # FLARE 2.7: None
    folder = tmp_path / "server" / "simulate_job" / "fedveil"
    lines = (folder / "ledger" / "server.jsonl").read_text().splitlines()
    federation = embedded(method, parameters, json.loads(lines[-1])["run"])
    expected = federation.run(ROUNDS)
    saved = load_file(folder / "model.safetensors")
    several = len(expected.models) > 1
    for place, model in enumerate(expected.models):
        begin = f"hypothesis.{place}." if several else ""
        own = {
            name.removeprefix(begin): value
            for name, value in saved.items()
            if name.startswith(begin)
        }
        assert torch.equal(federation.layout.flatten(own), model)
