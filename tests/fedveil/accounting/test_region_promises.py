"""Promises for regions among others: what a policy allows, what counts, and what is never added."""

import pytest

import fedveil as fv
from fedveil.accounting import Changed, Gaussian, Limits, Poisson, Policy, total
from fedveil.accounting.bounds import GDP, PLD
from fedveil.accounting.guarantee import MARKS_ARE_PUBLIC
from fedveil.errors import FieldError

COMMON = {"noise_multiplier": 4.0, "clip": 1.0}


def region(**values):
    return fv.RecordDP(unit="region", examples=40, **COMMON | values).spend()


def record(**values):
    return fv.RecordDP(examples=40, **COMMON | values).spend()


def denied(policy, spend, past=()):
    found = policy.refusal("record", "local", True, spend, past)
    return found and found.rule


@pytest.mark.parametrize(
    "limits",
    [
        {"record_epsilon": 8.0},
        {"record_mu": 8.0},
        {"person_epsilon": 8.0},
        {"mu": 8.0},
        {"participations": 9},
        {},
    ],
)
def test_a_policy_that_names_no_regions_refuses_them(limits):
    policy = Policy(total=Limits(**limits))
    assert denied(policy, region()) == "total"
    assert denied(policy, region(rate=0.1)) == "total"


def test_a_policy_that_names_regions_counts_them():
    policy = Policy(total=Limits(region_mu=0.6))
    one = region()  # mu .25
    assert denied(policy, one) is None
    assert denied(policy, one, [one] * 4) is None  # .559
    assert denied(policy, one, [one] * 5) == "total.region_mu"  # .612
    assert denied(Policy(total=Limits(record_mu=9.0)), one) == "total"


def test_sampled_steps_count_by_their_epsilon():
    sampled = region(rate=0.1, steps=5)
    assert denied(Policy(total=Limits(region_epsilon=8.0)), sampled) is None
    assert denied(Policy(total=Limits(region_epsilon=0.01)), sampled) == "total.region_epsilon"


def test_releases_for_records_count_for_their_regions():
    """A record's content may change where it only comes or goes: mu doubles."""
    policy = Policy(total=Limits(record_mu=9.0, region_mu=0.7))
    assert denied(policy, record()) is None  # .5 of a region
    assert denied(policy, region(), [record()]) is None  # .559
    assert denied(policy, record(), [record()]) == "total.region_mu"  # .707
    standing = policy.standing([record(), region()])
    assert standing["region_mu"] == (2, pytest.approx((0.5**2 + 0.25**2) ** 0.5), 0.7)


def test_regions_of_a_person_count_as_regions_of_her_records():
    person = fv.RecordDP(
        unit="person region", people=9, records_per_person=3, relation="replace-one", **COMMON
    ).spend()
    assert person.guarantee.mu == pytest.approx(0.5)
    assert denied(Policy(total=Limits(region_mu=0.55)), person) is None
    assert denied(Policy(total=Limits(region_mu=0.45)), person) == "total.region_mu"
    blank = fv.RecordDP(unit="person region", people=9, records_per_person=3, **COMMON).spend()
    part = blank.guarantee.of_part("region")
    assert part.mu == pytest.approx(0.5)  # other content of one image among hers


@pytest.mark.parametrize("other", [record(), record(relation="replace-one")])
def test_units_are_never_added(other):
    with pytest.raises(FieldError, match="must share"):
        total([region().guarantee, other.guarantee])


@pytest.mark.parametrize(
    ("relation", "mu"), [("zero-out", 0.5), ("add/remove", 0.5), ("replace-one", 0.5)]
)
def test_a_record_is_worth_to_its_region_what_a_change_costs(relation, mu):
    more = {"most": 80} if relation == "add/remove" else {}
    whole = record(relation=relation, **more).guarantee
    part = whole.of_part("region")
    assert part.mu == pytest.approx(mu)
    assert part.relation == ("zero-out" if relation == "zero-out" else "replace-one")
    assert part.public_size


def test_a_region_of_a_sampled_record_keeps_the_sampling():
    part = record(rate=0.1, steps=3).guarantee.of_part("region")
    assert part.bound == PLD(((Changed(0.1, Gaussian(4.0)), 3),))


def test_a_region_has_no_parts_and_is_no_part_of_a_region():
    with pytest.raises(FieldError):
        region().guarantee.of_part("record")
    with pytest.raises(FieldError):
        region().guarantee.of_part("region")


def test_the_promise_names_what_it_rests_on():
    promise = region(relation="replace-one").guarantee
    assert isinstance(promise.bound, GDP)
    assert promise.mu == pytest.approx(0.5)
    assert MARKS_ARE_PUBLIC in promise.conditions
    assert region(rate=0.1).guarantee.bound == PLD(((Poisson(0.1, Gaussian(4.0)), 1),))
    again = fv.Guarantee.from_dict(promise.to_dict())
    assert again == promise
    assert promise.of_group(3).mu == pytest.approx(1.5)
