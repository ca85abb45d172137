"""Figures of files that were written before a name meant what it means now."""

import json

import pytest

from fedveil.errors import FieldError
from fedveil.evidence import MEASURES, parse_row
from fedveil.learning.metrics import metric_names
from fedveil_lab.config import parse
from fedveil_lab.runs import Summary, run

TOML = {
    "name": "few",
    "rounds": 1,
    "data": {"name": "breast-cancer", "clients": 3},
    "model": {"name": "logistic"},
    "privacy": {"method": "vanilla"},
}


def as_before(values):
    """The same as the first version wrote it."""
    values = {k: v for k, v in values.items() if k != "measures"}
    former = {"micro_auc": "auc", "auc": "macro_auc"}
    for table in ("metrics", "last_rounds", "test_metrics"):
        if table in values:
            values[table] = {former.get(name, name): value for name, value in values[table].items()}
    return values


def test_what_was_called_auc_is_read_as_micro_auc(tmp_path):
    written = run(parse(TOML), tmp_path / "run")
    assert written.values["measures"] == MEASURES
    assert written.values["metrics"]["auc"] != written.values["metrics"]["micro_auc"]
    summary, rows = tmp_path / "run" / "summary.json", tmp_path / "run" / "metrics.jsonl"
    before = as_before(json.loads(summary.read_text()))
    assert "macro_auc" in before["metrics"]
    summary.write_text(json.dumps(before))
    rows.write_text(
        "".join(
            json.dumps(as_before(json.loads(line))) + "\n" for line in rows.read_text().splitlines()
        )
    )
    again = Summary.read(tmp_path / "run")
    for table in ("metrics", "last_rounds", "test_metrics"):
        assert again.values[table] == written.values[table]
    assert [row["metrics"] for row in again.rows] == [row["metrics"] for row in written.rows]


def test_a_line_that_says_what_its_names_mean_is_left_as_it_is():
    rest = dict.fromkeys(("noise", "replies", "failed", "invalid", "refused", "seconds"))
    row = {"round": 1, "metrics": {"auc": 0.75}, **rest}
    assert parse_row(json.dumps(row))["metrics"] == {"micro_auc": 0.75}
    assert parse_row(json.dumps(row | {"measures": MEASURES}))["metrics"] == {"auc": 0.75}


def test_a_name_that_went_says_what_took_its_place():
    with pytest.raises(FieldError, match="micro_auc"):
        metric_names(("macro_auc",), "classes")
