"""The sound variants take the size of their noise from nothing private, and say what that proves."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from engine_kit import federation
from fedveil.accounting import EuclideanLaplace, Filter, Guarantee, Release, epsilon, total
from fedveil.clipping import QuantileClip
from fedveil.errors import FieldError, HeuristicError
from fedveil.gdp import epsilon_of_mu, mu_of_epsilon
from fedveil.layout import Layout
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import (
    SGALDP,
    Broadcast,
    ClientFacts,
    FedRE,
    GlobalDP,
    GroupPrivacy,
    MetricPrivacy,
    PublicFacts,
    ServerFacts,
    build,
)
from fedveil.methods.sga_ldp import LastBroadcast
from fedveil_lab.runs.promised import guarantees_of

LAYOUT = Layout.from_shapes({"a.weight": (4,), "b.weight": (2,)}, torch.float64)
SOURCE = ReproducibleSource(0)


def broadcast(model: torch.Tensor | None = None, round_: int = 2, **public: object) -> Broadcast:
    facts = PublicFacts(round=round_, rounds=4, cohort=4, dimension=6, **public)  # type: ignore[arg-type]
    return Broadcast(
        models=torch.zeros(1, 6, dtype=torch.float64) if model is None else model[None],
        public=facts,
    )


def protect(side, update, state=None, of=None):
    of = of or broadcast()
    facts = ClientFacts(broadcast=of, layout=LAYOUT)
    return side.protect(
        (Release("model", of.models[0] + update),), facts, state or side.init(), SOURCE
    )


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


LONG, SHORT = vector(3, 0, 0, 0, 4, 0), vector(0, 0.1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "side",
    [
        GroupPrivacy(noise_multiplier=2.0, radius=0.5),
        FedRE(epsilon=3.0, scores="public"),
        SGALDP(similarity="released"),
    ],
)
def test_a_client_s_noise_does_not_depend_on_its_update(side) -> None:
    of = broadcast(vector(1, 0, 0, 0, 0, 0), layer_scores=(1.0, 2.0))
    state = side.init()
    if isinstance(side, SGALDP):
        state = LastBroadcast(1, torch.zeros(6, dtype=torch.float64), vector(1, 0, 0, 0, 0, 1))
    spends = [protect(side, update, state, of).spend for update in (LONG, SHORT, 0 * SHORT)]
    assert spends[0] == spends[1] == spends[2]
    # and the quote, made before training, is the price
    assert side.quote(of, state).guarantee == spends[0].guarantee


def test_metric_privacy_from_releases_ignores_the_clients_models() -> None:
    side = MetricPrivacy(noise_multiplier=1.0, clip=1.0, distance_on="released")
    facts = ServerFacts(
        broadcast=broadcast(vector(0.6, 0, 0, 0, 0.8, 0)), layout=LAYOUT, partitions=(0, 1, 2, 3)
    )
    state = side.init(6, torch.float64)
    state = type(state)(state.clip, state.rule, torch.zeros(6, dtype=torch.float64), 0.0)
    results = []
    for updates in ([LONG, SHORT, -LONG, SHORT], [SHORT] * 4):
        replies = [(Release("model", facts.broadcast.models[0] + u),) for u in updates]
        results.append(side.combine(replies, facts, state, SOURCE.child("x")))
    # the model moved by .6 in one layer and .8 in the other: d = .7, sigma = 1 * 1 / (4 * .7)
    assert [r.report["sigma"] for r in results] == pytest.approx([1 / 2.8, 1 / 2.8])
    spend = results[0].spend
    assert spend.charge == pytest.approx(0.7)  # this round; a filter charges it
    # a sum of such charges is random, so the promise is the public worst case: the largest distance, 4
    assert (spend.guarantee.status, spend.guarantee.mu) == ("formal", pytest.approx(4.0))


def test_the_released_distance_takes_the_noise_off_and_stays_in_its_range() -> None:
    side = MetricPrivacy(
        noise_multiplier=1.0, clip=1.0, distance_on="released", released_range=(0.5, 2.0)
    )
    facts = ServerFacts(
        broadcast=broadcast(vector(3, 0, 0, 0, 4, 0)), layout=LAYOUT, partitions=(0, 1, 2, 3)
    )
    state, zero = side.init(6, torch.float64), torch.zeros(6, dtype=torch.float64)
    replies = [(Release("model", facts.broadcast.models[0]),)] * 4
    for sigma, expected in ((0.0, 2.0), (2.0, math.sqrt(16 - 2 * 4) / 2), (50.0, 0.5)):
        # 9 - 4 * 4 < 0 in the first layer, 16 - 2 * 4 = 8 in the second
        moved = type(state)(state.clip, state.rule, zero, sigma)
        assert side.combine(replies, facts, moved, SOURCE.child("y")).report[
            "distance"
        ] == pytest.approx(expected)


def test_group_privacy_with_a_public_radius_is_d_private() -> None:
    protected = protect(
        GroupPrivacy(noise_multiplier=2.0, radius=0.5), 0 * SHORT
    )  # a zero step is no special case
    guarantee = protected.spend.guarantee
    assert guarantee.bound.epsilon_per_distance == 6 / (2.0 * 0.5)
    assert guarantee.epsilon_at(0.5, 0.0) == pytest.approx(3.0)  # n / nu at the radius
    assert guarantee.epsilon_at(0.5, 1e-5) < 3.0
    with pytest.raises(HeuristicError):
        guarantee.epsilon(1e-5)  # d-privacy has no epsilon without a distance


def test_rounds_of_laplace_noise_are_composed_by_their_loss() -> None:
    one = protect(GroupPrivacy(noise_multiplier=2.0, radius=0.5), SHORT).spend.guarantee
    all_ = total([one] * 20)
    assert all_.epsilon_at(0.1, 0.0) == pytest.approx(20 * 0.1 * 6)
    exact = epsilon([(EuclideanLaplace(6, 0.6), 20)], 1e-5)
    assert exact < 0.6 * 20 * 0.1 * 6
    assert all_.epsilon_at(0.1, 1e-5) == pytest.approx(exact, rel=1e-3)
    assert Guarantee.from_dict(json.loads(json.dumps(all_.to_dict()))) == all_
    linear = replace(all_, bound=replace(all_.bound, events_per_distance=()))
    assert linear.epsilon_at(0.1, 1e-5) == all_.epsilon_at(0.1, 0.0)


def test_gaussian_noise_with_a_public_radius_has_a_mu_for_every_distance() -> None:
    side = GroupPrivacy(noise_multiplier=2.0, radius=0.5, distribution="gaussian")
    spend = protect(side, SHORT).spend
    (sigma,), one = spend.scale, spend.guarantee
    drawn = [protect_from(side, SHORT, i).releases[0].value - SHORT for i in range(3000)]
    assert float(torch.stack(drawn).norm(dim=1).mean()) == pytest.approx(
        1.0, rel=0.03
    )  # nu times the radius
    assert float(torch.stack(drawn).std()) == pytest.approx(sigma, rel=0.03)
    all_ = total([one] * 9)
    assert all_.epsilon_at(0.3, 1e-5) == pytest.approx(epsilon_of_mu(3 * 0.3 / sigma, 1e-5))
    assert Guarantee.from_dict(all_.to_dict()) == all_
    with pytest.raises(HeuristicError):
        all_.epsilon(1e-5)
    with pytest.raises(FieldError, match="guarantees"):
        total([one, protect(GroupPrivacy(noise_multiplier=2.0, radius=0.5), SHORT).spend.guarantee])
    with pytest.raises(FieldError, match="radius"):
        GroupPrivacy(distribution="gaussian")


def protect_from(side, update, seed):
    of = broadcast()
    facts = ClientFacts(broadcast=of, layout=LAYOUT)
    model = (Release("model", of.models[0] + update),)
    return side.protect(model, facts, side.init(), ReproducibleSource(seed))


@pytest.mark.parametrize("distribution", ["laplace", "gaussian"])
def test_a_summary_has_the_curves_of_worst_and_median_client_and_how_all_are_spread(
    distribution, monkeypatch
) -> None:
    monkeypatch.setattr("fedveil_lab.runs.promised.REACH", (0.5, 1.0))
    method = build("group", noise_multiplier=2.0, radius=0.5, distribution=distribution)
    made = federation("group", n=5, method=method, clients_per_round=2)
    made.run(4)
    books = {str(p): made.party(p).ledger for p in range(5)}
    worst, told = guarantees_of(method, books, 1e-5)
    curves = {party: told[f"{party} client"]["curve"] for party in ("worst", "median")}
    for curve in curves.values():
        assert curve["epsilon"] == sorted(curve["epsilon"])
    assert all(
        w >= m for w, m in zip(curves["worst"]["epsilon"], curves["median"]["epsilon"], strict=True)
    )
    spread = told["worst client"]["over clients"]
    assert sum(spread["clients"]) == sum(bool(book.entries) for book in books.values())
    assert spread["epsilon"][-1] == pytest.approx(worst.epsilon_at(spread["distance"], 1e-5))
    assert spread["epsilon"][-1] in curves["worst"]["epsilon"]


def test_fedre_splits_mu_by_public_scores() -> None:
    of = broadcast(layer_scores=(1.0, 3.0))
    spend = protect(FedRE(epsilon=3.0, delta=1e-5, clip=0.5, scores="public"), LONG, of=of).spend
    # sensitivity 2 C_l = 1; mu_l proportional to 1/S_l: 3 to 1; squares add up to the round's
    mus = [1.0 / deviation for deviation in spend.scale]
    assert mus[0] / mus[1] == pytest.approx(3.0)
    assert math.hypot(*mus) == pytest.approx(spend.guarantee.mu)
    assert epsilon_of_mu(2 * spend.guarantee.mu, 1e-5) == pytest.approx(
        3.0
    )  # four rounds: sqrt(4) mu
    with pytest.raises(FieldError, match="layer_scores"):
        protect(FedRE(scores="public"), LONG)


def test_sga_ldp_s_released_similarity_is_charged_at_2c() -> None:
    side = SGALDP(similarity="released", clip=1.5)
    first = protect(side, LONG)
    assert first.spend.charge == pytest.approx(mu_of_epsilon(1.0, 1e-5))
    assert first.spend.guarantee.mu == pytest.approx(
        mu_of_epsilon(5.0, 1e-5)
    )  # the public worst case
    assert first.spend.scale[0] == pytest.approx(2 * 1.5 / mu_of_epsilon(1.0, 1e-5))
    released = first.releases[0].value
    # the next broadcast is exactly what the client released: cosine 1, epsilon_max
    after = protect(side, SHORT, first.state, broadcast(released, round_=3))
    assert after.spend.charge == pytest.approx(mu_of_epsilon(5.0, 1e-5))


def test_a_filter_holds_adaptive_spends_to_their_total() -> None:
    stop, side = Filter(2.0, 1e-5), SGALDP(similarity="released")
    admitted = 0
    while stop.admit_spend(side.quote(broadcast(), side.init())):
        admitted += 1
    assert admitted == int((mu_of_epsilon(2.0, 1e-5) / mu_of_epsilon(1.0, 1e-5)) ** 2)


def test_the_total_of_adaptive_rounds_is_the_worst_case_or_the_filter_s_budget() -> None:
    side, stop = SGALDP(similarity="released"), Filter(2.0, 1e-5)
    spend = side.quote(broadcast(), side.init())
    worst, spends = total([spend.guarantee] * 9), [spend] * 3  # three at epsilon 1 stay within 2
    assert worst.mu == pytest.approx(3 * mu_of_epsilon(5.0, 1e-5))
    assert stop.held(worst, spends).epsilon(1e-5) == pytest.approx(2.0)
    assert Filter(1e6, 1e-5).held(worst, spends) == worst


def test_the_curve_over_distance_is_the_lipschitz_constant_over_sigma() -> None:
    side = GlobalDP(noise_multiplier=2.0, clip=3.0)
    facts = ServerFacts(broadcast=broadcast(), layout=LAYOUT, partitions=(0, 1, 2, 3))
    replies = [(Release("model", SHORT),)] * 4
    guarantee = side.combine(
        replies, facts, side.init(6, torch.float64), SOURCE.child("z")
    ).spend.guarantee
    assert guarantee.mu == pytest.approx(0.5)
    assert guarantee.bound.mu_per_distance == pytest.approx(
        0.5 / 3.0
    )  # at distance C the curve meets mu
    assert guarantee.epsilon_at(3.0, 1e-5) == pytest.approx(guarantee.epsilon(1e-5))
    assert guarantee.epsilon_at(0.3, 1e-5) < guarantee.epsilon(1e-5)


def run_discrete(side: GlobalDP, updates: list[torch.Tensor], seed: int):
    facts = ServerFacts(broadcast=broadcast(), layout=LAYOUT, partitions=tuple(range(len(updates))))
    replies = [(Release("model", u),) for u in updates]
    return side.combine(replies, facts, side.init(6, torch.float64), ReproducibleSource(seed))


def test_discrete_noise_lies_on_its_grid_with_the_right_scale() -> None:
    side = GlobalDP(noise_multiplier=2.0, clip=1.0, noise="discrete")
    outputs = [run_discrete(side, [SHORT] * 3, seed) for seed in range(400)]
    sigma = outputs[0].report["sigma"]
    assert sigma == pytest.approx(2.0 / 4)
    step = sigma / 1024
    values = torch.stack([o.models[0] for o in outputs])
    assert torch.allclose(values / step, (values / step).round(), atol=1e-6)
    expected = 3 * SHORT / 4  # the fourth planned client did not reply
    spread = (values - expected).square().mean().sqrt()
    assert spread == pytest.approx(sigma, rel=0.06)  # 2,400 draws: 4 standard errors
    guarantee = outputs[0].spend.guarantee
    assert guarantee.mu is None
    assert guarantee.bound.rho == pytest.approx(1 / (2 * 2.0**2))


def test_discrete_noise_refuses_what_it_does_not_cover() -> None:
    with pytest.raises(FieldError, match="noise"):
        GlobalDP(noise="discrete", order="printed", noise_multiplier=0.01)


def test_quantile_clipping_converges_and_charges_its_bit() -> None:
    side = GlobalDP(
        noise_multiplier=1.0, clip=QuantileClip(initial=50.0, quantile=0.5, bit_noise=0.25)
    )
    facts = ServerFacts(broadcast=broadcast(), layout=LAYOUT, partitions=(0, 1, 2, 3))
    directions = torch.eye(6, dtype=torch.float64)[:4]
    replies = [
        (Release("model", length * v),)
        for length, v in zip((0.8, 0.9, 1.1, 1.2), directions, strict=True)
    ]
    state = side.init(6, torch.float64)
    bounds = []
    for seed in range(200):
        result = side.combine(replies, facts, state, ReproducibleSource(seed))
        state = result.state
        bounds.append(state.clip)
    assert sum(bounds[-50:]) / 50 == pytest.approx(1.0, abs=0.15)  # Flower's rule diverges here
    # the model at mu = 1, the bit at 1 / .25 = 4: it can turn over
    assert result.spend.guarantee.mu == pytest.approx(math.hypot(1.0, 4.0))
