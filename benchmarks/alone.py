"""One engine alone in a fresh process: ``python -m benchmarks.alone ENGINE WORKLOAD ROUNDS``.

Prints one line of JSON: what importing cost, how long the first round took, the laps, the memory, the model's figures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import memory


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("workload")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    options = {"workers": args.workers} if args.engine == "fedveil" else {}
    print(json.dumps(run(args.engine, args.workload, args.rounds, options)), flush=True)


def run(engine: str, workload: str, rounds: int, options: dict[str, Any]) -> dict[str, Any]:
    """Import, build, run; one intra-op thread."""
    began = time.perf_counter()
    import torch

    torch.set_num_threads(1)
    with_torch = time.perf_counter()
    from benchmarks.workloads import WORKLOADS

    work = WORKLOADS[workload]()
    with_data = time.perf_counter()
    from benchmarks.engines import load, vector

    kind = load(engine)
    imported = time.perf_counter()
    start = vector(work.initial())
    baseline, ready = memory.present(), time.perf_counter()
    federation = kind(work, **options)
    laps: Sequence[Any] = federation.rounds(rounds if engine == "flower" else 1)
    first = laps[0].wall
    built = time.perf_counter() - ready
    if engine != "flower":
        laps = [*laps, *federation.rounds(rounds - 1)]
    moved = vector(federation.model()) - start
    return {
        "engine": engine,
        "workload": workload,
        "rounds": rounds,
        "import_torch_s": with_torch - began,
        "import_engine_s": imported - with_data,
        "start_s": first if engine == "flower" else built,
        "laps": [(lap.wall, lap.cpu) for lap in laps],
        "baseline_mb": baseline,
        "peak_mb": memory.peak(),
        "accuracy": work.accuracy(federation.model()),
        "moved": float(moved.norm()),
        "start_norm": float(start.norm()),
    }


if __name__ == "__main__":
    main()
