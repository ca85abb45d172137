"""What a careful engineer writes by hand: one model, loaded in place, ordinary autograd, the same clip, noise and mean.

No ledger, no accounting, no checks, no choice of methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import Lap, Stopwatch
from benchmarks.workloads import Workload

BOUND = (
    1 - 1e-6
)  # of the clipping norm: FedVeil stays so much below it, and the comparison is to the last bits


class Draws(Protocol):
    """Where the loop's random choices come from."""

    def cohort(self, round_: int) -> Sequence[int]:
        """Clients of a round, which is numbered from 1."""

    def order(self, round_: int, client: int, examples: int) -> Tensor:
        """A permutation of a client's examples."""

    def noise(self, round_: int, size: int) -> Tensor:
        """Standard normal [size]."""


class OwnDraws:
    """Torch's generator: what the loop is timed with."""

    def __init__(self, work: Workload) -> None:
        self._work = work

    def cohort(self, round_: int) -> Sequence[int]:
        """Draw without replacement."""
        return torch.randperm(self._work.clients)[: self._work.cohort].tolist()

    def order(self, round_: int, client: int, examples: int) -> Tensor:
        """Permute."""
        return torch.randperm(examples)

    def noise(self, round_: int, size: int) -> Tensor:
        """Draw."""
        return torch.randn(size)


class PlainLoop:
    """Federated averaging with central Gaussian noise in one loop.

    Parameters
    ----------
    work : Workload
        What to run.
    draws : Draws, optional
        Default: `OwnDraws`.
    device : str
        Where to run.
    """

    def __init__(self, work: Workload, draws: Draws | None = None, device: str = "cpu") -> None:
        self.work, self.draws, self.device = work, draws or OwnDraws(work), device
        self.module = work.initial().to(device)
        self.parameters = list(self.module.parameters())
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        offset = 0
        for p in self.parameters:  # the parameters become views of one vector
            p.data = self.flat[offset : offset + p.numel()].view_as(p)
            offset += p.numel()
        self.theta, self.round = self.flat.clone(), 0
        self.data = [
            (torch.from_numpy(x).to(device), torch.from_numpy(y).to(device))
            for x, y in zip(work.xs, work.ys, strict=True)
        ]

    def rounds(self, count: int) -> Sequence[Lap]:
        """Do `count` more rounds."""
        watch = Stopwatch(self.device)
        for _ in range(count):
            self._round()
            watch.lap()
        return watch.laps

    def _round(self) -> None:
        self.round += 1
        work, total = self.work, torch.zeros_like(self.theta)
        for client in self.draws.cohort(self.round):
            self.flat.copy_(self.theta)
            self._train(client)
            update = self.flat - self.theta
            total.add_(
                update,
                alpha=min(1.0, BOUND * work.clip / max(float(update.norm()), 1e-12)) / work.cohort,
            )
        noise = self.draws.noise(self.round, len(self.theta)).to(self.device)
        self.theta.add_(total).add_(noise, alpha=work.noise_multiplier * work.clip / work.cohort)

    def _train(self, client: int) -> None:
        x, y = self.data[client]
        order = self.draws.order(self.round, client, len(x)).to(self.device)
        for rows in order.split(self.work.batch_size):
            loss = F.cross_entropy(self.module(x[rows]), y[rows])
            with torch.no_grad():
                torch._foreach_add_(
                    self.parameters, torch.autograd.grad(loss, self.parameters), alpha=-self.work.lr
                )

    def model(self) -> nn.Module:
        """The present model."""
        self.flat.copy_(self.theta)
        return self.module
