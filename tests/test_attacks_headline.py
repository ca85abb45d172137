"""What an audit says first, in sentences: the strongest attack, what is proven, and what may not be read."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from fedveil.attacks.result import judge
from fedveil.attacks.statistics import epsilon_ceiling, joint_bound
from fedveil.experiments import load
from fedveil.experiments.audit import Audit
from fedveil.experiments.audit_plan import plan_settings, stage_of
from fedveil.experiments.audit_results import Judged, Verdict, attack_of, row_of
from fedveil.experiments.replicates_record import Case
from fedveil.experiments.replicates_roles import Roles
from fedveil.methods import Publishing
from fedveil.report.audit_headline import fewest_runs, headline, incomparable

DELTA, RELATION = 1e-5, "replace-one"
SETTINGS = ("vanilla", "global")


def audited(gaps, runs=30, settings=SETTINGS, supposed=()):
    """An audit whose attacks see these gaps between the worlds, in standard deviations, one a setting."""
    rng, judged = np.random.default_rng(0), Judged()
    for attack, by_setting in gaps.items():
        valid = None
        for setting, gap in zip(settings, by_setting, strict=True):
            inside, outside = rng.standard_normal(runs) + gap, rng.standard_normal(runs)
            found = judge(attack, setting, inside, outside, threshold=gap / 2, delta=DELTA, relation=RELATION)
            valid = found.succeeds if setting == settings[0] else valid
            seen = (torch.from_numpy(scores)[:, None] for scores in (inside, outside))
            verdict = Verdict(replace(found, valid_without_defence=valid), *seen, supposed=attack in supposed)
            judged.verdicts.append(verdict)
    for setting in settings:
        scores = [
            (v.inside[:, 0].numpy(), v.outside[:, 0].numpy(), v.result.threshold)
            for v in judged.verdicts
            if v.result.setting == setting and not v.supposed
        ]
        if scores:
            judged.together[setting] = joint_bound(scores, delta=DELTA)
    values = {
        "target": 2,
        "relation": RELATION,
        "replicates": runs,
        "delta": DELTA,
        "epsilon_ceiling": epsilon_ceiling(runs, DELTA),
        "together": {setting: asdict(bound) for setting, bound in judged.together.items()},
    }
    return Audit(values, judged, tuple(settings))


def test_the_strongest_attack_is_named_with_its_interval_and_what_all_of_them_prove():
    found = audited({"loss": (3, 1), "adaptive": (4, 3), "noise-size": (3, 0)})
    [line] = headline(found)
    by = {(v.result.attack, v.result.setting): v.result for v in found.judged.verdicts}
    best, plain = by["adaptive", "global"], by["adaptive", "vanilla"]
    bound = found.judged.together["global"]
    assert line.startswith(
        "Against global, adaptive, the strongest of 3 attacks, tells whether client 2 takes part: AUC "
    )
    assert f"AUC {best.point:.3f} (95%: {best.auc.low:.2f}-{best.auc.high:.2f}; .5 is guessing" in line
    assert f"without the defence it works too ({plain.point:.3f}, " in line
    assert bound.lower > 0
    assert f"All attacks together prove epsilon >= {bound.lower:.2f}, of at most {bound.ceiling:.2f}" in line
    assert line.endswith("for replace-one.")


def test_a_defence_that_holds_an_attack_that_works_is_said_to():
    [line] = headline(audited({"loss": (4, 0), "noise-size": (0, -1)}))
    assert "loss, the strongest of 2 attacks, does not demonstrably tell" in line
    assert "without the defence it works (" in line
    assert "All attacks together prove nothing about epsilon (at most 1." in line


def test_an_attack_that_works_against_the_defence_alone_counts():
    [line] = headline(audited({"noise-size": (0, 4)}))
    assert line.startswith("Against global, the attack noise-size tells")
    assert "without the defence it does not work (" in line
    assert "It proves epsilon >= " in line


def test_an_audit_in_which_nothing_works_could_not_have_noticed_anything():
    [line] = headline(audited({"loss": (0, 0), "adaptive": (0, 0)}))
    assert line == (
        "Against global this audit could not have noticed anything: none of its 2 attacks demonstrably tells whether "
        "client 2 takes part, even without the defence."
    )
    [single] = headline(audited({"loss": (0, 0)}))
    assert "not even loss, its one attack, demonstrably tells" in single


def test_without_a_defence_or_with_supposed_metrics_alone_that_is_said():
    [line] = headline(audited({"loss": (3,)}, settings=("vanilla",)))
    assert line.startswith("Without a defence, the attack loss tells")
    assert "without the defence" not in line
    [supposed] = headline(audited({"informed (clear)": (3, 3)}, supposed=("informed (clear)",)))
    assert supposed == "Against global: nothing was judged on what clients really see."
    assert headline(Audit({}, Judged(), SETTINGS)) == []
    compared = headline(audited({"loss": (3, 2, 1)}, settings=("vanilla", "global DP", "metric privacy")))
    assert [line.partition(",")[0] for line in compared] == ["Against global DP", "Against metric privacy"]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (
            4,
            "could not have noticed anything: with 4 runs in each world nothing can be proven, and even an AUC",
        ),
        (5, "from 6 runs in each world, 8 for 0.5, 12 for 1, 30 for 2."),
        (6, "6 runs in each world are few: an epsilon of 0.16 at most can be proven."),
        (7, "an epsilon of 0.37 at most"),
    ],
)
def test_too_few_runs_are_said_to_be(runs, words):
    lines = headline(audited({"loss": (50, 50)}, runs=runs))  # perfect separation
    assert len(lines) == (1 if epsilon_ceiling(runs, DELTA) == 0 else 2)
    assert words in lines[-1]


def test_the_fewest_runs_are_the_fewest():
    for epsilon in (0.0, 0.5, 2.0):
        least = fewest_runs(epsilon, DELTA)
        assert epsilon_ceiling(least, DELTA) > epsilon >= epsilon_ceiling(least - 1, DELTA)
    enough = audited({"loss": (50, 50)}, runs=fewest_runs(0.5, DELTA))
    assert len(headline(enough)) == 1
    perfect = [audited({"loss": (50, 50)}, runs=n).judged.verdicts[0].result.succeeds for n in (5, 6)]
    assert perfect == [False, True]  # where nothing can be proven, perfect separation is not "valid" either


@pytest.mark.parametrize(("method", "relation"), [("global", "zero-out"), ("metric", ""), ("vanilla", "")])
def test_a_run_says_which_relation_its_epsilon_is_for(method, relation):
    config = load("digits-cia", ["rounds=1", f"privacy={{method='{method}'}}"])
    stage = stage_of(plan_settings(config, False)[-1], Roles.of(3), config.seed)
    [replicate] = stage.play([Case(stage.label, "honest", "run", True, 0)], lambda: None)
    assert replicate.relation == relation
    assert ("eps" in replicate.guarantee) == bool(relation)


def test_a_guarantee_for_another_relation_is_not_to_be_compared():
    def settings(played, **promised):
        values = {"relation": played, "settings": {k: {"guarantee_relation": v} for k, v in promised.items()}}
        return incomparable(Audit(values, Judged(), tuple(promised)))

    assert settings("zero-out", vanilla="", one="zero-out") == []
    [line] = settings("replace-one", vanilla="", one="zero-out", two="zero-out", three="replace-one")
    assert line == (
        "one, two: the guarantee is for zero-out, the measured epsilon for replace-one, so they cannot be compared; "
        "--out-world empty (and another --out) measures zero-out."
    )
    for promised, world in (("add/remove", "remove"), ("zero-out", "empty"), ("replace-one", "replace")):
        [line] = settings("no relation: both worlds are one", one=promised)
        assert f"--out-world {world} (and another" in line


def test_rows_lead_back_to_their_attacks():
    for attack, mode in (("informed", "clear"), ("side-channel", "noised"), ("loss", "")):
        assert attack_of(row_of(attack, mode)) == attack


def test_the_cost_of_published_metrics_does_not_speak_of_a_total_that_there_may_not_be():
    text = Publishing(metrics="noised").describe()
    assert text.endswith("a line of the ledger, and part of the total where there is one")
