"""A threshold: on public rows, rehearsed on made-up ones, and never on private ones."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import roc_curve

import fedveil as fv
from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.home import choose_threshold
from fedveil_lab.config import parse
from fedveil_lab.runs import run

runner = CliRunner()


def rows(path, count, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    lines = ["age,outcome"]
    for age in rng.uniform(0, 100, count):
        ill = rng.uniform() < 1 / (1 + np.exp(-(age - 70 - shift) / 8))
        lines.append(f"{age:.3f},{'ill' if ill else 'well'}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threshold")
    own = rows(folder / "own.csv", 200, 0)
    data = {
        "name": "table",
        "path": str(own),
        "target": "outcome",
        "classes": ["ill", "well"],
        "positive": "ill",
    }
    data |= {"columns": {"age": [0, 100]}, "clients": 4}
    local = {"lr": 1.0, "epochs": 10}
    run(
        parse(
            {"name": "t", "rounds": 3, "data": data, "model": {"name": "logistic"}, "local": local}
        ),
        folder / "run",
    )
    return folder, own


def test_the_best_sum_is_where_the_roc_curve_is_highest(made):
    folder, _ = made
    public = rows(folder / "public.csv", 150, 1)
    model = fv.load(folder / "run")
    chosen = choose_threshold(model, public, public="open set")
    truth = np.array([line.endswith("ill") for line in public.read_text().splitlines()[1:]])
    scores = model.read(public).probabilities[:, 1]
    off, on, _ = roc_curve(truth, scores)
    found = chosen.found.figures
    assert found["sensitivity"].value + found["specificity"].value - 1 == pytest.approx(
        (on - off).max()
    )
    assert np.array_equal(
        model.read(public, threshold=chosen.value).labels == "ill", scores >= chosen.value
    )
    assert (chosen.kind, "public" in str(chosen), "rehearsed" in str(chosen)) == (
        "public",
        True,
        False,
    )


@pytest.mark.parametrize("wanted", [0.5, 0.9, 1.0])
def test_a_wanted_sensitivity_is_reached_by_the_highest_threshold(made, wanted):
    folder, _ = made
    public = rows(folder / "more.csv", 150, 2)
    model = fv.load(folder / "run")
    chosen = choose_threshold(model, public, made_up=True, sensitivity=wanted)
    assert "rehearsed" in str(chosen)
    assert chosen.found.figures["sensitivity"].value >= wanted
    truth = np.array([line.endswith("ill") for line in public.read_text().splitlines()[1:]])
    scores = model.read(public).probabilities[:, 1]
    above = np.unique(scores[scores > chosen.value])
    assert not len(above) or (scores[truth] > above[0]).mean() < wanted


def test_private_rows_are_refused_under_whatever_name(made, tmp_path):
    folder, own = made
    model = fv.load(folder / "run")
    for how in ({}, {"public": " "}, {"public": "x", "made_up": True}):
        with pytest.raises(FieldError, match="rows"):
            choose_threshold(model, own, **how)
    copied, part = tmp_path / "open-set.csv", tmp_path / "part.csv"
    copied.write_text(own.read_text())
    lines = own.read_text().splitlines()
    part.write_text("\n".join([lines[0], *reversed(lines[1:60])]) + "\n")
    for file in (own, copied, part):
        done = runner.invoke(
            app, ["threshold", str(folder / "run"), str(file), "--public", "an open set"]
        )
        assert done.exit_code == 2, done.output
        assert "no promise covers" in done.output
    other = rows(tmp_path / "other.csv", 80, 7)
    done = runner.invoke(
        app, ["threshold", str(folder / "run"), str(other), "--public", "an open set"]
    )
    assert done.exit_code == 0, done.output
    assert "an open set" in done.output
    bare = runner.invoke(app, ["threshold", str(folder / "run"), str(other)])
    assert bare.exit_code == 2


def test_nothing_stores_it(made, tmp_path):
    folder, _ = made
    before = {file: file.read_bytes() for file in (folder / "run").rglob("*") if file.is_file()}
    other = rows(tmp_path / "other.csv", 80, 7)
    runner.invoke(app, ["threshold", str(folder / "run"), str(other), "--made-up"])
    assert {
        file: file.read_bytes() for file in (folder / "run").rglob("*") if file.is_file()
    } == before
    assert "threshold" not in json.loads((folder / "run" / "model.json").read_text())


def test_what_has_no_threshold_is_refused(made, tmp_path):
    folder, _ = made
    model = fv.load(folder / "run")
    one = tmp_path / "one.csv"
    one.write_text("age,outcome\n30,well\n40,well\n")
    with pytest.raises(FieldError, match="class"):
        choose_threshold(model, one, made_up=True)
    one.write_text("age\n30\n")
    with pytest.raises(FieldError, match="target"):
        choose_threshold(model, one, made_up=True)
    one.write_text("age,outcome\n30,well\n90,sick\n")
    with pytest.raises(FieldError, match="outcome"):
        choose_threshold(model, one, made_up=True)


def test_own_pictures_are_refused_in_a_folder_and_as_copies(tmp_path):
    from shutil import copytree

    from PIL import Image

    rng = np.random.default_rng(0)
    for label, low in (("dark", 0), ("light", 100)):
        (tmp_path / "set" / label).mkdir(parents=True)
        for i in range(8):
            Image.fromarray(rng.integers(low, low + 120, (8, 8), dtype=np.uint8)).save(
                tmp_path / "set" / label / f"{i}.png"
            )
    data = {"name": "folder", "path": str(tmp_path / "set"), "clients": 2}
    run(
        parse({"name": "p", "rounds": 1, "data": data, "model": {"name": "logistic"}}),
        tmp_path / "run",
    )
    copytree(tmp_path / "set", tmp_path / "copy")
    for place in ("set", "copy"):
        done = runner.invoke(
            app, ["threshold", str(tmp_path / "run"), str(tmp_path / place), "--public", "x"]
        )
        assert done.exit_code == 2, done.output
        assert "no promise covers" in done.output
