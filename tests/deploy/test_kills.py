"""SuperLink, ServerApp and SuperNode killed by kill -9 on Flower's real chain, and what the ledgers say afterwards.

The same server is killed in one process, and at finer steps, by `tests/crash`. Here a step is a file that is synced or
replaced, or something that is handed over, of the ServerApp or of one site (`killing`).
"""

import json
import os
import shutil
import time

import pytest
from chain import BIN, Chain, wait, write_app
from killing import DELTA, EPSILON, PLAN, ROUNDS, SITES, WHO, WIRE

import site_kit
from fedveil.accounting import Filter, Ledger
from fedveil.engines.party import COMBINE
from fedveil.engines.sealed import unsealed

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
PATIENCE = 300.0  # seconds for a run, on a machine that does other things
STRIDE = int(os.environ.get("KILL_STRIDE", "1"))  # every which step is tried in the long checks


class Study:
    """A SuperLink, three sites, and an app whose parties die where they are told to."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.configs = site_kit.set_up(self.disk, SITES)
        for i in range(SITES):
            policy = self.disk / f"site{i}" / "policy.toml"
            policy.write_text(policy.read_text().replace("5.0", "500.0"))
        code = f"from killing import {{0}}_app\n\napp = {{0}}_app({name!r}, {str(self.disk)!r})\n"
        self.app = write_app(folder / "app", "study", code.format("client"), code.format("server"))
        self.chain, self.nodes, self.count = Chain(folder), {}, 0

    def __enter__(self):
        self.chain.__enter__()
        for i in range(SITES):
            self.begin_node(i)
        return self

    def __exit__(self, *error):
        self.chain.__exit__(*error)

    def begin_node(self, i):
        """Start a site's SuperNode, for the first time or again."""
        own = self.configs[i] if self.name == "sum" else {}
        if self.name == "sites":
            own = {key: self.configs[i][key] for key in ("privacy.ledger", "privacy.head")}
        more = " ".join(f'{key}="{own[key]}"' for key in own if key != "partition-id")
        env = self.chain.env | {WHO: f"node{i}"}
        self.nodes[i] = self.chain.supernode(i, of=SITES, more=more or "study='none'", env=env)

    # ---- runs

    def fresh(self):
        """Forget the last case's folder; the sites' ledgers go on."""
        shutil.rmtree(self.disk / "run", ignore_errors=True)
        for path in [self.disk / WIRE, self.disk / PLAN, *self.disk.glob("*.steps")]:
            path.unlink(missing_ok=True)
        self.before = self.lines()

    def begin_run(self):
        self.count += 1
        out = self.folder / f"out{self.count}.json"
        name = f"run{self.count}"
        go = [BIN / "flwr", "run", self.app, "here", "--stream", "--run-config", f'out="{out}"']
        return self.chain.begin(name, go), out

    def play(self):
        """A run to its end; the rounds that it played."""
        process, out = self.begin_run()
        wait(lambda: out.exists() and out.read_text().endswith("}"), PATIENCE, *self.chain.logs)
        process.wait(60)
        return json.loads(out.read_text())["played"]

    def killed(self, who, step, victim):
        """Begin a run in which a party gets to a step and kills; False if the run ends before that."""
        (self.disk / PLAN).write_text(json.dumps({"who": who, "step": step, "victim": victim}))
        process, out = self.begin_run()
        wait(
            lambda: not (self.disk / PLAN).exists() or process.poll() is not None or out.exists(),
            PATIENCE,
            *self.chain.logs,
        )
        fell = not (self.disk / PLAN).exists()
        if who == "server" or victim not in ("self", "group"):
            wait(lambda: process.poll() is not None, PATIENCE, *self.chain.logs)
        return fell, out

    def steps(self, who):
        return (self.disk / f"{who}.steps").stat().st_size

    # ---- what is left

    def ledger(self):
        path = self.disk / "run" / "ledger" / "server.jsonl"
        lines = path.read_bytes().decode().split("\n")[:-1] if path.exists() else []
        return Ledger.parse(json.loads(lines[0])["run"] if lines else "", "server", lines)

    def attempts(self):
        counts = {}
        for entry in self.ledger().entries:
            if entry.key[1] == COMBINE:
                counts[entry.key[0]] = counts.get(entry.key[0], 0) + 1
        return counts

    def stored(self):
        """The round of the checkpoint, and what the rounds up to it had cost then."""
        path = self.disk / "run" / "checkpoint" / "round.safetensors"
        done = unsealed(path)[1]["round"] if path.exists() else 0
        return {number: count for number, count in self.attempts().items() if number <= done}

    def spent(self, i):
        return site_kit.spent(self.disk, i)

    def lines(self):
        return [len(self.spent(i)) for i in range(SITES)]

    def check(self, settled, kills):
        """What holds after a run that was killed and went on to its end."""
        attempts = self.attempts()
        assert {number: attempts[number] for number in settled} == settled, (
            "stored, and charged again"
        )
        assert set(attempts) == set(range(1, ROUNDS + 1))
        assert sum(attempts.values()) <= ROUNDS + kills
        summary = json.loads((self.disk / "run" / "summary.json").read_text())
        assert (summary["rounds"], summary["stopped"]) == (ROUNDS, "")
        if self.name == "central":
            costs = Filter(EPSILON, DELTA)
            assert all(costs.admit_spend(entry.spend) for entry in self.ledger().entries)
        books = {str(i): {entry.digest for entry in self.spent(i)} for i in range(SITES)}
        latest = {e.key[0]: e.digest for e in self.ledger().entries if e.key[1] == COMBINE}
        for line in (self.disk / WIRE).read_text().splitlines():
            who, what, mark = json.loads(line)
            if who == "site":
                assert mark in books[what], f"site {what} handed over what its ledger lacks"
            elif what:
                assert latest[what] == mark, f"models of round {what} are not its last line's"
        if self.name != "central":
            more = [after - before for before, after in zip(self.before, self.lines(), strict=True)]
            assert all(ROUNDS <= count <= ROUNDS + 2 * kills + 1 for count in more), more


@pytest.fixture
def study(request, tmp_path):
    with Study(tmp_path, request.param) as made:
        yield made


def test_x(tmp_path):
    name = os.environ.get("X", "central")
    with Study(tmp_path, name) as study:
        study.fresh()
        t = time.monotonic()
        print(
            study.play(),
            study.attempts(),
            study.stored(),
            study.steps("server"),
            time.monotonic() - t,
            study.lines(),
        )
        t = time.monotonic()
        study.fresh()
        print(study.killed("server", 20, "self"), study.stored(), time.monotonic() - t)
        settled = study.stored()
        t = time.monotonic()
        print(study.play(), time.monotonic() - t, study.attempts())
        study.check(settled, 1)
        print({p.name: p.stat().st_size for p in study.disk.glob("*.steps")})
