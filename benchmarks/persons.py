"""A step on the clipped means of persons beside a plain step on the same images, on a dense head.

Processor time of one thread, the least of several turns: other work on the machine must not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fedveil.layout import Layout
from fedveil.learning import build_model
from fedveil.learning.gradients import squared_norms
from fedveil.learning.losses import cross_entropy
from fedveil.learning.per_example import PerExample


@dataclass(frozen=True)
class Silo:
    """People of one silo, each with `least` to `most` images; a head of `inputs` to `classes`."""

    people: int
    least: int
    most: int
    inputs: int
    classes: int
    repeats: int


WRITERS = "a silo of 54 writers"
CASES = {
    WRITERS: Silo(54, 91, 131, 64, 10, 200),
    "all 539 writers in one silo": Silo(539, 91, 131, 64, 10, 20),
    "48 people of 3 digits": Silo(48, 3, 3, 64, 10, 300),
    "797 people of 3 blood cells": Silo(797, 3, 3, 128, 8, 100),
}
STEPS, SILOS = 25, 10  # of the study of persons


def persons(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Milliseconds of either step for every case, and the seconds of the study's steps over its ten silos."""
    rows = []
    for title, case in CASES.items():
        say(title)
        rows.append({"case": title, **measure(case, 2 if quick else case.repeats)})
    [ours] = [row["persons_ms"] for row in rows if row["case"] == WRITERS]
    return {"rows": rows, "study_s": round(STEPS * SILOS * ours / 1e3, 3)}


def measure(case: Silo, repeats: int) -> dict[str, Any]:
    """The two steps in turns, each with an optimiser step."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(case.least, case.most + 1, (case.people,), generator=generator)
    present = (torch.arange(case.most) < counts[:, None]).view(-1)
    x = torch.rand(case.people * case.most, case.inputs, generator=generator).where(
        present[:, None], 0.0
    )
    y = torch.randint(0, case.classes, (len(x),), generator=generator).where(present, 0)
    images, labels, lengths = (
        x[present].clone(),
        y[present].clone(),
        squared_norms(x),
    )  # as training knows them
    model = build_model("logistic", input_shape=(case.inputs,), outputs=case.classes, seed=0)
    layout = Layout.from_module(model)
    optimizer, sums = (
        torch.optim.SGD(model.parameters(), lr=0.1, fused=True),
        PerExample(model, layout, "cross_entropy"),
    )
    few = sums.takes_bases(case.people, case.most)  # factors of inputs, which training finds once
    bases = sums.bases(x, present.view(case.people, case.most)) if few else None

    def plain() -> None:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()

    def ours() -> None:
        total, _ = sums.clipped_sum(
            x, y, 0.1, present, each=case.most, lengths=lengths, bases=bases
        )
        for p, block in zip(model.parameters(), layout.blocks, strict=True):
            p.grad = (total[block.start : block.stop].view(block.shape) / case.people).to(p.dtype)
        optimizer.step()

    times: list[list[float]] = [[], []]
    for _ in range(repeats):
        for found, step in zip(times, (plain, ours), strict=True):
            began = time.process_time()
            step()
            found.append(1e3 * (time.process_time() - began))
    first, second = (min(found) for found in times)
    figures = {"plain_ms": first, "persons_ms": second, "persons_over_plain": second / first}
    return {"images": len(images), "head": f"{case.inputs} -> {case.classes}"} | {
        k: round(v, 3) for k, v in figures.items()
    }
