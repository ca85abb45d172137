"""Claims are read or refused; steps as described are composed, or nothing is proven."""

import math

import pytest

from fedveil.accounting import Gaussian, Poisson, epsilon, epsilon_of_mu, mu_of_epsilon
from fedveil.errors import FieldError
from fedveil_lab.verify import MechanismSteps, PrivacyClaim, prove
from fedveil_lab.verify.judged import COMPOSITION, INSPECTION, described_alone

WORDS = "zero-out client total central"
CLAIM = PrivacyClaim.parse(f"eps=2 delta=1e-5 {WORDS}")


def test_a_claim_is_read_in_any_order():
    one = PrivacyClaim.parse("central total client zero-out, delta=1e-5, epsilon=2")
    assert one == CLAIM
    assert PrivacyClaim.parse(one.describe()) == one
    assert one.figure == "epsilon"
    gaussian = PrivacyClaim.parse(f"ε=2 delta=1e-5 {WORDS} gaussian")
    assert (gaussian.figure, gaussian.most) == ("mu", mu_of_epsilon(2, 1e-5))
    assert PrivacyClaim.parse(f"mu=0.5 {WORDS}").epsilon_at(1e-5) == epsilon_of_mu(0.5, 1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "eps=2",
        f"eps=2 {WORDS}",
        f"delta=1e-5 {WORDS}",
        f"eps=2 mu=1 delta=1e-5 {WORDS}",
        f"mu=1 delta=1e-5 {WORDS}",
        f"eps=two delta=1e-5 {WORDS}",
        f"eps=-2 delta=1e-5 {WORDS}",
        f"eps=2 delta=1 {WORDS}",
        f"eps=inf delta=1e-5 {WORDS}",
        f"eps=2 eps=3 delta=1e-5 {WORDS}",
        f"eps=2 delta=1e-5 {WORDS} replace-one",
        f"eps=2 delta=1e-5 {WORDS} certified",
        f"eps=2 sigma=1 delta=1e-5 {WORDS}",
        f"eps=2 delta=1e-5 {WORDS.replace('client', 'region')}",
    ],
)
def test_a_claim_that_cannot_be_read_is_refused(text):
    with pytest.raises(FieldError) as refused:
        PrivacyClaim.parse(text)
    assert refused.value.field.startswith("--claim")


def test_steps_are_composed_by_the_accountant():
    assert prove(MechanismSteps(noise_multiplier=1.5, steps=50), CLAIM).epsilon == pytest.approx(
        epsilon_of_mu(math.sqrt(50) / 1.5, 1e-5)
    )
    sampled = prove(
        MechanismSteps.parse("noise_multiplier=1 lots=poisson rate=0.01 steps=100"), CLAIM
    )
    assert sampled.epsilon == pytest.approx(
        epsilon([(Poisson(0.01, Gaussian(1.0)), 100)], 1e-5, "zero-out")
    )
    round_ = PrivacyClaim.parse("eps=2 delta=1e-5 zero-out client round central")
    assert prove(MechanismSteps(noise_multiplier=1.5, rounds=50), round_).epsilon == pytest.approx(
        epsilon_of_mu(1 / 1.5, 1e-5)
    )


def test_shuffled_lots_gain_nothing_and_under_add_or_remove_prove_nothing():
    steps = MechanismSteps.parse("noise_multiplier=1 lots=shuffled epochs=4 rounds=2")
    assert prove(steps, CLAIM).epsilon == pytest.approx(epsilon_of_mu(math.sqrt(8), 1e-5))
    added = PrivacyClaim.parse("eps=2 delta=1e-5 add/remove record total central")
    assert prove(steps, added).epsilon is None


def test_noise_for_another_sensitivity_than_the_clip_is_what_it_is():
    steps = MechanismSteps(noise_multiplier=4.0, sensitivity=1e-4, clip=1.0)
    judged = described_alone("plugin", CLAIM, steps)
    assert steps.true_multiplier == pytest.approx(4e-4)
    assert [one.by for one in judged.caught] == [INSPECTION]
    rows_of_a_user = MechanismSteps(noise_multiplier=4.0, per_unit=10)
    assert prove(rows_of_a_user, CLAIM).epsilon == pytest.approx(epsilon_of_mu(10 / 4, 1e-5))


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("seed", "guessable"),
        ("normaliser", "private"),
        ("denominator", "private"),
        ("weights", "examples"),
        ("clipped", "first round"),
        ("noised", "some"),
        ("noise_drawn", "reused"),
    ],
)
def test_what_a_reader_of_the_code_sees_leaves_nothing_proven(key, word):
    found = prove(MechanismSteps(noise_multiplier=100.0, **{key: word}), CLAIM)
    assert found.epsilon is None
    assert [one for one, _ in found.faults] == [key]


def test_only_what_costs_more_than_is_claimed_is_caught():
    judged = described_alone("sigma 1.5", CLAIM, MechanismSteps(noise_multiplier=1.5, steps=50))
    assert [(one.by, one.refutes) for one in judged.caught] == [(COMPOSITION, False)]
    assert described_alone("enough", CLAIM, MechanismSteps(noise_multiplier=2.1)).caught == ()


def test_a_small_claim_has_no_slack_of_its_own_size():
    claim = PrivacyClaim.parse("eps=0.0005 delta=1e-5 zero-out client total central")
    steps = MechanismSteps(noise="laplace", noise_multiplier=1000)
    pure = PrivacyClaim.parse("eps=0.0005 delta=0 zero-out client total central")
    assert prove(steps, pure).epsilon == pytest.approx(0.001)
    assert [one.by for one in described_alone("half", pure, steps).caught] == [COMPOSITION]
    assert described_alone("enough", claim, MechanismSteps(noise_multiplier=1e5)).caught == ()


@pytest.mark.parametrize(
    "text",
    [
        "noise_multiplier=1 lots=poisson",
        "noise_multiplier=1 lots=shuffled",
        "noise_multiplier=1 lots=shuffled epochs=1 steps=100",
        "noise_multiplier=1 rate=0.1",
        "noise_multiplier=1 lots=drawn",
        "noise_multiplier=0",
        "noise_multiplier=1 sigma=1",
        "clip=1",
        "noise_multiplier=1 rounds=1.5",
        "noise_multiplier=1 rnds=3",
        "noise_multiplier",
    ],
)
def test_steps_that_say_too_little_are_refused(text):
    with pytest.raises(FieldError):
        MechanismSteps.parse(text)
