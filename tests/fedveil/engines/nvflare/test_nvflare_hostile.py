"""Whole hostile jobs in FLARE's simulator: nothing planted at a site reaches the server's process or its disk."""

import json
import os
from pathlib import Path

import flare_needed  # noqa: F401
import pytest
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner

import fedveil as fv
from fedveil.engines.nvflare.validating import VALIDATION_TASK
from fedveil.nvflare import FedVeilController, FedVeilExecutor, PrivacyFilter, ReleaseFilter
from hello_kit import SITES
from intruder_kit import planted
from recorder_kit import OtherTask, Recorder

pytestmark = [pytest.mark.nvflare, pytest.mark.slow]
HERE = Path(__file__).parent
MODEL = "hello_kit:SimpleNetwork"
# the simulator reads no privacy.json for its clients: for these tasks the job's filters stand for a site's own scope
TASKS = ["train", "validate", VALIDATION_TASK]


def run(
    folder,
    monkeypatch,
    method,
    controller=FedVeilController,
    filters=None,
    arguments="",
    executor=None,
    **given,
):
    """The server's folder of a job, what its recorder saw, and the rounds that were combined."""
    seen = folder / "seen.bin"
    seen.touch()
    source = str(Path(fv.__file__).parents[1])
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([source, str(HERE), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("FEDVEIL_SEEN", str(seen))
    shared = {"model": MODEL, "method": method, "parameters": given.get("parameters"), "seed": 1}
    job = FedJob("hostile", min_clients=len(SITES))
    job.set_app_packages(["fedveil", "hello_kit"])
    job.to_server(controller(rounds=2, **shared))
    job.to_server(Recorder(), id="recorder")
    for site in SITES:
        job.to(
            executor() if executor else ScriptRunner(str(HERE / "hostile_client.py"), arguments),
            site,
        )
        asks = PrivacyFilter(
            **shared, **({"training": given["training"]} if "training" in given else {})
        )
        for one, kind in (filters or pair)(asks):
            job.to(one, site, filter_type=kind, tasks=TASKS)
    work = folder / "work"
    job.simulator_run(str(work), threads=len(SITES), log_config="concise")
    summary = work / "server" / "simulate_job" / "fedveil" / "summary.json"
    rounds = json.loads(summary.read_text())["rounds"] if summary.exists() else 0
    return work / "server", seen, rounds


def pair(asks):
    return [(asks, FilterType.TASK_DATA), (ReleaseFilter(), FilterType.TASK_RESULT)]


def without(asks):
    return []


def reordered(asks):
    from nvflare.app_common.filters.exclude_vars import ExcludeVars

    return [*pair(asks), (ExcludeVars(exclude_vars=["nothing"]), FilterType.TASK_RESULT)]


def duplicated(asks):
    return [*pair(asks), *pair(PrivacyFilter(MODEL, "sga-ldp", seed=1))]


@pytest.mark.parametrize("arguments", ["", "diff"])
def test_a_script_that_plants_values_everywhere_sends_none_of_them(
    arguments, tmp_path, monkeypatch
):
    server, seen, rounds = run(tmp_path, monkeypatch, "sga-ldp", arguments=arguments)
    assert planted(server, seen) == []
    assert rounds == 2
    assert seen.stat().st_size > 10_000  # it was shown something


def test_the_search_finds_what_central_trust_lets_through(tmp_path, monkeypatch):
    """The model's metrics leave there, as the page says; so an empty search elsewhere means something."""
    server, seen, _ = run(tmp_path, monkeypatch, "vanilla")
    assert planted(server, seen)


@pytest.mark.parametrize("filters", [without, reordered, duplicated])
def test_other_filters_than_the_page_says_combine_nothing(filters, tmp_path, monkeypatch):
    server, seen, rounds = run(tmp_path, monkeypatch, "sga-ldp", filters=filters)
    assert rounds == 0
    if filters is not without:  # without filters a job protects nobody, and the server says so
        assert planted(server, seen) == []


def test_another_task_is_answered_by_nobody(tmp_path, monkeypatch):
    server, seen, rounds = run(tmp_path, monkeypatch, "sga-ldp", controller=OtherTask)
    assert (rounds, planted(server, seen)) == (0, [])


def test_data_that_raise_with_what_they_hold_send_nothing_of_it(tmp_path, monkeypatch):
    record = {"examples": 100, "noise_multiplier": 1.0, "clip": 0.5}

    def controller(**shared):
        return FedVeilController(site_training=True, **shared)

    training = {"data": "hostile_data:broken", "local": {"lr": 0.1}}
    server, seen, rounds = run(
        tmp_path,
        monkeypatch,
        "record",
        controller=controller,
        executor=FedVeilExecutor,
        parameters=record,
        training=training,
    )
    assert (rounds, planted(server, seen)) == (2, [])
