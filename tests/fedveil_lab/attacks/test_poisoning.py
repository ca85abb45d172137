"""Poisoning: each attack by hand, its properties, ByzFL's figures, and small federations."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedveil import Federation
from fedveil.aggregation import (
    NNM,
    Bucketing,
    CentredClipping,
    FedAvg,
    FedMedian,
    FLTrust,
    GeometricMedian,
    Krum,
    MultiKrum,
    NormBounding,
    TrimmedMean,
)
from fedveil.engines import Evaluation, Shared
from fedveil.engines.malicious import Turn
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.methods import SGALDP, Broadcast, PublicFacts, paired
from fedveil_lab.attacks.poisoning import (
    ALIE,
    IPM,
    Backdoor,
    FreeRider,
    LabelFlip,
    LyingBudget,
    MinMax,
    NoiseAttack,
    PullReference,
    Scaling,
    SignFlip,
    furthest,
    measure,
    stamp,
)
from fedveil_studies.robust_rules.selection import SelectionProbe, rare_clients

# the figures named ByzFL are of ByzFL 0.0.11 on these six updates
HONEST = torch.tensor(
    [[math.sin(3 * i + j * j + 1) for j in range(4)] for i in range(6)], dtype=torch.float64
)


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def turn(
    trained, start, honest=None, released=None, fellows=(0,), round_=1, partition=0, cohort=10
):
    trained, start = f64(*trained), f64(*start)
    nobody = torch.zeros(0, len(start), dtype=torch.float64)
    honest = nobody if honest is None else honest
    public = PublicFacts(round=round_, rounds=9, cohort=cohort, dimension=len(start))
    released = honest if released is None else released
    return Turn(
        partition,
        Broadcast(models=start[None], public=public),
        0,
        trained,
        tuple(fellows),
        honest,
        released,
    )


# ---- data


def test_a_flip_changes_one_class_alone():
    data = ClientData(torch.randn(4, 3), torch.tensor([0, 1, 2, 1]))
    attack = LabelFlip(source=1, target=0, classes=3)
    assert attack.data(data, 0, 1).y.tolist() == [0, 0, 2, 0]
    assert data.y.tolist() == [0, 1, 2, 1]
    goal = attack.goal(data.x, data.y)
    assert (goal.y.tolist(), goal.target) == ([1, 1], 0)


@pytest.mark.parametrize("pair", [(3, 0), (0, 3), (1, 1), (-1, 0)])
def test_a_pair_of_classes_that_does_not_exist_is_refused(pair):
    with pytest.raises(FieldError):
        LabelFlip(source=pair[0], target=pair[1], classes=3)
    with pytest.raises(FieldError, match="no example"):
        LabelFlip(source=1, target=0, classes=3).goal(torch.zeros(1, 2), torch.tensor([0]))


def test_a_backdoor_stamps_a_share_of_the_other_classes():
    x = torch.zeros(8, 1, 4, 4)
    y = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2])
    attack = Backdoor(target=0, classes=3, size=2, value=0.9, stamped=0.5)
    data = attack.data(ClientData(x, y), 3, 1)
    stamped = (data.x[:, 0, 2:, 2:] == 0.9).all(-1).all(-1)
    assert int(stamped.sum()) == 3  # half of six
    assert not stamped[:2].any()
    assert data.y[stamped].tolist() == [0] * 3
    assert torch.equal(data.y[~stamped], y[~stamped])
    assert float(data.x.sum()) == pytest.approx(3 * 4 * 0.9)
    assert torch.equal(
        attack.data(ClientData(x, y), 3, 2).x, data.x
    )  # the same ones in every round
    goal = attack.goal(x, y)
    assert len(goal.x) == 6
    assert torch.equal(goal.x, stamp(x[2:], 2, 0.9))
    with pytest.raises(FieldError, match="size"):
        stamp(torch.zeros(2, 5), 2, 1.0)


# ---- vectors


def test_blind_attacks_by_hand():
    start, trained = [1.0, 1.0], [2.0, 3.0]
    assert SignFlip(factor=2.0).model(turn(trained, start)).tolist() == [-1, -3]
    assert Scaling(factor=3.0).model(turn(trained, start)).tolist() == [4, 7]
    assert Scaling().model(turn(trained, start, fellows=(0, 1), cohort=10)).tolist() == [
        6,
        11,
    ]  # 10 / 2 times
    sent = NoiseAttack(factor=2.0).model(turn(trained, start)) - 1
    assert float(sent.norm()) == pytest.approx(2 * math.sqrt(5))
    other = NoiseAttack(factor=2.0).model(turn(trained, start, partition=1)) - 1
    assert not torch.allclose(sent, other)


def test_model_replacement_replaces_the_mean():
    honest = torch.randn(8, 5, dtype=torch.float64) * 1e-3
    start, trained = torch.zeros(5), torch.arange(5.0)
    sent = Scaling().model(turn(trained.tolist(), start.tolist(), fellows=(0, 1), cohort=10))
    updates = torch.cat([honest, sent.expand(2, 5)])
    mean = FedAvg().reduce(updates, torch.full((10,), 0.1, dtype=torch.float64))
    torch.testing.assert_close(mean, trained.double(), atol=2e-3, rtol=0)


def test_a_free_rider_sends_the_last_global_change():
    rider = FreeRider()
    assert rider.model(turn([9, 9], [1, 1], round_=1)).tolist() == [1, 1]
    assert rider.model(turn([9, 9], [3, 2], round_=2)).tolist() == [5, 3]
    assert rider.model(turn([9, 9], [4, 4], round_=4)).tolist() == [4, 4]  # it missed a round
    noisy = FreeRider(disguise="noise")
    noisy.model(turn([9, 9], [1, 1], round_=1))
    assert float((noisy.model(turn([9, 9], [4, 5], round_=2)) - f64(4, 5)).norm()) == pytest.approx(
        5
    )
    assert FreeRider(disguise="none").model(turn([9, 9], [3, 2], round_=2)).tolist() == [3, 2]


def test_informed_attacks_agree_with_byzfl():
    np.testing.assert_allclose(
        IPM(factor=2.0).vector(HONEST, 2),
        [-0.1099659, 0.01034965, 0.00913371, 0.13436108],
        atol=1e-7,
    )
    # its ALIE adds the deviations, the paper's subtracts them: z = -1.5
    np.testing.assert_allclose(
        ALIE(z=-1.5).vector(HONEST, 2), [1.06114728, 1.58660651, 1.58815881, 0.43855166], atol=1e-7
    )


def test_alie_hides_behind_as_many_as_a_majority_needs():
    # n = 50, f = 12: s = 26 - 12 = 14 of 38 honest ones; z = Phi^-1(24 / 38) = .3360 (the paper prints s and n alike)
    honest = torch.stack(
        [torch.full((1,), v, dtype=torch.float64) for v in torch.linspace(-1, 1, 38).tolist()]
    )
    expected = honest.mean() - 0.33604 * honest.std()
    assert ALIE().vector(honest, 12).item() == pytest.approx(expected.item(), rel=1e-3)
    # five of eleven need one of six: z = Phi^-1(5 / 6)
    torch.testing.assert_close(
        ALIE().vector(HONEST, 5), HONEST.mean(0) - 0.967422 * HONEST.std(0), rtol=1e-5, atol=1e-6
    )


@given(
    st.integers(2, 8),
    st.integers(1, 4),
    st.integers(0, 1000),
    st.sampled_from(["mean", "std", "sign"]),
)
def test_min_max_goes_as_far_as_the_honest_diameter_and_no_further(h, d, seed, direction):
    honest = (
        torch.randn(h, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.3
    )
    vector, mean = MinMax(direction=direction).vector(honest, 2), honest.mean(0)
    diameter = torch.cdist(honest, honest).max()
    assert float((vector - honest).norm(dim=1).max()) == pytest.approx(float(diameter), rel=1e-6)
    further = mean + 1.01 * (vector - mean)
    assert float((further - honest).norm(dim=1).max()) > float(diameter)


def test_the_strongest_factor_is_that_of_the_rule():
    def minus(factor):
        return IPM(factor=factor).vector(HONEST, 2)

    def moved(vector, rule):
        rows = torch.cat([HONEST, vector.expand(2, -1)])
        return float(
            (
                rule.reduce(rows, torch.full((8,), 1 / 8, dtype=torch.float64)) - HONEST.mean(0)
            ).norm()
        )

    for rule in (FedAvg(), FedMedian(), Krum(malicious=2), GeometricMedian(), TrimmedMean(0.25)):
        vector, factor = IPM(rule=rule).vector(HONEST, 2), furthest(minus, HONEST, 2, rule)
        grid = [moved(minus(f), rule) for f in np.geomspace(0.1, 60, 200)]
        assert moved(vector, rule) >= 0.97 * max(grid)
        assert torch.equal(vector, minus(factor))
    # against a mean longer is better; Krum drops what is far off
    assert furthest(minus, HONEST, 2, FedAvg()) > 50


def test_all_fellows_send_one_vector_and_follow_what_they_see():
    clean, noisy = HONEST, HONEST + 1
    first = turn([0] * 4, [0] * 4, clean, noisy, fellows=(0, 1))
    second = turn([5] * 4, [0] * 4, clean, noisy, fellows=(0, 1), partition=1)
    attack = IPM()
    assert torch.equal(attack.model(first), attack.model(second))
    torch.testing.assert_close(attack.model(first), -clean.mean(0))
    torch.testing.assert_close(IPM(bypass=True).model(first), -noisy.mean(0))
    fresh = turn([0] * 4, [0] * 4, clean.flip(0) * 2, noisy, fellows=(0, 1))
    torch.testing.assert_close(
        attack.model(fresh), -2 * clean.mean(0)
    )  # of the same round number in another run
    for made in (ALIE(), IPM(), MinMax()):
        assert made.omniscient
        assert made.model(turn([0] * 4, [0] * 4, clean[:1])) is None


def test_lying_about_the_budget_leaves_the_noise_out():
    sent = LyingBudget(clip=1.0).model(turn([30.0, 40.0], [0.0, 0.0]))
    assert sent.tolist() == pytest.approx([0.6, 0.8], rel=2e-6)
    noisy = torch.stack(
        [
            LyingBudget(clip=1.0, sigma=2.0, seed=s).model(turn([0.0] * 50, [0.0] * 50))
            for s in range(40)
        ]
    )
    assert float(noisy.std()) == pytest.approx(2.0, rel=0.05)
    assert LyingBudget(clip=1.0).bypass


def test_pulling_keeps_one_direction_of_full_length():
    attack = PullReference(clip=2.0)
    first = attack.model(turn([3.0, 0.0], [0.0, 0.0], round_=1))
    assert first.tolist() == [2, 0]
    assert attack.model(turn([0.0, 9.0], [0.0, 0.0], round_=1, partition=1)).tolist() == [
        2,
        0,
    ]  # fellows agree
    then = attack.model(turn([1.0, 5.0], [1.0, 1.0], round_=2)) - 1
    assert then.tolist() == pytest.approx(
        [math.sqrt(2), math.sqrt(2)]
    )  # between (1, 0) and its own (0, 4)
    assert attack.model(turn([0.0, 1.0], [0.0, 0.0], round_=1)).tolist() == [0, 2]  # another run


# ---- how far it got


def test_rates_by_hand():
    model = nn.Linear(2, 3, bias=False)
    layout = Layout.from_module(model)
    vector = torch.tensor(
        [[1.0, 0], [0, 1.0], [-1, -1]]
    ).flatten()  # says the larger coordinate, or 2 for negative ones
    x = torch.tensor([[2.0, 1], [1, 2], [1, 3], [-1, -1]])
    y = torch.tensor([0, 0, 1, 2])
    goal = LabelFlip(source=0, target=1, classes=3).goal(x, y)
    found = measure(model, layout, vector, x, y, goal)
    assert (found.success, found.recall, found.accuracy, found.examples) == (0.5, 0.5, 0.75, 2)
    blind = measure(model, layout, vector, x, y)
    assert (blind.success, blind.recall, blind.accuracy) == (0.25, 0.75, 0.75)


def test_rare_clients_are_those_with_other_classes():
    def client(*labels):
        return ClientData(torch.zeros(len(labels), 1), torch.tensor(labels))

    clients = [client(0, 1), client(0, 1, 1), client(0, 0, 1), client(2, 2), client(0, 1)]
    assert rare_clients(clients, range(5), 3) == [3]
    assert rare_clients(clients, [0, 1, 2, 4], 3) != [3]


# ---- federations


@dataclass(frozen=True)
class Place:
    """Ten clients on three separable classes of small images, two of them malicious."""

    clients: list
    test: tuple
    public: ClientData
    local: LocalTraining
    malicious: tuple = (1, 6)

    @staticmethod
    def model():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))

    def run(self, rule, behaviour=None, rounds=6, privacy=None, watch=None):
        """The federation, and the means of the rule's choices over the rounds."""
        probe = SelectionProbe(rule, self.malicious if behaviour else (), ())
        federation = Federation(
            model=self.model,
            clients=self.clients,
            method=paired(privacy, rule) if privacy else rule,
            local=self.local,
            seed=0,
            shared=Shared(public_data=self.public),
            behaviours=dict.fromkeys(self.malicious, behaviour) if behaviour else {},
            evaluation=Evaluation(probes=[probe]),
        )
        records = federation.run(rounds).rounds
        rows = [r.figures for r in records]
        if watch is not None:
            watch.extend(records)
        return federation, {name: np.mean([row[name] for row in rows]) for name in probe.figures}

    def measured(self, federation, goal=None):
        return measure(
            federation.learner.model, federation.layout, federation.models[0], *self.test, goal
        )


@pytest.fixture(scope="module")
def place():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(900) % 3
    x = 0.2 * torch.rand(900, 1, 4, 4, generator=generator)
    x[torch.arange(900), 0, y, y] += 0.8
    clients = [ClientData(x[i:600:10], y[i:600:10]) for i in range(10)]
    local = LocalTraining(epochs=2, batch_size=10, lr=0.5)
    return Place(clients, (x[700:850], y[700:850]), ClientData(x[850:], y[850:]), local)


def test_attacks_that_ruin_the_mean_leave_robust_rules_standing(place):
    rules = {"mean": FedAvg(), "krum": Krum(malicious=2)}
    left = {
        n: place.measured(place.run(rule, SignFlip(factor=10.0))[0]).accuracy
        for n, rule in rules.items()
    }
    tuned = {
        n: place.measured(place.run(rule, IPM(rule=rule))[0]).accuracy for n, rule in rules.items()
    }
    assert max(left["mean"], tuned["mean"]) < 0.5
    assert min(left["krum"], tuned["krum"]) > 0.9
    backdoor = Scaling(of=Backdoor(target=0, classes=3, size=1))
    goal = backdoor.goal(*place.test)
    success = {n: place.measured(place.run(rules[n], backdoor)[0], goal).success for n in rules}
    assert success["mean"] > 0.9
    assert success["krum"] < 0.1
    assert place.measured(place.run(FedAvg())[0], goal).success < 0.1  # the clean rate
    shares = place.run(rules["krum"], SignFlip(factor=10.0))[1]
    assert shares["malicious_share"] == 0
    assert shares["honest_rejected"] == pytest.approx(7 / 8)  # Krum uses one of eight


def test_every_attack_plays_against_every_rule(place):
    attacks = [
        lambda rule: LabelFlip(source=0, target=1, classes=3),
        lambda rule: NoiseAttack(),
        lambda rule: ALIE(rule=rule),
        lambda rule: MinMax(direction="std"),
        lambda rule: FreeRider(),
        lambda rule: LyingBudget(clip=1.0, of=LabelFlip(source=0, target=1, classes=3)),
        lambda rule: PullReference(clip=1.0),
    ]
    trimmed = TrimmedMean(0.25)
    rules = [
        FedMedian(),
        trimmed,
        MultiKrum(malicious=2, selected=8),
        CentredClipping(1.0),
        NormBounding(1.0),
    ]
    rules += [FLTrust(), NNM(trimmed, malicious=2), Bucketing(GeometricMedian(), size=2)]
    for rule in rules:
        for attack in attacks:
            assert 0 <= place.measured(place.run(rule, attack(rule), rounds=1)[0]).accuracy <= 1


def test_a_rule_refuses_more_malicious_clients_than_it_bears(place):
    with pytest.raises(FieldError, match="at most 3 among 10"):
        place.run(Krum(malicious=4), NoiseAttack(), rounds=1)


def test_a_client_that_sends_nan_is_left_out_and_the_round_goes_on(place):
    class Broken(NoiseAttack):
        def model(self, turn):
            return torch.full_like(turn.start, float("nan"))

    seen = []
    federation, _ = place.run(FedAvg(), Broken(), watch=seen)
    assert all(sorted(record.round.used) == [0, 2, 3, 4, 5, 7, 8, 9] for record in seen)
    assert place.measured(federation).accuracy > 0.9


def test_pulling_the_reference_starves_honest_clients_of_budget(place):
    # without noise to speak of (a budget of millions), so that the test is about the reference alone
    def budgets(behaviours):
        side = SGALDP(epsilon_min=1e7, epsilon_max=5e7, clip=1.0)
        federation = Federation(
            model=place.model,
            clients=place.clients,
            method=side,
            local=place.local,
            behaviours=behaviours,
            seed=0,
        )
        scales = [r.client_scales for r in federation.run(6).rounds]
        return np.mean([s[p][0] for s in scales[2:] for p in s if p not in (1, 6)])

    attack = PullReference(clip=1.0, of=LabelFlip(source=0, target=1, classes=3))
    assert budgets({1: attack, 6: attack}) > 1.02 * budgets({})


def test_honest_clients_rejected_under_local_noise_are_counted(place):
    # static local DP at epsilon 5: the rule sees noise, and drops honest clients as often as malicious ones
    rule, attack = MultiKrum(malicious=2, selected=5), SignFlip(factor=10.0)
    noise = SGALDP(epsilon_min=5.0, epsilon_max=5.0, similarity="released")
    (clear, plain), (hidden, noised) = (
        place.run(rule, attack, privacy=privacy) for privacy in (None, noise)
    )
    assert plain["malicious_share"] == 0
    assert plain["honest_rejected"] == pytest.approx(3 / 8)  # five of the eight are used
    assert noised["malicious_share"] > 0.05
    assert noised["honest_rejected"] > 3 / 8
    assert place.measured(hidden).accuracy < place.measured(clear).accuracy


def test_the_probe_counts_whom_a_rule_left_out(place):
    figures = place.run(Krum(malicious=2), rounds=1)[1]
    assert set(figures) == {"honest_rejected", "rare_rejected", "malicious_share"}
    assert figures["honest_rejected"] == pytest.approx(
        0.9
    )  # one of ten is used, and all are honest
    assert SelectionProbe(FedMedian(), (), ()).figures == ()
