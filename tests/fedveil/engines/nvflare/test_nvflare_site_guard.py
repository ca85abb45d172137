"""A site's own process, asked by a server that uses FLARE's admin commands; FLARE's own agent answers."""

from contextlib import contextmanager
from types import SimpleNamespace

import flare_needed  # noqa: F401
import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.fuel.sec.audit import AuditService
from nvflare.fuel.sec.authz import AuthorizationService, AuthzContext, Person
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.security.security import FLAuthorizer

from fedveil.nvflare import SiteGuard

pytestmark = pytest.mark.nvflare
SECRET = "patient 4711"
NOBODY = {"shell_commands": "none", "byoc": "none", "manage_job": "none"}
SUPER = {"REQUIRE_AUTHZ": "true", "ADMIN_COMMAND": "cat", "USER_ROLE": "super"}
LEAD = {**SUPER, "USER_ROLE": "lead"}


def started(engine, parts):
    fl_ctx = FLContextManager(engine, "site-1", "").new_context()
    fire_event_to_components(EventType.SYSTEM_START, parts, fl_ctx)


class Process:
    """A site's own process, as far as FLARE's agent asks for it."""

    def __init__(self, folder, parts, monkeypatch):
        AuditService.initialize(str(folder / "audit.log"))
        rights = {"format_version": "1.0", "permissions": {"lead": NOBODY}}
        self.authorizer = FLAuthorizer("hospital", rights)
        monkeypatch.setattr(AuthorizationService, "the_authorizer", self.authorizer)
        cell = SimpleNamespace(register_request_cb=self._registered)
        self.admin_agent = FedAdminAgent(client_name="site-1", cell=cell, app_ctx=self)
        for processor in ClientRequestProcessors.request_processors:
            self.admin_agent.register_processor(processor)
        started(self, parts)

    def _registered(self, channel, topic, cb):
        self.ask_ = cb

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


def test_the_logs_of_a_site_are_set_by_nobody_else(tmp_path, monkeypatch):
    site = Process(tmp_path, [SiteGuard()], monkeypatch)
    for topic in (SysCommandTopic.CONFIGURE_SITE_LOG, TrainingTopic.CONFIGURE_JOB_LOG):
        assert topic not in site.admin_agent.processors
    assert TrainingTopic.DEPLOY in site.admin_agent.processors  # jobs still come


def test_a_role_for_tests_may_not_bring_code(tmp_path, monkeypatch):
    for parts, granted in (([], True), ([SiteGuard()], False)):
        site = Process(tmp_path, parts, monkeypatch)
        one = Person("x", "y", "super")
        asked = AuthzContext(user=one, submitter=one, right="byoc")
        assert site.authorizer.authorize(asked)[0] == granted
    lead = Person("x", "y", "lead")
    assert not site.authorizer.authorize(AuthzContext(user=lead, submitter=lead, right="byoc"))[0]


def test_a_site_without_flares_commands_in_their_place_does_not_run():
    with pytest.raises(SystemExit, match="FedVeil"):
        started(SimpleNamespace(admin_agent=None), [SiteGuard()])
