"""Whole hostile jobs in FLARE's proof of concept: nothing planted at a site reaches the server's memory or its disk.

The sites' filters are their own. The server is as hostile as FLARE lets it be: it records all that it is shown.
"""

import json
import time
from contextlib import suppress

import pytest
import recipes_needed  # noqa: F401
from hostile_parts import Hostile, Whisper
from nvflare.app_common.filters.exclude_vars import ExcludeVars
from nvflare.app_common.logging.job_log_streamer import JobLogStreamer
from nvflare.app_common.streamers.file_retriever import FileRetriever
from nvflare.app_opt.pt.recipes.swarm import SwarmLearningRecipe
from nvflare.app_opt.tracking.tb.tb_writer import TBWriter
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner
from nvflare.recipe import ProdEnv

from asker_kit import SHELL, Asker
from fedveil.nvflare import FedVeilController, PrivacyFilter, ReleaseFilter
from hello_kit import SITES, SimpleNetwork
from intruder_kit import in_memory, planted
from poc_kit import ADMIN, HERE, PATIENCE, Poc, privacy, scope
from recorder_kit import OtherTask, Recorder

pytestmark = [pytest.mark.nvflare, pytest.mark.deploy]
SHARED = {"model": "hello_kit:SimpleNetwork", "seed": 1}
LOCAL, OPEN = {**SHARED, "method": "sga-ldp"}, {**SHARED, "method": "vanilla"}


@pytest.fixture(scope="module")
def poc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    kits = {site: privacy([scope("fedveil", **LOCAL), scope("open", **OPEN)]) for site in SITES}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FEDVEIL_SEARCHED", str(folder))
        with Poc(folder, kits, unguarded=SITES[2:]) as running:
            running.searched = folder
            yield running


def script(arguments=""):
    return lambda: ScriptRunner(str(HERE / "hostile_client.py"), arguments)


def job_of(executor, controller=FedVeilController, what=LOCAL, parts=None, **meta):
    """A job whose server records; `parts` come to each site by its place."""
    job = FedJob("hostile", min_clients=len(SITES), meta_props=meta or None)
    job.to_server(controller(rounds=3, **what))
    job.to_server(Recorder(), id="recorder")
    for place, site in enumerate(SITES):
        job.to(executor(), site)
        for part, kind in parts[place] if parts else ():
            if kind is None:
                job.to(part, site, id=type(part).__name__)
            else:
                job.to(part, site, filter_type=kind, tasks=["train"])
    return job


def played(poc, job, folder):
    """The rounds that were combined, and what was found of the planted values in memory and on disk."""
    env = ProdEnv(startup_kit_location=str(poc.kits / ADMIN), login_timeout=60)
    number = env.deploy(job)
    searched, read, status = set(), 0, ""
    until = time.monotonic() + PATIENCE
    session = poc.session()
    while time.monotonic() < until and not status.startswith(("FINISHED", "FAILED", "ABORTED")):
        if (poc.searched / f"ended-{number}").exists() and not read:
            for pid in poc.pids("server"):
                found, more = in_memory(pid)
                searched, read = searched | found, read + more
            (poc.searched / f"searched-{number}").touch()
        status = str(session.get_job_meta(number).get("status"))
        time.sleep(0.5)
    session.close()
    for pid in poc.pids("server"):
        searched |= in_memory(pid)[0]
    disk = []
    for name in ("example_project/prod_00/server", "jobs-storage", "snapshot-storage"):
        disk += planted(poc.folder / name, poc.folder / "seen.bin")
    disk += [log for log in [poc.folder / "server.log"] if planted(log.parent / "none", log)]
    rounds = 0
    with suppress(Exception):
        for summary in poc.result(number, folder).rglob("fedveil/summary.json"):
            rounds = json.loads(summary.read_text())["rounds"]
    return status, rounds, searched, disk, read, number


FILTERS = [
    [(ExcludeVars(exclude_vars=["nothing"]), FilterType.TASK_RESULT)],  # behind the site's own
    [
        (PrivacyFilter(**OPEN), FilterType.TASK_DATA),
        (ReleaseFilter(), FilterType.TASK_RESULT),
    ],  # twice
    [(ReleaseFilter(), FilterType.TASK_RESULT), (ExcludeVars(["x"]), FilterType.TASK_RESULT)],
]
COMPONENTS = [
    [(FileRetriever(source_dir="/"), None), (Whisper(), None)],
    [(JobLogStreamer(), None)],
    [(TBWriter(), None), (Whisper(), None)],
]
JOBS = {
    "a script that plants everywhere": (lambda: job_of(script()), 3),
    "differences": (lambda: job_of(script("diff")), 3),
    "an executor of nine kinds of answers": (lambda: job_of(Hostile), 3),
    "filters behind, twice, in another order": (lambda: job_of(script(), parts=FILTERS), 0),
    "parts that read files, stream logs, send events": (
        lambda: job_of(script(), parts=COMPONENTS),
        0,
    ),
    "another task": (lambda: job_of(script(), controller=OtherTask), 0),
    "a scope that no site has": (lambda: job_of(script(), scope="public"), 0),
}


@pytest.mark.parametrize("name", JOBS)
def test_nothing_planted_reaches_the_server(name, poc, tmp_path):
    make, expected = JOBS[name]
    status, rounds, memory, disk, read, job = played(poc, make(), tmp_path)
    assert (memory, disk) == (set(), []), status
    assert rounds == expected, (status, poc.log(SITES[0], job)[-3000:], poc.tail())
    if expected:
        assert read > 50_000_000  # the process that combined was searched, once it had


def test_commands_from_the_servers_process_reach_no_file_of_a_guarded_site(poc, tmp_path):
    """The third site has no `SiteGuard`: so that nothing comes from the others means something."""
    for site in SITES:
        (poc.kits / site / "ward.csv").write_text(f"ward 4712 of {site}")
        (poc.kits / site / "decoy").mkdir()
    job = job_of(script())
    job.to_server(Asker(SITES, str(poc.kits / "{}" / "ward.csv"), "decoy"), id="asker")
    played(poc, job, tmp_path)
    asked = json.loads((poc.folder / "seen.bin.asked").read_text())
    for site in SITES[:2]:
        for question in (*SHELL, "sys.info", "sys.report_env", "info.show_stats"):
            assert asked[site][question].endswith("invalid_request"), (question, asked[site])
        assert (poc.kits / site / "decoy").exists()
        assert asked[site]["process_info"].endswith("None"), asked[site]
        assert asked[site]["a cookie"].endswith("None"), asked[site]
    assert "4712" in asked[SITES[2]]["a cookie"], asked[SITES[2]]
    reading = [asked[SITES[2]][command] for command in SHELL]
    assert all("ward" in text for text in reading), reading
    assert "4712" in reading[0]
    assert not (poc.kits / SITES[2] / "decoy").exists()
    assert "Memory Usage" in asked[SITES[2]]["process_info"]
    for site in SITES:
        assert "client_name" in asked[site]["train.check_status"], asked[site]
        assert "started" in asked[site]["check_status"], asked[site]
        for question in (
            "process_info of the job",
            "config_vars of the job",
            "show_stats",
            "show_errors",
            "a cookie to the job",
        ):
            assert asked[site][question].endswith("None"), (question, asked[site])


def test_a_swarm_of_flares_own_is_stopped_at_each_site(poc):
    """FLARE puts no filter around a peer's own training: the guard has to stop it before it starts."""
    given = {"name": "swarm", "model": SimpleNetwork(), "num_rounds": 1, "min_clients": 3}
    recipe = SwarmLearningRecipe(**given, train_script=str(HERE / "hostile_client.py"))
    status, job = poc.run(recipe)
    assert status != "FINISHED:COMPLETED"
    for site in SITES:
        assert "is not among the classes" in poc.log(site, job), poc.log(site, job)[-2000:]


def test_the_search_finds_what_central_trust_lets_through(poc, tmp_path):
    """A metric leaves there, as the page says: so an empty search above means something."""
    job = job_of(script(), what=OPEN, scope="open")
    _, _, memory, disk, read, _ = played(poc, job, tmp_path)
    assert disk
    assert memory
    assert read
