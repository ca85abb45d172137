"""Kill a deployed server where it touches the disk or hands something over, go on with it, and check what is left.

A script as `crash_kit`, whose steps and disk it uses. A child is the server and all its sites at once, over the
in-process grid, so that a kill ends them together: what a node remembers of a run in memory is lost, and what its data
set's ledger holds is not. Whoever goes on is another run of the framework's.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

import crash_kit
import fedveil.engines.flower.grid as grids
import site_kit
from fedveil.accounting import Filter, Ledger, Release, digest
from fedveil.aggregation import FedAdam
from fedveil.engines.client import ClientParty
from fedveil.engines.party import COMBINE
from fedveil.engines.sealed import unsealed
from fedveil.engines.server import ServerParty
from fedveil.errors import FieldError
from fedveil.evidence.standing import FILE, FOLDER
from fedveil.files import FolderLock
from fedveil.flower import (
    FedVeilStrategy,
    InProcessGrid,
    ServerFolder,
    from_arrays,
    privacy_mod,
    to_arrays,
)
from fedveil.layout import Layout
from fedveil.methods import build

SHAPES = Layout.from_shapes({"weight": (6,)})
SITES, EPSILON, DELTA = 3, 12.0, 1e-5
CENTRAL = build("global", FedAdam(), noise_multiplier=1.5, clip=1.0)
LOCAL = build("sga-ldp", epsilon_min=5.0, epsilon_max=8.0, similarity="released")


def adding(method, **options):
    """Each client adds 1 + its partition."""
    client = ClientApp(mods=[privacy_mod(SHAPES, method, **options)])

    @client.train()
    def train(message, context):
        vector = (
            from_arrays(SHAPES, message.content["arrays"]) + 1 + context.node_config["partition-id"]
        )
        content = RecordDict(
            {"arrays": to_arrays(SHAPES, vector), "metrics": MetricRecord({"num-examples": 1})}
        )
        return Message(content, reply_to=message)

    return client


class ServerCase(crash_kit.Case):
    """One deployed run, killed and gone on with until it ends."""

    def __init__(self, home, spec):
        super().__init__(home, spec)
        self.settled = {}
        if spec.method != "central":
            self.sites = site_kit.set_up(self.disk, SITES)
        if spec.method == "sites":
            own = ("partition-id", "privacy.ledger", "privacy.head")
            self.sites = [{name: site[name] for name in own} for site in self.sites]

    def _watch(self, steps):
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        release, opened, combine = ClientParty.release, ServerParty.open, ServerParty.combine

        def note(*what):
            steps()
            os.write(handle, (json.dumps(what) + "\n").encode())
            steps()

        def stepping_release(party, *arguments):
            steps()
            released = release(party, *arguments)
            if self.spec.method != "central":
                note("site", party.ledger.party, digest(released))
            return released

        def stepping_open(party, models, round_, *more):
            opening = opened(party, models, round_, *more)
            note("server", round_ - 1, digest((Release("model", models),)))
            return opening

        def stepping_combine(party, *arguments, **named):
            steps()
            combined = combine(party, *arguments, **named)
            steps()
            return combined

        ClientParty.release, ServerParty.open, ServerParty.combine = (
            stepping_release,
            stepping_open,
            stepping_combine,
        )

    def _go(self):
        grids.RUN = self.kills + 1
        try:
            strategy = self._strategy(ServerFolder(self.folder, resume=self.kills > 0))
        except FieldError as error:
            if "leave resume out" not in str(error):
                raise
            strategy = self._strategy(ServerFolder(self.folder))
        layout, start = strategy.layout, torch.zeros(strategy.layout.size)
        server = ServerApp()

        @server.main()
        def main(grid, context):
            strategy.start(grid, to_arrays(layout, start))

        grids.run_in_process(server, grid=InProcessGrid(self._app(), self._nodes()))

    def _strategy(self, folder):
        spec, seed = self.spec, None if self.spec.source.kind == "secure" else 0
        shared = {"rounds": spec.rounds, "folder": folder, "seed": seed, "evaluate": False}
        if spec.method == "sum":
            return FedVeilStrategy(site_kit.method(), site_kit.LAYOUT, **shared)
        if spec.method == "sites":
            return FedVeilStrategy(LOCAL, SHAPES, **shared)
        return FedVeilStrategy(CENTRAL, SHAPES, budget=Filter(EPSILON, DELTA), **shared)

    def _app(self):
        if self.spec.method == "sum":
            return site_kit.client_app()
        seed = None if self.spec.source.kind == "secure" else 0
        return adding(LOCAL if self.spec.method == "sites" else CENTRAL, seed=seed)

    def _nodes(self):
        return (
            self.sites
            if self.spec.method != "central"
            else [{"partition-id": i} for i in range(SITES)]
        )

    def ledger(self):
        path = self.folder / "ledger" / "server.jsonl"
        lines = path.read_bytes().decode().split("\n")[:-1] if path.exists() else []
        return Ledger.parse(json.loads(lines[0])["run"] if lines else "", "server", lines)

    def check_kept(self):
        attempts = self.attempts()
        for round_, count in self.settled.items():
            assert attempts[round_] == count, f"round {round_} was stored, and charged again"
        if (self.folder / FOLDER / FILE).exists():
            done = len([number for number in attempts if number <= self.stored()])
            self.settled = {number: attempts[number] for number in range(1, done + 1)}
        self._check_wire()

    def attempts(self):
        counts = {}
        for entry in self.ledger().entries:
            if entry.key[1] == COMBINE:
                counts[entry.key[0]] = counts.get(entry.key[0], 0) + 1
        return counts

    def stored(self):
        return unsealed(self.folder / FOLDER / FILE)[1]["round"]

    def _check_wire(self):
        """What was handed over is in the ledger of whoever did, and of a round one version alone."""
        books = {}
        for site in getattr(self, "sites", ()):
            party = str(site["partition-id"])
            books[party] = {e.digest for e in site_kit.spent(self.disk, party)}
        latest = {e.key[0]: e.digest for e in self.ledger().entries if e.key[1] == COMBINE}
        durable = self.spec.source.kind == "secure"
        for who, what, mark in self.wire():
            if who == "site":
                assert mark in books[what], f"site {what} handed over what its ledger lacks"
            elif what and (durable or what in latest):
                assert latest[what] == mark, (
                    f"models of round {what} were handed over that are not its last line's"
                )

    def check_end(self, whole):
        self._check_wire()
        summary = json.loads((self.folder / "summary.json").read_text())
        ledger, attempts = self.ledger(), self.attempts()
        assert {number: attempts[number] for number in self.settled} == self.settled
        assert self.files() >= whole.files(), sorted(whole.files() - self.files())
        assert self.files() <= whole.files(), sorted(self.files() - whole.files())
        assert len(self.rows()) == summary["rounds"] == self.stored()
        lock = FolderLock(self.folder)
        assert lock.try_take(), "the folder is locked"
        lock.release()
        if summary["stopped"]:
            self.stopped = True
            assert "budget" in summary["stopped"] or "releases" in summary["stopped"], summary[
                "stopped"
            ]
        else:
            assert summary["rounds"] == self.spec.rounds
        assert len(ledger.entries) <= self.spec.rounds + self.kills
        if self.spec.method == "central":
            costs = Filter(EPSILON, DELTA)
            assert all(costs.admit_spend(entry.spend) for entry in ledger.entries)
            assert summary["guarantees"]["server"]["epsilon"] <= EPSILON
        if self.spec.source.kind == "reproducible" and self.spec.method == "central":
            assert len(ledger.entries) == self.spec.rounds
            name = "model.safetensors"
            assert (self.folder / name).read_bytes() == (whole.folder / name).read_bytes(), (
                f"{name} differs"
            )


class ServerSweep(crash_kit.Sweep):
    """All cases of one deployed configuration."""

    kind = ServerCase

    def specified(self, method, source, rounds):
        return SimpleNamespace(method=method, source=SimpleNamespace(kind=source), rounds=rounds)

    def warm(self):
        with tempfile.TemporaryDirectory() as home:
            ServerCase(Path(home), self.spec)._go()


if __name__ == "__main__":
    import logging

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    crash_kit.main(*sys.argv[1:], sweeping=ServerSweep)
