"""Hostile clients against every server side: what they send is their own failure, and never the run's end."""

import math

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from fedveil.accounting import Ledger, Release
from fedveil.engines import ServerParty
from fedveil.engines.answers import RoundAnswers
from fedveil.engines.flower.records import FAILED, REFUSED, write_mark
from fedveil.flower import FedVeilStrategy, InProcessGrid, to_arrays
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import Broadcast, PublicFacts, build
from hostile_kit import LAYOUT, D

pytestmark = pytest.mark.flower
SERVERS = {
    "vanilla": build("vanilla"),
    "global": build("global", noise_multiplier=0.01),
    "global, printed": build("global", order="printed", noise_multiplier=0.01),
    "metric": build("metric"),
    "metric, printed": build("metric", order="printed"),
    "group": build("group", hypotheses=2),
    "fedre": build("fedre"),
    "sga-ldp": build("sga-ldp"),
    "record": build("record", examples=5, noise_multiplier=1.0),
    "record-sum": build(
        "record", sum="trusted", examples=5, noise_multiplier=1.0, silos=7, tolerated=3
    ),
}
HONEST, MALICIOUS = (0, 1, 2, 3, 4), (5, 6)

NUMBERS = [0.0, 1.0, -1.0, 1e19, 3e38, -3e38, 1e-45, math.nan, math.inf, -math.inf]
vectors = st.one_of(
    st.lists(st.sampled_from(NUMBERS), min_size=D, max_size=D),
    st.lists(st.sampled_from(NUMBERS), max_size=2 * D),
)
dtypes = st.sampled_from([torch.float32, torch.float32, torch.float64, torch.float16, torch.int64])
numbers = st.sampled_from([*NUMBERS, 2.0**53, 2.0**53 + 2, -5.0, 1e300])
texts = st.text(max_size=40).map(lambda t: t * 20) | st.sampled_from(
    ["\x1b[2J\n\r\0", "x" * 10**5, "\u202egnp", ""]
)


def tensor(values, dtype):
    found = torch.tensor(values, dtype=torch.float64)
    return (found.nan_to_num(0, 9, -9) if dtype == torch.int64 else found).to(dtype)


def scorer(models):
    return models.abs().sum(1, keepdim=True).expand(-1, 2).double().nan_to_num(1.0, 1.0, 1.0) + 1.0


def terms(method):
    """What a silo of a trusted sum sends beside its model."""
    return method.client.terms(method.client.noisy_steps) if method.noisy else ()


def honest(p, start):
    return start + 0.1 * (p + 1) * torch.linspace(-1, 1, D)


def check(log, texts_of):
    assert set(HONEST) <= set(log.used)
    for reason in texts_of:
        assert reason.isprintable()
        assert len(reason) <= 210


# ---- the embedded engine's server

kinds = st.sampled_from(
    ["model", "model", "model", "update", "gradient", "count", "metric", "index"]
)
release = st.builds(
    lambda kind, v, dtype, name: Release(kind, tensor(v, dtype), name),
    kinds,
    vectors,
    dtypes,
    texts,
)
scalar = st.builds(lambda kind, v: Release(kind, tensor(v, torch.float64)), kinds, numbers)
replies = st.lists(release | scalar, max_size=4).map(tuple)


def embedded(name, sent, rounds=2):
    method = SERVERS[name]
    party = ServerParty(
        method, LAYOUT, Ledger("run", "server"), ReproducibleSource(0), scorer=scorer
    )
    k = method.server.hypotheses
    models = torch.stack([torch.full((D,), 0.1 * j) for j in range(k)])
    for number in range(1, rounds + 1):
        public = PublicFacts(round=number, rounds=rounds, cohort=7, dimension=D)
        count = Release("count", torch.tensor(5.0))
        arrived = {
            p: (Release("model", honest(p, models[p % k])), count, *terms(method)) for p in HONEST
        }
        broadcast = Broadcast(models=models, public=public)
        opened, log = party.combine(
            broadcast, RoundAnswers(arrived | dict(zip(MALICIOUS, sent, strict=True)))
        )
        check(log, [*log.failed.values(), *log.invalid.values()])
        assert opened.models.shape == models.shape
        assert not opened.models.isnan().any()


# ---- the Flower server


def content(values, dtype, count, loss, mark, extra):
    arrays = ArrayRecord({"a.weight": Array(tensor(values, dtype).numpy())})
    if len(values) == D and dtype == torch.float32:
        arrays = to_arrays(LAYOUT, tensor(values, dtype))
    found = RecordDict(
        {"arrays": arrays, "metrics": MetricRecord({"num-examples": count, "loss": loss})}
    )
    if mark is not None:
        found["fedveil.reply"] = mark
    if extra:
        found[extra] = ConfigRecord({"chosen": 0})
    return found


ODD = (
    "none",
    "foreign",
    "other side",
    "no number",
    "empty",
    "no seal",
    "odd seal",
    "another's seal",
)
marks = st.sampled_from(["right", "right", *ODD])
extras = st.sampled_from(["", "", "fedveil.facts", "x"])
flower_replies = st.one_of(
    st.tuples(st.just("error"), st.sampled_from([0, 2, REFUSED, FAILED, 10**6]), texts),
    st.tuples(
        st.just("reply"),
        vectors,
        dtypes,
        numbers,
        numbers,
        marks,
        st.sampled_from(["", "", "fedveil.facts", "x"]),
    ),
)


class Hostile(InProcessGrid):
    """Answers for the nodes itself: five honest clients, and two that send what they were given."""

    def __init__(self, method, sent):
        super().__init__({}, [{"partition-id": p} for p in (*HONEST, *MALICIOUS)])
        self.method, self.sent = method, dict(zip(MALICIOUS, sent, strict=True))

    def ask_node(self, message):
        partition = self._partitions[message.metadata.dst_node_id]
        sealed = f"{partition:064x}"
        mark = write_mark(partition, self.method.client, True, seal=sealed)
        if "fedveil.hello" in message.content:
            return Message(RecordDict({"fedveil.reply": mark}), reply_to=message)
        if partition in HONEST:
            start = torch.cat(
                [
                    torch.from_numpy(a.numpy()).reshape(-1)
                    for a in message.content["arrays"].values()
                ]
            )
            reply = content(honest(partition, start).tolist(), torch.float32, 5, 0.5, mark, "")
            reply["metrics"].update({r.name: float(r.value) for r in terms(self.method)})
            return Message(reply, reply_to=message)
        kind, *what = self.sent[partition]
        if kind == "error":
            return Message(Error(*what), reply_to=message)
        values, dtype, count, loss, how, extra = what
        wrong = {
            "right": mark,
            "none": None,
            "foreign": write_mark(0, self.method.client, True),
            "other side": ConfigRecord(
                {"partition-id": partition, "side": "Nobody", "trust": "local"}
            ),
            "no seal": write_mark(partition, self.method.client, True),
            "odd seal": ConfigRecord({**mark, "seal": "x" * 64}),
            "another's seal": ConfigRecord({**mark, "seal": f"{HONEST[0]:064x}"}),
            "no number": ConfigRecord({**mark, "partition-id": "five"}),
            "empty": ConfigRecord(),
        }
        return Message(content(values, dtype, count, loss, wrong[how], extra), reply_to=message)


def flower(name, sent, rounds=2):
    method = SERVERS[name]
    k = method.server.hypotheses
    initial = torch.stack([torch.full((D,), 0.1 * j) for j in range(k)])
    strategy = FedVeilStrategy(
        ServerParty(method, LAYOUT, source=ReproducibleSource(0), scorer=scorer),
        rounds=rounds,
        initial=initial,
        clients=7,
        seed=0,
    )
    result = strategy.start(Hostile(method, sent), to_arrays(LAYOUT, initial[0]))
    assert len(strategy.history) == rounds
    for log in strategy.history:
        check(log, [*log.failed.values(), *log.invalid.values(), *log.refused.values()])
    assert not strategy.models.isnan().any()
    for metrics in result.evaluate_metrics_clientapp.values():
        assert all(math.isfinite(v) for v in metrics.values())


OPTIONS = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


SEVERAL = Release("metric", torch.zeros(2), "lr")


@settings(max_examples=60, **OPTIONS)
@example("record", ((Release("model", torch.zeros(D)), SEVERAL), ()))  # both ended the round
@example("record-sum", ((Release("model", torch.zeros(D), "lr"), SEVERAL), ()))
@given(st.sampled_from(sorted(SERVERS)), st.tuples(replies, replies))
def test_no_client_ends_a_round_of_the_embedded_server(name, sent):
    embedded(name, sent)


@settings(max_examples=40, **OPTIONS)
@given(st.sampled_from(sorted(SERVERS)), st.tuples(flower_replies, flower_replies))
def test_no_client_ends_a_run_under_flower(name, sent):
    flower(name, sent)


@pytest.mark.slow
@settings(max_examples=5_000, phases=[Phase.generate], **OPTIONS)
@given(st.sampled_from(sorted(SERVERS)), st.tuples(replies, replies))
def test_no_client_ends_a_round_in_five_thousand_cases(name, sent):
    embedded(name, sent)


@pytest.mark.slow
@settings(max_examples=2_000, phases=[Phase.generate], **OPTIONS)
@given(st.sampled_from(sorted(SERVERS)), st.tuples(flower_replies, flower_replies))
def test_no_client_ends_a_run_in_two_thousand_cases(name, sent):
    flower(name, sent)
