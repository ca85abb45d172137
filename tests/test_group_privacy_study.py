"""The group-privacy study: what it counts as leakage, and that it runs on the real hospitals."""

import pytest

from fedveil.config import load
from fedveil.data import SOURCES
from fedveil.grid import Cell, Store
from fedveil.papers.study import find

STUDY = find("group-privacy")


def test_published_medians_are_the_participations_that_they_count():
    # n / nu a participation: every printed median of table 1, averaged over 10 runs, is a multiple of 11 / nu / 10
    for (table, row, _, figure), published in STUDY.published.items():
        assert table == "1"
        each = 11 / float(row.removeprefix("nu = "))
        steps = published.value / each * (20 if figure == "median" else 10)
        assert steps == pytest.approx(round(steps), abs=20 * 0.06 / each)


@pytest.mark.data
@pytest.mark.skipif(not SOURCES["cms-inpatient"].available, reason="the hospital charges are not here")
def test_a_short_run_on_the_hospitals(tmp_path):
    config = load("group-privacy-hospitals", ["rounds=3", "clients_per_round=20", "stopping.sample=10"])
    cell = Cell("short", config)
    finished = Store(tmp_path).run([cell])
    outcome = finished.outcomes[cell.key]
    most = STUDY.measures["leakage"]([outcome], "max").value
    made = outcome.summary.values["participations"]
    assert sum(made.values()) == 2075
    assert sum(int(k) * v for k, v in made.items()) == 60
    assert most == pytest.approx(11 / 3 * max(map(int, made)))
    assert STUDY.measures["leakage"]([outcome], "median").value == 0
    assert 0.05 < STUDY.measures["settled"]([outcome], "validation").value < 20
    share = STUDY.curves["share leaked"]([outcome], "")
    assert share.y[-1] == 1
