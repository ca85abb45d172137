"""A released model: what the run stores, what a fresh process answers, what is refused by name."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import fedveil as fv
from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.home import DESCRIPTION, Description
from fedveil.methods import build
from fedveil_lab.config import parse
from fedveil_lab.runs import run
from fedveil_lab.runs.deal import deal_out
from fedveil_lab.runs.described import described

runner = CliRunner()


class Net(nn.Module):
    def __init__(self, input_shape, outputs):
        super().__init__()
        self.dense = nn.Linear(int(np.prod(input_shape)), outputs)

    def forward(self, x):
        return self.dense(x.flatten(1))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A table of two hospitals with a gap, a text, and classes of which the first is positive."""
    rng = np.random.default_rng(0)
    lines = ["site,patient,age,sex,bp,outcome"]
    for i in range(60):
        age, sex = int(rng.integers(20, 100)), "fm"[int(rng.integers(2))]
        pressure = "" if i % 7 == 0 else str(int(rng.integers(90, 180)))
        lines.append(
            f"{'north' if i % 2 else 'south'},p{i},{age},{sex},{pressure},{'ill' if age > 60 else 'well'}"
        )
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def table(path, **changes):
    data = {
        "name": "table",
        "path": str(path),
        "target": "outcome",
        "classes": ["ill", "well"],
        "positive": "ill",
        "columns": {"sex": ["f", "m"], "age": [0, 120], "bp": [60, 200]},
        "missing": {"bp": "indicator"},
        "client_column": "site",
        "person": "patient",
        "clients": "natural",
    }
    values = {
        "name": "home",
        "rounds": 2,
        "model": {"name": "mlp", "hidden": [8]},
        "data": {**data, **changes},
    }
    return parse({**values, "local": {"lr": 0.3, "epochs": 5}})


@pytest.fixture(scope="module")
def finished(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "mine"
    config = table(rows)
    private = {"method": "global", "noise_multiplier": 1.0, "clip": 1.0}
    summary = run(parse({**config.to_dict(), "privacy": private}), folder)
    return folder, summary


def test_the_run_stores_what_its_model_takes(finished):
    folder, summary = finished
    about = Description.read(folder / DESCRIPTION)
    assert (about.classes, about.positive, about.positive_named) == (("well", "ill"), "ill", True)
    assert [name for name, _ in about.inputs["columns"]] == [
        "sex",
        "age",
        "bp",
    ]  # as they are declared
    assert about.promise["text"] == summary.values["guarantee"]
    for words in ("zero-out", "client", "central", "total"):
        assert words in about.promise["text"]
    assert about.version == fv.__version__
    text = (folder / DESCRIPTION).read_text()
    assert "rows.csv" not in text
    assert "accuracy" not in text
    assert "seed" not in json.loads(text)


def test_the_same_rows_have_the_same_answers_as_in_the_run(finished, rows):
    folder, _ = finished
    config = fv.config.load(folder)
    dealt = deal_out(config.data, config.seed)
    model = fv.load(folder)
    answer = model.read(rows)
    assert answer.classes == dealt.dataset.names()
    again = model.predict_proba(dealt.dataset.x)
    assert np.array_equal(answer.probabilities, again)
    assert answer.probabilities[0].sum() == pytest.approx(1)
    assert set(answer.labels.tolist()) <= {"ill", "well"}
    module = fv.learning.build_model("mlp", input_shape=(5,), outputs=2, seed=3, hidden=[8])
    from safetensors.torch import load_file

    module.load_state_dict(load_file(folder / "model.safetensors"))
    with torch.no_grad():
        assert np.allclose(module(dealt.dataset.x).softmax(1), again, atol=1e-6)


def test_a_fresh_process_answers(finished, rows, tmp_path):
    folder, _ = finished
    new = tmp_path / "new.csv"
    new.write_text("age,sex,bp\n90,f,120\n30,m,\n")
    out = tmp_path / "said.csv"
    code = f"from fedveil.cli import main; import sys; sys.argv = ['fedveil', 'predict', {str(folder)!r}, {str(new)!r}, "
    code += f"'--out', {str(out)!r}]; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "zero-out, client, central, total" in done.stdout
    lines = out.read_text().splitlines()
    assert lines[0] == "row,predicted,well,ill"
    assert len(lines) == 3
    expected = fv.load(folder).read(new).probabilities
    assert [float(v) for v in lines[1].split(",")[2:]] == pytest.approx(
        expected[0].tolist(), abs=1e-5
    )


def test_new_rows_are_written_as_the_runs_own_were(tmp_path):
    """A spreadsheet's export of another alphabet was refused, with a key that predict does not take."""
    path = tmp_path / "rows.csv"
    lines = [f"{20 + i};{'Köln' if i % 2 else 'München'};{i % 2}" for i in range(20)]
    path.write_text("\n".join(["alter;ort;krank", *lines]), encoding="cp1252")
    own = {
        "columns": {"alter": [0, 100], "ort": ["Köln", "München"]},
        "target": "krank",
        "classes": 2,
    }
    data = {
        "name": "table",
        "path": str(path),
        "separator": ";",
        "encoding": "cp1252",
        "clients": 2,
        **own,
    }
    run(
        parse({"name": "abroad", "rounds": 1, "data": data, "model": {"name": "logistic"}}),
        tmp_path / "run",
    )
    assert len(fv.load(tmp_path / "run").read(path).labels) == 20


def test_what_cannot_be_read_is_named(finished, tmp_path):
    folder, _ = finished
    model = fv.load(folder)
    new = tmp_path / "new.csv"
    for text, field in (
        ("age,sex\n90,f\n", "bp"),
        ("age,sex,bp\n200,f,100\n", "age"),
        ("age,sex,bp\n90,x,100\n", "sex"),
        ("age,sex,bp\n,f,100\n", "age"),
    ):
        new.write_text(text)
        with pytest.raises(FieldError, match=field):
            model.read(new)
    with pytest.raises(FieldError, match="x"):
        model.predict(torch.zeros(2, 4))
    with pytest.raises(FieldError, match="x"):
        model.predict(torch.full((1, 5), float("nan")))
    with pytest.raises(FieldError, match="neither"):
        model.read(tmp_path / "nothing.csv")


def test_a_threshold_is_of_the_named_class(finished, rows):
    model = fv.load(finished[0])
    chances = model.read(rows).probabilities[:, model.classes.index("ill")]
    for cut in (0.2, 0.7):
        assert np.array_equal(model.read(rows, threshold=cut).labels == "ill", chances >= cut)
    with pytest.raises(FieldError, match="threshold"):
        model.read(rows, threshold=1.0)


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_an_export_has_weights_words_and_a_card(finished, tmp_path, kind):
    folder, _ = finished
    done = runner.invoke(app, ["export", str(folder), "--to", kind, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    card = (tmp_path / "out" / "README.md").read_text()
    front = card.split("---")[1]
    assert "pipeline_tag: tabular-classification" in front
    assert "zero-out, client, central, total" in card
    assert "not for deployment" in card  # the seed is known
    everything = card + (tmp_path / "out" / DESCRIPTION).read_text()
    for private in ("rows.csv", str(folder), "p17", "north", "accuracy"):
        assert private not in everything
    if kind == "safetensors":
        x = torch.rand(3, 5)
        assert np.array_equal(
            fv.load(tmp_path / "out").predict_proba(x), fv.load(folder).predict_proba(x)
        )
    else:
        state = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
        assert set(state) == {"dense1.weight", "dense1.bias", "dense2.weight", "dense2.bias"}
        with pytest.raises(FieldError, match="pickle"):
            fv.load(tmp_path / "out")
    again = runner.invoke(
        app, ["export", str(folder), "--to", kind, "--out", str(tmp_path / "out")]
    )
    assert again.exit_code == 2


def test_an_earlier_folder_is_described_anew_or_says_what_it_lacks(finished, rows, tmp_path):
    import shutil

    folder, _ = finished
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    (old / DESCRIPTION).unlink()
    with pytest.raises(FieldError, match="classes"):
        fv.load(old)
    assert described(old) == described(folder)
    config = (old / "config.toml").read_text()
    (old / "config.toml").write_text(config.replace("rows.csv", "gone.csv"))
    with pytest.raises(FieldError, match="lacks"):
        described(old)
    other = tmp_path / "other.csv"
    other.write_text(rows.read_text().replace("p0,", "p0x,", 1))
    (old / "config.toml").write_text(config.replace(str(rows), str(other)))
    text = other.read_text().splitlines()
    other.write_text(
        "\n".join([*text[:-1], text[-1].replace("ill", "well").replace(",m,", ",f,")]) + "\n"
    )
    changed = deal_out(fv.config.load(old).data, 0).dataset
    same = deal_out(fv.config.load(folder).data, 0).dataset
    if not torch.equal(changed.x, same.x) or not torch.equal(changed.y, same.y):
        with pytest.raises(FieldError, match="not the run's"):
            described(old)


def test_a_damaged_or_unfinished_folder_is_refused(finished, tmp_path):
    import shutil

    folder, _ = finished
    with pytest.raises(FieldError, match="no folder"):
        fv.load(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FieldError, match="safetensors"):
        fv.load(tmp_path / "empty")
    spoilt = tmp_path / "spoilt"
    shutil.copytree(folder, spoilt)
    weights = bytearray((spoilt / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (spoilt / "model.safetensors").write_bytes(weights)
    with pytest.raises(FieldError, match="restore"):
        fv.load(spoilt)
    for key, value in (
        ("format", "other"),
        ("classes", ["a", "a"]),
        ("outputs", 0),
        ("meaning", "x"),
        ("more", 1),
    ):
        values = json.loads((folder / DESCRIPTION).read_text())
        values[key] = value
        (spoilt / DESCRIPTION).write_text(json.dumps(values))
        with pytest.raises(FieldError, match=key):
            fv.load(spoilt)


def test_code_of_others_is_not_imported_on_a_files_word(rows, tmp_path):
    config = parse({**table(rows).to_dict(), "rounds": 1, "model": {"name": f"{__name__}:Net"}})
    run(config, tmp_path / "own")
    with pytest.raises(FieldError, match="network"):
        fv.load(tmp_path / "own")
    by_hand = fv.load(tmp_path / "own", model=Net((5,), 2))
    named = fv.load(tmp_path / "own", model=f"{__name__}:Net")
    x = torch.rand(4, 5)
    assert np.array_equal(by_hand.predict_proba(x), named.predict_proba(x))
    with pytest.raises(FieldError, match="fit"):
        fv.load(tmp_path / "own", model=nn.Linear(5, 2))
    done = runner.invoke(
        app, ["predict", str(tmp_path / "own"), str(rows), "--out", str(tmp_path / "p.csv")]
    )
    assert done.exit_code == 0, done.output  # a run of one's own, as `fedveil run FOLDER` takes it


def test_a_regression_answers_in_the_targets_units(tmp_path):
    lines = ["age,cost"] + [f"{age},{age * 10}" for age in range(20, 80)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    data = {
        "name": "table",
        "path": str(tmp_path / "t.csv"),
        "target": "cost",
        "target_range": [0, 1000],
    }
    data |= {"columns": {"age": [0, 100]}, "clients": 3}
    local = {"loss": "mse", "lr": 0.5, "epochs": 60, "batch_size": 8}
    values = {"name": "r", "rounds": 3, "data": data, "model": {"name": "logistic"}, "local": local}
    run(parse(values), tmp_path / "run")
    model = fv.load(tmp_path / "run")
    (tmp_path / "n.csv").write_text("age\n30\n70\n")
    assert model.read(tmp_path / "n.csv").labels.tolist() == pytest.approx([300, 700], abs=60)
    with pytest.raises(FieldError, match="predict_proba"):
        model.predict_proba(torch.zeros(1, 1))
    with pytest.raises(FieldError, match="threshold"):
        model.predict(torch.zeros(1, 1), threshold=0.3)


def test_columns_that_each_site_scales_need_the_sites_own_rows(rows, tmp_path):
    changes = {"scale": "client", "columns": ["age"], "missing": {}, "positive": "ill"}
    run(table(rows, **changes), tmp_path / "run")
    model = fv.load(tmp_path / "run")
    with pytest.raises(FieldError, match="--reference"):
        model.read(rows)
    answer = model.read(rows, reference=rows)
    ages = np.array([float(line.split(",")[2]) for line in rows.read_text().splitlines()[1:]])
    scaled = torch.tensor((ages - ages.mean()) / ages.std(), dtype=torch.float32)[:, None]
    assert np.allclose(answer.probabilities, model.predict_proba(scaled), atol=1e-5)


def test_several_hypotheses_are_chosen_by_number(rows, tmp_path):
    private = {"method": "group", "hypotheses": 2, "noise_multiplier": 1.0}
    values = {**table(rows).to_dict(), "rounds": 1, "privacy": private}
    values.pop("aggregator")
    run(parse(values), tmp_path / "run")
    with pytest.raises(FieldError, match="hypothesis"):
        fv.load(tmp_path / "run")
    x = torch.rand(3, 5)
    first, second = (fv.load(tmp_path / "run", hypothesis=j).predict_proba(x) for j in (0, 1))
    assert not np.array_equal(first, second)
    with pytest.raises(FieldError, match="hypothesis"):
        fv.load(tmp_path / "run", hypothesis=2)
    done = runner.invoke(app, ["export", str(tmp_path / "run"), "--hypothesis", "1"])
    assert done.exit_code == 0, done.output
    assert np.array_equal(fv.load(tmp_path / "run" / "export").predict_proba(x), second)


def test_pictures_are_read_as_the_runs_were(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for label, low in (("dark", 0), ("light", 155)):
        (tmp_path / "set" / label).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(low, low + 100, (10, 10), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / label / f"{i}.png")
    data = {"name": "folder", "path": str(tmp_path / "set"), "size": [8, 8], "clients": 2}
    values = {
        "name": "p",
        "rounds": 2,
        "data": data,
        "model": {"name": "logistic"},
        "local": {"lr": 0.5, "epochs": 20},
    }
    run(parse(values), tmp_path / "run")
    model = fv.load(tmp_path / "run")
    answer = model.read(tmp_path / "set")
    assert [name.split("/")[0] for name in answer.names] == answer.labels.tolist()
    colour = tmp_path / "c.png"
    Image.fromarray(rng.integers(0, 255, (10, 10, 3), dtype=np.uint8)).save(colour)
    with pytest.raises(FieldError, match="x"):
        model.read(colour)


def test_a_servers_folder_says_what_it_lacks_and_takes_it_from_a_configuration(
    finished, rows, tmp_path
):
    folder, _ = finished
    served = tmp_path / "served"
    served.mkdir()
    for name in ("model.safetensors", "summary.json"):
        (served / name).write_bytes((folder / name).read_bytes())
    done = runner.invoke(app, ["predict", str(served), str(rows)])
    assert done.exit_code == 2
    assert "scaling" in done.output
    assert "--config" in done.output
    (tmp_path / "c.toml").write_text((folder / "config.toml").read_text())
    out = tmp_path / "p.csv"
    done = runner.invoke(
        app,
        [
            "predict",
            str(served),
            str(rows),
            "--config",
            str(tmp_path / "c.toml"),
            "--out",
            str(out),
        ],
    )
    assert done.exit_code == 0, done.output
    assert len(out.read_text().splitlines()) == 61


def test_a_description_gives_back_what_it_is(finished):
    about = Description.read(finished[0] / DESCRIPTION)
    file = finished[0].parent / "again.json"
    file.write_text(about.to_text())
    assert Description.read(file) == about
    with pytest.raises(FieldError, match="positive"):
        replace(about, positive="none of them")


@pytest.mark.flower
def test_a_server_that_is_told_what_its_model_takes_stores_it(rows, tmp_path):
    pytest.importorskip("flwr")
    from flwr.serverapp import ServerApp

    from fedveil.flower import (
        FedVeilStrategy,
        InProcessGrid,
        ServerFolder,
        learner_client_app,
        run_in_process,
        to_arrays,
    )
    from fedveil.home import describe

    dataset = deal_out(table(rows).data, 0).dataset
    module = fv.learning.build_model("mlp", input_shape=(5,), outputs=2, seed=0, hidden=[8])
    about = describe(module, "mlp", {"hidden": [8]}, dataset, "cross_entropy")
    with pytest.raises(FieldError, match="about"):
        ServerFolder(tmp_path / "served", about={})
    layout, private = fv.Layout.from_module(module), build("global", noise_multiplier=1.0, clip=1.0)
    learner = fv.Learner(module, layout, fv.LocalTraining(lr=0.3))
    clients = [fv.ClientData(dataset.x[i::2], dataset.y[i::2]) for i in range(2)]
    client = learner_client_app(learner, clients, private, seed=0)
    served = ServerFolder(tmp_path / "served", about=about)
    strategy = FedVeilStrategy(private, layout, rounds=1, folder=served, evaluate=False)
    server = ServerApp()

    @server.main()
    def main(grid, context):
        strategy.start(grid, to_arrays(layout, layout.read(module)), num_rounds=1)

    run_in_process(server, grid=InProcessGrid(client, [{"partition-id": i} for i in range(2)]))
    model = fv.load(tmp_path / "served")
    assert model.read(rows).classes == ("well", "ill")
    assert model.promise == strategy.guarantee.describe(1e-5)
    done = runner.invoke(app, ["export", str(tmp_path / "served")])
    assert done.exit_code == 0, done.output
