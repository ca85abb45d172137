"""A report of what Flower's ServerApp left behind."""

import json
import shutil

import pytest
from test_example_app import app  # noqa: F401  (a fixture)

from fedveil.report.statement.check import check
from fedveil.report.statement.document import ABSENT
from fedveil.report.statement.gather import gather
from fedveil.report.statement.write import write_report

pytestmark = pytest.mark.flower


@pytest.mark.parametrize(("method", "proven"), [("global", True), ("sga-ldp", False)])
def test_a_deployed_run_is_reported_with_what_its_server_knows(app, tmp_path, method, proven):  # noqa: F811
    app(3, rounds=2, out=str(tmp_path / "run"), privacy__method=method)
    write_report(gather([tmp_path / "run"], [], None, None), tmp_path / "report")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    [said] = report["headline"]
    [run] = report["evidence"]["runs"]
    assert run["recomputed"] == proven
    assert ("epsilon" in said["text"]) == proven
    sections = {section["name"]: section for section in report["sections"]}
    transport = sections["trust"]["lines"][0]["text"]
    assert transport == ABSENT  # the server does not know how its messages travelled
    shutil.copytree(tmp_path / "run" / "ledger", tmp_path / "elsewhere" / "ledger")
    file = tmp_path / "report" / "report.json"
    assert not [one for one in check(file, [tmp_path / "elsewhere"]) if one.holds is False]
    ledger = tmp_path / "elsewhere" / "ledger" / "server.jsonl"
    ledger.write_text(ledger.read_text().replace('"attempt": 0', '"attempt": 1', 1))
    assert [one for one in check(file, [tmp_path / "elsewhere"]) if one.holds is False]
