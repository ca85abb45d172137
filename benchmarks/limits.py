"""Where a round's time goes, and how far it could still fall: phases of a round, and its arithmetic alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.engines import load
from benchmarks.workloads import WORKLOADS, Workload

PHASES = {
    "ask": "the cohort is drawn and asked",
    "train": "clients train",  # and since there is one courier, hand their models over
    "protect": "clients hand their models over",  # in records before that
    "close": "replies are checked, clipped, averaged; noise, digest, ledger",
}
MEASURED = ("ask", "train", "close")


def limits(quick: bool = False, say: Any = print) -> dict[str, Any]:
    """Phases of W1 and W2 with one worker, their matrix products and convolutions alone, and the machine's speed."""
    torch.set_num_threads(1)
    rounds = {"W1": 40 if quick else 600, "W2": 3 if quick else 20}
    alone = {"W1": _products, "W2": _convolutions}
    found: dict[str, Any] = {"workloads": {}, "machine": _machine()}
    for name, count in rounds.items():
        work = WORKLOADS[name]()
        row = {"phases": _phases(work, count), "arithmetic": alone[name](work)}
        whole = row["phases"]["whole round"]["minimum_ms"]
        say(
            f"  {name}: {whole:.2f} ms a round, {row['arithmetic']['ms']:.2f} of them {row['arithmetic']['what']}"
        )
        found["workloads"][name] = row
    return found


def _phases(work: Workload, count: int) -> dict[str, dict[str, float]]:
    federation = load("fedveil")(work).federation
    laps: list[tuple[float, ...]] = []
    for _ in range(count + 3):
        times = [time.perf_counter()]
        federation.begin(10**9)
        times.append(time.perf_counter())
        answers = federation.embedded.collect()
        times.append(time.perf_counter())
        federation.embedded.collect = lambda answers=answers: answers
        federation.end()
        times.append(time.perf_counter())
        del federation.embedded.collect
        laps.append((*(b - a for a, b in pairwise(times)), times[-1] - times[0]))
        del answers
    columns = zip(*laps[3:], strict=True)
    return {
        name: {
            "minimum_ms": round(1e3 * min(column), 3),
            "median_ms": round(1e3 * median(column), 3),
        }
        for name, column in zip((*MEASURED, "whole round"), columns, strict=True)
    }


def _products(work: Workload) -> dict[str, Any]:
    """The batched matrix products of W1's steps and nothing else: as many steps as the largest client has."""
    sizes = [len(x) for x in work.xs]
    steps = -(-max(sizes) // work.batch_size)
    n, b = work.cohort, work.batch_size
    layers = [(64, 128), (128, 10)]
    cases = []
    for inputs, outputs in layers:
        x, g, w = (
            torch.randn(n, b, inputs),
            torch.randn(n, b, outputs),
            torch.randn(n, outputs, inputs),
        )
        cases.append((x, g, w))

    def step() -> None:
        for i, (x, g, w) in enumerate(cases):
            torch.bmm(x, w.transpose(1, 2))
            torch.baddbmm(w, g.transpose(1, 2), x)
            if i:  # nobody needs the first layer's input gradient
                torch.bmm(g, w)

    return {"what": "batched matrix products", "ms": round(1e3 * steps * _least(step, 200), 3)}


def _convolutions(work: Workload) -> dict[str, Any]:
    """The convolutions of a W2 round, forwards and backwards, at the shapes and in the memory order of training."""
    model: Any = work.initial()
    x = torch.randn(work.batch_size, 1, 28, 28)
    hidden = F.relu(model.conv1(x))
    steps = sum(-(-len(x) // work.batch_size) for x in work.xs) / work.clients * work.cohort

    def both(images: torch.Tensor, layer: Any, first: bool) -> Callable[[], None]:
        images = images.detach().contiguous(memory_format=torch.channels_last)
        weight, bias = (
            layer.weight.detach().contiguous(memory_format=torch.channels_last),
            layer.bias.detach(),
        )
        grad = torch.randn_like(F.conv2d(images, weight, bias))
        more = (bias.shape, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [not first, True, True])

        def run() -> None:
            F.conv2d(images, weight, bias)
            torch.ops.aten.convolution_backward(grad, images, weight, *more)

        return run

    step = _least(both(x, model.conv1, True), 50) + _least(both(hidden, model.conv2, False), 50)
    return {"what": "convolutions", "ms": round(1e3 * steps * step, 3)}


def _machine() -> dict[str, float]:
    """Speed of one core at what PyTorch does best, and at W2's large convolution."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    last = torch.channels_last
    x = torch.randn(10, 32, 26, 26).contiguous(memory_format=last)
    w = torch.randn(64, 32, 3, 3).contiguous(memory_format=last)
    long, other = torch.randn(1 << 24), torch.empty(1 << 24)
    return {
        "matrix_product_gflops": round(2 * 1024**3 / _least(lambda: a @ b, 20) / 1e9, 1),
        "convolution_gflops": round(
            2 * 10 * 24 * 24 * 64 * 32 * 9 / _least(lambda: F.conv2d(x, w), 50) / 1e9, 1
        ),
        "copy_gb_per_s": round(2 * 4 * len(long) / _least(lambda: other.copy_(long), 10) / 1e9, 1),
    }


def _least(function: Callable[[], Any], repeats: int) -> float:
    function()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best
