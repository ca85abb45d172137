"""The study of robust rules: what it plays, and that a worst attack is chosen on other examples than it is told on."""

from types import SimpleNamespace

import pytest

from fedveil_studies.frame import Choices, Reproduction, find
from fedveil_studies.robust_rules import study, worst_of

STUDY = find("robust-rules")


def test_every_rule_is_told_how_many_clients_are_malicious():
    plan = Reproduction(STUDY, Choices(rows=("tenth", "third")))
    for row, f in (("tenth", 3), ("third", 9)):
        rules = {
            n: plan.cell("digits", row, n, 0, change="sign").config.aggregator.build()
            for n in STUDY.settings
            if n != "bulyan"
        }
        assert (
            rules["krum"].malicious
            == rules["multi-krum"].malicious
            == rules["nnm-krum"].malicious
            == f
        )
        assert rules["multi-krum"].selected == 30 - f
        assert rules["trimmed"].withstands(30) == f
        assert all(
            r.withstands(30) >= f
            for n, r in rules.items()
            if n not in ("mean", "bounded", "buckets") and "noisy" not in n and "wide" not in n
        )


def outcome(change, validation, test):
    config = Reproduction(STUDY, Choices()).cell("digits", "fifth", "mean", 0, change=change).config
    parts = {"validation": {"accuracy": validation}, "test": {"accuracy": test}}
    return SimpleNamespace(
        cell=SimpleNamespace(config=config),
        summary=SimpleNamespace(values={"concluded": {"robust rules": parts}}),
    )


def test_the_worst_attack_is_chosen_on_validation_and_told_on_test():
    found = [outcome("nobody", 0.1, 0.1), outcome("sign", 0.5, 0.8), outcome("ipm", 0.6, 0.2)]
    assert (
        worst_of(found) == 0.8
    )  # the honest run does not count, and the choice looks at the first number alone
    assert study.measures["under"](found, "accuracy", "ipm").value == 0.2


def test_two_cells_of_it_run():
    plan = Reproduction(STUDY, Choices())
    from fedveil_lab.grid import Store

    store = Store(None)
    cells = [
        plan.cell("digits", "fifth", "krum", 0, change=c, keys={"rounds": 2}, probe="selection")
        for c in ("nobody", "sign")
    ]
    store.run(cells)
    found = [store.find(cell) for cell in cells]
    left_out = study.measures["under"](found, "honest_rejected", "sign").value
    assert left_out == pytest.approx(23 / 24, abs=1e-9)
    assert study.measures["under"](found, "malicious_share", "sign").value == 0
    assert 0 <= worst_of(found) <= 1
    assert study.measures["under"](found, "success", "nobody").value < 0.5
