"""What a value has to be stands in the type of its field, and is said alike wherever the value comes from."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch

import fedveil as fv
from fedveil.accounting import Bound
from fedveil.aggregation import Aggregator
from fedveil.checks import (
    Count,
    Delta,
    EventNoise,
    Fraction,
    Natural,
    NonNegative,
    Parameters,
    Positive,
    Rate,
    Rounds,
    Share,
    UnitInterval,
    Workers,
)
from fedveil.data import SOURCES, DataSet, SourceInfo, load
from fedveil.errors import FieldError
from fedveil_lab.config import ConfigError, parse


@dataclass(frozen=True)
class Bounds(Parameters):
    low: Positive = 1.0
    high: Positive | None = None
    kind: Literal["flat", "steep"] = "flat"
    clip: Positive | fv.QuantileClip = 1.0


@dataclass(frozen=True)
class More(Bounds):
    times: Count = 1

    def __post_init__(self):
        super().__post_init__()
        if self.high is not None and self.high < self.low:
            raise FieldError("high", self.high, "must not be below low")


ALLOWED = {
    "Positive": (Positive, [1e-9, 3, 2.5], [0, -1, math.inf, math.nan, True, "1", None]),
    "NonNegative": (NonNegative, [0, 0.0, 4], [-1e-9, math.nan, None]),
    "EventNoise": (EventNoise, [1e-40, 2, 1e40], [0, 0.9e-40, 1.1e40, math.inf]),
    "Rate": (Rate, [1e-9, 1], [0, 0.9e-9, 1.1]),
    "Delta": (Delta, [1e-15, 0.5], [0, 0.9e-15, 1, -0.1]),
    "Share": (Share, [1, 1e-3], [0, 1.0001]),
    "Fraction": (Fraction, [0, 0.999], [1, -1e-3]),
    "UnitInterval": (UnitInterval, [0, 1, 0.5], [1.01, -0.01]),
    "Count": (Count, [1, 7], [0, 1.5, True, "2"]),
    "Natural": (Natural, [0, 7], [-1, 0.5]),
    "Rounds": (Rounds, [1, 10**6], [0, 10**6 + 1, None]),
    "Workers": (Workers, [1, 1024], [0, 1025]),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_type_takes_its_range_and_no_more(name):
    kind, inside, outside = ALLOWED[name]
    made = dataclass(frozen=True)(type("Made", (Parameters,), {"__annotations__": {"value": kind}}))
    assert [made(value).value for value in inside] == inside
    for value in outside:
        with pytest.raises(FieldError) as refused:
            made(value)
        assert refused.value.field == "value"


def test_members_of_a_union_and_names_of_a_literal_pass():
    moving = fv.QuantileClip()
    assert Bounds(high=None, clip=moving, kind="steep").clip is moving
    for values in ({"high": 0}, {"clip": -1.0}, {"kind": "stee"}, {"low": None}):
        with pytest.raises(FieldError) as refused:
            Bounds(**values)
        assert refused.value.field == next(iter(values))
    with pytest.raises(FieldError, match="did you mean 'clip'"):
        Bounds(clipp=1)


def test_a_subclass_has_its_own_rules_beside_those_of_its_fields():
    assert More(high=2.0, times=3).times == 3
    for values in ({"times": 0}, {"low": 0.0}, {"low": 3.0, "high": 2.0}):
        with pytest.raises(FieldError):
            More(**values)
    with pytest.raises(FieldError, match="times"):
        replace(More(), times=0)


@pytest.mark.parametrize(
    ("key", "value", "made"),
    [
        ("privacy.clip", -1.0, lambda v: fv.GlobalDP(noise_multiplier=1.0, clip=v)),
        ("privacy.noise_multiplier", -1.0, lambda v: fv.GlobalDP(noise_multiplier=v)),
        ("local.momentum", 1.0, lambda v: fv.LocalTraining(momentum=v)),
        ("local.epochs", 0, lambda v: fv.LocalTraining(epochs=v)),
        ("publish.loss_range", 0.0, lambda v: fv.Publishing(loss_range=v)),
        ("aggregator.lr", 0.0, lambda v: fv.FedAvgM(lr=v)),
    ],
)
def test_a_file_and_python_are_refused_with_the_same_words(key, value, made):
    values = {
        "name": "same",
        "rounds": 1,
        "data": {"name": "digits", "clients": 2},
        "model": {"name": "logistic"},
        "aggregator": {"name": "fedavgm"},
        "privacy": {"method": "global", "noise_multiplier": 1.0},
    }
    section, name = key.split(".")
    with pytest.raises(ConfigError) as written:
        parse({**values, section: {**values.get(section, {}), name: value}})
    with pytest.raises(FieldError) as called:
        made(value)
    [problem] = written.value.problems
    assert (problem.field, problem.value, problem.accepted) == (key, value, called.value.accepted)
    assert called.value.field == name


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("", "rounds", 0),
        ("", "seed", -1),
        ("", "workers", 0),
        ("data", "public_examples", -1),
        ("privacy.budget", "delta", 1.5),
        ("pretraining", "epochs", 0),
    ],
)
def test_a_sections_own_keys_are_checked_by_their_types(section, name, value):
    values = {
        "name": "own",
        "rounds": 1,
        "data": {"name": "digits", "clients": 2},
        "model": {"name": "logistic"},
        "privacy": {"budget": {}},
        "pretraining": {"epochs": 1},
    }
    table = values
    for part in filter(None, section.split(".")):
        table = table[part]
    table[name] = value
    with pytest.raises(ConfigError) as refused:
        parse(values)
    assert (refused.value.problems[0].field, refused.value.problems[0].value) == (
        f"{section}.{name}".lstrip("."),
        value,
    )


@dataclass(frozen=True, kw_only=True)
class Ramp:
    rows: int = 60

    def read(self):
        x = torch.arange(2.0 * self.rows).reshape(-1, 2) / self.rows
        return DataSet(name="ramp", x=x, y=torch.arange(self.rows) % 2, classes=2)


def test_a_source_may_be_a_class_of_its_options():
    SOURCES.register("ramp")(SourceInfo("a ramp", "any", "none", Ramp))
    try:
        assert len(load("ramp", rows=9).x) == 9
        with pytest.raises(FieldError, match="did you mean 'rows'"):
            load("ramp", row=9)
        config = parse(
            {
                "name": "ramps",
                "rounds": 1,
                "data": {"name": "ramp", "clients": 2, "rows": 40},
                "model": {"name": "logistic"},
            }
        )
        assert config.data.options == {"rows": 40}
    finally:
        del SOURCES["ramp"]


@pytest.mark.parametrize("kind", [Bound, Aggregator])
def test_a_value_of_another_kind_is_refused_by_name_where_the_kind_has_no_fields(kind):
    @dataclass(frozen=True)
    class Holder(Parameters):
        held: kind

    with pytest.raises(FieldError) as refused:
        Holder(held=3)
    assert (refused.value.field, refused.value.value) == ("held", 3)
    assert kind.__name__ in refused.value.accepted
