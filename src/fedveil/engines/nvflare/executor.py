"""FedVeil as a FLARE executor: it trains by the site's own module, which the site's own configuration names."""

from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedveil.engines.nvflare.pending import Pending
from fedveil.engines.nvflare.validating import PendingLoss
from fedveil.errors import FieldError

PENDING = "fedveil.pending"  # in the context of one task, private to the client


class FedVeilExecutor(Executor):  # type: ignore[misc]
    """Train by the site's own module, as the site's `PrivacyFilter` says in ``training``.

    It has no arguments: a job names it, and nothing that the job says decides how a site trains or what protects it.
    What is trained stays beside the task until `ReleaseFilter` protects it. In a swarm FLARE runs no filter around a
    peer's own training: then the executor asks the site's filter itself, and what it returns is protected.
    """

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Any
    ) -> Shareable:
        """Train, and answer with a return code alone, or in a swarm with what is released."""
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
            pending.train()
            return pending.answer(make_reply(ReturnCode.OK))


def first_filter(fl_ctx: FLContext, task: str) -> Any:
    """The first task data filter of a task: the site's own, else the job's; None if there is none."""
    scope, runner = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT), fl_ctx.get_prop(FLContextKey.RUNNER)
    chain = list(scope.task_data_filters.get(FilterKey.IN, [])) if scope else []
    if runner is not None:
        chain += runner.task_data_filters.get(f"{task}{FilterKey.DELIMITER}{FilterKey.IN}") or []
    return chain[0] if chain else None
