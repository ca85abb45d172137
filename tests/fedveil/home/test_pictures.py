"""Pictures that say something: no panel of a constant, no front of one point, curves of few non-members, progress."""

from dataclasses import replace

import numpy as np
import pytest

from fedveil_lab.config import parse
from fedveil_lab.games.game import game_of, play
from fedveil_lab.report.audit_figures import roc_figure
from fedveil_lab.report.audits import inversion_table, show
from fedveil_lab.report.figures import curves, draw, pareto, several
from fedveil_lab.runs import run
from fedveil_lab.runs.runner import Silent


def made(method, setting, rounds=3):
    values = {"name": "p", "rounds": rounds, "data": {"name": "breast-cancer", "clients": 3}}
    summary = run(parse({**values, "model": {"name": "logistic"}, "privacy": method}))
    return replace(summary, values={**summary.values, "setting": setting})


@pytest.fixture(scope="module")
def plain():
    return made({"method": "vanilla"}, "none")


@pytest.fixture(scope="module")
def noisy():
    return [
        made({"method": "global", "noise_multiplier": z, "clip": 1.0}, f"z {z:g}")
        for z in (1.0, 2.0)
    ]


def test_a_constant_has_no_panel_and_what_changes_has_one(plain, noisy):
    assert [axes.get_ylabel() for axes in curves([plain, noisy[0]]).axes] == [
        "ROC AUC on held-out examples"
    ]
    metric = made({"method": "metric", "noise_multiplier": 1.0, "clip": 1.0}, "metric")
    assert len(curves([plain, metric]).axes) == 3


def test_one_point_has_no_front(plain, noisy, tmp_path, undrawn):
    assert not several([plain, noisy[0]])
    assert several([plain, *noisy])
    assert "pareto.png" not in {file.name for file in draw([plain, noisy[0]], tmp_path)}
    assert "pareto.png" in {file.name for file in draw([plain, *noisy], tmp_path)}
    assert pareto([plain, *noisy]).axes[0].get_ylabel().startswith("ROC AUC")


@pytest.mark.parametrize(
    ("others", "scale"), [(40, "linear"), (99, "linear"), (100, "log"), (2000, "log")]
)
def test_few_non_members_have_linear_axes(others, scale):
    false = np.linspace(min(1.0, 10 / others), 1, 20).tolist()
    figure = roc_figure({"none": {"loss": [false, np.sqrt(false).tolist()]}})
    [axes] = figure.axes
    assert axes.get_xscale() == axes.get_yscale() == scale
    assert axes.get_ylim()[1] >= 1


class Listening(Silent):
    def __init__(self):
        self.begun, self.steps = [], []

    def begin(self, label, done, rounds):
        self.begun.append((label, rounds))

    def advance(self, row):
        self.steps.append(row)


def test_inversion_tells_of_each_release_and_its_rows_carry_their_promise(tmp_path, undrawn):
    values = {
        "name": "i",
        "rounds": 1,
        "data": {"name": "digits", "clients": 3},
        "model": {"name": "logistic"},
    }
    values["privacy"] = {
        "method": "record",
        "sum": "none",
        "epsilon": 8.0,
        "delta": 1e-5,
        "clip": 1.0,
        "examples": 1,
    }
    values["privacy"] |= {"rate": 1.0, "rounds": 1}
    game = game_of(parse(values), "inversion", ["analytic"], replicates=2)
    listening = Listening()
    audit = play(game, tmp_path / "audit", listening)
    [(_, steps)] = [one for one in listening.begun if one[0] == "reconstructing"]
    told = [row["text"] for row in listening.steps if "text" in row]
    assert len(told) == steps == 2 * 7  # two clients, two settings and five noises
    shown = show(audit, tmp_path)
    [table] = shown.tables
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    by = {row["setting"]: row["promise of that round"] for row in rows}
    assert by["vanilla"] == "none"
    for words in ("eps=", "record", "local", "total"):
        assert words in by["record"]
    assert all("eps" not in text for setting, text in by.items() if setting.startswith("nu"))
    assert "promise of that round" not in inversion_table(audit.inverted).header
