"""Tracking writers of a hostile job: what goes through them as events of the federation, with the filters and without."""

from importlib import import_module
from types import SimpleNamespace

import pytest
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.dxo import DXO
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.app_common.widgets.convert_to_fed_event import ConvertToFedEvent
from nvflare.app_common.widgets.streaming import AnalyticsSender
from nvflare.widgets.fed_event import ClientFedEventRunner
from nvflare.widgets.info_collector import InfoCollector

from fedveil.nvflare import JobGuard, PrivacyFilter, ReleaseFilter
from flare_kit import MODEL, Site, Trainer
from intruder_kit import SECRET, VALUE
from test_nvflare_filters import code, made, task

pytestmark = pytest.mark.nvflare
STATS = "analytix_log_stats"
PRIVATE = {"method": "sga-ldp"}


def writer(path):
    """A writer that a job's component is, which some versions of FLARE lack."""
    return lambda: made(f"app_opt.tracking.{path}")


WRITERS = {
    "AnalyticsSender": (
        AnalyticsSender,
        lambda w: w.add(SECRET, VALUE, AnalyticsDataType.SCALAR),
    ),
    "TensorBoard": (
        writer("tb.tb_writer.TBWriter"),
        lambda w: (w.add_scalar(SECRET, VALUE), w.add_scalars("all", {SECRET: VALUE})),
    ),
    "MLflow, a metric": (
        writer("mlflow.mlflow_writer.MLflowWriter"),
        lambda w: (w.log_metric(SECRET, VALUE), w.log_metrics({SECRET: VALUE})),
    ),
    "MLflow, parameters, texts and tags": (
        writer("mlflow.mlflow_writer.MLflowWriter"),
        lambda w: (
            w.log_params({SECRET: VALUE}),
            w.log_text(SECRET, "a.txt"),
            w.set_tag("a", SECRET),
        ),
    ),
    "Weights and Biases": (
        writer("wandb.wandb_writer.WandBWriter"),
        lambda w: w.log({SECRET: VALUE}),
    ),
}


class Writing(Trainer):
    """Training code that writes what it sees by a part of its job."""

    def __init__(self, part, write):
        super().__init__(0)
        self.part, self.write = part, write

    def execute(self, *arguments):
        self.write(self.part)
        return super().execute(*arguments)


class Wire:
    """All events of the federation that a site sends; FLARE's own runner of events is asked to send them."""

    def __init__(self, monkeypatch):
        self.sent = []

        def send(runner, request, fl_ctx, targets=None, secure=False):
            self.sent.append(dict(request))

        monkeypatch.setattr(ClientFedEventRunner, "fire_and_forget_request", send)

    @property
    def shows(self):
        return SECRET in str(self.sent) or str(VALUE) in str(self.sent)


@pytest.fixture
def wire(monkeypatch):
    return Wire(monkeypatch)


def deployed(folder, executor, parts, guarded, **arguments):
    """A site in whose process FLARE has built a job; what it answers to a task, or None if the guard stopped it."""
    filters = [PrivacyFilter(model=MODEL, seed=0, **arguments), ReleaseFilter()]
    one = Site("site-a", folder, executor, filters)
    engine, guard = one.engine, [JobGuard()] if guarded else []
    engine.components = {str(place): part for place, part in enumerate(parts)}
    engine.handlers = [*parts, InfoCollector(), ClientFedEventRunner(), *guard]
    engine.get_component = engine.components.get
    engine.new_context = engine.manager.new_context
    plain = engine.fire_event

    def fire(event, fl_ctx):
        plain(event, fl_ctx)
        fire_event_to_components(event, engine.handlers, fl_ctx)

    engine.fire_event = fire
    for event in (EventType.ABOUT_TO_START_RUN, EventType.START_RUN):
        fl_ctx = engine.manager.new_context()
        fl_ctx.set_prop(FLContextKey.RUNNER, one.runner, private=True)
        fire(event, fl_ctx)
        if engine.panics:  # FLARE aborts the job
            return None
    return one.do("train", task())


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_writer_of_the_job_sends_nothing(kind, guarded, wire, tmp_path):
    make, write = WRITERS[kind]
    part = make()
    parts = [part, ConvertToFedEvent([STATS], fed_event_prefix="fed.")]
    executor = Writing(part, write)
    reply = deployed(tmp_path, executor, parts, guarded, **PRIVATE)
    assert guarded or code(reply) == ReturnCode.TASK_DATA_FILTER_ERROR
    assert (reply is None) == guarded
    assert executor.trained == 0
    assert not wire.shows


@pytest.mark.parametrize("kind", WRITERS)
def test_under_central_trust_a_writer_sends_as_the_page_says(kind, wire, tmp_path):
    """So an empty wire elsewhere means something."""
    make, write = WRITERS[kind]
    part = make()
    parts = [part, ConvertToFedEvent([STATS], fed_event_prefix="fed.")]
    reply = deployed(tmp_path, Writing(part, write), parts, False, method="vanilla")
    assert code(reply) == ReturnCode.OK
    assert wire.shows


LOGGED = {
    "TensorBoard's": ("SummaryWriter", lambda w: w.add_scalar(SECRET, VALUE)),
    "MLflow's": ("MLflowWriter", lambda w: (w.log_metric(SECRET, VALUE), w.set_tag("a", SECRET))),
    "Weights and Biases'": ("WandBWriter", lambda w: w.log({SECRET: VALUE})),
}


def script(kind):
    """FLARE's executor of a script that writes by a writer of the Client API, straight to the federation."""
    name, write = LOGGED[kind]
    path = "app_common.executors.client_api_executor.ClientAPIExecutor"
    made(path, execution_mode="in_process", task_script_path="train.py")
    base = import_module("nvflare.app_common.executors.client_api_executor").ClientAPIExecutor
    tracking = import_module("nvflare.client.tracking")
    backends = import_module("nvflare.app_common.executors.client_api.in_process_backend")

    class Script(base):
        def execute(self, task_name, shareable, fl_ctx, abort_signal):
            backend = backends.InProcessBackend()
            backend._engine, backend._context = fl_ctx.get_engine(), SimpleNamespace(executor=self)

            def log(key, value, data_type, **more):
                backend._log_result_callback(
                    "", {"key": key, "value": value, "data_type": data_type, **more}, None
                )

            ctx = SimpleNamespace(api=SimpleNamespace(log=log))
            write(getattr(tracking, name)(ctx))
            return Trainer(0).execute(task_name, shareable, fl_ctx, abort_signal)

    executor = Script(execution_mode="in_process", task_script_path="train.py")
    executor.set_analytics_fire_fed_event(True)
    return executor


@pytest.mark.parametrize("kind", LOGGED)
def test_a_writer_of_the_client_api_sends_nothing_and_the_task_is_answered(kind, wire, tmp_path):
    reply = deployed(tmp_path, script(kind), [], True, **PRIVATE)
    assert code(reply) == ReturnCode.OK
    assert SECRET not in str(reply)
    assert not wire.shows
    reply = deployed(tmp_path / "open", script(kind), [], False, method="vanilla")
    assert code(reply) == ReturnCode.OK
    assert wire.shows


class Telling(FLComponent):
    """A job's own part: sends at each event of the run, by the same door as FLARE's writers."""

    def handle_event(self, event_type, fl_ctx):
        if event_type in (EventType.START_RUN, EventType.BEFORE_TASK_EXECUTION):
            self.fire_fed_event(
                "of the job", DXO("METRICS", {SECRET: VALUE}).to_shareable(), fl_ctx
            )


def test_metrics_as_events_are_stopped_by_the_guard_before_the_run_starts(wire, tmp_path):
    assert deployed(tmp_path, Trainer(0), [Telling()], True, **PRIVATE) is None
    assert not wire.shows
    deployed(tmp_path / "unguarded", Trainer(0), [Telling()], False, **PRIVATE)
    assert wire.shows  # as the page says of a site without the guard


def test_error_logs_as_events_send_nothing(wire, tmp_path):
    """FLARE fires an event for an error that code logs; converted, it would go to the server."""

    class Failing(Trainer):
        def execute(self, task_name, shareable, fl_ctx, abort_signal):
            self.log_error(fl_ctx, f"{SECRET} {VALUE}")
            return super().execute(task_name, shareable, fl_ctx, abort_signal)

    converts = ConvertToFedEvent([EventType.ERROR_LOG_AVAILABLE], fed_event_prefix="fed.")
    assert deployed(tmp_path, Failing(0), [converts], True, **PRIVATE) is None
    assert code(deployed(tmp_path / "a", Failing(0), [], True, **PRIVATE)) == ReturnCode.OK
    assert not wire.shows
    deployed(tmp_path / "open", Failing(0), [converts], False, method="vanilla")
    assert wire.shows
