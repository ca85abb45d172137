"""Process for a bundle's own code: it gets one message, and returns an unprotected answer.

The privacy mod makes the reply from this answer, in the process that started this one.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Any, cast

from fedveil.errors import FedVeilError, FieldError
from fedveil.logs import logger
from fedveil.node.isolation import end_with_parent, isolate, require_hidden, require_isolation

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from fedveil.node.bundle import Bundle

_LOG = logger("flwr")
_MODULE = "fedveil.node.worker"
LARGEST_ANSWER = 1 << 28  # bytes in addition to twice the question
LONGEST_WORDS, MOST_LINES = 1 << 14, 100  # limits on what the app printed, counted from its end
WORDS = "the app's own words"


def load_app(reference: str) -> Any:
    """Load a ClientApp by ``"module:attribute"``.

    Raises
    ------
    FieldError
        If there is no such app.
    """
    from flwr.clientapp import ClientApp

    module, _, attribute = reference.partition(":")
    loaded: Any = import_module(module)
    for part in attribute.split("."):
        loaded = getattr(loaded, part, None)
    if not isinstance(loaded, ClientApp):
        raise FieldError("client", reference, "is no ClientApp")
    return loaded


class Worker:
    """Run a bundle's client app in a process of its own, for one message.

    Parameters
    ----------
    bundle : Bundle
        Bundle; its bytes are sent to the process by a pipe.
    isolated : bool
        Whether the process is isolated: without network and disk.
    seconds : float, optional
        Seconds after which the process is killed.
    hidden : sequence of Path
        Folders that look empty to an isolated process.
    """

    def __init__(
        self, bundle: "Bundle", isolated: bool, seconds: float | None, hidden: Sequence[Path] = ()
    ) -> None:
        self._bundle, self._isolated, self._seconds = bundle, isolated, seconds
        self._hidden = require_hidden(hidden) if isolated else ()
        if isolated:
            with tempfile.TemporaryDirectory(prefix="fedveil-") as folder:
                require_isolation(Path(folder), self._hidden)

    def __call__(self, message: "Message", context: "Context") -> "Message":
        """Return the app's answer to a message; the app's new state is stored in the context."""
        from flwr.app import Message
        from flwr.common.serde import recorddict_from_proto
        from flwr.proto.recorddict_pb2 import RecordDict as Proto

        from fedveil.engines.flower.records import OWN

        with tempfile.TemporaryDirectory(prefix="fedveil-") as folder:
            content, state = self._ask(_packed(self._bundle, message, context), folder)
        for name in [name for name in context.state if name not in OWN]:
            del context.state[name]
        for name, record in recorddict_from_proto(Proto.FromString(state)).items():
            if name not in OWN:
                context.state[name] = record
        return Message(recorddict_from_proto(Proto.FromString(content)), reply_to=message)

    def _options(self) -> list[str]:
        if not self._isolated:
            return []
        return ["--isolate", *map(str, self._hidden)]

    def _ask(self, question: bytes, folder: str) -> tuple[bytes, bytes]:
        command = [sys.executable, "-P", "-m", _MODULE, folder, *self._options()]
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        answer, words = bytearray(), bytearray()
        sizes = (
            (child.stdout, answer, 2 * len(question) + LARGEST_ANSWER),
            (child.stderr, words, LONGEST_WORDS),
        )
        readers = [Thread(target=_keep_end, args=given, daemon=True) for given in sizes]
        for reader in readers:
            reader.start()
        try:
            with suppress(BrokenPipeError), cast("IO[bytes]", child.stdin) as stream:
                stream.write(question)
            child.wait(self._seconds)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            for reader in readers:
                reader.join(5)  # processes left behind by code with foreign = "open" hold the pipes
            _log_words(bytes(words))
        if child.returncode != 0:
            raise FedVeilError(
                f"the app's process ended with code {child.returncode}; the lines above say why"
            )
        content, state = _unpacked(bytes(answer), 2)
        return content, state


def _keep_end(stream: BufferedReader, held: bytearray, most: int) -> None:
    """Read a pipe to its end, and keep only its last bytes."""
    part = stream.read1(1 << 16)
    while part:
        held += part
        del held[:-most]
        part = stream.read1(1 << 16)


def _log_words(words: bytes) -> None:
    """Write an app's output into the node's log, with each line marked and control characters removed."""
    for line in words.decode(errors="replace").splitlines()[-MOST_LINES:]:
        _LOG.warning("%s: %s", WORDS, line)


def _packed(bundle: "Bundle", message: "Message", context: "Context") -> bytes:
    from flwr.app import Context, RecordDict
    from flwr.common.serde import context_to_proto, fab_to_proto, message_to_proto
    from flwr.supercore.fab import Fab

    from fedveil.engines.flower.records import OWN

    state = RecordDict({name: record for name, record in context.state.items() if name not in OWN})
    shown = Context(
        context.run_id,
        context.node_id,
        context.node_config,
        state,
        context.run_config,
        context.series_id,
    )
    fab = Fab(bundle.sha256, bundle.content, {})
    parts = (fab_to_proto(fab), message_to_proto(message), context_to_proto(shown))
    return _framed(*(part.SerializeToString() for part in parts))


def _framed(*frames: bytes) -> bytes:
    return json.dumps([len(frame) for frame in frames]).encode() + b"\n" + b"".join(frames)


def _unpacked(data: bytes, count: int) -> list[bytes]:
    head, _, rest = data.partition(b"\n")
    lengths = json.loads(head)
    if len(lengths) != count or sum(lengths) != len(rest):
        raise FedVeilError("the app's process did not answer whole")
    frames, start = [], 0
    for length in lengths:
        frames.append(rest[start : start + length])
        start += length
    return frames


def main(folder: str, *options: str) -> None:
    """Isolate this process, drop all capabilities, and answer the message on standard input."""
    end_with_parent()
    if options[:1] == ("--isolate",):
        isolate(Path(folder), [Path(place) for place in options[1:]])
        os.execv(sys.executable, [sys.executable, "-P", "-m", _MODULE, folder])
    answers = os.dup(1)
    os.dup2(2, 1)  # output of the app goes to the node's log
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    frames = _unpacked(sys.stdin.buffer.read(), 3)
    with os.fdopen(answers, "wb") as stream:
        stream.write(_framed(*_answer(frames, folder)))
    os._exit(0)  # whatever threads the app left running


def _answer(frames: list[bytes], folder: str) -> tuple[bytes, bytes]:
    from flwr.common.serde import context_from_proto, message_from_proto, recorddict_to_proto
    from flwr.proto.fab_pb2 import Fab
    from flwr.proto.message_pb2 import Context, Message
    from flwr.supercore.task_identity import TaskIdentity

    from fedveil.engines.flower.mod import protected_outside
    from fedveil.node.bundle import Bundle, BundleImporter

    bundle = Bundle(Fab.FromString(frames[0]).content)
    message = message_from_proto(Message.FromString(frames[1]))
    context = context_from_proto(Context.FromString(frames[2]))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
        0,
        context.run_id,
        context.node_id,
    )
    BundleImporter(bundle.files(), Path(folder)).install()
    with protected_outside():
        reply = load_app(bundle.client)(message, context)
    if reply.has_error():
        raise FedVeilError(f"the app answered with error {reply.error.code}: {reply.error.reason}")
    content = recorddict_to_proto(reply.content).SerializeToString()
    return content, recorddict_to_proto(context.state).SerializeToString()


if __name__ == "__main__":
    main(*sys.argv[1:])
