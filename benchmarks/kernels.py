"""The server's kernels beside what is commonly used, interleaved in one process, on one thread."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.stats import trim_mean
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from fedveil.aggregation import FedAvg, FedMedian, Krum, TrimmedMean, cluster_means
from fedveil.calibration import max_pairwise_distance
from fedveil.layout import Layout
from fedveil.mechanisms import GaussianNoise, SecureSource

MLP = {
    "0.weight": (128, 64),
    "0.bias": (128,),
    "2.weight": (10, 128),
    "2.bias": (10,),
}  # 9,610 parameters
CNN = {
    "conv": (64, 32, 3, 3),
    "dense": (128, 9216),
    "head": (62, 128),
    "bias": (62,),
}  # 1.2 million


@dataclass(frozen=True)
class Case:
    """Two ways to one result, and how far ours is from theirs."""

    name: str
    peer: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    apart: Callable[[Any, Any], float]
    repeats: int = 7


def relative(ours: Any, theirs: Any) -> float:
    """Largest difference over largest value."""
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    return float(np.abs(a - b).max() / np.abs(b).max())


def naive_distance(models: np.ndarray, layout: Layout) -> float:
    """The published definition, pair by pair: the mean over arrays of the norm of the difference."""
    cuts = [b.start for b in layout.blocks][1:]
    clients = [np.split(m, cuts) for m in models]
    return max(
        float(np.mean([np.linalg.norm(a - b) for a, b in zip(p, q, strict=True)]))
        for i, p in enumerate(clients)
        for q in clients[i + 1 :]
    )


def naive_krum(updates: np.ndarray) -> np.ndarray:
    """The update with the least sum of squared distances to its n - 2 nearest others."""
    distances = np.array([[np.sum((p - q) ** 2) for q in updates] for p in updates])
    return updates[np.sort(distances, axis=1)[:, 1:-1].sum(1).argmin()]


def distances(n: int, shapes: dict[str, tuple[int, ...]], spread: float, repeats: int) -> Case:
    """n models around a common start."""
    layout = Layout.from_shapes(shapes)
    models = torch.randn(layout.size) + spread * torch.randn(n, layout.size)
    return Case(
        f"largest layer distance, n {n}, d {layout.size}, spread {spread:g}",
        "numpy double loop",
        lambda: max_pairwise_distance(models, layout),
        lambda: naive_distance(models.numpy(), layout),
        relative,
        repeats,
    )


def rules(shrink: int) -> list[Case]:
    """Means, medians, trimmed means, Krum, clusters."""
    weights = lambda u: torch.full((len(u),), 1 / len(u), dtype=torch.float64)  # noqa: E731
    few, many, long = (
        torch.randn(n, d // shrink) for n, d in ((10, 1_200_000), (100, 120_000), (20, 6_400_000))
    )
    cases = [
        Case(
            f"median, n {len(u)}, d {u.shape[1]}",
            "np.median",
            lambda u=u: FedMedian().reduce(u, weights(u)),
            lambda u=u: np.median(u.numpy(), axis=0),
            relative,
        )
        for u in (few, many)
    ]
    cases += [
        Case(
            f"trimmed mean, n 10, d {few.shape[1]}",
            "scipy.stats.trim_mean",
            lambda: TrimmedMean(0.2).reduce(few, weights(few)),
            lambda: trim_mean(few.numpy(), 0.2, axis=0),
            relative,
            3,
        ),
        Case(
            f"Krum, n 100, d {many.shape[1]}",
            "numpy double loop",
            lambda: Krum().reduce(many, weights(many)),
            lambda: naive_krum(many.numpy()),
            relative,
            3,
        ),
        flower_mean(long, weights(long)),
    ]
    for n, whole, spread in ((50, 1_200_000, 1.0), (50, 1_200_000, 1e-2), (1000, 10_000, 1.0)):
        d = whole // shrink
        true = spread * torch.randn(5, d)
        models, start = true[torch.arange(n) % 5] + torch.randn(n, d), true + torch.randn(5, d)
        cases.append(
            Case(
                f"clusters, n {n}, d {d}, k 5, centres {spread:g} deviations apart",
                "scikit-learn's KMeans from the same centres",
                lambda m=models, s=start: cluster_means(m, s)[1],
                lambda m=models, s=start: (
                    KMeans(5, init=s.numpy(), n_init=1, tol=0).fit(m.numpy()).labels_
                ),
                lambda a, b: float((np.asarray(a) != b).mean()),
                3,
            )
        )
    return cases


def flower_mean(updates: torch.Tensor, weights: torch.Tensor) -> Case:
    """Flower's own sum where it is installed, numpy's average elsewhere."""
    mean = lambda: FedAvg().reduce(updates, weights)  # noqa: E731
    name = f"weighted mean, n {len(updates)}, d {updates.shape[1]}"
    try:
        from flwr.server.strategy.aggregate import aggregate
    except ImportError:
        theirs = lambda: np.average(updates.numpy(), axis=0, weights=weights.numpy())  # noqa: E731
        return Case(name, "np.average", mean, theirs, relative, 5)
    results = [([u.numpy()], 1) for u in updates]
    return Case(name, "Flower's aggregate", mean, lambda: aggregate(results)[0], relative, 5)


def noise(shrink: int) -> list[Case]:
    """Noise added to a model of 6.4 million parameters."""
    model = torch.randn(6_400_000 // shrink)
    apart = lambda a, b: abs(float(np.std(a - model.numpy())) - 0.01) / 0.01  # noqa: E731
    return [
        Case(
            f"secure noise into a float32 model, d {len(model)}, {threads} thread(s)",
            "model + np.random.normal",
            lambda s=source: GaussianNoise(0.01).add_to(model.clone(), source=s).numpy(),
            lambda: model.numpy() + np.random.normal(0, 0.01, len(model)).astype(np.float32),  # noqa: NPY002
            apart,
        )
        for threads, source in ((1, SecureSource()), (2, SecureSource(threads=2)))
    ]


def peak(work: Callable[[], Any]) -> float | None:
    """Extra memory at its highest, in MB (Linux only; the result counts)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    read = lambda key: int(  # noqa: E731
        next(x for x in status.read_text().splitlines() if x.startswith(key)).split()[1]
    )
    ctypes.CDLL(None).malloc_trim(0)  # what is free already would hide what is asked for
    Path("/proc/self/clear_refs").write_text("5")
    before = read("VmRSS:")
    work()
    return round((read("VmHWM:") - before) / 1000, 1)


def measure(case: Case) -> dict[str, Any]:
    """Time both sides in turn; the first turn warms up."""
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    for repeat in range(case.repeats + (case.repeats > 2)):
        results = []
        for side in times:
            work = getattr(case, side)
            began = time.perf_counter()
            results.append(work())
            if repeat or case.repeats <= 2:
                times[side].append(1e3 * (time.perf_counter() - began))
    ours, theirs = times["ours"], times["theirs"]
    return {
        "case": case.name,
        "peer": case.peer,
        "ours_ms": {"minimum": round(min(ours), 1), "median": round(median(ours), 1)},
        "peer_ms": {"minimum": round(min(theirs), 1), "median": round(median(theirs), 1)},
        "ratio_of_minimums": round(min(theirs) / min(ours), 2),
        "ratio_of_medians": round(median(theirs) / median(ours), 2),
        "difference": case.apart(*results),
        "extra_memory_mb": {"ours": peak(case.ours), "peer": peak(case.theirs)},
    }


def kernels(quick: bool) -> dict[str, Any]:
    """Measure everything; of a tenth of the rows and columns, and once, where it has to be quick."""
    torch.manual_seed(0)
    shrink = 10 if quick else 1
    with threadpool_limits(1):
        cases = [
            distances(1000 // shrink, MLP, 1e-2, 2),
            distances(10, CNN, 1e-3, 3),
            *rules(shrink),
            *noise(shrink),
        ]
        return {"rows": [measure(replace(case, repeats=1) if quick else case) for case in cases]}
