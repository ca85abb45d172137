"""A server that asks the sites of a secure sum what it likes; they have key files, policies and lifetime ledgers.

It swaps keys, replays, shrinks, grows and forks rosters, asks twice, mixes runs, rounds and attempts, sends another
model to one site, restarts nodes, and puts a node's files back between two answers. Two federations whose data differ
in one extreme record get the same questions.
"""

import itertools
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from scipy import stats

from fedveil.engines.flower.records import read_share
from fedveil.engines.lifetime import begin_ledger
from fedveil.learning import ClientData
from fedveil.methods import Broadcast, PublicFacts
from fedveil.secure import SiteKey, shares, unmasked
from site_kit import LAYOUT, Nodes, method, network, silo, spent

pytestmark = pytest.mark.flower
N, D = 4, LAYOUT.size
STRANGER = SiteKey(bytes(range(64))).public
FAILED = (902, "the client failed; its own log says why")


def extreme(partition):
    """One record of silo 0 is as far from the others as a number can be."""
    x, y = silo(partition).x.clone(), silo(partition).y
    if partition == 0:
        x[0] = torch.tensor([math.nan, math.inf, 3e38, -3e38, 1e-45, 0.0])
    return ClientData(x, y)


def shown(reply):
    """What the server sees of a reply, the share's numbers apart."""
    if isinstance(reply, tuple):
        return reply
    found = read_share(reply)
    size = sum(
        len(array.data) for record in reply.array_records.values() for array in record.values()
    )
    return (
        sorted(reply),
        size,
        [(r.kind, r.value.dtype, r.value.shape) for r in found],
        dict(reply["fedveil.reply"]),
    )


class Server(RuleBasedStateMachine):
    """Plays against two federations that differ in one record, and looks for any difference."""

    answered = refused = 0

    @initialize()
    def begin(self):
        self.folders = [Path(tempfile.mkdtemp()) for _ in range(2)]
        self.worlds = [
            Nodes(f, silos=s) for f, s in zip(self.folders, (silo, extreme), strict=True)
        ]
        for other in self.worlds[1:]:
            other.server._run = self.worlds[0].server._run
        self.asked, self.sent = [], [{} for _ in self.worlds]

    @rule(
        site=st.integers(0, N - 1),
        members=st.sets(st.integers(0, N - 1), max_size=N),
        swapped=st.sampled_from([None, None, None, 0, 1]),
        attempt=st.sampled_from([0, 0, 1, 2, -1, 2**63 - 1, 2**63]),
        round_=st.sampled_from([1, 1, 2, 3, 4]),
        flower_run=st.sampled_from([1, 1, 2]),
        scale=st.sampled_from([1.0, 1.0, -2.0]),
    )
    def ask(self, site, members, swapped, attempt, round_, flower_run, scale):
        self._put(
            (site, tuple(sorted(members | {site})), swapped, attempt, round_, flower_run, scale)
        )

    @rule(site=st.integers(0, N - 1), attempt=st.integers(0, 2))
    def ask_all(self, site, attempt):
        self._put((site, tuple(range(N)), None, attempt, 1, 1, 1.0))

    @rule(which=st.integers(0, 9))
    def replay(self, which):
        if self.asked:
            self._put(self.asked[which % len(self.asked)])

    @rule(site=st.integers(0, N - 1))
    def restart(self, site):
        for world in self.worlds:
            world.contexts = {key: c for key, c in world.contexts.items() if key[0] != site}

    def _put(self, question):
        self.asked.append(question)
        site, members, swapped, attempt, round_, flower_run, scale = question
        seen = []
        for world, sent in zip(self.worlds, self.sent, strict=True):
            roster = [world.keys[p] for p in members]
            if swapped is not None:
                roster[swapped % len(roster)] = STRANGER
            model = scale * LAYOUT.read(network())
            asked = world.opened(sorted(set(roster)), attempt, model, round=round_)
            reply = world.ask(site, asked, flower_run)
            seen.append((shown(reply), len(spent(world.folder, site))))
            if not isinstance(reply, tuple):
                key = (site, world.method.client.question(asked, LAYOUT).digest)
                [share] = read_share(reply)
                assert torch.equal(sent.setdefault(key, share.value), share.value), (
                    "one question, two answers"
                )
        assert seen[0] == seen[1]
        kind = "refused" if isinstance(seen[0][0][0], int) else "answered"
        setattr(Server, kind, getattr(Server, kind) + 1)

    def teardown(self):
        for world, sent in zip(self.worlds, self.sent, strict=True):
            for site in range(N):
                mine = [digest for who, digest in sent if who == site]
                assert len(spent(world.folder, site)) >= len(set(mine))  # a full release for each
        for folder in self.folders:
            shutil.rmtree(folder)


def play(examples, steps):
    run_state_machine_as_test(
        Server,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        ),
    )


@pytest.mark.few(0)
def test_a_hostile_server_sees_the_same_of_two_federations_and_no_question_answered_twice():
    play(5, 10)
    assert min(Server.answered, Server.refused) > 5


@pytest.mark.slow
def test_a_hostile_server_sees_nothing_in_a_thousand_games():
    play(1000, 12)


# ---- what its answers give together


@pytest.fixture
def nodes(tmp_path):
    return Nodes(tmp_path)


@pytest.fixture
def masks(monkeypatch):
    """Every mask that is drawn: its key and whether it is added."""
    drawn, draw = [], shares._mask

    def recorded(values, key, *, add):
        drawn.append((key, add))
        draw(values, key, add=add)

    monkeypatch.setattr(shares, "_mask", recorded)
    return drawn


def answers_of(nodes, masks, questions):
    """(site, question) -> the masks of its answer, by key with its sign."""
    found = {}
    for q, (members, attempt) in enumerate(questions):
        asked = nodes.opened([nodes.keys[p] for p in members], attempt)
        for site in members:
            del masks[:]
            reply = nodes.ask(site, asked)
            assert not isinstance(reply, tuple)
            found[site, q] = {key: 1 if add else -1 for key, add in masks[-(len(members) - 1) :]}
    return found


def test_masks_cancel_in_whole_questions_alone(nodes, masks):
    """Forked and overlapping rosters, a site less, and two attempts: every combination with -1, 0, 1 is tried."""
    questions = [((0, 1, 2, 3), 0), ((0, 1, 2), 0), ((0, 1, 2), 1)]
    found = answers_of(nodes, masks, questions)
    used = [(site, key) for (site, _), own in found.items() for key in own]
    assert len(set(used)) == len(used)  # each key once a side
    keys = sorted({key for own in found.values() for key in own})
    rows = np.array([[own.get(key, 0) for key in keys] for own in found.values()])
    whole = 0
    for weights in itertools.product((-1, 0, 1), repeat=len(found)):
        if any(weights) and not (np.array(weights) @ rows).any():
            whole += 1
            for q, (members, _) in enumerate(questions):
                assert (
                    len({w for w, (_, at) in zip(weights, found, strict=True) if at == q}) == 1
                ), members
    assert whole == 3 ** len(questions) - 1


def total_of(nodes, members, attempt):
    asked = nodes.opened([nodes.keys[p] for p in members], attempt)
    replies = [nodes.ask(p, asked) for p in members]
    context = nodes.method.client.question(asked, LAYOUT)
    return unmasked(
        [read_share(r)[0].value for r in replies], context
    ) / context.terms.grid, context


def test_sums_of_two_attempts_and_two_rosters_differ_by_fresh_noise_of_all(nodes):
    sigma = method().client.question(nodes.opened(), LAYOUT).terms.noise.sigma
    first, _ = total_of(nodes, (0, 1, 2, 3), 0)
    second, _ = total_of(nodes, (0, 1, 2, 3), 1)
    gap = (first - second).numpy() / sigma
    assert variance_p(gap, math.sqrt(8)) > 1e-6
    assert variance_p(gap, 1e-3) < 1e-9  # noise that is kept would leave nothing


def variance_p(values, sigma):
    statistic = float(np.sum((values / sigma) ** 2))
    return 2 * min(stats.chi2.cdf(statistic, len(values)), stats.chi2.sf(statistic, len(values)))


@pytest.mark.parametrize("change", [{"attempt": 1}, {"roster": 3}, {"scale": 2.0}])
def test_every_other_question_draws_another_lot(tmp_path, change):
    """The source that training code was handed is another one."""
    nodes = Nodes(tmp_path)
    for asked in (nodes.opened(), changed(nodes, **change)):
        assert not isinstance(nodes.ask(0, asked), tuple)
    assert not torch.equal(*(source.child("lots").uniform(40) for source in nodes.sources))


def changed(nodes, attempt=0, roster=4, scale=1.0):
    return nodes.opened(nodes.keys[:roster], attempt, scale * LAYOUT.read(network()))


# ---- files that are put back between two answers


@pytest.mark.parametrize("what", ["ledger", "head", "site"])
def test_a_node_that_is_put_back_answers_no_other_question(nodes, what):
    own = nodes.folder / "site0"
    place = own if what == "site" else own / what
    shutil.copytree(place, nodes.folder / "copy")
    first = nodes.ask(0, nodes.opened())
    assert not isinstance(first, tuple)
    shutil.rmtree(place)
    shutil.copytree(nodes.folder / "copy", place)
    if (
        what == "site"
    ):  # ledger and head together: nothing here can tell, and the same question has the same bits
        nodes.contexts.clear()
        again = nodes.ask(0, nodes.opened())
        assert torch.equal(read_share(first)[0].value, read_share(again)[0].value)
        return
    assert nodes.ask(0, nodes.opened(attempt=1)) == FAILED


def moved(nodes, dataset):
    """Site 0 with another ledger, of another data set, and the same key file."""
    own = nodes.folder / "site0"
    begin_ledger(own / "ledger", dataset, by="the test", head=own / "head")
    nodes.configs[0] = {**nodes.configs[0], "privacy.dataset": dataset}
    nodes.contexts.clear()


def test_one_key_answers_from_one_ledger_alone(nodes):
    """Two data sets behind one key would answer one question under the same masks."""
    asked = nodes.opened()
    assert not isinstance(nodes.ask(0, asked), tuple)
    moved(nodes, "second")
    assert nodes.ask(0, asked) == FAILED
    assert nodes.trained == [0]
    own = nodes.folder / "site0"
    for place in (own / "ledger", own / "head"):  # a ledger that is begun anew is another one
        shutil.rmtree(place)
    begin_ledger(own / "ledger", 0, by="the test", head=own / "head")
    del nodes.configs[0]["privacy.dataset"]
    assert nodes.ask(0, asked) == FAILED
    nodes.configs[0]["privacy.ledger"] = "run"
    del nodes.configs[0]["privacy.head"]
    assert nodes.ask(0, asked) == FAILED
    assert nodes.trained == [0]


def test_another_key_in_the_place_of_a_sites_own_answers_nothing(nodes):
    assert not isinstance(nodes.ask(0, nodes.opened()), tuple)
    shutil.copy(nodes.folder / "site1" / "key", nodes.folder / "site0" / "key")
    assert (
        nodes.ask(0, nodes.opened(attempt=1)) == FAILED
    )  # it is among the peers that the policy pins


def test_sites_that_drop_out_and_pool_what_they_know_hold_the_noise_of_the_others():
    """c = 1 of m = 3: the sum of the roster without the colluder's own share has the noise of two."""
    terms = method().client.question(opened_of(3), LAYOUT).terms
    assert (
        terms.least_sites - terms.colluding
    ) * terms.noise.sigma**2 * terms.grid**2 == pytest.approx(
        (terms.noise_multiplier * terms.clip) ** 2, rel=1e-9
    )


def opened_of(n):
    keys = tuple(sorted(SiteKey(bytes([i]) * 64).public for i in range(n)))
    public = PublicFacts(round=1, rounds=3, cohort=n, dimension=D, run="r", roster=keys)
    return Broadcast(models=LAYOUT.read(network())[None], public=public)
