"""pfl-research (Apple), the fastest published simulator: federated averaging with its central Gaussian mechanism."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import to_tensor
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import Lap, Stopwatch
from benchmarks.workloads import Workload

warnings.filterwarnings(
    "ignore", "To copy construct from a tensor", UserWarning, "pfl"
)  # said once a tensor


class PflResearch:
    """A simulated backend of pfl, its data already tensors.

    Parameters
    ----------
    work : Workload
        What to run.
    """

    def __init__(self, work: Workload) -> None:
        np.random.seed(work.seed)  # noqa: NPY002 - pfl samples clients with it
        self.work = work
        self.module = with_loss(work.initial())
        data = [[to_tensor(x), to_tensor(y)] for x, y in zip(work.xs, work.ys, strict=True)]
        users = FederatedDataset(
            lambda user: Dataset(raw_data=data[user], user_id=str(user)),
            get_user_sampler("random", list(range(work.clients))),
        )
        mechanism = GaussianMechanism(work.clip, work.noise_multiplier)
        self.backend = SimulatedBackend(
            training_data=users,
            val_data=users,
            postprocessors=[WeightByUser(), CentrallyAppliedPrivacyMechanism(mechanism)],
        )
        self.wrapped = PyTorchModel(
            self.module, torch.optim.SGD, torch.optim.SGD(self.module.parameters(), 1.0)
        )

    def rounds(self, count: int) -> Sequence[Lap]:
        """Do `count` more rounds."""
        laps = _Laps()
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=count,
                evaluation_frequency=10**9,
                train_cohort_size=self.work.cohort,
                val_cohort_size=0,
            ),
            backend=self.backend,
            model=self.wrapped,
            model_train_params=NNTrainHyperParams(
                local_learning_rate=self.work.lr,
                local_num_epochs=1,
                local_batch_size=self.work.batch_size,
            ),
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            callbacks=[laps],
            send_metrics_to_platform=False,
        )
        return laps.watch.laps

    def model(self) -> nn.Module:
        """The present model."""
        return self.module


class _Laps(TrainingProcessCallback):
    def __init__(self) -> None:
        self.watch = Stopwatch()

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Start the clock."""
        self.watch = Stopwatch()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> Any:
        """End a round."""
        self.watch.lap()
        return False, Metrics()


def with_loss(module: nn.Module) -> nn.Module:
    """Give a module the two methods that pfl calls."""

    class WithLoss(type(module)):  # type: ignore[misc]
        def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
            self.train()
            return F.cross_entropy(self(x), y.long())

        def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Any]:
            return {}

    module.__class__ = WithLoss
    return module
