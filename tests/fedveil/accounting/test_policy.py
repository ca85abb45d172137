"""What a node's policy allows: by cost, one kind at a time, and nothing that it does not name."""

import math
from dataclasses import replace

import pytest

from fedveil.accounting import (
    Gaussian,
    Guarantee,
    Limits,
    Poisson,
    Policy,
    Spend,
    epsilon,
    epsilon_of_mu,
    nothing,
)
from fedveil.accounting.events import events_to_list
from fedveil.errors import FieldError


def spend(unit="client", status="formal", trust="local", charge=None, **cost):
    values = {
        "unit": unit,
        "relation": "replace-one",
        "trust": trust,
        "status": status,
        "scope": "round",
        **cost,
    }
    if unit == "record":
        values["public_size"] = True
    if "events" in cost:
        values["events"] = events_to_list(cost["events"])
    guarantee = Guarantee.from_dict(values)
    return Spend(guarantee=guarantee, mechanism="gaussian", charge=charge)


MU, RECORD = spend(mu=1.0), spend("record", mu=1.0)
LEAK = spend("parameter vector", epsilon_per_distance=2.0, hypotheses_apart=0.5)
HEURISTIC = spend(status="heuristic")
LOCAL = {"method": "m", "trust": "local", "deployable": True}


def refused(policy, quoted, past=(), **changes):
    return policy.refusal(**{**LOCAL, **changes}, quoted=quoted, past=past) is not None


def test_a_kind_that_is_not_named_is_refused():
    named = {
        "mu": (Policy(total=Limits(mu=9.0)), MU),
        "record": (Policy(total=Limits(record_mu=9.0)), RECORD),
        "leakage": (Policy(total=Limits(leakage=9.0), distance=1.0, hypotheses_apart=1.0), LEAK),
        "heuristic": (Policy(total=Limits(participations=9)), HEURISTIC),
    }
    for mine, (policy, _) in named.items():
        for other, (_, quoted) in named.items():
            assert refused(policy, quoted) == (mine != other)
    everything = Limits(mu=9.0, record_mu=9.0, leakage=9.0, participations=9)
    for quoted in (nothing("local"), spend(rho=0.1)):  # what no limit can name
        assert refused(Policy(total=everything, distance=1.0, hypotheses_apart=1.0), quoted)


def test_a_total_composes_its_own_kind_alone():
    policy = Policy(
        total=Limits(mu=2.0, record_mu=3.0, leakage=6.0, participations=7),
        distance=1.0,
        hypotheses_apart=1,
    )
    past = [MU, RECORD, LEAK, LEAK]
    assert not refused(policy, MU, past)
    assert not refused(policy, LEAK, past)
    assert not refused(policy, RECORD, past)
    assert refused(replace(policy, total=replace(policy.total, record_mu=1.0)), RECORD, past)
    assert not refused(policy, MU, [*past, MU, MU])  # sqrt(4) is 2
    assert refused(policy, MU, [MU] * 4)
    assert refused(policy, LEAK, [LEAK] * 3)
    assert refused(policy, HEURISTIC, [HEURISTIC] * 7)
    assert refused(policy, MU, [HEURISTIC] * 7)  # participations of every kind


SAMPLED = spend("record", events=((Poisson(0.1, Gaussian(4.0)), 10),))


def test_steps_of_record_level_are_held_to_an_epsilon_together():
    both = Policy(total=Limits(record_epsilon=6.0))
    assert refused(Policy(total=Limits(record_mu=9.0)), SAMPLED)  # a sampled step has no mu
    assert not refused(both, SAMPLED)
    assert not refused(both, RECORD)
    past = [LEAK, HEURISTIC, SAMPLED]
    counted = epsilon([(Poisson(0.1, Gaussian(4.0)), 10), (Gaussian(2.0), 1)], 1e-5, "replace-one")
    assert both.standing([SAMPLED, RECORD])["record_epsilon"] == (2, pytest.approx(counted), 6.0)
    for room, holds in ((1.001, True), (0.999, False)):
        assert refused(Policy(total=Limits(record_epsilon=counted * room)), RECORD, past) != holds
    assert refused(
        Policy(release=Limits(record_epsilon=0.1), total=Limits(record_epsilon=6.0)), SAMPLED
    )
    assert refused(
        Policy(total=Limits(record_epsilon=6.0, record_mu=0.9)), RECORD
    )  # whatever is named has to hold
    other = replace(SAMPLED, guarantee=replace(SAMPLED.guarantee, relation="zero-out"))
    assert refused(both, SAMPLED, [other])  # of another relation: no sum
    assert math.isinf(both.standing([SAMPLED, other])["record_epsilon"][1])


def test_a_relation_that_is_not_allowed_is_refused():
    half = replace(RECORD, guarantee=replace(RECORD.guarantee, relation="zero-out"))
    policy = Policy(total=Limits(record_mu=9.0), relations=["replace-one"])
    assert refused(policy, half)
    assert not refused(policy, RECORD)


def test_what_a_round_really_cost_is_what_counts():
    cheap = spend(mu=5.0, charge=0.1)
    policy = Policy(total=Limits(mu=1.0))
    assert not refused(policy, cheap, [cheap] * 99)
    assert refused(policy, cheap, [cheap] * 100)


def test_one_release_may_be_capped_too():
    assert not refused(Policy(release=Limits(mu=1.0), total=Limits(mu=9.0)), MU)
    assert refused(Policy(release=Limits(mu=0.99), total=Limits(mu=9.0)), MU)
    leaks = {"total": Limits(leakage=99.0), "hypotheses_apart": 1.0}
    assert not refused(Policy(release=Limits(leakage=2.0), distance=1.0, **leaks), LEAK)
    assert refused(Policy(release=Limits(leakage=2.0), distance=1.1, **leaks), LEAK)


def test_trust_methods_source_and_hypotheses():
    limits = {"total": Limits(mu=9.0, leakage=99.0, participations=9), "distance": 1.0}
    assert refused(Policy(**limits), nothing("central"), trust="central")
    assert not refused(
        Policy(trust=["central"], **limits), nothing("central"), trust="central", deployable=False
    )
    assert refused(Policy(methods=["other"], **limits), MU)
    assert not refused(Policy(methods=["m"], **limits), MU)
    assert refused(Policy(**limits), MU, deployable=False)
    assert not refused(Policy(secure_source=False, **limits), MU, deployable=False)
    assert refused(Policy(**limits), LEAK)
    assert refused(Policy(hypotheses_apart=0.49, **limits), LEAK)
    assert not refused(Policy(hypotheses_apart=0.5, **limits), LEAK)


def test_under_central_trust_a_policy_only_allows_or_refuses():
    policy = Policy(trust=["central"], total=Limits(participations=2))
    central = {"trust": "central", "quoted": nothing("central")}
    assert [refused(policy, past=[nothing("central")] * n, **central) for n in (0, 1, 2)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"trsut": ["local"]}, "trust"),
        ({"trust": "local"}, "list of names"),
        ({"trust": ["both"]}, "policy.trust"),
        ({"total": {"mu": 0.0}}, "mu"),
        ({"total": {"mu": math.nan}}, "mu"),
        ({"total": {"epsilon": 1.0}}, "total.epsilon"),
        ({"total": 3}, "policy.total"),
        ({"total": {"leakage": 1.0}}, "distance"),
        ({"release": {"participations": 1}}, "participations"),
        ({"secure_source": "no"}, "secure_source"),
        ({"deadline": 0}, "deadline"),
        ({"delta": 1.5}, "policy.delta"),
        ({"relations": ["any"]}, "policy.relations"),
        ({"hypotheses_apart": -1}, "hypotheses_apart"),
        ({"trust": {"local": True, "central": False}}, "policy.trust"),
        ({"methods": {"record": False}}, "policy.methods"),
        ({"relations": {"zero-out": False}}, "policy.relations"),
        ({"deadline": 1e300}, "policy.deadline"),
        ({"distance": True}, "policy.distance"),
        ({"total": {"participations": 3.0}}, "policy.total.participations"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(values, field):
    with pytest.raises(FieldError, match=field):
        Policy.from_dict(values)


def test_releases_for_whole_clients_count_under_the_limits_of_records_and_persons():
    for kind in ("record", "person"):
        for relation, doubled in (("replace-one", 1), ("zero-out", 2)):
            client = replace(MU, guarantee=replace(MU.guarantee, relation=relation))
            for room, holds in ((1.001, True), (0.999, False)):
                mu = Policy(total=Limits(mu=9.0, **{f"{kind}_mu": doubled * room}))
                assert refused(mu, client) != holds
                eps = Policy(
                    total=Limits(mu=9.0, **{f"{kind}_epsilon": epsilon_of_mu(doubled, 1e-5) * room})
                )
                assert refused(eps, client) != holds
    # what was spent for the client leaves so much less for its records, whatever their relation
    for relation in ("zero-out", "add/remove", "replace-one"):
        public = relation != "add/remove"
        record = replace(
            RECORD, guarantee=replace(RECORD.guarantee, relation=relation, public_size=public)
        )
        for room, holds in ((1.001, True), (0.999, False)):
            policy = Policy(total=Limits(record_mu=math.sqrt(2) * room))
            assert refused(policy, record, [MU]) != holds
        policy = Policy(
            total=Limits(mu=9.0, record_epsilon=1.001 * epsilon_of_mu(math.sqrt(2), 1e-5))
        )
        assert not refused(policy, record, [MU])
        assert not refused(policy, MU, [record])
        assert refused(policy, MU, [record, MU])


def test_a_total_of_one_kind_has_one_relation_and_one_trust():
    policy = Policy(total=Limits(mu=9.0, record_mu=9.0), trust=("local", "secure sum"))
    for unit in (MU, RECORD):
        assert not refused(policy, unit, [unit])
        for change in ({"relation": "zero-out"}, {"trust": "secure sum"}):
            other = replace(unit, guarantee=replace(unit.guarantee, **change))
            assert refused(policy, unit, [other])
            kind = "mu" if unit is MU else "record_mu"
            assert math.isinf(policy.standing([unit, other])[kind][1])
