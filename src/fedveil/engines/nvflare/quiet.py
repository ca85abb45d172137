"""Allow-list of FLARE components that may run in a site's job besides the filters; all others are refused.

Every component in a job's process can send data past the filters. Retrievers hand out files on request, streamers
follow logs, widgets and launchers send metrics, swarm controllers talk to other sites, launchers run commands. So the
list names classes that do none of this. A site can add classes of its own, for which it is responsible.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedveil.engines.nvflare.commands import narrow_job
from fedveil.engines.nvflare.decoding import narrow_decoding
from fedveil.errors import FieldError

FLARE = "nvflare."
# from FLARE 2.7 to 2.9; a version may lack some of them
RUNTIME = {
    "nvflare.private.aux_runner.AuxRunner",
    "nvflare.private.fed.client.client_runner.ClientRunner",
    "nvflare.private.stream_runner.ObjectStreamer",
    "nvflare.widgets.fed_event.ClientFedEventRunner",
    "nvflare.widgets.info_collector.InfoCollector",  # `silence` empties it
}
BASES = {
    "nvflare.apis.executor.Executor",
    "nvflare.apis.fl_component.FLComponent",
    "nvflare.apis.persistable.StatePersistable",
}
EXECUTORS = {
    "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor",  # in this process, see `_foreign`
    "nvflare.app_common.executors.in_process_client_api_executor.InProcessClientAPIExecutor",
    "nvflare.app_opt.pt.in_process_client_api_executor.PTInProcessClientAPIExecutor",
    "nvflare.app_opt.tf.in_process_client_api_executor.TFInProcessClientAPIExecutor",
}
PARTS = {
    "fedveil.engines.nvflare.filters.PrivacyFilter",
    "fedveil.engines.nvflare.filters.ReleaseFilter",
    "fedveil.engines.nvflare.gaussian.GaussianFilter",
    "fedveil.engines.nvflare.gaussian.TaskKeeper",
    "fedveil.engines.nvflare.quiet.JobGuard",
    "nvflare.app_common.filters.convert_weights.ConvertWeights",
    "nvflare.app_common.filters.dxo_blocker.DXOBlocker",
    "nvflare.app_common.filters.exclude_vars.ExcludeVars",
    "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
    "nvflare.app_common.filters.svt_privacy.SVTPrivacy",
    "nvflare.app_common.widgets.decomposer_reg.DecomposerRegister",
    "nvflare.app_opt.pt.numpy_params_converter.NumpyToPTParamsConverter",
    "nvflare.app_opt.pt.numpy_params_converter.PTToNumpyParamsConverter",
}
# for a swarm's peers, if the site's PrivacyFilter has swarm = true
SWARM = {
    "fedveil.engines.nvflare.swarm.SwarmPeer",
    "fedveil.engines.nvflare.swarm.SwarmServer",
}
# of the site's own process, from its resources.json
SITE = {
    "fedveil.nvflare.SiteGuard",
    "fedveil.engines.nvflare.site_guard.SiteGuard",
    "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher",
    "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer",
    "nvflare.app_common.resource_consumers.list_resource_consumer.ListResourceConsumer",
    "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
    "nvflare.app_common.resource_managers.list_resource_manager.ListResourceManager",
    "nvflare.app_common.resource_managers.passthrough_resource_manager.PassthroughResourceManager",
    "nvflare.app_common.widgets.component_path_authorizer.ComponentPathAuthorizer",
}
FOREIGN = (
    "is not among the classes that send nothing past the filters: leave it out of the job, or, if the site answers "
    "for it, name it in allow of PrivacyFilter and JobGuard"
)
STREAMER, SWITCH = (
    "nvflare.app_common.logging.site_log_streamer.SiteLogStreamer",
    "allow_log_streaming",
)


def require_quiet(fl_ctx: FLContext, allow: Sequence[str] = (), swarm: bool = False) -> None:
    """Refuse a job or site with a component on no list, and stop the collector of errors that the server can read.

    Parameters
    ----------
    fl_ctx : FLContext
        Context of a client's job process.
    allow : sequence of str
        Classes for which the site is responsible, ``"package.module.Class"``.
    swarm : bool
        Whether the site takes part in swarms.

    Raises
    ------
    FieldError
        For the first such component; the text names it.
    """
    allow = _allowed(allow, swarm)
    for where, part in _parts(fl_ctx):
        if _foreign(part, where, allow):
            raise FieldError(where, _name(type(part)), FOREIGN)
    engine = fl_ctx.get_engine()
    for path, switched_off in _site_parts(engine.get_workspace()):
        if path not in SITE and path not in allow and not (path == STREAMER and switched_off):
            reason = (
                "may send logs, and tracebacks quote data: take it out of the site's resources.json"
            )
            raise FieldError(
                "components", path, f"{reason}, with {SWITCH} = false where FLARE knows that"
            )
    silence(engine)


def _allowed(allow: Sequence[str], swarm: bool) -> Sequence[str]:
    """Return the further allowed classes: the site's own, and in a swarm FedVeil's."""
    if not swarm:
        return allow
    return [*allow, *SWARM]


def _take_out(handlers: list[Any], part: Any) -> None:
    """Remove a component from a list, comparing by identity."""
    for place in reversed(range(len(handlers))):
        if handlers[place] is part:
            del handlers[place]


def silence(engine: Any) -> None:
    """Stop FLARE's collector of warnings and errors, because the server can read it (``show_errors``)."""
    for handler in getattr(engine, "handlers", ()):
        if hasattr(handler, "add_error"):
            handler.add_error = lambda *arguments, **named: None
            handler.reset_errors()


class JobGuard(FLComponent):  # type: ignore[misc]
    """FLARE component that stops a job with a forbidden component, before the job starts.

    (`PrivacyFilter` checks only at the first task.) It also takes FLARE's commands for figures, errors and logs away
    from the server. No message makes an object that stands for a file, from the moment in which the guard is made. It
    belongs in the site's ``local/privacy.json``.

    Parameters
    ----------
    allow : list of str, optional
        As for `PrivacyFilter`.
    swarm : bool
        As for `PrivacyFilter`.
    """

    def __init__(self, allow: list[str] | None = None, swarm: bool = False) -> None:
        super().__init__()
        self.allow, self.swarm = list(allow or ()), swarm
        narrow_decoding()  # now: FLARE's process of a job answers messages before it starts the job

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Check all components once they are loaded, before any starts; then narrow the server's commands."""
        if event_type != EventType.ABOUT_TO_START_RUN:
            return
        try:
            require_quiet(fl_ctx, self.allow, self.swarm)
            narrow_job(fl_ctx.get_engine())
        except FieldError as error:
            handlers = fl_ctx.get_engine().handlers
            for where, part in list(_parts(fl_ctx)):
                if _foreign(part, where, _allowed(self.allow, self.swarm)):
                    _take_out(handlers, part)  # so that it does not see the start
            self.system_panic(f"FedVeil: {error}", fl_ctx)


def _parts(fl_ctx: FLContext) -> Iterator[tuple[str, Any]]:
    """Yield all components in the job's process, each with its place."""
    engine, runner = fl_ctx.get_engine(), fl_ctx.get_prop(FLContextKey.RUNNER)
    for name, part in engine.get_all_components().items():
        yield f"components.{name}", part
    if runner is not None:
        for tasks, part in runner.task_router.task_table.items():
            yield f"executors.{tasks}", part
    for part in getattr(engine, "handlers", ()):
        yield "handlers", part


def _foreign(part: Any, where: str, allow: Sequence[str]) -> bool:
    """Whether a component is on no list.

    An executor outside FLARE is not foreign: it is the site's or a job's training code, and no filter can restrict
    code.
    """
    own, kinds = _name(type(part)), {_name(kind) for kind in type(part).__mro__}
    if own in allow:
        return False
    if isinstance(part, Executor):
        elsewhere = (
            getattr(part, "execution_mode", "in_process") != "in_process"
        )  # a command that the job names
        return elsewhere or any(kind.startswith(FLARE) for kind in kinds - EXECUTORS - BASES)
    return own not in PARTS and (own not in RUNTIME or where != "handlers")


def _site_parts(workspace: Any) -> Iterator[tuple[str, bool]]:
    """Yield the class paths in the site's own process, each with whether log streaming is off."""
    find = getattr(workspace, "get_config_files_for_startup", None)
    if find is None:
        return
    read, switched_off = [], False
    for file in find(is_server=False, for_job=False):
        if file and Path(file).exists():
            read.append(json.loads(Path(file).read_text()))
            switched_off |= read[-1].get(SWITCH) is False
    for values in read:
        for component in values.get("components", ()):
            yield str(component.get("path", component.get("name"))), switched_off


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
