"""What the server's log and folder say: cost, who is lost, why a run ended; Flower's own accounting, exact."""

import logging

import pytest
import torch
from flwr.app import Error, Message
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
    ServerApp,
)
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

import fedveil as fv
from fedveil.accounting import Filter, ParticipationFilter, epsilon_of_mu
from fedveil.accounting.composition import epsilon
from fedveil.accounting.events import Gaussian, Poisson
from fedveil.errors import FieldError, NoReplyError
from fedveil.flower import (
    ExactAccountant,
    FedVeilStrategy,
    InProcessGrid,
    ServerFolder,
    learner_client_app,
    method_from,
    privacy_mod,
    run_in_process,
    to_arrays,
)
from fedveil.methods import build
from fedveil_lab.runs import Summary
from flower_cases import CLIENTS, METHODS, arguments
from test_flower_policy import node
from test_flower_strategy import LAYOUT, VANILLA, Leaving, app, run

pytestmark = pytest.mark.flower
NODES = [{"partition-id": i} for i in range(3)]


def formal(z=2.0, **options):
    return build("global", noise_multiplier=z, **options)


@pytest.fixture
def log(caplog):
    logger = logging.getLogger("flwr")
    before = logger.propagate
    logger.propagate = True
    caplog.set_level(logging.INFO, logger="flwr")
    yield lambda: [record.getMessage() for record in caplog.records]
    logger.propagate = before


def test_each_round_and_the_end_say_what_was_spent_and_what_is_left(log):
    method = formal()
    strategy = FedVeilStrategy(
        method,
        LAYOUT,
        rounds=5,
        budget=Filter(epsilon=epsilon_of_mu(3**0.5 / 2, 1e-5) + 0.1, delta=1e-5),
        seed=1,
    )
    result = run(strategy, app(method=method))
    each, told = (
        epsilon_of_mu(3**0.5 / 2, 1e-5),
        [line for line in log() if line.startswith("FedVeil")],
    )
    assert strategy.guarantee.status == "formal"
    assert strategy.guarantee.epsilon(1e-5) == pytest.approx(each)
    assert len(strategy.history) == 3  # four would cost more
    assert "budget" in strategy.stopped
    assert torch.equal(fv.flower.from_arrays(LAYOUT, result.arrays), strategy.models[0])
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    assert len(told) == 3 + 2
    assert all(
        text in told[0] for text in ("round 1 of 5", "formal", "client", "total", ": 2 of the 4")
    )
    assert "formal" in told[-1]


def test_under_local_trust_the_server_states_the_quote_of_a_client_of_every_round():
    method = build("sga-ldp", epsilon_min=4, epsilon_max=4)
    strategy = FedVeilStrategy(method, LAYOUT, rounds=2, seed=1)
    assert strategy.guarantee.status == "none"
    run(strategy, app(method=method))
    assert (strategy.guarantee.status, strategy.guarantee.trust) == ("conditional", "local")
    assert strategy.guarantee.scope == "total"
    heuristic = build("sga-ldp")
    strategy = FedVeilStrategy(heuristic, LAYOUT, rounds=1, seed=1)
    run(strategy, app(method=heuristic))
    assert strategy.guarantee.status == "heuristic"


def test_the_folder_holds_ledger_rounds_model_and_summary(tmp_path):
    method, out = formal(), tmp_path / "run"
    strategy = FedVeilStrategy(method, LAYOUT, rounds=2, folder=ServerFolder(out))
    run(strategy, app(method=method))
    summary = Summary.read(out)
    assert summary.values["guarantee"] == strategy.guarantee.describe(1e-5)
    assert summary.values["source"] == "secure"
    assert [row["replies"] for row in summary.rows] == [3, 3]
    assert summary.noise("sigma") == pytest.approx(2 * method.server.clip / 3)
    assert (out / "model.safetensors").exists()
    assert (
        len((out / "ledger" / "server.jsonl").read_text().splitlines()) == 3
    )  # what binds the run, and two rounds
    with pytest.raises(FieldError, match="--out"):
        FedVeilStrategy(method, LAYOUT, rounds=2, folder=ServerFolder(out))


def test_a_run_that_has_become_one_hospital_ends_and_its_last_model_is_written(tmp_path):
    def two_fail_later(content, partition, calls=[]):  # noqa: B006 - counts over the run
        calls.append(partition)
        if len(calls) > 3 and partition:
            raise RuntimeError("broken")

    out = tmp_path / "run"
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=4, folder=ServerFolder(out), evaluate=False)
    with pytest.raises(NoReplyError, match="round 2: 1 usable reply, and min_clients is 2"):
        run(strategy, app(two_fail_later))
    assert torch.equal(strategy.models, torch.full((1, 6), 2.0))
    assert Summary.read(out).stopped == strategy.stopped
    assert (out / "model.safetensors").exists()


def test_all_nodes_gone_is_no_reply_and_not_a_missing_mod():
    class Gone(Leaving):
        def get_node_ids(self):
            self.round += 1
            return list(self._partitions) if self.round == 1 else []

    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=3, evaluate=False)
    with pytest.raises(NoReplyError, match="round 2"):
        run(strategy, None, grid=Gone(app(), NODES))


class Unavailable(InProcessGrid):
    """Flower's server answers for partition 1, as it does for a node without a heartbeat."""

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"id-{id(self)}-{number}"
        return [
            self._lost(m) if self._partitions[m.metadata.dst_node_id] == 1 else self.ask_node(m)
            for m in messages
        ]

    def _lost(self, message):
        if "arrays" not in message.content:
            return self.ask_node(message)
        reply = Message(Error(5, "no heartbeat"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1
        reply.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
        return reply


def test_a_node_that_is_gone_is_named_in_each_round_and_at_the_end(log):
    strategy = FedVeilStrategy(VANILLA, LAYOUT, rounds=2, evaluate=False)
    run(strategy, None, grid=Unavailable(app(), NODES))
    assert [r.failed for r in strategy.history] == [{1: "is gone: node unavailable"}] * 2
    assert log().count("client 1: is gone: node unavailable") == 2
    assert sum("client 1 failed in every round" in line for line in log()) == 1
    assert not any("client 0 failed" in line for line in log())


def test_group_privacy_gets_its_first_models_by_itself():
    federation = fv.Federation(**arguments("group"))
    method, layout = METHODS["group"], federation.layout
    strategy, server = (
        FedVeilStrategy(method, layout, rounds=1, seed=11, clients=CLIENTS),
        ServerApp(),
    )

    @server.main()
    def main(grid, context):
        strategy.start(grid, to_arrays(layout, federation.models[0]))

    client = learner_client_app(
        federation.learner, federation.clients, method, seed=11, source=federation.source
    )
    run_in_process(server, client, CLIENTS)
    first, second = strategy.broadcast.models
    assert torch.equal(first, federation.models[0])
    assert not torch.equal(first, second)
    for name, view in layout.views(second).items():
        assert torch.equal(
            view.flatten().sort().values, layout.views(first)[name].flatten().sort().values
        )


# ---- a table a method


def test_one_key_switches_between_tables_of_methods():
    tables = {
        "privacy.sga-ldp.epsilon-min": 2.0,
        "privacy.sga-ldp.epsilon-max": 3.0,
        "privacy.global.clip": 7.0,
    }
    tables["privacy.global.noise-multiplier"] = 1.0
    of = lambda name: method_from(node(run_config=tables | {"privacy.method": name}))  # noqa: E731
    assert (of("sga-ldp").client.epsilon_min, of("sga-ldp").client.epsilon_max) == (2.0, 3.0)
    assert of("global").server.clip == 7.0
    assert of("metric").server.clip != 7.0
    twice = tables | {"privacy.method": "global", "privacy.clip": 1.0}
    with pytest.raises(FieldError, match=r"privacy\.global\.clip"):
        method_from(node(run_config=twice))


def test_a_table_of_the_run_is_a_proposal_like_any_other_key(why):
    from test_flower_mod import ask, plain

    proposed = {"privacy.group.noise-multiplier": 1e-9, "privacy.sga-ldp.epsilon-max": 9.0}
    own = {"privacy.method": "group"}
    with fv.engines.flower.grid.message_identity():
        mod = privacy_mod(fv.Layout.from_shapes({"weight": (6,)}), ledger="run")
        assert "privacy.noise_multiplier" in why(
            mod(ask(), node(run_config=proposed, **own), plain)
        )


# ---- Flower's own strategies


def config(
    method=SamplingMethod.NO_AMPLIFICATION,
    relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    most=None,
    n=100,
):
    return PrivacyConfig(1e-5, n, relation, method, most)


def test_the_exact_accountant_is_exact_and_never_above_flowers_own():
    exact, renyi = ExactAccountant(config()), RdpAccountant(config())
    for accountant in (exact, renyi):
        accountant.compose(GaussianPrivacyEvent(2.0, 100, 100), 4)
        accountant.compose(GaussianPrivacyEvent(4.0, 100, 100))
    mu = (4 / 4 + 1 / 16) ** 0.5
    spent = exact.get_privacy_spent()
    assert spent.epsilon == pytest.approx(epsilon_of_mu(mu, 1e-5))
    assert spent.epsilon < renyi.get_privacy_spent().epsilon
    assert (spent.num_releases, spent.delta) == (5, 1e-5)
    assert exact.get_delta(spent.epsilon) == pytest.approx(1e-5)


def test_sampling_is_accounted_as_stated_or_not_at_all():
    event = GaussianPrivacyEvent(1.0, 10, 100)
    sampled = ExactAccountant(config(SamplingMethod.POISSON))
    sampled.compose(event, 3)
    assert sampled.get_epsilon(1e-5) == pytest.approx(
        epsilon([(Poisson(0.1, Gaussian(1.0)), 3)], 1e-5, "add/remove")
    )
    assert sampled.get_delta(sampled.get_epsilon(1e-5)) == pytest.approx(1e-5, rel=0.1)
    drawn = ExactAccountant(
        config(SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE)
    )
    drawn.compose(event)
    assert drawn.get_epsilon(1e-5) == pytest.approx(epsilon_of_mu(2.0, 1e-5))


def test_a_state_comes_back_and_a_foreign_one_is_refused():
    first, second = ExactAccountant(config()), ExactAccountant(config(most=3.0))
    first.compose(GaussianPrivacyEvent(2.0, 100, 100), 4)
    second.load_state_dict(first.state_dict())
    assert second.get_privacy_spent() == first.get_privacy_spent()
    assert not second.would_exceed(GaussianPrivacyEvent(100.0, 100, 100), 5.0)
    assert second.would_exceed(GaussianPrivacyEvent(0.5, 100, 100))
    other = ExactAccountant(
        config(SamplingMethod.WITHOUT_REPLACEMENT, NeighboringRelation.REPLACE_ONE)
    )
    with pytest.raises(FieldError, match="state"):
        other.load_state_dict(first.state_dict())
    with pytest.raises(FieldError, match="population_size"):
        first.compose(GaussianPrivacyEvent(2.0, 50, 50))


def test_a_plain_flower_strategy_takes_it_by_one_argument():
    accountant = ExactAccountant(config(n=3))
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 1.5, 1.0, 3, accountant=accountant)
    server = ServerApp()

    @server.main()
    def main(grid, context):
        strategy.start(grid, to_arrays(LAYOUT, torch.zeros(6)), num_rounds=2)

    run_in_process(server, app(mods=[]), 3)
    assert strategy.privacy_spent().epsilon == pytest.approx(epsilon_of_mu(2**0.5 / 1.5, 1e-5))


def test_a_filter_that_counts_participations_ends_the_app_too():
    method = formal()
    strategy = FedVeilStrategy(method, LAYOUT, rounds=4, budget=None, seed=1)
    client = app(
        mods=[privacy_mod(LAYOUT, method, budget=lambda p: ParticipationFilter(2), ledger="run")]
    )
    run(strategy, client)
    assert len(strategy.history) == 2
    assert "declined" in strategy.stopped
