"""From a configuration to a run on each kind of data; who holds what, on the command line."""

import csv
import json
import os
import tomllib

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from fedveil import Federation
from fedveil.cli import app
from fedveil.data import DataSet, federate
from fedveil.errors import FieldError
from fedveil.learning import LocalTraining
from fedveil.methods import build
from fedveil_lab.config import ConfigError, parse
from fedveil_lab.runs import run
from fedveil_lab.runs.deal import Dealt, deal_out
from fedveil_lab.runs.models import check_fit
from fedveil_lab.runs.prepare import prepare
from fedveil_lab.runs.runner import Silent

runner = CliRunner()


def spec(data, model="logistic", **changes):
    return parse({"name": "tiny", "rounds": 1, "data": data, "model": {"name": model}, **changes})


class Listening(Silent):
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["site,age,cost,ill"]
    for site, count in (("north", 12), ("south", 9), ("east", 1)):
        lines += [f"{site},{age},{age * 10},{int(age > 50)}" for age in rng.integers(0, 100, count)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    return tmp_path / "t.csv"


@pytest.mark.parametrize("order", [("cost", "age"), ("age", "cost")])
def test_a_network_gets_the_columns_in_the_order_in_which_they_are_declared(table, order):
    """They came by their names' alphabet, whatever the file said: a network of one's own took one for the other."""
    ranges = {"cost": [0, 1000], "age": [0, 200]}
    data = {"name": "table", "path": str(table), "target": "ill", "classes": 2, "clients": 2}
    config = spec({**data, "columns": {name: ranges[name] for name in order}})
    written = np.loadtxt(table, delimiter=",", skiprows=1, usecols=(1, 2))
    wanted = np.stack(
        [written[:, 0] / 200 if name == "age" else written[:, 1] / 1000 for name in order], 1
    )
    again = parse(tomllib.loads(config.to_toml()))
    for one in (config, again):
        np.testing.assert_allclose(deal_out(one.data, 0).dataset.x.numpy(), wanted, rtol=1e-6)


def test_a_table_with_natural_clients(table, tmp_path):
    data = {
        "name": "table",
        "path": str(table),
        "target": "ill",
        "classes": 2,
        "columns": {"age": [0, 100]},
    }
    config = spec({**data, "client_column": "site", "clients": "natural"}, clients_per_round=3)
    listening = Listening()
    summary = run(config, tmp_path / "run", progress=listening)
    assert (summary.values["clients"], summary.values["metrics"]["examples"]) == (3, 4)
    assert any(
        "1 of 3 clients hold a single example to train on (east)" in line for line in listening.said
    )
    assert summary.values["data"]["warnings"] == listening.said
    stored = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (stored["data"]["clients"], stored["data"]["partition"]) == ("natural", "natural")
    assert stored["data"]["columns"] == {"age": [0, 100]}
    assert parse(stored) == config


def test_a_refusal_names_the_users_file_as_it_is(table, tmp_path):
    table.write_text(table.read_text().replace("east,", "east,nan", 1))
    data = {
        "name": "table",
        "path": str(table),
        "target": "ill",
        "classes": 2,
        "columns": {"age": [0, 100]},
    }
    with pytest.raises(FieldError, match=r"^t\.csv, row 22 \(line 23\), column age"):
        run(spec({**data, "client_column": "site", "clients": "natural"}), tmp_path / "run")


def test_a_regression_with_scaling_on_each_client(table):
    data = {
        "name": "table",
        "path": str(table),
        "target": "cost",
        "target_range": [0, 1000],
        "columns": ["age"],
    }
    data |= {
        "scale": "client",
        "client_column": "site",
        "clients": 2,
        "partition": "natural",
        "public_examples": 3,
    }
    config = spec({**data, "min_size": 2}, local={"loss": "mse"})
    setup = prepare(config)
    assert float(setup.dealt.public.x.mean()) == pytest.approx(0, abs=1e-6)
    assert run(config).values["metrics"]["rmse"] > 0
    with pytest.raises(
        FieldError, match=r"local\.loss = 'cross_entropy': 'table' has targets: use 'mse'"
    ):
        prepare(spec({**data, "min_size": 2}))


def test_a_folder(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for client in ("a", "b"):
        for label, level in (("dark", 0), ("light", 255)):
            (tmp_path / "set" / client / label).mkdir(parents=True)
            for i in range(3):
                image.fromarray(np.full((8, 8), level, np.uint8)).save(
                    tmp_path / "set" / client / label / f"{i}.png"
                )
    data = {
        "name": "folder",
        "path": str(tmp_path / "set"),
        "layout": "clients",
        "clients": "natural",
        "holdout": 0.4,
    }
    assert run(spec(data, local={"epochs": 20})).values["metrics"]["accuracy"] == 1.0


def test_an_npz_file_with_its_clients_dealt_out_every_way(tmp_path):
    y = np.arange(24) % 3
    np.savez(tmp_path / "a.npz", x=np.eye(3)[y], y=y, site=np.repeat(["a", "b", "c"], 8))
    data = {"name": "npz", "path": str(tmp_path / "a.npz"), "client_array": "site"}
    kinds = [{"clients": "natural"}, {"clients": 2, "partition": "natural"}]
    kinds += [
        {"clients": 4, "partition": "quantity", "alpha": 1.0},
        {"clients": 3, "partition": "shards", "shards": 1},
    ]
    counts = [run(spec({**data, **kind})).values["clients"] for kind in kinds]
    assert counts == [3, 2, 4, 3]


def test_where_something_is_promised_no_label_says_how_many_classes_there_are(tmp_path):
    # with the largest label in one record alone, the model's shape told whether it is there
    y = np.arange(24) % 3
    np.savez(tmp_path / "a.npz", x=np.eye(3)[y], y=y)
    data = {"name": "npz", "path": str(tmp_path / "a.npz"), "clients": 3}
    promising = [
        {"method": "global"},
        {"method": "record", "relation": "replace-one", "examples": 6},
    ]
    promising = [{**one, "noise_multiplier": 1.0, "clip": 1.0} for one in promising] + [
        {"method": "sga-ldp"}
    ]
    for privacy in promising:
        for zero in ({}, {"classes": 0}):
            with pytest.raises(FieldError, match=r"data\.classes = 3"):
                prepare(spec({**data, **zero}, privacy=privacy))
        assert prepare(spec({**data, "classes": 3}, privacy=privacy)).dealt.dataset.classes == 3
    assert (
        prepare(spec(data, privacy={"method": "vanilla"})).dealt.dataset.classes == 3
    )  # nothing is promised
    named = {"name": "digits", "clients": 3}  # which knows its classes
    assert prepare(spec(named, privacy=promising[0])).dealt.dataset.classes == 10


def test_a_hugging_face_set(tmp_path):
    library = pytest.importorskip("datasets")
    rows = {"v": [0.1, 0.9] * 6, "label": [0, 1] * 6, "site": ["a", "a", "b", "b"] * 3}
    library.Dataset.from_dict(rows).save_to_disk(tmp_path / "set")
    data = {
        "name": "huggingface",
        "path": str(tmp_path / "set"),
        "classes": 2,
        "columns": {"v": [0, 1]},
    }
    assert run(spec({**data, "client_column": "site", "clients": "natural"})).values["clients"] == 2


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"clients": "natrual"}, "data.clients = 'natrual': must be a whole number, or 'natural'"),
        ({"clients": True}, "data.clients = True: must be a whole number"),
        ({"clients": 0}, "data.clients = 0: must be a whole number of at least 1"),
        (
            {"clients": "natural", "partition": "iid"},
            "data.partition = 'iid': natural clients are not dealt out",
        ),
        ({"clients": 2, "partition": "shard"}, "data.partition = 'shard': did you mean 'shards'?"),
        ({"clients": 2, "shards": 1.5}, "data.shards = 1.5: must be a whole number"),
    ],
)
def test_configurations_that_do_not_fit(data, expected):
    with pytest.raises(ConfigError) as caught:
        spec({"name": "digits", **data})
    assert expected in str(caught.value)


def test_an_option_of_another_partition_is_taken_out_with_an_empty_list():
    counts = [[5] * 10, [5] * 10]
    kept = {"name": "digits", "clients": 2, "partition": "counts", "counts": counts}
    assert run(spec({**kept, "partition": "iid", "counts": [], "alpha": []})).values["clients"] == 2


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            {"clients": "natural"},
            "data.clients = 'natural': 'digits' does not say whose its examples are",
        ),
        (
            {"clients": 2, "alpha": 1.0},
            "data.alpha = 1.0: belongs to another partition than 'iid'; take it out: --set data.alpha=[]",
        ),
        ({"clients": 2, "partition": "shards", "counts": [[1]]}, "data.counts"),
        (
            {"clients": 1, "partition": "counts", "counts": [[0] * 10]},
            "leaves no client an example",
        ),
    ],
)
def test_partitions_that_do_not_fit(data, expected):
    with pytest.raises(FieldError) as caught:
        deal_out(spec({"name": "digits", **data}).data, seed=0)
    assert expected in str(caught.value)


def test_empty_clients_are_refused_only_by_methods_that_need_them():
    counts = [[3] * 10, [0] * 10]
    data = {"name": "digits", "clients": 2, "partition": "counts", "counts": counts}
    assert run(spec(data)).values["replies"]["used"] == 2
    fedre = {"method": "fedre", "clip": 0.5, "epsilon": 2000.0, "delta": 1e-5}
    with pytest.raises(
        FieldError,
        match=r"scores layers on each client's own images, and some have none: \['client-1'\]",
    ):
        prepare(spec({**data, "region": [3, 3, 5, 5], "public_examples": 4}, privacy=fedre))


@pytest.mark.parametrize(
    "region", [[0, 0, 9, 9], [3, 3, 3, 5], [-1, 0, 2, 2], [[0, 0, 2, 2], [7, 7, 9, 9]]]
)
def test_a_region_out_of_the_images_is_refused_before_a_round(region):
    with pytest.raises(FieldError, match=r"data\.region.*(within 8 x 8|at least 0)"):
        prepare(spec({"name": "digits", "clients": 2, "region": region}))


def test_several_rectangles_are_one_region_and_classes_that_nobody_public_shows_are_named():
    fedre = {"method": "fedre", "clip": 0.5, "epsilon": 2000.0, "delta": 1e-5}
    data = {
        "name": "digits",
        "clients": 2,
        "region": [[0, 0, 2, 2], [1, 1, 3, 4]],
        "public_examples": 4,
    }
    setup = prepare(spec(data, privacy=fedre))
    assert int(setup.learner.region.sum()) == 4 + 6 - 1
    assert any("shows classes" in warning for warning in setup.warnings)


def masks():
    y = torch.zeros(8, 4, 4, dtype=torch.int64)
    y[:, 1:3, 1:3] = 1
    return DataSet(name="masks", x=y[:, None].float(), y=y, classes=2)


def test_a_class_a_pixel_needs_a_model_that_answers_for_each():
    data = masks()
    clients = federate(data, clients=2, seed=0)
    dealt, method = Dealt(data, clients), build("vanilla")
    flat = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(
        FieldError,
        match=r"model\.name = 'logistic': gives \(2,\) for an image.*\(2, 4, 4\) is needed",
    ):
        check_fit(dealt, method, "cross_entropy", "logistic", flat)
    pixelwise = nn.Conv2d(1, 2, 1)
    check_fit(dealt, method, "cross_entropy", "pixelwise", pixelwise)
    local = LocalTraining(epochs=20, lr=1.0)
    history = Federation(model=pixelwise, clients=clients, local=local, seed=0).run(rounds=2)
    assert history.metrics["accuracy"] == 1.0


def show(tmp_path, *arguments):
    result = runner.invoke(app, ["data", "show", *arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "out" / "partition.csv").open()))
    picture = (tmp_path / "out" / "partition.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    held = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert os.name != "posix" or held == {0o600}
    return result.output, rows


def test_show_a_configuration(tmp_path):
    counts = json.dumps([[4] * 10, [1] + [0] * 9, [0] * 10])
    changes = [
        "--set",
        "data.clients=3",
        "--set",
        "data.partition=counts",
        "--set",
        f"data.counts={counts}",
    ]
    output, rows = show(tmp_path, "digits-compare", *changes)
    assert "digits: 3 clients, 33 examples to train on, 8 held out, 1,756 dealt to nobody" in output
    assert "1 of 3 clients hold no example to train on" in output
    assert "experimenter's view" in output
    assert [(r["client"], r["examples"], r["3"], r["notes"]) for r in rows] == [
        ("client-0", "32", "4", ""),
        ("client-1", "1", "0", "one example; lacks 9 of 10 classes"),
        ("client-2", "0", "0", "empty"),
    ]


def test_show_a_set_with_many_clients_and_a_seed(tmp_path):
    output, rows = show(tmp_path, "digits", "--set", "data.clients=70", "--seed", "3")
    assert len(rows) == 70
    assert sum(int(r["examples"]) + int(r["held out"]) for r in rows) == 1797
    assert "the 5 largest and the 5 smallest" in output
    _, other = show(tmp_path, "digits", "--set", "data.clients=70", "--seed", "4")
    assert [r["3"] for r in rows] != [r["3"] for r in other]


def test_show_targets(tmp_path, table):
    text = f'[data]\nname = "table"\npath = "{table}"\ntarget = "cost"\ntarget_range = [0, 1000]\ncolumns = ["age"]\n'
    text += (
        'scale = "none"\nclient_column = "site"\nclients = "natural"\n[model]\nname = "logistic"\n'
    )
    (tmp_path / "t.toml").write_text('name = "t"\nrounds = 1\n' + text)
    output, rows = show(tmp_path, str(tmp_path / "t.toml"))
    assert [r["client"] for r in rows] == ["east", "north", "south"]
    costs = [
        float(line.split(",")[2])
        for line in table.read_text().splitlines()[1:]
        if line.startswith("north")
    ]
    assert float(rows[1]["mean"]) == pytest.approx(np.mean(costs) / 1000, rel=1e-6)
    assert float(rows[1]["deviation"]) == pytest.approx(np.std(costs) / 1000, rel=1e-5)
    assert "one example" in output


def test_show_refuses_in_one_line(tmp_path):
    result = runner.invoke(app, ["data", "show", "digit", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert (
        "neither a file nor a run folder, preset or data set; did you mean 'digits'?"
        in result.output
    )
    assert not (tmp_path / "out").exists()


def test_list_says_where_the_official_files_are():
    output = runner.invoke(app, ["data", "list", "--where"]).output
    for text in (
        "bloodmnist: MedMNIST v2",
        "cms-outpatient",
        "CC BY 4.0",
        "none stated",
        "rrc.cvc.uab.es",
    ):
        assert text in output
