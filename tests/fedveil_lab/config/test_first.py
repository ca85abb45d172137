"""What `fedveil init` makes of tables as hospitals have them, and what it says of its choices."""

import json
import tomllib

import numpy as np
import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil.home import Description
from fedveil_lab.config import load, parse
from fedveil_lab.config.first import first_config, read_columns
from fedveil_lab.report.statement.check import check
from fedveil_lab.report.statement.gather import gather
from fedveil_lab.report.statement.page import write_report
from fedveil_lab.runs.promised import prepared, promised
from fedveil_lab.runs.runner import run

pytest.importorskip("pandas")


def call(*arguments, **options):
    return CliRunner().invoke(app, [str(a) for a in arguments], **options)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A German export: byte order mark, semicolons, decimal commas, three rows a patient, three hospitals."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = ["patient;hospital;admitted;age;crp;sex;outcome"]
    for i in range(180):
        who, crp, age = i // 3, rng.gamma(2, 20), int(rng.integers(20, 95))
        own = f"{who:05d};{('nord', 'süd', 'west')[who % 3]};{1 + i % 28:02d}.03.2024;{age}"
        rows.append(
            f"{own};{crp:.1f}".replace(f"{crp:.1f}", f"{crp:.1f}".replace(".", ","))
            + f";{'fm'[i % 2]};"
        )
        rows[-1] += "ja" if crp > 40 else "nein"
    (tmp_path / "visits.csv").write_bytes(b"\xef\xbb\xbf" + "\n".join(rows).encode())
    return tmp_path


def test_a_german_export_is_read_as_it_is_written_and_ids_are_no_inputs(home):
    text, said = first_config("mine", "visits.csv", 4, "record")
    data = tomllib.loads(text)["data"]
    assert (data["separator"], data["decimal"], data["target"]) == (";", ",", "outcome")
    assert set(data["columns"]) == {"age", "crp", "sex"}
    for column, proposal in (
        ("patient", 'person = "patient"'),
        ("hospital", 'client_column = "hospital"'),
    ):
        for place in (said, [line for line in text.splitlines() if line.startswith("#")]):
            assert any(repr(column) in line and proposal in line for line in place)
    assert any("'admitted'" in line for line in said)
    assert run(parse({**tomllib.loads(text), "rounds": 1})).values["metrics"]["examples"] > 0


def test_sites_are_clients_and_people_stay_whole(home):
    text, _ = first_config("mine", "visits.csv", None, "person", person="patient", site="hospital")
    values = tomllib.loads(text)
    assert (values["data"]["client_column"], values["data"]["clients"]) == ("hospital", "natural")
    assert (values["privacy"]["people"], values["privacy"]["records_per_person"]) == (16, 3)
    assert ", person, " in run(parse({**values, "rounds": 1})).values["guarantee"]


def test_what_was_read_off_the_data_makes_a_promise_conditional_until_it_is_agreed_on(home):
    text, said = first_config("mine", "visits.csv", 4, "client")
    values = tomllib.loads(text)
    assert values["read_off"] == ["data.columns", "data.classes"]
    assert any("read_off" in line for line in said)
    found = promised(prepared(parse(values))).guarantee
    assert found.status == "conditional"
    assert any("data.columns" in condition for condition in found.conditions)
    del values["read_off"]
    assert promised(prepared(parse(values))).guarantee.status == "formal"


def test_it_is_named_where_nothing_is_protected_yet(home):
    text, said = first_config("mine", "visits.csv", 4, "nothing")
    values = tomllib.loads(text)
    assert values["read_off"] == ["data.columns", "data.classes"]
    assert not any("read_off" in line for line in said)
    values["privacy"] = {"method": "global", "noise_multiplier": 2.0, "clip": 1.0}
    assert promised(prepared(parse(values))).guarantee.status == "conditional"


@pytest.mark.parametrize("protect", ["client", "record"])
def test_a_report_lists_it_and_agrees_with_the_ledgers(home, protect):
    assert (
        call(
            "init", "--data", "visits.csv", "--clients", 4, "--protect", protect, "a.toml"
        ).exit_code
        == 0
    )
    ran = call("run", "a.toml", "--set", "rounds=1", "--set", "privacy.rounds=20", "--out", "done")
    assert ran.exit_code == 0, ran.output
    write_report(gather([home / "done"], [], None, None), home / "signed")
    report = json.loads((home / "signed" / "report.json").read_bytes())
    [line] = [one["text"] for one in report["sections"][0]["lines"] if "conditions" in one["label"]]
    assert "data.columns" in line
    assert "conditions below" in report["headline"][0]["text"]
    assert not [
        c for c in check(home / "signed" / "report.json", [home / "done"]) if c.holds is False
    ]


@pytest.mark.parametrize("protect", ["client", "nothing"])
def test_an_export_says_that_its_ranges_were_read_off_until_they_are_agreed_on(home, protect):
    assert (
        call(
            "init", "--data", "visits.csv", "--clients", 4, "--protect", protect, "a.toml"
        ).exit_code
        == 0
    )
    for name in ("as read", "agreed"):
        values = tomllib.loads((home / "a.toml").read_text())
        if name == "agreed":
            del values["read_off"]
        run(parse({**values, "rounds": 1}), home / name)
        said = call("export", home / name)
        assert said.exit_code == 0, said.output
        about = Description.read(home / name / "export" / "model.json")
        card = (home / name / "export" / "README.md").read_text()
        read = ("data.columns", "data.classes") if name == "as read" else ()
        assert about.read_off == read
        assert [key in card and key in said.output for key in ("data.columns", "data.classes")] == [
            bool(read)
        ] * 2
        assert ("| declared |" in card) == (not read)


def test_the_most_records_of_a_person_are_a_count_of_the_data_too(home):
    text, _ = first_config("mine", "visits.csv", 4, "person", person="patient")
    assert "privacy.records_per_person" in tomllib.loads(text)["read_off"]


def test_without_a_terminal_what_is_missing_is_named(home):
    for given, option in (((), "--data"), (("--data", "visits.csv"), "--clients")):
        said = call("init", *given, input="")
        assert said.exit_code == 2
        assert option in said.stderr
        assert not (home / "my.toml").exists()


def test_an_epsilon_that_nobody_gave_is_told(home):
    given = ("init", "--data", "visits.csv", "--clients", 4, "--protect", "client")
    assert "epsilon = 8" in call(*given, "a.toml").stdout
    assert "epsilon = " not in call(*given, "--epsilon", 2, "b.toml").stdout
    assert load("b.toml").privacy.options["epsilon"] == 2


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("PatientID", range(100, 160), "person"),
        ("Patienten_ID", range(100, 160), "person"),
        ("Fallnummer", range(100, 160), "person"),
        ("patient_age", [30, 40, 50] * 20, ""),
        ("hospital_days", [1, 2, 3] * 20, ""),
        ("Krankenhaus", ["a", "b", "c"] * 20, "site"),
        ("site_id", [1, 2, 3] * 20, "site"),
        ("nr", [4, 9, 11] * 20, "id"),
        ("line", range(1, 61), "counter"),
        ("zip", [f"0{i}" for i in range(60)], "id"),
        ("born", [f"19{i}-01-02" for i in range(30, 90)], "date"),
        ("note", [f"text {i}" for i in range(60)], "texts"),
        ("grade", ["i", "ii"] * 30, ""),
    ],
)
def test_what_looks_like_an_id_a_date_or_a_text_is_no_input(tmp_path, column, values, kind):
    rows = [f"{value},{i % 7 / 2},{'ab'[i % 2]}" for i, value in enumerate(values)]
    (tmp_path / "t.csv").write_text("\n".join([f"{column},dose,y", *rows]))
    about, left_out = read_columns(tmp_path / "t.csv", "", "", "")
    assert left_out == ({column: kind} if kind else {})
    assert set(about["columns"]) == {"dose"} | (set() if kind else {column})


@pytest.mark.parametrize(
    ("targets", "key", "value"),
    [
        ([1, 2] * 30, "classes", ["1", "2"]),
        ([0, 1] * 30, "classes", 2),
        ([i / 7 for i in range(60)], "target_range", [0, 9]),
    ],
)
def test_a_target_of_few_whole_numbers_is_classes(tmp_path, targets, key, value):
    rows = [f"{i % 7},{target}" for i, target in enumerate(targets)]
    (tmp_path / "t.csv").write_text("\n".join(["dose,y", *rows]))
    text, _ = first_config("t", str(tmp_path / "t.csv"), 4, "record")
    assert tomllib.loads(text)["data"][key] == value
    assert run(parse({**tomllib.loads(text), "rounds": 1})).values["metrics"]["examples"] > 0


@pytest.mark.few(0)
def test_the_first_rate_learns(tmp_path):
    """Breast cancer data reach .95 without privacy; a rate of .5 over 20 rounds without momentum ended at .79."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "breast.csv", index=False)
    text, _ = first_config("breast", str(tmp_path / "breast.csv"), 10, "record")
    runs = [run(parse({**tomllib.loads(text), "seed": seed})) for seed in (0, 1)]
    assert sum(one.values["metrics"]["accuracy"] for one in runs) / 2 > 0.88


def test_a_site_is_a_column_of_a_table():
    with pytest.raises(FieldError) as refused:
        first_config("mine", "digits", None, "client", site="hospital")
    assert refused.value.field == "site"
