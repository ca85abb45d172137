"""Reproductions: what is planned, that every cell is run once, and what is measured on it."""

import dataclasses
import json
import math

import pytest
import torch
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.evidence import numerics_of
from fedveil.learning import build_model
from fedveil_lab.config import ConfigError, parse
from fedveil_lab.grid import Store
from fedveil_lab.runs.prepare import prepare
from fedveil_studies.frame import Choices, Reproduction, Selection, find, names
from fedveil_studies.frame.files import Pages
from fedveil_studies.frame.measure import measured
from fedveil_studies.frame.plots import draw_plot
from fedveil_studies.frame.result import from_json, interval_of
from fedveil_studies.frame.tables import contents_tables, result_notes
from fedveil_studies.metric_privacy.measures import noise_factor
from fedveil_studies.metric_privacy.printed import multi_round, single_shot
from papers_kit import Told, results, run_all, tiny_study

METRIC = find("metric-privacy")
NUMBERED = "123456789ABE"  # first characters of the paper's own tables


@pytest.fixture(scope="module")
def paper():
    return Reproduction(METRIC, Choices(scale="paper"))


@pytest.fixture(scope="module")
def small():
    return Reproduction(METRIC)


def config_of(study, table, row, setting):
    [entry] = [e for e in study.measurements(table) if (e.row, e.setting) == (row, setting)]
    return entry.cells[0].config


def test_every_printed_figure_has_its_place(paper):
    entries = {table: paper.measurements(table) for table in paper.tables}
    assert (
        sum(e.published is not None for found in entries.values() for e in found)
        == len(METRIC.published)
        == 263
    )
    of_the_paper = [table for table in entries if table[0] in NUMBERED]
    assert len(of_the_paper) == 14
    added = {("12", "accuracy")}  # says whether anything was learned
    ours = {
        (table, e.figure) for table in of_the_paper for e in entries[table] if e.published is None
    }
    assert ours == added
    assert all(
        e.published is None for table in set(entries) - set(of_the_paper) for e in entries[table]
    )


def test_printed_differences_follow_from_the_printed_losses(paper):
    for table in ("10", "11", "E16", "E17", "E18", "E19"):
        found = {(e.figure, e.setting): e.published.value for e in paper.measurements(table)}
        for setting in ("vanilla", "global", "metric"):
            ours = single_shot(
                "", found["target loss", setting], found["aggregated loss", setting]
            ).point
            assert ours == pytest.approx(
                found["difference", setting], abs=0.12
            )  # losses have three decimals


def test_the_paper_s_experiments(paper):
    config = config_of(paper, "5", "FedYogi", "metric")
    assert (
        config.rounds,
        config.local.epochs,
        config.local.batch_size,
        config.local.optimizer,
    ) == (20, 5, 32, "adam")
    assert (config.privacy.options["clip"], config.privacy.options["noise_multiplier"]) == (
        5.0,
        0.01,
    )
    assert config.aggregator.options["tau"] == 1e-3
    pretrained = {
        e.row for e in paper.measurements("5") if e.cells[0].config.pretraining is not None
    }
    assert pretrained == {"FedAvgM", "FedOpt", "FedYogi"}
    single = paper.measurements("10")[0].cells[0].config
    assert (single.rounds, single.local.epochs, single.data.clients) == (1, 20, 3)
    assert [sum(c) for c in zip(*single.data.counts, strict=True)] == [724, 49, 2566, 1781]


def test_every_scale_keeps_the_noise_to_clip_ratio_and_its_preset_s_size(paper, small):
    for study in (paper, small):
        config = config_of(study, "5", "FedAvg", "global")
        shape = (1, config.data.options["resolution"], config.data.options["resolution"])
        parameters = sum(
            p.numel()
            for p in build_model("alzheimer_cnn", input_shape=shape, outputs=4, seed=0).parameters()
        )
        assert parameters == study.scale.facts["parameters"]
        ratio = config.privacy.options["noise_multiplier"] * math.sqrt(parameters) / 4
        assert ratio == pytest.approx(6.382, abs=1e-3)
    assert noise_factor(small.scale) == pytest.approx(7.14, abs=5e-3)  # as the notes say
    assert any("24x24" in note for note in small.notes(["5"]))
    assert any("424" in note for note in small.notes(["13"]))
    assert not any("424" in note for note in small.notes(["5"]))


def test_tables_and_figures_share_their_cells(small):
    alone = small.cells(Selection.of(small, ["5"]))
    together = small.cells(Selection.of(small, ["5", "6", "a.14"], ["d4", "C2"]))
    assert len(alone) == 18
    assert [c.key for c in alone] == [c.key for c in together]


def test_the_number_of_workers_is_no_part_of_a_cell_s_key():
    one, two = (
        Reproduction(METRIC, Choices(rows=("fedavg",), workers=n)).measurements("5")[0].cells[0]
        for n in (1, 2)
    )
    assert one.key == two.key
    assert one.config.workers != two.config.workers


@pytest.mark.parametrize(
    ("reading", "rule", "setting", "found"),
    [
        ("more-noise", "fedavg", "metric", lambda c: c.privacy.options["direction"] == "more"),
        (
            "clipped-distance",
            "fedavg",
            "metric",
            lambda c: c.privacy.options["distance_on"] == "clipped",
        ),
        ("module-layers", "fedavg", "metric", lambda c: c.privacy.options["grouping"] == "module"),
        ("no-prox", "fedprox", "vanilla", lambda c: c.aggregator.options["mu"] == 0),
        ("adaptive-fedopt", "fedopt", "vanilla", lambda c: c.aggregator.name == "fedadam"),
        ("uniform", "fedyogi", "vanilla", lambda c: c.aggregator.options["weighting"] == "uniform"),
        ("larger-steps", "fedavg", "vanilla", lambda c: c.local.lr == 0.003),
        (
            "printed-noise",
            "fedavg",
            "global",
            lambda c: c.privacy.options["noise_multiplier"] == 0.01,
        ),
    ],
)
def test_other_readings_of_the_paper_are_other_cells(small, reading, rule, setting, found):
    label = METRIC.label(rule)
    plain = config_of(small, "5", label, setting)
    study = Reproduction(METRIC, Choices(readings=(reading,), rows=(rule,)))
    config = config_of(study, "5", label, setting)
    assert found(config)
    assert not found(plain)
    assert any(note.startswith(f"reading {reading}") for note in study.notes(["5"]))


def test_extra_rules_have_no_printed_figures():
    study = Reproduction(METRIC, Choices(rows=("fedadam", "fedadagrad")))
    entries = study.measurements("5")
    assert {e.row for e in entries} == {"FedAdam", "FedAdagrad"}
    assert all(e.published is None for e in entries)


@pytest.mark.slow
def test_an_interrupted_study_repeats_no_finished_cell_and_ends_in_the_same_figures(
    patterns, tmp_path
):
    study = tiny_study(patterns, rows=("fedavg", "fedavgm"))
    whole = results(study, "5", run_all(study, tmp_path / "whole", ["5"]))
    with pytest.raises(KeyboardInterrupt):
        run_all(
            study, tmp_path / "parts", ["5"], progress=Told(rounds=4)
        )  # in the second round of the second cell
    store, cells = Store(tmp_path / "parts"), study.cells(Selection.of(study, ["5"]))
    assert [store.state(c) for c in cells] == ["done", "begun", *["to run"] * 4]
    before = (store.path(cells[0]) / "summary.json").stat().st_mtime_ns
    told = Told()
    resumed = tiny_study(patterns, rows=("fedavg", "fedavgm"), workers=2)
    found = results(study, "5", run_all(resumed, tmp_path / "parts", ["5"], progress=told))
    assert (store.path(cells[0]) / "summary.json").stat().st_mtime_ns == before
    assert len(told.started) == 5
    assert {k: r.value for k, r in found.items()} == {k: r.value for k, r in whole.items()}
    again = Told()
    run_all(study, tmp_path / "parts", ["5"], progress=again)
    assert not again.started


def test_a_table_of_unfinished_cells_says_what_is_missing(patterns, tmp_path):
    study = tiny_study(patterns, seeds=2)
    with pytest.raises(KeyboardInterrupt):
        run_all(study, tmp_path, ["5"], progress=Told(rounds=4))
    found = results(study, "5", Store(tmp_path).collect(study.cells(Selection.of(study, ["5"]))))
    vanilla, metric = found["FedAvg", "vanilla", "accuracy"], found["FedAvg", "metric", "accuracy"]
    assert len(vanilla.values) == 1
    assert vanilla.missing == ("homogeneous-fedavg vanilla seed 1",)
    assert vanilla.deviation is not None  # over the last rounds of the one run
    assert metric.value is None
    assert len(metric.missing) == 2


def test_over_seeds_the_interval_is_student_s():
    low, high = interval_of([0.90, 0.92, 0.94])
    assert (low, high) == pytest.approx(
        (0.92 - 4.3027 * 0.02 / 3**0.5, 0.92 + 4.3027 * 0.02 / 3**0.5), abs=1e-5
    )


def test_seeds_and_draws_are_told_apart(patterns, tmp_path):
    for seeds in (1, 2):
        study = tiny_study(patterns, clients=3, seeds=seeds)
        found = results(study, "10", run_all(study, tmp_path, ["10"]))
        result = found["FedAvg", "global", "target loss"]
        assert [len(draws) for draws in result.by_seed.values()] == [2] * seeds
        assert ("draws" in result.over) == (seeds == 1)
        assert result.low < result.value < result.high
        assert len(found["FedAvg", "vanilla", "target loss"].values) == seeds


def test_draws_share_their_training_and_differ_in_the_noise(patterns, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(
        "fedveil_lab.grid.store.shutil.rmtree",
        lambda folder, **_: kept.extend(folder.glob("*.safetensors")),
    )
    study = tiny_study(patterns, clients=3)
    done = run_all(study, tmp_path, ["10"])
    assert len(kept) == 3  # one a client, for all settings and draws
    first, second = study.measurements("10")[1].cells
    rows = [done.outcomes[c.key].rows[0] for c in (first, second)]
    assert rows[0]["server"] == rows[1]["server"]
    assert rows[0]["metrics"]["loss"] != rows[1]["metrics"]["loss"]


def test_what_was_remembered_is_what_training_gives(patterns, tmp_path):
    study = tiny_study(patterns, rows=("fedavgm",))
    config = study.measurements("5")[0].cells[0].config
    plain, first, again = prepare(config), prepare(config, tmp_path), prepare(config, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1  # the server's first model
    for other in (first, again):
        assert torch.equal(other.starts, plain.starts)
    keys = [(0, 1, i) for i in range(4)]
    starts = plain.starts.expand(4, -1)
    trained = [s.learner.trainer.train(starts, s.clients, keys) for s in (plain, first, again)]
    for ours, theirs, found in zip(*trained, strict=True):
        assert torch.equal(ours.model, theirs.model)
        assert torch.equal(ours.model, found.model)
        assert (ours.examples, ours.loss) == (found.examples, found.loss)
    next(tmp_path.glob("*.safetensors")).write_bytes(b"damaged")
    assert torch.equal(prepare(config, tmp_path).starts, plain.starts)


def test_without_the_target_the_others_keep_their_data(patterns):
    study = tiny_study(patterns, clients=3)
    attack = next(m for m in study.measurements("13") if m.figure == "attack AUC")
    inside, outside = (prepare(cell.config).clients for cell in attack.cells)
    assert (len(inside), len(outside)) == (3, 2)
    for a, b in zip(inside[:2], outside, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.test_y, b.test_y)


def test_table_13_scores_every_round_of_both_worlds(patterns, tmp_path):
    study = tiny_study(patterns, clients=3)
    done = run_all(study, tmp_path, ["13"])
    attack = next(
        m for m in study.measurements("13") if (m.figure, m.setting) == ("attack AUC", "vanilla")
    )
    scores = [
        [-loss for loss in done.outcomes[cell.key].series("shadow_loss")] for cell in attack.cells
    ]
    assert [len(s) for s in scores] == [2, 2]
    expected = multi_round("", *scores).auc
    result = measured(attack, done.outcomes)
    assert (result.value, result.low, result.high) == (expected.point, expected.low, expected.high)


def test_a_first_model_is_trained_on_the_server_s_half(patterns):
    study = tiny_study(patterns, rows=("fedavg", "fedyogi"))
    trained, fresh = (
        prepare(config_of(study, "5", row, "vanilla")) for row in ("FedYogi", "FedAvg")
    )
    assert trained.dealt.dataset.test_y.bincount().tolist() == [8, 8, 8, 8]  # of 16 a class
    assert not torch.equal(trained.starts, fresh.starts)
    broken = config_of(study, "5", "FedYogi", "vanilla").to_dict()
    del broken["data"]["validation"]
    with pytest.raises(ConfigError, match=r"pretraining.epochs.*data\.validation"):
        parse(broken)


def test_figures_draw_what_is_there(patterns, tmp_path):
    study = tiny_study(patterns)
    with pytest.raises(KeyboardInterrupt):
        run_all(study, tmp_path, ["5"], progress=Told(rounds=4))
    done = Store(tmp_path).collect(study.cells(Selection.of(study, ["5"])))
    figure = draw_plot(study.plot("D4", done.outcomes))
    assert [len(p.get_title().splitlines()) for p in figure.axes] == [
        1,
        2,
        2,
    ]  # two panels name what is not finished
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["FedAvg"]
    done = run_all(study, tmp_path, ["5"], ["C2", "noise"])
    roc = draw_plot(study.plot("C2", done.outcomes)).axes
    area = done.outcomes[study.lines("C2")[0].cells[0].key].summary.values["test_metrics"][
        "micro_auc"
    ]
    assert f"{area:.3f}" in roc[0].get_legend().get_texts()[0].get_text()
    x, y = roc[0].lines[1].get_data()
    assert float(torch.trapezoid(torch.tensor(y), torch.tensor(x))) == pytest.approx(area, abs=0.02)
    assert len(draw_plot(study.plot("noise", done.outcomes)).axes) == 2


def test_a_damaged_cell_is_named_and_nothing_is_lost(patterns, tmp_path):
    study = tiny_study(patterns)
    done = run_all(study, tmp_path, ["5"])
    outcome = next(iter(done.outcomes.values()))
    for name, content in (
        ("summary.json", "{"),
        ("summary.json", "{}"),
        ("metrics.jsonl", '{"round": 1}\n'),
        ("metrics.jsonl", ""),
        ("metrics.jsonl", "[]\n"),
    ):
        whole = (outcome.folder / name).read_bytes()
        (outcome.folder / name).write_text(content)
        with pytest.raises(FieldError, match=rf"(?s){outcome.folder.name}/{name}.*move this cell"):
            run_all(study, tmp_path, ["5"])
        (outcome.folder / name).write_bytes(whole)
    assert (outcome.folder / "model.safetensors").exists()


@pytest.mark.slow
def test_a_damaged_table_keeps_nobody_from_the_others(tmp_path):
    (tmp_path / "cells").mkdir()
    pages = tmp_path / "small"
    pages.mkdir()
    (pages / "table-5.json").write_text("{}")
    result = call(
        "metric-privacy", "--table", "5", "--table", "7", "--no-run", "--out", str(tmp_path)
    )
    assert result.exit_code == 2
    assert "table-5.json" in result.stderr
    assert "is missing" in result.stderr
    assert (pages / "table-7.json").exists()
    assert not (tmp_path / "claims.md").exists()
    (pages / "table-5.json").unlink()
    assert call("metric-privacy", "--table", "5", "--no-run", "--out", str(tmp_path)).exit_code == 0
    assert (tmp_path / "claims.md").exists()


def call(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["metric-privcy"], "metric-privacy"),
        (["metric-privacy", "--table", "99"], "accepted: 5, 6, 7"),
        (["metric-privacy", "--figure", "D6"], "C2, C3, D4, D5"),
        (["metric-privacy", "--row", "fedsgd"], "--row = 'fedsgd'"),
        (["metric-privacy", "--reading", "other"], "--reading = 'other'"),
        (["metric-privacy", "--seeds", "0"], "--seeds = 0"),
        (["metric-privacy", "--jobs", "0"], "--jobs = 0"),
        (["metric-privacy", "--draws", "1001"], "--draws = 1001"),
        (["metric-privacy", "--workers", "0"], "--workers = 0"),
        (["metric-privacy", "--table", "9"], "accepted: 5, 6, 7, 8, 10"),
        (["metric-privacy", "--table", "10", "--row", "fedyogi"], "is about fedavg alone"),
        (["metric-privacy", "--scale", "tiny"], "small"),
    ],
)
def test_refusals_say_what_exists(arguments, said):
    result = call(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_the_command_lists_and_plans_without_running(tmp_path):
    assert all(name in call("--list").output for name in names())
    listed = call("metric-privacy", "--list").output
    assert all(word in listed for word in ("A14", "D5", "fedadagrad", "more-noise", "24x24"))
    planned = call(
        "metric-privacy",
        "--table",
        "7",
        "--row",
        "fedavg",
        "--dry-run",
        "--out",
        str(tmp_path / "none"),
    )
    assert "3 runs, 0 finished" in planned.output
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", names())
def test_every_figure_that_can_be_asked_for_is_listed(name):
    study = find(name)
    rows = tuple(study.described.rows)
    titles, *_ = contents_tables(study)
    listed = [number for option, number, _ in titles.rows if option == "--figure"]
    assert sorted(listed) == sorted(Reproduction(study, Choices(rows=rows)).figures)


def test_what_is_written(patterns, tmp_path):
    study = tiny_study(patterns, seeds=2)
    run_all(study, tmp_path, ["5"])
    pages = Pages(tmp_path / "pages", study, Store(tmp_path))
    table = pages.table("5")
    values = json.loads(table.read_text())
    assert (values["scale"], values["seeds"], len(values["rows"])) == ("tiny", [0, 1], 3)
    row = values["rows"][1]
    assert row["published"] == {"value": 0.881, "deviation": 0.013}
    assert row["difference"] == pytest.approx(row["value"] - 0.881)
    assert set(row["noise"]) == {"sigma", "noise_to_clip"}
    assert pages.figure("D4").stat().st_size > 10_000
    assert pages.figure("distances") is None
    written = pages.together()
    assert [path.name for path in written] == ["tables.md", "cells.json", "claims.md"]
    cells = json.loads(written[1].read_text())
    assert len(cells["cells"]) == 6
    assert len(cells["cells"][0]["rounds"]["accuracy"]) == 2
    less = Pages(tmp_path / "pages", tiny_study(patterns), Store(tmp_path))
    less.table("5")
    assert json.loads(table.read_text()) == values  # a look at one seed loses nothing
    assert from_json(values["rows"]) == [
        measured(m, finished(study, tmp_path)) for m in study.measurements("5")
    ]


def finished(study, folder):
    return Store(folder).collect(study.cells(Selection.of(study, ["5"]))).outcomes


def test_a_table_says_that_its_runs_are_of_several_versions_of_the_arithmetic(patterns, tmp_path):
    study = tiny_study(patterns)
    run_all(study, tmp_path, ["5"])
    results = [measured(m, finished(study, tmp_path)) for m in study.measurements("5")]
    assert len({r.numerics for r in results}) == 1
    other = dataclasses.replace(results[0], numerics=())  # as in files of the first version
    more = set(result_notes([other, *results[1:]], METRIC)) - set(result_notes(results, METRIC))
    assert len(more) == 1
    assert str(numerics_of(record=False)) in more.pop()


def test_tables_of_other_rows_are_left_out():
    one = Reproduction(METRIC, Choices(rows=("fedyogi",)))
    assert not {"10", "13", "distances"} & set(one.tables)
    assert {"5", "E19"} <= set(one.tables)
    assert "distances" not in one.figures
    with pytest.raises(FieldError, match="--figure = 'distances': is about fedavg alone"):
        Selection.of(one, [], ["distances"])


def test_the_paper_is_the_unit_of_the_noise():
    assert set(METRIC.described.scales) == {"small", "paper"}
    assert noise_factor(METRIC.described.scales["paper"]) == 1


@pytest.mark.few(3)
@pytest.mark.parametrize("name", names())
def test_no_figure_has_more_than_six_panels(coarse, name):
    study = find(name)
    planned = Reproduction(study, Choices())
    for figure in study.described.figures:
        assert len({line.panel for line in planned.lines(figure)}) <= 6, figure
