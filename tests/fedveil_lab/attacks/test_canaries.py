"""One-run audits: the bounds hold and have power; every promise holds; planted bugs break it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy
import torch

from fedveil.aggregation import CentredClipping, FedAdam, NormBounding
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.learning.lots import Units
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import SGALDP, FedRE, GlobalDP, GroupPrivacy, RecordDP
from fedveil_lab.attacks.bounds import GameResult, epsilon_bound_of_guesses, mu_bound_of_guesses
from fedveil_lab.attacks.membership import (
    audited,
    client_canaries,
    one_run,
    orthogonal_records,
    record_canaries,
    server_canaries,
)
from fedveil_lab.attacks.membership.canaries import coins
from fedveil_studies.own_methods.canaries import Reused, Scaled, audits

M = 1000


# ---- the bounds


def split(scores, inside):
    return scores[inside], scores[~inside]


def test_equal_scores_count_against_the_adversary():
    assert one_run([1.0] * 20, [1.0] * 20).correct == 0
    assert one_run([2.0] * 20, [1.0] * 20).correct == one_run([2.0] * 20, [1.0] * 20).guesses
    assert one_run([1.0] * 20, [2.0] * 20).mu == 0


def test_the_bound_on_epsilon_by_hand():
    # ten of ten right: (e^eps / (1 + e^eps))^10 < .05 up to eps = log(q / (1 - q)) with q = .05^(1/10)
    q = 0.05**0.1
    assert epsilon_bound_of_guesses(10, 10, 10, 0.0, 0.95) == pytest.approx(
        math.log(q / (1 - q)), abs=1e-3
    )
    assert epsilon_bound_of_guesses(5, 10, 10, 0.0, 0.95) == 0
    with_delta = epsilon_bound_of_guesses(10, 10, 10, 1e-3, 0.95)
    assert 0 < with_delta < epsilon_bound_of_guesses(10, 10, 10, 0.0, 0.95)
    # the delta term by its definition: 2 m delta max_i P[correct > B >= correct - i] / i
    law = scipy.stats.binom(10, 1 / (1 + math.exp(-with_delta)))
    worst = max(sum(law.pmf(9 - j) for j in range(i)) / i for i in range(1, 10))
    assert law.sf(8) + 2 * 10 * 1e-3 * worst == pytest.approx(law.sf(8) + 0.02 * worst)
    assert law.sf(9) + 2 * 10 * 1e-3 * max(
        sum(law.pmf(9 - j) for j in range(i)) / i for i in range(1, 11)
    ) == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_bounds_hold_in_19_of_20_runs_and_have_power(mu):
    rng, over, found = np.random.default_rng(0), 0, []
    for _ in range(60):
        inside = rng.random(100) < 0.5
        result = one_run(*split(rng.normal(size=100) + mu * inside, inside), shares=(0.5,))
        over += result.mu > mu
        found.append(result.mu)
    assert over <= 6  # 3 expected at most
    inside = rng.random(4000) < 0.5
    large = one_run(*split(rng.normal(size=4000) + mu * inside, inside))
    assert 0.45 * mu < large.mu < mu
    assert large.mu > np.median(found)
    assert large.mu < large.mu_ceiling


def test_more_right_guesses_prove_more_and_none_prove_nothing():
    bounds = [mu_bound_of_guesses(c, 100, 200, 0.95) for c in range(40, 101, 10)]
    assert bounds == sorted(bounds)
    assert bounds[0] == bounds[1] == 0
    assert bounds[-1] > 1
    rng = np.random.default_rng(0)
    nothing = one_run(*split(rng.normal(size=500), rng.random(500) < 0.5))
    assert nothing.mu < 0.1
    assert nothing.epsilon < 0.2


def test_bad_scores_are_refused():
    with pytest.raises(FieldError, match="canaries"):
        one_run([1.0] * 5, [2.0] * 4)
    with pytest.raises(FieldError, match="right guesses"):
        mu_bound_of_guesses(5, 4, 10, 0.95)


# ---- every promise of the house


@pytest.mark.few(0)
def test_no_promise_is_broken_and_heuristics_promise_nothing():
    client = ("group", "FedRE", "SGA", "static")  # a canary is a client of its own: half as many
    every, half = audits(M), audits(M // 2)
    table = {
        name: (half if name.startswith(client) else every)[name].honest(name) for name in every
    }
    assert len(table) == 20
    for name, verdict in table.items():
        heuristic = "as published" in name
        assert ("declared" in verdict.details) is not heuristic, name
        if not heuristic:
            assert verdict.details["broken"] == 0, name
            assert verdict.point <= verdict.details["declared"], name
            assert verdict.details["independent mu"] <= verdict.details.get("declared mu", np.inf)
    assert table["global DP"].point > 0.4  # of 1: the audit has power
    assert table["global DP"].details["independent mu"] > 0.7
    assert table["static local DP"].point > 0.4
    assert (
        table["metric privacy, as published"].point > 1
    )  # what the published calibration lets through


# ---- planted bugs: the same audit, and the promise is broken

CENTRAL = GlobalDP(noise_multiplier=1.0, clip=1.0)
LOCAL = SGALDP(epsilon_min=5.0, epsilon_max=5.0, similarity="released")


def broken(run, distance=None):
    return audited("planted", run, distance).details["broken"] == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(2))
def test_half_the_noise_is_found(seed):
    run = server_canaries(CENTRAL, M, 10.0, seed=seed, source=Scaled(seed, 0.5))
    assert run.guarantee.mu == pytest.approx(1)
    assert broken(run)
    assert not broken(server_canaries(CENTRAL, M, 10.0, seed=seed))
    assert broken(client_canaries(LOCAL, M // 2, 10, 10.0, seed=seed, source=Scaled(seed, 0.5)))
    assert not broken(client_canaries(LOCAL, M // 2, 10, 10.0, seed=seed))


@pytest.mark.few(0)
def test_half_the_noise_is_found_where_it_follows_the_similarity():
    audit = audits(M // 2, seed=1)["SGA-LDP, released similarity"]
    assert audit.planted("released", audit.bugs[0], 1).details["broken"]


@pytest.mark.slow
def test_half_the_noise_is_found_where_the_similarity_is_noised():
    audit = audits(M, seed=1)["SGA-LDP, noised similarity"]
    assert not audit.honest("noised").details["broken"]
    assert audit.planted("noised", audit.bugs[0], 1).details["broken"]


def test_the_table_finds_its_planted_bugs():
    audit = audits(M)["global DP"]
    for bug in audit.bugs:
        assert audit.planted("global DP", bug, 0).details["broken"], bug


@pytest.mark.parametrize(
    ("name", "canaries"),
    [("global DP, discrete noise", 2000), ("record-level DP, four sampled steps", 2000)],
)
def test_half_the_noise_is_found_by_the_whole_curve_where_one_delta_shows_nothing(name, canaries):
    audit = audits(canaries)[name]
    honest, half = audit.verdicts(name)
    assert honest.details["broken"] == 0
    assert honest.details["beyond the curve"] < 0
    assert half.details["broken"] == 1
    assert half.point < half.details["declared"]  # at delta 1e-5


def test_rates_are_set_beside_a_curve_at_every_delta():
    def result(true, false):
        return GameResult(0.0, 0.0, 0.0, 8, 0.95, (true, false))

    promised = {0.1: 1.0, 0.5: 0.2}
    assert result(0.8, 0.2).beyond(promised.get, (0.1, 0.5)) == pytest.approx(
        math.log(0.7 / 0.2) - 1.0
    )
    assert result(0.9, 0.2).beyond(promised.get, (0.1, 0.5)) == pytest.approx(
        math.log(0.4 / 0.2) - 0.2
    )
    assert result(0.4, 0.2).beyond(promised.get, (0.1, 0.5)) == pytest.approx(
        math.log(0.3 / 0.2) - 1.0
    )
    assert result(0.05, 0.2).beyond(promised.get, (0.1, 0.5)) == -math.inf


def served(side):
    return server_canaries(side, M, 10.0, relation=side.relation, delta=1e-5)


HALVED = {  # with the noise it declares, and with half of it; and the canaries' distance
    "a client replaced": (
        served,
        [GlobalDP(noise_multiplier=z, clip=1.0, relation="replace-one") for z in (2, 1)],
    ),
    "FedAdam": (served, [GlobalDP(FedAdam(), noise_multiplier=z, clip=1.0) for z in (1, 0.5)]),
    "norm bounding": (
        served,
        [GlobalDP(NormBounding(0.5), noise_multiplier=z, clip=1.0) for z in (1, 0.5)],
    ),
    "as printed": (
        served,
        [GlobalDP(noise_multiplier=z, clip=1.0, order="printed") for z in (1, 0.5)],
    ),
    "centred clipping": (
        served,
        [GlobalDP(CentredClipping(1.0, 1), noise_multiplier=z, clip=1.0) for z in (1, 0.5)],
    ),
    "group privacy": (
        lambda side: client_canaries(side, M, 2, 0.5, delta=1e-5),
        [GroupPrivacy(noise_multiplier=nu, radius=0.5) for nu in (5, 2.5)],
    ),
    "FedRE": (  # epsilon 11.8 has half the noise of epsilon 5
        lambda side: client_canaries(side, M // 2, 10, 10.0, delta=1e-5, layer_scores=(1.0, 3.0)),
        [FedRE(epsilon=e, clip=1.0, scores="public") for e in (5.0, 11.8)],
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", HALVED)
def test_half_of_what_is_declared_is_found_in_every_method(name):
    play, (declared, half) = HALVED[name]
    distance = 1.0 if name == "group privacy" else None
    honest = play(declared)
    assert not broken(honest, distance)
    assert broken(replace(play(half), guarantee=honest.guarantee), distance)


@pytest.mark.parametrize("relation", ["zero-out", "add/remove"])
def test_half_the_noise_on_records_is_found(relation):
    side = RecordDP(examples=500, noise_multiplier=2.0, steps=2, relation=relation)
    honest = orthogonal_records(side, M)
    assert honest.guarantee.unit == "record"
    assert honest.guarantee.mu == pytest.approx(math.sqrt(2) / 2)
    assert not broken(honest)
    assert broken(orthogonal_records(side, M, source=Scaled(0, 0.5)))


def test_a_persons_images_are_found_where_each_is_clipped_alone(monkeypatch):
    side = RecordDP(unit="person", people=500, records_per_person=4, noise_multiplier=2.0)
    honest = orthogonal_records(side, M)
    assert (honest.guarantee.unit, honest.guarantee.mu) == ("person", 0.5)
    assert not broken(honest)
    of = Units.of
    monkeypatch.setattr(Units, "of", classmethod(lambda cls, client, images: of(client, 0)))
    assert broken(orthogonal_records(side, M))


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_half_the_noise_on_regions_is_found(relation):
    """The canaries differ in marked content alone."""
    side = RecordDP(unit="region", examples=1000, noise_multiplier=2.0, steps=2, relation=relation)
    honest = orthogonal_records(side, M)
    factor = 2 if relation == "replace-one" else 1
    assert (honest.guarantee.unit, honest.guarantee.mu) == (
        "region",
        pytest.approx(factor * math.sqrt(2) / 2),
    )
    assert not broken(honest)
    assert broken(orthogonal_records(side, M, source=Scaled(0, 0.5)))


@pytest.mark.few(0)
def test_a_persons_regions_are_found_where_each_is_clipped_alone(monkeypatch):
    side = RecordDP(unit="person region", people=1000, records_per_person=4, noise_multiplier=2.0)
    honest = orthogonal_records(side, M)
    assert (honest.guarantee.unit, honest.guarantee.mu) == ("person region", 0.5)
    assert not broken(honest)
    of = Units.of
    monkeypatch.setattr(Units, "of", classmethod(lambda cls, client, images: of(client, 0)))
    assert broken(orthogonal_records(side, M))


def test_the_bound_that_needs_no_independence_finds_it_too():
    run = server_canaries(CENTRAL, 4000, 10.0, source=Scaled(0, 0.5))
    assert run.bound.mu > run.guarantee.mu


def test_no_clipping_is_found(monkeypatch):
    from fedveil.aggregation import Updates
    from fedveil.methods import sga_ldp

    monkeypatch.setattr(Updates, "clipped", lambda self, bound: self)
    run = server_canaries(CENTRAL, M, 10.0)
    assert run.bound.mu > run.guarantee.mu
    monkeypatch.setattr(sga_ldp, "clip", lambda update, bound: update)
    local = client_canaries(LOCAL, M // 2, 10, 10.0)
    assert local.bound.mu > local.guarantee.mu


@pytest.mark.few(1)
@pytest.mark.parametrize("play", ["server", "client"])
def test_a_reused_stream_is_found(play):
    def run(source):
        if play == "server":
            return server_canaries(CENTRAL, M, 10.0, rounds=2, contrast=True, source=source)
        return client_canaries(LOCAL, M // 2, 4, 10.0, rounds=2, contrast=True, source=source)

    assert not broken(run(ReproducibleSource(0)))
    found = run(Reused(0))
    assert broken(found)
    assert found.bound.correct == found.bound.guesses  # the noise cancels


def test_a_canary_that_is_out_sends_nothing_or_the_opposite():
    quiet = Scaled(0, 0.0)
    gone = server_canaries(CENTRAL, 20, 5.0, source=quiet)
    assert torch.equal(gone.inside, coins(20, 0))
    torch.testing.assert_close(
        gone.scores, gone.inside.double() / 20, rtol=1e-5, atol=1e-9
    )  # C / n, clipped
    replaced = server_canaries(
        GlobalDP(noise_multiplier=1.0, clip=1.0, relation="replace-one"),
        20,
        5.0,
        relation="replace-one",
        source=quiet,
    )
    torch.testing.assert_close(
        replaced.scores, (2 * gone.inside.double() - 1) / 20, rtol=1e-5, atol=1e-9
    )
    with pytest.raises(FieldError, match="relation"):
        server_canaries(CENTRAL, 20, 5.0, relation="add/remove")


def test_a_promise_over_distance_needs_the_canaries_distance():
    run = client_canaries(GroupPrivacy(noise_multiplier=5.0, radius=0.5), 100, 2, 0.5)
    with pytest.raises(FieldError, match="distance"):
        audited("group privacy", run)
    assert audited("group privacy", run, 1.0).details["declared"] == pytest.approx(2 / (5 * 0.5))


def test_crafted_records_go_in_by_the_coin():
    data = ClientData(torch.rand(30, 1, 4, 4), torch.randint(0, 3, (30,)))
    mixed, canaries, inside = record_canaries(data, 40, 3)
    assert mixed.examples == 30 + int(inside.sum())
    assert torch.equal(mixed.x[30:], canaries.x[inside])
    assert torch.equal(mixed.y[30:], canaries.y[inside])
    assert 8 < int(inside.sum()) < 32
    assert float(canaries.x.min()) >= float(data.x.min())


def test_crafted_people_go_in_with_all_their_records():
    data = ClientData(torch.rand(30, 4), torch.randint(0, 3, (30,)), person=torch.arange(30) // 2)
    mixed, canaries, inside = record_canaries(data, 40, 3, each=3)
    taken = torch.isin(canaries.person, mixed.person)
    assert torch.equal(taken, inside.repeat_interleave(3))
    assert torch.equal(mixed.x[30:], canaries.x[taken])
    assert not torch.isin(canaries.person, data.person).any()


def test_crafted_records_are_found_in_a_model_without_noise_and_not_under_dp():
    from fedveil import Federation
    from fedveil.learning import LocalTraining, build_model
    from fedveil_lab.attacks.membership import confidence

    generator = torch.Generator().manual_seed(0)
    clients = [
        ClientData(
            torch.rand(10, 1, 8, 8, generator=generator),
            torch.randint(0, 2, (10,), generator=generator),
        )
        for _ in range(2)
    ]
    clients[0], canaries, inside = record_canaries(clients[0], 300, 2)

    def proven(aggregator):
        model = build_model("mlp", input_shape=(1, 8, 8), outputs=2, seed=0, hidden=(256,))
        local = LocalTraining(epochs=30, batch_size=20, lr=0.3)
        federation = Federation(model=model, clients=clients, local=local, method=aggregator)
        guarantee = federation.run(8).guarantee
        odds = confidence(
            federation.learner.model, federation.layout, federation.models, canaries.x, canaries.y
        )[0]
        return one_run(odds[inside], odds[~inside]), guarantee

    clear, _ = proven(None)
    assert clear.mu > 0.5
    noised, guarantee = proven(GlobalDP(noise_multiplier=1.0, clip=1.0))
    assert noised.mu <= guarantee.mu  # a client's promise is one for each of its records
    assert noised.mu < 0.3


@pytest.mark.few(1)
@pytest.mark.parametrize("sum_", ["none", "trusted"])
def test_crafted_people_are_found_under_vacuous_noise_and_not_beyond_what_the_ledgers_add_up_to(
    sum_,
):
    """Through the engine: images of persons who do not exist are trained on, and looked for in the last model."""
    from fedveil import Federation
    from fedveil.learning import LocalTraining, build_model
    from fedveil.methods import build
    from fedveil_lab.attacks.membership import confidence
    from fedveil_lab.attacks.membership.records import of_people

    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.rand(60, 1, 24, 24, generator=generator) - 0.5,
        torch.randint(0, 2, (60,), generator=generator),
    )
    clients = [ClientData(x[i::3], y[i::3], person=torch.arange(60)[i::3] // 6) for i in range(3)]
    clients[0], canaries, inside = record_canaries(clients[0], 200, 2, each=3)

    def proven(noise):
        own = {"silos": 3} if sum_ == "trusted" else {}
        values = {
            "unit": "person",
            "people": 20,
            "records_per_person": 3,
            "clip": 4.0,
            "noise_multiplier": noise,
        }
        method = build("record", sum=sum_, **values, **own)
        model = build_model("logistic", input_shape=(1, 24, 24), outputs=2, seed=0)
        federation = Federation(
            model=model, clients=clients, local=LocalTraining(lr=0.1), method=method
        )
        guarantee = federation.run(60).guarantee
        odds = confidence(
            federation.learner.model, federation.layout, federation.models, canaries.x, canaries.y
        )[0]
        scores = of_people(odds, canaries.person)
        return one_run(scores[inside], scores[~inside]), guarantee

    clear, promised = proven(1e-3)
    assert promised.unit == "person"
    assert clear.mu > 0.5
    noised, guarantee = proven(20.0)
    assert guarantee.mu == pytest.approx(math.sqrt(60) / 20)
    assert noised.mu <= guarantee.mu
