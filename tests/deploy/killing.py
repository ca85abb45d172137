"""Die at one step of a server or of a node, on Flower's real chain: what the apps of `test_kills` import.

A *step* stands before and after each file that is synced or replaced below the study's folder, and after something is
handed over. It has a label: ``before server.jsonl``, ``after round.safetensors``, ``handed over``. Steps are counted
across the processes of one party, as each message of a node is another process. At the step that ``plan.json`` names
the process kills whom the plan names: itself, its whole group (a SuperNode with all that it started), or a process by
its id.
"""

import json
import os
import signal
from pathlib import Path

import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import site_kit
from fedveil.accounting import Filter, Release, digest
from fedveil.aggregation import FedAdam
from fedveil.engines.client import ClientParty
from fedveil.engines.party import COMBINE
from fedveil.engines.server import ServerParty
from fedveil.errors import FieldError
from fedveil.flower import FedVeilStrategy, ServerFolder, from_arrays, privacy_mod, to_arrays
from fedveil.layout import Layout
from fedveil.methods import build

ROUNDS, EPSILON, DELTA = 2, 20.0, 1e-5
SITES = {"central": 2, "sites": 3, "sum": 3}
SHAPES = Layout.from_shapes({"weight": (6,)})
METHODS = {
    "central": build("global", FedAdam(), noise_multiplier=1.5, clip=1.0),
    "sites": build("sga-ldp", epsilon_min=5.0, epsilon_max=8.0, similarity="released"),
    "sum": site_kit.method(rounds=ROUNDS),
}
PLAN, WIRE, WHO, HANDED = "plan.json", "wire.log", "KILLED_PARTY", "handed over"


class Steps:
    """Writes down the steps of a party, and kills at the planned one."""

    def __init__(self, folder, who):
        self._folder, self._who = Path(folder), who
        self._log = self._folder / f"{who}.steps"

    def __call__(self, label):
        with self._log.open("a") as file:
            file.write(f"{label}\n")
        plan = self._folder / PLAN
        if not plan.exists():
            return
        known = json.loads(plan.read_text())
        if known["who"] != self._who or not self._is_planned(known):
            return
        plan.unlink()
        if known["victim"] == "group":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        victim = os.getpid() if known["victim"] == "self" else int(known["victim"])
        os.kill(victim, signal.SIGKILL)

    def _is_planned(self, known):
        """Whether this is the n-th step, or the n-th of a label, and the server's ledger has charged so many rounds."""
        ledger = self._folder / "run" / "ledger" / "server.jsonl"
        charged = ledger.read_text().count(f'"{COMBINE}"') if ledger.exists() else 0
        if charged < known["charged"]:
            return False
        labels = self._log.read_text().splitlines()
        if known["label"] is not None:
            labels = [label for label in labels if label == known["label"]]
        return len(labels) >= known["count"]

    def inside(self, path):
        return self._folder in Path(path).parents


def watch(folder, who):
    """Make steps of what a party writes and hands over, and note the latter in the wire log."""
    steps, wire = Steps(folder, who), Path(folder) / WIRE
    fsync, replace = os.fsync, os.replace
    release, opened = ClientParty.release, ServerParty.open

    def stepping_fsync(handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if not steps.inside(path):
            return fsync(handle)
        steps(f"before {path.name}")
        fsync(handle)
        return steps(f"after {path.name}")

    def stepping_replace(source, target, **options):
        replace(source, target, **options)
        if steps.inside(target):
            steps(f"after {Path(target).name}")

    def note(*what):
        with wire.open("a") as file:
            file.write(json.dumps(what) + "\n")
        steps(HANDED)

    def stepping_release(party, *arguments):
        released = release(party, *arguments)
        if party.method.client.trust != "central":
            note("site", party.ledger.party, digest(released))
        return released

    def stepping_open(party, models, number, *more):
        opening = opened(party, models, number, *more)
        note("server", number - 1, digest((Release("model", models),)))
        return opening

    os.fsync, os.replace = stepping_fsync, stepping_replace
    ClientParty.release, ServerParty.open = stepping_release, stepping_open


def client_app(name, folder):
    """The client of a method: each adds 1 + its partition, or trains on its records."""
    watch(folder, os.environ[WHO])
    if name == "sum":
        return site_kit.client_app(method=METHODS["sum"])
    app = ClientApp(mods=[privacy_mod(SHAPES, METHODS[name])])

    @app.train()
    def train(message, context):
        vector = from_arrays(SHAPES, message.content["arrays"])
        vector = vector + 1 + context.node_config["partition-id"]
        arrays, metrics = to_arrays(SHAPES, vector), MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def server_app(name, folder):
    """The server, which begins a run in a folder or goes on with it."""
    app = ServerApp()

    @app.main()
    def main(grid, context):
        watch(folder, "server")
        place, out = Path(folder) / "run", Path(context.run_config["out"])
        try:
            strategy = strategy_of(name, ServerFolder(place, resume=place.exists()))
        except FieldError as error:
            if "leave resume out" not in str(error):
                raise
            strategy = strategy_of(name, ServerFolder(place))
        start = torch.zeros(strategy.layout.size)
        strategy.start(grid, to_arrays(strategy.layout, start))
        out.write_text(json.dumps({"played": [log.number for log in strategy.history]}))

    return app


def strategy_of(name, folder):
    """The server's half, which waits for all sites."""
    layout = site_kit.LAYOUT if name == "sum" else SHAPES
    budget = Filter(EPSILON, DELTA) if name == "central" else None
    options = {"rounds": ROUNDS, "clients": SITES[name], "evaluate": False, "budget": budget}
    return FedVeilStrategy(METHODS[name], layout, folder=folder, **options)
