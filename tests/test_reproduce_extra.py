"""Reproductions, beyond the paper's tables: equal noise, distances, smoothness, and cells that are found again."""

import dataclasses
import json

import pytest
import torch

from fedveil.errors import FieldError
from fedveil.experiments import parse
from fedveil.experiments.ledgers import replace
from fedveil.layout import Layout
from fedveil.learning import build_model
from fedveil.reproduce import Cell, Runs, Selection, cells_of, measured
from fedveil.reproduce.metric_privacy.distances import DISAGREEMENT, disagreement, divergences, registry
from fedveil.reproduce.metric_privacy.extra import ROUGHNESS
from reproduce_kit import Silent, run_all, tiny_study


@pytest.fixture(scope="module")
def study(patterns):
    return tiny_study(patterns)


@pytest.fixture(scope="module")
def finished(study, tmp_path_factory):
    """Everything that the extra tables need; and where it is."""
    folder = tmp_path_factory.mktemp("study")
    return run_all(study, folder, ["5", "sigma", "smoothness", "distances"]).finished, folder


def found(study, table, finished):
    return {(r.row, r.setting, r.figure): r for r in (measured(e, finished) for e in study.entries(table))}


def test_at_equal_sigma_global_dp_adds_the_average_noise_of_the_other_run(study, finished):
    outcomes, _ = finished
    rows = found(study, "sigma", outcomes)
    metric, equal = rows["FedAvg", "metric", "accuracy"], rows["FedAvg", "equal", "accuracy"]
    assert equal.noise["sigma"] == pytest.approx(metric.noise["sigma"], rel=1e-9)
    sigmas = {row["noise"]["sigma"] for o in outcomes.values() if " equal " in o.cell.label for row in o.summary.rows}
    assert len(sigmas) == 1  # the same in every round
    assert "heuristic" in equal.guarantee  # derived from a private run


def test_the_matched_run_comes_after_the_one_it_matches(study, patterns):
    cells = cells_of(study, Selection.of(study, ["sigma"]))
    assert [cell.label.split()[1] for cell in cells] == ["metric", "equal"]
    alone = [cell for cell in cells if cell.sigma_of is not None]
    other = tiny_study(patterns, readings=("more-noise",))
    assert cells_of(other, Selection.of(other, ["sigma"]))[1].key != alone[0].key


def test_a_matched_run_runs_what_it_matches_first(study, tmp_path):
    cell = cells_of(study, Selection.of(study, ["sigma"]))[1]
    runs = Runs(tmp_path)
    outcome = runs.run(cell, Silent())
    assert runs.state(cell.sigma_of) == "done"
    assert outcome.summary.noise("sigma") == pytest.approx(runs.finished(cell.sigma_of).summary.noise("sigma"))


def test_smoothness_is_the_mean_change_from_round_to_round(study, finished):
    outcomes, _ = finished
    result = found(study, "smoothness", outcomes)["FedAvg", "vanilla", ROUGHNESS]
    [outcome] = [o for o in outcomes.values() if o.folder.name == result.cells[0]]
    first, second = (row["metrics"]["accuracy"] for row in outcome.summary.rows)
    assert result.value == pytest.approx(abs(second - first))


def test_distances_are_those_of_the_models_that_clients_sent(study, finished):
    outcomes, _ = finished
    rows = found(study, "distances", outcomes)
    label = "homogeneous: layer_frobenius"
    [outcome] = [o for o in outcomes.values() if o.folder.name == rows[label, "metric", "mean d"].cells[0]]
    for row in outcome.summary.rows:  # what metric privacy itself measured on the same models
        assert row["watched"]["layer_frobenius"] == pytest.approx(row["noise"]["distance"], rel=1e-5)
        assert 0 <= row["watched"][DISAGREEMENT] <= 1
    ratio = rows[label, "metric", "last / first"].value
    distances = [row["watched"]["layer_frobenius"] for row in outcome.summary.rows]
    assert ratio == pytest.approx(distances[1] / distances[0])
    assert rows[label, "metric", "rank correlation"].value in (-1.0, 1.0, None)  # two rounds


def test_every_distance_on_a_case_to_check_by_hand():
    module = build_model("logistic", input_shape=(1, 1, 2), outputs=2, seed=0)
    layout = Layout.from_module(module)  # a weight [2, 2] and a bias [2]
    models = torch.zeros(3, 6)
    models[1, :2] = torch.tensor([3.0, 4.0])  # the weight of class 0
    models[2, 4:] = torch.tensor([0.0, 12.0])  # the bias of class 1
    x = torch.tensor([[[[1.0, 1.0]]], [[[-1.0, -1.0]]]])
    values = divergences(models, layout, module, x)
    assert values["layer_frobenius"] == pytest.approx((5 + 12) / 2)
    assert values["layer_frobenius, modules"] == values["euclidean"] == pytest.approx(13.0)
    assert values[DISAGREEMENT] == 1  # the first model says class 0 of both images, the last says class 1
    assert disagreement(models[:2], layout, module, x) == 0.5  # the second model: 0, then 1
    assert disagreement(models[:1], layout, module, x) == 0
    assert set(registry()) == {"layer_frobenius", "layer_frobenius, modules", "euclidean"}


def test_a_run_is_found_again_under_the_key_of_an_earlier_version(study, finished):
    _, folder = finished
    runs, cells = Runs(folder), cells_of(study, Selection.of(study, ["5", "sigma"]))
    for cell in (cells[0], cells[-1]):
        path = runs.path(cell)
        moved = path.with_name(f"{path.name[:-12]}{'0' * 12}")
        path.rename(moved)
        assert runs.path(cell) == moved
        assert runs.state(cell) == "done"
        moved.rename(path)


def test_another_run_of_the_same_name_is_not_taken_for_it(study, tmp_path):
    run_all(study, tmp_path, ["5"])
    runs, cell = Runs(tmp_path), cells_of(study, Selection.of(study, ["5"]))[0]
    path = runs.path(cell)
    moved = path.with_name(f"{path.name[:-12]}{'0' * 12}")
    path.rename(moved)
    text = (moved / "config.toml").read_text()
    for other in (text.replace("rounds = 2", "rounds = 3"), "broken = "):
        replace(moved / "config.toml", other.encode())
        assert runs.path(cell) == path
        assert runs.state(cell) == "to run"


def test_a_run_that_measured_more_will_do_but_not_one_that_measured_less(study, finished, tmp_path):
    _, folder = finished
    [plain, *_], [watched, *_] = (cells_of(study, Selection.of(study, [table])) for table in ("5", "distances"))
    assert plain.label == watched.label
    path = Runs(folder).path(plain)
    path.rename(folder / "aside")
    assert Runs(folder).path(plain) == Runs(folder).path(watched)
    (folder / "aside").rename(path)
    run_all(study, tmp_path, ["5"])
    assert Runs(tmp_path).state(plain) == "done"
    assert Runs(tmp_path).state(watched) == "to run"


def test_where_a_cell_was_run_does_not_matter(study):
    cell = cells_of(study, Selection.of(study, ["5"]))[0]
    elsewhere = Cell(cell.label, cell.config.model_copy(update={"device": "cuda", "workers": 8}))
    assert elsewhere.key == cell.key
    assert Cell(cell.label, cell.config.model_copy(update={"seed": 5})).key != cell.key


def test_a_figure_that_is_no_number_is_left_out_and_said(study, finished):
    outcomes, _ = finished
    entry = study.entries("5")[0]
    outcome = outcomes[entry.replicates[0].cells[0].key]
    values = json.loads(json.dumps(dict(outcome.summary.values)))
    values["last_rounds"]["accuracy"]["mean"] = float("nan")
    broken = dataclasses.replace(outcome, summary=dataclasses.replace(outcome.summary, values=values))
    result = measured(entry, {outcome.cell.key: broken})
    assert (result.value, result.undefined, result.missing) == (None, 1, ())


def test_one_client_has_no_distance_and_nobody_to_attack(patterns, tmp_path):
    study = tiny_study(patterns, clients=1)
    done = run_all(study, tmp_path, ["5"])
    metric = found(study, "5", done.finished)["FedAvg", "metric", "accuracy"]
    assert metric.noise["distance"] == 0
    assert metric.noise["sigma"] == found(study, "5", done.finished)["FedAvg", "global", "accuracy"].noise["sigma"]
    with pytest.raises(FieldError, match=r"data\.clients = 1: needs at least two"):
        study.entries("13")


def test_a_cell_that_matches_sigma_is_an_ordinary_configuration(study):
    cell = cells_of(study, Selection.of(study, ["sigma"]))[1]
    assert parse(cell.config.to_dict()).fingerprint() == cell.config.fingerprint()
    assert cell.config.privacy.derived_from == "metric privacy"
