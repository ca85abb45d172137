"""What leaves a site, and what it refuses, with FLARE's own client runner around the filters."""

import json
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.apis.workspace import Workspace
from nvflare.app_common.ccwf.client_ctl import ClientSideController
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.widgets.fed_event import ClientFedEventRunner
from nvflare.widgets.info_collector import InfoCollector
from nvflare.widgets.widget import Widget

from fedveil.engines.lifetime import LifetimeLedger
from fedveil.engines.nvflare.pending import RunMemory
from fedveil.engines.nvflare.shareables import method_of, read_reply, write_broadcast
from fedveil.errors import FieldError
from fedveil.methods import Broadcast, PublicFacts, build
from fedveil.nvflare import JobGuard, PrivacyFilter, ReleaseFilter, begin_ledger
from flare_kit import MODEL, ROUNDS, SITES, Site, Trainer, learner, run, sites_of

pytestmark = pytest.mark.nvflare
SGA, LAYOUT = build("sga-ldp"), learner().layout
SECRET = "patient 4711"


def task(round_=1, rounds=ROUNDS, sites=SITES, start=None):
    model = torch.zeros(LAYOUT.size) if start is None else start
    facts = PublicFacts(round=round_, rounds=rounds, cohort=len(sites), dimension=LAYOUT.size)
    return write_broadcast(Broadcast(models=model[None], public=facts), LAYOUT, sites)


def site(folder, executor=None, method="sga-ldp", **arguments):
    arguments = {"seed": 0, **arguments}
    filters = [PrivacyFilter(model=MODEL, method=method, **arguments), ReleaseFilter()]
    return Site("site-a", folder, executor or Trainer(0), filters)


def code(reply):
    return reply.get_return_code()


def released(reply, method=SGA):
    return read_reply(reply, LAYOUT, method.client)


def plant(result, data, fl_ctx):
    """What training code may leave wherever FLARE sends something along."""
    result["DXO"]["data"]["stolen"] = np.ones(3)
    result["DXO"]["meta"].update(note=SECRET, initial_metrics={"num-examples": 16, SECRET: 1.0})
    result["DXO"]["meta"]["fedveil.reply"] = {"side": SECRET}
    result[SECRET] = SECRET
    result.set_header("note", SECRET)
    data.add_cookie("note", SECRET)
    data.get_cookie_jar()["list"].append(SECRET)
    fl_ctx.set_prop("note", SECRET, private=False, sticky=False)
    fl_ctx.set_prop("lasting", SECRET, private=False, sticky=True)
    for sticky in (False, True):
        fl_ctx.set_prop(f"{SECRET}, {sticky}", 1, private=False, sticky=sticky)
    fl_ctx.get_prop("public")["note"] = SECRET
    return result


def unsafe(result, data, fl_ctx):
    plant(result, data, fl_ctx)
    raise UnsafeJobError(SECRET)


@pytest.mark.parametrize(
    "ends", ["the ledger cannot be written", "a filter before it raises", "the job is unsafe"]
)
def test_where_no_result_leaves_nothing_leaves_beside_it(ends, tmp_path, monkeypatch):
    def full(memory, line):
        raise OSError("disk full")

    class Breaking(Filter):
        def process(self, shareable, fl_ctx):
            raise ValueError("broken")

    filters = [PrivacyFilter(model=MODEL, method="sga-ldp", seed=0), ReleaseFilter()]
    if ends.startswith("a filter"):
        filters.insert(1, Breaking())
    one = Site(
        "site-a",
        tmp_path,
        Trainer(0, extra=unsafe if ends == "the job is unsafe" else plant),
        filters,
    )
    if ends.startswith("the ledger"):
        monkeypatch.setattr(RunMemory, "store", full)
    reply = one.do("train", task())
    assert one.executor.trained == 1
    assert code(reply) != ReturnCode.OK
    assert SECRET not in str(reply)
    assert SECRET not in str(one.context.get_all_public_props())
    assert SECRET not in str(one.engine.manager.new_context().get_all_public_props())
    assert reply.get_cookie_jar() == {"task": "cookie of the server", "list": []}


def test_nothing_but_the_release_leaves_under_local_trust(tmp_path):
    def extra(result, data, fl_ctx):
        result = plant(result, data, fl_ctx)
        del result["DXO"]["data"]["stolen"]  # with it the whole model is refused: another test
        return result

    planted, plain = site(tmp_path / "a", Trainer(0, extra=extra)), site(tmp_path / "b")
    found, expected = planted.do("train", task()), plain.do("train", task())
    assert SECRET not in str(found)
    assert SECRET not in str(planted.context.get_all_public_props())
    assert SECRET not in str(planted.engine.manager.new_context().get_all_public_props())
    assert str(found.keys()) == str(expected.keys())
    assert found["DXO"]["meta"] == expected["DXO"]["meta"]
    assert found["__headers__"].keys() == expected["__headers__"].keys()
    assert found.get_cookie_jar() == {"task": "cookie of the server", "list": []}
    [model] = released(found)
    assert torch.equal(model.value, released(expected)[0].value)


def test_under_central_trust_count_and_metrics_leave_and_nothing_else(tmp_path):
    def extra(result, data, fl_ctx):
        result["DXO"]["meta"]["note"] = SECRET
        result.set_header("note", SECRET)
        return result

    reply = site(tmp_path, Trainer(0, extra=extra), "vanilla").do("train", task())
    assert SECRET not in str(reply)
    kinds = [(r.kind, r.name) for r in released(reply, build("vanilla"))]
    assert kinds == [("model", ""), ("count", ""), ("metric", "train_loss")]


@pytest.mark.parametrize(
    ("former", "sum_"), [("record-sum", "trusted"), ("record-secure", "secure")]
)
def test_a_former_name_is_refused_with_what_it_is_called_now(former, sum_):
    with pytest.raises(FieldError, match=f'"record" with sum = "{sum_}"'):
        method_of(former, {})


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ({"rounds": 5}, {}),
        ({}, {"round_": ROUNDS + 1}),
        ({}, {"start": torch.full((LAYOUT.size,), float("nan"))}),
        ({}, {"sites": ["site-b"]}),
        ({}, {"sites": ["site-a", "site-a"]}),
        ({"participations": 1}, {"round_": 2}),
    ],
)
def test_it_declines_before_anything_trains(arguments, given, tmp_path):
    one = site(tmp_path, **arguments)
    if "participations" in arguments:
        assert code(one.do("train", task())) == ReturnCode.OK
    trained = one.executor.trained
    reply = one.do("train", task(**given))
    assert code(reply) == ReturnCode.TASK_DATA_FILTER_ERROR
    assert one.executor.trained == trained
    assert "DXO" not in reply


def test_a_task_that_is_not_the_controllers_is_refused(tmp_path):
    one, foreign = site(tmp_path), task()
    del foreign["DXO"]["meta"]["fedveil.public"]
    assert code(one.do("train", foreign)) == ReturnCode.TASK_DATA_FILTER_ERROR
    assert code(one.do("train", Shareable())) == ReturnCode.TASK_DATA_FILTER_ERROR
    assert one.executor.trained == 0


@pytest.mark.parametrize("name", ["validate", "submit_model", "anything"])
def test_other_tasks_are_refused_under_local_trust_alone(name, tmp_path):
    one = site(tmp_path / "a")
    assert code(one.do(name, task())) == ReturnCode.TASK_DATA_FILTER_ERROR
    assert one.executor.trained == 0
    other = site(tmp_path / "b", method="vanilla")
    assert code(other.do(name, task())) == ReturnCode.OK
    assert other.executor.trained == 1


class Raising(Executor):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        if isinstance(self.what, Exception):
            raise self.what
        return self.what


def diverged(result, data, fl_ctx):
    next(iter(result["DXO"]["data"].values()))[:] = np.nan
    return result


def stolen(result, data, fl_ctx):
    result["DXO"]["data"]["stolen"] = np.ones(3)
    return result


FAILURES = {
    "raises": lambda: Raising(ValueError(SECRET)),
    "raises what FLARE takes for its own": lambda: Raising(RuntimeError(SECRET)),
    "answers with a return code": lambda: Raising(
        make_reply(ReturnCode.EXECUTION_EXCEPTION, {"note": SECRET})
    ),
    "answers with nothing": lambda: Raising(None),
    "answers without a model": lambda: Raising(Shareable({"note": SECRET})),
    "diverges": lambda: Trainer(0, extra=diverged),
    "sends an array that nobody declared": lambda: Trainer(0, extra=stolen),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_what_fails_after_data_were_touched_is_a_protected_zero_update(failure, tmp_path):
    replies = [
        site(tmp_path / name, make()).do("train", task())
        for name, make in list(FAILURES.items())[:1]
    ]
    reply = site(tmp_path / "this", FAILURES[failure]()).do("train", task())
    assert code(reply) == ReturnCode.OK
    assert SECRET not in str(reply)
    [model] = released(reply)
    assert torch.isfinite(model.value).all()
    assert model.value.std() > 0  # it is noise
    assert torch.equal(model.value, released(replies[0])[0].value)  # the same, whatever failed


def test_a_failed_site_is_not_seen_among_the_others(tmp_path):
    executors = [Trainer(0), FAILURES["raises"](), Trainer(2, extra=diverged)]
    found = run(tmp_path, sites_of(tmp_path, "sga-ldp", executors=executors), method="sga-ldp")
    assert [(r.used, r.failed, r.invalid) for r in found.history] == [((0, 1, 2), {}, {})] * ROUNDS
    assert torch.isfinite(found.models).all()


def test_the_lifetime_ledger_grows_by_a_release_a_round_and_outlives_the_job(tmp_path):
    path = begin_ledger(tmp_path / "ledgers", "site-a", by="the tests", head=tmp_path / "head")
    own = {
        "ledger": str(tmp_path / "ledgers"),
        "head": str(tmp_path / "head"),
        "seed": None,
        "participations": 4,
    }
    first, lines = site(tmp_path / "first", **own), []
    for number in range(1, ROUNDS + 1):
        assert code(first.do("train", task(number))) == ReturnCode.OK
        lines.append(path.read_text().splitlines())
    assert [len(b) - len(a) for a, b in pairwise(lines)] == [2, 2]  # the intent, then the release
    assert lines[0][1:] == lines[2][1 : len(lines[0])]
    again = first.do("train", task(ROUNDS))  # the same answer, and no cost
    assert torch.equal(released(again)[0].value, released(first.sent[-2])[0].value)
    assert path.read_text().splitlines() == lines[2]
    later = site(tmp_path / "later", **own)
    later.engine.manager.job_id = later.runner.job_id = "job-2"
    assert read(later, 1) == ReturnCode.OK
    assert read(later, 2) == ReturnCode.TASK_DATA_FILTER_ERROR  # four in all
    assert later.executor.trained == 1
    path.write_text("".join(f"{line}\n" for line in lines[0]))  # a backup, with room for three more
    restored = site(tmp_path / "restored", **own)
    restored.engine.manager.job_id = restored.runner.job_id = "job-3"
    assert read(restored, 1) == ReturnCode.TASK_DATA_FILTER_ERROR
    assert restored.executor.trained == 0


@pytest.mark.parametrize("rounds", [ROUNDS, 5])
def test_the_ledger_is_free_again_after_every_task(rounds, tmp_path):
    begin_ledger(tmp_path / "ledgers", "site-a", by="the tests", head=tmp_path / "head")
    one = site(
        tmp_path,
        ledger=str(tmp_path / "ledgers"),
        head=str(tmp_path / "head"),
        seed=None,
        rounds=ROUNDS,
    )
    for start in (None, torch.full((LAYOUT.size,), float("nan"))):
        one.do("train", task(rounds=rounds, start=start))
        with LifetimeLedger(
            tmp_path / "ledgers", "site-a", "another job", head=tmp_path / "head"
        ) as free:
            assert free.ledger.party == "site-a"


def read(one, number):
    from flare_kit import FLContext, FLContextKey, TaskAssignment

    fl_ctx, peer = one.engine.manager.new_context(), FLContext()
    fl_ctx.set_prop(FLContextKey.RUNNER, one.runner, private=True)
    fl_ctx.set_prop(FLContextKey.SCOPE_OBJECT, one.scope, private=True)
    peer.put("__run_num__", one.runner.job_id, private=False, sticky=True)
    fl_ctx.set_peer_context(peer)
    return code(one.runner._process_task(TaskAssignment("train", "t", task(number)), fl_ctx))


def test_secure_noise_needs_a_ledger_that_somebody_began(tmp_path):
    with pytest.raises(FieldError) as refused:
        PrivacyFilter(model=MODEL, method="sga-ldp")
    assert refused.value.field == "ledger"
    assert "begin_ledger" in str(refused.value)
    one = site(tmp_path, ledger=str(tmp_path / "none"), head=str(tmp_path / "head"), seed=None)
    assert code(one.do("train", task())) == ReturnCode.TASK_DATA_FILTER_ERROR
    assert one.executor.trained == 0


def test_a_policy_of_the_sites_decides(tmp_path):
    for text, expected in (("participations = 1", ReturnCode.OK), ("participations = 0", None)):
        policy = tmp_path / "policy.toml"
        policy.write_text(f"secure_source = false\n[total]\n{text}\n")
        if expected is None:
            with pytest.raises(FieldError):
                site(tmp_path / "refused", policy=str(policy))
            continue
        one = site(tmp_path / "one", policy=str(policy))
        assert code(one.do("train", task(1))) == expected
        assert code(one.do("train", task(2))) == ReturnCode.TASK_DATA_FILTER_ERROR


class Behind(Filter):
    def process(self, shareable, fl_ctx):
        return shareable


def chains():
    own = [PrivacyFilter(model=MODEL, method="sga-ldp", seed=0), ReleaseFilter()]
    vanilla = PrivacyFilter(model=MODEL, method="vanilla", seed=0)
    return {
        "no release filter": {"filters": own[:1]},
        "no privacy filter": {"filters": own[1:]},
        "another filter behind": {"filters": own, "behind": [Behind()]},
        "a job's filter behind, and a second release": {
            "filters": own,
            "behind": [Behind(), ReleaseFilter()],
        },
        "a job's weaker method behind the site's": {"filters": [own[0], vanilla, own[1]]},
    }


@pytest.mark.parametrize("chain", chains())
def test_a_chain_in_which_a_result_could_leave_unprotected_is_refused(chain, tmp_path):
    one = Site("site-a", tmp_path, Trainer(0), **chains()[chain])
    reply = one.do("train", task())
    assert code(reply) in (ReturnCode.TASK_DATA_FILTER_ERROR, ReturnCode.TASK_RESULT_FILTER_ERROR)
    assert "DXO" not in reply


def made(path, *arguments, **named):
    """Of a class that not every FLARE has."""
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(import_module(f"nvflare.{module}"), name)
    except (ImportError, AttributeError):
        pytest.skip(f"this FLARE has no {name}")
    return kind(*arguments, **named)


class OfTheJob(Widget):
    """What a job's own code may bring."""


PARTS = {
    "hands out files": lambda: made(
        "app_common.streamers.file_retriever.FileRetriever", source_dir="/"
    ),
    "hands out objects": lambda: made(
        "app_common.streamers.container_retriever.ContainerRetriever"
    ),
    "streams the site's log": lambda: made("app_common.logging.site_log_streamer.SiteLogStreamer"),
    "streams the job's log": lambda: made("app_common.logging.job_log_streamer.JobLogStreamer"),
    "sends the site's log, in FLARE 2.7": lambda: made(
        "app_common.logging.log_sender.ErrorLogSender"
    ),
    "sends events": lambda: ConvertToFedEvent(events_to_convert=["analytix_log_stats"]),
    "runs a command": lambda: made(
        "app_common.launchers.subprocess_launcher.SubprocessLauncher", script="curl"
    ),
    "streams tensors": lambda: made("app_opt.tensor_stream.client.TensorClientStreamer"),
    "looks like the runtime": lambda: made(
        "private.stream_runner.ObjectStreamer",
        SimpleNamespace(register_aux_message_handler=lambda **named: None),
    ),
    "is a job's own": OfTheJob,
    "is no part of FLARE's at all": object,
}


@pytest.mark.parametrize("what", PARTS)
def test_a_part_that_is_on_no_list_is_refused_before_anything_trains(what, tmp_path):
    for place in ("components", "handlers"):
        part = PARTS[what]()
        if place == "handlers" and what in (
            "looks like the runtime",
            "is no part of FLARE's at all",
        ):
            continue
        one = site(tmp_path / place)
        one.engine.components = {"it": part} if place == "components" else {}
        one.engine.handlers = [part] if place == "handlers" else []
        assert code(one.do("train", task())) == ReturnCode.TASK_DATA_FILTER_ERROR
        assert one.executor.trained == 0
        answers_for = [f"{type(part).__module__}.{type(part).__qualname__}"]
        vouched = site(tmp_path / f"{place} of the site's", allow=answers_for)
        vouched.engine.components, vouched.engine.handlers = (
            one.engine.components,
            one.engine.handlers,
        )
        assert code(vouched.do("train", task())) == ReturnCode.OK


class Swarming(ClientSideController):
    """A site's own executor on top of one that talks to other sites."""

    def start_workflow(self, shareable, fl_ctx, abort_signal):
        return make_reply(ReturnCode.OK)

    def do_learn_task(self, name, data, fl_ctx, abort_signal):
        pass


def client_api(**arguments):
    return made("app_common.executors.client_api_executor.ClientAPIExecutor", **arguments)


EXECUTORS = {
    "talks to other sites": lambda: Swarming(task_name_prefix="swarm"),
    "is FLARE's, and on no list": lambda: made("app_common.np.np_trainer.NPTrainer"),
    "runs a job's command": lambda: client_api(execution_mode="external_process", command="curl"),
    "is attached from outside": lambda: client_api(execution_mode="attach", attach_id="x"),
}


@pytest.mark.parametrize("what", EXECUTORS)
def test_an_executor_that_is_on_no_list_is_refused_for_whatever_task(what, tmp_path):
    for tasks in ("another", "swarm_*"):
        one, executor = site(tmp_path / tasks), EXECUTORS[what]()
        one.runner.task_router.add_executor([tasks], executor)
        assert code(one.do("train", task())) == ReturnCode.TASK_DATA_FILTER_ERROR
        assert one.executor.trained == 0


def test_what_every_job_of_flares_holds_is_on_the_list(tmp_path):
    one = site(tmp_path)
    in_process = "app_opt.pt.in_process_client_api_executor.PTInProcessClientAPIExecutor"
    try:
        executor = client_api(execution_mode="in_process", task_script_path="train.py")
    except pytest.skip.Exception:  # FLARE 2.7 and 2.8
        executor = made(in_process, task_script_path="train.py")
    one.runner.task_router.add_executor(["another"], executor)
    auxiliary = made("private.aux_runner.AuxRunner", one.engine)
    streamer = made("private.stream_runner.ObjectStreamer", auxiliary)
    widgets = [InfoCollector(), ClientFedEventRunner()]
    one.engine.handlers = [executor, *widgets, auxiliary, streamer, one.runner]
    assert code(one.do("train", task())) == ReturnCode.OK


def test_warnings_and_errors_are_not_collected_for_the_server(tmp_path):
    """FLARE's `show_errors` reads them, and their texts quote data."""
    one, collector = site(tmp_path, Raising(ValueError(SECRET))), InfoCollector()
    one.engine.handlers = [collector]
    one.engine.fire_event = lambda event, fl_ctx: fire_event_to_components(
        event, one.engine.handlers, fl_ctx
    )
    collector.reset_all()
    one.executor.log_warning(one.engine.manager.new_context(), SECRET)
    assert SECRET in str(collector.get_errors())
    assert code(one.do("train", task())) == ReturnCode.OK
    assert (
        code(one.do("validate", task())) == ReturnCode.TASK_DATA_FILTER_ERROR
    )  # which FLARE logs as an exception
    one.executor.log_exception(one.engine.manager.new_context(), SECRET)
    assert not collector.get_errors().get("exception")
    assert SECRET not in str(collector.get_errors())


@pytest.mark.parametrize("what", ["hands out files", "is a job's own"])
def test_the_guard_stops_a_job_before_its_parts_start(what, tmp_path):
    for allow in (
        [],
        ["nvflare.app_common.streamers.file_retriever.FileRetriever", f"{__name__}.OfTheJob"],
    ):
        one, part = site(tmp_path / str(len(allow))), PARTS[what]()
        guard = JobGuard(allow=allow)
        one.engine.components = {"guard": guard, "it": part}
        one.engine.handlers = [part, InfoCollector(), guard]
        fl_ctx = one.engine.manager.new_context()
        fl_ctx.set_prop(FLContextKey.RUNNER, one.runner, private=True)
        fire_event_to_components(EventType.ABOUT_TO_START_RUN, one.engine.handlers, fl_ctx)
        assert len(one.engine.panics) == (not allow)
        assert (part in one.engine.handlers) == bool(allow)
        assert len(one.engine.handlers) == 2 + bool(allow)


@pytest.mark.parametrize(
    ("component", "switch", "expected"),
    [
        ("app_common.logging.site_log_streamer.SiteLogStreamer", None, False),
        ("app_common.logging.site_log_streamer.SiteLogStreamer", True, False),
        ("app_common.logging.site_log_streamer.SiteLogStreamer", False, True),
        ("app_common.logging.log_sender.ErrorLogSender", False, False),
        ("app_common.resource_managers.gpu_resource_manager.GPUResourceManager", None, True),
    ],
)
def test_what_the_sites_own_process_loads_is_asked_too(component, switch, expected, tmp_path):
    one = site(tmp_path)
    local = tmp_path / "workspace" / "local"
    (tmp_path / "workspace" / "startup").mkdir(parents=True)
    local.mkdir()
    (tmp_path / "workspace" / "startup" / "fed_client.json").write_text("{}")
    values = {} if switch is None else {"allow_log_streaming": switch}
    resources = {**values, "components": [{"id": "it", "path": f"nvflare.{component}"}]}
    (local / "resources.json.default").write_text(json.dumps(resources))
    one.engine.get_workspace = lambda: Workspace(str(tmp_path / "workspace"), "site-a")
    reply = one.do("train", task())
    assert code(reply) == (ReturnCode.OK if expected else ReturnCode.TASK_DATA_FILTER_ERROR)
    assert one.executor.trained == expected


def test_filters_of_a_jobs_configuration_work_for_the_task_by_name(tmp_path):
    filters = [PrivacyFilter(model=MODEL, method="sga-ldp", seed=0), ReleaseFilter()]
    one = Site("site-a", tmp_path, Trainer(0), filters, scoped=False)
    scoped = site(tmp_path / "scoped")
    assert torch.equal(
        released(one.do("train", task()))[0].value, released(scoped.do("train", task()))[0].value
    )


def test_a_process_that_lost_the_ledger_of_its_run_is_refused(tmp_path):
    assert code(site(tmp_path).do("train", task(1))) == ReturnCode.OK
    one = site(tmp_path)  # another process, in the same folder
    assert code(one.do("train", task(2))) == ReturnCode.TASK_DATA_FILTER_ERROR
    assert one.executor.trained == 0
    assert list(Path(tmp_path).rglob("fedveil-site-a"))


def test_a_site_keeps_its_partition(tmp_path):
    one = site(tmp_path)
    assert code(one.do("train", task(1))) == ReturnCode.OK
    assert (
        code(one.do("train", task(2, sites=["site-0", *SITES])))
        == ReturnCode.TASK_DATA_FILTER_ERROR
    )


def test_a_job_that_a_server_without_a_folder_began_is_not_begun_again(tmp_path):
    from fedveil.engines.nvflare.controller import require_first

    require_first(tmp_path / "job" / "marker")
    with pytest.raises(FieldError, match="job"):
        require_first(tmp_path / "job" / "marker")
