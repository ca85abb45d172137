"""SuperLink, ServerApp and SuperNode killed by kill -9 on Flower's real chain, and what the ledgers say afterwards.

The same server is killed in one process, and at finer steps, by `tests/crash`. Here a step is a file that is synced or
replaced, or something that is handed over, of the ServerApp or of one site (`killing`). ``CHAIN_PATIENCE=300`` lets the
chain run on a busy machine, and Flower notices the death of a node's process after twice as many seconds.
``KILL_STRIDE=5`` tries each fifth step of the long check, ``KILL_FROM=31`` begins it at the 31st.
"""

import json
import os
import shutil

import pytest
from chain import BIN, SLOWER, Chain, end, wait, write_app
from killing import DELTA, EPSILON, HANDED, PLAN, ROUNDS, SITES, WHO, WIRE

import site_kit
from fedveil.accounting import Filter, Ledger
from fedveil.engines.party import COMBINE
from fedveil.engines.sealed import unsealed

pytestmark = [pytest.mark.deploy, pytest.mark.flower]
PATIENCE = 200.0 * SLOWER  # seconds for a run
STRIDE = int(os.environ.get("KILL_STRIDE", "1"))
FIRST = int(os.environ.get("KILL_FROM", "1"))
LINE, BITS = "after server.jsonl", "after round.safetensors"


class Study:
    """A SuperLink, three sites, and an app whose parties die where they are told to."""

    def __init__(self, folder, name):
        self.folder, self.name, self.sites = folder, name, SITES[name]
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.configs = site_kit.set_up(self.disk, self.sites)
        for i in range(self.sites):
            policy = self.disk / f"site{i}" / "policy.toml"
            policy.write_text(policy.read_text().replace("5.0", "500.0"))
        code = f"from killing import {{0}}_app\n\napp = {{0}}_app({name!r}, {str(self.disk)!r})\n"
        self.app = write_app(folder / "app", "study", code.format("client"), code.format("server"))
        self.chain, self.nodes, self.started = Chain(folder), {}, 0

    def __enter__(self):
        self.chain.__enter__()
        for i in range(self.sites):
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
        self.nodes[i] = self.chain.supernode(i, of=self.sites, more=more or "study='none'", env=env)

    def revive(self):
        """Start again what is dead of SuperLink and SuperNodes.

        A SuperLink that lost its memory knows no SuperNode: each is told so when it asks, and ends.
        """
        if self.chain.link.poll() is not None:
            self.chain.begin_link("link")
            living = list(self.nodes.values())
            wait(
                lambda: all(node.poll() is not None for node in living), PATIENCE, *self.chain.logs
            )
        for i, node in self.nodes.items():
            if node.poll() is not None:
                self.begin_node(i)

    # ---- runs

    def fresh(self):
        """Forget the last case's folder; the sites' ledgers go on."""
        shutil.rmtree(self.disk / "run", ignore_errors=True)
        for path in [self.disk / WIRE, self.disk / PLAN, *self.disk.glob("*.steps")]:
            path.unlink(missing_ok=True)
        self.before = self.lines()

    def _begin_run(self):
        self.started += 1
        out = self.folder / f"out{self.started}.json"
        go = [BIN / "flwr", "run", self.app, "here", "--stream", "--run-config", f'out="{out}"']
        return self.chain.begin(f"run{self.started}", go), out

    def play(self):
        """A run to its end; the rounds that it played."""
        return self._played(self._begin_run()[1])

    def _played(self, out):
        wait(lambda: out.exists() and out.read_text().endswith("}"), PATIENCE, *self.chain.logs)
        return json.loads(out.read_text())["played"]

    def kill(self, who, victim, count=1, label=None, charged=0):
        """Begin a run in which a party kills at a step: the rounds that it played all the same, or None.

        The step is the n-th, or the n-th of a label, when so many rounds are in the server's ledger. What the server
        had stored at that moment is in `settled`.
        """
        plan = self.disk / PLAN
        about = {"who": who, "label": label, "count": count, "charged": charged, "victim": victim}
        plan.write_text(json.dumps(about))
        process, out = self._begin_run()
        wait(lambda: not plan.exists() or out.exists(), PATIENCE, *self.chain.logs)
        assert not plan.exists(), "the run ended before that step"
        self.settled = self.stored()
        if victim == str(self.chain.link.pid):
            end(self.chain.link)  # what it started outlives it, and the ServerApp holds the folder
        if who == "server":
            wait(lambda: not self.chain.servers(), PATIENCE, *self.chain.logs)
            process.kill()
            self.settled = self.stored()
            return None
        return self._played(out)

    def steps(self, who):
        return (self.disk / f"{who}.steps").read_text().splitlines()

    # ---- what is left

    def ledger(self):
        path = self.disk / "run" / "ledger" / "server.jsonl"
        lines = path.read_bytes().decode().split("\n")[:-1] if path.exists() else []
        return Ledger.parse(json.loads(lines[0])["run"] if lines else "", "server", lines)

    def attempts(self):
        """How often each round was charged."""
        counts = {}
        for entry in self.ledger().entries:
            if entry.key[1] == COMBINE:
                counts[entry.key[0]] = counts.get(entry.key[0], 0) + 1
        return counts

    def stored(self):
        """What the rounds up to the checkpoint's have cost."""
        path = self.disk / "run" / "checkpoint" / "round.safetensors"
        done = unsealed(path)[1]["round"] if path.exists() else 0
        return {number: count for number, count in self.attempts().items() if number <= done}

    def lines(self):
        return [len(site_kit.spent(self.disk, i)) for i in range(self.sites)]

    def more(self):
        """Lines that this case has added to each site's ledger."""
        return [after - before for before, after in zip(self.before, self.lines(), strict=True)]

    def check(self, kills=1):
        """What holds after a run that was killed and went on to its end."""
        attempts = self.attempts()
        again = {number: attempts[number] for number in self.settled}
        assert again == self.settled, "a round that was stored was charged again"
        assert set(attempts) == set(range(1, ROUNDS + 1))
        assert sum(attempts.values()) <= ROUNDS + kills
        summary = json.loads((self.disk / "run" / "summary.json").read_text())
        assert (summary["rounds"], summary["stopped"]) == (ROUNDS, "")
        if self.name == "central":
            costs = Filter(EPSILON, DELTA)
            assert all(costs.admit_spend(entry.spend) for entry in self.ledger().entries)
        books = {}
        for i in range(self.sites):
            books[str(i)] = {entry.digest for entry in site_kit.spent(self.disk, i)}
        latest = {e.key[0]: e.digest for e in self.ledger().entries if e.key[1] == COMBINE}
        for line in (self.disk / WIRE).read_text().splitlines():
            who, what, mark = json.loads(line)
            if who == "site":
                assert mark in books[what], f"site {what} handed over what its ledger lacks"
            elif what:
                assert latest[what] == mark, f"models of round {what} are not its last line's"


@pytest.fixture(scope="module", params=["central", "sites", "sum"])
def study(request, tmp_path_factory):
    with Study(tmp_path_factory.mktemp(request.param), request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def _fresh(study):
    study.revive()
    study.fresh()


def test_a_line_without_bits_is_charged_again(study):
    """ServerApp killed when round 1 is in its ledger and its models are in no checkpoint."""
    assert study.kill("server", "self", label=LINE, charged=1) is None
    assert study.settled == {}
    assert study.play() == [1, 2]
    study.check()
    assert study.attempts() == {1: 2, 2: 1}
    if study.name != "central":
        assert study.more() == [ROUNDS + 1] * study.sites


def test_bits_that_are_stored_are_handed_over_again_for_nothing(study):
    """ServerApp killed when round 1 is in its checkpoint, before anybody saw it."""
    assert study.kill("server", "self", label=BITS) is None
    assert study.settled == {1: 1}
    assert study.play() == [2]
    study.check()
    assert study.attempts() == {1: 1, 2: 1}
    if study.name != "central":
        assert study.more() == [ROUNDS] * study.sites


def test_a_run_goes_on_after_its_superlink_died(study):
    """SuperLink killed when round 2 is asked; nothing of its memory is left."""
    victim = str(study.chain.link.pid)
    assert study.kill("server", victim, label=HANDED, charged=1) is None
    assert study.settled == {1: 1}
    study.revive()
    assert study.play() == [2]
    study.check()
    assert study.attempts()[1] == 1


def test_a_nodes_process_that_dies_has_charged_what_it_did_not_send(study):
    """The process of one message killed when its release is in its ledger; its SuperNode lives."""
    label = HANDED if study.name != "central" else None
    if label is None:
        pytest.skip("a client under central trust keeps no ledger")
    played = study.kill("node1", "self", 2, label)
    assert played == [1, 2]
    study.check(kills=0)
    assert study.more()[1] >= ROUNDS


def test_a_supernode_that_dies_leaves_its_line_and_comes_back(study):
    if study.name != "sites":
        pytest.skip("a sum needs it back within the round, and central trust has no line")
    played = study.kill("node2", "group", 1, HANDED)
    assert played == [1, 2]  # with the two that are left
    assert study.nodes[2].wait(30) != 0
    assert study.more() == [ROUNDS, ROUNDS, 1]
    study.check(kills=0)
    study.revive()
    study.fresh()
    study.settled = {}
    assert study.play() == [1, 2]
    assert study.more() == [ROUNDS] * study.sites


@pytest.mark.slow
def test_a_server_killed_at_every_step(study):
    study.play()
    total = len(study.steps("server"))
    for step in range(FIRST, total + 1, STRIDE):
        print(f"step {step} of {total}", flush=True)
        study.revive()
        study.fresh()
        study.kill("server", "self", step)
        study.play()
        study.check()
