"""A registry of likely mistakes: each is refused by the field, the value and the way out, and without a traceback.

An entry is what is done, and what the refusal must name: the field, the value, the way out (what to write instead).
"""

import re
import shutil
from dataclasses import replace
from inspect import signature

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import fedveil as fv
from fedveil.cli import app

TOML = """name = "mine"
rounds = 1

[data]
name = "digits"
clients = 2

[model]
name = "logistic"
"""


def toml(old="", new="", more=""):
    """Load the experiment above with one change."""

    def do(folder):
        assert old in TOML
        (folder / "mine.toml").write_text(f"{TOML.replace(old, new) if old else TOML}\n{more}\n")
        fv.config.load("mine.toml")

    return do


SECURE = '[privacy]\nmethod = "record"\nsum = "secure"\nexamples = 9\nnoise_multiplier = 1.0\n'
PERSON = '[privacy]\nmethod = "record"\nunit = "person"\n'
IN_TOML = {
    "a table as others call it": (toml(more="[training]\nlr = 0.1"), "training", "0.1", "[local]"),
    "a backslash in a path": (
        toml('"digits"', '"folder"\npath = "C:\\Users\\me"'),
        "CONFIG",
        "mine.toml",
        "'single",
    ),
    "a misspelt table": (toml("[model]", "[modle]"), "modle", "logistic", "'model'"),
    "a misspelt key": (toml(more="[local]\nepoch = 2"), "local.epoch", "2", "'epochs'"),
    "a number as a text": (toml(more='[local]\nlr = "0.1"'), "local.lr", "'0.1'", "number"),
    "half a round": (toml("rounds = 1", "rounds = 1.5"), "rounds", "1.5", "whole number"),
    "no round": (toml("rounds = 1", "rounds = 0"), "rounds", "0", "at least 1"),
    "rounds left out": (toml("rounds = 1\n", ""), "rounds", "missing", "needed"),
    "a name with a blank": (toml('"mine"', '"my run"'), "name", "'my run'", "dashes"),
    "a method that is not there": (
        toml(more='[privacy]\nmethod = "dp"'),
        "privacy.method",
        "'dp'",
        "vanilla",
    ),
    "epsilon without rounds": (
        toml(more='[privacy]\nmethod = "global"\nepsilon = 8.0'),
        "privacy.rounds",
        "None",
        "beside epsilon",
    ),
    "noise left out": (
        toml(more='[privacy]\nmethod = "global"'),
        "privacy.noise_multiplier",
        "missing",
        "epsilon=8",
    ),
    "a clip below 0": (
        toml(more='[privacy]\nmethod = "global"\nnoise_multiplier = 1.0\nclip = -1.0'),
        "privacy.clip",
        "-1",
        "above 0",
    ),
    "a data set that is not there": (
        toml('"digits"', '"digit"'),
        "data.name",
        "'digit'",
        "'digits'",
    ),
    "a model that is not there": (
        toml('"logistic"', '"logstic"'),
        "model.name",
        "'logstic'",
        "'logistic'",
    ),
    "no client": (toml("clients = 2", "clients = 0"), "data.clients", "0", "at least 1"),
    "a cohort above the federation": (
        toml("rounds = 1", "rounds = 1\nclients_per_round = 9"),
        "clients_per_round",
        "9",
        "1 to 2",
    ),
    "a rule that is not there": (
        toml(more='[aggregator]\nname = "fedavgg"'),
        "aggregator",
        "'fedavgg'",
        "'fedavg'",
    ),
    "YAML": (toml("rounds = 1", "rounds: 1"), "CONFIG", "mine.toml", "line 2"),
    "an engine that is not there": (
        toml("rounds = 1", 'rounds = 1\nengine = "ray"'),
        "engine",
        "'ray'",
        "flower",
    ),
    "a device by another name": (
        toml("rounds = 1", 'rounds = 1\ndevice = "gpu"'),
        "device",
        "'gpu'",
        "cuda",
    ),
    "a file in place of a module": (
        toml('name = "logistic"', 'module = "./mynet.py:Net"'),
        "model.module",
        "./mynet.py",
        '"mynet:Net"',
    ),
    "people without a number of records": (
        toml(more=f"{PERSON}people = 9\nnoise_multiplier = 1.0"),
        "privacy.records_per_person",
        "None",
        "public number",
    ),
    "examples planned for people": (
        toml(
            more=f"{PERSON}people = 9\nrecords_per_person = 2\nexamples = 9\nnoise_multiplier = 1.0"
        ),
        "privacy.examples",
        "9",
        "give people",
    ),
    "a secure sum of two": (
        toml(more=SECURE),
        "data.clients",
        "2",
        "at least 3",
    ),
    "a secure sum of more sites than there are": (
        toml("clients = 2", "clients = 5", more=f"{SECURE}least_sites = 9"),
        "data.clients",
        "5",
        "least_sites to 5",
    ),
    "a secure sum of more sites than are drawn": (
        toml("rounds = 1", "rounds = 1\nclients_per_round = 2", more=SECURE),
        "clients_per_round",
        "2",
        "at least 3",
    ),
    "a key outside its table": (
        toml("rounds = 1", "rounds = 1\nepsilon = 8.0"),
        "epsilon",
        "8.0",
        "privacy",
    ),
}

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(120, 6)).astype("float32"), np.arange(120) % 2
DEALT = [(X[i::3], Y[i::3]) for i in range(3)]


def federation(**changed):
    return lambda folder: fv.Federation(**{"model": nn.Linear(6, 2), "clients": DEALT, **changed})


def labels(change):
    return federation(clients=[(x, change(y)) for x, y in DEALT])


def examples(change, **changed):
    return federation(clients=[(change(x), y) for x, y in DEALT], **changed)


def images(shape, channels):
    x = RNG.normal(size=(10, *shape)).astype("float32")
    net = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
    return federation(model=net, clients=[(x, np.arange(10) % 2)] * 2)


def made(clients, method, seed):
    return fv.Federation(model=nn.Linear(6, 2), clients=clients, method=method, seed=seed)


def unprotected(clients, method, seed):
    return fv.Federation(model=nn.Linear(6, 2), clients=clients, seed=seed)


def call(function, *given, **named):
    return lambda folder: function(*given, **named)


LINEAR = nn.Linear(6, 2)
NOISY = fv.GlobalDP(noise_multiplier=1.0)
MISSING = np.where(np.arange(54).reshape(9, 6) == 7, np.nan, 0).astype("float32")
MEASURED = fv.Federation(model=nn.Linear(6, 2), clients=[(X, Y, X, Y)] * 2).run(rounds=1)
PEOPLE = fv.methods.build(
    "record", unit="person", people=9, records_per_person=2, noise_multiplier=1.0
)
SUMMED = fv.methods.build("record", sum="trusted", examples=9, noise_multiplier=1.0, silos=3)
HISTORY = fv.Federation(model=nn.Linear(6, 2), clients=DEALT).run(rounds=1)
IN_PYTHON = {
    "noise as a number": (call(fv.GlobalDP, noise=1), "noise", "1", "noise_multiplier=1"),
    "a number alone": (call(fv.GlobalDP, 8), "aggregator", "8", "epsilon=8"),
    "a number alone, metric privacy": (
        call(fv.MetricPrivacy, 0.5),
        "aggregator",
        "0.5",
        "noise_multiplier=0.5",
    ),
    "a method without noise": (call(fv.GlobalDP), "noise_multiplier", "missing", "epsilon=8"),
    "epsilon without rounds": (call(fv.GlobalDP, epsilon=8), "rounds", "None", "epsilon"),
    "a misspelt parameter": (call(fv.GlobalDP, epsilom=8), "epsilom", "int", "'epsilon'"),
    "a misspelt parameter of metric privacy": (
        call(fv.MetricPrivacy, clop=1),
        "clop",
        "int",
        "'clip'",
    ),
    "a misspelt parameter of SGA-LDP": (
        call(fv.SGALDP, epsilon_mim=1),
        "epsilon_mim",
        "int",
        "'epsilon_min'",
    ),
    "a misspelt parameter of a rule": (
        call(fv.TrimmedMean, fractions=0.1),
        "fractions",
        "float",
        "'fraction'",
    ),
    "a misspelt parameter of training": (
        call(fv.LocalTraining, epoch=1),
        "epoch",
        "int",
        "'epochs'",
    ),
    "a GPU that is not there": (
        call(
            fv.learning.SequentialTrainer,
            LINEAR,
            fv.Layout.from_module(LINEAR),
            fv.LocalTraining(),
            "cuda:99",
        ),
        "device",
        "cuda:99",
        "cpu",
    ),
    "a rule by name": (
        call(fv.GlobalDP, "fedavg", noise_multiplier=1.0),
        "aggregator",
        "'fedavg'",
        "FedAvg()",
    ),
    "a rule's class": (
        call(fv.GlobalDP, fv.FedAvg, noise_multiplier=1.0),
        "aggregator",
        "FedAvg",
        "FedAvg()",
    ),
    "a method's class": (federation(method=fv.GlobalDP), "method", "GlobalDP", "GlobalDP(...)"),
    "a method that is none": (federation(method=3), "method", "int", "name"),
    "a method's name misspelt": (
        federation(method="globl"),
        "privacy.method",
        "'globl'",
        "'global'",
    ),
    "a model's class": (federation(model=nn.Linear), "model", "Linear", "lambda"),
    "no model": (federation(model=None), "model", "missing", "torch.nn.Module"),
    "batch normalisation": (
        federation(model=nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))),
        "module",
        "Sequential",
        "mend",
    ),
    "training as a dict": (federation(local={"lr": 0.1}), "local", "{'lr': 0.1}", "LocalTraining("),
    "a misspelt argument": (federation(modle=None), "modle", "None", "'model'"),
    "clients by name": (federation(clients={"a": DEALT[0]}), "clients[0]", "str", "(x, y)"),
    "one client's pair": (federation(clients=(X, Y)), "clients[0]", "ndarray", "list of clients"),
    "no client": (federation(clients=[]), "clients", "[]", "at least one"),
    "a cohort above the federation": (
        federation(clients_per_round=9),
        "clients_per_round",
        "9",
        "3 clients",
    ),
    "float labels": (labels(lambda y: y.astype(float)), "clients[0].y", "floating", "astype(int)"),
    "labels in a column": (labels(lambda y: y[:, None]), "clients[0].y", "[N, 1]", "reshape(-1)"),
    "texts": (labels(lambda y: np.array(["ill", "well"])[y]), "clients[0].y", "U4", "from 0 on"),
    "labels from 1": (labels(lambda y: y + 1), "clients[0].y", "from 1 to 2", "from 0 on"),
    "labels -1 and 1": (labels(lambda y: 2 * y - 1), "clients[0].y", "-1", "numbered from 0"),
    "labels one-hot": (labels(lambda y: np.eye(2)[y]), "clients[0].y", "[N, 2]", "argmax(1)"),
    "too few labels": (labels(lambda y: y[:-1]), "clients[0].y", "39", "40 rows"),
    "columns that the model does not take": (
        examples(lambda x: x[:, :4]),
        "clients[0].x",
        "[N, 4]",
        "model",
    ),
    "bytes": (
        examples(lambda x: np.abs(x).astype("uint8")),
        "clients[0].x",
        "uint8",
        "float() / 255",
    ),
    "missing values": (
        federation(clients=[*DEALT, (MISSING, Y[:9])]),
        "clients[3].x[1]",
        "NaN",
        "fill it in",
    ),
    "objects": (labels(lambda y: y.astype(str).astype(object)), "clients[0].y", "str", "from 0 on"),
    "one client's labels": (
        federation(clients=[*DEALT, (X[:9], Y[:9] + 5)]),
        "clients[3].y",
        "5",
        "from 0 on",
    ),
    "one client's targets": (
        federation(clients=[*DEALT, (X[:9], Y[:9].astype("float32"))]),
        "clients[3].y",
        "floating",
        "int64",
    ),
    "a tuple between layers": (
        federation(model=nn.Sequential(nn.GRU(6, 5), nn.Linear(5, 2))),
        "model",
        "Sequential",
        "out, _ =",
    ),
    "a layer without a size": (
        federation(model=nn.LazyLinear(2)),
        "module",
        "LazyLinear",
        "model(x[:1])",
    ),
    "a loss's class": (
        call(fv.LocalTraining, loss=nn.CrossEntropyLoss),
        "loss",
        "CrossEntropyLoss",
        "CrossEntropyLoss()",
    ),
    "a loss of outputs alone": (
        federation(local=fv.LocalTraining(loss=lambda out: out.mean())),
        "loss",
        "lambda",
        "loss(outputs, y)",
    ),
    "a loss of every example": (
        federation(local=fv.LocalTraining(loss=nn.CrossEntropyLoss(reduction="none"))),
        "loss",
        "CrossEntropyLoss",
        ".mean()",
    ),
    "a scheduler for a rate": (
        call(fv.LocalTraining, lr=torch.optim.lr_scheduler.StepLR),
        "lr",
        "StepLR",
        "lambda r",
    ),
    "a rate below 0 by a function": (
        call(fv.LocalTraining, lr=lambda r: -1.0),
        "lr(1)",
        "-1",
        "at least 0",
    ),
    "no seed": (federation(seed=None), "seed", "None", "integer"),
    "a source by name": (federation(source="secure"), "source", "'secure'", "SecureSource()"),
    "a figure misspelt": (lambda folder: MEASURED.metrics["acc"], "metrics", "None", "'accuracy'"),
    "people by name": (
        call(fv.ClientData, torch.zeros(2, 6), torch.arange(2), person=["a", "b"]),
        "person",
        "list",
        "torch.as_tensor",
    ),
    "people who are not said": (
        federation(method=PEOPLE),
        "person",
        "None",
        "ClientData(x, y, person=",
    ),
    "shares sized for more silos than there are": (
        federation(method=replace(SUMMED, client=replace(SUMMED.client, silos=5))),
        "clients",
        "3",
        "silos = 5",
    ),
    "a secure sum of more sites than there are": (
        federation(
            method=fv.methods.build(
                "record", sum="secure", examples=9, noise_multiplier=1.0, least_sites=4
            )
        ),
        "clients",
        "3",
        "least_sites to 3",
    ),
    "AdamW in a trusted sum": (
        federation(method=SUMMED, local=fv.LocalTraining(optimizer="adamw")),
        "optimizer",
        "'adamw'",
        "sgd",
    ),
    "a function for rounds": (
        lambda folder: federation()(folder).run(1, 5),
        "on_round",
        "int",
        "lambda record",
    ),
    "one client's columns": (
        federation(clients=[*DEALT, (X[:9, :4], Y[:9])]),
        "clients[3].x",
        "[N, 4]",
        "[N, 6]",
    ),
    "images without a channel": (images((8, 8), 1), "clients[0].x", "[N, 8, 8]", "x[:, None]"),
    "images with channels behind": (
        images((8, 8, 3), 3),
        "clients[0].x",
        "[N, 8, 8, 3]",
        "transpose(0, 3, 1, 2)",
    ),
    "a figure that nobody measured": (
        lambda folder: HISTORY.metrics["accuracy"],
        "metrics",
        "None",
        "test_x, test_y",
    ),
    "settings without names": (
        call(fv.compare, made, DEALT, [None], rounds=1),
        "settings",
        "list",
        '{"no privacy"',
    ),
    "a method that is not handed on": (
        call(fv.compare, unprotected, DEALT, {"mine": NOISY}, rounds=1),
        "settings['mine']",
        "GlobalDP",
        "method=method",
    ),
    "a comparison without rounds": (
        call(fv.compare, made, DEALT, {"a": None}),
        "rounds",
        "None",
        "rounds=10",
    ),
    "a target that is not there": (
        call(fv.audit, made, DEALT, rounds=1, target=7),
        "target",
        "7",
        "0 to 2",
    ),
    "a file that is not there": (call(fv.compare, "mine.tml"), "CONFIG", "mine.tml", "preset"),
}


SHORT = ("--clients", "3", "--protect", "client")


def command(*words):
    """A command in a folder that holds ok.toml, a file called taken and a finished run called done."""

    def do(folder):
        (folder / "ok.toml").write_text(TOML)
        (folder / "taken").write_text("")
        rows = [f"P{i},{i},{'ill' if i > 12 else 'well'}" for i in range(30)]
        (folder / "ids.csv").write_text("\n".join(["patient,age,outcome", *rows]))
        ages = [f"P{i},{20 + i // 3},{'ill' if i > 12 else 'well'}" for i in range(30)]
        (folder / "few.csv").write_text("\n".join(["patient,age,outcome", *ages]))
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 2
        raise fv.FedVeilError(result.output)

    return do


ON_THE_COMMAND_LINE = {
    "a preset misspelt": (
        command("run", "digits-recrd"),
        "CONFIG",
        "digits-recrd",
        "'digits-record'",
    ),
    "a file that is not there": (command("run", "my.toml"), "CONFIG", "my.toml", "run folder"),
    "--set without a value": (
        command("run", "ok.toml", "--set", "rounds"),
        "--set",
        "rounds",
        "key=value",
    ),
    "--set of a text": (
        command("run", "ok.toml", "--set", "local.lr=fast"),
        "local.lr",
        "'fast'",
        "number",
    ),
    "--set of no key": (
        command("run", "ok.toml", "--set", "privacy.epsilom=8"),
        "privacy.epsilom",
        "8",
        "'vanilla'",
    ),
    "--set into a value": (
        command("run", "ok.toml", "--set", "rounds.x=1"),
        "--set",
        "rounds.x=1",
        "not a table",
    ),
    "--out is a file": (command("run", "ok.toml", "--out", "taken"), "--out", "taken", "folder"),
    "--out below a file": (
        command("run", "ok.toml", "--out", "taken/x"),
        "--out",
        "taken/x",
        "of your own",
    ),
    "--out that nobody may write": (
        command("run", "ok.toml", "--out", "/proc/x"),
        "--out",
        "/proc/x",
        "of your own",
    ),
    "--out is an option": (
        command("run", "ok.toml", "--out", "--seed"),
        "--out",
        "--seed",
        "folder",
    ),
    "an engine misspelt": (
        command("run", "ok.toml", "--engine", "flwr"),
        "--engine",
        "flwr",
        "flower",
    ),
    "a seed in words": (command("run", "ok.toml", "--seed", "one"), "--seed", "one", "integer"),
    "nothing to go on with": (
        command("run", "ok.toml", "--out", "new", "--resume"),
        "--resume",
        "new",
        "--resume",
    ),
    "no repetition": (command("compare", "ok.toml", "--seeds", "0"), "--seeds", "0", "at least 1"),
    "too few runs of an audit": (
        command("compare", "ok.toml", "--audit", "2"),
        "--audit",
        "2",
        "at least 4",
    ),
    "a plan without delta": (
        command("plan", "--epsilon", "8", "--rounds", "5"),
        "--delta",
        "missing",
        "1e-5",
    ),
    "a plan of everything": (
        command(
            "plan", "--delta", "1e-5", "--rounds", "5", "--epsilon", "8", "--noise-multiplier", "1"
        ),
        "epsilon",
        "8",
        "noise_multiplier",
    ),
    "a relation misspelt": (
        command("plan", "--relation", "zero"),
        "--relation",
        "zero",
        "zero-out",
    ),
    "an init of nothing": (command("init", "--data", "scans", *SHORT), "data", "'scans'", "file"),
    "an init of more clients than there is": (
        command(
            "init",
            "--data",
            "few.csv",
            "--target",
            "outcome",
            "--clients",
            "90",
            *SHORT[2:],
            "--person",
            "patient",
        ),
        "clients",
        "90",
        "at most 30",
    ),
    "an init of a table that holds ids alone": (
        command("init", "--data", "ids.csv", *SHORT),
        "data",
        "'ids.csv'",
        "add measurements",
    ),
    "an init of a spreadsheet": (
        command("init", "--data", "a.xlsx", *SHORT),
        "data",
        "'a.xlsx'",
        ".csv",
    ),
    "people of whom nothing is said": (
        command(
            "init", "--data", "ids.csv", *SHORT[:2], "--protect", "person", "--person", "patients"
        ),
        "person",
        "'patients'",
        "'patient'",
    ),
    "a command misspelt": (command("comparee"), "command", "comparee", "compare"),
}


def table(text, more="", name="a.csv", clients=2):
    def do(folder):
        (folder / name).write_text(text)
        options = f'"table"\npath = "{name}"\ntarget = "ill"\nclasses = 2\nclients = {clients}\n'
        toml(
            '"digits"\nclients = 2',
            options + (more if "columns" in more else f'scale = "none"\n{more}'),
        )(folder)
        fv.runs.run(fv.config.load("mine.toml"))

    return do


def pictures(*files, more=""):
    def do(folder):
        from PIL import Image

        (folder / "images").mkdir()
        for i, file in enumerate(files):
            path = folder / "images" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            if file.endswith("/"):
                path.mkdir()
            elif i and file.endswith("large.png"):
                Image.new("L", (9, 8)).save(path)
            elif file.endswith(("broken.png", ".txt")):
                path.write_text("no image")
            else:
                Image.new("L", (8, 8)).save(path)
        toml('"digits"', f'"folder"\npath = "images"\n{more}')(folder)
        fv.runs.run(fv.config.load("mine.toml"))

    return do


def archive(**arrays):
    def do(folder):
        np.savez(folder / "a.npz", **arrays)
        toml('"digits"', '"npz"\npath = "a.npz"\nclasses = 2')(folder)
        fv.runs.run(fv.config.load("mine.toml"))

    return do


def finished(damage):
    def do(folder):
        fv.runs.run(
            fv.config.parse(
                {
                    "name": "x",
                    "rounds": 1,
                    "data": {"name": "digits", "clients": 2},
                    "model": {"name": "logistic"},
                }
            ),
            folder / "run",
        )
        damage(folder / "run")
        fv.runs.Summary.read(folder / "run")

    return do


BOTH = ("a/1.png", "b/1.png")
WARDS = "ward,who,age,ill\n" + "".join(f"{'ns'[i % 2]},p{i // 2},{i},{i % 2}\n" for i in range(40))
PEOPLE_AT_WARDS = """
client_column = "ward"
person = "who"
columns = { age = [0, 100] }

[privacy]
method = "record"
unit = "person"
people = 9
records_per_person = 2
rounds = 1
epsilon = 8.0
"""


IN_FILES = {
    "people at two clients": (
        table(WARDS, PEOPLE_AT_WARDS, clients='"natural"'),
        "privacy.silos_per_person",
        "1",
        "raise it",
    ),
    "people who are the target": (
        table("age,ill\n3,0\n4,1\n", 'person = "ill"'),
        "data.person",
        "'ill'",
        "data.target",
    ),
    "folders of people": (
        pictures("a/p1/1.png", "b/p2/1.png"),
        "data.path",
        "images/a/p1",
        'person = "folder"',
    ),
    "a folder's people by another name": (
        pictures("a/p/1.png", "b/q/1.png", more='person = "who"'),
        "data.person",
        "'who'",
        "accepted: folder",
    ),
    "semicolons": (table("age;ill\n3;0\n4;1\n"), "data.separator", "','", "';'"),
    "tabs": (table("age\till\n3\t0\n4\t1\n"), "data.separator", "','", "\\t"),
    "a column that is not there": (table("age,il\n3,0\n4,1\n"), "data.target", "'ill'", "'il'"),
    "two columns of one name": (table("age,age,ill\n3,3,0\n"), "a.csv, header", "age", "once"),
    "a header alone": (table("age,ill\n"), "data.path", "a.csv", "row"),
    "an empty file": (table(""), "data.path", "a.csv", "header"),
    "a text in a column of numbers": (table("age,ill\nold,0\n4,1\n"), "row 1", "'old'", "number"),
    "a value left out": (
        table("age,ill\n3,0\n,1\n"),
        "row 2 (line 3), column age",
        "missing",
        "remove",
    ),
    "a class beyond the classes": (table("age,ill\n3,0\n4,7\n"), "ill", "7", "0 to 1"),
    "a file of another kind": (
        table("age,ill\n3,0\n", name="a.xlsx"),
        "data.path",
        "a.xlsx",
        ".csv",
    ),
    "images without class folders": (pictures("1.png", "2.png"), "data.path", "images", "<class>"),
    "folders one level too deep": (
        pictures("x/a/1.png", "x/b/1.png"),
        "data.path",
        "images/x/a",
        'layout = "clients"',
    ),
    "classes taken for clients": (
        pictures(*BOTH, more='layout = "clients"'),
        "data.path",
        "images/a",
        "<client>/<class>",
    ),
    "an empty folder": (pictures(), "data.path", "images", "<class>"),
    "an empty class": (pictures("a/1.png", "b/"), "images/b", "no image", "data.absent"),
    "train and val": (
        pictures("train/a/1.png", "val/a/1.png"),
        "data.path",
        "images",
        "rename it test",
    ),
    "test without train": (
        pictures("test/a/1.png", "rest/a/1.png"),
        "data.path",
        "images",
        "train",
    ),
    "images of two sizes": (pictures("a/1.png", "b/large.png"), "large.png", "8 x 9", "data.size"),
    "a broken image": (pictures("a/1.png", "b/broken.png"), "broken.png", "Unidentified", "PNG"),
    "a text among images": (pictures("a/1.png", "b/notes.txt"), "notes.txt", ".txt", ".png"),
    "a folder that is not there": (
        lambda folder: (
            shutil.rmtree(folder / "images", ignore_errors=True),
            fv.data.load("folder", path="images"),
        ),
        "data.path",
        "images",
        "folder a class",
    ),
    "arrays without labels": (archive(x=X), "data.path", "a.npz", "x and y"),
    "arrays of two lengths": (archive(x=X, y=Y[:9]), "a.npz", "9", "120"),
    "a damaged line of a run": (
        finished(lambda run: (run / "metrics.jsonl").write_text("{")),
        "run",
        "metrics.jsonl, line 1",
        "restore",
    ),
    "a run without its summary": (
        finished(lambda run: (run / "summary.json").unlink()),
        "run",
        "summary.json",
        "restore",
    ),
}


def flower(make):
    def do(folder):
        pytest.importorskip("flwr")
        make()

    return do


def network():
    return nn.Linear(6, 2)


def play(method, client_method, layout=None, arrays=None, mods=True, **options):
    def make():
        from flwr.app import ArrayRecord, Message
        from flwr.clientapp import ClientApp
        from flwr.serverapp import ServerApp

        from fedveil.flower import FedVeilStrategy, privacy_mod, run_in_process

        own = fv.Layout.from_module(network())
        client = ClientApp(mods=[privacy_mod(own, client_method, ledger="run")] if mods else [])
        client.train()(lambda message, context: Message(message.content, reply_to=message))
        server = ServerApp()

        @server.main()
        def main(grid, context):
            strategy = FedVeilStrategy(method, layout or own, rounds=1, evaluate=False)
            strategy.start(grid, ArrayRecord((arrays or network()).state_dict()), **options)

        run_in_process(server, client, 2)

    return flower(make)


def node(node_config=None, run_config=None, method=None):
    def make():
        from flwr.app import Context, RecordDict

        from fedveil.engines.flower.mod import read_settings

        given = dict.fromkeys(list(signature(read_settings).parameters)[2:])
        context = Context(
            1, 1, {"partition-id": 0, **(node_config or {})}, RecordDict(), run_config or {}
        )
        read_settings(context, method, **given)

    return flower(make)


def strategy(**options):
    def make():
        from fedveil.flower import FedVeilStrategy

        FedVeilStrategy(
            **{"method": NOISY, "layout": fv.Layout.from_module(network()), "rounds": 1, **options}
        )

    return flower(make)


SGA = fv.SGALDP(epsilon_min=1.0, epsilon_max=1.0)
IN_FLOWER = {
    "different methods on the two sides": (
        play(NOISY, SGA),
        "SGALDP",
        "TrustedServer",
        "the method of the strategy",
    ),
    "clients without the mod": (
        play(NOISY, None, mods=False),
        "greeting",
        "",
        "privacy_mod(layout",
    ),
    "arrays of another model": (
        play(NOISY, NOISY, arrays=nn.Linear(5, 2)),
        "initial_arrays['weight']",
        "(2, 5)",
        "(2, 6)",
    ),
    "a layout of another model": (
        play(NOISY, NOISY, layout=fv.Layout.from_shapes({"weight": (2, 5), "bias": (2,)})),
        "initial_arrays['weight']",
        "(2, 6)",
        "(2, 5)",
    ),
    "rounds given twice": (play(NOISY, NOISY, num_rounds=3), "num_rounds", "3", "leave it out"),
    "a method's class": (strategy(method=fv.GlobalDP), "method", "GlobalDP", "GlobalDP(...)"),
    "no round": (strategy(rounds=0), "rounds", "0", "at least 1"),
    "no method anywhere": (node(), "privacy.method", "None", "run_config"),
    "a method misspelt": (
        node({"privacy.method": "metrik"}),
        "privacy.method",
        "'metrik'",
        "'metric'",
    ),
    "a parameter misspelt": (
        node({"privacy.method": "metric", "privacy.clop": 1.0}),
        "privacy.clop",
        "1.0",
        "'clip'",
    ),
    "a parameter that the run proposes": (
        node({"privacy.method": "metric"}, {"privacy.clip": 1.0}),
        "privacy.clip",
        "1.0",
        "policy",
    ),
    "a parameter in code and in the configuration": (
        node({"privacy.clip": 1.0}, method=fv.methods.build("metric")),
        "privacy.clip",
        "1.0",
        "in code",
    ),
    "secure noise without a ledger": (
        node(method=fv.methods.build("sga-ldp", epsilon_min=1.0, epsilon_max=1.0)),
        "ledger",
        "None",
        'ledger="run"',
    ),
}

EVERY = {
    "toml": IN_TOML,
    "python": IN_PYTHON,
    "command": ON_THE_COMMAND_LINE,
    "files": IN_FILES,
    "flower": IN_FLOWER,
}
LEAST = {"toml": 20, "python": 40, "command": 15, "files": 20, "flower": 10}


def printed(value):
    return "missing, None" if value is None else repr(value)


@pytest.mark.parametrize(
    ("kind", "mistake"), [(kind, mistake) for kind, own in EVERY.items() for mistake in own]
)
def test_a_mistake_is_refused_by_field_value_and_way_out(kind, mistake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    do, field, value, way_out = EVERY[kind][mistake]
    with pytest.raises(fv.FedVeilError) as refused:
        do(tmp_path)
    text = re.sub(r"\s+", " ", str(refused.value))  # of a command, in lines as long as the terminal
    problems = getattr(refused.value, "problems", [refused.value])
    named = [
        (e.field, printed(e.value), e.accepted) if isinstance(e, fv.FieldError) else (text,) * 3
        for e in problems
    ]
    wanted = (field, value, way_out)
    assert any(
        all(part in whole for part, whole in zip(wanted, one, strict=True)) for one in named
    ), named


def test_there_are_as_many_mistakes_as_the_registry_promises():
    assert all(len(EVERY[kind]) >= least for kind, least in LEAST.items())
    assert sum(map(len, EVERY.values())) >= 100
