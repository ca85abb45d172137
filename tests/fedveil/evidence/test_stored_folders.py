"""Folders that 0.1.0 wrote before the laboratory was a package of its own (`stored`): they are read as before."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.cli.checked import show_checked
from fedveil.engines.lifetime import read_head, read_ledger, read_policy
from fedveil.evidence import Checked, encoded, read_books
from fedveil_lab.config import load
from fedveil_lab.report.statement.check import check
from fedveil_lab.runs import Summary

STORED = Path(__file__).parent / "stored"


@pytest.fixture
def stored(tmp_path):
    """A copy, whose keys are its owner's alone again."""
    folder = tmp_path / "stored"
    shutil.copytree(STORED, folder)
    for key in folder.rglob("*.key"):
        key.chmod(0o600)
    return folder


def call(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_configurations_are_read():
    for file in ("one.toml", "run", "comparison/config.toml", "audit/config.toml"):
        assert load(STORED / file).name == "stored"


@pytest.mark.parametrize(
    "name",
    [
        "run",
        "deployed/run",
        *(f"comparison/cells/{c.name}" for c in STORED.glob("comparison/cells/*")),
    ],
)
def test_a_run_and_its_ledgers_are_read(name):
    summary = Summary.read(STORED / name)
    [books] = read_books([STORED / name / "ledger"]).runs.values()
    assert all(book.ledger.entries for book in books.values())
    assert summary.values["rounds"] == len(summary.rows) == 2


def test_a_run_that_ended_before_its_summary_goes_on_from_its_checkpoint(stored):
    run = stored / "run"
    before = Summary.read(run).values["metrics"]
    (run / "summary.json").unlink()
    (run / "model.safetensors").unlink()
    result = call("run", run, "--resume")
    assert result.exit_code == 0, result.output
    assert Summary.read(run).values["metrics"] == pytest.approx(before)
    assert (run / "model.safetensors").read_bytes() == (
        STORED / "run" / "model.safetensors"
    ).read_bytes()


def test_a_finished_run_is_found_finished(stored):
    before = (stored / "run" / "ledger" / "server.jsonl").read_text()
    result = call("run", stored / "run", "--resume")
    assert result.exit_code == 0, result.output
    assert (stored / "run" / "ledger" / "server.jsonl").read_text() == before
    assert (
        Summary.read(stored / "run").values["metrics"]
        == Summary.read(STORED / "run").values["metrics"]
    )


@pytest.mark.parametrize(
    ("report", "ledgers"),
    [("report", ["run"]), ("deployed/report", ["deployed/ledgers", "deployed/run"])],
)
def test_a_report_agrees_with_its_ledgers(report, ledgers):
    checks = {
        one.what: one.holds
        for one in check(STORED / report / "report.json", [STORED / one for one in ledgers])
    }
    assert not [what for what, holds in checks.items() if holds is False]
    assert [what for what, holds in checks.items() if what.endswith(": promise") and holds]


def test_lines_without_draws_are_counted_and_refuse_nothing():
    found = check(STORED / "report" / "report.json", [STORED / "run"])
    [verdict] = [one for one in found if one.kind == "word"]
    assert verdict.holds is None
    assert not [one for one in found if one.holds is False]


@pytest.mark.parametrize("kind", ["word", ""])
def test_lines_that_are_believed_stand_in_a_sentence_after_the_table(kind, capsys):
    checks = [
        Checked("a run: promise", True, kind="promise"),
        Checked("a run: 7 lines", None, "why", kind),  # type: ignore[arg-type]
    ]
    show_checked(Path("report.json"), checks)
    assert ("a run: 7 lines" in capsys.readouterr().err) == bool(kind)


def test_a_data_set_s_lines_without_draws_are_counted_too(stored):
    ledgers = sorted((stored / "deployed/ledgers").glob("*.jsonl"))
    words = [word for file in ledgers for word in ("--ledgers", file)]
    assert call("report", stored / "deployed/run", *words, "--out", stored / "sites").exit_code == 0
    found = check(stored / "sites" / "report.json", [stored / "deployed"])
    believed = [one.what for one in found if one.kind == "word"]
    assert [what for what in believed if what.startswith("data set ")]


def test_a_report_that_leaves_out_a_client_s_data_set_whose_ledger_is_given_is_no_pass(stored):
    ledgers = sorted((stored / "deployed/ledgers").glob("*.jsonl"))
    words = [word for file in ledgers for word in ("--ledgers", file)]
    assert call("report", stored / "deployed/run", *words, "--out", stored / "sites").exit_code == 0
    report = stored / "sites/report.json"
    values = json.loads(report.read_bytes())
    left = values["evidence"]["sets"].pop()["ledger"]["party"]
    report.write_bytes(encoded(values))
    unseen = [
        one.what
        for one in check(report, [stored / "deployed"])
        if (one.holds, one.kind) == (None, "promise")
    ]
    assert f"data set {left}" in unseen


def test_all_kinds_can_be_reported_anew(stored):
    folders = [stored / name for name in ("run", "comparison", "audit")]
    result = call("report", *folders, "--out", stored / "anew")
    assert result.exit_code == 0, result.output
    values = json.loads((stored / "anew" / "report.json").read_text())
    assert len(values["evidence"]["runs"]) == 3
    ledgers = [
        word
        for file in sorted((stored / "deployed/ledgers").glob("*.jsonl"))
        for word in ("--ledgers", file)
    ]
    result = call("report", stored / "deployed" / "run", *ledgers, "--out", stored / "sites")
    assert result.exit_code == 0, result.output
    checks = check(stored / "sites" / "report.json", [stored / "deployed"])
    assert not [one.what for one in checks if one.holds is False]


def test_ledgers_of_data_sets_heads_and_policies_are_read(stored):
    for folder, head in (("deployed/ledgers", "deployed/heads"), ("node/ledgers", "node")):
        for file in (stored / folder).glob("*.jsonl"):
            read_ledger(file)
            assert read_head(file, stored / head).by
            assert call("ledger", "show", file, "--head", stored / head).exit_code == 0
    assert read_policy(stored / "node" / "policy.toml") is not None


def test_a_comparison_and_an_audit_are_read():
    values = json.loads((STORED / "comparison" / "comparison.json").read_text())
    assert {one["setting"] for one in values} == {"no privacy", "global DP"}
    assert json.loads((STORED / "audit" / "audit.json").read_text())["game"] == "participation"
