"""The mod by itself: what it lets in, what it lets out, what it remembers."""

import logging
from functools import partial

import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

from fedveil.accounting import Filter, ParticipationFilter
from fedveil.engines.flower.mod import CLIENT_FAILED
from fedveil.engines.flower.records import HELLO, write_broadcast
from fedveil.engines.messages import REPLY
from fedveil.errors import FedVeilError, FieldError, NoReplyError
from fedveil.flower import (
    FACTS,
    FAILED,
    REFUSED,
    FedVeilStrategy,
    InProcessGrid,
    from_arrays,
    privacy_mod,
    run_in_process,
    to_arrays,
    write_facts,
)
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import Broadcast, PublicFacts, build
from flower_cases import METHODS

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("runtime")]
LAYOUT = Layout.from_shapes({"0.weight": (20, 10), "0.bias": (20,)})
D = LAYOUT.size
GROUP = build("group", hypotheses=1)


@pytest.fixture
def node_log(monkeypatch):
    """What the node's own log holds, from the cause on."""
    lines = []

    def error(text, *values, exc_info):
        lines.append(f"{exc_info.__cause__ or exc_info}")

    monkeypatch.setattr(logging.getLogger("flwr"), "error", error)
    return lines


simulated = partial(
    privacy_mod, ledger="run"
)  # the ledger of a node is the business of test_flower_policy.py


def node(run_config=None, **node_config):
    return Context(7, 99, {"partition-id": 2, **node_config}, RecordDict(), dict(run_config or {}))


def ask(kind="train", round_=1, rounds=3, k=1, layout=LAYOUT):
    models = torch.arange(k * layout.size, dtype=torch.float32).reshape(k, -1) / 100
    public = PublicFacts(round=round_, rounds=rounds, cohort=4, dimension=layout.size)
    return Message(write_broadcast(Broadcast(models=models, public=public), layout), 99, kind)


def trained(message, chosen=0, **extra):
    start = from_arrays(LAYOUT, message.content["arrays" if chosen == 0 else f"arrays.{chosen}"])
    content = {
        "arrays": to_arrays(LAYOUT, start + 1),
        "metrics": MetricRecord({"num-examples": 12, "train_loss": 0.5}),
    }
    return RecordDict(content | extra)


def plain(message, context):
    return Message(trained(message), reply_to=message)


def model_in(reply):
    return from_arrays(LAYOUT, reply.content["arrays"])


def test_only_the_allowed_leaves():
    def chatty(message, context):
        extra = {
            "arrays.extra": ArrayRecord([torch.ones(3).numpy()]),
            "notes": ConfigRecord({"patients": "names"}),
            "more": MetricRecord({"secret": 1.0}),
            FACTS: write_facts(0, {"0": 2.0}),
        }
        content = trained(message, **extra)
        content["metrics"]["list"] = [1.0, 2.0]
        return Message(content, reply_to=message)

    central = simulated(LAYOUT, METHODS["vanilla"])(ask(), node(), chatty)
    assert set(central.content) == {"arrays", "metrics", REPLY}
    assert dict(central.content["metrics"]) == {"num-examples": 12, "train_loss": 0.5}
    local = simulated(LAYOUT, GROUP)(ask(), node(), chatty)
    assert set(local.content) == {"arrays", "metrics", REPLY}
    assert dict(local.content["metrics"]) == {"num-examples": 1}
    assert local.content[REPLY]["partition-id"] == 2


def test_evaluation_passes_under_central_trust_and_stays_under_local():
    def measure(message, context):
        metrics = MetricRecord({"num-examples": 30, "loss": 0.25})
        return Message(
            RecordDict({"metrics": metrics, "other": ConfigRecord({"a": 1})}), reply_to=message
        )

    central = simulated(LAYOUT, METHODS["vanilla"])(ask("evaluate"), node(), measure)
    assert dict(central.content["metrics"]) == {"num-examples": 30, "loss": 0.25}
    for name in ("group", "fedre-normalised", "sga-ldp"):
        local = simulated(LAYOUT, METHODS[name])(ask("evaluate"), node(), measure)
        assert set(local.content) == {"metrics", REPLY}
        assert dict(local.content["metrics"]) == {"num-examples": 1}


@pytest.mark.parametrize("kind", ["query", "query.mine"])
def test_other_messages_pass_under_central_trust_alone(kind):
    reply, calls = (
        Message(RecordDict({"answer": ConfigRecord({"a": 1})}), reply_to=ask("query")),
        [],
    )

    def look(message, context):
        calls.append(message)
        return reply

    passed = simulated(LAYOUT, METHODS["vanilla"])(ask(kind), node(), look)
    assert passed.content == reply.content
    assert len(calls) == 1
    assert simulated(LAYOUT, GROUP)(ask(kind), node(), look).error.code == FAILED
    assert len(calls) == 1


def test_nothing_is_measured_under_local_trust():
    def measure(message, context):
        raise AssertionError("measured")

    for name in ("group", "fedre-normalised", "sga-ldp"):
        replies = [
            simulated(LAYOUT, METHODS[name])(ask("evaluate"), node(), measure) for _ in range(2)
        ]
        assert all(dict(r.content["metrics"]) == {"num-examples": 1} for r in replies)


def test_custom_actions_are_protected_too():
    assert not torch.equal(
        model_in(simulated(LAYOUT, GROUP)(ask("train.mine"), node(), plain)), torch.zeros(D)
    )


def test_the_greeting_never_reaches_the_training_code():
    def train(message, context):
        raise AssertionError("trained")

    reply = simulated(LAYOUT, GROUP)(
        Message(RecordDict({HELLO: ConfigRecord()}), 99, "train"), node(), train
    )
    assert dict(reply.content[REPLY]) == {
        "partition-id": 2,
        "side": "GroupPrivacy",
        "trust": "local",
        "counted": False,
    }


def test_a_client_that_declines_does_not_train():
    calls, context = [], node()

    def train(message, context):
        calls.append(1)
        return plain(message, context)

    mod = simulated(LAYOUT, GROUP, budget=lambda p: ParticipationFilter(2))
    replies = [mod(ask(round_=r), context, train) for r in (1, 2, 3)]
    assert [r.has_error() for r in replies] == [False, False, True]
    assert replies[2].error.code == REFUSED
    assert "budget is used up" in replies[2].error.reason
    assert len(calls) == 2


def test_a_replayed_round_gets_what_left_before_and_does_not_train():
    context, calls = node(), []

    def train(message, context):
        calls.append(1)
        return plain(message, context)

    mod = simulated(LAYOUT, GROUP, budget=lambda p: ParticipationFilter(1))
    replies = [mod(ask(round_=1), context, train) for _ in range(200)]
    assert all(torch.equal(model_in(r), model_in(replies[0])) for r in replies)
    assert len(calls) == 1


def raises(message, context):
    raise RuntimeError("patient 17")


def answers_error(message, context):
    return Message(Error(2, "patient 17"), reply_to=message)


def forgets_the_model(message, context):
    return Message(RecordDict({"weights": trained(message)["arrays"]}), reply_to=message)


def misnames_facts(message, context):
    return Message(trained(message, **{FACTS: ConfigRecord({"patient": 17})}), reply_to=message)


def names_no_hypothesis(message, context):
    return Message(trained(message, **{FACTS: write_facts(17)}), reply_to=message)


BROKEN = [raises, answers_error, forgets_the_model, misnames_facts, names_no_hypothesis]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_failure_is_a_charged_zero_update_under_local_trust(broken):
    context, told = node(), []
    mod = simulated(
        LAYOUT, GROUP, budget=lambda p: ParticipationFilter(1), tell=lambda *what: told.append(what)
    )
    reply = mod(ask(), context, broken)
    assert set(reply.content) == {"arrays", "metrics", REPLY}
    assert torch.isfinite(model_in(reply)).all()
    ((partition, round_, error),) = told
    assert (partition, round_) == (2, 1)
    assert isinstance(error, Exception)
    assert mod(ask(round_=2), context, plain).error.code == REFUSED


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
@pytest.mark.parametrize("broken", [raises, answers_error])
def test_texts_of_exceptions_never_travel(broken, kind):
    reply = simulated(LAYOUT, METHODS["vanilla"])(ask(kind), node(), broken)
    assert (reply.error.code, reply.error.reason) == (FAILED, CLIENT_FAILED)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["group", "fedre-normalised", "sga-ldp"])
def test_a_diverged_model_never_leaves_under_local_trust(name, bad):
    def diverged(message, context):
        vector = torch.zeros(D)
        vector[3] = bad
        content = RecordDict(
            {"arrays": to_arrays(LAYOUT, vector), FACTS: write_facts(0, {"0": 1.0})}
        )
        return Message(content, reply_to=message)

    reply = simulated(LAYOUT, METHODS[name])(ask(), node(), diverged)
    assert torch.isfinite(model_in(reply)).all()


@pytest.mark.parametrize("name", METHODS)
def test_an_unchanged_model_is_no_special_case(name):
    def unchanged(message, context):
        content = RecordDict(
            {"arrays": message.content["arrays"], FACTS: write_facts(0, {"0": 1.0})}
        )
        return Message(content, reply_to=message)

    reply = simulated(LAYOUT, METHODS[name])(ask(), node(), unchanged)
    assert torch.isfinite(model_in(reply)).all()
    same = torch.equal(model_in(reply), from_arrays(LAYOUT, ask().content["arrays"]))
    assert same == (
        METHODS[name].client.trust == "central"
    )  # also a client that did not move sends noise


def test_running_statistics_are_refused_with_the_fix(node_log):
    module = nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20))
    with pytest.raises(FieldError, match="GroupNorm"):
        Layout.from_module(module)
    kept = Layout.from_module(module, buffers="keep")

    def send_all(message, context):
        return Message(RecordDict({"arrays": ArrayRecord(module.state_dict())}), reply_to=message)

    undeclared = Layout.from_shapes(kept.shapes)
    reply = simulated(undeclared, METHODS["vanilla"])(ask(layout=undeclared), node(), send_all)
    assert reply.error.code == FAILED
    assert "running_mean" in node_log[-1]
    assert 'buffers="keep"' in node_log[-1]
    reply = simulated(kept, METHODS["vanilla"])(ask(layout=kept), node(), send_all)
    assert set(reply.content["arrays"]) == set(
        kept.names
    )  # declared as kept: they stay on the client


@pytest.mark.parametrize("broken", BROKEN)
def test_a_failure_under_central_trust_is_an_error(broken):
    assert simulated(LAYOUT, METHODS["vanilla"])(ask(), node(), broken).error.code == FAILED


def test_the_chosen_hypothesis_is_where_training_started():
    def train(message, context):
        return Message(trained(message, chosen=1, **{FACTS: write_facts(1)}), reply_to=message)

    message = ask(k=2)
    start = from_arrays(LAYOUT, message.content["arrays.1"])
    reply = simulated(LAYOUT, METHODS["group"], seed=1)(message, node(), train)
    length = float((model_in(reply) - start - 1).norm())
    assert length == pytest.approx(5.0 * D**0.5, rel=0.4)  # nu times the length of a step of ones


def test_parameters_are_read_from_the_node_on_each_call():
    context = node(
        **{"privacy.method": "group", "privacy.noise-multiplier": 1.0, "privacy.seed": 3}
    )
    mod = simulated(LAYOUT)
    start = from_arrays(LAYOUT, ask().content["arrays"])
    first = model_in(mod(ask(), context, plain)) - start - 1
    context.node_config["privacy.noise-multiplier"] = 10.0
    second = model_in(mod(ask(round_=2), context, plain)) - start - 1
    assert float(first.norm()) == pytest.approx(1.0 * D**0.5, rel=0.4)
    assert float(second.norm()) == pytest.approx(10.0 * D**0.5, rel=0.4)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({}, {}, "name a method"),
        ({"privacy.method": "gruop"}, {}, "did you mean 'group'"),
        ({"privacy.method": "group", "privacy.noise_multiplyer": 1.0}, {}, "noise_multiplier"),
        (
            {"privacy.method": "group", "privacy.noise-multiplier": -1.0},
            {},
            "must be a finite number",
        ),
        ({"privacy.method": "vanilla", "privacy.aggregator": "FedAvg"}, {}, "FedVeilStrategy"),
        ({"privacy.method": "group"}, {"method": GROUP}, "given its method in code"),
        ({"privacy.noise-multiplier": 0.0}, {"method": GROUP}, "given its method in code"),
        ({"privacy.seed": 1}, {"method": GROUP}, "leave method and seed to code"),
        ({"privacy.rounds": 3}, {"method": GROUP, "rounds": 3}, "give it once"),
        ({}, {"method": GROUP, "seed": 1, "source": ReproducibleSource(1)}, "leave the seed out"),
        (
            {"privacy.participations": 1, "privacy.leakage-cap": 9.0},
            {"method": GROUP},
            "give one of",
        ),
        (
            {"privacy.participations": 1},
            {"method": GROUP, "budget": lambda p: Filter(1.0, 1e-5)},
            "give one of",
        ),
        ({"privacy.participations": 0}, {"method": GROUP}, "whole number of at least 1"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(config, options, message, why):
    def train(message, context):
        raise AssertionError("trained")

    for request in (ask(), Message(RecordDict({HELLO: ConfigRecord()}), 99, "train")):
        reply = simulated(LAYOUT, **options)(request, node(**config), train)
        assert message in why(reply)


def numbered():
    """Nodes of a deployment, whose configuration names no partition."""
    client = ClientApp(mods=[simulated(LAYOUT, build("global", noise_multiplier=1.0))])
    client.train()(plain)
    return InProcessGrid(client, [{}, {}, {}])


def test_nodes_without_partitions_are_known_by_their_own_numbers():
    strategy = FedVeilStrategy(
        build("global", noise_multiplier=1.0), LAYOUT, rounds=2, evaluate=False
    )
    strategy.start(numbered(), to_arrays(LAYOUT, torch.zeros(D)))
    assert [len(log.used) for log in strategy.history] == [3, 3]


def test_a_planned_number_of_clients_needs_partitions():
    strategy = FedVeilStrategy(
        build("global", noise_multiplier=1.0), LAYOUT, rounds=1, clients=3, evaluate=False
    )
    with pytest.raises(FedVeilError, match="partition-id"):
        strategy.start(numbered(), to_arrays(LAYOUT, torch.zeros(D)))


def test_leakage_cap_from_the_node():
    context = node(**{"privacy.method": "group", "privacy.leakage-cap": 2.5 * D / 5.0})
    codes = [simulated(LAYOUT)(ask(round_=r), context, plain).has_error() for r in (1, 2, 3)]
    assert codes == [False, False, True]


def test_clip_by_layer_from_the_node():
    config = {
        "privacy.method": "fedre",
        "privacy.clip.0": 0.5,
        "privacy.epsilon": 1e6,
        "privacy.seed": 1,
    }

    def train(message, context):
        return Message(trained(message, **{FACTS: write_facts(0, {"0": 1.0})}), reply_to=message)

    moved = model_in(simulated(LAYOUT)(ask(), node(**config), train)) - from_arrays(
        LAYOUT, ask().content["arrays"]
    )
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-2)


def test_a_client_can_pin_the_number_of_rounds():
    mod = simulated(LAYOUT, METHODS["fedre-normalised"], rounds=5)
    reply = mod(ask(rounds=1), node(), plain)  # fewer rounds would mean less noise
    assert (reply.error.code, "agreed to 5 rounds" in reply.error.reason) == (REFUSED, True)
    reply = simulated(LAYOUT, GROUP)(ask(round_=4, rounds=3), node(), plain)
    assert reply.error.code == FAILED


def test_requests_for_another_layout_or_server_are_refused(why):
    other = Layout.from_shapes({"0.weight": (2, 2)})
    assert simulated(other, GROUP)(ask(), node(), plain).error.code == FAILED
    bare = Message(RecordDict({"arrays": ask().content["arrays"]}), 99, "train")
    assert "FedVeilStrategy" in why(simulated(LAYOUT, GROUP)(bare, node(), plain))


def test_the_reproducible_source_is_keyed_by_partition_round_and_seed():
    def noise(seed=1, round_=1, partition=2):
        context = Context(7, 99, {"partition-id": partition}, RecordDict(), {})
        return model_in(simulated(LAYOUT, GROUP, seed=seed)(ask(round_=round_), context, plain))

    assert torch.equal(noise(), noise())
    others = [noise(seed=2), noise(round_=2), noise(partition=1)]
    assert not any(torch.equal(noise(), other) for other in others)


def test_the_default_source_is_secure():
    a, b = (model_in(simulated(LAYOUT, GROUP)(ask(), node(), plain)) for _ in range(2))
    assert not torch.equal(a, b)


def test_state_survives_between_calls_through_the_context():
    method, context = METHODS["sga-ldp"], node()
    mod = simulated(LAYOUT, method, seed=1)
    for r in (1, 2):
        mod(ask(round_=r), context, plain)
    assert context.state["fedveil.values"]["round"] == 2
    assert torch.equal(
        torch.from_numpy(context.state["fedveil.state"]["model"].numpy()),
        from_arrays(LAYOUT, ask().content["arrays"]),
    )
    assert len(context.state["fedveil.ledger"]["lines"]) == 2


def test_inner_mods_see_the_raw_model_and_outer_ones_the_protected():
    seen = {}

    def spy(where):
        def mod(message, context, call_next):
            reply = call_next(message, context)
            seen[where] = from_arrays(LAYOUT, reply.content["arrays"])
            return reply

        return mod

    app = ClientApp(mods=[spy("outer"), simulated(LAYOUT, GROUP), spy("inner")])
    app.train()(plain)
    app(ask(), node())
    assert torch.equal(seen["inner"], from_arrays(LAYOUT, ask().content["arrays"]) + 1)
    assert not torch.equal(seen["outer"], seen["inner"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_arrays_keep_every_bit(dtype):
    module = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4)).to(dtype)
    module.register_parameter("scale", nn.Parameter(torch.tensor(0.1, dtype=dtype)))  # 0-d
    layout = Layout.from_module(module)
    vector = layout.read(module)
    assert torch.equal(from_arrays(layout, to_arrays(layout, vector)), vector)
    assert torch.equal(from_arrays(layout, ArrayRecord(module.state_dict())), vector)
    noisy = vector + torch.randn(layout.size, dtype=vector.dtype) * 1e-6
    module.load_state_dict(to_arrays(layout, noisy).to_torch_state_dict(), strict=False)
    assert torch.equal(from_arrays(layout, to_arrays(layout, noisy)), noisy)


def test_arrays_of_another_shape_or_kind_are_refused():
    good = dict(to_arrays(LAYOUT, torch.zeros(D)).items())
    for changes in (
        {"0.bias": Array(torch.zeros(3).numpy())},
        {"0.bias": Array(torch.zeros(20).int().numpy())},
    ):
        with pytest.raises(FieldError, match=r"0\.bias"):
            from_arrays(LAYOUT, ArrayRecord({**good, **changes}))
    with pytest.raises(FieldError, match="missing"):
        from_arrays(LAYOUT, ArrayRecord({"0.bias": good["0.bias"]}))


def test_a_legacy_app_is_told_what_it_needs(caplog):
    from flwr.client import NumPyClient

    class Legacy(NumPyClient):
        def fit(self, parameters, config):
            return parameters, 1, {}

    method, layout = build("global", noise_multiplier=1.0), Layout.from_shapes({"weight": (6,)})
    client = ClientApp(
        client_fn=lambda context: Legacy().to_client(), mods=[privacy_mod(layout, method)]
    )
    server = ServerApp()

    @server.main()
    def main(grid, context):
        FedVeilStrategy(method, layout, rounds=1).start(grid, to_arrays(layout, torch.zeros(6)))

    caplog.set_level(logging.ERROR, "flwr")
    with pytest.raises(NoReplyError):
        run_in_process(server, client, 3)
    assert "@app.train()" in str([record.exc_info for record in caplog.records])
