"""All aggregation rules as a FLARE aggregator: the rules' own results, and what is refused."""

import flare_needed  # noqa: F401
import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants

from fedveil.aggregation import AGGREGATORS, NoState, capped_weights, even
from fedveil.errors import FieldError
from fedveil.mechanisms import source_of
from fedveil.nvflare import RuleAggregator

pytestmark = pytest.mark.nvflare
SITES = ["site-1", "site-2", "site-3", "site-4"]


def context(site="site-1", model=None):
    fl_ctx, peer = FLContext(), FLContext()
    peer.put("__identity_name__", site, private=False, sticky=False)
    fl_ctx.put("__identity_name__", "site-1", private=False, sticky=False)
    fl_ctx.set_peer_context(peer)
    if model is not None:
        fl_ctx.put(
            AppConstants.GLOBAL_MODEL, make_model_learnable(model, {}), private=True, sticky=False
        )
    return fl_ctx


def updates(seed=0, n=4):
    generator = np.random.default_rng(seed)
    return [{"w": generator.normal(size=(3, 2)), "b": generator.normal(size=())} for _ in range(n)]


def sent(arrays, kind=DataKind.WEIGHT_DIFF):
    return DXO(
        kind, {name: np.asarray(value).copy() for name, value in arrays.items()}
    ).to_shareable()


def combined(aggregator, rows, kind=DataKind.WEIGHT_DIFF, model=None, order=None):
    for place in order or range(len(rows)):
        assert aggregator.accept(sent(rows[place], kind), context(SITES[place], model))
    return from_shareable(aggregator.aggregate(context(model=model))).data


def flat(arrays):
    return torch.cat([torch.as_tensor(np.asarray(arrays[name])).reshape(-1) for name in ("w", "b")])


# of four sites the default of a fifth cuts off nobody, and is refused
OPTIONS = {"trimmed-mean": {"fraction": 0.25}}


@pytest.mark.parametrize("name", [name for name in AGGREGATORS if name != "fltrust"])
@pytest.mark.parametrize("kind", ["WEIGHT_DIFF", "WEIGHTS"])
def test_every_rule_is_what_the_rule_says_whoever_comes_first(name, kind):
    options, rows = OPTIONS.get(name, {}), updates()
    rule = AGGREGATORS[name](**options)
    model = updates(seed=9, n=1)[0] if kind == "WEIGHTS" else None
    if model is not None:
        rows = [{key: row[key] + model[key] for key in row} for row in rows]
    start = torch.zeros(7, dtype=torch.float64) if model is None else flat(model)
    stack = torch.stack([flat(row) for row in rows]) - start
    state = rule.init(7, torch.float64)
    reduced = rule.for_round(state, source_of(0)).reduce(stack, even(4))
    step, _ = rule.step(torch.zeros(7, dtype=torch.float64), reduced, state)
    found = combined(
        RuleAggregator({"name": name, **options}, 4, expected_data_kind=kind),
        rows,
        kind,
        model,
        order=[2, 0, 3, 1],
    )
    torch.testing.assert_close(flat(found), start + step, atol=1e-12, rtol=0)


def test_declared_weights_are_those_of_the_sites_that_sent():
    sizes = {"site-1": 700, "site-2": 100, "site-3": 100, "site-4": 100}
    one, rows = RuleAggregator("fedavg", 4, weights=sizes, cap=0.4), updates()
    stack = torch.stack([flat(row) for row in rows])
    found = combined(one, rows)
    torch.testing.assert_close(flat(found), capped_weights([700, 100, 100, 100], 0.4) @ stack)
    three = combined(one, rows[:3])
    torch.testing.assert_close(flat(three), capped_weights([700, 100, 100], 0.4) @ stack[:3])
    assert one.sensitivity(2.0) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("rule", "zero", "any_two"),
    [
        ("fedavg", 0.4, 0.8),
        ("fedmedian", 1.0, 2.0),
        ({"name": "trimmed-mean", "fraction": 0.25}, 0.8, 1.6),
        ("geometric-median", 2.0, 2.0),
    ],
)
def test_sensitivities_with_weights(rule, zero, any_two):
    sizes = {"site-1": 700, "site-2": 100, "site-3": 100, "site-4": 100}
    one = RuleAggregator(rule, 4, weights=sizes, cap=0.4)
    assert one.sensitivity(1.0) == pytest.approx(zero)
    assert one.sensitivity(1.0, "replace-one") == pytest.approx(any_two)
    assert one.bears == (0 if rule == "fedavg" else 1)


@pytest.mark.parametrize(
    ("rule", "changes", "field"),
    [
        ({"name": "krum", "malicious": 1}, {}, "rule"),  # 5 of 4
        ({"name": "bulyan", "malicious": 1}, {}, "rule"),  # 7 of 4
        ("trimmed-mean", {}, "fraction"),  # nobody is cut off: the plain mean
        ({"name": "trimmed-mean", "fraction": 0.24}, {}, "fraction"),
        ("fltrust", {}, "rule"),
        ({"name": "fedavg", "weighting": "examples"}, {}, "weighting"),
        ("fedavgm", {"swarm": True}, "rule"),
        ("centred-clipping", {"swarm": True}, "rule"),
        ("krum", {"weights": dict.fromkeys(SITES, 1.0), "cap": 0.5}, "weights"),
        ("fedmedian", {"weights": {"site-1": 1.0}, "cap": 1.0}, "weights"),
        ("fedmedian", {"weights": dict.fromkeys(SITES, 1.0)}, "cap"),
        ("fedmedian", {"cap": 0.5}, "cap"),
        ("fedmedian", {"weights": dict.fromkeys(SITES, 1.0), "cap": 0.2}, "cap"),
        ("fedmedian", {"weights": dict.fromkeys(SITES, 1.0), "cap": 0.0}, "cap"),
        ("fedmedian", {"expected_data_kind": "METRICS"}, "expected_data_kind"),
        ("median", {}, "aggregator.name"),
    ],
)
def test_what_cannot_work_is_refused_when_the_aggregator_is_made(rule, changes, field):
    with pytest.raises(FieldError) as refused:
        RuleAggregator(rule, 4, **changes)
    assert refused.value.field == field


@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_in_a_swarm_no_rule_that_remembers(name):
    rule, given = AGGREGATORS[name](), {"name": name, **OPTIONS.get(name, {})}
    remembers = not isinstance(rule.init(2, torch.float32), NoState)
    if remembers or rule.needs:
        with pytest.raises(FieldError):
            RuleAggregator(given, 4, swarm=True)
    else:
        RuleAggregator(given, 4, swarm=True)
    assert isinstance(
        RuleAggregator({"name": "centred-clipping", "remember": False}, 4, swarm=True),
        RuleAggregator,
    )


def test_what_cannot_be_used_is_left_out():
    one, rows = RuleAggregator("fedmedian", 4), updates()
    assert one.accept(sent(rows[0]), context("site-1"))
    assert not one.accept(sent(rows[1]), context("site-1"))  # a second one
    assert not one.accept(sent({**rows[1], "b": np.nan}), context("site-2"))
    assert not one.accept(sent(rows[1], DataKind.WEIGHTS), context("site-2"))
    assert not one.accept(make_reply("EXECUTION_EXCEPTION"), context("site-2"))
    assert not one.accept(
        sent({**rows[1], "w": rows[1]["w"].astype(np.complex128)}), context("site-2")
    )
    found = from_shareable(one.aggregate(context())).data
    torch.testing.assert_close(flat(found), flat(rows[0]))


@pytest.mark.parametrize("first", [True, False])
def test_other_arrays_leave_their_sender_out_and_not_the_others(first):
    one, rows = RuleAggregator("fedmedian", 4), updates()
    other = (sent({"w": np.full((3, 2), 1e6)}), context("site-4"))
    honest = [(sent(rows[place]), context(SITES[place])) for place in range(3)]
    for update, where in [other, *honest] if first else [*honest, other]:
        one.accept(update, where)
    found = from_shareable(one.aggregate(context())).data
    stack = torch.stack([flat(row) for row in rows[:3]])
    torch.testing.assert_close(flat(found), stack.median(dim=0).values)


@pytest.mark.parametrize("swarm", [True, False])
def test_a_late_update_counts_in_no_other_round_of_a_swarm(swarm):
    """A server begins each round with none; FLARE's swarm does not."""
    one = RuleAggregator("fedmedian", 3, swarm=swarm)

    def accepted(number):
        update = sent(updates()[0])
        update.set_header(AppConstants.CURRENT_ROUND, number)
        return one.accept(update, context("site-1"))

    assert accepted(0)
    one.aggregate(context())
    assert accepted(0) != swarm
    assert accepted(3) == swarm  # the late one would have had its place


def test_a_round_in_which_no_arrays_are_those_of_most_sites_is_refused():
    one, rows = RuleAggregator("fedmedian", 4), updates()
    one.accept(sent(rows[0]), context("site-1"))
    one.accept(sent({"w": rows[1]["w"]}), context("site-2"))
    with pytest.raises(FieldError) as refused:
        one.aggregate(context())
    assert refused.value.field == "arrays"


@pytest.mark.parametrize("rule", ["geometric-median", "centred-clipping", "krum", "fedavg"])
@pytest.mark.parametrize("value", [1e155, 1e300, 1.7e308])
def test_a_finite_update_without_a_length_is_left_out(rule, value):
    """Its squares overflow, and one site would make the model of all others nan."""
    one, rows = RuleAggregator({"name": rule}, 5), updates()
    for place, row in enumerate(rows):
        assert one.accept(sent(row), context(SITES[place]))
    assert not one.accept(
        sent({"w": np.full((3, 2), value), "b": np.array(-value)}), context("site-5")
    )


def test_fewer_updates_than_the_rule_needs_end_the_round():
    one = RuleAggregator({"name": "krum", "malicious": 1}, 5)
    for place, row in enumerate(updates()):
        assert one.accept(sent(row), context(SITES[place]))
    with pytest.raises(FieldError):
        one.aggregate(context())
    with pytest.raises(FieldError):
        RuleAggregator("fedmedian", 4).aggregate(context())


def test_counters_are_what_some_site_sent():
    rows = [{**row, "steps": np.int64(place)} for place, row in enumerate(updates())]
    one = RuleAggregator("fedavg", 4, expected_data_kind="WEIGHTS")
    model = {**updates(seed=9, n=1)[0], "steps": np.int64(0)}
    assert combined(one, rows, DataKind.WEIGHTS, model)["steps"] == 1
