"""A process that has only imported libraries, and is copied for every run of a mechanism.

Run as a file, without FedVeil: ``python zygote.py``. It reads requests from standard input and writes answers to
standard output, each as a length and a pickle. A copy imports the mechanism's file anew, reseeds the libraries' random
generators, makes one run in an empty folder, and ends. So neither memory nor the working folder of a run reaches another
run.
"""

import contextlib
import gc
import importlib
import os
import pickle
import select
import shutil
import signal
import struct
import sys
import sysconfig
import tempfile
import time
import traceback
from types import ModuleType
from typing import Any, BinaryIO

HEADER = struct.Struct("<q")
MOST_TEXT = 65_536  # bytes of what a run prints that are kept
MOST_NUMBERS = 50_000  # that a run may return
ENDED_BY_ITSELF = "ended without an answer"
ACCEPTED = "return numbers, arrays or tensors, or lists and dictionaries of them"


def receive(stream: BinaryIO) -> Any:
    """Read the next message, or return None at the end of the stream."""
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    return pickle.loads(stream.read(HEADER.unpack(head)[0]))


def send(stream: BinaryIO, message: object) -> None:
    """Write one message."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(HEADER.pack(len(body)) + body)
    stream.flush()


def ask(process: Any, request: dict[str, Any]) -> dict[str, Any] | None:
    """Send a request to a process of this file, and return its answer; None if the process has ended."""
    try:
        send(process.stdin, request)
        answer: dict[str, Any] | None = receive(process.stdout)
    except BrokenPipeError:
        return None
    return answer


class UnreadableError(TypeError):
    """No numbers can be read from what a mechanism returns."""


def flat(value: Any) -> tuple[str, Any]:
    """Return the shape in words, and all numbers [d], of a mechanism's output: numbers, arrays, tensors or nested ones.

    Raises
    ------
    UnreadableError
        For None, text, another object, or too many numbers.
    """
    import numpy as np

    shapes: list[str] = []
    parts: list[Any] = []

    def walk(one: Any, place: str) -> None:
        if isinstance(one, dict):
            for key in sorted(one, key=str):
                shapes.append(f"{key}:")
                walk(one[key], f"{place}[{key!r}]")
        elif isinstance(one, list | tuple) and not _numeric(one):
            for number, part in enumerate(one):
                walk(part, f"{place}[{number}]")
        else:
            array = one.detach().cpu().numpy() if hasattr(one, "detach") else np.asarray(one)
            if array.dtype.kind not in "biufc":
                at = f" at {place}" if place else ""
                raise UnreadableError(f"{_kind_of(one)}{at}: {ACCEPTED}")
            shapes.append(str(tuple(array.shape)))
            parts.extend(_parts(array))

    walk(value, "")
    numbers = np.concatenate(parts) if parts else np.zeros(0)
    if len(numbers) > MOST_NUMBERS:
        many = f"{len(numbers):,} numbers"
        raise UnreadableError(f"{many}: return the {MOST_NUMBERS:,} that an adversary looks at")
    return " ".join(shapes), numbers


def _parts(array: Any) -> list[Any]:
    """Return the numbers [d] of an array: both parts of complex ones, both halves of integers beyond 2^53."""
    import numpy as np

    row = array.reshape(-1)
    if array.dtype.kind == "c":
        row = np.concatenate([row.real, row.imag])
    elif array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        high = row // 2**32
        if (high >= 2**21).any() or (high < -(2**21)).any():
            return [high.astype(np.float64), (row % 2**32).astype(np.float64)]
    return [row.astype(np.float64)]


def _kind_of(value: Any) -> str:
    """Name a value's kind in words."""
    if value is None:
        return "None"
    return "text" if isinstance(value, str | bytes) else f"an object of type {type(value).__name__}"


def _numeric(values: Any) -> bool:
    """Whether a list contains only plain numbers, so that it is one array."""
    return bool(values) and all(isinstance(one, int | float) for one in values)


def module_of(path: str, code: Any) -> ModuleType:
    """Import the mechanism's file anew."""
    module = ModuleType("mechanism_under_test")
    module.__file__ = path
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)
    return module


def fresh_entropy() -> None:
    """Reseed the libraries' random generators, as a new process would."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.seed()
    random = sys.modules.get("random")
    if random is not None:
        random.seed()


def flower_identity() -> None:
    """Name the task in which Flower's messages are made, as Flower's runtimes do; without a name none can be made."""
    flower = sys.modules.get("flwr.supercore.task_identity")
    if flower is not None:
        identity = flower.TaskIdentity
        identity.task_id = identity.run_id = identity.node_id = 1


def child(request: dict[str, Any], state: dict[str, Any], answer: int, said: int) -> None:
    """Make one run; the answer goes through its own pipe, printed text into a file in memory."""
    os.setpgid(0, 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(request["folder"])
    os.environ["TMPDIR"] = request["folder"]
    tempfile.tempdir = None
    started = time.perf_counter()
    before = {*sys.modules}
    try:
        fresh_entropy()
        flower_identity()
        module = module_of(state["path"], state["code"])
        flower_identity()  # the file may have imported Flower through another one of its folder
        found = asked_of(module, request, state)
    except UnreadableError as error:
        found = {"kind": "unreadable", "error": "", "why": str(error)}
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        found = {
            "kind": "raised",
            "error": type(error).__name__,
            "why": f"{type(error).__name__}: {error} ({where})",
        }
    found["seconds"] = time.perf_counter() - started
    late = {*sys.modules} - before
    found["imported"] = (
        installed(late) if len(late) > 1 else []
    )  # the mechanism's own module is always among them
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    with os.fdopen(answer, "wb") as stream:
        pickle.dump(found, stream, protocol=pickle.HIGHEST_PROTOCOL)


def asked_of(module: ModuleType, request: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Return the file's own worlds, or the output of its function in a world, as requested."""
    if request["ask"] == "names":
        own = module.worlds(*request["own"]) if hasattr(module, "worlds") else {}
        return {"kind": "ok", "worlds": {str(name): arrays_of(both) for name, both in own.items()}}
    world = request["world"]
    if world in state["worlds"]:
        data = state["worlds"][world]
    else:
        name, _, side = world.rpartition(": ")
        data = module.worlds(*request["own"])[name][side == "out"]
    shape, numbers = flat(getattr(module, request["function"])(data, request["seed"]))
    return {"kind": "ok", "shape": shape, "numbers": numbers}


def arrays_of(both: Any) -> Any:
    """Return both data of two worlds if they are lists of arrays, which every process can read; else None."""
    import numpy as np

    def arrays(data: Any) -> bool:
        return isinstance(data, list | tuple) and all(
            type(one) is np.ndarray and one.dtype.kind in "biufc" for one in data
        )

    first, second = both
    return (list(first), list(second)) if arrays(first) and arrays(second) else None


def installed(names: set[str]) -> list[str]:
    """Keep the names of modules that were installed or belong to Python; the mechanism's own are left out."""
    roots = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib"))
    files = {name: getattr(sys.modules.get(name), "__file__", None) or "" for name in names}
    return sorted(name for name, file in files.items() if file.startswith(roots))


def run(request: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Make one run in a copy of this process, end it after the time limit, and return its outcome."""
    folder = tempfile.mkdtemp(dir=state["folder"])
    try:
        with tempfile.TemporaryFile() as said:
            return _run({**request, "folder": folder}, state, said.fileno())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(request: dict[str, Any], state: dict[str, Any], said: int) -> dict[str, Any]:
    """Make one run as `run` does, with an open file for what the run prints."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            child(request, state, writing, said)
        finally:
            os._exit(0)
    os.close(writing)
    body, late = _read_until(reading, time.monotonic() + request["timeout"])
    os.close(reading)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    text = os.pread(said, MOST_TEXT, 0).decode(errors="replace")
    if late:
        found = {"kind": "hangs", "why": f"no answer within {request['timeout']:g} s"}
    else:
        try:
            found = pickle.loads(body)
        except (EOFError, pickle.UnpicklingError):
            found = {"kind": "died", "why": ENDED_BY_ITSELF}
    return {**found, "said": text}


def _read_until(handle: int, deadline: float) -> tuple[bytes, bool]:
    """Read a pipe to its end; return the bytes, and whether the deadline passed before."""
    parts: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([handle], [], [], left)[0]:
            return b"".join(parts), True
        part = os.read(handle, 1 << 20)
        if not part:
            return b"".join(parts), False
        parts.append(part)


def serve() -> None:
    """Answer requests until there are no more."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1):
        os.dup2(nothing, handle)
    state: dict[str, Any] = {"worlds": {}}
    while (request := receive(requests)) is not None:
        try:
            send(answers, _answer(request, state))
        except Exception as error:
            send(
                answers,
                {
                    "kind": "raised",
                    "error": type(error).__name__,
                    "why": f"{type(error).__name__}: {error}",
                },
            )


def _answer(request: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Do what one request asks for, and return the answer."""
    if request["ask"] == "open":
        path = request["path"]
        sys.path[0] = os.path.dirname(path)
        sys.argv = [path]
        os.chdir(request["folder"])
        state["folder"] = request["folder"]
        with open(path, encoding="utf-8") as file:
            state.update(path=path, code=compile(file.read(), path, "exec"))
        return _imported(request["libraries"])
    if request["ask"] == "libraries":
        return _imported(request["libraries"])
    if request["ask"] == "world":
        state["worlds"][request["world"]] = request["data"]
        return {"kind": "ok"}
    return run(request, state)


def _imported(names: list[str]) -> dict[str, Any]:
    """Import libraries, so that copies have them already."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # a copy that collects garbage would touch, and so copy, all of memory
    return {"kind": "ok"}


if __name__ == "__main__":
    serve()
