"""Choose the trainer."""

import logging

from torch import nn

from fedveil.errors import require_choice
from fedveil.layout import Layout
from fedveil.learning.batched import BatchedTrainer
from fedveil.learning.local import LocalTraining
from fedveil.learning.private import PrivateTrainer
from fedveil.learning.stacked import NotStackable
from fedveil.learning.workers import WorkerTrainer
from fedveil.methods.facts import NoisySteps

_LOG = logging.getLogger(__name__)
TRAINERS = ("auto", "batched", "sequential")


def make_trainer(
    model: nn.Module,
    layout: Layout,
    local: LocalTraining,
    kind: str = "auto",
    *,
    device: str = "cpu",
    workers: int = 1,
    precision: str = "full",
    noisy: NoisySteps | None = None,
) -> BatchedTrainer | WorkerTrainer | PrivateTrainer:
    """A trainer by name.

    Parameters
    ----------
    model, layout, local, device
        See `SequentialTrainer`.
    kind : {"auto", "batched", "sequential"}
        ``"auto"`` batches every model that can be batched, in blocks whose size `BatchedTrainer` takes from the size
        of the model, and trains one client after another otherwise, with one line in the log. ``"sequential"`` gives
        the same bits whoever else is trained, under every engine, and runs the model's own code; the others agree with
        it within the tolerances that `BatchedTrainer` states.
    workers : int
        Threads over clients or blocks of clients.
    precision : {"full", "bfloat16"}
        See `SequentialTrainer`, which trains what is not ``"full"``.
    noisy : NoisySteps, optional
        Noise inside training: the answer is then a `PrivateTrainer`, whatever the kind.

    Raises
    ------
    NotStackable
        If ``"batched"`` is asked of a model that cannot be batched.
    """
    require_choice("trainer", kind, TRAINERS)
    if noisy is not None or kind == "batched":
        require_choice("precision", precision, ("full",))
    if noisy is not None:
        return PrivateTrainer(model, layout, local, noisy, device)
    if kind != "sequential" and precision == "full":
        try:
            return BatchedTrainer(model, layout, local, device, workers=workers)
        except NotStackable as error:
            if kind == "batched":
                raise
            _LOG.info("clients are trained one after another: %s", error.reason)
    return WorkerTrainer(model, layout, local, device, workers, precision=precision, rearrange=kind == "auto")
