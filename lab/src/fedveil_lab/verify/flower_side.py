"""Run a Flower app once in its own process, and return all that left it, as numbers.

The app runs unchanged on FedVeil's in-process grid. Only the data that its loading function returns for one client
differ between the two worlds. `fedveil_lab.verify.apps` starts these runs.
"""

import importlib
import os
import pickle
import random
import re
import socket
import sys
import zlib
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.common.config import flatten_dict

from fedveil.flower import InProcessGrid, run_in_process
from fedveil_lab.verify.apps import LINES
from fedveil_lab.verify.flare_probe.flare_watch import CLOSED, named_numbers
from fedveil_lab.verify.neighbours import canary_data, data_of_run, of_author

MOST = (
    20_000  # numbers of an answer that are kept as they are; of more, as many signed sums of them
)
NUMBER = r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"


class Recorder(InProcessGrid):
    """In-process grid that records the messages between server and clients.

    Attributes
    ----------
    target : int
        Partition of the client whose data differ between the worlds.
    asked, answered : list of RecordDict
        Messages to the target client, and its answers, in order.
    failed : list of str
        Error messages of clients that failed.
    zeroed : frozenset of int
        Clients under zero-out: they answer with the arrays that they were sent.
    now : int
        Client that is running.
    loaded : frozenset of int
        Clients whose data were replaced.
    turns : dict of int to list of (RecordDict, RecordDict)
        Messages to each client and its answers, by partition.
    """

    target = -1
    zeroed: frozenset[int] = frozenset()
    now = -1
    loaded: frozenset[int] = frozenset()

    def ask_node(self, message: Message) -> Message:
        self.now = self._partitions[message.metadata.dst_node_id]
        asked = deepcopy(message.content)  # a server may go on with its own
        reply = super().ask_node(message)
        if reply.has_error():
            self.failed.append(str(reply.error.reason))
            return reply
        if self.now in self.zeroed:
            _zero(asked, reply.content)
        self.turns.setdefault(self.now, []).append((asked, reply.content))
        if self.now == self.target:
            self.asked.append(asked)
            self.answered.append(reply.content)
        return reply

    def begin(self, target: int, zeroed: frozenset[int]) -> None:
        """Start a run."""
        self.target, self.zeroed = target, zeroed
        self.turns: dict[int, list[tuple[RecordDict, RecordDict]]] = {}
        self.asked: list[RecordDict] = []
        self.answered: list[RecordDict] = []
        self.failed: list[str] = []


def left(world: dict[str, Any], seed: int) -> list[Any]:
    """Return everything that the adversary of a claim sees of one run.

    Under central trust it sees what the server sends in each round and keeps at the end. Under local trust it sees the
    target client's answers. Printed numbers are included, since logs are read.
    """
    zeroed = frozenset({world["target"]} if world["zeroed"] else ())
    grid, context = played(world, seed, zeroed)
    if world["trust"] == "local":
        seen = grid.answered
    else:
        seen = [*grid.asked, context.state]
    numbers = np.concatenate([numbers_of(one) for one in seen] or [np.zeros(0)])
    return [len(grid.failed), len(seen), sketched(numbers), logged(_printed())]


def played(world: dict[str, Any], seed: int, zeroed: frozenset[int]) -> tuple[Recorder, Context]:
    """Run the app; return the grid with its record, and the server's context."""
    asked = _close_network()
    _seed(seed)
    sys.path.insert(0, world["folder"])
    clients = world["clients"]
    configs = [{"partition-id": i, "num-partitions": clients} for i in range(clients)]
    recorder: list[Recorder] = []
    _patch(world, recorder)
    server_app, client_app = _named(world["serverapp"]), _named(world["clientapp"])
    config = flatten_dict(world["config"])
    grid = Recorder(client_app, configs, config)
    grid.begin(world["target"], zeroed)
    recorder.append(grid)
    try:
        context = run_in_process(server_app, run_config=config, grid=grid)
    except Exception as error:
        if asked:  # libraries say it in words of their own
            raise RuntimeError(CLOSED) from error
        if grid.failed:  # a server that was not written for it stumbles over a failure
            raise RuntimeError(f"its clients fail: {grid.failed[0]}") from error
        raise
    if asked and grid.failed:
        raise RuntimeError(CLOSED)
    if not grid.turns:
        raise RuntimeError(
            f"its clients fail: {grid.failed[0]}" if grid.failed else "it asks no client anything"
        )
    _require_loaded(grid, world)
    return grid, context


def _require_loaded(grid: Recorder, world: dict[str, Any]) -> None:
    """Refuse a run in which the data of a client were not replaced although it answered."""
    if world["zeroed"] is None:
        return
    asked = {*grid.turns} if "run" in world else {world["target"]} & {*grid.turns}
    missed = sorted(asked - grid.loaded)
    if missed:
        place = world["data"]
        raise RuntimeError(
            f"client {missed[0]} never calls {place}, which is said to load its data"
        )


def transcribed(world: dict[str, Any], seed: int) -> list[Any]:
    """Write what left every client of one run with many canaries to a file; return the number of failed clients."""
    if "run" not in world:  # the app as it is
        return left(world, seed)
    worlds = world["run"]["worlds"]
    zeroed = frozenset(int(name) for name, one in worlds.items() if one["zeroed"])
    grid, context = played(world, seed, zeroed)
    turns = {}
    for client, pairs in grid.turns.items():
        turns[str(client)] = [(named(asked), named(answered)) for asked, answered in pairs]
    with open(world["out"], "wb") as file:
        pickle.dump({"turns": turns, "final": named(context.state)}, file)
    return [len(grid.failed)]


def named(content: RecordDict) -> dict[str, Any]:
    """Return the numbers of a message (arrays, metrics, configurations) by their paths."""
    found: dict[str, Any] = {}
    for name in sorted(content):
        record = content[name]
        for key in sorted(record):
            value = record[key]
            plain = value.numpy() if isinstance(value, Array) else value
            found.update(named_numbers(plain, f"{name}/{key}"))
    return found


def numbers_of(content: RecordDict) -> np.ndarray[Any, Any]:
    """Return all numbers of a message (arrays, metrics, configurations), with a check sum in place of each text."""
    parts = [np.zeros(0)]
    for name in sorted(content):
        record = content[name]
        for key in sorted(record):
            value = record[key]
            if isinstance(value, Array):
                parts.append(np.asarray(value.numpy(), dtype=np.float64).reshape(-1))
            elif isinstance(value, str | bytes):
                raw = value.encode() if isinstance(value, str) else value
                parts.append(np.array([float(zlib.crc32(raw))]))
            else:
                parts.append(np.atleast_1d(np.asarray(value, dtype=np.float64)).reshape(-1))
    return np.concatenate(parts)


def logged(text: str) -> np.ndarray[Any, Any]:
    """Return the numbers that an app prints, [LINES]; lines with the same text beside their numbers are summed at one place."""
    found = np.zeros(LINES)
    for line in text.splitlines():
        place = zlib.crc32(re.sub(NUMBER, "", line).encode()) % LINES
        found[place] += sum(float(number) for number in re.findall(NUMBER, line))
    return found


def sketched(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Shorten a long vector to signed sums, the same ones in every run; return a short one unchanged."""
    if len(numbers) <= MOST:
        return numbers
    rng = np.random.default_rng(0)
    signs = rng.choice((-1.0, 1.0), len(numbers))
    return np.bincount(
        rng.integers(MOST, size=len(numbers)), weights=signs * numbers, minlength=MOST
    )


def _printed() -> str:
    """Return what this process has printed so far, if its output is a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        return os.pread(1, 1 << 20, 0).decode(errors="replace")
    except OSError:  # a terminal
        return ""


def _patch(world: dict[str, Any], recorder: list[Recorder]) -> None:
    """Replace the app's loading function by one that gives the target client a neighbour's data."""
    if world["zeroed"] is None:
        return
    run = world.get("run")
    place, _, name = world["data"].rpartition(":")
    module = importlib.import_module(place)
    original = getattr(module, name)

    def loaded(*arguments: Any, **options: Any) -> Any:
        data = original(*arguments, **options)
        if not recorder or recorder[0].now < 0:
            return data
        grid = recorder[0]
        if run is not None:
            grid.loaded |= {grid.now}
            return data_of_run(data, run, str(grid.now))
        if grid.now != world["target"]:
            return data
        grid.loaded |= {grid.now}
        unit, relation, inside = world["unit"], world["relation"], world["inside"]
        if world["neighbours"]:
            return of_author(world["neighbours"], data, unit, relation, inside)
        return canary_data(data, unit, relation, world["canary"], inside, world["rows"])

    setattr(module, name, loaded)


def _named(name: str) -> Any:
    """Import and return the object ``module:attribute``."""
    place, _, attribute = name.rpartition(":")
    return getattr(importlib.import_module(place), attribute)


def _zero(asked: RecordDict, answered: RecordDict) -> None:
    """Replace the arrays of an answer by those that the client was sent."""
    sent = [record for record in asked.values() if isinstance(record, ArrayRecord)]
    for name in list(answered):
        if isinstance(answered[name], ArrayRecord) and sent:
            answered[name] = sent.pop(0)


def _seed(seed: int) -> None:
    """Seed the random generators of the libraries for this run."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - an app may draw from the global generator
    torch.manual_seed(seed)


def _close_network() -> list[bool]:
    """Forbid every network connection; return a list that gets an item for each try."""
    asked: list[bool] = []

    def refused(*_arguments: Any, **_options: Any) -> None:
        asked.append(True)
        raise OSError(CLOSED)

    for name in ("connect", "connect_ex"):
        setattr(socket.socket, name, refused)
    for name in ("create_connection", "getaddrinfo"):
        setattr(socket, name, refused)
    return asked
