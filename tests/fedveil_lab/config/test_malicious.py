"""The [malicious] section: what it names, what it refuses, and what a poisoned run comes to."""

import dataclasses
import tomllib

import numpy as np
import pytest
import torch

from fedveil.errors import FieldError
from fedveil_lab.attacks.poisoning import BEHAVIOURS, LabelFlip
from fedveil_lab.config import ConfigError, parse
from fedveil_lab.report.tables import run_table
from fedveil_lab.runs import run
from fedveil_lab.runs.prepare import prepare

BASE = {
    "name": "poisoned",
    "rounds": 3,
    "data": {"name": "digits", "clients": 7, "partition": "iid", "holdout": 0.2},
    "model": {"name": "logistic"},
    "local": {"epochs": 2, "batch_size": 16, "lr": 0.3},
}
FLIP = {"behaviour": "label-flip", "source": 3, "target": 8}
OPTIONS = {
    "label-flip": {"source": 3, "target": 8},
    "backdoor": {"target": 0},
    "lying-budget": {"clip": 1.0},
    "pull-reference": {"clip": 1.0},
}


def config(malicious, **changes):
    return parse({**BASE, "malicious": malicious, **changes})


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_every_behaviour_is_named_and_made_for_all_malicious_clients(name):
    made = config({"behaviour": name, "share": 0.3, **OPTIONS.get(name, {})})
    assert parse(tomllib.loads(made.to_toml())) == made
    behaviours = prepare(made).behaviours
    assert len(behaviours) == 2
    assert {type(b) for b in behaviours.values()} == {BEHAVIOURS[name]}
    assert len({id(b) for b in behaviours.values()}) == 1  # colluders share one instance


def test_what_a_behaviour_does_not_know_comes_from_the_run():
    inner = {"behaviour": "label-flip", "source": 3, "target": 8}
    privacy = {"method": "sga-ldp", "clip": 0.5}
    made = prepare(
        config({"behaviour": "lying-budget", "clients": [1], "of": inner}, privacy=privacy)
    )
    behaviour = made.behaviours[1]
    assert behaviour.clip == 0.5
    assert isinstance(behaviour.of, LabelFlip)
    assert behaviour.of.classes == 10
    known = {"behaviour": "ipm", "clients": [0], "knows_rule": True}
    rule = prepare(config(known, aggregator={"name": "fedmedian"})).behaviours[0].rule
    assert type(rule).__name__ == "FedMedian"


def test_a_share_is_drawn_by_the_seed():
    drawn = [config({**FLIP, "share": 0.2}).malicious.who(30, seed) for seed in range(40)]
    assert {len(who) for who in drawn} == {6}
    assert len(set(drawn)) > 30
    assert config({**FLIP, "share": 0.2}).malicious.who(30, 3) == drawn[3]
    counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=30)
    assert int((counts > 0).sum()) == 30


@pytest.mark.parametrize(
    ("malicious", "changes", "field"),
    [
        ({**FLIP, "clients": [0], "share": 0.2}, {}, "malicious.clients"),
        (FLIP, {}, "malicious.clients"),
        ({**FLIP, "clients": [7]}, {}, "malicious.clients"),
        ({**FLIP, "clients": [1, 1]}, {}, "malicious.clients"),
        ({**FLIP, "clients": [0, 1, 2, 3]}, {}, "malicious.clients"),
        ({**FLIP, "share": 0.5}, {}, "malicious.share"),
        ({**FLIP, "share": 0.01}, {}, "malicious.share"),
        ({**FLIP, "share": 0.2, "target": 10}, {}, "malicious.target"),
        ({**FLIP, "share": 0.2, "target": 3}, {}, "malicious.target"),
        ({**FLIP, "share": 0.2, "target": "eighty"}, {}, "malicious.target"),
        ({"behaviour": "label-flip", "target": 1, "share": 0.2}, {}, "malicious.source"),
        ({"behaviour": "labelflip", "share": 0.2}, {}, "malicious.behaviour"),
        ({**FLIP, "share": 0.2, "colour": 1}, {}, "malicious.colour"),
        ({**FLIP, "share": 0.2, "knows_rule": True}, {}, "malicious.knows_rule"),
        ({**FLIP, "share": 0.2, "of": {"behaviour": "noise"}}, {}, "malicious.of"),
        (
            {"behaviour": "scaling", "share": 0.2, "of": {"behaviour": "alie"}},
            {},
            "malicious.of.behaviour",
        ),
        (
            {"behaviour": "scaling", "share": 0.2, "of": {**FLIP, "source": 12}},
            {},
            "malicious.of.source",
        ),
        ({"behaviour": "lying-budget", "share": 0.2}, {}, "malicious.clip"),
        (FLIP | {"share": 0.2}, {"world": {"target": 0, "colluders": [1]}}, "malicious"),
    ],
)
def test_what_cannot_work_is_refused_by_name(malicious, changes, field):
    with pytest.raises((ConfigError, FieldError)) as caught:
        prepare(config(malicious, **changes))
    problems = getattr(caught.value, "problems", [caught.value])
    assert problems[0].field.startswith(field)


def test_a_poisoned_run_says_how_far_the_attack_got():
    flip = {**FLIP, "clients": [0, 2, 5]}
    found, clean = (
        run(config({**flip, "acting": acting})).values["malicious"] for acting in (True, False)
    )
    own = prepare(config(flip)).dealt.clients
    assert (found["number"], found["clients"]) == (3, [0, 2, 5])
    assert found["relabelled"] == sum(int((own[p].y == 3).sum()) for p in (0, 2, 5)) > 0
    assert found["examples"] == sum(own[p].examples for p in (0, 2, 5))
    assert found["goal_examples"] == sum(int((c.test_y == 3).sum()) for c in own)
    assert found["measured_on"] == "held-out examples"
    for figure in ("success", "recall", "accuracy"):
        assert 0 <= found[figure] <= 1
    assert found["recall"] < clean["recall"] - 0.1
    assert found["success"] > clean["success"] + 0.1
    plain = run(parse(BASE)).values
    assert "malicious" not in plain
    assert clean["accuracy"] == pytest.approx(plain["metrics"]["accuracy"])


def test_a_run_says_whom_no_promise_holds_for():
    """Clients that go around their method are in no ledger, and so are not the worst client."""
    lying = {
        "behaviour": "lying-budget",
        "clip": 1.0,
        "of": {"behaviour": "sign-flip"},
        "clients": [0, 2],
    }
    honest = {"behaviour": "sign-flip", "clients": [0, 2]}
    for malicious, method, unprotected in (
        (lying, "sga-ldp", True),
        (honest, "sga-ldp", False),
        (lying, "global", False),
    ):
        privacy = {"method": method, **({"noise_multiplier": 1.0} if method == "global" else {})}
        summary = run(config(malicious, privacy=privacy, rounds=1))
        assert summary.values["malicious"]["unprotected"] == unprotected
        texts = [
            text for name, text in run_table(summary).rows if name.startswith("nothing promised")
        ]
        assert len(texts) == unprotected
        assert all("0, 2" in text for text in texts)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"name": "krum", "malicious": 1}, "more than the 1"),
        ({"name": "trimmed-mean", "fraction": 0.15}, "more than the 1"),
        ({"name": "krum", "malicious": 2}, None),
        ({"name": "fedmedian"}, None),
        ({"name": "fedavg"}, None),  # which bears nobody, and does not say otherwise
    ],
)
def test_more_malicious_clients_than_the_rule_is_set_to_bear_are_said(rule, told):
    warnings = [
        w
        for w in prepare(config({**FLIP, "clients": [0, 3]}, aggregator=rule)).warnings
        if "malicious" in w
    ]
    assert len(warnings) == (told is not None)
    assert told is None or told in warnings[0]


def test_a_sign_flip_by_three_of_seven_costs_accuracy():
    flip = {"behaviour": "sign-flip", "factor": 3.0, "clients": [0, 2, 5]}
    found = run(config(flip)).values["malicious"]
    assert found["accuracy"] < 0.5
    assert found["success"] == pytest.approx(1 - found["accuracy"])  # no goal: any error is one
    median = run(config(flip, aggregator={"name": "fedmedian"})).values["malicious"]
    assert median["accuracy"] > found["accuracy"] + 0.3


def test_success_is_measured_on_the_set_s_own_test_half(tmp_path):
    rng = np.random.default_rng(0)
    y, test_y = np.arange(80) % 4, np.arange(24) % 4
    shown = rng.standard_normal((4, 6))
    arrays = {"x_train": shown[y], "y_train": y, "x_test": shown[test_y], "y_test": test_y}
    np.savez(
        tmp_path / "four.npz",
        **{k: v.astype(np.float32 if k[0] == "x" else np.int64) for k, v in arrays.items()},
    )
    data = {"name": "npz", "path": str(tmp_path / "four.npz"), "clients": 7}
    values = run(config({**FLIP, "source": 1, "target": 2, "share": 0.3}, data=data)).values
    assert (values["malicious"]["measured_on"], values["malicious"]["goal_examples"]) == (
        "test half",
        6,
    )
    assert values["malicious"]["accuracy"] == pytest.approx(values["test_metrics"]["accuracy"])
    keep = test_y != 1
    np.savez(
        tmp_path / "none.npz",
        **{**arrays, "x_test": arrays["x_test"][keep], "y_test": test_y[keep]},
    )
    data["path"] = str(tmp_path / "none.npz")
    with pytest.raises(FieldError, match=r"malicious\.source"):
        prepare(config({**FLIP, "source": 1, "target": 2, "share": 0.3}, data=data))
    np.savez(tmp_path / "real.npz", x_train=arrays["x_train"], y_train=rng.standard_normal(80))
    data["path"] = str(tmp_path / "real.npz")
    with pytest.raises(FieldError, match=r"malicious\.behaviour.*classes"):
        prepare(config({**FLIP, "share": 0.3}, data=data, local={"loss": "mse"}))


def test_options_are_those_of_the_behaviours_alone():
    for name, behaviour in BEHAVIOURS.items():
        fields = {f.name for f in dataclasses.fields(behaviour) if f.init}
        accepted = set(
            config({"behaviour": name, "share": 0.3, **OPTIONS.get(name, {})}).malicious.accepted(
                name
            )
        )
        assert accepted == fields - {"classes", "seed", "rule", "of"}
