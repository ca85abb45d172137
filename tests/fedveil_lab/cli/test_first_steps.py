"""Small things that people expect: a first file, a preset's text, tables and figures to keep, progress, MLflow."""

import csv
import io
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import fedveil as fv
from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.tables import Table, write
from fedveil_lab.config import load, presets
from fedveil_lab.config.first import first_config
from fedveil_lab.report.audit_tables import answered, folded
from fedveil_lab.runs.runner import Silent, run

X = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
CLIENTS = [(X[i::4], Y[i::4], X[i::4], Y[i::4]) for i in range(4)]


def call(*arguments, **options):
    return CliRunner().invoke(app, [str(a) for a in arguments], **options)


def make(clients, method, seed):
    return fv.Federation(
        model=lambda: torch.nn.Linear(4, 2), clients=clients, method=method, seed=seed
    )


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a table, an npz file and a folder of images."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [
        f"{age},{'fm'[age % 2]},{age / 3:.1f},{'ill' if age > 50 else 'well'}"
        for age in rng.integers(20, 90, 80)
    ]
    (tmp_path / "ward.csv").write_text("\n".join(["age,sex,dose,outcome", *rows]))
    np.savez(tmp_path / "mine.npz", x=rng.random((80, 6), np.float32), y=np.arange(80) % 2)
    image = pytest.importorskip("PIL.Image")
    for label, top in (("ill", 255), ("well", 120)):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(0, top, (32 + i, 40), np.uint8)
            image.fromarray(pixels).save(tmp_path / "images" / label / f"{i}.png")
    return tmp_path


@pytest.mark.parametrize("protect", ["client", "record", "nothing"])
@pytest.mark.parametrize("data", ["digits", "ward.csv", "mine.npz", "images"])
def test_what_init_writes_runs_as_it_stands(home, data, protect):
    pytest.importorskip("pandas")
    said = call("init", "--data", data, "--clients", 4, "--protect", protect, "first.toml")
    assert said.exit_code == 0, said.output
    text = (home / "first.toml").read_text()
    assert text.count("\n#") >= 3
    short = {"rounds": 1} if protect == "nothing" else {"rounds": 1, "privacy.rounds": 20}
    found = run(load("first.toml", [f"{k}={v}" for k, v in short.items()]))
    assert found.values["metrics"]["examples"] > 0
    promised = found.values["guarantee"]
    assert f", {protect}, " in promised if protect != "nothing" else promised == "none"


def test_init_asks_for_what_is_not_given_and_never_overwrites(home):
    said = call("init", input="ward.csv\n4\nclient\n")
    assert said.exit_code == 0, said.output
    values = tomllib.loads((home / "my.toml").read_text())
    assert (values["data"]["name"], values["data"]["clients"], values["privacy"]["method"]) == (
        "table",
        4,
        "global",
    )
    assert values["data"]["columns"]["sex"] == ["f", "m"]
    assert values["data"]["classes"] == ["ill", "well"]
    before = (home / "my.toml").read_bytes()
    again = call("init", "--data", "digits", "--clients", 4, "--protect", "client")
    assert again.exit_code == 2
    assert "my.toml" in again.output
    assert (home / "my.toml").read_bytes() == before


def test_init_of_a_number_is_a_regression(home):
    pytest.importorskip("pandas")
    found = tomllib.loads(first_config("dose", "ward.csv", 4, "client", target="dose")[0])
    assert found["local"]["loss"] == "mse"
    low, high = found["data"]["target_range"]
    assert low <= 20 / 3 < 89 / 3 <= high


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("digits", 4, "everything"), "protect"),
        (("digts", 4, "client"), "digits"),
        (("digits", 0, "client"), "clients"),
    ],
)
def test_init_refuses_what_cannot_run(wrong, said):
    with pytest.raises(FieldError, match=said):
        first_config("mine", *wrong)


def test_a_preset_is_printed_to_begin_from(tmp_path):
    assert {"hospitals-breast", "digits-fedre"} <= set(presets())
    for name in ("hospitals-breast", "digits-fedre"):
        (tmp_path / "mine.toml").write_text(call("presets", name).stdout)
        assert load(tmp_path / "mine.toml") == load(name)
    assert call("presets", "digits-ci").exit_code == 2


def test_tables_are_written_as_markdown_and_csv_and_figures_as_pdf(tmp_path):
    short = ("hospitals-breast", "--set", "rounds=1", "--set", "privacy.rounds=1", "--out")
    said = call("compare", *short, tmp_path / "c")
    assert said.exit_code == 0, said.output
    rows = list(csv.DictReader((tmp_path / "c" / "table.csv").open()))
    text = (tmp_path / "c" / "table.md").read_text()
    assert all(row["setting"] in said.stdout for row in rows)
    assert all(f"| {row['setting']} |" in text for row in rows)
    for name in ("curves", "classes"):  # of one setting with noise there is no front
        assert (tmp_path / "c" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (tmp_path / "c" / f"{name}.png").stat().st_size > 5_000
    said = call("run", *short, tmp_path / "r")
    facts = dict(csv.reader((tmp_path / "r" / "table.csv").open()))
    assert all(value.split()[0] in said.stdout for value in facts.values() if value)


def test_a_file_a_table_with_the_answer_first(tmp_path):
    tables = [Table(("a", "b"), [(1, "x, y")], "one"), Table.facts([("n", "2")])]
    assert write(tmp_path, "t", tables, ["a note"], "The answer.") == ["t.md", "t.csv", "t-2.csv"]
    assert (tmp_path / "t.md").read_text().startswith("The answer.\n")
    assert list(csv.reader(io.StringIO((tmp_path / "t.csv").read_text()))) == [
        ["a", "b"],
        ["1", "x, y"],
    ]
    assert (tmp_path / "t-2.csv").read_text() == "n,2\n"


class Told(Silent):
    def __init__(self):
        self.tasks = []

    def begin(self, label, done, rounds):
        self.tasks.append([label, rounds, 0, False])

    def advance(self, row):
        self.tasks[-1][2] += 1

    def end(self):
        self.tasks[-1][3] = True


def test_comparisons_and_audits_say_how_they_go():
    told, noise = Told(), fv.GlobalDP(noise_multiplier=1.0, clip=1.0)
    fv.compare(make, CLIENTS, {"plain": None, "noise": noise}, rounds=3, progress=told)
    assert [task[1:] for task in told.tasks] == [[3, 3, True]] * 2
    assert "plain" in told.tasks[0][0]
    told = Told()
    found = fv.audit(make, CLIENTS, noise, rounds=1, replicates=4, progress=told)
    assert [task[1:] for task in told.tasks] == [
        [48, 48, True]
    ]  # 4 runs and 8 rehearsals in each of two worlds
    first, *lines = str(found).splitlines()
    assert first.endswith(".")
    assert f"{max(v.point for v in found.verdicts if v.setting == 'with the method'):.3f}" in first
    assert len(lines) == len(found.verdicts) + 1


def verdict(low, point=0.8):
    from fedveil_lab.attacks.statistics import Estimate

    return SimpleNamespace(attack="loss", auc=Estimate(point, low, 0.95))


@pytest.mark.parametrize(
    ("best", "word"), [(verdict(0.6), "yes"), (verdict(0.4), "not shown"), (None, "undecided")]
)
def test_an_answer_says_no_more_than_the_interval(best, word):
    assert word in answered("mine", [verdict(0.4)] * 3, best)
    assert ("0.800" in answered("mine", [], best)) == (best is not None)


def test_refused_attacks_are_one_line():
    reasons = {"x": "why", "y": "why", "z": "other"}
    refused = [
        SimpleNamespace(attack=a, setting=s, reason=r) for a, r in reasons.items() for s in "ab"
    ]
    [line] = folded(refused)
    assert line.count("why") == line.count("x") == 1
    assert all(name in line for name in ("x", "y", "z", "other"))
    assert folded([]) == []


def test_mlflow_logs_a_run_by_one_line():
    """The page's own line, with what MLflow's ``log_metrics(metrics, step)`` takes: numbers by text, a whole step."""
    logged = []

    def log_metrics(metrics, step=None):
        assert all(isinstance(k, str) and isinstance(float(v), float) for k, v in metrics.items())
        logged.append((int(step), dict(metrics)))

    mlflow = SimpleNamespace(log_metrics=log_metrics)
    federation = make(CLIENTS, None, 0)
    federation.run(3, lambda r: mlflow.log_metrics(r.metrics, step=r.round.number))
    assert [step for step, _ in logged] == [1, 2, 3]
    assert "accuracy" in logged[-1][1]


def test_init_protects_all_rows_of_a_person(home):
    pytest.importorskip("pandas")
    rows = [f"P{i // 3:03d},{i % 90},{'ill' if i > 60 else 'well'}" for i in range(120)]
    (home / "visits.csv").write_text("\n".join(["patient,age,outcome", *rows]))
    asked = call("init", "a file.toml", input="visits.csv\n4\nperson\npatient\n")
    assert asked.exit_code == 0, asked.output
    values = tomllib.loads((home / "a file.toml").read_text())
    assert list(values["data"]["columns"]) == ["age"]
    found = run(load("a file.toml", ["rounds=1", "privacy.rounds=20"]))
    assert ", person, " in found.values["guarantee"]
