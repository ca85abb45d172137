"""What becomes of a paper's claims: verdicts follow the stated rules, on made-up files and on the committed ones."""

import dataclasses
import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedveil.errors import FieldError
from fedveil_lab.attacks.statistics import auc
from fedveil_lab.config import load
from fedveil_lab.config.variants import EQUAL_SIGMA
from fedveil_lab.games import ParticipationGame, participation
from fedveil_lab.games.game import play
from fedveil_lab.grid import Store
from fedveil_studies.frame import find, names
from fedveil_studies.frame.audited import read_audits
from fedveil_studies.frame.claims import best_of, compared, judge, rows_of, verdict_of, within
from fedveil_studies.frame.evidence import (
    DRAWS,
    Evidence,
    differ,
    difference,
    mean_of,
    read_evidence,
)
from fedveil_studies.frame.files import Pages, tables_page
from fedveil_studies.frame.finding import (
    CANNOT_TELL,
    CONTRADICTED,
    HOLDS,
    NO_DIFFERENCE,
    UNLEARNED,
    UNTESTED,
)
from fedveil_studies.frame.page import claims_page
from fedveil_studies.frame.result import Result
from fedveil_studies.metric_privacy.audit_claims import EQUAL_AUC
from papers_kit import run_all, tiny_study

RESULTS = Path(__file__).resolve().parents[3] / "results" / "metric-privacy"
METRIC = find("metric-privacy")
ON_AUDITS = [claim for claim in METRIC.described.claims if claim.expect in METRIC.audits]
RULES = METRIC.labels
VANILLA, GLOBAL, METRIC_PRIVACY = [0.94, 0.95, 0.93], [0.70, 0.71, 0.69], [0.75, 0.77, 0.74]
ABOVE = partial(verdict_of, sign=1, margin=0.02)
FIRST = "Metric privacy beats global DP, homogeneous clients"


def write(folder, table, figure, cells, readings=(), chance=0.5, scale="small", noise=None):
    """A table file; cells: {(row, setting): one value a seed}; noise: {setting: its sigma}."""
    rows = [
        {
            "row": row,
            "setting": setting,
            "figure": figure,
            "values": values,
            "seeds": list(range(len(values))),
            "draws": [0] * len(values),
            "chance": chance,
            "cells": [f"{row} {setting} {seed}" for seed in range(len(values))],
            "noise": {"sigma": noise[setting], **({"distance": 0.5} if setting == "metric" else {})}
            if noise and setting in noise
            else {},
        }
        for (row, setting), values in cells.items()
    ]
    values = {
        "study": "metric-privacy",
        "table": table,
        "scale": scale,
        "readings": list(readings),
        "rows": rows,
    }
    place = folder / "-".join([scale, *readings])
    place.mkdir(exist_ok=True, parents=True)
    (place / f"table-{table}.json").write_text(json.dumps(values))


def table_5(**other):
    """Every rule as the paper has it, but for what is given as rule=(global, metric)."""
    cells = {}
    for rule in RULES:
        plain, metric = other.get(rule, (GLOBAL, METRIC_PRIVACY))
        cells |= {(rule, "vanilla"): VANILLA, (rule, "global"): plain, (rule, "metric"): metric}
    return cells


def claim(name):
    [found] = [
        one
        for one in METRIC.described.claims
        if one.name == name and one.expect not in METRIC.audits
    ]
    return found


def finding(folder, name):
    [evidence] = read_evidence(folder, METRIC)
    return judge(claim(name), evidence)


def result(values, **more):
    """A figure with values by (seed, draw)."""
    seeds, draws = zip(*values, strict=True)
    return Result(
        "rule", "metric", "figure", values=tuple(values.values()), seeds=seeds, draws=draws, **more
    )


@pytest.mark.parametrize(
    ("changes", "verdict", "row"),
    [
        ({}, HOLDS, HOLDS),
        ({"FedYogi": (METRIC_PRIVACY, GLOBAL)}, CONTRADICTED, CONTRADICTED),
        (
            {"FedYogi": ([0.7, 0.71, 0.72], [0.72, 0.70, 0.73])},
            HOLDS,
            CANNOT_TELL,
        ),  # the mean over the rules is clear
        (
            {"FedYogi": ([0.7, 0.9, 0.8], [0.9, 0.7, 0.8])},
            CANNOT_TELL,
            CANNOT_TELL,
        ),  # and here it is not
        ({"FedYogi": ([0.7, 0.9, 0.8], [0.701, 0.9, 0.799])}, HOLDS, NO_DIFFERENCE),
        ({"FedYogi": ([], [])}, HOLDS, CANNOT_TELL),
        ({"FedYogi": (GLOBAL[:2], METRIC_PRIVACY[:2])}, HOLDS, CANNOT_TELL),
        ({"FedYogi": ([0.3, 0.31, 0.3], [0.51, 0.53, 0.5])}, HOLDS, CANNOT_TELL),
    ],
)
def test_the_mean_over_the_rules_decides_unless_one_contradicts(tmp_path, changes, verdict, row):
    write(tmp_path, "5", "accuracy", table_5(**changes))
    found = finding(tmp_path, FIRST)
    assert found.verdict == verdict
    assert [r.verdict for r in found.rows] == [HOLDS] * 5 + [row]


def test_one_row_in_which_nothing_is_learned_overturns_nothing_but_half_of_them_do(tmp_path):
    low = ([0.3, 0.31, 0.3], [0.4, 0.41, 0.42])
    write(tmp_path, "5", "accuracy", table_5(**dict.fromkeys(RULES[:3], low)))
    found = finding(tmp_path, FIRST)
    assert [row.why for row in found.rows] == [UNLEARNED] * 3 + [""] * 3
    assert found.verdict == HOLDS
    write(tmp_path, "5", "accuracy", table_5(**dict.fromkeys(RULES[:4], low)))
    assert finding(tmp_path, FIRST).verdict == CANNOT_TELL


def test_rows_with_more_noise_count_as_what_they_are(tmp_path):
    worse = table_5(**dict.fromkeys(RULES, (METRIC_PRIVACY, GLOBAL)))
    write(
        tmp_path,
        "5",
        "accuracy",
        worse,
        readings=["more-noise"],
        noise={"global": 0.1, "metric": 0.2},
    )
    found = finding(tmp_path, FIRST)
    assert found.verdict == CONTRADICTED
    assert {(row.noise, row.distance) for row in found.rows} == {(2.0, 0.5)}
    assert re.search(r"2 times[^;]*0\.5", found.why)
    write(
        tmp_path,
        "5",
        "accuracy",
        table_5(),
        readings=["more-noise"],
        noise={"global": 0.1, "metric": 0.2},
    )
    assert finding(tmp_path, FIRST).verdict == HOLDS


def test_a_claim_is_judged_on_the_group_nearest_to_the_paper_that_has_the_runs(tmp_path):
    write(tmp_path, "5", "accuracy", table_5(**dict.fromkeys(RULES, (METRIC_PRIVACY, GLOBAL))))
    write(tmp_path, "5", "accuracy", table_5(), readings=["printed-noise"])
    one = {place: values[:1] for place, values in table_5().items()}
    write(tmp_path, "5", "accuracy", one, scale="paper")
    first, others = best_of(claim(FIRST), read_evidence(tmp_path, METRIC))
    assert (first.title, first.verdict) == ("small, printed-noise", HOLDS)
    assert {f.title: f.verdict for f in others} == {"paper": CANNOT_TELL, "small": CONTRADICTED}
    write(
        tmp_path,
        "5",
        "accuracy",
        table_5(**dict.fromkeys(RULES, (METRIC_PRIVACY, GLOBAL))),
        scale="paper",
    )
    first, _ = best_of(claim(FIRST), read_evidence(tmp_path, METRIC))
    assert (first.title, first.verdict) == ("paper", CONTRADICTED)


def test_the_page_has_a_row_a_claim_and_every_statement_is_answered(tmp_path):
    write(tmp_path, "5", "accuracy", table_5(FedYogi=([], [])), readings=["printed-noise"])
    lines = claims_page(tmp_path, METRIC).splitlines()
    table = [
        line.split(" | ") for line in lines if line.startswith("| ") and line.count(" | ") == 7
    ]
    rows = {cells[1].partition(" (")[0]: cells for cells in table}
    assert {c.name for c in METRIC.described.claims if c.expect not in METRIC.audits} <= set(rows)
    assert rows[FIRST][2:4] == ["+0.025", "+0.053 (+0.039 to +0.068)"]
    assert rows[FIRST][5] == f"**{HOLDS}**"
    assert "1 of 6" in rows[FIRST][6]  # one rule was not run
    assert any(
        "--table 5 " in line and "--reading printed-noise --seeds 3" in line for line in lines
    )
    answered = {a for c in METRIC.described.claims for a in c.answers}
    assert answered == set(METRIC.described.statements)


@pytest.mark.parametrize(("spread", "said"), [(1.0, "--seeds 9`"), (10.0, "more than 100 seeds")])
def test_what_cannot_be_told_names_the_seeds_that_would_decide(tmp_path, spread, said):
    ours = [
        0.7,
        0.7 + 0.01 * spread,
        0.7 - 0.015 * spread,
    ]  # half of the interval .0313 at a spread of 1, nearest .0183
    write(tmp_path, "5", "accuracy", table_5(**{rule: (ours, [0.7] * 3) for rule in RULES}))
    lines = claims_page(tmp_path, METRIC).splitlines()
    [line] = [
        line for line in lines if "decide" in line and ("--table 5 " in line or "tables 5:" in line)
    ]
    assert said in line
    assert any("--scale paper --seeds 1" in line for line in lines)  # what the study calls open


def test_only_what_the_paper_shows_is_asked_for():
    evidence = Evidence(METRIC, "small")

    def rows(table, first="metric", second="global"):
        one = claim(FIRST).model_copy(update={"of": (first, second)})
        return rows_of(evidence, one, table, "accuracy", 1)

    assert rows("A14") == [r for r in RULES if r != "FedYogi"]
    assert rows("B15") == [r for r in RULES if r != "FedAvgM"]
    assert rows("8") == ["FedAvg", "FedAvgM", "FedMedian", "FedProx"]
    assert rows("sigma", "metric", "equal") == list(RULES)


@pytest.mark.parametrize("name", ["fedre", "sga-ldp", "metric-privacy"])
def test_a_claim_asks_no_row_for_which_its_table_has_no_line(name):
    study, asked = find(name), 0
    for claim in study.described.claims:
        if claim.expect in ("above", "below", "alike") and claim.level is None:
            for table, figure in claim.figures:
                lines = study.places(table)
                for row in rows_of(
                    Evidence(study, next(iter(study.described.scales))), claim, table, figure, 0
                ):
                    asked += 1
                    assert {(row, setting, figure) for setting in claim.settings} <= lines
    assert asked > 10


def test_a_mean_over_rows_is_over_the_seeds_that_all_have(tmp_path):
    noisy = {
        rule: ([0.70, 0.72, 0.69], [0.71 + 0.03 * (i % 2), 0.73, 0.72])
        for i, rule in enumerate(RULES)
    }
    write(tmp_path, "5", "accuracy", table_5(**noisy))
    found = finding(tmp_path, FIRST)
    assert found.interval.values == pytest.approx([0.025, 0.01, 0.03])
    assert (
        found.interval.count == 3
    )  # seeds: rules under one seed share their data, first model and luck

    def row(**values):
        by_place = {(int(seed[1:]), 0): value for seed, value in values.items()}
        return differ(result(by_place), result(dict.fromkeys(by_place, 0.0)))

    first, second = row(s0=1.0, s1=2.0, s3=9.0), row(s0=3.0, s1=4.0, s2=9.0)
    both = mean_of([first, second])
    assert (both.seeds, both.values) == ((0, 1), (2.0, 3.0))
    assert mean_of([first, row(s1=1.0, s2=1.0)]) is None


def test_draws_of_the_noise_on_one_training_decide_nothing(tmp_path):
    many = {(0, draw): 10 + draw / 100 for draw in range(10)}
    assert compared("rule", result(many), result({(0, 0): 1.0}), ABOVE).difference.over == DRAWS
    name = "Single shot: the test loss is lower"
    write(tmp_path, "12", "test loss", {})
    path = tmp_path / "small" / "table-12.json"
    values = json.loads(path.read_text())
    for setting, shift in (("metric", 0.0), ("global", 1.0)):
        row = {"row": "FedAvg", "setting": setting, "figure": "test loss", "noise": {}}
        row |= {
            "values": [1 + shift + d / 100 for d in range(10)],
            "seeds": [0] * 10,
            "draws": list(range(10)),
        }
        values["rows"].append(row)
    path.write_text(json.dumps(values))
    found = finding(tmp_path, name)
    assert found.verdict == CANNOT_TELL
    assert [row.lacking for row in found.rows if row.column == "FedAvg"] == [True]


def test_verdicts_on_a_difference():
    def over(*values):
        return difference(values, "seeds")

    assert verdict_of(over(0.01, 0.011, 0.012), 1, 0.02) == HOLDS
    assert verdict_of(over(0.01, 0.011, 0.012), -1, 0.02) == CONTRADICTED
    assert verdict_of(over(0.001, -0.001, 0.0), 1, 0.02) == NO_DIFFERENCE
    assert verdict_of(over(0.001, -0.001, 0.0), 1) == CANNOT_TELL
    assert verdict_of(over(0.1, -0.1, 0.0), 1, 0.02) == CANNOT_TELL
    assert within(over(0.5, 0.51, 0.49), 0.1) == CONTRADICTED
    assert within(over(0.05, 0.051, 0.049), 0.1) == HOLDS
    assert within(over(0.0, 0.3, -0.3), 0.1) == CANNOT_TELL


def test_where_nothing_is_learned_no_other_figure_is_judged_either(tmp_path):
    noise = {rule: ([0.30, 0.31, 0.30], [0.32, 0.33, 0.32]) for rule in RULES}
    write(tmp_path, "5", "accuracy", table_5(**noise))
    write(tmp_path, "auc", "micro AUC", table_5(**dict.fromkeys(RULES, (METRIC_PRIVACY, GLOBAL))))
    rows = finding(tmp_path, "The area under the ROC curve is larger").rows
    assert {row.why for row in rows} == {UNLEARNED, UNTESTED}


def test_settings_are_paired_by_seed_or_by_draw():
    seeds = differ(
        result({(0, 0): 0.5, (1, 0): 0.9, (2, 0): 0.1}),
        result({(1, 0): 0.8, (2, 0): 0.2, (3, 0): 0.0}),
    )
    assert (seeds.count, seeds.over) == (2, "seeds")
    assert seeds.mean == pytest.approx(0.0)
    draws = differ(result({(0, d): 1.0 + d for d in range(3)}), result({(0, 0): 1.0}))
    assert (draws.count, draws.mean, draws.over) == (3, 1.0, DRAWS)
    both = differ(
        result({(s, d): s + d for s in (0, 1) for d in (0, 1)}), result({(0, 0): 0.0, (1, 0): 0.0})
    )
    assert (both.count, both.mean) == (2, 1.0)
    assert differ(result({(0, 0): 1.0}), result({(1, 0): 1.0})) is None


def test_protection_is_comparable_only_where_the_attack_works(tmp_path):
    name = "Multi-round: protection is comparable"
    for metric, verdict in (
        ([0.5, 0.51, 0.5], HOLDS),
        ([0.9, 0.91, 0.9], CONTRADICTED),
        ([0.4, 0.7, 0.5], CANNOT_TELL),
    ):
        cells = {("FedAvg", "global"): [0.52, 0.5, 0.5], ("FedAvg", "metric"): metric}
        write(tmp_path, "13", "attack AUC", cells | {("FedAvg", "vanilla"): [0.9, 0.88, 0.89]})
        assert finding(tmp_path, name).verdict == verdict
        write(tmp_path, "13", "attack AUC", cells | {("FedAvg", "vanilla"): [0.9, 0.3, 0.6]})
        found = finding(tmp_path, name)
        assert found.verdict == (CANNOT_TELL if verdict == HOLDS else verdict)


def test_one_row_of_several_is_contradicted_by_chance(tmp_path):
    slightly = {
        "FedYogi": ([0.70, 0.72, 0.69], [0.68, 0.71, 0.672])
    }  # at 95%, not at a sixth of the 5%
    write(tmp_path, "5", "accuracy", table_5(**slightly))
    found = finding(tmp_path, FIRST)
    assert [row.verdict for row in found.rows] == [HOLDS] * 5 + [CONTRADICTED]
    assert found.verdict == HOLDS
    write(tmp_path, "5", "accuracy", table_5(**dict.fromkeys(RULES, slightly["FedYogi"])))
    assert finding(tmp_path, FIRST).verdict == CONTRADICTED  # all of them are not


def test_a_rival_that_was_chosen_as_the_best_of_several_is_no_surprise():
    rival = result({(0, 0): 0.71, (1, 0): 0.7235, (2, 0): 0.6985})
    row = compared("best", result({(0, 0): 0.70, (1, 0): 0.71, (2, 0): 0.692}), rival, ABOVE)
    assert row.verdict == CONTRADICTED
    assert dataclasses.replace(row, tests=1).contradicts(1)
    assert not dataclasses.replace(row, tests=3).contradicts(1)


def test_a_claim_over_five_runs_needs_five(tmp_path):
    name = "It stays so over five runs"
    write(tmp_path, "A14", "accuracy", table_5())
    assert finding(tmp_path, name).verdict == CANNOT_TELL
    five = (GLOBAL + GLOBAL[:2], METRIC_PRIVACY + METRIC_PRIVACY[:2])
    write(tmp_path, "A14", "accuracy", table_5(**dict.fromkeys(RULES, five)))
    assert finding(tmp_path, name).verdict == HOLDS


def test_fedprox_is_ranked_where_its_term_is_left_out(tmp_path):
    name = "FedOpt is the best rule, FedAvgM the worst"
    level = {
        "FedAvg": 0.9,
        "FedAvgM": 0.6,
        "FedMedian": 0.8,
        "FedProx": 0.4,
        "FedOpt": 0.95,
        "FedYogi": 0.85,
    }
    cells = {
        (rule, s): [at, at + 0.01, at - 0.01]
        for rule, at in level.items()
        for s in ("vanilla", "global", "metric")
    }
    for table in ("5", "7"):
        write(tmp_path / "one", table, "accuracy", cells)
        write(tmp_path / "other", table, "accuracy", cells, readings=["no-prox"])
    found = finding(tmp_path / "one", name)
    assert (found.verdict, found.interval) == (HOLDS, None)
    assert "homogeneous, vanilla: FedAvgM below FedMedian" in {row.label for row in found.rows}
    assert finding(tmp_path / "other", name).verdict == CONTRADICTED


def runs(folder, distances, sigmas=None):
    """cells.json of metric privacy with FedAvg, a run for each series of d."""
    cells = [
        {
            "run": f"homogeneous-fedavg metric seed {seed}",
            "folder": f"FedAvg metric {seed}",
            "guarantee": "heuristic (client, central, total)",
            "rounds": {"distance": d, "sigma": sigmas or [1 / v for v in d]},
        }
        for seed, d in enumerate(distances)
    ]
    (folder / "small" / "cells.json").write_text(json.dumps({"cells": cells}))


def test_what_is_said_of_the_distance_is_judged_round_by_round(tmp_path):
    write(tmp_path, "5", "accuracy", table_5())
    name = "The clients' models come closer"
    for distances, verdict in (
        ([[2, 1.5, 1], [2, 1.5, 1.1], [2, 1.4, 0.9]], HOLDS),
        ([[1, 1.5, 2], [1, 1.5, 2.1], [1, 1.4, 1.9]], CONTRADICTED),
        ([[1, 1.5, 1.0], [1, 1.5, 1.01], [1, 1.4, 0.99]], NO_DIFFERENCE),
    ):
        runs(tmp_path, distances)
        rows = [
            row
            for row in finding(tmp_path, name).rows
            if row.column == "FedAvg" and not row.lacking
        ]
        assert [row.verdict for row in rows] == [verdict]
    less = "There is less noise where the clients' models are close"
    assert (
        next(row.verdict for row in finding(tmp_path, less).rows if not row.lacking) == CONTRADICTED
    )
    runs(tmp_path, [[1, 2, 3], [3, 2, 1], [1, 3, 2]], sigmas=[1, 2, 3])
    assert next(row.text for row in finding(tmp_path, less).rows if not row.lacking).startswith(
        "0.167"
    )
    assert finding(tmp_path, "Each round has a privacy guarantee").verdict == CONTRADICTED


def test_a_defence_that_learned_nothing_protects_nobody(tmp_path, monkeypatch):
    cells = {
        ("FedAvg", "vanilla"): VANILLA,
        ("FedAvg", "metric"): [0.5, 0.51, 0.49],
        ("FedAvg", "global"): GLOBAL,
    }
    for table in ("5", "smoothness"):
        write(tmp_path, table, "accuracy", cells)
    [evidence] = read_evidence(tmp_path, METRIC)
    learned = METRIC.described.learned
    for table, first, why in (
        ("smoothness", False, ""),
        ("smoothness", True, UNLEARNED),
        ("5", True, ""),
    ):
        told = {"learned": learned.model_copy(update={"first": first})}
        monkeypatch.setattr(METRIC, "described", METRIC.described.model_copy(update=told))
        about = {"of": ("metric", "vanilla"), "expect": "below", "figures": ((table, "accuracy"),)}
        rows = judge(claim(FIRST).model_copy(update=about), evidence).rows
        assert [row.why for row in rows if row.column == "FedAvg"] == [why]


def test_what_is_written_is_what_is_judged(patterns, tmp_path):
    study = tiny_study(patterns, seeds=2)
    done = run_all(study, tmp_path, ["5"])
    Pages(tmp_path, study, Store(tmp_path)).table("5")
    [evidence] = read_evidence(tmp_path, METRIC)
    figure = evidence.at("5", "FedAvg", "metric", "accuracy")
    runs = [o for o in done.outcomes.values() if " metric " in o.cell.label]
    means = [np.mean(o.series("accuracy")[-5:]) for o in runs]
    assert figure.by_seed == {0: {0: pytest.approx(means[0])}, 1: {0: pytest.approx(means[1])}}
    assert figure.chance == 0.25  # 48 of 192, in every class
    assert figure.published.value == 0.905


def test_a_damaged_table_is_named(tmp_path):
    (tmp_path / "table-5.json").write_text('{"study": "metric-privacy"')
    with pytest.raises(FieldError, match=r"table-5\.json"):
        claims_page(tmp_path, METRIC)


def audit_file(folder, metric_noise=0.9, metric_loss=0.35, metric_accuracy=0.5, equal_sigma=0.4):
    """An audit of 20 + 20 runs: `loss` works everywhere alike, the size of the noise tells under metric privacy."""
    ramp = [i / 20 for i in range(20)]
    methods = {
        "vanilla": "vanilla",
        "global DP": "global",
        "metric privacy": "metric",
        EQUAL_SIGMA: "global",
    }
    methods[f"{EQUAL_AUC}, loss)"] = "global"
    sigmas = {
        "global DP": 0.3,
        "metric privacy": 0.4,
        EQUAL_SIGMA: equal_sigma,
        f"{EQUAL_AUC}, loss)": 0.5,
    }
    results, accuracies = [], {}
    for label, method in methods.items():
        shift = {
            "loss": metric_loss if method == "metric" else 0.35,
            "noise-size": metric_noise if method == "metric" else 0.0,
        }
        for attack, up in shift.items():
            scores = {"in": [v + up for v in ramp], "out": ramp}
            results.append({"attack": attack, "setting": label, "scores": scores})
            results[-1] |= {"valid_without_defence": attack == "loss", "supposed": False}
        accuracies[label] = [
            (metric_accuracy if method == "metric" else 0.6) + v / 100 for v in ramp
        ]
    values = {
        "provenance": {"command": "fedveil audit tiny", "data": "digits, as in tiny"},
        "name": "tiny",
        "replicates": 20,
        "settings": {
            label: {"method": method, "sigma": sigmas.get(label)}
            for label, method in methods.items()
        },
        "results": results,
        "accuracies": accuracies,
    }
    folder.mkdir(exist_ok=True)
    (folder / "audit-tiny.json").write_text(json.dumps(values))


def audit_verdicts(folder):
    [audit] = read_audits(folder, METRIC)
    return [judge(claim, audit).verdict for claim in ON_AUDITS]


def test_claims_on_independent_runs(tmp_path):
    audit_file(tmp_path)
    assert (
        audit_verdicts(tmp_path)
        == [
            HOLDS,  # the attack works
            CANNOT_TELL,  # the loss attack seems to work as well under metric privacy, but 20 + 20 runs do not show it
            CONTRADICTED,  # the size of the noise tells
            CONTRADICTED,
            CONTRADICTED,  # less accurate at equal noise
            CONTRADICTED,
        ]
    )
    audit_file(tmp_path, metric_loss=0.8)
    assert audit_verdicts(tmp_path)[1] == CONTRADICTED
    audit_file(tmp_path, metric_loss=-0.1)
    assert audit_verdicts(tmp_path)[1] == HOLDS
    audit_file(tmp_path, metric_noise=0.0, metric_accuracy=0.7)
    assert audit_verdicts(tmp_path)[3:] == [HOLDS, HOLDS, HOLDS]
    audit_file(tmp_path, metric_noise=-0.9)
    assert audit_verdicts(tmp_path)[3] == HOLDS  # it does worse than against public noise
    audit_file(tmp_path, metric_accuracy=0.6)
    assert audit_verdicts(tmp_path)[4:] == [NO_DIFFERENCE] * 2
    audit_file(tmp_path, metric_accuracy=0.7, equal_sigma=0.41)
    assert audit_verdicts(tmp_path)[4] == CANNOT_TELL  # less noise, not better noise
    assert "on digits, 20 + 20 runs" in claims_page(tmp_path, METRIC)


def test_an_audit_is_committed_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(participation, "REHEARSALS", 4)
    game = ParticipationGame(
        load("digits-cia", ["rounds=1"]), attacks=("loss",), replicates=6, compare=True
    )
    play(game, tmp_path / "run")
    shutil.copyfile(tmp_path / "run" / "audit.json", tmp_path / "audit-mine.json")
    [audit] = read_audits(tmp_path, METRIC)
    assert audit.title == "on digits, 6 + 6 runs"
    assert {len(each) for each in audit.accuracies.values()} == {6}
    assert all(judge(claim, audit).rows for claim in ON_AUDITS[:3])


def test_a_difference_of_attacks_is_paired_by_seed(tmp_path):
    audit_file(tmp_path)
    [audit] = read_audits(tmp_path, METRIC)
    same = audit.difference("loss", "metric privacy", "global DP")
    assert same.mean == 0
    assert (
        max(-same.low, same.high) < 0.1 < audit.auc("loss", "metric privacy").point - 0.5
    )  # common luck is taken out
    other = audit.difference("noise-size", "metric privacy", "global DP")
    inside, outside = audit.scores["noise-size", "metric privacy"]
    assert other.mean == pytest.approx(auc(inside, outside) - 0.5)
    assert other.low > 0.2


def test_perfect_attacks_are_not_certainly_alike(tmp_path):
    audit_file(tmp_path)
    [audit] = read_audits(tmp_path, METRIC)
    ramp = np.arange(20) / 20
    scores = {("loss", s): (ramp + 2, ramp) for s in ("metric privacy", "global DP")}
    found = dataclasses.replace(audit, scores=scores).difference(
        "loss", "metric privacy", "global DP"
    )
    assert (found.mean, found.high) == (0, -found.low)
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 20))  # 20 disjoint pairs in order, of both


needs_results = pytest.mark.skipif(
    not RESULTS.is_dir(), reason="results/ are part of the repository, not of the package"
)


PAGES = [
    (name, RESULTS.parent / name)
    for name in names()
    if (RESULTS.parent / name / "claims.md").is_file()
]


@needs_results
@pytest.mark.parametrize(("name", "folder"), PAGES)
def test_the_committed_claims_are_what_the_committed_files_give(name, folder):
    page = claims_page(folder, find(name))
    assert (folder / "claims.md").read_text() == page
    assert page.count("\n") <= 150


@needs_results
@pytest.mark.parametrize(
    ("name", "page"),
    [
        (name, page)
        for name in names()
        for page in sorted((RESULTS.parent / name).glob("*/tables.md"))
    ],
)
def test_the_committed_tables_are_what_the_committed_figures_give(name, page):
    assert page.read_text() == tables_page(page.parent, find(name))


@needs_results
def test_the_figures_of_the_sound_variants_are_those_of_their_claims():
    folder, study = RESULTS.parent / "guarantees", find("guarantees")
    [evidence] = read_evidence(folder, study)
    told = [
        line.split(" | ")[1]
        for line in (folder / "digits.md").read_text().splitlines()
        if line.count(" | ") == 3
    ]
    assert told[1:] == [judge(one, evidence).text for one in study.described.claims]


@needs_results
def test_the_committed_tables_agree_with_the_rounds_of_the_committed_runs():
    """The mean over the last five rounds, the change a round, and the average sigma and d follow from cells.json."""
    checked = 0
    for evidence in read_evidence(RESULTS, METRIC):
        by_folder = {run.folder: run.rounds for run in evidence.runs}
        for (table, _, _, _), found in evidence.results.items():
            if table not in ("5", "7", "sigma", "sigma-non-iid") or not found.values:
                continue
            series = [by_folder[name] for name in found.cells]
            for value, rounds in zip(found.values, series, strict=True):
                assert value == pytest.approx(np.mean(rounds["accuracy"][-5:]), abs=2e-6)
                checked += 1
            for name in ("sigma", "distance"):
                if name in found.noise:
                    mean = np.mean([np.mean(rounds[name]) for rounds in series])
                    assert found.noise[name] == pytest.approx(mean, rel=2e-6)
    assert checked > 300


@needs_results
def test_the_figures_of_the_readme_are_those_of_the_claims():
    page, groups = (
        (RESULTS / "README.md").read_text(),
        {e.title: e for e in read_evidence(RESULTS, METRIC)},
    )
    printed, larger = groups["small, printed-noise"], groups["small, printed-noise, larger-steps"]
    table = [line for line in page.splitlines() if line.startswith("|")]
    for name, found in (
        (FIRST, (printed, larger)),
        ("Metric privacy beats global DP, non-iid clients", (printed, larger)),
        ("Metric privacy beats global DP, three clients with an unbalanced target", (printed,)),
        ("At equal average noise, metric privacy is more accurate", (printed, larger)),
    ):
        for evidence in found:
            assert any(judge(claim(name), evidence).text in line for line in table), (
                name,
                evidence.title,
            )
    first = [
        best_of(c, list(groups.values()))[0].verdict
        for c in METRIC.described.claims
        if c.paper is not False and c.expect not in METRIC.audits
    ]
    counts = [first.count(verdict) for verdict in (HOLDS, CONTRADICTED, CANNOT_TELL)]
    [sentence] = [text for text in " ".join(page.split()).split(", which ") if "claims.md" in text]
    assert [len(first), *counts] == [
        int(number) for number in re.findall(r"(?<=\s)\d+(?=\s)", sentence)
    ][:4]
