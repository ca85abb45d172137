"""Poisoning: each attack by hand, its properties, ByzFL's figures, and small federations."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedveil import Federation
from fedveil.aggregation import NNM, FedAvg, FedMedian, GeometricMedian, Krum, MultiKrum, TrimmedMean
from fedveil.attacks.poisoning import (
    ALIE,
    IPM,
    Arena,
    Backdoor,
    FreeRider,
    LabelFlip,
    LyingBudget,
    Match,
    MinMax,
    NoiseAttack,
    Poisoned,
    PullReference,
    Scaling,
    SelectionProbe,
    SignFlip,
    alie,
    flip,
    furthest,
    heat_map,
    ipm,
    measure,
    min_max,
    play,
    rare_clients,
    rules_against,
    stamp,
    success_rate,
    worst,
)
from fedveil.engines.behaviour import Turn
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.methods import SGALDP, Broadcast, PublicFacts

# the figures named ByzFL are of ByzFL 0.0.11 on these six updates
HONEST = torch.tensor([[math.sin(3 * i + j * j + 1) for j in range(4)] for i in range(6)], dtype=torch.float64)


def f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def turn(trained, start, honest=None, released=None, fellows=(0,), round_=1, partition=0, cohort=10):
    trained, start = f64(*trained), f64(*start)
    nobody = torch.zeros(0, len(start), dtype=torch.float64)
    honest = nobody if honest is None else honest
    public = PublicFacts(round=round_, rounds=9, cohort=cohort, dimension=len(start))
    released = honest if released is None else released
    return Turn(partition, Broadcast(models=start[None], public=public), 0, trained, tuple(fellows), honest, released)


# ---- data


def test_a_flip_changes_one_class_alone():
    assert flip(torch.tensor([0, 1, 2, 1]), 1, 2).tolist() == [0, 2, 2, 2]
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
    assert torch.equal(attack.data(ClientData(x, y), 3, 2).x, data.x)  # the same ones in every round
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
    assert Scaling().model(turn(trained, start, fellows=(0, 1), cohort=10)).tolist() == [6, 11]  # 10 / 2 times
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
    assert float((noisy.model(turn([9, 9], [4, 5], round_=2)) - f64(4, 5)).norm()) == pytest.approx(5)
    assert FreeRider(disguise="none").model(turn([9, 9], [3, 2], round_=2)).tolist() == [3, 2]


def test_informed_attacks_agree_with_byzfl():
    np.testing.assert_allclose(ipm(HONEST, 2.0), [-0.1099659, 0.01034965, 0.00913371, 0.13436108], atol=1e-7)
    # its ALIE adds the deviations, the paper's subtracts them: z = -1.5
    np.testing.assert_allclose(alie(HONEST, 2, -1.5), [1.06114728, 1.58660651, 1.58815881, 0.43855166], atol=1e-7)


def test_alie_hides_behind_as_many_as_a_majority_needs():
    # n = 50, f = 12: s = 26 - 12 = 14 of 38 honest ones; z = Phi^-1(24 / 38) = .3360 (the paper prints s and n alike)
    honest = torch.stack([torch.full((1,), v, dtype=torch.float64) for v in torch.linspace(-1, 1, 38).tolist()])
    expected = honest.mean() - 0.33604 * honest.std()
    assert alie(honest, 12).item() == pytest.approx(expected.item(), rel=1e-3)
    # five of eleven need one of six: z = Phi^-1(5 / 6)
    torch.testing.assert_close(alie(HONEST, 5), HONEST.mean(0) - 0.967422 * HONEST.std(0), rtol=1e-5, atol=1e-6)


@given(st.integers(2, 8), st.integers(1, 4), st.integers(0, 1000), st.sampled_from(["mean", "std", "sign"]))
def test_min_max_goes_as_far_as_the_honest_diameter_and_no_further(h, d, seed, direction):
    honest = torch.randn(h, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.3
    vector, mean = min_max(honest, direction), honest.mean(0)
    diameter = torch.cdist(honest, honest).max()
    assert float((vector - honest).norm(dim=1).max()) == pytest.approx(float(diameter), rel=1e-6)
    further = mean + 1.01 * (vector - mean)
    assert float((further - honest).norm(dim=1).max()) > float(diameter)


def test_the_strongest_factor_is_that_of_the_rule():
    def moved(vector, rule):
        rows = torch.cat([HONEST, vector.expand(2, -1)])
        return float((rule.reduce(rows, torch.full((8,), 1 / 8, dtype=torch.float64)) - HONEST.mean(0)).norm())

    for rule in (FedAvg(), FedMedian(), Krum(malicious=2), GeometricMedian(), TrimmedMean(0.25)):
        vector, factor = furthest(lambda f: ipm(HONEST, f), HONEST, 2, rule)
        grid = [moved(ipm(HONEST, f), rule) for f in np.geomspace(0.1, 60, 200)]
        assert moved(vector, rule) >= 0.97 * max(grid)
        assert torch.equal(vector, ipm(HONEST, factor))
    # against a mean longer is better; Krum drops what is far off
    assert furthest(lambda f: ipm(HONEST, f), HONEST, 2, FedAvg())[1] > 50


def test_all_fellows_send_one_vector_and_follow_what_they_see():
    clean, noisy = HONEST, HONEST + 1
    first = turn([0] * 4, [0] * 4, clean, noisy, fellows=(0, 1))
    second = turn([5] * 4, [0] * 4, clean, noisy, fellows=(0, 1), partition=1)
    attack = IPM()
    assert torch.equal(attack.model(first), attack.model(second))
    torch.testing.assert_close(attack.model(first), -clean.mean(0))
    torch.testing.assert_close(IPM(bypass=True).model(first), -noisy.mean(0))
    fresh = turn([0] * 4, [0] * 4, clean.flip(0) * 2, noisy, fellows=(0, 1))
    torch.testing.assert_close(attack.model(fresh), -2 * clean.mean(0))  # of the same round number in another run
    for made in (ALIE(), IPM(), MinMax()):
        assert made.omniscient
        assert made.model(turn([0] * 4, [0] * 4, clean[:1])) is None


def test_lying_about_the_budget_leaves_the_noise_out():
    sent = LyingBudget(clip=1.0).model(turn([30.0, 40.0], [0.0, 0.0]))
    assert sent.tolist() == pytest.approx([0.6, 0.8], rel=2e-6)
    noisy = torch.stack(
        [LyingBudget(clip=1.0, sigma=2.0, seed=s).model(turn([0.0] * 50, [0.0] * 50)) for s in range(40)]
    )
    assert float(noisy.std()) == pytest.approx(2.0, rel=0.05)
    assert LyingBudget(clip=1.0).bypass


def test_pulling_keeps_one_direction_of_full_length():
    attack = PullReference(clip=2.0)
    first = attack.model(turn([3.0, 0.0], [0.0, 0.0], round_=1))
    assert first.tolist() == [2, 0]
    assert attack.model(turn([0.0, 9.0], [0.0, 0.0], round_=1, partition=1)).tolist() == [2, 0]  # fellows agree
    then = attack.model(turn([1.0, 5.0], [1.0, 1.0], round_=2)) - 1
    assert then.tolist() == pytest.approx([math.sqrt(2), math.sqrt(2)])  # between (1, 0) and its own (0, 4)
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


def test_a_verdict_gives_the_clean_rate_recall_and_accuracy():
    runs = [Poisoned(s, 1 - s, 0.8, 50) for s in (0.5, 0.6, 0.7)]
    clean = [Poisoned(0.1, 0.9, 0.9, 50)] * 3
    verdict = success_rate("label flip", "median", runs, clean, [Poisoned(0.9, 0.1, 0.8, 50)])
    assert verdict.point == pytest.approx(0.6)
    assert verdict.high - verdict.point == pytest.approx(4.3027 * 0.1 / math.sqrt(3), rel=1e-4)
    assert verdict.details["gain"] == pytest.approx(0.5)
    assert verdict.details["source recall"] == pytest.approx(0.4)
    assert (verdict.n, verdict.replication, verdict.valid) == (3, "one run", True)
    single = success_rate("label flip", "median", runs[:1], clean[:1], [Poisoned(0.15, 0.1, 0.8, 50)])
    assert (single.low, single.high) == pytest.approx((0.3553, 0.6447), abs=1e-3)  # Clopper and Pearson, 25 of 50
    assert single.valid is False


def test_rare_clients_are_those_with_other_classes():
    def client(*labels):
        return ClientData(torch.zeros(len(labels), 1), torch.tensor(labels))

    clients = [client(0, 1), client(0, 1, 1), client(0, 0, 1), client(2, 2), client(0, 1)]
    assert rare_clients(clients, range(5), 3) == [3]
    assert rare_clients(clients, [0, 1, 2, 4], 3) != [3]


# ---- federations


@pytest.fixture(scope="module")
def arena():
    """Ten clients on three separable classes of small images, two of them malicious."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(900) % 3
    x = 0.2 * torch.rand(900, 1, 4, 4, generator=generator)
    x[torch.arange(900), 0, y, y] += 0.8
    clients = [ClientData(x[i:600:10], y[i:600:10]) for i in range(10)]
    return Arena(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
        clients=clients,
        malicious=(1, 6),
        validation=(x[600:700], y[600:700]),
        test=(x[700:850], y[700:850]),
        classes=3,
        rounds=6,
        local=LocalTraining(epochs=2, batch_size=10, lr=0.5),
        public=ClientData(x[850:], y[850:]),
    )


ATTACKS = {
    "backdoor": lambda rule: Scaling(of=Backdoor(target=0, classes=3, size=1)),
    "sign flip": lambda rule: SignFlip(factor=10.0),
    "ipm": lambda rule: IPM(rule=rule),
}


def test_the_worst_attack_beats_the_mean_and_not_robust_rules(arena):
    rules = {"mean": FedAvg(), "krum": Krum(malicious=2), "geometric median": GeometricMedian()}
    matches = play(arena, rules, ATTACKS, [0])
    assert len(matches) == 3 * (1 + 3 + 1)  # nobody, three attacks, nobody on the backdoor's goal
    found = worst(matches)
    assert found["mean"].accuracy < 0.5
    assert found["krum"].accuracy > 0.9
    assert found["geometric median"].accuracy > 0.9
    harmful = worst(matches, "success")
    assert {w.attack for w in harmful.values()} == {"backdoor"}
    assert harmful["mean"].success > 0.9
    assert harmful["krum"].success < 0.1
    clean = {m.rule: m.test for m in matches if m.attack == "nobody: backdoor"}
    assert all(c.success < 0.1 and c.accuracy > 0.9 for c in clean.values())
    scaled = next(m.test for m in matches if (m.rule, m.attack) == ("krum", "sign flip"))
    assert scaled.malicious_share == 0
    assert scaled.honest_rejected == pytest.approx(7 / 8)  # Krum uses one of eight


def test_the_worst_attack_is_chosen_on_validation_and_told_on_test():
    def ended(accuracy):
        return Poisoned(1 - accuracy, accuracy, accuracy, 9)

    matches = [
        Match(rule="mean", attack=name, seed=0, targeted=False, validation=ended(v), test=ended(t))
        for name, v, t in (("a", 0.5, 0.8), ("b", 0.6, 0.2))
    ]
    assert worst(matches)["mean"].attack == "a"
    assert worst(matches)["mean"].accuracy == 0.8
    with pytest.raises(FieldError, match="targeted"):
        worst(matches, "success")


def test_every_attack_plays_against_every_rule(arena):
    attacks = {
        "flip": lambda rule: LabelFlip(source=0, target=1, classes=3),
        "noise": lambda rule: NoiseAttack(),
        "alie": lambda rule: ALIE(rule=rule),
        "min max": lambda rule: MinMax(direction="std"),
        "rider": lambda rule: FreeRider(),
        "liar": lambda rule: LyingBudget(clip=1.0, of=LabelFlip(source=0, target=1, classes=3)),
        "pull": lambda rule: PullReference(clip=1.0),
    }
    rules = rules_against(2, 10, 1.0)
    assert "bulyan" not in rules  # needs eleven
    matches = play(replace(arena, rounds=2), rules, attacks, [3])
    assert len(rules) == 13
    assert len(matches) == len(rules) * (1 + 7 + 2)  # nobody, seven, and nobody on two goals
    assert all(0 <= m.test.accuracy <= 1 for m in matches)


def test_the_heat_map_tells_where_a_rule_refuses(arena):
    cells = heat_map(
        lambda share, alpha: replace(arena, malicious=range(round(10 * share)), rounds=1),
        lambda n, f: {"median": FedMedian(), "krum": Krum(malicious=f)},
        {"noise": lambda rule: NoiseAttack()},
        [0.2, 0.4],
        [1.0],
        [0],
    )
    assert [(c.rule, c.share, c.worst is None) for c in cells] == [
        ("median", 0.2, False),
        ("krum", 0.2, False),
        ("median", 0.4, False),
        ("krum", 0.4, True),
    ]
    assert "at most 3 among 10" in cells[-1].refused


def test_an_arena_without_honest_clients_is_refused(arena):
    with pytest.raises(FieldError, match="honest"):
        replace(arena, malicious=range(10))


def test_pulling_the_reference_starves_honest_clients_of_budget(arena):
    # without noise to speak of (a budget of millions), so that the test is about the reference alone
    def budgets(behaviours):
        side = SGALDP(epsilon_min=1e7, epsilon_max=5e7, clip=1.0)
        federation = Federation(
            model=arena.model, clients=arena.clients, method=side, local=arena.local, behaviours=behaviours, seed=0
        )
        scales = [r.client_scales for r in federation.run(6).rounds]
        return np.mean([s[p][0] for s in scales[2:] for p in s if p not in (1, 6)])

    attack = PullReference(clip=1.0, of=LabelFlip(source=0, target=1, classes=3))
    assert budgets({1: attack, 6: attack}) > 1.02 * budgets({})


def test_honest_clients_rejected_under_local_noise_are_counted(arena):
    # static local DP at epsilon 5: the rule sees noise, and drops honest clients as often as malicious ones
    noised = replace(arena, privacy=lambda: SGALDP(epsilon_min=5.0, epsilon_max=5.0, similarity="released"))
    rules = {"multi-krum": MultiKrum(malicious=2, selected=5)}
    attacks = {"sign flip": lambda rule: SignFlip(factor=10.0)}
    plain, hidden = (
        next(m.test for m in play(place, rules, attacks, [0]) if m.attack == "sign flip") for place in (arena, noised)
    )
    assert plain.malicious_share == 0
    assert plain.honest_rejected == pytest.approx(3 / 8)  # five of the eight are used
    assert hidden.malicious_share > 0.05
    assert hidden.honest_rejected > 3 / 8
    assert hidden.accuracy < plain.accuracy


@pytest.mark.data
def test_on_blood_cells_a_robust_rule_outlives_its_worst_attack_and_the_mean_does_not():
    from fedveil.data.dealing import partition
    from fedveil.data.files import MissingDataError
    from fedveil.data.named import load_bloodmnist

    try:
        cells = load_bloodmnist(split="val", scale="standard")
    except MissingDataError as error:
        pytest.skip(str(error))
    draw = torch.Generator().manual_seed(0)
    few = torch.randperm(len(cells.x), generator=draw)[:1500]
    x, y = nn.functional.avg_pool2d(cells.x, 4), cells.y  # [3, 7, 7]
    tx, ty = nn.functional.avg_pool2d(cells.test_x, 4), cells.test_y
    parts = partition(y[few].numpy(), 15, "dirichlet", alpha=100.0, seed=0)
    place = Arena(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(147, 8)),
        clients=[ClientData(x[few][p], y[few][p]) for p in parts],
        malicious=(0, 4, 9),
        validation=(tx[:800], ty[:800]),
        test=(tx[800:], ty[800:]),
        classes=8,
        rounds=12,
        local=LocalTraining(epochs=5, batch_size=16, lr=0.1),
    )
    attacks = {
        "neutrophil to lymphocyte": lambda rule: LabelFlip(source=6, target=4, classes=8),
        "sign flip": lambda rule: SignFlip(factor=10.0),
    }
    rules = {"mean": FedAvg(), "nnm": NNM(TrimmedMean(0.2), malicious=3)}
    matches = play(place, rules, attacks, [0])
    clean = {m.rule: m.test for m in matches if m.attack == "nobody: neutrophil to lymphocyte"}
    assert min(c.accuracy for c in clean.values()) > 0.6
    found = worst(matches)
    assert found["mean"].accuracy < 0.2
    assert found["nnm"].accuracy > 0.6
    flipped = next(m.test for m in matches if (m.rule, m.attack) == ("mean", "neutrophil to lymphocyte"))
    assert flipped.success > clean["mean"].success + 0.1
    assert next(m.test for m in matches if (m.rule, m.attack) == ("nnm", "neutrophil to lymphocyte")).success < 0.05


def test_the_probe_counts_whom_a_rule_left_out(arena):
    probe = SelectionProbe(Krum(malicious=2), arena.malicious, rare=(0,))
    federation = Federation(model=arena.model, clients=arena.clients, method=Krum(malicious=2), probes=[probe])
    figures = federation.run(1).rounds[0].figures
    assert set(figures) == {"honest_rejected", "rare_rejected", "malicious_share"}
    assert figures["honest_rejected"] in (pytest.approx(7 / 8), 1.0)
    assert SelectionProbe(FedMedian(), (), ()).figures == ()
