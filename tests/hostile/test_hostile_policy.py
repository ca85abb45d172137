"""A policy means exactly what its file says, or is refused: files drawn from a grammar of right and wrong types."""

import datetime

import pytest
import tomli_w
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fedveil.accounting import nothing
from fedveil.engines.lifetime import read_policy
from fedveil.errors import FieldError
from fedveil.methods import METHODS

TRUSTS, RELATIONS = ["central", "local", "trusted sum"], ["zero-out", "add/remove", "replace-one"]
DAY = datetime.date(2026, 5, 3)


def names(known):
    return st.lists(st.sampled_from(known), max_size=3)


def number(most, *, zero=False):
    return st.floats(0, most, exclude_min=not zero) | st.integers(0 if zero else 1, int(most))


# what is no list of names, no number, no truth value, whatever could be read as one
NO_NAMES = st.sampled_from(
    [*({name: allowed} for name in ("local", "record", "zero-out") for allowed in (True, False)), {}, "local", "",
     True, 1, 0.5, DAY, ["lcoal"], ["local", 1], [["local"]], [{"local": True}], [True], [""], ["*"], ["LOCAL"]]
)  # fmt: skip
NO_NUMBER = st.sampled_from(
    [
        True,
        False,
        "1",
        "",
        [1.0],
        [],
        {"value": 1.0},
        {},
        DAY,
        float("nan"),
        float("inf"),
        -float("inf"),
        -1,
        -0.5,
    ]
)
NO_COUNT = NO_NUMBER | st.sampled_from([0, 3.0, 2.5, 1e300])
NO_BOOL = st.sampled_from([0, 1, "true", "false", "", [], [True], {}, 0.0, DAY])
NO_TABLE = st.sampled_from(
    [True, 1.0, "mu = 1", [], ["mu"], [{"mu": 1.0}], {"mus": 1.0}, {"mu": {"a": 1.0}}]
)

COSTS = {name: number(1e9) for name in ("mu", "record_mu", "record_epsilon", "leakage")}
RELEASE = st.fixed_dictionaries({}, optional=COSTS)
TOTAL = st.fixed_dictionaries({}, optional={**COSTS, "participations": st.integers(1, 10**9)})


def spoilt(right):
    """A table of limits with one that is none."""
    wrong = st.tuples(st.sampled_from(sorted(COSTS)), NO_NUMBER | st.just(0))
    return st.tuples(right, wrong | st.tuples(st.just("participations"), NO_COUNT)).map(
        lambda drawn: {**drawn[0], drawn[1][0]: drawn[1][1]}
    )


GRAMMAR = {  # of each key: what it may be, and what it may not
    "trust": (names(TRUSTS), NO_NAMES),
    "methods": (names(sorted(METHODS)), NO_NAMES),
    "relations": (names(RELATIONS), NO_NAMES),
    "release": (RELEASE, NO_TABLE | spoilt(RELEASE) | st.just({"participations": 1})),
    "total": (TOTAL, NO_TABLE | spoilt(TOTAL)),
    "distance": (number(1e9), NO_NUMBER | st.just(0)),
    "delta": (st.floats(1e-15, 0.5), NO_NUMBER | st.sampled_from([0, 1, 1.0, 2.0])),
    "hypotheses_apart": (number(1e9, zero=True), NO_NUMBER),
    "secure_source": (st.booleans(), NO_BOOL),
    "deadline": (number(2_592_000), NO_NUMBER | st.sampled_from([0, 2_592_001, 1e300])),
}


def entry(name, right):
    return st.tuples(st.just(name), st.just(right), GRAMMAR[name][0 if right else 1])


def drawn(kinds, most):
    entries = st.sampled_from(sorted(GRAMMAR)).flatmap(
        lambda name: st.one_of(*(entry(name, k) for k in kinds))
    )
    return st.lists(entries, max_size=most, unique_by=lambda one: one[0])


policies = drawn([True], len(GRAMMAR)) | drawn([True, False], 3)


def played(folder, entries):
    values = {name: value for name, _, value in entries}
    path = folder / "policy.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    limits = [values[name] for name in ("release", "total") if isinstance(values.get(name), dict)]
    nowhere = "distance" not in values and any("leakage" in table for table in limits)
    if nowhere or not all(right for _, right, _ in entries):
        with pytest.raises(FieldError):
            read_policy(path)
        return False
    found, meant = read_policy(path), read_policy(path.with_name("empty.toml"))
    for name in GRAMMAR:
        kept = getattr(found, name)
        if name not in values:
            assert kept == getattr(meant, name)
        elif name in ("release", "total"):
            assert {
                limit: value for limit, value in vars(kept).items() if value is not None
            } == values[name]
        else:
            assert (list(kept) if isinstance(values[name], list) else kept) == values[name]
    for trust in TRUSTS:
        allowed = trust in values.get("trust", ["local"]) and "vanilla" in values.get(
            "methods", ["vanilla"]
        )
        if (
            not allowed or trust == "central"
        ):  # which costs nothing, so that nothing else refuses it
            assert (found.refusal("vanilla", trust, True, nothing(trust), ()) is None) == allowed
    return True


OPTIONS = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("policies")
    (path / "empty.toml").write_text("")
    return path


@settings(max_examples=150, **OPTIONS)
@given(policies)
def test_a_policy_is_what_it_says_or_refused(folder, entries):
    played(folder, entries)


@pytest.mark.slow
@settings(max_examples=20_000, phases=[Phase.generate], **OPTIONS)
@given(policies)
def test_a_policy_is_what_it_says_or_refused_in_twenty_thousand_cases(folder, entries):
    played(folder, entries)


@pytest.mark.parametrize("name", ["trust", "methods", "relations"])
def test_a_table_is_no_list_whatever_it_says_of_its_keys(folder, name):
    key = {"trust": "local", "methods": "record", "relations": "zero-out"}[name]
    for said in (True, False):
        path = folder / "table.toml"
        path.write_text(f'[{name}]\n"{key}" = {str(said).lower()}\n')
        with pytest.raises(FieldError, match=f"policy.{name}"):
            read_policy(path)


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 5000 + "]" * 5000, "[" + ".".join("a" * 5000) + "]",
     "total = " + "{mu = " * 3000 + "1" + "}" * 3000,
     "delta = 0." + "1" * 5000 + "\ndeadline = " + "9" * 5000, "\x00", "delta = 1e-5\ndelta = 1e-5"],
)  # fmt: skip
def test_a_text_that_no_parser_survives_is_refused(folder, text):
    path = folder / "odd.toml"
    path.write_text(text)
    with pytest.raises(FieldError, match="policy"):
        read_policy(path)
