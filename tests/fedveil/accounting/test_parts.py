"""What a promise for one unit is worth to another: parts of a whole, persons at several silos, a policy's costs."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

import fedveil as fv
from fedveil.accounting import (
    Changed,
    Gaussian,
    Guarantee,
    Limits,
    Poisson,
    Policy,
    Spend,
    SumPolicy,
    epsilon,
    epsilon_of_mu,
    guarantee_values,
    total,
)
from fedveil.accounting.bounds import GDP, PLD
from fedveil.accounting.guarantee import silos_condition
from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil.methods import build

DELTA = 1e-5
PEERS = ["ab" * 32, "cd" * 32]


def promise(bound, unit="person", relation="zero-out", trust="local", **more):
    sizes = None if unit == "client" else relation != "add/remove"
    return Guarantee(
        unit=unit,
        relation=relation,
        trust=trust,
        scope="round",
        bound=bound,
        public_size=sizes,
        **more,
    )


def of_a_pair(rate, z, steps, delta=DELTA):
    """Epsilon of steps of (1 - q) N(0) + q N(1) against (1 - q) N(0) + q N(-1), by sums of losses on a grid of its own.

    Losses are rounded to the nearest place, and convolved by FFT.
    """
    x = np.linspace(-14 * z, 14 * z, 2_000_001)
    edges = norm.cdf(x / z), norm.cdf((x - 1) / z), norm.cdf((x + 1) / z)
    nobody, up, down = (np.diff(c) for c in edges)
    first, second = (1 - rate) * nobody + rate * up, (1 - rate) * nobody + rate * down
    middle = (x[1:] + x[:-1]) / 2
    log = np.logaddexp(np.log1p(-rate), math.log(rate) + (2 * middle - 1) / (2 * z * z))
    log -= np.logaddexp(np.log1p(-rate), math.log(rate) + (-2 * middle - 1) / (2 * z * z))
    width, points = 5e-4, 1 << 17
    place = np.round(log / width).astype(int) % points
    mass = np.bincount(place, weights=first, minlength=points)
    spread = np.fft.irfft(np.fft.rfft(mass) ** steps, points)
    loss = (
        np.where(np.arange(points) < points // 2, np.arange(points), np.arange(points) - points)
        * width
    )
    assert second.sum() == pytest.approx(1)
    low, high = 0.0, float(loss.max())
    while high - low > 1e-4:
        at = (low + high) / 2
        lost = float((spread * -np.expm1(np.minimum(at - loss, 0))).sum())
        low, high = (at, high) if lost > delta else (low, at)
    return high


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("rate", "z", "steps"), [(0.05, 1.0, 60), (0.05, 2.0, 100), (0.25, 8.0, 4)]
)
@pytest.mark.parametrize("relation", ["zero-out", "add/remove", "replace-one"])
def test_a_record_of_a_sampled_person_pays_what_a_change_costs(rate, z, steps, relation):
    """It was counted as coming and going twice as loud: 14.9 where 3.8 is true."""
    whole = promise(PLD(((Poisson(rate, Gaussian(z)), steps),)), relation=relation)
    part = whole.of_part("record")
    exact = of_a_pair(rate, z, steps)
    assert part.epsilon(DELTA) == pytest.approx(exact, rel=5e-3)
    assert whole.epsilon(DELTA) <= part.epsilon(DELTA) * (1 + 1e-9)
    assert guarantee_values(whole, DELTA)["epsilon_of_one_record"] == part.epsilon(DELTA)


def test_no_two_contributions_of_a_sampled_unit_are_told_apart_better_than_opposite_ones():
    """Delta at any threshold: over a and b in the ball, in one dimension and in two, a = -b is worst."""
    side = np.linspace(-9, 9, 601)
    x, y = np.meshgrid(side, side)
    cell = (side[1] - side[0]) ** 2
    random = np.random.default_rng(0)

    def told(rate, z, a, b, gamma):
        def density(*at):
            return np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / (2 * z * z)) / (
                2 * math.pi * z * z
            )

        one, other = ((1 - rate) * density(0, 0) + rate * density(*c) for c in (a, b))
        return float(np.maximum(one - gamma * other, 0).sum()) * cell

    for _ in range(60):
        rate, z, gamma = (
            random.uniform(0.01, 0.9),
            random.uniform(0.4, 2),
            math.exp(random.uniform(0, 3)),
        )
        angles, radii = random.uniform(0, 2 * math.pi, 2), random.uniform(0, 1, 2) ** 0.25
        a, b = ((r * math.cos(t), r * math.sin(t)) for r, t in zip(radii, angles, strict=True))
        assert told(rate, z, a, b, gamma) <= told(rate, z, (1, 0), (-1, 0), gamma) + 1e-6


def test_steps_that_change_compose_with_others_and_are_read_back():
    part = promise(PLD(((Poisson(0.1, Gaussian(2.0)), 10), (Gaussian(4.0), 2)))).of_part("record")
    assert dict(part.bound.events) == {Changed(0.1, Gaussian(2.0)): 10, Gaussian(2.0): 2}
    assert Guarantee.from_dict(part.to_dict()) == part
    own = promise(PLD(((Poisson(0.1, Gaussian(2.0)), 10),)), "record")
    both = total([part, own])
    assert part.epsilon(DELTA) < both.epsilon(DELTA) < part.epsilon(DELTA) + own.epsilon(DELTA)
    assert both.meaning().accuracy < 1
    vast = epsilon([(Changed(0.5, Gaussian(1e-4)), 3)], DELTA)
    assert vast == pytest.approx(epsilon_of_mu(2e4 * math.sqrt(3), DELTA))


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_a_part_of_a_client_pays_twice_what_a_client_pays_for_coming(relation):
    client = promise(GDP(1.0), "client", relation)
    for unit in ("record", "person"):
        part = client.of_part(unit)
        assert part.mu == (1.0 if relation == "replace-one" else 2.0)
        assert (silos_condition(1) in part.conditions) == (unit == "person")


@pytest.mark.parametrize(
    ("trust", "grows"), [("local", 2**0.5), ("trusted sum", 2), ("secure sum", 2), ("central", 2)]
)
def test_a_person_at_two_silos_pays_for_both(trust, grows):
    """Mu 1 is epsilon 4.378 of one silo; of two 6.57 without trust, and 9.998 in a sum (sound.md, 3)."""
    alone = promise(GDP(1.0), trust=trust)
    both = alone.of_silos(2)
    assert both.mu == pytest.approx(grows)
    assert both.silos_per_person == 2
    assert silos_condition(2) in both.conditions
    assert "at 2 silos" in both.describe(DELTA)
    assert Guarantee.from_dict(both.to_dict()) == both
    assert both.of_silos(2) == both
    assert both.of_silos(1).mu == both.mu  # what holds for more silos holds for fewer
    assert total([both, alone]).silos_per_person == 1
    with pytest.raises(FieldError, match="silo"):
        promise(GDP(1.0), "record").of_silos(2)
    with pytest.raises(FieldError, match="silos_per_person"):
        promise(GDP(1.0), "record", silos_per_person=2)


def test_a_sampled_person_at_two_silos_is_drawn_twice_apart():
    steps = ((Poisson(0.1, Gaussian(2.0)), 10),)
    alone, summed = promise(PLD(steps)), promise(PLD(steps), trust="trusted sum")
    assert alone.of_silos(2).epsilon(DELTA) == pytest.approx(epsilon([(steps[0][0], 20)], DELTA))
    assert summed.of_silos(2).bound == PLD(steps).of_group(2, "zero-out")


def person(sum_="none", **values):
    shared = {"unit": "person", "people": 2, "records_per_person": 2, "noise_multiplier": 1.0}
    silos = {"trusted": {"silos": 3}, "secure": {"least_sites": 3}}.get(sum_, {})
    return build("record", sum=sum_, **shared, **silos, **values)


POLICIES = {
    "the policy's own": {"silos_per_person": 2},
    "of its sums": {"sum": SumPolicy(peers=PEERS, silos_per_person=2)},
    "both": {"silos_per_person": 2, "sum": SumPolicy(peers=PEERS)},
}


def policy(own, **limits):
    return Policy(
        trust=("local", "trusted sum", "secure sum"), total=Limits(**limits), **POLICIES[own]
    )


@pytest.mark.parametrize("own", POLICIES)
@pytest.mark.parametrize("sum_", ["none", "trusted", "secure"])
def test_a_method_that_allows_for_fewer_silos_than_the_operator_is_refused(sum_, own):
    for said, holds in ((1, False), (2, True), (3, True)):
        spend = person(sum_, silos_per_person=said).client.spend()
        assert spend.guarantee.silos_per_person == said
        trust = spend.guarantee.trust
        why = policy(own, person_mu=9.0).refusal("record", trust, True, spend, ())
        assert (why is None) == holds, why
        assert holds or "silos_per_person" in why


@pytest.mark.parametrize("own", POLICIES)
def test_what_was_spent_for_fewer_silos_is_charged_for_the_operators_number(own):
    """Of ledgers written before the number was, too: it is 1 there."""
    older = person().client.spend()
    assert "silos_per_person" not in older.guarantee.to_dict()
    quoted = person(silos_per_person=2, rate=1.0).client.spend()
    both = math.hypot(2**0.5, quoted.guarantee.mu)
    for room, holds in ((1.001, True), (0.999, False)):
        found = policy(own, person_mu=both * room).refusal("record", "local", True, quoted, [older])
        assert (found is None) == holds


@pytest.mark.parametrize("own", POLICIES)
def test_releases_for_records_and_clients_are_charged_to_a_person_at_all_her_silos(own):
    record = Spend(guarantee=promise(GDP(0.5), "record"), mechanism="gaussian")
    client = Spend(guarantee=promise(GDP(0.5), "client"), mechanism="gaussian")
    limits = {"record_mu": 99.0, "mu": 99.0}
    for spend, cost in ((record, 3 * 0.5 * 2**0.5), (client, 2 * 0.5 * 2**0.5)):
        for room, holds in ((1.001, True), (0.999, False)):
            held = Policy(
                total=Limits(person_mu=cost * room, **limits), records_per_person=3, **POLICIES[own]
            )
            assert (held.refusal("m", "local", True, spend, ()) is None) == holds


def test_a_limit_of_mu_holds_for_sampled_steps_too():
    """A sampled release of epsilon 9 went where an unsampled one of 6.9 was refused."""
    limits = Limits(record_mu=1.0, record_epsilon=10.0)
    dear = Spend(
        guarantee=promise(PLD(((Poisson(0.5, Gaussian(0.5)), 1),)), "record"), mechanism="gaussian"
    )
    cheap = Spend(
        guarantee=promise(PLD(((Poisson(0.01, Gaussian(2.0)), 10),)), "record"),
        mechanism="gaussian",
    )
    assert 4.4 < dear.guarantee.epsilon(DELTA) < 10
    assert Policy(total=limits).refusal("m", "local", True, dear, ()) is not None
    assert Policy(total=limits).refusal("m", "local", True, cheap, ()) is None
    full = Spend(guarantee=promise(GDP(0.999), "record"), mechanism="gaussian")
    assert Policy(total=limits).refusal("m", "local", True, full, [cheap] * 40) is not None


def silo(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(4, 3, generator=generator)
    return ClientData(x, torch.tensor([0, 1, 0, 1]), person=torch.tensor([0, 0, 1, 1]))


@pytest.mark.parametrize("sum_", ["none", "trusted"])
@pytest.mark.parametrize("said", [1, 2])
def test_the_engine_asks_every_release_for_persons(sum_, said):
    held = Policy(
        trust=("local", "trusted sum"),
        total=Limits(person_mu=99.0),
        silos_per_person=2,
        secure_source=False,
    )
    run = fv.Federation(
        model=nn.Linear(3, 2),
        clients=[silo(i) for i in range(3)],
        method=person(sum_, silos_per_person=said),
        budgets=fv.Budgets(policy=held),
        seed=0,
    ).run(1)
    if said == 1:
        assert run.stopped or not run.rounds
    else:
        assert run.guarantee.silos_per_person == 2


def test_a_group_of_which_nearly_all_are_drawn_has_an_epsilon():
    """The library subtracts logarithms there that rounding turns round, and raised: then all count as drawn."""
    steps = ((Poisson(0.999, Gaussian(0.45)), 1),)
    many = promise(PLD(steps), "record").of_group(5)
    assert 0 < many.epsilon(DELTA) <= epsilon([(Gaussian(0.45 / 5), 1)], DELTA) * (1 + 1e-3)
