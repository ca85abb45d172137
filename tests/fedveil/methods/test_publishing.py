"""Published metrics are releases: noise of the stated size at the stated price, or no guarantee at all."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core_kit import assert_deviation
from engine_kit import OPTIONS, tiny
from federation_kit import grouped
from fedveil.accounting import Filter, compose_mu
from fedveil.engines import Federation
from fedveil.errors import FieldError, HeuristicError
from fedveil.learning import ClientData
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import Publishing, build

NAMES = ("loss", "accuracy")
COUNTS = torch.tensor([4, 4, 4])
FIGURES = torch.tensor([[0.5, 0.9], [1.5, 0.4], [7.0, 0.1]], dtype=torch.float64)


def release(publishing, figures=FIGURES, counts=COUNTS, relation="zero-out", seed=0, names=NAMES):
    releases, spend = publishing.release(names, figures, counts, relation, ReproducibleSource(seed))
    return {r.name: float(r.value) for r in releases}, spend


def test_noised_metrics_have_the_stated_deviation_around_the_clipped_mean():
    publishing = Publishing(metrics="noised", noise_multiplier=2.0, loss_range=3.0)
    found = [release(publishing, seed=s) for s in range(400)]
    spend = found[0][1]
    sigma = 2.0 * math.sqrt(2) / (2 * 3)
    assert spend.scale == pytest.approx((3 * sigma, sigma))
    loss = torch.tensor([m["loss"] for m, _ in found], dtype=torch.float64)
    accuracy = torch.tensor([m["accuracy"] for m, _ in found], dtype=torch.float64)
    assert_deviation(loss - (0.5 + 1.5 + 3.0) / 3, 3 * sigma)
    assert_deviation(accuracy - 1.4 / 3, sigma)


@pytest.mark.parametrize(
    ("relation", "mu"), [("zero-out", 0.5), ("add/remove", 0.5), ("replace-one", 1.0)]
)
def test_the_cost_follows_the_relation(relation, mu):
    _, spend = release(Publishing(metrics="noised", noise_multiplier=2.0), relation=relation)
    assert spend.guarantee.mu == pytest.approx(mu)
    assert spend.guarantee.relation == relation
    assert spend.guarantee.unit == "client"
    assert spend.guarantee.status == ("conditional" if relation == "add/remove" else "formal")


@given(
    st.lists(st.tuples(st.floats(-1, 9), st.floats(0, 1)), min_size=2, max_size=6),
    st.tuples(st.floats(-1, 9), st.floats(0, 1)),
    st.booleans(),
)
def test_no_client_moves_the_metrics_by_more_than_the_sensitivity(rows, other, gone):
    publishing = Publishing(
        metrics="noised", noise_multiplier=1e-9, loss_range=2.0
    )  # as good as no noise
    figures = torch.tensor(rows, dtype=torch.float64)
    changed = figures.clone()
    changed[0] = torch.nan if gone else torch.tensor(other, dtype=torch.float64)
    counts = torch.ones(len(rows))
    relation = "zero-out" if gone else "replace-one"
    (a, spend), (b, _) = (
        release(publishing, figures, counts, relation),
        release(publishing, changed, counts, relation),
    )
    moved = math.hypot((a["loss"] - b["loss"]) / 2.0, a["accuracy"] - b["accuracy"])
    assert moved <= spend.sensitivity * (1 + 1e-6) + 1e-7


def test_clear_metrics_are_the_pooled_mean_and_end_every_promise():
    found, spend = release(Publishing(metrics="clear"), counts=torch.tensor([1, 2, 1]))
    assert found == pytest.approx({"loss": 2.625, "accuracy": 0.45})
    assert spend.guarantee.status == "heuristic"
    with pytest.raises(HeuristicError, match="aggregated metrics without noise"):
        spend.guarantee.epsilon(1e-5)
    missing = torch.tensor([[1.0, 0.5], [torch.nan, torch.nan], [3.0, 0.1]])
    assert release(Publishing(metrics="clear"), missing, torch.tensor([1, 0, 1]))[0][
        "loss"
    ] == pytest.approx(2.0)
    assert list(release(Publishing(metrics="noised"), FIGURES[:, :1], names=("loss",))[0]) == [
        "loss"
    ]


def clients(n=3):
    made = []
    for seed in range(n):
        g = torch.Generator().manual_seed(seed)
        x = torch.rand(8, 1, 4, 4, generator=g)
        y = (x.mean((1, 2, 3)) > 0.5).long()
        made.append(ClientData(x[:6], y[:6], x[6:], y[6:]))
    return made


def federation(name="global", **options):
    return Federation(
        model=tiny,
        clients=clients(),
        method=build(name, **OPTIONS[name]),
        seed=3,
        **grouped(options),
    )


def test_the_cost_is_in_the_ledger_and_in_the_total():
    plain, noised = (
        federation(),
        federation(publishing=Publishing(metrics="noised", noise_multiplier=4.0)),
    )
    before, after = plain.run(3), noised.run(3)
    assert [e.key[1] for e in noised.server.ledger.entries] == ["combine", "publish"] * 3
    assert after.guarantee.mu == pytest.approx(compose_mu([before.guarantee.mu, *([0.25] * 3)]))
    assert (
        after.guarantee.bound.mu_per_distance is None
    )  # a client's metrics may move where its update does not
    assert all(set(r.published) == {"loss", "accuracy"} for r in after.rounds)
    assert torch.equal(before.models, after.models)  # publishing draws from a stream of its own
    assert {tuple(r.published) for r in before.rounds} == {()}


def test_clear_metrics_leave_no_epsilon():
    history = federation(publishing=Publishing(metrics="clear")).run(2)
    assert history.guarantee.status == "heuristic"
    assert "eps" not in history.guarantee.describe(1e-5)
    assert history.rounds[0].published["accuracy"] == pytest.approx(
        history.rounds[0].metrics["accuracy"]
    )
    assert history.rounds[0].published["loss"] == pytest.approx(history.rounds[0].metrics["loss"])
    assert (
        federation("vanilla", publishing=Publishing(metrics="noised")).run(1).guarantee.status
        == "none"
    )


def test_metrics_that_the_budget_does_not_hold_are_withheld():
    cost = federation().run(2).guarantee.epsilon(1e-5)
    publishing = Publishing(metrics="noised", noise_multiplier=0.01)
    fed = federation(publishing=publishing, server_budget=Filter(cost * 1.01, 1e-5))
    history = fed.run(2)
    assert [r.published for r in history.rounds] == [{}, {}]
    assert [e.key[1] for e in fed.server.ledger.entries] == ["combine"] * 2
    with pytest.raises(FieldError, match="cannot hold a heuristic release"):
        federation(
            publishing=Publishing(metrics="clear"), server_budget=Filter(2 * cost, 1e-5)
        ).run(1)


def test_under_local_trust_nothing_is_published():
    with pytest.raises(
        FieldError, match=r"publish\.metrics = 'clear': under local trust no metric leaves a client"
    ):
        federation("sga-ldp", publishing=Publishing(metrics="clear"))


@pytest.mark.parametrize(
    "values", [{"metrics": "some"}, {"noise_multiplier": 0.0}, {"loss_range": math.inf}]
)
def test_bad_options_are_refused(values):
    with pytest.raises(FieldError):
        Publishing(**values)
