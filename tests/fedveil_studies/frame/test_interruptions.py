"""Several cells of a study at once: the same figures as one after another, and processes that are killed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest

from fedveil.errors import FedVeilError
from fedveil_lab.grid import Store
from fedveil_lab.grid.jobs import Jobs
from fedveil_lab.grid.store import run_in_process
from fedveil_studies.frame import Selection
from papers_kit import Told, run_all, tiny_study

TESTS = Path(__file__).resolve().parent

# When a signal arrives is up to the system: a test that fails is run again, and the report shows it.
pytestmark = pytest.mark.flaky(reruns=2)


def rounds(done):
    """What every run found, without what the clock says."""
    return {
        key: [
            {name: value for name, value in row.items() if name != "seconds"}
            for row in outcome.rows
        ]
        for key, outcome in done.outcomes.items()
    }


@pytest.fixture
def study(patterns):
    return tiny_study(patterns)


def cells_of(study, *tables):
    return study.cells(Selection.of(study, tables))


@pytest.mark.few(0)
def test_at_once_gives_what_one_after_another_gives(study, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedveil_lab.grid.store.PATIENCE", 0.5
    )  # a process needs longer than that to start
    told = Told()
    both = run_all(study, tmp_path / "both", ["5", "sigma"], progress=told, jobs=2)
    assert rounds(both) == rounds(run_all(study, tmp_path / "one", ["5", "sigma"]))
    assert any("homogeneous-fedavg vanilla seed 0: 0 of 2 rounds" in said for said in told.said)
    ended = [said.partition(": ")[2] for said in told.said if " of 4: " in said]
    order = [said.split()[1] for said in ended]
    assert sorted(order) == ["equal", "global", "metric", "vanilla"]
    assert order.index("metric") < order.index("equal")
    assert (
        Store(tmp_path / "both").collect(cells_of(study, "5", "sigma")).outcomes.keys()
        == both.outcomes.keys()
    )


def test_what_fails_in_another_process_is_told_here(tmp_path):
    [cell, *_] = cells_of(tiny_study(tmp_path / "patterns.npz"), "5")  # which nobody wrote
    work = partial(run_in_process, tmp_path / "out")
    with pytest.raises(FedVeilError, match=r"patterns\.npz"), Jobs(work, 1, [cell]) as going:
        going.next()


def test_no_more_is_begun_than_there_are_processes(study, tmp_path):
    cells, work = cells_of(study, "5", "sigma"), partial(run_in_process, tmp_path)
    going = Jobs(work, 8, cells)
    assert [cell.label.split()[1] for cell in going._ready()] == ["vanilla", "global", "metric"]
    assert len(Jobs(work, 2, cells)._ready()) == 2


def test_a_killed_process_is_told_in_one_sentence(study, tmp_path):
    cells = cells_of(study, "5")
    others = set(multiprocessing.active_children())

    def kill():
        while not (new := set(multiprocessing.active_children()) - others):
            time.sleep(0.01)
        os.kill(new.pop().pid, signal.SIGKILL)

    def play():
        with Jobs(partial(run_in_process, tmp_path), 2, cells) as going:
            killer.start()
            while going.next() is not None:
                pass

    killer = threading.Thread(target=kill)
    with pytest.raises(FedVeilError, match="was killed, perhaps for want of memory"):
        play()
    killer.join()
    assert set(multiprocessing.active_children()) <= others


def test_a_process_that_was_killed_while_nobody_waited_is_told_too(study, tmp_path):
    with Jobs(partial(run_in_process, tmp_path), 1, cells_of(study, "5")) as going:
        killed = going._pool.submit(time.sleep, 60)
        os.kill(next(iter(going._pool._processes)), signal.SIGKILL)  # before it has loaded anything
        with pytest.raises(BrokenProcessPool):
            killed.result()
        with pytest.raises(FedVeilError, match="was killed, perhaps for want of memory"):
            going.next()


def test_a_pool_that_breaks_while_a_process_is_begun_is_told_too(study, tmp_path, monkeypatch):
    def closed(*_):
        raise OSError("handle is closed")

    with Jobs(partial(run_in_process, tmp_path), 1, cells_of(study, "5")) as going:
        monkeypatch.setattr(going._pool, "submit", closed)
        with pytest.raises(FedVeilError, match="was killed, perhaps for want of memory"):
            going.next()


ORPHANS = """
import os, sys, time
from functools import partial
from pathlib import Path
from fedveil_lab.grid.jobs import Jobs
from fedveil_lab.grid.store import run_in_process

if __name__ == "__main__":
    jobs = Jobs(partial(run_in_process, Path(sys.argv[1])), 1, [])
    print(jobs._pool.submit(os.getpid).result(), flush=True)
    time.sleep(60)
"""


def ended(process):
    """Whether a process has ended, collected or not."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{process}/stat")
    return state.is_file() and state.read_text().split()[2] == "Z"


@pytest.mark.slow
def test_processes_end_with_the_one_that_began_them(tmp_path):
    script = tmp_path / "begin.py"
    script.write_text(ORPHANS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, str(script), str(tmp_path / "runs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as first:
        child = int(first.stdout.readline())
        os.kill(child, 0)
        first.kill()
    for _ in range(500):
        if ended(child):
            break
        time.sleep(0.01)
    outlives = not ended(child)
    if outlives:
        os.kill(child, signal.SIGKILL)
    assert not outlives
