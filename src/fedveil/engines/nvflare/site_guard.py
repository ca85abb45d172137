"""Guard of a FLARE site's own process: no command of FLARE's server reads or deletes its files.

FLARE's site checks the right to a command only if the message asks for the check, and it believes the role that the
message names. So whoever runs code in the server's processes could read any file of the site by FLARE's ``cat``, and
delete the site's ``local`` folder, whatever ``authorization.json`` says.
"""

from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from fedveil.engines.nvflare.commands import narrow_before, narrow_site
from fedveil.engines.nvflare.decoding import narrow_decoding
from fedveil.errors import FieldError

ANYTHING = "super"  # role to which FLARE grants every right, for its own tests


class SiteGuard(FLComponent):  # type: ignore[misc]
    """FLARE component that leaves the server only the commands by which jobs come, end and are cleared away.

    It belongs in the components of the site's ``local/resources.json``. A command that was taken away is answered as
    an unknown one. A role to which FLARE grants every right for its own tests gets none here. No message makes an object
    that stands for a file (`narrow_decoding`).
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Take the commands away before the site's process answers any, and look again when it has started.

        Raises
        ------
        SystemExit
            If this FLARE keeps its commands elsewhere: the site then does not run without protection.
        """
        if event_type not in (EventType.SYSTEM_BOOTSTRAP, EventType.SYSTEM_START):
            return
        try:
            if event_type == EventType.SYSTEM_BOOTSTRAP:
                narrow_decoding()
                narrow_before(ClientRequestProcessors.request_processors)
            else:
                narrow_site(getattr(fl_ctx.get_engine(), "admin_agent", None))
            _grant_nothing(AuthorizationService.get_authorizer())
        except FieldError as error:  # FLARE would only log an ordinary error, and go on
            raise SystemExit(f"FedVeil: {error}") from error


def _grant_nothing(authorizer: Any) -> None:
    """Let an authorizer refuse the role to which FLARE grants every right."""
    if authorizer is None or getattr(authorizer.authorize, "guarded", False):
        return
    authorize = authorizer.authorize

    def checked(ctx: Any) -> tuple[bool, str]:
        if ctx and ctx.user.role == ANYTHING:
            return False, f"the role {ANYTHING!r} has no right here"
        granted: tuple[bool, str] = authorize(ctx)
        return granted

    checked.guarded = True  # type: ignore[attr-defined]
    authorizer.authorize = checked
