"""Which trainer is faster, by kind of model and size: what `auto` goes by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.timing import Case, Lap, Stopwatch, interleave, summary
from fedveil import ClientData, Layout, LocalTraining
from fedveil.learning import BatchedTrainer, SequentialTrainer, build_model

# name, shape of an example, options of the model, clients, examples of each
MODELS: tuple[tuple[str, tuple[int, ...], dict[str, Any], int, int], ...] = (
    ("mlp", (32,), {"hidden": (232,)}, 20, 20),
    ("mlp", (32,), {"hidden": (2_325,)}, 20, 20),
    ("mlp", (32,), {"hidden": (23_256,)}, 8, 20),
)


def trainers(quick: bool = False, say: Any = print) -> dict[str, Any]:
    """Time an epoch of both, one thread, SGD and Adam, batches of 10."""
    torch.set_num_threads(1)
    rows = []
    for name, shape, options, clients, examples in MODELS[: 2 if quick else None]:
        for optimizer in ("sgd", "adam"):
            row = _row(name, shape, options, clients, examples, optimizer, 2 if quick else 6)
            say(
                f"  {row['model']}, {row['parameters']}, {optimizer}: {row['sequential_over_batched']:.2f}"
            )
            rows.append(row)
    return {"rows": rows}


def _row(
    name: str,
    shape: tuple[int, ...],
    options: dict[str, Any],
    clients: int,
    examples: int,
    optimizer: str,
    bursts: int,
) -> dict[str, Any]:
    model = build_model(name, input_shape=shape, outputs=10, seed=0, **options)
    layout = Layout.from_module(model)
    local = LocalTraining(batch_size=10, lr=1e-3, optimizer=optimizer)
    generator = torch.Generator().manual_seed(0)
    data = [
        ClientData(
            torch.rand(examples, *shape, generator=generator),
            torch.randint(10, (examples,), generator=generator),
        )
        for _ in range(clients)
    ]
    start, keys = layout.read(model).expand(clients, -1), [(0, 1, i) for i in range(clients)]
    cases = []
    for label, trainer in (
        ("batched", BatchedTrainer(model, layout, local)),
        ("sequential", SequentialTrainer(model, layout, local)),
    ):

        def rounds(count: int, trainer: Any = trainer) -> Sequence[Lap]:
            watch = Stopwatch()
            for _ in range(count):
                for outcome in trainer.train(start, data, keys):
                    if isinstance(outcome, Exception):
                        raise outcome
                watch.lap()
            return watch.laps

        cases.append(Case(label, rounds))
    interleave(cases, 1)  # warms up
    found = {label: summary(laps) for label, laps in interleave(cases, bursts).items()}
    return {
        "model": f"{name} {'x'.join(map(str, shape))}",
        "parameters": layout.size,
        "optimizer": optimizer,
        "clients": clients,
        **found,
        "sequential_over_batched": round(
            found["sequential"]["minimum_ms"] / found["batched"]["minimum_ms"], 2
        ),
    }
