"""Studies that are asked again in one folder: other readings, seeds, rules and scales, and killed processes."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedveil.cli import app
from fedveil.cli.reproduce import _seeds
from fedveil.errors import FedVeilError, FieldError
from fedveil.reproduce import Runs, Selection, cells_of
from fedveil.reproduce.evidence import Figure, differ, mean_of
from fedveil.reproduce.files import refuse_other_scale
from fedveil.reproduce.metric_privacy import Choices, MetricPrivacyStudy
from fedveil.reproduce.parallel import Jobs
from reproduce_kit import Told, run_all, tiny_study

TESTS = Path(__file__).resolve().parent


def equal_of(study):
    return next(cell for cell in cells_of(study, Selection.of(study, ["sigma"])) if " equal " in cell.label)


def test_the_sigma_of_another_reading_is_another_run(patterns, tmp_path):
    run_all(tiny_study(patterns), tmp_path, ["sigma"])
    assert Runs(tmp_path).state(equal_of(tiny_study(patterns))) == "done"
    assert Runs(tmp_path).state(equal_of(tiny_study(patterns, readings=("more-noise",)))) == "to run"


def test_settings_of_one_comparison_step_from_the_same_model(patterns):
    study = tiny_study(patterns, readings=("own-model",), rules=("fedavgm",))
    stepped = {c.label.split()[1]: c.config.privacy for c in cells_of(study, Selection.of(study, ["sigma"]))}
    assert {stepped[s].options["step_from"] for s in ("metric", "equal")} == {"own"}


def test_readings_have_one_order():
    some = ("uniform", "more-noise", "uniform")
    assert Choices(readings=some).readings == Choices(readings=some[1:]).readings == ("more-noise", "uniform")


def test_seeds_that_were_stored_are_kept_one_by_one():
    far = Choices(seed=7).with_stored(["FedAvg"], [0, 100_000], 3)
    assert far.all_seeds == (0, 7, 100_000)
    assert far.with_stored([], [3], 1).all_seeds == (0, 3, 7, 100_000)


def test_figures_of_other_rules_are_left_out():
    study = MetricPrivacyStudy(Choices(rules=("fedopt",)))
    assert "distances" not in study.figures
    assert "distances" in MetricPrivacyStudy(Choices()).figures
    with pytest.raises(FieldError, match="figure distances is about fedavg alone"):
        study.refuse_other_rules([], ["distances"])


def test_tables_of_another_scale_are_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "cells").mkdir()
    (tmp_path / "table-5.json").write_text(json.dumps({"scale": "small"}))
    (tmp_path / "table-6.json").write_text("{")
    refuse_other_scale(tmp_path, MetricPrivacyStudy(Choices()))
    monkeypatch.chdir(tmp_path)
    asked = ["--table", "5", "--scale", "paper", "--no-run", "--out", "."]
    said = CliRunner().invoke(app, ["reproduce", "metric-privacy", *asked])
    assert said.exit_code == 2
    assert "holds tables of the scale 'small'; give another folder" in said.stderr


def test_a_mean_over_rows_is_over_the_seeds_that_all_have():
    def row(**values):
        found = {(int(seed[1:]), 0): value for seed, value in values.items()}
        return differ(Figure(found), Figure(dict.fromkeys(found, 0.0)))

    first, second = row(s0=1.0, s1=2.0, s3=9.0), row(s0=3.0, s1=4.0, s2=9.0)
    both = mean_of([first, second])
    assert (both.seeds, both.values) == ((0, 1), (2.0, 3.0))
    assert mean_of([first, row(s1=1.0, s2=1.0)]) is None


def test_a_killed_process_is_told_in_one_sentence(patterns, tmp_path):
    study = tiny_study(patterns)
    cells = cells_of(study, Selection.of(study, ["5"]))
    others = set(multiprocessing.active_children())

    def kill():
        while not (new := set(multiprocessing.active_children()) - others):
            time.sleep(0.01)
        os.kill(new.pop().pid, signal.SIGKILL)

    def play():
        with Jobs(Runs(tmp_path), 2, cells) as going:
            killer.start()
            while going.next() is not None:
                pass

    killer = threading.Thread(target=kill)
    with pytest.raises(FedVeilError, match="was killed, perhaps for want of memory"):
        play()
    killer.join()
    assert set(multiprocessing.active_children()) <= others


def test_a_process_that_was_killed_while_nobody_waited_is_told_too(patterns, tmp_path):
    study = tiny_study(patterns)
    cells = cells_of(study, Selection.of(study, ["5"]))
    with Jobs(Runs(tmp_path), 1, cells) as going:
        killed = going._pool.submit(os._exit, 9)
        with pytest.raises(BrokenProcessPool):
            killed.result()
        with pytest.raises(FedVeilError, match="was killed, perhaps for want of memory"):
            going.next()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which the run would go on")
def test_a_run_goes_on_on_the_device_it_was_begun_on(patterns, tmp_path):
    study = tiny_study(patterns)
    with pytest.raises(KeyboardInterrupt):
        run_all(study, tmp_path, ["5"], progress=Told(rounds=1))
    [begun] = (tmp_path / "cells").iterdir()
    config = begun / "config.toml"
    config.write_text(config.read_text().replace('device = "cpu"', 'device = "cuda"'))
    with pytest.raises(FieldError, match=f"--device = 'cpu': .*{begun.name} was begun on 'cuda'"):
        run_all(study, tmp_path, ["5"])


def test_figures_of_other_seeds_replace_none():
    assert [_seeds(seeds) for seeds in ((0,), (3,), (0, 1, 2))] == ["", "-seed-3", "-seeds-0-2"]


ORPHANS = """
import os, sys, time
from pathlib import Path
from fedveil.reproduce import Runs
from fedveil.reproduce.parallel import Jobs

if __name__ == "__main__":
    jobs = Jobs(Runs(Path(sys.argv[1])), 1, [])
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
