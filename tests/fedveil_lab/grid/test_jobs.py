"""Cells on other machines: any executor runs them, a lost worker loses nothing, and drivers share a folder."""

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FedVeilError, FieldError
from fedveil_lab.grid import Cell, Store
from fedveil_lab.grid.jobs import EXECUTORS, TRIES
from fedveil_lab.runs.runner import Silent
from test_store import Largest, config


def cells_of(count, **changes):
    return [Cell("one", config(seed=seed, **changes), (Largest(),)) for seed in range(count)]


def figures(found):
    return {key: outcome.series("largest") for key, outcome in found.outcomes.items()}


def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "test_store"])  # loaded once for all of them
    return ProcessPoolExecutor(2, mp_context=context)


class Remembers(Silent):
    def __init__(self):
        self.begun, self.said = [], []

    def begin(self, label, done, rounds):
        self.begun.append(done)

    def say(self, text):
        self.said.append(text)


@pytest.mark.flaky(reruns=2)  # when a signal arrives is up to the system
@pytest.mark.slow
def test_a_killed_worker_loses_no_cell_and_no_bit(tmp_path):
    cells, others = cells_of(3, rounds=12), set(multiprocessing.active_children())
    wanted = figures(Store(None).run(cells))
    killed = []

    def kill():
        store = Store(tmp_path)
        while not any(2 <= store.rounds_done(cell) < 12 for cell in cells):
            time.sleep(0.005)
        killed.append(next(iter(set(multiprocessing.active_children()) - others)).pid)
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    found = Store(tmp_path).run(cells, executor=processes)
    assert killed
    assert figures(found) == wanted
    assert not found.failed
    assert {len(outcome.rows) for outcome in found.outcomes.values()} == {12}
    assert set(multiprocessing.active_children()) <= others


class Broken(Executor):
    """Loses every worker."""

    def __init__(self):
        self.asked = 0

    def submit(self, work, *arguments):
        self.asked += 1
        future = Future()
        future.set_exception(RuntimeError("the worker died"))
        return future


def test_a_cell_that_loses_every_worker_is_given_up_by_name(tmp_path):
    broken = Broken()
    with pytest.raises(FedVeilError, match="one"):
        Store(tmp_path).run(cells_of(1), executor=lambda: broken)
    assert broken.asked == TRIES


def test_what_a_run_refuses_is_not_tried_again(tmp_path):
    lacking = Cell("one", config(data__public_examples=10**6))
    asked = []

    def threads():
        asked.append(1)
        return ThreadPoolExecutor(1)

    with pytest.raises(FedVeilError, match="public_examples"):
        Store(tmp_path).run([lacking], executor=threads)
    assert asked == [1]


def test_two_drivers_share_a_folder_and_no_cell_is_run_twice(tmp_path, monkeypatch):
    monkeypatch.setattr("fedveil_lab.grid.store.STEP", 0.02)
    cells, drivers, found = cells_of(6, rounds=4), [Remembers(), Remembers()], {}
    threads = [
        threading.Thread(
            target=lambda one=one: found.update({id(one): Store(tmp_path).run(cells, one)}),
            daemon=True,
        )
        for one in drivers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(len(one.begun) for one in drivers) == 6
    assert all(one.begun for one in drivers)
    assert (
        figures(found[id(drivers[0])])
        == figures(found[id(drivers[1])])
        == figures(Store(None).run(cells))
    )


def test_a_cell_that_another_driver_has_is_waited_for_and_taken_over_where_that_ends(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fedveil_lab.grid.store.STEP", 0.02)
    cells, said, done = cells_of(2), Remembers(), []
    held, free = threading.Event(), threading.Event()

    def hold():
        with Store(tmp_path).claim(cells[:1]) as mine:
            assert mine
            held.set()
            free.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    driver = threading.Thread(
        target=lambda: done.append(Store(tmp_path).run(cells, said)), daemon=True
    )
    driver.start()
    until = time.monotonic() + 60
    while Store(tmp_path).state(cells[1]) != "done" and time.monotonic() < until:
        time.sleep(0.01)
    assert not done
    assert Store(tmp_path).state(cells[0]) == "to run"
    free.set()
    holder.join()
    driver.join(60)
    assert len(done[0].outcomes) == 2


def test_a_cell_whose_source_another_driver_has_is_left_to_wait(tmp_path):
    source = Cell("m", config(privacy__method="metric"))
    equal = Cell("e", config(privacy__derived_from="metric privacy"), sigma_of=source)
    with Store(tmp_path).claim([source]), Store(tmp_path).claim([equal]) as mine:
        assert not mine


@pytest.mark.usefixtures("undrawn")
def test_an_executor_is_named_on_the_command_line(tmp_path, monkeypatch):
    (tmp_path / "cluster.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n\ndef two():\n    return ThreadPoolExecutor(2)\n"
    )
    monkeypatch.chdir(tmp_path)
    changes = [
        "--set",
        "rounds=1",
        "--set",
        "privacy.rounds=1",
        "--set",
        "data.clients=3",
        "--out",
        "c",
    ]
    result = CliRunner().invoke(
        app, ["compare", "digits-compare", *changes, "--executor", "cluster:two"]
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "c" / "comparison.json").is_file()
    with pytest.raises(FieldError) as refused:
        EXECUTORS.find("cluster:three")
    assert refused.value.field == "--executor"


class RayExecutor(Executor):
    """As docs/grids.md has it."""

    def submit(self, work, *arguments):
        import ray

        return ray.remote(max_retries=0)(lambda: work(*arguments)).remote().future()


@pytest.mark.slow
def test_with_ray_and_a_killed_worker(tmp_path):
    ray = pytest.importorskip("ray")
    cells = [
        Cell("one", config(seed=seed, rounds=12)) for seed in range(3)
    ]  # a probe of this file is nowhere else
    wanted = Store(None).run(cells).outcomes
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

    def kill():
        store = Store(tmp_path)
        while not (going := [cell for cell in cells if 2 <= store.rounds_done(cell) < 12]):
            time.sleep(0.005)
        holder = (tmp_path / ".claims" / f"{going[0].key}.lock").read_text()  # names the process
        os.kill(int(holder.split()[1]), signal.SIGKILL)
        killed.append(1)

    killed = []
    try:
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        found = Store(tmp_path).run(cells, executor=RayExecutor)
    finally:
        ray.shutdown()
    assert killed
    assert {key: one.series("loss") for key, one in found.outcomes.items()} == {
        key: one.series("loss") for key, one in wanted.items()
    }
