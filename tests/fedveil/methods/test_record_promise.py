"""What touches the promise at record and person level is `RecordPromise`; nothing else does."""

from dataclasses import fields, replace

import pytest
import torch

import fedveil as fv
from fedveil.aggregation import FedAvgM, FedMedian
from fedveil.errors import FieldError
from fedveil.methods import METHODS, RecordPromise, build, parameters, touches_promise

RECORD = {"examples": 40.0, "noise_multiplier": 2.0, "rounds": 5}
PERSON = {
    "unit": "person",
    "people": 40.0,
    "records_per_person": 3,
    "noise_multiplier": 2.0,
    "rounds": 5,
}
TRUSTED = {**RECORD, "sum": "trusted", "silos": 4}
SECURE = {**RECORD, "sum": "secure", "least_sites": 6}
BUDGET = {"examples": 40.0, "epsilon": 4.0, "rounds": 5}

TOUCHING = {  # of each parameter: two sides that differ in it alone
    "unit": (RECORD, {**PERSON}),
    "sum": (RECORD, TRUSTED),
    "relation": (RECORD, {**RECORD, "relation": "replace-one"}),
    "epsilon": (BUDGET, {**BUDGET, "epsilon": 2.0}),
    "delta": (BUDGET, {**BUDGET, "delta": 1e-7}),
    "noise_multiplier": (RECORD, {**RECORD, "noise_multiplier": 3.0}),
    "clip": (RECORD, {**RECORD, "clip": 0.5}),
    "rate": (RECORD, {**RECORD, "rate": 0.5}),
    "steps": (RECORD, {**RECORD, "steps": 2}),
    "rounds": (BUDGET, {**BUDGET, "rounds": 6}),
    "loop": (RECORD, {**RECORD, "loop": "app"}),
    "silos_per_person": (PERSON, {**PERSON, "silos_per_person": 2}),
    "most": (
        {**RECORD, "relation": "add/remove", "most": 80},
        {**RECORD, "relation": "add/remove", "most": 90},
    ),
    "silos": (TRUSTED, {**TRUSTED, "silos": 5}),
    "tolerated": (TRUSTED, {**TRUSTED, "tolerated": 2}),
    "least_sites": (SECURE, {**SECURE, "least_sites": 7}),
    "colluding": (SECURE, {**SECURE, "colluding": 2}),
    "retries": (
        {**BUDGET, "sum": "secure", "least_sites": 6},
        {**BUDGET, "sum": "secure", "least_sites": 6, "retries": 1},
    ),
}
OUTSIDE = {  # of each parameter: sides, and the value that they take instead
    "examples": ((RECORD, TRUSTED, SECURE, {**RECORD, "relation": "add/remove", "most": 99}), 50.0),
    "people": ((PERSON, {**PERSON, "relation": "add/remove", "most": 99}), 50.0),
    "records_per_person": ((PERSON,), 5),
    "blank": (({**RECORD, "unit": "region"},), 0.5),
    "units": ((SECURE,), 2000),
    "aggregator": ((RECORD, TRUSTED, SECURE), FedAvgM()),
    "lr": ((SECURE,), 0.5),
}


def test_every_parameter_is_of_the_promise_or_outside():
    every = {f.name for f in fields(fv.RecordDP)}
    assert set(TOUCHING) == {f.name for f in fields(RecordPromise)}
    assert set(TOUCHING) | set(OUTSIDE) == every
    assert not set(TOUCHING) & set(OUTSIDE)
    shown = set(parameters("record")) - {"aggregator", "lr"}
    assert {name for name in shown if touches_promise("record", name)} == set(TOUCHING)


@pytest.mark.parametrize("name", TOUCHING)
def test_a_parameter_of_the_promise_changes_what_a_round_costs(name):
    one, other = TOUCHING[name]
    assert fv.RecordDP(**one).spend() != fv.RecordDP(**other).spend()


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_parameter_outside_the_promise_changes_no_cost_and_no_noise(name):
    sides, value = OUTSIDE[name]
    for values in sides:
        before = fv.RecordDP(**values)
        after = replace(before, **{name: value})
        assert getattr(before, name) != value
        assert after.promise == before.promise
        assert after.spend() == before.spend()
        assert after.noisy_steps.deviation == before.noisy_steps.deviation


def test_what_is_planned_gives_a_private_size_its_default_limit_and_the_promise_says_it():
    side = fv.RecordDP(**RECORD, relation="add/remove")
    assert side.promise.most == 80
    assert side.spend() == fv.RecordDP(**RECORD, relation="add/remove", most=80).spend()
    alone = RecordPromise(noise_multiplier=2.0, relation="add/remove")
    with pytest.raises(FieldError, match="most"):
        alone.spend()


def test_a_promise_alone_refuses_what_its_method_refuses():
    for values in (
        {"noise_multiplier": 1.0, "epsilon": 4.0},
        {"epsilon": 4.0},
        {"noise_multiplier": 1.0, "sum": "trusted", "silos": 1},
        {"noise_multiplier": 1.0, "sum": "trusted", "silos": 3, "tolerated": 3},
        {"noise_multiplier": 1.0, "sum": "secure"},
        {"noise_multiplier": 1.0, "sum": "secure", "least_sites": 4, "colluding": 3},
        {"noise_multiplier": 1.0, "sum": "trusted", "silos": 4, "steps": 2},
        {"noise_multiplier": 1.0, "silos": 4},
        {"noise_multiplier": 1.0, "silos_per_person": 2},
    ):
        with pytest.raises(FieldError):
            RecordPromise(**values)


@pytest.mark.parametrize(
    ("kind", "named"), [(fv.RecordDP, {**RECORD, "sum": "trusted", "silos": 2}), (fv.SGALDP, {})]
)
def test_a_rule_stands_in_front_as_in_methods_of_the_server(kind, named):
    clients = [(torch.rand(4, 3), torch.zeros(4, dtype=torch.int64)) for _ in range(2)]
    rule = FedAvgM(momentum=0.5)
    federation = fv.Federation(
        model=torch.nn.Linear(3, 2), clients=clients, method=kind(rule, **named), seed=1
    )
    assert federation.method.server.rule == rule
    with pytest.raises(FieldError, match="aggregator"):
        kind(3, **named)


def test_a_rule_that_the_sum_does_not_allow_is_refused_in_front_too():
    with pytest.raises(FieldError, match="aggregator"):
        build("record", FedMedian(), **TRUSTED)
    clients = [(torch.rand(4, 3), torch.zeros(4, dtype=torch.int64)) for _ in range(4)]
    with pytest.raises(FieldError, match="aggregator"):
        fv.Federation(
            model=torch.nn.Linear(3, 2),
            clients=clients,
            method=fv.RecordDP(FedMedian(), **TRUSTED),
            seed=1,
        )


def test_unless_a_side_says_otherwise_a_parameter_touches_the_promise():
    for method in METHODS:
        for name, side in parameters(method).items():
            outside = getattr(side, "outside_promise", frozenset())
            assert touches_promise(method, name) == (name not in outside)
            assert outside <= {f.name for f in fields(side)}
