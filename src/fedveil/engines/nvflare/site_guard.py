"""Guard of a FLARE site's own process: no command of FLARE's server reads its files or changes its logs.

FLARE's site checks the right to a command only if the message asks for the check, and it believes the role that the
message names. So whoever runs code in the server's processes could read any file of the site by FLARE's ``cat``,
whatever ``authorization.json`` says.
"""

from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.private.defs import SysCommandTopic, TrainingTopic

from fedveil.errors import FieldError

COMMANDS = (
    SysCommandTopic.SHELL,  # cat, head, tail, grep, ls, pwd
    SysCommandTopic.CONFIGURE_SITE_LOG,
    TrainingTopic.CONFIGURE_JOB_LOG,
)
ANYTHING = "super"  # role to which FLARE grants every right, for its own tests


class SiteGuard(FLComponent):  # type: ignore[misc]
    """FLARE component that takes FLARE's commands for files and logs away from the server.

    It belongs in the components of the site's ``local/resources.json``. A command that was taken away is answered as
    an unknown one. A role to which FLARE grants every right for its own tests gets none here.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Take the commands away when the site's process has started, before the server sends any.

        Raises
        ------
        SystemExit
            If this FLARE keeps its commands elsewhere: the site then does not run without protection.
        """
        if event_type != EventType.SYSTEM_START:
            return
        try:
            _take_away(fl_ctx.get_engine())
        except FieldError as error:  # FLARE would only log an ordinary error, and go on
            raise SystemExit(f"FedVeil: {error}") from error


def _take_away(engine: Any) -> None:
    processors = getattr(getattr(engine, "admin_agent", None), "processors", None)
    if not isinstance(processors, dict) or SysCommandTopic.SHELL not in processors:
        accepted = (
            "is where no FLARE from 2.7 to 2.9 keeps its commands: SiteGuard cannot take them away"
        )
        raise FieldError("engine.admin_agent", type(engine).__name__, accepted)
    for command in COMMANDS:
        processors.pop(command, None)
    _grant_nothing(AuthorizationService.get_authorizer())


def _grant_nothing(authorizer: Any) -> None:
    """Let an authorizer refuse the role to which FLARE grants every right."""
    if authorizer is None:
        return
    authorize = authorizer.authorize

    def checked(ctx: Any) -> tuple[bool, str]:
        if ctx and ctx.user.role == ANYTHING:
            return False, f"the role {ANYTHING!r} has no right here"
        granted: tuple[bool, str] = authorize(ctx)
        return granted

    authorizer.authorize = checked
