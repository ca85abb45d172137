"""What the study of metric privacy measures, and cells that share a run or must not."""

import dataclasses
import json

import pytest
import torch

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import build_model
from fedveil_lab.config import parse
from fedveil_lab.grid import Store
from fedveil_studies.frame import Choices, Reproduction, Selection, find
from fedveil_studies.frame.measure import measured
from fedveil_studies.metric_privacy.measures import (
    DISAGREEMENT,
    disagreement,
    divergences,
    registry,
)
from papers_kit import Silent, Told, results, run_all, tiny_study


@pytest.fixture(scope="module")
def study(patterns):
    return tiny_study(patterns)


@pytest.fixture(scope="module")
def finished(study, tmp_path_factory):
    """Everything that the extra tables need."""
    return run_all(
        study, tmp_path_factory.mktemp("study"), ["5", "sigma", "smoothness", "distances"]
    )


def cells_of(study, table):
    return study.cells(Selection.of(study, [table]))


def outcome_of(finished, result):
    [outcome] = [o for o in finished.outcomes.values() if o.folder.name == result.cells[0]]
    return outcome


@pytest.mark.slow
def test_at_equal_sigma_global_dp_adds_the_average_noise_of_the_other_run(study, finished):
    rows = results(study, "sigma", finished)
    metric, equal = rows["FedAvg", "metric", "accuracy"], rows["FedAvg", "equal", "accuracy"]
    assert equal.noise["sigma"] == pytest.approx(metric.noise["sigma"], rel=1e-9)
    assert len(set(outcome_of(finished, equal).series("sigma"))) == 1  # the same in every round
    assert "heuristic" in equal.guarantee  # derived from a private run


def test_the_matched_run_comes_after_the_one_it_matches_and_follows_its_reading(
    study, patterns, tmp_path
):
    cells = cells_of(study, "sigma")
    assert [cell.label.split()[1] for cell in cells] == ["metric", "equal"]
    other = cells_of(tiny_study(patterns, readings=("more-noise",)), "sigma")
    assert other[1].key != cells[1].key
    outcome = Store(tmp_path).run([cells[1]], Silent()).outcomes[cells[1].key]
    assert outcome.summary.noise("sigma") == pytest.approx(
        Store(tmp_path).find(cells[0]).summary.noise("sigma")
    )
    assert Store(tmp_path).state(other[1]) == "to run"


def test_settings_of_one_comparison_step_from_the_same_model(patterns):
    study = tiny_study(patterns, readings=("own-model",), rows=("fedavgm",))
    stepped = {c.label.split()[1]: c.config.privacy for c in cells_of(study, "sigma")}
    assert {stepped[s].options["step_from"] for s in ("metric", "equal")} == {"own"}


def test_a_cell_that_matches_sigma_is_an_ordinary_configuration(study):
    cell = cells_of(study, "sigma")[1]
    assert parse(cell.config.to_dict()).fingerprint() == cell.config.fingerprint()
    assert cell.config.privacy.options["derived_from"] == "metric privacy"


def test_smoothness_is_the_mean_change_from_round_to_round(study, finished):
    result = results(study, "smoothness", finished)["FedAvg", "vanilla", "change a round"]
    first, second = outcome_of(finished, result).series("accuracy")
    assert result.value == pytest.approx(abs(second - first))


def test_distances_are_those_of_the_models_that_clients_sent(study, finished):
    rows = results(study, "distances", finished)
    label = "homogeneous: layer_frobenius"
    outcome = outcome_of(finished, rows[label, "metric", "mean d"])
    for row in outcome.rows:  # what metric privacy itself measured on the same models
        assert row["figures"]["layer_frobenius"] == pytest.approx(
            row["noise"]["distance"], rel=1e-5
        )
        assert 0 <= row["figures"][DISAGREEMENT] <= 1
    distances = outcome.series("layer_frobenius")
    assert rows[label, "metric", "last / first"].value == pytest.approx(distances[1] / distances[0])
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
    assert (
        values[DISAGREEMENT] == 1
    )  # the first model says class 0 of both images, the last says class 1
    assert disagreement(models[:2], layout, module, x) == 0.5  # the second model: 0, then 1
    assert disagreement(models[:1], layout, module, x) == 0
    assert set(registry()) == {"layer_frobenius", "layer_frobenius, modules", "euclidean"}


def test_a_figure_that_is_no_number_is_left_out_and_said(study, finished):
    one = study.measurements("5")[0]
    outcome = finished.outcomes[one.cells[0].key]
    rows = json.loads(json.dumps(outcome.summary.rows))
    rows[-1]["metrics"]["accuracy"] = float("nan")
    broken = dataclasses.replace(outcome, summary=dataclasses.replace(outcome.summary, rows=rows))
    result = measured(one, {outcome.cell.key: broken})
    assert (result.value, result.undefined, result.missing) == (None, 1, ())


def test_one_client_has_no_distance_and_nobody_to_attack(patterns, tmp_path):
    study = tiny_study(patterns, clients=1)
    found = results(study, "5", run_all(study, tmp_path, ["5"]))
    metric = found["FedAvg", "metric", "accuracy"]
    assert metric.noise["distance"] == 0
    assert metric.noise["sigma"] == found["FedAvg", "global", "accuracy"].noise["sigma"]
    with pytest.raises(FieldError, match=r"data\.clients = 1: needs at least two"):
        study.measurements("13")


def test_readings_have_one_order():
    one, other = (
        Reproduction(find("metric-privacy"), Choices(readings=names))
        for names in (("uniform", "more-noise", "uniform"), ("more-noise", "uniform"))
    )
    assert one.choices.readings == other.choices.readings == ("more-noise", "uniform")


def test_seeds_that_were_stored_are_kept_one_by_one():
    far = Reproduction(find("metric-privacy"), Choices(seed=7, rows=("fedprox",)))
    rows = [{"row": "FedAvg"}, {"row": "FedAvgM, z = 0.05"}]
    kept = far.with_stored({"rows": rows, "seeds": [0, 100_000], "draws": 20})
    assert kept.seeds == (0, 7, 100_000)
    assert kept.rows == ("fedavg", "fedavgm", "fedprox")
    assert kept.choices.draws == 20


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="there is a GPU, on which the run would go on"
)
def test_a_run_goes_on_on_the_device_it_was_begun_on(patterns, tmp_path):
    study = tiny_study(patterns)
    with pytest.raises(KeyboardInterrupt):
        run_all(study, tmp_path, ["5"], progress=Told(rounds=1))
    [begun] = (tmp_path / "cells").iterdir()
    config = begun / "config.toml"
    config.write_text(config.read_text().replace('device = "cpu"', 'device = "cuda"'))
    with pytest.raises(FieldError, match=f"--device = 'cpu': .*{begun.name} was begun on 'cuda'"):
        run_all(study, tmp_path, ["5"])


def test_a_probe_is_named_by_what_is_not_at_its_default(study):
    """An option of data that is learned later must not change the keys of cells."""
    [probe] = cells_of(study, "distances")[0].probes
    assert '"partition": "counts"' in probe.name
    assert not any(
        f'"{key}"' in probe.name for key in ("pixel_noise", "min_size", "public_examples")
    )
