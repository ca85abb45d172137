"""Do the engines do the same work? The plain loop with FedVeil's draws has to arrive at FedVeil's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks.engines import vector
from benchmarks.engines.ours import FedVeil
from benchmarks.engines.plain import PlainLoop
from benchmarks.workloads import Workload
from fedveil.engines.assembly import draw_cohort
from fedveil.learning.streams import epoch_orders
from fedveil.mechanisms import ReproducibleSource

# Of the largest parameter's size, by type. Sums are taken in another order; in float32 that grows by itself from round
# to round (a maximum or a ReLU falls on the other side), so that it is compared over few rounds, and float64 over more.
TOLERANCES = {"float32": 1e-4, "float64": 1e-8}


class FedVeilDraws:
    """FedVeil's keyed streams: with them the loop arrives at FedVeil's own parameters."""

    def __init__(self, work: Workload) -> None:
        self._work, self._source = work, ReproducibleSource(work.seed)
        self._dtype = next(work.initial().parameters()).dtype

    def cohort(self, round_: int) -> Sequence[int]:
        """FedVeil's cohort."""
        return draw_cohort(self._work.seed, round_, range(self._work.clients), self._work.cohort)

    def order(self, round_: int, client: int, examples: int) -> Tensor:
        """FedVeil's order of the only epoch."""
        return torch.from_numpy(
            epoch_orders([(self._work.seed, round_, client)], [examples], 1)[0, 0]
        )

    def noise(self, round_: int, size: int) -> Tensor:
        """The server's draw, in float64 whatever the model's type."""
        return self._source.child("server", round_, "combine", 0).normal(size).to(self._dtype)


def agreement(
    work: Workload, rounds: int, workers: int = 1, device: str = "cpu", dtype: str = "float64"
) -> dict[str, Any]:
    """Run both from the same start with the same draws and compare parameters."""
    work = work.in_double() if dtype == "float64" else work
    ours, loop = FedVeil(work, workers, device), PlainLoop(work, FedVeilDraws(work), device)
    start = vector(work.initial())
    with full_precision():
        ours.rounds(rounds)
        loop.rounds(rounds)
    a, b = vector(ours.model()).cpu(), vector(loop.model()).cpu()
    worst = float((a - b).abs().max() / b.abs().max())
    return {
        "rounds": rounds,
        "workers": workers,
        "largest_difference_over_largest_parameter": worst,
        "difference_norm_over_distance_moved": float((a - b).norm() / (b - start).norm()),
        "dtype": dtype,
        "tolerance": TOLERANCES[dtype],
        "agree": bool(torch.isfinite(a).all()) and worst <= TOLERANCES[dtype],
    }


@contextmanager
def full_precision() -> Iterator[None]:
    """Without the shortened products that torch allows itself in convolutions on a GPU."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
