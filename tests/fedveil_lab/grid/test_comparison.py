"""Accuracy against attacks: a comparison that audits its settings."""

import json
import os

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil_lab.config import parse
from fedveil_lab.games import participation
from fedveil_lab.games.participation import COMPARED, ParticipationGame, check_audit, with_attacks
from fedveil_lab.grid.comparison import RESULT as FILE
from fedveil_lab.report.figures import pareto
from fedveil_lab.runs import Summary

TOML = """
name = "front"
rounds = 2
data = { name = "breast-cancer", clients = 3, partition = "counts", counts = [[20, 20], [20, 20], [0, 40]] }
model = { name = "logistic" }
privacy = { method = "global", noise_multiplier = 0.01, order = "printed" }
[compare]
settings = [{ method = "vanilla" }, { method = "global" }]
sweep = { noise_multiplier = [0.1] }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("front")
    (path / "front.toml").write_text(TOML)
    umask = os.umask(0o022)
    asked = ["compare", str(path / "front.toml"), "--audit", "8", "--out", str(path / "out")]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(participation, "REHEARSALS", 4)
            result = CliRunner().invoke(app, asked)
    finally:
        os.umask(umask)
    assert result.exit_code == 0, result.output
    assert "attack AUC" in result.output
    return path / "out"


@pytest.mark.few(0)
@pytest.mark.skipif(os.name != "posix", reason="needs modes")
def test_whatever_is_left_is_its_owners_alone(folder):
    # curves and the runs that were played side by side were readable for everybody
    modes = {path: path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    for place in (folder, folder / "audit"):
        assert "private" in (place / "PRIVATE.txt").read_text()


@pytest.mark.slow
def test_every_setting_is_attacked_in_one_audit(folder):
    summaries = json.loads((folder / FILE).read_text())
    assert [s["setting"] for s in summaries] == [
        "vanilla",
        "global, noise_multiplier=0.1",
    ]
    values = json.loads((folder / "audit" / "audit.json").read_text())
    assert set(values["settings"]) == {s["setting"] for s in summaries}
    for summary in summaries:
        expected = {
            r["attack"]: r["auc"]["point"]
            for r in values["results"]
            if r["setting"] == summary["setting"]
            and (r["valid_without_defence"] is not False or r["auc"]["low"] > 0.5)
        }
        assert {a["attack"]: a["auc"] for a in summary["audits"]} == expected
        assert [a["auc"] for a in summary["audits"]] == sorted(expected.values(), reverse=True)
    assert (folder / "pareto.png").stat().st_size > 10_000


@pytest.mark.parametrize("values", [[0.1, 0.3, 1.5], [1.25 + i for i in range(10)]])
def test_every_swept_point_is_named_in_every_panel(folder, values):
    plain, noisy = json.loads((folder / FILE).read_text())
    summaries = [Summary({**plain, "audits": []}, [])]
    for base, step in (("global", 0.0), ("metric", 0.03)):
        for i, z in enumerate(values):
            auc = 0.6 + 0.03 * i + step
            changed = {
                "setting": f"{base}, {z}",
                "base": base,
                "swept": {"noise_multiplier": z},
                "noise": {"noise_to_clip": {"mean": z + step}},
                "audits": [
                    {"attack": "loss", "auc": auc, "low": auc - 0.1, "high": auc + 0.02, "runs": 8}
                ],
                "guarantees": {
                    "client": {**next(iter(noisy["guarantees"].values())), "epsilon": 10 / z}
                },
                "last_rounds": {
                    "accuracy": {"mean": 0.9 - 0.04 * i + step, "deviation": 0.01, "rounds": 2}
                },
            }
            summaries.append(Summary({**noisy, **changed}, []))
    figure = pareto(summaries)
    key = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert [text for text in key if ": z" in text] == [
        f"{n}: z {z}" for n, z in enumerate(values, 1)
    ]
    words = [str(n) for n in range(1, len(values) + 1)]
    for axes in figure.axes:
        said = [text.get_text() for text in axes.texts if not text.get_text().startswith("above")]
        assert sorted(said) == sorted(words * 2)


def test_a_damaged_audit_is_named(folder, tmp_path):
    summaries = [Summary(values, []) for values in json.loads((folder / FILE).read_text())]
    assert [s.values["audits"] for s in with_attacks(summaries, tmp_path)] == [[], []]
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit.json").write_text("{")
    with pytest.raises(FieldError, match="audit again"):
        with_attacks(summaries, tmp_path)


def test_what_cannot_be_audited_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "front.toml").write_text(TOML)
    where = ["compare", str(tmp_path / "front.toml"), "--out", str(tmp_path / "out"), "--audit"]
    result = CliRunner().invoke(app, [*where, "2"])
    assert result.exit_code == 2
    assert "--audit = 2: must be a whole number of at least 4" in result.output
    assert not (tmp_path / "out").exists()
    one = parse(
        {
            "name": "x",
            "rounds": 1,
            "data": {"name": "digits", "clients": 1},
            "model": {"name": "logistic"},
        }
    )
    check_audit(one, 0)
    with pytest.raises(FieldError, match="at least two clients"):
        check_audit(one, 10)
    every = {
        "name": "breast-cancer",
        "clients": 2,
        "partition": "counts",
        "counts": [[106, 178], [106, 179]],
    }
    whole = parse({"name": "x", "rounds": 1, "data": every, "model": {"name": "logistic"}})
    check_audit(whole, 10)
    assert (
        ParticipationGame(whole, True, COMPARED, 10).roles.stand_in == "remove"
    )  # nobody's examples are left for another
