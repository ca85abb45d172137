"""Several cells of a study at once: the same figures as one after another, in an order that respects who needs whom."""

import pytest

from fedveil.errors import FedVeilError
from fedveil.reproduce import Progressed, Runs, Selection, cells_of, run_cells
from fedveil.reproduce.parallel import Jobs
from reproduce_kit import Silent, Told, run_all, tiny_study


def rounds(done):
    """What every run found, without what the clock says."""
    return {
        key: [{name: value for name, value in row.items() if name != "seconds"} for row in outcome.summary.rows]
        for key, outcome in done.finished.items()
    }


@pytest.fixture
def study(patterns):
    return tiny_study(patterns)


def test_at_once_gives_what_one_after_another_gives(study, tmp_path, monkeypatch):
    monkeypatch.setattr("fedveil.reproduce.study.PATIENCE", 0.5)  # a process needs longer than that to start
    told = Told()
    both = run_all(study, tmp_path / "both", ["5", "sigma"], progress=told, jobs=2)
    assert rounds(both) == rounds(run_all(study, tmp_path / "one", ["5", "sigma"]))
    assert told.said[0] == "4 runs, 2 at once"
    stands = [said for said in told.said if said.startswith("so far: ")]
    assert "homogeneous-fedavg vanilla seed 0: 0 of 2 rounds, homogeneous-fedavg global seed 0: 0 of 2" in stands[0]
    order = [said.split()[4] for said in told.said[1:] if said not in stands]
    assert sorted(order) == ["equal", "global", "metric", "vanilla"]
    assert order.index("metric") < order.index("equal")
    again = Told()
    run_all(study, tmp_path / "both", ["5", "sigma"], progress=again, jobs=2)
    assert again.said == ["4 of 4 runs are finished already"]


def test_what_fails_in_another_process_is_told_here(tmp_path):
    study = tiny_study(tmp_path / "patterns.npz")  # which nobody wrote
    cells = cells_of(study, Selection.of(study, ["5"]))
    with pytest.raises(FedVeilError, match=r"patterns\.npz"):
        run_cells(cells, Runs(tmp_path / "out"), Silent(), Progressed(), jobs=2)


def test_no_more_is_begun_than_there_are_processes(study, tmp_path):
    cells = cells_of(study, Selection.of(study, ["5", "sigma"]))
    going = Jobs(Runs(tmp_path), 8, cells)
    assert [cell.label.split()[1] for cell in going._ready()] == ["vanilla", "global", "metric"]
    assert len(Jobs(Runs(tmp_path), 2, cells)._ready()) == 2
