"""Shield around an executor: what it adds beside a task's result does not leave, whatever it raises."""

from collections.abc import Callable
from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import Shareable, make_reply

from fedveil.engines.nvflare.executor import PENDING
from fedveil.engines.nvflare.pending import Beside, Pending
from fedveil.logs import escaping

BESIDE = "fedveil.beside"  # in the context of one task, private to the client


def shield(executor: Any) -> None:
    """Replace an executor's errors by return codes, as FLARE would send the errors past the filters.

    If the task is aborted, or the executor calls the job unsafe, FLARE answers without result filters, but with cookies
    and context. Changes to these are undone here, too.
    """
    execute: Callable[..., Any] = executor.execute
    if getattr(execute, "shielded", False):
        return

    def shielded(task: str, data: Shareable, fl_ctx: FLContext, abort_signal: Any) -> Shareable:
        kept = [fl_ctx.get_prop(name) for name in (PENDING, BESIDE)]
        try:
            result = execute(task, data, fl_ctx, abort_signal)
        except UnsafeJobError:
            raise
        except Exception:  # not logged as an error, because error logs may be sent away
            escaping(executor.logger).warning("FedVeil: the executor raised", exc_info=True)
            result = None
        finally:
            for one in kept:
                if isinstance(one, Pending | Beside):
                    one.restore(fl_ctx, data)
        return (
            result if isinstance(result, Shareable) else make_reply(ReturnCode.EXECUTION_EXCEPTION)
        )

    shielded.shielded = True  # type: ignore[attr-defined]
    executor.execute = shielded
    executor.fire_log_analytics = lambda *arguments: (
        None
    )  # log messages of Client API code would go straight to the server
