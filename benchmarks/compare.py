"""W1 and W2 under every engine, interleaved in one process; Flower in its own in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.agreement import agreement
from benchmarks.engines import Engine, load, missing, vector
from benchmarks.records import ROOT
from benchmarks.timing import Case, Lap, interleave, ratios, summary
from benchmarks.workloads import WORKLOADS, Workload

OURS, OURS_2 = "FedVeil, 1 worker", "FedVeil, 2 workers"
PLAIN, PFL, PFL_2 = "plain loop", "pfl-research, 1 thread", "pfl-research, 2 threads"
FLOWER = "Flower on Ray, 2 actors"

ROUNDS = {"W1": 50, "W2": 10}  # of the same-work check and of a Flower simulation
BURSTS = {"W1": 30, "W2": 14}  # of each of the two halves, between which Flower runs
BURST = {"W1": (10, 5), "W2": (1, 1)}  # rounds in one go: ours and the loop's, pfl's


def compare(device: str = "cpu", quick: bool = False, say: Any = print) -> dict[str, Any]:
    """Both workloads.

    Parameters
    ----------
    device : str
        Elsewhere than on the CPU only FedVeil and the plain loop run.
    quick : bool
        A tenth of the work, to see that it runs.
    say : callable
        Is told what goes on.
    """
    names = ("W1", "W2") if device == "cpu" else ("W2",)
    return {
        "device": device,
        "workloads": {name: _workload(name, device, quick, say) for name in names},
    }


def _workload(name: str, device: str, quick: bool, say: Any) -> dict[str, Any]:
    work = WORKLOADS[name]()
    say(f"{name}: {work.title}")
    torch.set_num_threads(1)
    rounds = ROUNDS[name] // (5 if quick else 1)
    bursts = BURSTS[name] // (7 if quick else 1)
    checks = [
        agreement(work, min(most, rounds), workers, device, dtype)
        for dtype, most in (("float64", 10), ("float32", 2))
        for workers in ((1, 2) if device == "cpu" else (1,))
    ]
    for check in checks:
        which = f"{check['workers']} worker(s) against the plain loop, {check['rounds']} rounds, {check['dtype']}"
        say(f"  {which}: {_said(check)}")
    skipped = {
        n: why
        for n in ("pfl", "flower")
        if (why := "runs on the CPU" if device != "cpu" else missing(n))
    }
    for peer, why in skipped.items():
        say(f"  {peer} is left out: {why}")
    engines = _engines(work, device, "pfl" not in skipped)
    same = {key: _same_work(work, engine, rounds) for key, engine in engines.items()}
    cases = _cases(name, engines)
    laps = interleave(cases, bursts)
    flower: list[dict[str, Any]] = []
    for _ in range(0 if "flower" in skipped else 1 if quick else 2):
        say("  Flower, in its own processes")
        flower.append(_flower(name, rounds))
        for case, more in interleave(cases, bursts).items():
            laps[case] += more
    if not flower:
        for case, more in interleave(cases, bursts).items():
            laps[case] += more
    rows = {case: summary(found) for case, found in laps.items()}
    if flower:
        rows[FLOWER] = summary([Lap(*lap) for run in flower for lap in run["laps"][1:]])
        rows[FLOWER] |= {
            "minimum_cpu_ms": None,
            "median_cpu_ms": None,
        }  # it works in other processes
        same[FLOWER] = {key: flower[0][key] for key in ("rounds", "accuracy", "moved")}
    for case, row in rows.items():
        say(
            f"  {case:28}{row['minimum_ms']:10.2f} ms a round at least,{row['median_ms']:10.2f} median"
        )
    return {
        "title": work.title,
        "rows": rows,
        "times_as_long_as_ours": ratios(rows, OURS),
        "agreement": checks,
        "same_work": same,
        "skipped": skipped,
    }


def _engines(work: Workload, device: str, with_pfl: bool) -> dict[str, Engine]:
    ours = load("fedveil")
    engines = {OURS: ours(work, 1, device), PLAIN: load("plain")(work, device=device)}
    if device == "cpu":
        engines[OURS_2] = ours(work, 2)
    if with_pfl:
        engines[PFL] = load("pfl")(work)
    return engines


def _cases(name: str, engines: dict[str, Engine]) -> Sequence[Case]:
    own, theirs = BURST[name]
    cases = [
        # what is done once a round, not once a client, may use as many threads as there are workers
        Case(key, e.rounds, threads=2 if key == OURS_2 else 1, burst=theirs if key == PFL else own)
        for key, e in engines.items()
    ]
    if PFL in engines:
        cases.append(Case(PFL_2, engines[PFL].rounds, threads=2, burst=theirs))
    return cases


def _same_work(work: Workload, engine: Engine, rounds: int) -> dict[str, Any]:
    """Figures after the first rounds: what a round learns, and how far clipped means and noise move the parameters."""
    start = vector(work.initial()).cpu()
    engine.rounds(rounds)
    module = engine.model()
    moved = float((vector(module).cpu() - start).norm())
    return {"rounds": rounds, "accuracy": work.accuracy(module), "moved": moved}


def _flower(name: str, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.alone", "flower", name, str(max(rounds, 5))]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(f"Flower failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def environment() -> dict[str, str]:
    """Of the processes that are started: one thread an operation, this checkout on the path."""
    paths = [
        str(ROOT),
        str(ROOT / "src"),
        str(ROOT / "lab" / "src"),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **one, "PYTHONPATH": os.pathsep.join(paths)}


def _said(check: dict[str, Any]) -> str:
    worst, tolerance = check["largest_difference_over_largest_parameter"], check["tolerance"]
    word = "agree" if check["agree"] else "DO NOT AGREE"
    return f"parameters {word} (largest difference {worst:.1e} of the largest parameter, tolerance {tolerance:.0e})"
