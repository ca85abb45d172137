"""What a hostile job brings: training code that plants values everywhere, and a server that keeps all it is shown."""

import os
from pathlib import Path

import numpy as np
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.shareable import Shareable

from fedveil.nvflare import FedVeilController

SECRET, VALUE = "patient-4711-planted", 4711.251953125
PATTERNS = [
    SECRET.encode(),
    np.float32(VALUE).tobytes(),
    np.float64(VALUE).tobytes(),
    str(VALUE).encode(),
]
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
    """A component of the server that writes down what the server's process is shown at every event."""

    def handle_event(self, event_type, fl_ctx):
        peer = fl_ctx.get_peer_context()
        shown = [fl_ctx.get_prop(name) for name in PROPS]
        shown += [
            fl_ctx.get_all_public_props(),
            {} if peer is None else peer.get_all_public_props(),
        ]
        with open(os.environ["FEDVEIL_SEEN"], "ab") as file:
            for value in shown:
                for piece in pieces(value if not isinstance(value, Shareable) else dict(value)):
                    file.write(piece + b"\n")


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


def planted(folder, seen):
    """Files below a folder, and the recorder's own, that hold a planted value."""
    found = []
    for path in [*Path(folder).rglob("*"), Path(seen)]:
        if path.is_file() and path.suffix not in (
            ".py",
            ".pyc",
        ):  # the job's own code names what it plants
            content = path.read_bytes()
            if any(pattern in content for pattern in PATTERNS):
                found.append(path)
    return found
