"""What becomes of a paper's claims: verdicts follow the stated rules, on made-up files and on the committed ones."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedveil.attacks.statistics import auc
from fedveil.errors import FieldError
from fedveil.experiments.settings import EQUAL_SIGMA
from fedveil.reproduce import Progressed, Runs, Selection, cells_of, measured, run_cells
from fedveil.reproduce.audited import read_audits
from fedveil.reproduce.claims import (
    HOLDS,
    NOISIER,
    NONE,
    NOT_REPRODUCED,
    NOT_YET,
    OPEN,
    REPRODUCED,
    REVERSED,
    UNDECIDED,
    UNLEARNED,
    UNTESTABLE,
    UNTESTED,
    compared,
    state_of,
    strongest,
)
from fedveil.reproduce.evidence import DRAWS, Figure, differ, difference, read_sources
from fedveil.reproduce.files import write_table
from fedveil.reproduce.metric_privacy.audit_claims import AUDIT_CLAIMS, EQUAL_AUC
from fedveil.reproduce.metric_privacy.claims import CLAIMS, rows_of, rules
from fedveil.reproduce.metric_privacy.page import claims_page
from reproduce_kit import Silent, run_all, tiny_study

RESULTS = Path(__file__).resolve().parent.parent / "results" / "metric-privacy"
VANILLA, GLOBAL, METRIC = [0.94, 0.95, 0.93], [0.70, 0.71, 0.69], [0.75, 0.77, 0.74]


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
            "noise": {"sigma": noise[setting], "distance": 0.5} if noise and setting in noise else {},
            "missing": [f"{row} {setting} seed 9"] * (len(values) < 3),
        }
        for (row, setting), values in cells.items()
    ]
    values = {"study": "metric-privacy", "table": table, "scale": scale, "readings": list(readings), "rows": rows}
    folder.mkdir(exist_ok=True)
    (folder / f"table-{table}{''.join(readings)}.json").write_text(json.dumps(values))


def table_5(**other):
    """Every rule as the paper has it, but for what is given as rule=(global, metric)."""
    cells = {}
    for rule in rules():
        plain, metric = other.get(rule, (GLOBAL, METRIC))
        cells |= {(rule, "vanilla"): VANILLA, (rule, "global"): plain, (rule, "metric"): metric}
    return cells


def finding(folder, name):
    [source] = read_sources(folder)
    [claim] = [claim for claim in CLAIMS if claim.name == name]
    return claim.finding(source)


FIRST = "Metric privacy beats global DP, homogeneous clients"


@pytest.mark.parametrize(
    ("changes", "verdict", "state"),
    [
        ({}, REPRODUCED, HOLDS),
        ({"FedYogi": (METRIC, GLOBAL)}, NOT_REPRODUCED, REVERSED),
        ({"FedYogi": ([0.7, 0.9, 0.8], [0.9, 0.7, 0.8])}, UNDECIDED, OPEN),
        ({"FedYogi": ([0.7, 0.9, 0.8], [0.701, 0.9, 0.799])}, NOT_REPRODUCED, NONE),
        ({"FedYogi": ([], [])}, NOT_YET, UNTESTED),
        ({"FedYogi": (GLOBAL[:2], METRIC[:2])}, NOT_YET, UNTESTED),
        ({"FedYogi": ([0.3, 0.31, 0.3], [0.51, 0.53, 0.5])}, UNTESTABLE, UNLEARNED),
    ],
)
def test_the_verdict_flips_with_one_rule(tmp_path, changes, verdict, state):
    write(tmp_path, "5", "accuracy", table_5(**changes))
    found = finding(tmp_path, FIRST)
    assert found.verdict == verdict
    assert [row.state for row in found.rows] == [HOLDS] * 5 + [state]


def test_the_page_has_verdict_figures_reason_and_command(tmp_path):
    write(tmp_path, "5", "accuracy", table_5(FedYogi=([], [])), readings=["printed-noise"])
    page = claims_page(tmp_path)
    assert f"| {FIRST} | not tested yet |" in page
    assert "FedProx, FedOpt +0.053 (+0.039 to +0.068), 3 seeds" in page
    assert "untested: FedYogi no finished pair of runs" in page
    assert "`fedveil reproduce metric-privacy --table 5 --scale small --reading printed-noise --seeds 3`" in page
    assert "FedYogi global (9); FedYogi metric (9)" in page
    assert "* paper: everything." in page
    write(tmp_path, "5", "accuracy", table_5(), readings=["printed-noise"])
    assert f"| {FIRST} | **reproduced** |" in claims_page(tmp_path)


def test_every_scale_and_reading_is_judged_by_itself(tmp_path):
    write(tmp_path / "small", "5", "accuracy", table_5())
    write(tmp_path / "other", "5", "accuracy", table_5(FedAvg=(METRIC, GLOBAL)), readings=["more-noise"])
    write(tmp_path / "paper", "5", "accuracy", table_5(), scale="paper")
    page = claims_page(tmp_path)
    assert "| claim | small, more-noise | paper | small |" in page
    assert f"| {FIRST} | **not reproduced** | **reproduced** | **reproduced** |" in page
    assert "* paper: everything." not in page


def test_where_nothing_is_learned_the_command_asks_for_the_paper_s_scale(tmp_path):
    low = ([0.3, 0.31, 0.3], [0.4, 0.41, 0.42])
    write(tmp_path, "5", "accuracy", table_5(**dict.fromkeys(rules(), low)))
    found = finding(tmp_path, FIRST)
    assert {row.state for row in found.rows} == {UNLEARNED}
    assert "--scale paper" in found.advice
    assert found.rows[0].text == "0.410 at best (the largest class alone: 0.500)"


def test_only_what_the_paper_shows_is_asked_for():
    assert rows_of("A14", "accuracy", "metric", "global", 1) == [r for r in rules() if r != "FedYogi"]
    assert rows_of("B15", "accuracy", "metric", "global", 1) == [r for r in rules() if r != "FedAvgM"]
    assert rows_of("8", "accuracy", "metric", "global", 1) == ["FedAvg", "FedAvgM", "FedMedian", "FedProx"]
    assert rows_of("sigma", "accuracy", "metric", "equal", 1) == list(rules())


def test_rows_that_are_open_alone_may_be_clear_together(tmp_path):
    noisy = {rule: ([0.70, 0.72, 0.69], [0.71 + 0.03 * (i % 2), 0.73, 0.72]) for i, rule in enumerate(rules())}
    write(tmp_path, "5", "accuracy", table_5(**noisy))
    found = finding(tmp_path, FIRST)
    assert found.together.values == pytest.approx([0.025, 0.01, 0.03])
    assert found.together.count == 3  # seeds: rules under one seed share their data, first model and luck
    assert "mean over all tested rows: +0.022" in claims_page(tmp_path)


def test_draws_of_the_noise_on_one_training_decide_nothing():
    many = {(0, draw): 10 + draw / 100 for draw in range(10)}
    row = compared("rule", Figure(many), Figure({(0, 0): 1.0}), 1)
    assert row.state == UNTESTED
    assert "10 noise draws on one training" in row.text
    assert state_of(difference([1.0, 1.1, 0.9], DRAWS), 1) == UNTESTED


def test_no_difference_is_a_finding_unless_the_paper_s_is_as_small():
    first, second = ({(s, 0): 0.8 + 0.001 * s + step * (s - 1) for s in range(3)} for step in (0.001, -0.001))
    assert compared("rule", Figure(first), Figure(second), 1, small=0.02).state == NONE
    assert compared("rule", Figure(first), Figure(second), 1).state == OPEN
    alike = Figure(first, published=0.803), Figure(second, published=0.800)
    assert compared("rule", *alike, 1, small=0.02).state == OPEN
    apart = Figure(first, published=0.9), Figure(second, published=0.8)
    assert compared("rule", *apart, 1, small=0.02).state == NONE


def test_where_nothing_is_learned_no_other_figure_is_judged_either(tmp_path):
    noise = {rule: ([0.30, 0.31, 0.30], [0.32, 0.33, 0.32]) for rule in rules()}
    write(tmp_path, "5", "accuracy", table_5(**noise))
    write(tmp_path, "auc", "AUC", table_5(**dict.fromkeys(rules(), (METRIC, GLOBAL))))
    rows = finding(tmp_path, "The area under the ROC curve is larger").rows
    assert {row.state for row in rows if "non-iid" not in row.label} == {UNLEARNED}


def test_settings_are_paired_by_seed_or_by_draw():
    seeds = differ(Figure({(0, 0): 0.5, (1, 0): 0.9, (2, 0): 0.1}), Figure({(1, 0): 0.8, (2, 0): 0.2, (3, 0): 0.0}))
    assert (seeds.count, seeds.over) == (2, "seeds")
    assert seeds.mean == pytest.approx(0.0)
    draws = differ(Figure({(0, d): 1.0 + d for d in range(3)}), Figure({(0, 0): 1.0}))
    assert (draws.count, draws.mean, draws.over) == (3, 1.0, "noise draws on one training")
    both = differ(Figure({(s, d): s + d for s in (0, 1) for d in (0, 1)}), Figure({(0, 0): 0.0, (1, 0): 0.0}))
    assert (both.count, both.mean) == (2, 1.0)
    assert differ(Figure({(0, 0): 1.0}), Figure({(1, 0): 1.0})) is None


def test_alike_means_that_the_whole_interval_is_within_the_margin(tmp_path):
    name = "Multi-round: protection comparable"
    for metric, state in (([0.5, 0.51, 0.5], HOLDS), ([0.9, 0.91, 0.9], REVERSED), ([0.4, 0.7, 0.5], OPEN)):
        cells = {("FedAvg", "global"): [0.52, 0.5, 0.5], ("FedAvg", "metric"): metric}
        write(tmp_path, "13", "attack AUC", cells | {("FedAvg", "vanilla"): [0.9, 0.88, 0.89]})
        assert [row.state for row in finding(tmp_path, name).rows] == [state]
        write(tmp_path, "13", "attack AUC", cells | {("FedAvg", "vanilla"): [0.9, 0.3, 0.6]})
        [row] = finding(tmp_path, name).rows
        assert row.state == (OPEN if state == HOLDS else state)  # an attack that fails anyway shows no protection


def test_one_row_of_several_is_reversed_by_chance(tmp_path):
    slightly = {"FedYogi": ([0.70, 0.72, 0.69], [0.68, 0.71, 0.672])}  # reversed at 95%, not at a sixth of the 5%
    write(tmp_path, "5", "accuracy", table_5(**slightly))
    found = finding(tmp_path, FIRST)
    assert [row.state for row in found.rows] == [HOLDS] * 5 + [REVERSED]
    assert found.verdict == UNDECIDED
    write(tmp_path, "5", "accuracy", table_5(**dict.fromkeys(rules(), slightly["FedYogi"])))
    assert finding(tmp_path, FIRST).verdict == NOT_REPRODUCED  # all of them are not


def test_a_small_gain_that_is_certain_refutes_nothing(tmp_path):
    small = ([0.70, 0.71, 0.69], [0.706, 0.7175, 0.6945])
    write(tmp_path, "5", "accuracy", table_5(**dict.fromkeys(rules(), small)))
    found = finding(tmp_path, FIRST)
    assert {row.state for row in found.rows} == {HOLDS}
    assert found.rows[0].judge(found.rows[0].found.shared(6)) == NONE  # which is no word against it
    assert found.verdict == REPRODUCED


@pytest.mark.parametrize(("sigma", "state"), [(0.2, NOISIER), (0.05, REVERSED)])
def test_who_has_more_noise_is_read_from_the_runs(tmp_path, sigma, state):
    worse = table_5(FedYogi=(METRIC, GLOBAL))
    write(tmp_path, "5", "accuracy", worse, readings=["more-noise"], noise={"global": 0.1, "metric": sigma})
    found = finding(tmp_path, FIRST)
    assert [row.state for row in found.rows] == [HOLDS] * 5 + [state]
    assert ("with 2 times the noise (d 0.50)" in found.rows[-1].text) == (state == NOISIER)
    assert (found.together is None) == (state == NOISIER)  # what is left is chosen by its outcome
    words = f"small, more-noise, homogeneous clients: d 0.50 (FedAvg); sigma {sigma / 0.1:.2f} (FedAvg) times global"
    assert words in claims_page(tmp_path)


def test_at_the_paper_s_scale_noise_is_no_excuse(tmp_path):
    worse = table_5(FedYogi=(METRIC, GLOBAL))
    write(tmp_path, "5", "accuracy", worse, scale="paper", noise={"global": 0.1, "metric": 0.2})
    assert finding(tmp_path, FIRST).verdict == NOT_REPRODUCED


def test_an_attack_that_fails_shows_no_protection(tmp_path):
    cells = {("FedAvg", "metric"): [0.2, 0.21, 0.2], ("FedAvg", "global"): [0.2, 0.2, 0.21]}
    for plain, state in (([0.46, 0.47, 0.46], OPEN), ([0.9, 0.91, 0.9], HOLDS)):
        write(tmp_path, "13", "attack AUC", {**cells, ("FedAvg", "vanilla"): plain})
        assert [row.state for row in finding(tmp_path, "Multi-round: noise protects").rows] == [state]


def test_a_command_that_would_repeat_itself_is_not_advised(tmp_path):
    slightly = [0.70 + 0.1 * (i % 3) for i in range(12)], [0.71 + 0.1 * (i % 2) for i in range(12)]
    write(tmp_path, "5", "accuracy", table_5(FedYogi=slightly))
    found = finding(tmp_path, FIRST)
    assert (found.verdict, found.advice[-11:]) == (UNDECIDED, "--seeds 24`")  # twice as many
    low = ([0.3, 0.31, 0.3], [0.4, 0.41, 0.42])
    write(tmp_path, "5", "accuracy", table_5(**dict.fromkeys(rules(), low)), scale="paper")
    found = finding(tmp_path, FIRST)
    assert (found.verdict, found.advice) == (UNTESTABLE, "")


def test_a_rival_that_was_chosen_as_the_best_of_several_is_no_surprise():
    rival = Figure({(0, 0): 0.71, (1, 0): 0.7235, (2, 0): 0.6985})
    row = compared("best", Figure({(0, 0): 0.70, (1, 0): 0.71, (2, 0): 0.692}), rival, 1)
    assert (row.state, strongest(row, 3).state) == (REVERSED, OPEN)
    assert strongest(row, 1).state == REVERSED
    held = compared("best", rival, Figure({(0, 0): 0.70, (1, 0): 0.71, (2, 0): 0.692}), 1)
    assert strongest(held, 3).state == HOLDS  # it is above the best of them, so above all


def test_a_claim_over_five_runs_needs_five(tmp_path):
    name = "It stays so over five runs"
    write(tmp_path, "A14", "accuracy", table_5())
    assert finding(tmp_path, name).verdict == NOT_YET
    five = (GLOBAL + GLOBAL[:2], METRIC + METRIC[:2])
    write(tmp_path, "A14", "accuracy", table_5(**dict.fromkeys(rules(), five)))
    assert finding(tmp_path, name).verdict == REPRODUCED


def test_an_audit_on_the_images_is_missing_until_it_is_there(tmp_path):
    line = "An audit with independent runs on the images"
    audit_file(tmp_path)
    assert line in claims_page(tmp_path)
    audit_file(tmp_path, data="alzheimer, as in metric-privacy-cia")
    assert line not in claims_page(tmp_path)


def test_fedprox_is_ranked_where_its_term_is_left_out(tmp_path):
    name = "FedOpt is the best rule, FedAvgM the worst"
    level = {"FedAvg": 0.9, "FedAvgM": 0.6, "FedMedian": 0.8, "FedProx": 0.4, "FedOpt": 0.95, "FedYogi": 0.85}
    cells = {
        (rule, s): [at, at + 0.01, at - 0.01] for rule, at in level.items() for s in ("vanilla", "global", "metric")
    }
    for table in ("5", "7"):
        write(tmp_path, table, "accuracy", cells)
    found = finding(tmp_path, name)
    assert (found.verdict, found.together) == (REPRODUCED, None)
    assert "homogeneous, vanilla: FedAvgM below FedMedian" in {row.label for row in found.rows}
    for file in tmp_path.iterdir():
        file.unlink()
    for table in ("5", "7"):
        write(tmp_path, table, "accuracy", cells, readings=["no-prox"])
    assert finding(tmp_path, name).verdict == NOT_REPRODUCED


def test_what_is_written_is_what_is_judged(patterns, tmp_path):
    study = tiny_study(patterns, seeds=2)
    done = run_all(study, tmp_path, ["5"])
    results = [measured(entry, done.finished) for entry in study.entries("5")]
    write_table(tmp_path / "table-5.json", study, "5", results)
    [source] = read_sources(tmp_path)
    figure = source.at("5", "FedAvg", "metric", "accuracy")
    assert figure.values == {(0, 0): results[2].values[0], (1, 0): results[2].values[1]}
    assert figure.chance == 0.25  # 48 of 192, in every class
    assert figure.published == 0.905


def test_a_damaged_table_is_named(tmp_path):
    (tmp_path / "table-5.json").write_text('{"study": "metric-privacy"')
    with pytest.raises(FieldError, match=r"table-5\.json"):
        claims_page(tmp_path)


def audit_file(folder, metric_noise=0.9, metric_loss=0.35, metric_accuracy=0.5, equal_sigma=0.4, data="patterns"):
    """An audit of 20 + 20 runs: `loss` works everywhere alike, the size of the noise tells under metric privacy."""
    ramp = [i / 20 for i in range(20)]
    methods = {"vanilla": "vanilla", "global DP": "global", "metric privacy": "metric", EQUAL_SIGMA: "global"}
    methods[f"{EQUAL_AUC}, loss)"] = "global"
    sigmas = {"global DP": 0.3, "metric privacy": 0.4, EQUAL_SIGMA: equal_sigma, f"{EQUAL_AUC}, loss)": 0.5}
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
        accuracies[label] = [(metric_accuracy if method == "metric" else 0.6) + v / 100 for v in ramp]
    values = {
        "provenance": {"command": "fedveil audit tiny", "data": data},
        "name": "tiny",
        "replicates": 20,
        "settings": {label: {"method": method, "sigma": sigmas.get(label)} for label, method in methods.items()},
        "results": results,
        "accuracies": accuracies,
    }
    folder.mkdir(exist_ok=True)
    (folder / "audit-tiny.json").write_text(json.dumps(values))


def audit_verdicts(folder):
    [audit] = read_audits(folder)
    return [claim.finding(audit).verdict for claim in AUDIT_CLAIMS]


def test_claims_on_independent_runs(tmp_path):
    audit_file(tmp_path)
    assert audit_verdicts(tmp_path) == [
        REPRODUCED,  # the attack works
        UNDECIDED,  # the loss attack seems to work as well under metric privacy, but 20 + 20 runs do not show it
        NOT_REPRODUCED,  # the size of the noise tells
        NOT_REPRODUCED,
        NOT_REPRODUCED,  # less accurate at equal noise
        NOT_REPRODUCED,
    ]
    audit_file(tmp_path, metric_loss=0.8)
    assert audit_verdicts(tmp_path)[1] == NOT_REPRODUCED
    audit_file(tmp_path, metric_loss=-0.1)
    assert audit_verdicts(tmp_path)[1] == REPRODUCED
    audit_file(tmp_path, metric_noise=0.0, metric_accuracy=0.7)
    assert audit_verdicts(tmp_path)[3:] == [REPRODUCED, REPRODUCED, REPRODUCED]
    audit_file(tmp_path, metric_noise=-0.9)
    assert audit_verdicts(tmp_path)[3] == REPRODUCED  # it does worse than against public noise
    audit_file(tmp_path, metric_accuracy=0.6)
    assert audit_verdicts(tmp_path)[4:] == [NOT_REPRODUCED] * 2  # as accurate
    audit_file(tmp_path, metric_accuracy=0.7, equal_sigma=0.41)
    assert audit_verdicts(tmp_path)[4] == NOT_YET  # less noise, not better noise
    assert "the average sigmas, 0.4 and 0.41, are not equal" in claims_page(tmp_path)
    audit_file(tmp_path, metric_noise=0.0, metric_accuracy=0.7)
    page = claims_page(tmp_path)
    assert "| At equal average noise, metric privacy is more accurate | **holds** |" in page
    assert f"accuracy less that of {EQUAL_SIGMA} +0.100" in page


def test_a_difference_of_attacks_is_paired_by_seed(tmp_path):
    audit_file(tmp_path)
    [audit] = read_audits(tmp_path)
    same = audit.difference("loss", "metric privacy", "global DP")
    assert same.mean == 0
    assert max(-same.low, same.high) < 0.1 < audit.auc("loss", "metric privacy").point - 0.5  # common luck is taken out
    other = audit.difference("noise-size", "metric privacy", "global DP")
    inside, outside = audit.scores["noise-size", "metric privacy"]
    assert other.mean == pytest.approx(auc(inside, outside) - 0.5)
    assert other.low > 0.2


def test_perfect_attacks_are_not_certainly_alike(tmp_path):
    audit_file(tmp_path)
    [audit] = read_audits(tmp_path)
    ramp = np.arange(20) / 20
    scores = {("loss", s): (ramp + 2, ramp) for s in ("metric privacy", "global DP")}
    found = replace(audit, scores=scores).difference("loss", "metric privacy", "global DP")
    assert (found.mean, found.high) == (0, -found.low)
    assert found.high == pytest.approx(1 - 0.025 ** (1 / 20))  # 20 disjoint pairs in order, of both


@pytest.mark.skipif(not RESULTS.is_dir(), reason="results/ are part of the repository, not of the package")
def test_the_committed_page_is_what_the_committed_files_give():
    assert (RESULTS / "claims.md").read_text() == claims_page(RESULTS)


def test_an_interrupted_study_has_its_claims_too(patterns, tmp_path):
    study = tiny_study(patterns, seeds=2)
    cells = cells_of(study, Selection.of(study, ["5"]))
    done = Progressed()
    run_cells(cells[:2], Runs(tmp_path), Silent(), done)
    results = [measured(entry, done.finished) for entry in study.entries("5")]
    write_table(tmp_path / "table-5.json", study, "5", results)
    assert "4 runs of the others: homogeneous-fedavg global (0, 1)" in claims_page(tmp_path)
