"""A step on clipped gradients of single examples beside a plain step and opacus: ratios of minimums, one thread."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedveil.layout import Layout
from fedveil.learning import build_model
from fedveil.learning.losses import cross_entropy
from fedveil.learning.per_example import PerExample

try:
    from opacus import GradSampleModule
except ImportError:  # a peer that did not install
    GradSampleModule = None

CASES = {
    "linear head, 64 -> 10": ("logistic", (64,), 10, 144, {}),
    "linear head, 512 -> 8": ("logistic", (512,), 8, 2048, {}),
    "CNN 28x28, 16 and 32 channels": ("small_cnn", (1, 28, 28), 10, 256, {}),
    "CNN 28x28x3, 16 and 32 channels": ("small_cnn", (3, 28, 28), 8, 256, {}),
}


def seconds(steps, repeats):
    """The least of several for each, taken in turns, so that a busy machine is busy for all."""
    times = [[] for _ in steps]
    for _ in range(repeats):
        for found, step in zip(times, steps, strict=True):
            began = time.perf_counter()
            step()
            found.append(time.perf_counter() - began)
    return [min(found) for found in times]


def measure(name, shape, classes, batch, options, quick):
    """Seconds of a plain step, ours, and opacus's where there is one, each with an optimiser step."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, *shape, generator=generator)
    y = torch.randint(0, classes, (batch,), generator=generator)
    model = build_model(name, input_shape=shape, outputs=classes, seed=0, **options)
    layout = Layout.from_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    sums = PerExample(model, layout, "cross_entropy")

    def plain():
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    def ours():
        total, _ = sums.clipped_sum(x, y, 1.0)
        for p, block in zip(model.parameters(), layout.blocks, strict=True):
            p.grad = (total[block.start : block.stop].view(block.shape) / batch).to(p.dtype)
        optimizer.step()

    repeats = 2 if quick else 300 if name == "logistic" else 20
    if GradSampleModule is None:
        return seconds((plain, ours), repeats)
    wrapped = GradSampleModule(build_model(name, input_shape=shape, outputs=classes, seed=0, **options))
    theirs = torch.optim.SGD(wrapped.parameters(), lr=0.1, fused=True)

    def opacus():
        wrapped.zero_grad()
        nn.functional.cross_entropy(wrapped(x), y, reduction="sum").backward()
        rows = [p.grad_sample.reshape(batch, -1) for p in wrapped.parameters()]
        factor = (1.0 / torch.stack([r.norm(dim=1) for r in rows]).norm(dim=0)).clamp(max=1.0)
        for p, r in zip(wrapped.parameters(), rows, strict=True):
            p.grad = (factor @ r).view(p.shape) / batch
            p.grad_sample = None
        theirs.step()

    return seconds((plain, ours, opacus), repeats)


def per_example(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure every case; without opacus, ours alone."""
    if GradSampleModule is None:
        say("  opacus is left out: it is not installed")
    rows = []
    for title, case in CASES.items():
        with warnings.catch_warnings(action="ignore"):
            plain, *others = measure(*case, quick=quick)
        ratios = zip(("ours_over_plain", "opacus_over_plain"), others, strict=False)  # opacus may be missing
        figures = {"plain_ms": 1e3 * plain} | {name: other / plain for name, other in ratios}
        rows.append({"case": title, "batch": case[3], **{k: round(v, 3) for k, v in figures.items()}})
    return {"rows": rows}
