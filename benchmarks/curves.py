"""How the time of a round grows: with the clients of a cohort, the parameters of a model, the hypotheses."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.timing import Stopwatch, summary
from benchmarks.workloads import WORKLOADS
from fedveil import FedAvg, Federation, GlobalDP, LocalTraining
from fedveil.learning import build_model
from fedveil.methods import build

CLIENTS = (10, 100, 1_000, 10_000)
PARAMETERS = (10_000, 100_000, 1_000_000, 10_000_000)
HYPOTHESES = (1, 2, 4, 8)
COHORT = 8  # clients of the curve over parameters


def curves(quick: bool = False, say: Any = print) -> dict[str, Any]:
    """All three, under central Gaussian noise (the third under group privacy)."""
    sizes = {"clients": CLIENTS, "parameters": PARAMETERS, "hypotheses": HYPOTHESES}
    make = {"clients": _clients, "parameters": _parameters, "hypotheses": _hypotheses}
    found: dict[str, list[dict[str, Any]]] = {}
    for name, every in sizes.items():
        found[name] = []
        for size in every[: 3 if quick else None]:
            row = make[name](size, quick)
            say(f"  {row[name]:>9} {name}: {row['minimum_ms']:10.2f} ms a round")
            found[name].append(row)
    return found


def timed(federation: Federation, rounds: int) -> dict[str, Any]:
    """Time rounds after a first one, on one thread."""
    torch.set_num_threads(1)
    federation.run(federation.round + 1)
    watch = Stopwatch()
    federation.run(federation.round + rounds, on_round=watch.lap)
    return summary(watch.laps)


def _clients(n: int, quick: bool) -> dict[str, Any]:
    """Everybody takes part; 10 examples each, a model of 178 parameters."""
    model = build_model("mlp", input_shape=(8,), outputs=2, seed=0, hidden=(16,))
    return {"clients": n, **timed(_central(model, n, 8, 2), 3 if quick or n > 1000 else 20)}


def _parameters(d: int, quick: bool) -> dict[str, Any]:
    """A dense network with one wide layer; 8 clients of 10 examples, one step each."""
    width = round((d - 10) / 43)
    model = build_model("mlp", input_shape=(32,), outputs=10, seed=0, hidden=(width,))
    size = sum(p.numel() for p in model.parameters())
    return {
        "parameters": size,
        **timed(_central(model, COHORT, 32, 10), 3 if quick or d > 10**6 else 20),
    }


def _hypotheses(k: int, quick: bool) -> dict[str, Any]:
    """W1 under group privacy: every client evaluates k models, trains the best, sends it with Laplace noise."""
    work = WORKLOADS["W1"]()
    federation = Federation(
        model=work.build,
        clients=list(zip(work.xs, work.ys, strict=True)),
        method=build("group", hypotheses=k, noise_multiplier=0.1),
        local=LocalTraining(batch_size=work.batch_size, lr=work.lr),
        clients_per_round=work.cohort,
    )
    return {"hypotheses": k, **timed(federation, 3 if quick else 20)}


def _central(model: nn.Module, n: int, inputs: int, classes: int) -> Federation:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (
            torch.randn(10, inputs, generator=generator),
            torch.randint(classes, (10,), generator=generator),
        )
        for _ in range(n)
    ]
    privacy = GlobalDP(FedAvg(), noise_multiplier=1.0, clip=1.0)
    return Federation(
        model=model, clients=clients, method=privacy, local=LocalTraining(batch_size=10)
    )
