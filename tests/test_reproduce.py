"""Reproductions: what is planned, that every cell is run once, and what is measured on it."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

from fedveil.attacks.paper import multi_round, single_shot
from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.experiments import ConfigError, parse
from fedveil.experiments.setup import prepare
from fedveil.learning import build_model
from fedveil.report.plots import draw_plot
from fedveil.reproduce import MetricPrivacyStudy, Progressed, Runs, Selection, cells_of, measured, run_cells
from fedveil.reproduce.measure import Result, interval_of
from fedveil.reproduce.metric_privacy import Choices, scales
from fedveil.reproduce.metric_privacy.claims import NUMBERED
from fedveil.reproduce.progress import Pace
from reproduce_kit import Told, run_all, tiny_study


@pytest.fixture(scope="module")
def paper():
    return MetricPrivacyStudy(Choices(scale="paper"))


@pytest.fixture(scope="module")
def small():
    return MetricPrivacyStudy(Choices())


def results(study, table, done):
    return {(r.row, r.setting, r.figure): r for r in (measured(e, done.finished) for e in study.entries(table))}


def config_of(study, table, row, setting):
    [entry] = [e for e in study.entries(table) if (e.row, e.setting) == (row, setting)]
    return entry.replicates[0].cells[0].config


def test_every_printed_figure_has_its_place(paper):
    entries = {table: paper.entries(table) for table in paper.tables}
    assert sum(e.published is not None for found in entries.values() for e in found) == len(paper._printed) == 263
    of_the_paper = [table for table in entries if table[0] in NUMBERED]
    assert len(of_the_paper) == 14
    added = {("12", "accuracy")}  # says whether anything was learned
    ours = {(table, e.figure) for table in of_the_paper for e in entries[table] if e.published is None}
    assert ours == added
    assert all(e.published is None for table in set(entries) - set(of_the_paper) for e in entries[table])


def test_printed_differences_follow_from_the_printed_losses(paper):
    for table in ("10", "11", "E16", "E17", "E18", "E19"):
        found = {(e.figure, e.setting): e.published.value for e in paper.entries(table)}
        for setting in ("vanilla", "global", "metric"):
            ours = single_shot("", found["target loss", setting], found["aggregated loss", setting]).difference
            assert ours == pytest.approx(found["difference", setting], abs=0.12)  # losses have three decimals


def test_the_paper_s_experiments(paper):
    config = config_of(paper, "5", "FedYogi", "metric")
    assert (config.rounds, config.local.epochs, config.local.batch_size, config.local.optimizer) == (20, 5, 32, "adam")
    assert (config.privacy.options["clip"], config.privacy.options["noise_multiplier"]) == (5.0, 0.01)
    assert config.aggregator.options["tau"] == 1e-3
    pretrained = {e.row for e in paper.entries("5") if e.replicates[0].cells[0].config.pretraining is not None}
    assert pretrained == {"FedAvgM", "FedOpt", "FedYogi"}
    single = paper.entries("10")[0].replicates[0].cells[0].config
    assert (single.rounds, single.local.epochs, single.data.clients) == (1, 20, 3)
    assert [sum(c) for c in zip(*single.data.counts, strict=True)] == [724, 49, 2566, 1781]


def test_every_scale_keeps_the_noise_to_clip_ratio_and_its_preset_s_size(paper, small):
    for study in (paper, small):
        config = config_of(study, "5", "FedAvg", "global")
        shape = (1, config.data.options["resolution"], config.data.options["resolution"])
        parameters = sum(
            p.numel() for p in build_model("alzheimer_cnn", input_shape=shape, outputs=4, seed=0).parameters()
        )
        assert parameters == study.plan.scale.parameters
        ratio = config.privacy.options["noise_multiplier"] * math.sqrt(parameters) / 4
        assert ratio == pytest.approx(6.382, abs=1e-3)
    assert any("24x24" in note for note in small.notes(["5"]))
    assert any("424" in note for note in small.notes(["13"]))
    assert not any("424" in note for note in small.notes(["5"]))


def test_tables_and_figures_share_their_cells(small):
    alone = cells_of(small, Selection.of(small, ["5"]))
    together = cells_of(small, Selection.of(small, ["5", "6", "a.14"], ["d4", "C2"]))
    assert len(alone) == 18
    assert [c.key for c in alone] == [c.key for c in together]


def test_the_number_of_workers_is_no_part_of_a_cell_s_key():
    one, two = (
        MetricPrivacyStudy(Choices(rules=("fedavg",), workers=n)).entries("5")[0].replicates[0].cells[0] for n in (1, 2)
    )
    assert one.key == two.key
    assert one.config.workers != two.config.workers


@pytest.mark.parametrize(
    ("reading", "rule", "setting", "found"),
    [
        ("more-noise", "fedavg", "metric", lambda c: c.privacy.options["direction"] == "more"),
        ("clipped-distance", "fedavg", "metric", lambda c: c.privacy.options["distance_on"] == "clipped"),
        ("module-layers", "fedavg", "metric", lambda c: c.privacy.options["grouping"] == "module"),
        ("no-prox", "fedprox", "vanilla", lambda c: c.aggregator.options["mu"] == 0),
        ("adaptive-fedopt", "fedopt", "vanilla", lambda c: c.aggregator.name == "fedadam"),
        ("uniform", "fedyogi", "vanilla", lambda c: c.aggregator.options["weighting"] == "uniform"),
        ("larger-steps", "fedavg", "vanilla", lambda c: c.local.lr == 0.003),
        ("printed-noise", "fedavg", "global", lambda c: c.privacy.options["noise_multiplier"] == 0.01),
    ],
)
def test_other_readings_of_the_paper_are_other_cells(small, reading, rule, setting, found):
    label = small.plan.label(rule)
    plain = config_of(small, "5", label, setting)
    study = MetricPrivacyStudy(Choices(readings=(reading,), rules=(rule,)))
    config = config_of(study, "5", label, setting)
    assert found(config)
    assert not found(plain)
    assert any(f"Adam at {config.local.lr:g}" in note for note in study.notes(["5"]))
    assert any(note.startswith(f"reading {reading}") for note in study.notes(["5"]))


def test_extra_rules_have_no_printed_figures():
    study = MetricPrivacyStudy(Choices(rules=("fedadam", "fedadagrad")))
    entries = study.entries("5")
    assert {e.row for e in entries} == {"FedAdam", "FedAdagrad"}
    assert all(e.published is None for e in entries)


def test_an_interrupted_study_repeats_no_finished_cell_and_ends_in_the_same_figures(patterns, tmp_path):
    study = tiny_study(patterns, rules=("fedavg", "fedavgm"))
    whole = results(study, "5", run_all(study, tmp_path / "whole", ["5"]))
    with pytest.raises(KeyboardInterrupt):
        run_all(study, tmp_path / "parts", ["5"], progress=Told(rounds=4))  # in the second round of the second cell
    runs, cells = Runs(tmp_path / "parts"), cells_of(study, Selection.of(study, ["5"]))
    assert [runs.state(c) for c in cells] == ["done", "begun", *["to run"] * 4]
    before = (runs.path(cells[0]) / "summary.json").stat().st_mtime_ns
    told = Told()
    resumed = tiny_study(patterns, rules=("fedavg", "fedavgm"), workers=2)
    found = results(study, "5", run_all(resumed, tmp_path / "parts", ["5"], progress=told))
    assert runs.finished(cells[1]).summary.values["workers"] == 2  # the begun one, too
    assert (runs.path(cells[0]) / "summary.json").stat().st_mtime_ns == before
    assert len(told.started) == 5
    assert told.said[0] == "1 of 6 runs are finished already"
    assert "left for all" in told.started[0]
    assert {k: r.value for k, r in found.items()} == {k: r.value for k, r in whole.items()}
    again = Told()
    run_all(study, tmp_path / "parts", ["5"], progress=again)
    assert not again.started


def test_a_table_of_unfinished_cells_says_what_is_missing(patterns, tmp_path):
    study = tiny_study(patterns, seeds=2)
    with pytest.raises(KeyboardInterrupt):
        run_all(study, tmp_path, ["5"], progress=Told(rounds=4))
    done = Progressed()
    run_cells(cells_of(study, Selection.of(study, ["5"])), Runs(tmp_path), None, done)
    found = results(study, "5", done)
    vanilla, metric = found["FedAvg", "vanilla", "accuracy"], found["FedAvg", "metric", "accuracy"]
    assert len(vanilla.values) == 1
    assert vanilla.missing == ("homogeneous-fedavg vanilla seed 1",)
    assert vanilla.over == "the last 5 rounds of one run"
    assert metric.value is None
    assert len(metric.missing) == 2


def test_over_seeds_the_interval_is_student_s():
    low, high = interval_of([0.90, 0.92, 0.94])
    assert (low, high) == pytest.approx((0.92 - 4.3027 * 0.02 / 3**0.5, 0.92 + 4.3027 * 0.02 / 3**0.5), abs=1e-5)


def test_seeds_and_draws_are_told_apart(patterns, tmp_path):
    for seeds, over in ((1, "2 noise draws on one training"), (2, "2 seeds")):
        study = tiny_study(patterns, clients=3, seeds=seeds)
        found = results(study, "10", run_all(study, tmp_path, ["10"]))
        result = found["FedAvg", "global", "target loss"]
        assert (result.over, len(result.values)) == (over, 2 * seeds)
        assert result.low < result.value < result.high
        assert len(found["FedAvg", "vanilla", "target loss"].values) == seeds


def test_draws_share_their_training_and_differ_in_the_noise(patterns, tmp_path):
    study = tiny_study(patterns, clients=3)
    done = run_all(study, tmp_path, ["10"])
    assert len(list((tmp_path / "begun").glob("*.safetensors"))) == 3  # one a client, for all settings and draws
    first, second = (r.cells[0] for r in study.entries("10")[1].replicates)
    rows = [done.finished[c.key].summary.rows[0] for c in (first, second)]
    assert rows[0]["server"] == rows[1]["server"]
    assert rows[0]["metrics"]["loss"] != rows[1]["metrics"]["loss"]


def test_what_was_remembered_is_what_training_gives(patterns, tmp_path):
    study = tiny_study(patterns, rules=("fedavgm",))
    config = study.entries("5")[0].replicates[0].cells[0].config
    plain, first, again = prepare(config), prepare(config, tmp_path), prepare(config, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1  # the server's first model
    for other in (first, again):
        assert torch.equal(other.arguments["initial"], plain.arguments["initial"])
    keys = [(0, 1, i) for i in range(4)]
    starts = plain.arguments["initial"].expand(4, -1)
    trained = [
        s.arguments["learner"].trainer.train(starts, s.arguments["clients"], keys) for s in (plain, first, again)
    ]
    for ours, theirs, found in zip(*trained, strict=True):
        assert torch.equal(ours.model, theirs.model)
        assert torch.equal(ours.model, found.model)
        assert (ours.examples, ours.loss) == (found.examples, found.loss)
    next(tmp_path.glob("*.safetensors")).write_bytes(b"damaged")
    assert torch.equal(prepare(config, tmp_path).arguments["initial"], plain.arguments["initial"])


def test_without_the_target_the_others_keep_their_data(patterns):
    study = tiny_study(patterns, clients=3)
    attack = next(e for e in study.entries("13") if e.figure == "attack AUC")
    inside, outside = (prepare(cell.config).arguments["clients"] for cell in attack.replicates[0].cells)
    assert (len(inside), len(outside)) == (3, 2)
    for a, b in zip(inside[:2], outside, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.test_y, b.test_y)


def test_table_13_scores_every_round_of_both_worlds(patterns, tmp_path):
    study = tiny_study(patterns, clients=3)
    done = run_all(study, tmp_path, ["13"])
    attack = next(e for e in study.entries("13") if (e.figure, e.setting) == ("attack AUC", "vanilla"))
    pair = [done.finished[cell.key].summary.rows for cell in attack.replicates[0].cells]
    scores = [[-row["watched"]["shadow_loss"] for row in rows] for rows in pair]
    assert [len(s) for s in scores] == [2, 2]
    expected = multi_round("", *scores).auc
    result = measured(attack, done.finished)
    assert (result.value, result.low, result.high) == (expected.point, expected.low, expected.high)
    assert "not independent" in result.over


def test_a_first_model_is_trained_on_the_server_s_half(patterns):
    study = tiny_study(patterns, rules=("fedavg", "fedyogi"))
    trained, fresh = (prepare(config_of(study, "5", row, "vanilla")) for row in ("FedYogi", "FedAvg"))
    assert trained.dataset.test_y.bincount().tolist() == [8, 8, 8, 8]  # of 16 a class
    assert not torch.equal(trained.arguments["initial"], fresh.arguments["initial"])
    broken = config_of(study, "5", "FedYogi", "vanilla").to_dict()
    del broken["data"]["validation"]
    with pytest.raises(ConfigError, match=r"pretraining.epochs.*data\.validation"):
        parse(broken)


def test_figures_draw_what_is_there(patterns, tmp_path):
    study = tiny_study(patterns)
    with pytest.raises(KeyboardInterrupt):
        run_all(study, tmp_path, ["5"], progress=Told(rounds=4))
    done = Progressed()
    run_cells(cells_of(study, Selection.of(study, ["5"])), Runs(tmp_path), None, done)
    figure = draw_plot(study.plot("D4"), done.finished)
    titles = [p.get_title() for p in figure.axes]
    assert titles == ["vanilla", "global DP\nnot finished: FedAvg", "metric privacy\nnot finished: FedAvg"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["FedAvg"]
    done = run_all(study, tmp_path, ["5"], ["C2", "noise"])
    roc = draw_plot(study.plot("C2"), done.finished).axes
    area = done.finished[study.plot("C2").lines[0].replicates[0].cells[0].key].summary.values["test_metrics"]["auc"]
    assert roc[0].get_legend().get_texts()[0].get_text() == f"FedAvg (AUC {area:.3f})"
    x, y = roc[0].lines[1].get_data()
    assert float(torch.trapezoid(torch.tensor(y), torch.tensor(x))) == pytest.approx(area, abs=0.02)
    assert len(draw_plot(study.plot("noise"), done.finished).axes) == 2


def test_a_damaged_cell_is_named_and_nothing_is_lost(patterns, tmp_path):
    study = tiny_study(patterns)
    done = run_all(study, tmp_path, ["5"])
    outcome = next(iter(done.finished.values()))
    way_out = f"restore it, or delete .*{outcome.folder.name} to run it again"
    for name, content, where in (
        ("summary.json", "{", r"summary\.json"),
        ("summary.json", "{}", r"summary\.json.*'rounds' is missing"),
        ("metrics.jsonl", '{"round": 1}\n', r"metrics\.jsonl, line 1.*'metrics' is missing"),
        ("metrics.jsonl", "", r"metrics\.jsonl.*it has 0 lines, and there were 2 rounds"),
        ("metrics.jsonl", "[]\n", r"metrics\.jsonl, line 1.*no round"),
    ):
        whole = (outcome.folder / name).read_bytes()
        (outcome.folder / name).write_text(content)
        with pytest.raises(FieldError, match=f"{outcome.folder.name}/{where}.*{way_out}"):
            run_all(study, tmp_path, ["5"])
        (outcome.folder / name).write_bytes(whole)
    assert (outcome.folder / "model.safetensors").exists()


def test_a_damaged_table_keeps_nobody_from_the_others(small, tmp_path):
    (tmp_path / "cells").mkdir()
    (tmp_path / "table-5.json").write_text("{}")
    result = call("metric-privacy", "--table", "5", "--table", "7", "--no-run", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "table-5.json': cannot be read ('rows' is missing); restore it, or delete it and ask" in result.stderr
    assert "('study' is missing)" in result.stderr  # the page of claims needs it, too
    assert (tmp_path / "table-7.json").exists()
    assert not (tmp_path / "claims.md").exists()
    (tmp_path / "table-5.json").unlink()
    assert call("metric-privacy", "--table", "5", "--no-run", "--out", str(tmp_path)).exit_code == 0
    assert (tmp_path / "claims.md").exists()


def test_two_processes_do_not_share_a_folder(tmp_path):
    with Runs(tmp_path).alone(), pytest.raises(FieldError, match="is being written to"), Runs(tmp_path).alone():
        pass
    with Runs(tmp_path).alone(), Runs(tmp_path).alone(shared=True):
        pass


def call(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["metric-privcy"], "metric-privacy"),
        (["metric-privacy", "--table", "99"], "accepted: 5, 6, 7"),
        (["metric-privacy", "--figure", "D6"], "accepted: C2, C3, D4, D5"),
        (["metric-privacy", "--rule", "fedsgd"], "--rule = 'fedsgd'"),
        (["metric-privacy", "--reading", "other"], "--reading = 'other'"),
        (["metric-privacy", "--seeds", "0"], "--seeds = 0"),
        (["metric-privacy", "--jobs", "0"], "--jobs = 0"),
        (["metric-privacy", "--draws", "1001"], "--draws = 1001: must be at most 1000"),
        (["metric-privacy", "--workers", "0"], "--workers = 0"),
        (["metric-privacy", "--table", "D4"], "under --figure D4"),
        (["metric-privacy", "--table", "9"], "has no such one; accepted: 5, 6, 7, 8, 10"),
        (["metric-privacy", "--table", "10", "--rule", "fedyogi"], "table 10 is about fedavg alone; see table E19"),
        (["metric-privacy", "--scale", "tiny"], "'small', 'paper'"),
    ],
)
def test_refusals_say_what_exists(arguments, said):
    result = call(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_the_command_lists_and_plans_without_running(tmp_path):
    listed = call("metric-privacy", "--list").output
    assert all(word in listed for word in ("A14", "D5", "fedadagrad", "more-noise", "24x24"))
    planned = call("metric-privacy", "--table", "7", "--rule", "fedavg", "--dry-run", "--out", str(tmp_path / "none"))
    assert "3 runs, 0 finished" in planned.output
    assert not (tmp_path / "none").exists()


def test_what_is_written(patterns, tmp_path):
    from fedveil.cli.reproduce import _show
    from fedveil.cli.shared import console_for

    study = tiny_study(patterns, seeds=2)
    done = run_all(study, tmp_path, ["5"])
    _show(console_for(), study, Selection.of(study, ["5"], ["D4"]), tmp_path, done)
    values = json.loads((tmp_path / "table-5.json").read_text())
    assert (values["scale"], values["seeds"], len(values["rows"])) == ("tiny", [0, 1], 3)
    row = values["rows"][1]
    assert row["published"] == {"value": 0.881, "deviation": 0.013}
    assert row["difference"] == pytest.approx(row["value"] - 0.881)
    assert set(row["noise"]) == {"sigma", "noise_to_clip"}
    assert (tmp_path / "figure-D4-fedavg-seeds-0-1.png").stat().st_size > 10_000
    less = tiny_study(patterns)
    _show(console_for(), less, Selection.of(less, ["5"]), tmp_path, done)
    assert json.loads((tmp_path / "table-5.json").read_text()) == values  # a look at one seed loses nothing


def test_tables_of_other_rules_are_left_out():
    one = MetricPrivacyStudy(Choices(rules=("fedyogi",)))
    assert not {"10", "13", "distances"} & set(one.tables)
    assert {"5", "E19"} <= set(one.tables)
    assert "see table" not in "".join(one.notes(["E19"]))
    assert any("no run without the target" in note for note in one.notes(["E19"]))


def test_where_no_private_run_learns_another_reading_is_named(small):
    def result(setting, value):
        return Result(
            "FedAvg",
            setting,
            "accuracy",
            None,
            (value,),
            (0,),
            (0,),
            value,
            None,
            None,
            None,
            "",
            (),
            0,
            {},
            0.5,
            "",
            (),
        )

    assert "--reading printed-noise" in small.advice([result("vanilla", 0.9), result("global", 0.51)])[0]
    assert not small.advice([result("vanilla", 0.9), result("metric", 0.6)])


def test_the_time_that_is_left_counts_a_shared_training_once_and_a_resumed_run_in_part():
    study = MetricPrivacyStudy(Choices(draws=3, rules=("fedavg",)))
    singles = cells_of(study, Selection.of(study, ["10"]))
    assert len({cell.training for cell in singles}) == 1
    pace = Pace()
    pace.add(singles[0], 50.0)
    pace.add(singles[1], 0.1)
    assert pace.seconds(dict.fromkeys(singles[2:], 1.0)) == 0
    long = cells_of(study, Selection.of(study, ["5"]))
    pace = Pace()
    pace.add(long[0], 30.0, share=0.25)
    assert pace.seconds(dict.fromkeys(long[1:], 1.0)) == pytest.approx(2 * 120)
    assert pace.seconds({long[1]: 1.0, long[2]: 0.2}) == pytest.approx(1.2 * 120)


def test_scales_are_complete():
    assert set(scales()) == {"small", "paper"}
    assert scales()["paper"].noise_factor == 1
