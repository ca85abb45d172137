"""What a local method costs a client and round beyond training: processor time, 100 of 2,000 clients, 11 parameters.

    python benchmarks/local_methods.py

The difference to a federation without privacy, at the 10% quantile of blocks of ten rounds, which other programs
disturb least.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from fedveil.engines import Federation
from fedveil.learning import ClientData, LocalTraining, build_model
from fedveil.methods import build

CLIENTS, COHORT, BLOCK, BLOCKS, REPEATS = 2000, 100, 10, 6, 12
METHODS = {
    "no privacy": ("vanilla", {}),
    "group privacy": ("group", {"noise_multiplier": 3.0, "hypotheses": 1}),
    "group privacy, public radius": (
        "group",
        {"noise_multiplier": 3.0, "hypotheses": 1, "radius": 0.05},
    ),
    "SGA-LDP": ("sga-ldp", {"clip": 0.05, "epsilon_min": 1.2, "epsilon_max": 1.2}),
}


def main() -> None:
    """Print a line a method."""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    clients = [
        ClientData(torch.randn(4, 3, generator=g), torch.rand(4, generator=g))
        for _ in range(CLIENTS)
    ]
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for _ in range(REPEATS):
        for name, (method, options) in METHODS.items():
            federation = Federation(
                model=build_model("mlp", input_shape=(3,), outputs=1, seed=0, hidden=(2,)),
                clients=clients,
                method=build(method, **options),
                local=LocalTraining(loss="mse", lr=0.03, batch_size=10),
                clients_per_round=COHORT,
                seed=1,
            )
            rounds = federation.rounds(BLOCK * BLOCKS)
            for _ in range(BLOCKS):
                began = time.process_time()
                for _ in range(BLOCK):
                    next(rounds)
                found[name].append((time.process_time() - began) / (BLOCK * COHORT) * 1e6)
    plain = np.quantile(found["no privacy"], (0.1, 0.5))
    for name, values in found.items():
        low, middle = np.quantile(values, (0.1, 0.5)) - (0 if name == "no privacy" else plain)
        print(f"{name:30s} {low:6.1f} us (median {middle:.1f})")


if __name__ == "__main__":
    main()
