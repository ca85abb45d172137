"""FedVeil as a FLARE executor: it trains by the site's own module, which the site's own configuration names."""

from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedveil.engines.nvflare.pending import Pending
from fedveil.errors import FieldError

PENDING = "fedveil.pending"  # in the context of one task, private to the client


class FedVeilExecutor(Executor):  # type: ignore[misc]
    """Train by the site's own module, as the site's `PrivacyFilter` says in ``training``.

    It has no arguments: a job names it, and nothing that the job says decides how a site trains or what protects it.
    What is trained stays beside the task until `ReleaseFilter` protects it.
    """

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Any) -> Shareable:
        """Train, and answer with nothing but a return code."""
        pending = fl_ctx.get_prop(PENDING)
        if not isinstance(pending, Pending):
            raise FieldError("PrivacyFilter", None, "did not admit this task: put it into the task data filters")
        pending.train()
        return make_reply(ReturnCode.OK)
