"""The study of distances: its runs, and what it measures across them."""

import pytest

from fedveil_lab.grid import Outcome
from fedveil_lab.runs import Summary
from fedveil_studies import distances
from fedveil_studies.frame import Choices, Reproduction, Selection, find


def outcomes(slope):
    """Runs from almost one class a client to iid, whose distance follows the data's difference or runs against it."""
    plan = Reproduction(find("distances"), Choices(workers=1))
    cells = plan.measurements("1")[8].cells
    found = []
    for place, cell in enumerate(cells):
        rows = [{"round": 1, "figures": {"euclidean": 10.0 - slope * place}}]
        found.append(Outcome(cell, Summary({}, rows), None))
    return found


def test_six_deals_of_the_data_each_run_once():
    plan = Reproduction(find("distances"), Choices(workers=1))
    cells = plan.cells(Selection.of(plan, ("1",), ("runs", "rounds")))
    assert len(cells) == 6
    assert {cell.config.data.alpha for cell in cells} == {0.05, 0.1, 0.3, 1.0, 10.0, None}


def test_less_alike_clients_have_less_alike_data():
    found = [distances.data_difference(one) for one in outcomes(1.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.8
    assert found[-1] < 0.2


@pytest.mark.parametrize(("slope", "correlation"), [(1.0, 1.0), (-1.0, -1.0)])
def test_a_distance_that_follows_the_data_is_told(slope, correlation):
    measured = distances.follows_the_data(outcomes(slope), "euclidean")
    assert measured.value == pytest.approx(correlation)
