"""Secure noise against ordinary noise, interleaved in one process, on one thread unless a row says otherwise.

Writes results/bench/noise.json. Run: python benchmarks/noise.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from fedveil.mechanisms import DiscreteGaussianNoise, ReproducibleSource, SecureSource
from fedveil.runs.provenance import provenance

OUT = Path(__file__).resolve().parent.parent / "results" / "bench" / "noise.json"
SIZE, REPEATS = 6_400_000, 9


def main() -> None:
    """Time every source on the same number of draws."""
    torch.set_num_threads(1)
    secure, two, seeded = SecureSource(), SecureSource(threads=2), ReproducibleSource(0)
    generator = np.random.default_rng(0)
    cases: dict[str, Callable[[], object]] = {
        "np.random.normal, float64": lambda: np.random.normal(size=SIZE),  # noqa: NPY002
        "numpy Generator, float32": lambda: generator.standard_normal(SIZE, dtype=np.float32),
        "reproducible source, float32": lambda: seeded.normal(SIZE, torch.float32),
        "secure source, float32": lambda: secure.normal(SIZE, torch.float32),
        "secure source, float32, two threads": lambda: two.normal(SIZE, torch.float32),
        "secure source, float64": lambda: secure.normal(SIZE, torch.float64),
        "secure source, float64, two threads": lambda: two.normal(SIZE, torch.float64),
        "discrete Gaussian, secure, a tenth of the draws": lambda: DiscreteGaussianNoise(1024).sample(
            SIZE // 10, source=secure
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(REPEATS):
        for name, draw in cases.items():
            began = time.perf_counter()
            draw()
            times[name].append(1e3 * (time.perf_counter() - began))
    base = min(times["np.random.normal, float64"])
    rows = [
        {
            "case": name,
            "minimum_ms": round(min(t), 1),
            "median_ms": round(median(t), 1),
            "times_faster_than_np_random_normal": round(base / min(t), 2),
        }
        for name, t in times.items()
    ]
    record = {"provenance": provenance("none", [0]), "draws": SIZE, "repeats": REPEATS, "rows": rows}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(record, indent=1) + "\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
