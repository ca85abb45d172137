"""The page to sign: pooled figures with intervals, marked as the author's, no hospital, the protected setting first."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from fedveil.cli import app

runner = CliRunner()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    lines = ["site,patient,age,outcome"]
    for person in range(60):
        for _ in range(2):
            age = rng.uniform(20, 90)
            lines.append(
                f"{'Northgate' if person % 2 else 'Southgate'},p{person},{age:.1f},{'ill' if age > 75 else 'well'}"
            )
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    (folder / "c.toml").write_text(
        'name = "c"\nrounds = 3\n[data]\nname = "table"\npath = "visits.csv"\ntarget = "outcome"\n'
        'classes = ["well", "ill"]\npositive = "ill"\ncolumns = { age = [0, 100] }\nclient_column = "site"\n'
        'person = "patient"\nclients = "natural"\nholdout = 0.4\n[model]\nname = "logistic"\n[compare]\n'
        'settings = [{label = "none", method = "vanilla"}, '
        '{label = "noise", method = "global", noise_multiplier = 1.0, clip = 1.0}]\n'
    )
    (folder / "gate.toml").write_text(
        'setting = "noise"\n[privacy]\nunit = "hospital"\nepsilon = 0.1\ndelta = 1e-5\n[measures]\nauc = 0.5\n'
    )
    made = [
        "compare",
        str(folder / "c.toml"),
        "--out",
        str(folder / "out"),
        "--gate",
        str(folder / "gate.toml"),
    ]
    assert runner.invoke(app, made).exit_code == 6
    assert runner.invoke(app, ["report", str(folder / "out")]).exit_code == 0
    return folder / "out"


def test_figures_are_pooled_bounded_and_said_by_the_author(page):
    report = json.loads((page / "report" / "report.json").read_text())
    [section] = [one for one in report["sections"] if one["name"] == "accuracy"]
    assert section["said"]
    [grid] = [one for one in section["tables"] if "Pooled" in one["title"]]
    assert [row[0] for row in grid["rows"]] == ["noise", "none"]  # what protects comes first
    stored = json.loads((page / "comparison.json").read_text())
    found = {one["setting"]: one["classified"]["pooled"] for one in stored}
    cell = grid["rows"][0][grid["header"].index("sensitivity")]
    own = found["noise"]["figures"]["sensitivity"]
    assert cell == f"{own['value']:.3f} ({own['low']:.3f} to {own['high']:.3f})"
    text = " ".join(line["text"] for line in section["lines"])
    assert f"{found['noise']['persons']} test patients" in text
    assert "no promise covers" in text
    assert report["headline"][0]["setting"] == "noise"


def test_no_hospital_stands_on_it_and_the_gate_does(page):
    for file in ("report.html", "report.json", "card.yaml"):
        text = (page / "report" / file).read_text()
        assert "Northgate" not in text
    html = (page / "report" / "report.html").read_text()
    assert "no score offsets" in html
    assert "before the first run" in html


def test_it_is_checked_elsewhere(page):
    ledgers = ["--ledgers", str(page / "cells")]
    done = runner.invoke(
        app, ["report", "--verify", str(page / "report" / "report.json"), *ledgers]
    )
    assert done.exit_code in (0, 5), done.output
    file = page / "report" / "report.html"
    text = file.read_text()
    file.write_text(text.replace("test patients", "test patient", 1))
    again = runner.invoke(
        app, ["report", "--verify", str(page / "report" / "report.json"), *ledgers]
    )
    assert again.exit_code == 1
    file.write_text(text)
