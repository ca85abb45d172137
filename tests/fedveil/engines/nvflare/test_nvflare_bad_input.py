"""What a site cannot do is refused there in clear words, and to the server in constant ones; nothing is released."""

import json
import logging
import threading
from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import ReturnCode
from nvflare.private.fed.app.fl_conf import create_privacy_manager

from fedveil.methods import build
from fedveil.nvflare import FedVeilExecutor, PrivacyFilter, ReleaseFilter, begin_ledger
from flare_kit import MODEL, Site, Trainer
from test_nvflare_executor import RECORD, TRAINING
from test_nvflare_filters import code, released, task

pytestmark = pytest.mark.nvflare
DECLINED = ReturnCode.TASK_DATA_FILTER_ERROR
SECRET = "diagnosis C50"


class Waiting(Trainer):
    """Trains once another job has had its turn."""

    def __init__(self, gate):
        super().__init__(0)
        self.began, self.gate = threading.Event(), gate

    def execute(self, *arguments):
        self.began.set()
        assert self.gate.wait(30)
        return super().execute(*arguments)


def of_job(number, folder, executor, **arguments):
    """A job of its own at the same site, in the place of a second process."""
    given = {"model": MODEL, "seed": 0, **arguments}
    one = Site("site-a", folder / number, executor, [PrivacyFilter(**given), ReleaseFilter()])
    one.engine.manager.job_id = one.runner.job_id = number
    return one


def own_lines(caplog):
    """What FedVeil wrote into the site's log."""
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("FedVeil")]


TRAINS = {
    "a script's executor": (lambda: Trainer(0), {}),
    "the site's own module": (FedVeilExecutor, {"training": TRAINING}),
}


@pytest.mark.parametrize("who", TRAINS)
def test_the_second_of_two_jobs_on_one_ledger_is_refused_while_the_first_trains(
    who, tmp_path, caplog, monkeypatch
):
    path = begin_ledger(tmp_path / "ledgers", "site-a", by="the tests", head=tmp_path / "head")
    place = {"ledger": str(tmp_path / "ledgers"), "head": str(tmp_path / "head"), "seed": None}
    executor, arguments = TRAINS[who]
    given, gate, replies = {"method": "sga-ldp", **place}, threading.Event(), []
    first = of_job("job-1", tmp_path, Waiting(gate), **given)
    second = of_job("job-2", tmp_path, executor(), **given, **arguments)
    busy = threading.Thread(target=lambda: replies.append(first.do("train", task())))
    busy.start()
    try:
        assert first.executor.began.wait(30)
        before = path.read_bytes()
        monkeypatch.setattr("fedveil.files.locked.PATIENCE", 0.1)
        refused = second.do("train", task())
        assert path.read_bytes() == before
    finally:
        gate.set()
        busy.join(30)
    assert (code(refused), code(replies[0])) == (DECLINED, ReturnCode.OK)
    assert "DXO" not in refused
    assert "ledger" not in str(refused)
    assert any("site-a.jsonl is in use by another process" in line for line in own_lines(caplog))
    spent = len(path.read_text().splitlines())
    assert code(second.do("train", task())) == ReturnCode.OK  # once the first job's task is done
    assert len(path.read_text().splitlines()) == spent + 2  # the intent, then the release


def test_a_second_job_waits_for_the_task_of_the_first(tmp_path):
    begin_ledger(tmp_path / "ledgers", "site-a", by="the tests", head=tmp_path / "head")
    place = {"ledger": str(tmp_path / "ledgers"), "head": str(tmp_path / "head"), "seed": None}
    given, gate, replies = {"method": "sga-ldp", **place}, threading.Event(), []
    first = of_job("job-1", tmp_path, Waiting(gate), **given)
    second = of_job("job-2", tmp_path, Trainer(0), **given)
    busy = threading.Thread(target=lambda: replies.append(first.do("train", task())))
    busy.start()
    assert first.executor.began.wait(30)
    threading.Timer(0.1, gate.set).start()
    assert code(second.do("train", task())) == ReturnCode.OK
    busy.join(30)
    assert code(replies[0]) == ReturnCode.OK


ABSENT = {
    "data": ({"data": "hospital_nowhere:data"}, "training.data"),
    "data in a package": ({"data": "site_package.nowhere:data"}, "training.data"),
    "a trainer": ({"trainer": "hospital_nowhere.study:trainer"}, "training.trainer"),
}
TRUSTS = {
    "a trusted server": {"method": "vanilla"},
    "no trust": {"method": "sga-ldp"},
    "noise inside training": {"method": "record", "parameters": RECORD},
}


# with noise inside training FedVeil itself trains: a trainer is refused before it is looked for
BOTH = [
    (what, trust)
    for what, (changes, _) in ABSENT.items()
    for trust in TRUSTS
    if "data" in changes or trust != "noise inside training"
]
READS = """
from pathlib import Path
Path({copy!r}).write_bytes(Path({ledger!r}).read_bytes())
raise RuntimeError("age 47, {secret}")
"""


@pytest.mark.parametrize(("what", "trust"), BOTH)
def test_a_site_without_its_module_declines_before_training(
    what, trust, tmp_path, caplog, monkeypatch
):
    package = tmp_path / "site_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported too early')")
    monkeypatch.syspath_prepend(tmp_path)
    changes, field = ABSENT[what]
    training = {**TRAINING, **changes}
    one = of_job("job-1", tmp_path, FedVeilExecutor(), **TRUSTS[trust], training=training)
    with caplog.at_level(logging.WARNING):
        reply = one.do("train", task())
    assert code(reply) == DECLINED
    assert "DXO" not in reply
    for private in (field, "hospital_nowhere", "site_package"):
        assert private not in str(reply)
    [line] = own_lines(caplog)
    assert field in line
    assert training[field.removeprefix("training.")] in line
    [asks] = one.scope.task_data_filters["in"]
    assert asks._memories == {}  # no ledger was begun, and nothing was charged


@pytest.mark.parametrize("named", ["data", "trainer"])
@pytest.mark.parametrize("where", ["module", "package"])
def test_a_sites_module_may_read_data_and_is_imported_after_the_task_is_charged(
    where, named, tmp_path, caplog, monkeypatch
):
    """A server may not learn, for nothing, whether a site's data can be read."""
    ledger = begin_ledger(tmp_path / "ledgers", "site-a", by="the tests", head=tmp_path / "head")
    place = {"ledger": str(tmp_path / "ledgers"), "head": str(tmp_path / "head"), "seed": None}
    copy = tmp_path / "ledger when the module ran"
    name = f"study_{where}_{named}"
    lines = READS.format(copy=str(copy), ledger=str(ledger), secret=SECRET)
    if where == "package":
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(lines)
        (tmp_path / name / "cohort.py").write_text("")
        name += ".cohort"
    else:
        (tmp_path / f"{name}.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    given = {"method": "sga-ldp", "training": {**TRAINING, named: f"{name}:{named}"}, **place}
    before = ledger.read_bytes()
    disagrees = of_job("job-1", tmp_path, FedVeilExecutor(), **given, rounds=7)
    assert code(disagrees.do("train", task())) == DECLINED
    assert not copy.exists()
    assert ledger.read_bytes() == before
    reply = of_job("job-2", tmp_path, FedVeilExecutor(), **given).do("train", task())
    assert code(reply) == ReturnCode.OK  # a zero update with the noise of any other
    seen = copy.read_bytes()
    assert len(seen.splitlines()) == len(before.splitlines()) + 1  # the intent is on disk
    assert len(ledger.read_bytes().splitlines()) == len(before.splitlines()) + 2
    assert SECRET not in str(reply)
    assert SECRET in caplog.text  # the site's own log


@pytest.mark.parametrize("named", ["data", "trainer"])
def test_a_module_without_the_name_is_a_zero_update_and_the_sites_log_says_so(
    named, tmp_path, caplog
):
    training = {**TRAINING, named: "site_module:nothing"}
    one = of_job("job-1", tmp_path, FedVeilExecutor(), method="sga-ldp", training=training)
    reply = one.do("train", task())
    assert code(reply) == ReturnCode.OK
    assert "nothing" not in str(reply)
    assert f"training.{named} = 'site_module:nothing'" in caplog.text


def test_a_site_says_why_where_flares_secure_logging_hides_errors(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("NVFLARE_SECURE_LOGGING", "true")
    training = {**TRAINING, "data": "hospital_nowhere:data"}
    one = of_job("job-1", tmp_path, FedVeilExecutor(), method="sga-ldp", training=training)
    assert code(one.do("train", task())) == DECLINED
    [line] = own_lines(caplog)
    assert "hospital_nowhere" in line


def scopes_of(folder, **scopes):
    """FLARE's own privacy manager of a site's privacy.json with these scopes, the first one the default."""
    asks = "fedveil.nvflare.PrivacyFilter"
    written = []
    for name, arguments in scopes.items():
        first = {"path": asks, "direction": "in", "args": {"model": MODEL, "seed": 0, **arguments}}
        last = {"path": "fedveil.nvflare.ReleaseFilter", "direction": "out"}
        filters = {"task_data_filters": [first], "task_result_filters": [last]} if arguments else {}
        written.append({"name": name, **filters})
    file = folder / "privacy.json"
    file.write_text(json.dumps({"scopes": written, "default_scope": next(iter(scopes))}))
    workspace = SimpleNamespace(get_site_privacy_file_path=lambda: str(file))
    return create_privacy_manager(workspace, names_only=False)


def in_scope(manager, name, folder):
    """A site whose job names a scope."""
    one = Site("site-a", folder, Trainer(0), [])
    one.scope = manager.get_scope(name)
    return one


def test_a_job_chooses_among_the_scopes_that_a_site_has(tmp_path):
    """What binds is the scope that the job names, so each scope has to protect."""
    strict, weak = {"method": "sga-ldp"}, {"method": "sga-ldp", "rounds": 5}
    manager = scopes_of(tmp_path, fedveil=strict, study=weak, open={"method": "vanilla"}, bare={})
    noised = released(in_scope(manager, "", tmp_path / "default").do("train", task()))
    named = released(in_scope(manager, "fedveil", tmp_path / "named").do("train", task()))
    assert (noised[0].value == named[0].value).all()  # without a name: the default
    assert code(in_scope(manager, "study", tmp_path / "study").do("train", task())) == DECLINED
    clear = in_scope(manager, "open", tmp_path / "open").do("train", task())
    assert code(clear) == ReturnCode.OK
    model = released(clear, build("vanilla"))[0]
    assert not (model.value == noised[0].value).all()  # the other scope's method: no noise
    bare = in_scope(manager, "bare", tmp_path / "bare").do("train", task())
    assert code(bare) == ReturnCode.OK  # a scope without filters protects nobody
    assert manager.get_scope("nobody's") is None  # FLARE deploys no job that names such a one


def test_one_ledger_binds_in_each_scope_of_a_site(tmp_path):
    begin_ledger(tmp_path / "ledgers", "site-a", by="the tests", head=tmp_path / "head")
    place = {"ledger": str(tmp_path / "ledgers"), "head": str(tmp_path / "head"), "seed": None}
    given = {"method": "sga-ldp", "participations": 1, **place}
    manager = scopes_of(tmp_path, fedveil=given, study=given)
    assert code(in_scope(manager, "fedveil", tmp_path / "a").do("train", task())) == ReturnCode.OK
    other = in_scope(manager, "study", tmp_path / "b")
    other.engine.manager.job_id = other.runner.job_id = "job-2"
    assert code(other.do("train", task())) == DECLINED
    assert other.executor.trained == 0
