"""FLARE's commands that a server may still give to a site. A guarded site's processes answer no others.

Three kinds reach a site: commands to its own process, commands to the process of a job, and diagnostics of the network
in both. Whoever runs code in the server's processes can send each of them.
"""

from typing import Any
from uuid import UUID

from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.admin import RequestProcessor
from nvflare.private.fed.client.admin_commands import AdminCommands

from fedveil.errors import FieldError

# to the site's own process: jobs come, end and are cleared away
OF_SITE = {
    TrainingTopic.ABORT,
    TrainingTopic.ABORT_TASK,
    TrainingTopic.CANCEL_RESOURCE,
    TrainingTopic.CHECK_RESOURCE,
    TrainingTopic.CHECK_STATUS,
    TrainingTopic.DELETE_RUN,
    TrainingTopic.DEPLOY,
    TrainingTopic.GET_SCOPES,
    TrainingTopic.NOTIFY_JOB_STATUS,
    TrainingTopic.RESTART,
    TrainingTopic.SHUTDOWN,
    TrainingTopic.START_JOB,
    SysCommandTopic.REPORT_RESOURCES,
    "sys.report_version",  # FLARE 2.7 has none
}
# to the process of a job
OF_JOB = {
    AdminCommandNames.ABORT,
    AdminCommandNames.ABORT_TASK,
    AdminCommandNames.CHECK_STATUS,
    AdminCommandNames.SHUTDOWN,
}
# FLARE's channel for figures of a process, its settings and its network
DIAGNOSTICS = "_net_manager:"


class OfJobs(RequestProcessor):  # type: ignore[misc]
    """FLARE's processor of a command, for jobs with an id of FLARE's own kind alone.

    FLARE clears away the folder that a job's id names, when a job comes and when it goes. The id ``local`` names the
    folder with the site's protection.

    Parameters
    ----------
    processor : RequestProcessor
        FLARE's own.
    """

    def __init__(self, processor: RequestProcessor) -> None:
        self.processor = processor

    def get_topics(self) -> list[str]:
        """Return FLARE's own topics, without those that a guarded site does not answer."""
        return [topic for topic in self.processor.get_topics() if topic in OF_SITE]

    def process(self, req: Message, app_ctx: Any) -> Message:
        """Answer as FLARE does, or refuse an id that is no UUID."""
        job = req.get_header(RequestHeader.JOB_ID)
        if job and not _is_id(job):
            return error_reply("invalid_request")
        return self.processor.process(req, app_ctx)


def narrow_before(processors: list[Any]) -> None:
    """Narrow FLARE's list of processors before a site's process registers them: it never answers the others."""
    processors[:] = [one if isinstance(one, OfJobs) else OfJobs(one) for one in processors]


def narrow_site(agent: Any) -> None:
    """Leave a site's own process, which has started, the commands of `OF_SITE`.

    Raises
    ------
    FieldError
        If this FLARE keeps its commands elsewhere.
    """
    processors = getattr(agent, "processors", None)
    if not isinstance(processors, dict) or TrainingTopic.DEPLOY not in processors:
        accepted = (
            "is where no FLARE from 2.7 to 2.9 keeps its commands: SiteGuard cannot take them away"
        )
        raise FieldError("engine.admin_agent", type(agent).__name__, accepted)
    for topic, processor in list(processors.items()):
        if topic not in OF_SITE:
            del processors[topic]
        elif not isinstance(processor, OfJobs):
            processors[topic] = OfJobs(processor)
    narrow_network(agent.cell)


def narrow_job(engine: Any) -> None:
    """Leave the process of a job the commands of `OF_JOB`.

    Raises
    ------
    FieldError
        If this FLARE keeps its network elsewhere.
    """
    kept = [command for command in AdminCommands.commands if command.get_command_name() in OF_JOB]
    AdminCommands.commands[:] = kept
    get_cell = getattr(engine, "get_cell", None)
    narrow_network(None if get_cell is None else get_cell())


def narrow_network(cell: Any) -> None:
    """Take FLARE's diagnostics from a process.

    Raises
    ------
    FieldError
        If this FLARE keeps its network elsewhere.
    """
    core = getattr(cell, "core_cell", cell)
    callbacks = getattr(getattr(core, "req_reg", None), "reg", None)
    if not isinstance(callbacks, dict):
        accepted = "is where no FLARE from 2.7 to 2.9 keeps its network: its diagnostics cannot be taken away"
        raise FieldError("engine.cell", type(cell).__name__, accepted)
    for name in list(callbacks):
        if name.startswith(DIAGNOSTICS):
            del callbacks[name]


def _is_id(job: Any) -> bool:
    """Whether a job's id is a UUID, written as FLARE writes it."""
    try:
        return str(job) == str(UUID(str(job)))
    except ValueError:
        return False
