"""The study on the number of hospitals: noise from a budget, and a curve over the clients."""

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil_lab.config import load
from fedveil_lab.grid import compare
from fedveil_studies.frame import find
from fedveil_studies.frame.described import MeasureOf


@pytest.mark.parametrize("preset", ["hospitals-breast"])
def test_forty_hospitals_learn_under_a_formal_epsilon_of_8(preset):
    plain, private = compare(load(preset))
    promised = private.values["guarantees"]["server"]
    assert (promised["status"], promised["unit"]) == ("formal", "client")
    assert promised["epsilon"] == pytest.approx(8, abs=1e-9)
    assert private.values["metrics"]["accuracy"] > 0.9
    assert plain.values["metrics"]["accuracy"] - private.values["metrics"]["accuracy"] < 0.05


def test_the_study_plans_its_runs_and_its_curve_is_over_the_clients():
    found = CliRunner().invoke(app, ["reproduce", "hospitals", "--dry-run"])
    assert "20 runs, 0 finished" in found.output
    curve = find("hospitals").function("curves", MeasureOf(measure="over the hospitals"))

    class Finished:
        def __init__(self, clients, accuracy):
            values = {"clients": clients, "metrics": {"accuracy": accuracy}}
            self.summary = type("Summary", (), {"values": values})

    drawn = curve([Finished(5, 0.1), Finished(40, 0.9)])
    assert (list(drawn.x), list(drawn.y)) == ([5, 40], [0.1, 0.9])
