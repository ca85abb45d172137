"""What a physician asks of a run: the named class, patients, hospitals by name, and where none of it goes."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import confusion_matrix, roc_auc_score

import fedveil as fv
from fedveil.cli import app
from fedveil_lab.config import parse
from fedveil_lab.report.classified import classes_figure, classified_tables, compared_table
from fedveil_lab.runs import run

runner = CliRunner()


def config(path, **changes):
    data = {
        "name": "table",
        "path": str(path),
        "target": "outcome",
        "classes": ["ill", "well"],
        "positive": "ill",
    }
    data |= {
        "columns": {"age": [0, 100]},
        "client_column": "site",
        "person": "patient",
        "clients": "natural",
    }
    local = {"lr": 1.0, "epochs": 10}
    values = {
        "name": "m",
        "rounds": 3,
        "data": {**data, "holdout": 0.4},
        "model": {"name": "logistic"},
        "local": local,
    }
    return parse({**values, **changes})


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """Three visits each of forty patients at two hospitals; every fifth patient is ill."""
    lines = ["site,patient,age,outcome"]
    for person in range(40):
        ill = person % 5 == 0
        for visit in range(3):
            age = (80 if ill else 40) + 3 * visit - person % 7
            lines.append(
                f"{'Northgate' if person % 2 else 'Southgate'},p{person},{age},{'ill' if ill else 'well'}"
            )
    path = tmp_path_factory.mktemp("visits") / "visits.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def finished(visits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "m"
    return folder, run(config(visits), folder)


def test_the_runs_figures_are_those_of_its_model_on_the_held_out_patients(finished, visits):
    folder, summary = finished
    found = summary.values["classified"]["pooled"]
    assert (found["positive"], found["classes"]) == ("ill", ["well", "ill"])
    assert found["rows"] == 3 * found["persons"]  # whole patients are held out
    for name in ("accuracy", "auc", "balanced_accuracy", "sensitivity", "specificity"):
        assert found["figures"][name]["value"] == pytest.approx(summary.values["metrics"][name])
    model = fv.load(folder)
    dealt = fv.runs.prepare.prepare(config(visits)).clients
    x, y = (
        np.concatenate([np.asarray(getattr(c, part)) for c in dealt])
        for part in ("test_x", "test_y")
    )
    chances = model.predict_proba(x)
    assert found["confusion"] == confusion_matrix(y, chances.argmax(1)).tolist()
    assert found["figures"]["auc"]["value"] == pytest.approx(roc_auc_score(y, chances[:, 1]))


def test_hospitals_stand_by_name_in_the_experimenters_output_alone(finished):
    folder, summary = finished
    tables = classified_tables(summary)
    text = "\n".join(table.text(200) for table in tables)
    assert "Northgate" in text
    assert "patients" in text
    assert any("no promise covers" in note for table in tables for note in table.notes)
    stored = (folder / "model.json").read_text()
    done = runner.invoke(app, ["export", str(folder), "--out", str(folder / "out")])
    assert done.exit_code == 0
    card = (folder / "out" / "README.md").read_text()
    for private in ("Northgate", "0.9", 'threshold":'):
        assert private not in card
    assert "Northgate" not in stored


def test_one_line_of_json_holds_all_of_it(visits, tmp_path):
    (tmp_path / "c.toml").write_text(config(visits).to_toml())
    done = runner.invoke(
        app, ["--json", "run", str(tmp_path / "c.toml"), "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout.splitlines()[0])
    assert "pooled" in json.dumps(values)
    assert len(done.stdout.splitlines()) == 1


def test_a_comparison_has_intervals_and_a_picture(visits, tmp_path):
    private = {"label": "noise", "method": "global", "noise_multiplier": 1.0, "clip": 1.0}
    compared = config(
        visits, compare={"settings": [{"label": "none", "method": "vanilla"}, private]}
    )
    summaries = fv.grid.compare(compared, tmp_path / "c")
    [table] = compared_table(summaries)
    assert [row[0] for row in table.rows] == ["none", "noise"]
    assert all(" to " in str(cell) for row in table.rows for cell in row[1:])
    figure = classes_figure(summaries)
    assert [axes.get_ylabel() for axes in figure.axes][:1] == ["ROC AUC"]


def test_of_several_classes_each_is_measured_against_the_rest():
    values = {
        "name": "d",
        "rounds": 2,
        "data": {"name": "digits", "clients": 3},
        "model": {"name": "logistic"},
    }
    summary = run(parse(values))
    found = summary.values["classified"]["pooled"]
    assert set(found["by_class"]) == {str(c) for c in range(10)}
    assert found["persons"] == 0
    assert classes_figure([summary]) is None
    assert classified_tables(summary)


def test_a_regression_has_none(tmp_path):
    lines = ["age,cost"] + [f"{age},{age * 10}" for age in range(20, 80)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    data = {
        "name": "table",
        "path": str(tmp_path / "t.csv"),
        "target": "cost",
        "target_range": [0, 1000],
    }
    data |= {"columns": {"age": [0, 100]}, "clients": 3}
    values = {
        "name": "r",
        "rounds": 1,
        "data": data,
        "model": {"name": "logistic"},
        "local": {"loss": "mse"},
    }
    summary = run(parse(values))
    assert "classified" not in summary.values
    assert classified_tables(summary) == []
    assert compared_table([summary]) == []
