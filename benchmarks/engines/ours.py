"""FedVeil, through its public interface and with its defaults: clipping, noise and accounting are on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.timing import Lap, Stopwatch
from benchmarks.workloads import Workload
from fedveil import FedAvg, Federation, GlobalDP, Layout, LocalTraining
from fedveil.engines import Execution
from fedveil.learning import make_trainer
from fedveil.learning.learner import Learner


class FedVeil:
    """A federation under central Gaussian noise.

    Parameters
    ----------
    work : Workload
        What to run.
    workers : int
        Threads over clients.
    device : str
        Where to train.
    """

    def __init__(self, work: Workload, workers: int = 1, device: str = "cpu") -> None:
        self.work, self.device, self.module = work, device, work.initial()
        local = LocalTraining(batch_size=work.batch_size, lr=work.lr)
        learner = None
        if device != "cpu":  # Federation itself trains on the CPU
            layout = Layout.from_module(self.module)
            trainer = make_trainer(self.module, layout, local, device=device, workers=workers)
            learner = Learner(self.module, layout, local, trainer=trainer)
        self.federation = Federation(
            model=self.module,
            clients=list(zip(work.xs, work.ys, strict=True)),
            method=GlobalDP(FedAvg(), noise_multiplier=work.noise_multiplier, clip=work.clip),
            local=local,
            seed=work.seed,
            clients_per_round=work.cohort,
            execution=Execution(workers=workers, learner=learner),
        )

    def rounds(self, count: int) -> Sequence[Lap]:
        """Do `count` more rounds."""
        watch = Stopwatch(self.device)
        self.federation.run(self.federation.round + count, on_round=watch.lap)
        return watch.laps

    def model(self) -> nn.Module:
        """The present model."""
        parts = self.federation.layout.unflatten(self.federation.models[0])
        self.module.load_state_dict(
            {name: torch.as_tensor(value) for name, value in parts.items()}, strict=False
        )
        return self.module
