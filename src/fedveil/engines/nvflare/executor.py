"""FLARE executor that trains by the module named in the site's own configuration."""

from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedveil.engines.nvflare.pending import Pending
from fedveil.engines.nvflare.validating import PendingLoss
from fedveil.errors import FieldError
from fedveil.logs import escaping

PENDING = "fedveil.pending"  # in the context of one task, private to the client


class FedVeilExecutor(Executor):  # type: ignore[misc]
    """Executor that trains by the site's own module, named in ``training`` of the site's `PrivacyFilter`.

    It has no arguments, so a job can name it but cannot change a site's training or protection. The trained model stays
    in the task's context until `ReleaseFilter` protects it. In a swarm FLARE runs no filter around a peer's own
    training. The executor then calls the site's filter itself, and returns the protected result.
    """

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Any
    ) -> Shareable:
        """Train, and return only a return code; in a swarm return the protected releases."""
        pending = fl_ctx.get_prop(PENDING)
        if isinstance(pending, Pending | PendingLoss):
            pending.train()
            return make_reply(ReturnCode.OK)
        asks = first_filter(fl_ctx, task_name)
        if not getattr(asks, "swarm", False):
            raise FieldError(
                "PrivacyFilter", None, "did not admit this task: put it into the task data filters"
            )
        pending = asks.admit(shareable, fl_ctx)
        with pending.open:
            return pending.answer(make_reply(self._trained(pending)))

    def _trained(self, pending: Pending) -> str:
        """Train in a swarm, and return the code of the result. A failure depends on data, so the reply does not show it."""
        try:
            pending.train()
        except Exception:  # no error in the log's sense: logs of errors may be sent away
            escaping(self.logger).warning("FedVeil: training failed", exc_info=True)
            return str(ReturnCode.EXECUTION_EXCEPTION)
        return str(ReturnCode.OK)


def first_filter(fl_ctx: FLContext, task: str) -> Any:
    """Return the first task data filter for a task: the site's own if it has one, else the job's; None without any."""
    scope, runner = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT), fl_ctx.get_prop(FLContextKey.RUNNER)
    chain = list(scope.task_data_filters.get(FilterKey.IN, [])) if scope else []
    if runner is not None:
        chain += runner.task_data_filters.get(f"{task}{FilterKey.DELIMITER}{FilterKey.IN}") or []
    return chain[0] if chain else None
