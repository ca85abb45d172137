"""A probe in the processes of a FLARE simulation: whose data a site loads, and all that it sends and receives.

The job itself runs unchanged. What changes are FLARE's two functions through which every message passes, its sender of
streams, and what the function returns that loads a site's data. Nothing here needs FedVeil until data are loaded.
"""

import importlib.abc
import importlib.util
import json
import os
import pickle
import sys
import threading
import zlib
from collections.abc import Callable, Mapping
from typing import Any

SETTINGS = "FEDVEIL_VERIFY_RUN"  # file that says what this run is
SITE = "FEDVEIL_VERIFY_SITE"  # set in the processes of a site
RESULT = "DXO"  # where a message of FLARE holds a model
MESSAGES = "nvflare.fuel.f3.cellnet.utils"
USERS = (MESSAGES, "nvflare.fuel.f3.cellnet.core_cell", "nvflare.fuel.f3.cellnet.cell")
PIECES = "SERVICE.STREAM"  # channel of the pieces of a stream, which is read whole
STREAMS = "nvflare.fuel.f3.streaming.byte_streamer"
LOADED = "loaded"  # file that a site's process writes once its data have been replaced
CLOSED = "the network is closed to what is tested"
TEXT = "#text"  # ends the path of a word, of which length and check sum are kept
DEEPEST = 12  # levels of a message
PLAIN = (
    "DXO",
    "FLModel",
    "AnalyticsData",
)  # objects in a message that hold values; others are contexts of FLARE
LOOPBACK = (
    "127.",
    "::1",
    "localhost",
    "0.0.0.0",
)  # the simulator's own processes talk to one another
ENCODED = ("payload_encoding", "pe")  # headers of what an earlier call encoded


class SiteLog:
    """Log of a site's sent and received messages, in order.

    Parameters
    ----------
    folder : str
        Folder with one file for each message.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.count, self.lock = folder, 0, threading.Lock()
        os.makedirs(folder, exist_ok=True)

    def add(self, kind: str, topic: str, values: Mapping[str, Any]) -> None:
        """Keep one message: in, out or stream."""
        with self.lock:
            self.count += 1
            number = self.count
        path = os.path.join(self.folder, f"{number:06d}")
        with open(path + ".part", "wb") as file:
            pickle.dump({"kind": kind, "topic": topic, "values": dict(values)}, file)
        os.replace(path + ".part", path + ".pkl")


def named_numbers(value: Any, path: str = "", depth: int = 0) -> dict[str, Any]:
    """All numbers of a message by their path: arrays as they are, a check sum of words and bytes."""
    import numpy as np

    if depth > DEEPEST or value is None:
        return {}
    if isinstance(value, str | bytes | bytearray | memoryview):
        raw = value.encode() if isinstance(value, str) else bytes(value)
        return {f"{path}{TEXT}": _summed(raw)}
    if type(value).__module__ == "torch" and hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    if isinstance(value, bool | int | float | np.ndarray | np.generic):
        array = np.asarray(value)
        return {path: array.astype(np.float64)} if array.dtype.kind in "biuf" else {}
    if isinstance(value, Mapping):
        parts = [(str(key), value[key]) for key in value]
    elif isinstance(value, list | tuple):
        parts = [(str(number), one) for number, one in enumerate(value)]
    elif type(value).__name__ in PLAIN:
        parts = [(str(key), one) for key, one in vars(value).items()]
    else:
        return {}
    found: dict[str, Any] = {}
    for name, one in parts:
        found.update(named_numbers(one, f"{path}/{name}" if path else name, depth + 1))
    return found


def _summed(raw: bytes) -> Any:
    """Length and check sum of bytes."""
    import numpy as np

    return np.array([float(len(raw)), float(zlib.crc32(raw))])


def watch_messages(module: Any, kept: SiteLog, counts_as_nothing: bool) -> None:
    """Read every message of a site before it is encoded and after it was decoded."""
    encode, decode = module.encode_payload, module.decode_payload
    received: dict[str, Any] = {}

    def encoded(message: Any, *arguments: Any, **options: Any) -> Any:
        payload, headers = message.payload, message.headers or {}
        if payload is not None and not _header(headers, *ENCODED) and not _piece(headers):
            if counts_as_nothing and isinstance(payload, dict):
                count_as_nothing(payload, received)
            kept.add("out", _header(headers, "topic"), named_numbers(payload))
        return encode(message, *arguments, **options)

    def decoded(message: Any, *arguments: Any, **options: Any) -> Any:
        coded = _header(message.headers or {}, *ENCODED) == "fobs"
        result = decode(message, *arguments, **options)
        if coded and isinstance(message.payload, dict):
            received.update(_arrays_of(message.payload))
            kept.add("in", _header(message.headers or {}, "topic"), named_numbers(message.payload))
        return result

    for name in USERS:  # they took the functions by name
        user = sys.modules.get(name, module)
        user.encode_payload, user.decode_payload = encoded, decoded


def count_as_nothing(payload: dict[str, Any], received: Mapping[str, Any]) -> None:
    """Put in place of a result's arrays what a site without data would answer: the model it was sent, or no difference."""
    result = payload.get(RESULT)
    if not isinstance(result, dict) or not isinstance(result.get("data"), dict):
        return
    for name, value in result["data"].items():
        if not hasattr(value, "shape"):
            continue
        sent = received.get(name)
        same = sent is not None and sent.shape == value.shape and result.get("kind") == "WEIGHTS"
        result["data"][name] = sent if same else value * 0


def _arrays_of(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of the model that a message brings, by name."""
    result = payload.get(RESULT)
    data = result.get("data") if isinstance(result, Mapping) else None
    if not isinstance(data, Mapping):
        return {}
    return {name: value for name, value in data.items() if hasattr(value, "shape")}


def watch_streams(module: Any, kept: SiteLog) -> None:
    """Read every stream of bytes that is no message: files and logs."""
    streamer = module.ByteStreamer
    send = streamer.send

    def sent(
        self: Any,
        channel: str,
        topic: str,
        target: Any,
        headers: Any,
        stream: Any,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if type(stream).__name__ != "BlobStream":
            read = stream.read

            def reading(size: int) -> Any:
                part = read(size)
                kept.add("stream", topic, {f"bytes{TEXT}": _summed(bytes(part or b""))})
                return part

            stream.read = reading
        return send(self, channel, topic, target, headers, stream, *rest, **options)

    streamer.send = sent


def watch_data(module: Any, run: Mapping[str, Any], site: str) -> None:
    """Let the function that loads a site's data return that of this run's world."""
    name = run["data"].rpartition(":")[2]
    original = getattr(module, name)

    def loaded(*arguments: Any, **options: Any) -> Any:
        from fedveil_lab.verify.neighbours import data_of_run

        data = data_of_run(original(*arguments, **options), run, site)
        folder = os.path.join(run["folder"], site)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, LOADED), "w", encoding="utf-8"):
            return data

    setattr(module, name, loaded)


def close_network() -> None:
    """Let sockets connect within this machine alone."""
    import socket

    resolve, connect = socket.getaddrinfo, socket.socket.connect
    connect_ex = socket.socket.connect_ex

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        if host is not None and not _here(host):
            raise OSError(CLOSED)
        return resolve(host, *arguments, **options)

    def connected(self: Any, address: Any) -> Any:
        if isinstance(address, tuple) and not _here(address[0]):
            raise OSError(CLOSED)
        return connect(self, address)

    def tried(self: Any, address: Any) -> int:
        if isinstance(address, tuple) and not _here(address[0]):
            raise OSError(CLOSED)
        return connect_ex(self, address)

    socket.getaddrinfo = resolved
    socket.socket.connect_ex = tried  # type: ignore[method-assign]
    socket.socket.connect = connected  # type: ignore[method-assign]


def _here(host: Any) -> bool:
    name = host.decode() if isinstance(host, bytes) else str(host)
    return name == "" or name.startswith(LOOPBACK)


def _header(headers: Mapping[str, Any], *names: str) -> str:
    """The first header that bears one of these names after FLARE's prefix."""
    for key, value in headers.items():
        if key.rpartition("__")[2] in names:
            return str(value)
    return ""


def _piece(headers: Mapping[str, Any]) -> bool:
    """Whether a message is a piece of a stream."""
    return any(value == PIECES for value in headers.values())


class Watching(importlib.abc.MetaPathFinder):
    """Runs a function on a module as soon as it is imported.

    Parameters
    ----------
    name : str
        The module.
    then : callable
        Takes it.
    """

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name, self.then, self.looking = name, then, False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's own specification, whose loader tells us."""
        if name != self.name or self.looking:
            return None
        self.looking = True  # the other finders are asked
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            self.then(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def when_imported(name: str, then: Callable[[Any], None]) -> None:
    """Run a function on a module: now, if it is there already, or as soon as it is imported."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, Watching(name, then))


def run_of() -> dict[str, Any] | None:
    """What this run is; None where nobody asked for one."""
    path = os.environ.get(SETTINGS)
    if not path:
        return None
    with open(path, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def watch_site(run: Mapping[str, Any], site: str) -> None:
    """Watch the process that stands for a site in a simulation."""
    os.environ[SITE] = site  # processes that it starts are of this site, too
    kept = SiteLog(os.path.join(run["folder"], site))
    nothing = bool(run["worlds"][site]["zeroed"])
    when_imported(MESSAGES, lambda module: watch_messages(module, kept, nothing))
    when_imported(STREAMS, lambda module: watch_streams(module, kept))
    watch_loading(run, site)


def watch_loading(run: Mapping[str, Any], site: str) -> None:
    """Watch the loading of data in a process of a site."""
    place = run["data"].rpartition(":")[0]
    if place:
        when_imported(place, lambda module: watch_data(module, run, site))


def begin() -> None:
    """Watch a process that a site has started, training code of its own say."""
    run, site = run_of(), os.environ.get(SITE)
    if run is not None and site:
        close_network()
        watch_loading(run, site)
