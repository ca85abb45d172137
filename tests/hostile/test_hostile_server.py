"""The server as the adversary of every local method, in both engines.

It asks in any order for any round of any run, with any weights, hypotheses, plans, scores and configuration; it
replays, rewinds, floods, queries, and lets processes die. Two nodes whose data differ in one record get the same
messages and draw from the same stream.
"""

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from fedveil.engines.flower.records import HELLO
from hostile_kit import (
    ADAPTIVE,
    BUDGETS,
    FARTHEST,
    METHODS,
    NEIGHBOURS,
    EmbeddedNode,
    FlowerNode,
    edge,
    lies,
    planned,
    proposals,
    request,
    rounds,
    scores,
    several,
)

pytestmark = pytest.mark.flower


SUMMED = "record-sum"  # a round asked again is a new share, at the price of one
seldom = st.integers(0, 7).map(lambda n: n == 0)


class HostileServer(RuleBasedStateMachine):
    """Plays against two nodes, and looks for any difference between them."""

    node = FlowerNode
    cases = answers = one_failed = (
        0  # for the record: games, vectors, and vectors of which one node's training failed
    )

    @initialize(
        method=st.sampled_from(sorted(METHODS)),
        budget=st.sampled_from(sorted(BUDGETS)),
        raises=st.booleans(),
        lifetime=seldom,
    )
    def begin(self, method, budget, raises, lifetime):
        type(self).cases += 1
        budget = budget if budget in ADAPTIVE.get(method, BUDGETS) else "none"
        self.method, self.messages, self.shares = method, [], {}
        self.nodes = [self.node(x, method, budget, lifetime) for x in NEIGHBOURS]
        for node in self.nodes:
            node.raises = raises

    @rule(
        models=several,
        round_=rounds,
        rounds_=planned,
        scores_=scores,
        lie=lies,
        dies=st.sampled_from([False] * 7 + [True]),
    )
    def train(self, models, round_, rounds_, scores_, lie, dies):
        for node in self.nodes:
            node.dies = dies
        self._send(request("train", models, round_, rounds_, scores_, lie))
        for node in self.nodes:
            node.dies = False

    @rule(model=edge, round_=rounds)
    def train_on_the_edge(self, model, round_):
        self._send(request("train", [model], round_, 6, (1.0, 3.0), {}))

    @rule(which=st.integers(0, 9))
    def replay(self, which):
        if self.messages:
            self._send(self.messages[which % len(self.messages)])

    @rule(models=several, round_=rounds, times=st.integers(1, 4))
    def evaluate(self, models, round_, times):
        for _ in range(times):
            self._send(request("evaluate", models, round_, 3, (1.0, 3.0), {}))

    @rule(kind=st.sampled_from(["query", "query.mine", "train", "evaluate"]), hello=st.booleans())
    def something_else(self, kind, hello):
        content = (
            {HELLO: ConfigRecord()}
            if hello
            else {"question": ConfigRecord({"mean": "of everything"})}
        )
        self._send(Message(RecordDict(content), 99, kind))

    @rule(config=proposals, models=several, round_=rounds)
    def train_as_configured(self, config, models, round_):
        for node in self.nodes:
            node.config = config
        self._send(request("train", models, round_, 6, (1.0, 3.0), {}))
        for node in self.nodes:
            node.config = {}

    @rule(run=st.integers(1, 3))
    def begin_a_run(self, run):
        for node in self.nodes:
            node.run = run

    @rule()
    def restart(self):
        for node in self.nodes:
            node.forget()

    def _send(self, message):
        self.messages.append(message)
        (seen, vector), (seen_too, vector_too) = (node.ask(message) for node in self.nodes)
        assert seen == seen_too
        assert (vector is None) == (vector_too is None)
        if vector is not None:
            type(self).answers += 1
            type(self).one_failed += self.nodes[0].failed != self.nodes[1].failed
            self._near(vector.double(), vector_too.double(), message)
            if self.method == SUMMED:
                self._never_again(vector)

    def _never_again(self, share):
        """With one share in two sums, their difference is that of whoever is in one of them alone."""
        earlier = self.shares.setdefault(self.nodes[0].run, [])
        assert not any(share.equal(other) for other in earlier), "a share was handed out twice"
        earlier.append(share)

    def _near(self, vector, vector_too, message):
        """Where a sensitivity is proven, and both drew the noise of one stream, the vectors are that near."""
        failed = [node.failed for node in self.nodes]
        if (
            self.method not in FARTHEST
            or failed[0] != failed[1]
            or not (vector - vector_too).isfinite().all()
            or self._noise_differs()
        ):
            return
        rounding = 1e-6 * float(vector.abs().max())
        assert float((vector - vector_too).norm()) <= FARTHEST[self.method] * (1 + 1e-6) + rounding

    def _noise_differs(self):
        """Whether earlier releases, which the server has seen and which differ here, set another noise."""
        if self.method not in ADAPTIVE:
            return False
        scales, scales_too = ([e.spend.scale for e in node.entries()] for node in self.nodes)
        return scales != scales_too

    @invariant()
    def ledgers_agree(self):
        if hasattr(self, "nodes"):
            spent, spent_too = (node.spent() for node in self.nodes)
            assert spent == spent_too

    @invariant()
    def a_round_is_trained_once(self):
        for node in getattr(self, "nodes", ()):
            assert node.trained == self.nodes[0].trained
            if node.keeps_its_ledger and self.method != SUMMED:
                assert len(set(node.trained)) == len(node.trained)

    @invariant()
    def a_share_that_left_is_paid_for(self):
        if getattr(self, "method", "") == SUMMED:
            for node in self.nodes:
                paid = [entry for entry in node.spent() if not entry[2]]  # closed, not an intent
                assert sum(map(len, self.shares.values())) <= len(paid)
                if node.keeps_its_ledger:
                    assert len(node.trained) <= len(node.spent())

    def teardown(self):
        for node in getattr(self, "nodes", ()):
            node.close()


class HostileEmbedding(HostileServer):
    """The same against clients of the embedded engine."""

    node = EmbeddedNode
    cases = answers = one_failed = 0


def play(machine, examples, steps, seeded=True):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=seeded,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # add Phase.shrink to look into what was found
        ),
    )


MACHINES = pytest.mark.parametrize("machine", [HostileServer, HostileEmbedding])


@pytest.mark.few(1)
@MACHINES
def test_a_hostile_server_sees_nothing_but_the_protected_vector(machine):
    play(machine, 60, 8)
    assert machine.one_failed > 3  # otherwise the games would prove nothing


@pytest.mark.slow
@MACHINES
def test_a_hostile_server_sees_nothing_in_ten_thousand_games(machine):
    play(machine, 10_000, 8, seeded=False)
    print(
        f"{machine.__name__}: {machine.cases} games, {machine.answers} answers, in {machine.one_failed} one node failed"
    )
    assert machine.cases >= 10_000


def test_earlier_releases_that_the_server_saw_set_the_noise_of_the_next_one():
    """The two nodes' first releases differ, so their second ones have different noise: no difference of the record."""
    game = HostileServer()
    game.begin(method="sga-ldp, released", budget="none", raises=False, lifetime=False)
    game.train_as_configured(config={}, models=[[0.0, 0.0, -1.3, 0.0, 0.0, -1.4]], round_=1)
    first = [node.entries()[-1].spend.scale for node in game.nodes]
    assert first[0] == first[1]
    game.train_as_configured(config={}, models=[[0.0] * 6], round_=2)
    second = [node.entries()[-1].spend.scale for node in game.nodes]
    game.teardown()
    assert second[0] != second[1]
