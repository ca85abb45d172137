"""Messages of Flower and FLARE, read by a site and by a server: a broadcast or a reply, or a refusal."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedveil as fv
from fedveil.accounting import Release
from fedveil.engines import messages
from fedveil.methods import Broadcast, PublicFacts, build
from fuzz_kit import outcome, played, trees, values
from test_fuzz_data import arrays

flwr = pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict  # noqa: E402

from fedveil.engines.flower import records  # noqa: E402

pytestmark = pytest.mark.slow

LAYOUT = fv.Layout.from_module(torch.nn.Linear(4, 2))
PUBLIC = {
    "hypotheses": 1,
    "round": 1,
    "rounds": 3,
    "cohort": 2,
    "dimension": 10,
    "layer_scores": [0.5],
    "run": "a run",
    "attempt": 0,
    "roster": [bytes([number]) * 32 for number in (1, 2, 3)],
    "terms": "{}",
    "receipt": "",
}
METHOD = build("group", noise_multiplier=1.0)
BROADCAST = Broadcast(
    models=torch.zeros(1, 10), public=PublicFacts(round=1, rounds=3, cohort=2, dimension=10)
)


def record(kind, given):
    """A record of Flower's with what it takes of these values; what it refuses itself reaches nobody."""
    try:
        return kind(given)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return None


@played(6_000)
@given(trees(PUBLIC))
def test_public_facts_of_any_values(facts):
    if isinstance(facts, dict):
        outcome(lambda: messages.read_public(facts, LAYOUT))


@played(6_000)
@given(
    trees(PUBLIC), st.dictionaries(st.sampled_from(["weight", "bias", "x"]), arrays(), max_size=3)
)
def test_a_broadcast_under_flower(facts, given):
    content = RecordDict()
    if isinstance(facts, dict) and (public := record(ConfigRecord, facts)) is not None:
        content[messages.PUBLIC] = public
    named = {name: Array(array) for name, array in given.items() if array.dtype.kind not in "OV"}
    content[records.ARRAYS] = ArrayRecord(named)
    outcome(lambda: records.read_broadcast(content, LAYOUT))


@played(6_000)
@given(
    st.dictionaries(st.sampled_from(["weight", "bias", "share", "sum"]), arrays(), max_size=3),
    trees({"side": "GroupPrivacy", "trust": "local", "counted": False, "partition-id": 0}),
    trees({messages.COUNT: 3, "loss": 0.5}),
)
def test_a_reply_under_flower(given, mark, metrics):
    named = {name: Array(array) for name, array in given.items() if array.dtype.kind not in "OV"}
    content = RecordDict({records.ARRAYS: ArrayRecord(named), records.SHARE: ArrayRecord(named)})
    for place, kind, own in (
        (messages.REPLY, ConfigRecord, mark),
        (messages.METRICS_KEY, MetricRecord, metrics),
    ):
        if isinstance(own, dict) and (made := record(kind, own)) is not None:
            content[place] = made
    outcome(lambda: records.read_mark(content, METHOD.client))
    outcome(lambda: records.read_share(content))
    releases = outcome(lambda: records.read_releases(content, LAYOUT))
    if isinstance(releases, tuple):
        assert all(isinstance(one, Release) for one in releases)


@played(4_000)
@given(trees({"chosen": 0, "layers": ["weight"], "scores": [0.5], "noised": [1.0, 2.0]}))
def test_the_facts_of_training_code(facts):
    content = RecordDict()
    if isinstance(facts, dict) and (own := record(ConfigRecord, facts)) is not None:
        content[records.FACTS] = own
        outcome(lambda: records.read_facts(content, LAYOUT, BROADCAST))


@played(4_000)
@given(st.dictionaries(st.text(max_size=70), values, max_size=40))
def test_metrics_of_any_values(metrics):
    outcome(lambda: messages.read_metrics(metrics))


@played(6_000)
@given(st.data())
def test_tasks_and_results_under_flare(data):
    pytest.importorskip("nvflare")
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.shareable import Shareable

    from fedveil.engines.nvflare import shareables

    right = {
        messages.PUBLIC: PUBLIC,
        shareables.SITES: ["a", "b"],
        messages.REPLY: {"side": "x", "trust": "local"},
    }
    meta = data.draw(trees(right))
    named = data.draw(
        st.dictionaries(
            st.sampled_from(["weight", "bias", "1/weight", "share"]), arrays(), max_size=3
        )
    )
    kind = data.draw(
        st.sampled_from([DataKind.WEIGHTS, DataKind.WEIGHT_DIFF, DataKind.METRICS, "ANY"])
    )
    try:
        task = DXO(kind, named, meta if isinstance(meta, dict) else {}).to_shareable()
    except (ValueError, TypeError):
        task = Shareable()
    if data.draw(st.integers(0, 9)) == 0:
        task = Shareable({"DXO": data.draw(values)})
    outcome(lambda: shareables.read_broadcast(task, LAYOUT))
    outcome(lambda: shareables.read_trained(task, LAYOUT, BROADCAST))
    outcome(lambda: shareables.read_reply(task, LAYOUT, METHOD.client))


def test_the_right_ones_are_read():
    read = records.read_broadcast(records.write_broadcast(BROADCAST, LAYOUT), LAYOUT)
    assert torch.equal(read.models, BROADCAST.models)
    assert read.public == BROADCAST.public
