"""What a hostile job brings to the server: a recorder of all that its process is shown, and a server of another task.

Neither this file nor the job that names it holds a planted value.
"""

import os
import time
from pathlib import Path

import numpy as np
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.shareable import Shareable

from fedveil.nvflare import FedVeilController

PROPS = (
    FLContextKey.TASK_RESULT,
    FLContextKey.TASK_DATA,
    FLContextKey.EVENT_DATA,
    FLContextKey.SHAREABLE,
)


def pieces(value, depth=0):
    """Every text and every array of a nested value, as bytes."""
    if isinstance(value, str):
        yield value.encode(errors="replace")
    elif isinstance(value, np.ndarray | np.generic):
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, bool | int | float):
        yield repr(value).encode()
    elif isinstance(value, dict) and depth < 12:
        for key, inner in value.items():
            yield from pieces(key, depth + 1)
            yield from pieces(inner, depth + 1)
    elif isinstance(value, list | tuple | set) and depth < 12:
        for inner in value:
            yield from pieces(inner, depth + 1)
    elif hasattr(value, "__dict__") and depth < 6:
        yield from pieces(vars(value), depth + 1)


class Recorder(FLComponent):
    """Writes down what its process is shown at every event; at a peer of a swarm into a file of that peer's."""

    def handle_event(self, event_type, fl_ctx):
        peer = fl_ctx.get_peer_context()
        shown = [fl_ctx.get_prop(name) for name in PROPS]
        shown += [
            fl_ctx.get_all_public_props(),
            {} if peer is None else peer.get_all_public_props(),
        ]
        name = str(fl_ctx.get_identity_name())
        peer_s = f"-{name}" if name.startswith("site-") else ""
        with open(os.environ["FEDVEIL_SEEN"] + peer_s, "ab") as file:
            for value in shown:
                for piece in pieces(value if not isinstance(value, Shareable) else dict(value)):
                    file.write(piece + b"\n")
        if event_type == EventType.END_RUN and "FEDVEIL_SEARCHED" in os.environ:
            self.wait(Path(os.environ["FEDVEIL_SEARCHED"]), str(fl_ctx.get_job_id()))

    def wait(self, folder, job):
        """Stay until somebody has searched this process."""
        (folder / f"ended-{job}").write_text(str(os.getpid()))
        until = time.monotonic() + 120
        while time.monotonic() < until and not (folder / f"searched-{job}").exists():
            time.sleep(0.2)


class OtherTask(FedVeilController):
    """A server that asks for another task than the sites agreed to."""

    def __init__(self, model, method, rounds, parameters=None, seed=None):
        super().__init__(
            model=model,
            method=method,
            rounds=rounds,
            parameters=parameters,
            seed=seed,
            task="validate",
        )
