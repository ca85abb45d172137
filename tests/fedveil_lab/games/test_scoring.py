"""What an audit says first: the strongest attack, what is proven, and what may not be read."""

import re
from dataclasses import asdict

import numpy as np
import pytest
import torch

from fedveil.methods import Publishing
from fedveil_lab.attacks.bounds import epsilon_ceiling, joint_bound
from fedveil_lab.attacks.verdict import judge
from fedveil_lab.config import load
from fedveil_lab.games import ParticipationGame
from fedveil_lab.games.scoring import Audit, Case, Replicate, Scored, attack_of, judge_all, row_of
from fedveil_lab.grid import Store
from fedveil_lab.report.audit_tables import compared, fewest_runs, headline
from fedveil_lab.runs import Summary

DELTA, RELATION = 1e-5, "replace-one"
SETTINGS = ("vanilla", "global")


def audited(gaps, runs=30, settings=SETTINGS, supposed=()):
    """An audit whose attacks see these gaps between the worlds, in standard deviations, one a setting."""
    rng, judged = np.random.default_rng(0), Audit()
    for attack, by_setting in gaps.items():
        valid = None
        for setting, gap in zip(settings, by_setting, strict=True):
            inside, outside = rng.standard_normal(runs) + gap, rng.standard_normal(runs)
            found = judge(
                attack, setting, inside, outside, threshold=gap / 2, delta=DELTA, relation=RELATION
            )
            valid = found.succeeds if setting == settings[0] else valid
            seen = (torch.from_numpy(scores)[:, None] for scores in (inside, outside))
            inside, outside = seen
            how = {**vars(found), "valid": valid, "supposed": attack in supposed}
            verdict = Scored(**how, inside=inside, outside=outside)
            judged.verdicts.append(verdict)
    for setting in settings:
        scores = [
            (v.inside[:, 0].numpy(), v.outside[:, 0].numpy(), v.threshold)
            for v in judged.verdicts
            if v.setting == setting and not v.supposed
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
    return Audit(judged.verdicts, values=values, together=judged.together, settings=tuple(settings))


def rows(found):
    """By defence: what the table says, by column."""
    table = headline(found)
    return {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}


def test_the_strongest_attack_is_named_with_its_interval_and_what_all_of_them_prove():
    found = audited({"loss": (3, 1), "adaptive": (4, 3), "noise-size": (3, 0)})
    [row] = rows(found).values()
    by = {(v.attack, v.setting): v for v in found.verdicts}
    best, plain = by["adaptive", "global"], by["adaptive", "vanilla"]
    bound = found.together["global"]
    assert (row["against"], row["strongest"], row["attacks that work"]) == (
        "global",
        "adaptive",
        "3 of 3",
    )
    assert row["AUC (95%)"] == f"{best.point:.3f} ({best.auc.low:.2f}-{best.auc.high:.2f})"
    assert row["without the defence"].startswith(f"{plain.point:.3f} (")
    assert bound.lower > 0
    assert row["epsilon >="] == f"{bound.lower:.2f} of {bound.ceiling:.2f}"


def test_a_defence_that_holds_an_attack_that_works_is_said_to():
    [row] = rows(audited({"loss": (4, 0), "noise-size": (0, -1)})).values()
    assert (row["strongest"], row["attacks that work"]) == ("loss", "1 of 2")
    assert row["epsilon >="].startswith("0.00 of 1.")


def test_an_attack_that_works_against_the_defence_alone_counts():
    [row] = rows(audited({"noise-size": (0, 4)})).values()
    assert (row["strongest"], row["attacks that work"]) == ("noise-size", "1 of 1")
    assert float(row["without the defence"].split()[0]) < 0.7


def test_an_audit_in_which_nothing_works_shows_none():
    [row] = rows(audited({"loss": (0, 0), "adaptive": (0, 0)})).values()
    assert (row["strongest"], row["attacks that work"], row["AUC (95%)"]) == ("-", "0 of 2", "-")


def test_without_a_defence_or_with_supposed_metrics_alone_that_is_said():
    [row] = rows(audited({"loss": (3,)}, settings=("vanilla",))).values()
    assert row["strongest"] == "loss"
    assert "without the defence" not in row
    [supposed] = rows(
        audited({"informed (clear)": (3, 3)}, supposed=("informed (clear)",))
    ).values()
    assert (supposed["strongest"], supposed["attacks that work"]) == ("-", "0 of 0")
    nothing = audited({})
    assert headline(nothing) is None
    compared = rows(
        audited({"loss": (3, 2, 1)}, settings=("vanilla", "global DP", "metric privacy"))
    )
    assert list(compared) == ["global DP", "metric privacy"]


@pytest.mark.parametrize(
    ("runs", "figures"), [(4, ["4", "0.00"]), (6, ["6", "0.16"]), (7, ["7", "0.37"])]
)
def test_too_few_runs_are_said_to_be(runs, figures):
    [note] = headline(audited({"loss": (50, 50)}, runs=runs)).notes  # perfect separation
    assert re.findall(r"\d+\.\d\d|^\d+", note) == figures
    assert re.findall(r"(\d+) above (\d+(?:\.\d)?)", note) == [
        ("6", "0"),
        ("8", "0.5"),
        ("12", "1"),
        ("30", "2"),
    ]


def test_the_fewest_runs_are_the_fewest():
    for epsilon in (0.0, 0.5, 2.0):
        least = fewest_runs(epsilon, DELTA)
        assert epsilon_ceiling(least, DELTA) > epsilon >= epsilon_ceiling(least - 1, DELTA)
    enough = audited({"loss": (50, 50)}, runs=fewest_runs(0.5, DELTA))
    assert not headline(enough).notes
    perfect = [audited({"loss": (50, 50)}, runs=n).verdicts[0].succeeds for n in (5, 6)]
    assert perfect == [
        False,
        True,
    ]  # where nothing can be proven, perfect separation is not "valid" either


@pytest.mark.parametrize(
    ("method", "relation"), [("global", "zero-out"), ("metric", ""), ("vanilla", "")]
)
def test_a_run_says_which_relation_its_epsilon_is_for(method, relation):
    privacy = f"method='{method}'" + ", noise_multiplier=1.0" * (method == "global")
    config = load("digits-cia", ["rounds=1", "compare={}", f"privacy={{{privacy}}}"])
    case = Case(method, "honest", "run", True, 0)
    cell = ParticipationGame(config, attacks=("loss",)).of_case[case]
    replicate = Replicate.of(case, Store(None).run([cell], together=True).outcomes[cell.key])
    assert replicate.relation == relation
    assert ("eps" in replicate.summary.values["guarantee"]) == bool(relation)


@pytest.mark.parametrize("unit", ["record", "person"])
def test_what_is_promised_for_a_part_of_a_client_is_no_promise_for_the_client(unit):
    """Who takes part may show under it: it chooses no world, and is set beside nothing measured."""
    config = load(
        "digits-person" if unit == "person" else "digits-record", ["rounds=1", "compare={}"]
    )
    game = ParticipationGame(config, attacks=("loss",))
    case = Case("record", "honest", "run", True, 0)
    replicate = Replicate.of(
        case, Store(None).run([game.of_case[case]], together=True).outcomes[game.of_case[case].key]
    )
    assert replicate.summary.values["guarantees"]["worst client"]["unit"] == unit
    assert replicate.relation == ""
    assert game.roles.stand_in == "replace"


def test_a_guarantee_for_another_relation_is_not_to_be_compared():
    def settings(played, **promised):
        about = {
            k: {"guarantee": f"that of {k}", "guarantee_relation": v} for k, v in promised.items()
        }
        proven = {key: {"lower": 0.1, "ceiling": 2.03} for key in promised}
        values = {"relation": played, "settings": about, "together": proven}
        return compared(Audit([], values=values, settings=tuple(promised)))

    [line] = settings("zero-out", vanilla="", one="zero-out")
    assert "that of one" in line
    assert "0.10 of 2.03" in line
    beside, line = settings(
        "replace-one", vanilla="", one="zero-out", two="zero-out", three="replace-one"
    )
    assert "that of three" in beside
    assert line == (
        "one, two: the guarantee is for zero-out, the measured epsilon for replace-one, so they cannot be compared; "
        "--out-world empty (and another --out) measures zero-out."
    )
    for promised, world in (
        ("add/remove", "remove"),
        ("zero-out", "empty"),
        ("replace-one", "replace"),
    ):
        [line] = settings("no relation: both worlds are one", one=promised)
        assert f"--out-world {world} (and another" in line


@pytest.mark.parametrize(
    ("method", "world"),
    [
        ("method='global', noise_multiplier=1.0", "empty"),
        ("method='global', noise_multiplier=1.0, relation='replace-one'", "replace"),
        ("method='global', noise_multiplier=1.0, relation='add/remove', order='formal'", "remove"),
        ("method='metric'", "replace"),
        ("method='vanilla'", "replace"),
    ],
)
def test_the_world_without_the_client_is_that_of_the_promise(method, world):
    config = load("digits-cia", ["rounds=1", "compare={}", f"privacy={{{method}}}"])
    assert ParticipationGame(config).roles.stand_in == world
    assert ParticipationGame(config, world="twin").roles.stand_in == "twin"


def test_thresholds_come_from_rehearsals_alone():
    shift = {"rehearsal": 0.0, "run": 100.0}  # whatever the evaluated runs are like
    done = {}
    for phase, moved in shift.items():
        for inside in (True, False):
            for i in range(8):
                case = Case("vanilla", "honest", phase, inside, i)
                done[case] = Replicate(
                    case, Summary({}, []), {"loss": [moved + 2.0 * inside + 0.01 * i]}
                )
    [found] = judge_all(done, ["vanilla"], ["loss"], "replace", DELTA).verdicts
    assert 0.07 < found.threshold < 2.0
    assert found.point == 1.0
    assert found.advantage.point == 0.0  # at that threshold every run says IN


def test_rows_lead_back_to_their_attacks():
    for attack, mode in (("informed", "clear"), ("side-channel", "noised"), ("loss", "")):
        assert attack_of(row_of(attack, mode)) == attack


def test_the_cost_of_published_metrics_does_not_speak_of_a_total_that_there_may_not_be():
    text = Publishing(metrics="noised").describe()
    assert text.endswith("a line of the ledger, and part of the total where there is one")
