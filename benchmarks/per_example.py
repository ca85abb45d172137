"""A step on clipped gradients of single examples beside a plain step and opacus: ratios of minimums, one thread."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedveil.accounting import least_places
from fedveil.layout import Layout
from fedveil.learning import build_model
from fedveil.learning.gradients import squared_norms
from fedveil.learning.losses import cross_entropy
from fedveil.learning.per_example import PerExample
from fedveil.methods.facts import LOST

try:
    from opacus import GradSampleModule
except ImportError:  # a peer that did not install
    GradSampleModule = None

DENSE, CNN = ("logistic", (64,), 10, 144), ("small_cnn", (1, 28, 28), 10, 256)
CASES = {  # places: of a lot of so many examples on average, a tenth of a silo's
    "linear head, 64 -> 10": (*DENSE, {}),
    "linear head, 64 -> 10, a lot among dummies": (
        *DENSE,
        {"places": least_places(1440, 0.1, LOST)},
    ),
    "linear head, 512 -> 8": ("logistic", (512,), 8, 2048, {}),
    "CNN 28x28, 16 and 32 channels": (*CNN, {}),
    "CNN 28x28, a lot among dummies": (*CNN, {"places": least_places(2560, 0.1, LOST)}),
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


def measure(name, shape, classes, batch, step, quick):
    """Seconds of a plain step on `batch` examples, ours, and opacus's where there is one, each with an optimiser's."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, *shape, generator=generator)
    y = torch.randint(0, classes, (batch,), generator=generator)
    model = build_model(name, input_shape=shape, outputs=classes, seed=0)
    layout = Layout.from_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    sums = PerExample(model, layout, "cross_entropy")
    places = step.get("places", batch)
    present = torch.zeros(places, dtype=torch.bool)
    present[torch.randperm(places, generator=generator)[:batch]] = True
    lot, labels = x.new_zeros(places, *shape), y.new_zeros(places)
    lot[present], labels[present] = x, y
    lengths = (
        squared_norms(lot) if sums.reads_examples else None
    )  # which a trainer knows from the first round on

    def plain():
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    def ours():
        total, _ = sums.clipped_sum(lot, labels, 1.0, present, lengths=lengths)
        for p, block in zip(model.parameters(), layout.blocks, strict=True):
            p.grad = (total[block.start : block.stop].view(block.shape) / batch).to(p.dtype)
        optimizer.step()

    repeats = 2 if quick else 300 if name == "logistic" else 20
    if GradSampleModule is None:
        return seconds((plain, ours), repeats)
    wrapped = GradSampleModule(build_model(name, input_shape=shape, outputs=classes, seed=0))
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
        ratios = zip(
            ("ours_over_plain", "opacus_over_plain"), others, strict=False
        )  # opacus may be missing
        figures = {"plain_ms": 1e3 * plain} | {name: other / plain for name, other in ratios}
        rows.append(
            {"case": title, "batch": case[3], **{k: round(v, 3) for k, v in figures.items()}}
        )
    return {"rows": rows}
