"""FedRE's layer scores: the estimate by random directions against the Jacobian, row by row."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import Lap, Stopwatch, summary
from fedveil import Layout
from fedveil.learning import layer_scores as scores_of

EACH = 31  # rows of the Jacobian: one in so many is computed
SIDE = 32  # the region is the whole image: 1,024 pixels


def lenet() -> nn.Module:
    """LeNet-5 with tanh: 61,706 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )


def naive(module: nn.Module, x: Tensor, y: Tensor, each: int) -> float:
    """Time one backward pass a parameter (d/dx of every component of the gradient, as the definition reads).

    Only every so many are done: all of them took over six minutes. Returns seconds, times that number.
    """
    layout = Layout.from_module(module)
    image = x.clone().requires_grad_()
    names = list(layout.names)
    parameters = dict(module.named_parameters())
    gradients = torch.autograd.grad(
        F.cross_entropy(module(image), y), [parameters[name] for name in names], create_graph=True
    )
    squares = torch.zeros(image.shape[2:], dtype=torch.float64)
    began, done = time.perf_counter(), 0
    for gradient in gradients:
        for component in gradient.reshape(-1)[::each]:
            row = torch.autograd.grad(component, image, retain_graph=True)[0]
            squares += row[0].double().square().sum(0)  # over channels
            done += 1
    return (time.perf_counter() - began) * sum(g.numel() for g in gradients) / done


def layer_scores(quick: bool = False, say: Any = print) -> dict[str, Any]:
    """Time all three on one image; errors of the estimate over several seeds, layer by layer."""
    torch.set_num_threads(1)
    module = lenet()
    x, y = torch.rand(1, 1, SIDE, SIDE), torch.tensor([3])
    region = (0, 0, SIDE, SIDE)
    ours = lambda method, seed=0: scores_of(  # noqa: E731
        module, "cross_entropy", x, y, region, method, seed=seed
    )
    slow = naive(module, x, y, EACH * 10 if quick else EACH)
    exact_laps, estimate_laps = (
        _timed(lambda m=m: ours(m), n) for m, n in (("exact", 3), ("estimate", 20))
    )
    exact = ours("exact")
    estimates = [ours("estimate", seed) for seed in range(5 if quick else 20)]
    errors = [abs(found[layer] / exact[layer] - 1) for found in estimates for layer in exact]
    means = [abs(sum(f.values()) / sum(exact.values()) - 1) for f in estimates]
    jacobian = {
        "minimum_ms": round(1e3 * slow, 1),
        "median_ms": round(1e3 * slow, 1),
        "one_of": EACH,
    }
    rows = {
        "naive Jacobian": jacobian,
        "exact": summary(exact_laps),
        "estimate": summary(estimate_laps),
    }
    for name, row in rows.items():
        say(f"  {name}: {row['minimum_ms']:.1f} ms")
    found = {
        "parameters": sum(p.numel() for p in module.parameters()),
        "pixels": SIDE * SIDE,
        "rows": rows,
        "estimate_error_median": median(errors),
        "estimate_error_largest": max(errors),
        "estimate_error_of_the_sum_median": median(means),
        "seeds": len(estimates),
    }
    say(
        f"  the estimate is off by {found['estimate_error_median']:.2%} (median over layers and seeds)"
    )
    return found


def _timed(work: Any, repeats: int) -> list[Lap]:
    work()
    watch = Stopwatch()
    for _ in range(repeats):
        work()
        watch.lap()
    return watch.laps
