"""A site's own process, asked by a server that uses FLARE's admin commands; FLARE's own agent answers."""

from contextlib import contextmanager
from types import SimpleNamespace

import flare_needed  # noqa: F401
import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.fuel.f3.cellnet.core_cell import Message as CellMessage
from nvflare.fuel.f3.cellnet.net_agent import NetAgent
from nvflare.fuel.f3.cellnet.registry import Callback, Registry
from nvflare.fuel.sec.audit import AuditService
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message
from nvflare.private.fed.client import admin_commands
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.security.security import FLAuthorizer

from fedveil.engines.nvflare.commands import OF_SITE, narrow_job
from fedveil.errors import FieldError
from fedveil.nvflare import SiteGuard

pytestmark = pytest.mark.nvflare
SECRET = "patient 4711"
NOBODY = {"shell_commands": "none", "byoc": "none", "manage_job": "none"}
SUPER = {"REQUIRE_AUTHZ": "true", "ADMIN_COMMAND": "cat", "USER_ROLE": "super"}
LEAD = {**SUPER, "USER_ROLE": "lead"}


def fired(event, engine, parts):
    fl_ctx = FLContextManager(engine, "site-1", "").new_context()
    fire_event_to_components(event, parts, fl_ctx)


def started(engine, parts):
    fired(EventType.SYSTEM_START, engine, parts)


class Network:
    """FLARE's registry of what a process answers, with its own agent of diagnostics."""

    def __init__(self):
        self.req_reg = Registry()
        self.core_cell = self
        NetAgent(self)

    def register_request_cb(self, channel, topic, cb):
        self.req_reg.set(channel, topic, Callback(cb, (), {}))

    def ask(self, topic):
        """What the process tells of itself; None if it answers no such question."""
        found = self.req_reg.find("_net_manager", topic)
        return None if found is None else str(found.cb(CellMessage()).payload)


class Process(ClientEngine):
    """A site's own process, as far as FLARE's agent asks for it."""

    def __init__(self, folder, parts, monkeypatch):
        self.args = SimpleNamespace(workspace=str(folder))
        AuditService.initialize(str(folder / "audit.log"))
        rights = {"format_version": "1.0", "permissions": {"lead": NOBODY}}
        self.authorizer = FLAuthorizer("hospital", rights)
        monkeypatch.setattr(AuthorizationService, "the_authorizer", self.authorizer)
        self.network = Network()
        self.admin_agent = FedAdminAgent("site-1", self.network, self)
        self.ask_ = self.network.req_reg.find("admin", "*").cb
        for processor in ClientRequestProcessors.request_processors:
            self.admin_agent.register_processor(processor)
        started(self, parts)

    def fire_event(self, event, fl_ctx):
        pass

    @contextmanager
    def new_context(self):
        yield FLContext()

    def answer(self, topic, body, **headers):
        message = Message(topic, body)
        for name, value in {"USER_NAME": "x", "USER_ORG": "y", **headers}.items():
            message.set_header(getattr(RequestHeader, name), value)
        return str(self.ask_(new_cell_message({}, message)).payload.body)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "ward.csv").write_text(SECRET)
    return tmp_path / "ward.csv"


@pytest.mark.parametrize(("headers", "reads"), [({}, True), (LEAD, False), (SUPER, True)])
def test_a_server_reads_any_file_of_a_site_without_the_guard(
    headers, reads, file, tmp_path, monkeypatch
):
    """The rights in `authorization.json` hold only if the message asks for them, as the page says."""
    site = Process(tmp_path, [], monkeypatch)
    assert (SECRET in site.answer(SysCommandTopic.SHELL, f"cat {file}", **headers)) == reads


@pytest.mark.parametrize("headers", [{}, LEAD, SUPER])
@pytest.mark.parametrize("command", ["cat", "head", "tail", "grep patient"])
def test_with_the_guard_it_reads_none(command, headers, file, tmp_path, monkeypatch):
    site = Process(tmp_path, [SiteGuard()], monkeypatch)
    assert SECRET not in site.answer(SysCommandTopic.SHELL, f"{command} {file}", **headers)


TOLD = {"info.show_errors", "info.show_stats", "info.reset_errors", "sys.info", "sys.report_env"}
LOGS = {SysCommandTopic.CONFIGURE_SITE_LOG, TrainingTopic.CONFIGURE_JOB_LOG}


def test_a_site_answers_the_commands_by_which_jobs_come_and_go(tmp_path, monkeypatch):
    """A command that a later FLARE adds is answered by no guarded site, until somebody has read it."""
    all_ = set(Process(tmp_path, [], monkeypatch).admin_agent.processors)
    assert all_ - OF_SITE == {SysCommandTopic.SHELL} | TOLD | LOGS
    kept = set(Process(tmp_path, [SiteGuard()], monkeypatch).admin_agent.processors)
    assert kept == all_ & OF_SITE
    assert {TrainingTopic.DEPLOY, TrainingTopic.START_JOB, TrainingTopic.DELETE_RUN} <= kept


def test_no_other_command_is_ever_registered(tmp_path, monkeypatch):
    """A server that restarts a site and asks at once finds no moment in which it answers."""
    listed = list(ClientRequestProcessors.request_processors)
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", listed)
    fired(EventType.SYSTEM_BOOTSTRAP, None, [SiteGuard()])
    assert ClientRequestProcessors.request_processors is listed  # FLARE's own list, which it holds
    site = Process(tmp_path, [], monkeypatch)  # registered, and not started
    assert set(site.admin_agent.processors) <= OF_SITE
    (tmp_path / "ward.csv").write_text(SECRET)
    assert SECRET not in site.answer(SysCommandTopic.SHELL, f"cat {tmp_path / 'ward.csv'}")
    started(site, [SiteGuard()])
    assert TrainingTopic.DEPLOY in site.admin_agent.processors


@pytest.mark.parametrize("guarded", [False, True])
def test_the_memory_of_a_guarded_site_is_told_to_nobody(guarded, tmp_path, monkeypatch):
    site = Process(tmp_path, [SiteGuard()] if guarded else [], monkeypatch)
    assert ("available" in site.answer(SysCommandTopic.SYS_INFO, "")) != guarded


JOB_ID = "0b6f3b5c-9a43-4f0e-8d7e-3a5d2d5f6c11"


@pytest.mark.parametrize(
    ("job", "guarded", "gone"),
    [
        ("local", False, True),
        ("local", True, False),
        (JOB_ID, True, True),
        (JOB_ID.upper(), True, False),
    ],
)
def test_a_server_deletes_a_sites_protection_without_the_guard(
    job, guarded, gone, tmp_path, monkeypatch
):
    """FLARE clears a job's folder away, and takes ``local`` for a job."""
    for name in {"startup", "local", job}:
        (tmp_path / name).mkdir()
    (tmp_path / job / "privacy.json").write_text("{}")
    site = Process(tmp_path, [SiteGuard()] if guarded else [], monkeypatch)
    site.answer(TrainingTopic.DELETE_RUN, "", JOB_ID=job)
    assert (tmp_path / job).exists() != gone


@pytest.mark.parametrize(
    "topic", ["process_info", "config_vars", "comm_config", "list_pools", "conns"]
)
def test_diagnostics_of_the_network_end_with_the_guard(topic, tmp_path, monkeypatch):
    site = Process(tmp_path, [], monkeypatch)
    assert site.network.req_reg.find("_net_manager", topic) is not None
    started(site, [SiteGuard()])
    assert site.network.ask(topic) is None


def test_the_process_of_a_job_tells_no_figures_either(monkeypatch):
    """A server reaches it past the site's own process."""
    own = [kind() for kind in vars(admin_commands).values() if _is_command(kind)]
    monkeypatch.setattr(AdminCommands, "commands", own)
    network = Network()
    assert "Memory Usage" in network.ask("process_info")
    told = ("show_stats", "show_errors", "reset_errors", "configure_job_log")
    assert all(AdminCommands.get_command(name) for name in (*told, "check_status"))
    engine = SimpleNamespace(get_cell=lambda: network)
    narrow_job(engine)
    assert network.ask("process_info") is None
    assert not any(AdminCommands.get_command(name) for name in told)
    for name in ("check_status", "abort", "abort_task", "shutdown"):
        assert AdminCommands.get_command(name)


def _is_command(kind):
    base = admin_commands.CommandProcessor
    return isinstance(kind, type) and issubclass(kind, base) and kind is not base


def test_a_role_for_tests_may_not_bring_code(tmp_path, monkeypatch):
    listed = list(ClientRequestProcessors.request_processors)
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", listed)
    for event, granted in (
        (EventType.SYSTEM_END, True),
        (EventType.SYSTEM_BOOTSTRAP, False),
        (EventType.SYSTEM_START, False),
    ):
        site = Process(tmp_path, [], monkeypatch)
        fired(event, site, [SiteGuard()])
        one = Person("x", "y", "super")
        asked = AuthzContext(user=one, submitter=one, right="byoc")
        assert site.authorizer.authorize(asked)[0] == granted
    lead = Person("x", "y", "lead")
    assert not site.authorizer.authorize(AuthzContext(user=lead, submitter=lead, right="byoc"))[0]


def test_a_process_without_flares_network_in_its_place_is_refused():
    with pytest.raises(FieldError, match="diagnostics"):
        narrow_job(SimpleNamespace(get_cell=lambda: None))


def test_a_site_without_flares_commands_in_their_place_does_not_run():
    with pytest.raises(SystemExit, match="FedVeil"):
        started(SimpleNamespace(admin_agent=None), [SiteGuard()])
