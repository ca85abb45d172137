"""Secure noise against ordinary noise, interleaved in one process, on one thread unless a row says otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from fedveil.mechanisms import DiscreteGaussianNoise, ReproducibleSource, SecureSource

SIZE, REPEATS = 6_400_000, 9


def noise(quick: bool) -> dict[str, Any]:
    """Time every source on the same number of draws, 100 times fewer and once where it has to be quick."""
    size, repeats = (SIZE // 100, 1) if quick else (SIZE, REPEATS)
    secure, two, seeded = SecureSource(), SecureSource(threads=2), ReproducibleSource(0)
    generator = np.random.default_rng(0)
    cases: dict[str, Callable[[], object]] = {
        "np.random.normal, float64": lambda: np.random.normal(size=size),  # noqa: NPY002
        "numpy Generator, float32": lambda: generator.standard_normal(size, dtype=np.float32),
        "reproducible source, float32": lambda: seeded.normal(size, torch.float32),
        "secure source, float32": lambda: secure.normal(size, torch.float32),
        "secure source, float32, two threads": lambda: two.normal(size, torch.float32),
        "secure source, float64": lambda: secure.normal(size, torch.float64),
        "secure source, float64, two threads": lambda: two.normal(size, torch.float64),
        "discrete Gaussian, secure, a tenth of the draws": lambda: DiscreteGaussianNoise(
            1024
        ).sample(size // 10, source=secure),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
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
    return {"draws": size, "repeats": repeats, "rows": rows}
