"""Die at one step of a server or of a node, on Flower's real chain: what the apps of `test_kills` import.

A *step* stands before and after each file that is synced or replaced below the study's folder, and before and after
something is handed over. Steps are counted across the processes of one party, as each message of a node is another
process. At the step that ``plan.json`` names the process kills whom the plan names: itself, its whole group (a
SuperNode with all that it started) or a process by its id.
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
from fedveil.engines.server import ServerParty
from fedveil.errors import FieldError
from fedveil.flower import FedVeilStrategy, ServerFolder, from_arrays, privacy_mod, to_arrays
from fedveil.layout import Layout
from fedveil.methods import build

ROUNDS, SITES, EPSILON, DELTA = 2, 3, 20.0, 1e-5
SHAPES = Layout.from_shapes({"weight": (6,)})
METHODS = {
    "central": build("global", FedAdam(), noise_multiplier=1.5, clip=1.0),
    "sites": build("sga-ldp", epsilon_min=5.0, epsilon_max=8.0, similarity="released"),
    "sum": site_kit.method(rounds=ROUNDS),
}
PLAN, WIRE, WHO = "plan.json", "wire.log", "KILLED_PARTY"


class Steps:
    """Counts the steps of a party in a file, and kills at the planned one."""

    def __init__(self, folder, who):
        self._folder, self._who = Path(folder), who
        self._count = self._folder / f"{who}.steps"

    def __call__(self):
        with self._count.open("ab") as file:
            file.write(b".")
        plan = self._folder / PLAN
        if not plan.exists():
            return
        known = json.loads(plan.read_text())
        if known["who"] != self._who or known["step"] > self._count.stat().st_size:
            return
        plan.unlink()
        if known["victim"] == "group":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        elif known["victim"] == "self":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            os.kill(int(known["victim"]), signal.SIGKILL)

    def inside(self, path):
        return self._folder in Path(path).parents


def watch(folder, who):
    """Make steps of what a party writes and hands over, and note the latter in the wire log."""
    steps, wire = Steps(folder, who), Path(folder) / WIRE
    fsync, replace = os.fsync, os.replace
    release, opened = ClientParty.release, ServerParty.open

    def stepping_fsync(handle):
        within = steps.inside(os.readlink(f"/proc/self/fd/{handle}"))
        if within:
            steps()
        fsync(handle)
        if within:
            steps()

    def stepping_replace(source, target, **options):
        replace(source, target, **options)
        if steps.inside(target):
            steps()

    def note(*what):
        with wire.open("ab") as file:
            file.write((json.dumps(what) + "\n").encode())
        steps()

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
    options = {"rounds": ROUNDS, "clients": SITES, "evaluate": False, "budget": budget}
    return FedVeilStrategy(METHODS[name], layout, folder=folder, **options)
