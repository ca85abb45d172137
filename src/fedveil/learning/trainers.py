"""Threads that train clients in parallel, and the choice of a trainer by name."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from torch import Tensor, nn

from fedveil.errors import FieldError, require_choice, require_workers
from fedveil.layout import Layout
from fedveil.learning.batched import BatchedTrainer
from fedveil.learning.clients import ClientData
from fedveil.learning.local import LocalTraining, Trained
from fedveil.learning.made_up import Example
from fedveil.learning.private import PrivateTrainer
from fedveil.learning.recognised import recognised
from fedveil.learning.rules import NotIsolated
from fedveil.learning.stacked import NotStackable
from fedveil.learning.streams import Key
from fedveil.learning.threads import Threads
from fedveil.learning.training import SequentialTrainer, check_request, rehearse
from fedveil.logs import logger
from fedveil.methods.facts import NoisySteps

Then = Callable[[Key, Trained | Exception], Trained | Exception]

_LOG = logger(__name__)
TRAINERS = ("auto", "batched", "sequential")
# Modules of torch.nn that draw from the global generator, which threads would share (dropout is keyed instead).
_STOCHASTIC = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


class WorkerTrainer:
    """Train several clients in parallel threads; each result has the same bits as with one client after another.

    (The comparison is with one intra-op thread.) Small models gain nothing from threads inside an operation and much
    from threads over clients. Two workers train the 48x48 CNN about 1.5 times faster than two intra-op threads.

    Parameters
    ----------
    model, layout, local, device, precision
        See `SequentialTrainer`.
    workers : int
        Number of threads. A model whose modules may share randomness is trained by one worker, and the log says so.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        local: LocalTraining,
        device: str = "cpu",
        workers: int = 2,
        *,
        precision: str = "full",
    ) -> None:
        workers = require_workers("workers", workers)
        unknown = None if workers == 1 else _unknown(model)
        if unknown is not None:
            _LOG.info("training on one worker: %s may draw from the shared generator", unknown)
            workers = 1
        self._threads = Threads()
        self._trainers: list[SequentialTrainer] = []
        for _ in range(workers):
            trainer = SequentialTrainer(
                model,
                layout,
                local,
                device,
                precision=precision,
                shared_random=workers == 1,
                before_step=self._threads.raise_if_stopped,
            )
            self._trainers.append(trainer)

    @property
    def workers(self) -> int:
        """Number of threads in use."""
        return len(self._trainers)

    def train(
        self,
        starts: Tensor,
        clients: Sequence[ClientData],
        keys: Sequence[Key],
        then: Then | None = None,
    ) -> list[Trained | Exception]:
        """Train each client from its own start; see `SequentialTrainer.train`, and `Task` for `then`."""
        check_request(self._trainers[0].layout, starts, clients, keys)
        results: dict[int, Trained | Exception] = {}

        def work(trainer: SequentialTrainer, i: int) -> None:
            trainer.reuses_memory = then is not None
            [outcome] = trainer.train(starts[i : i + 1], [clients[i]], [keys[i]])
            results[i] = outcome if then is None else then(keys[i], outcome)

        # the largest first, so that no worker has a long one at the end
        order = sorted(range(len(clients)), key=lambda i: -clients[i].examples)
        self._threads.run(self._trainers, order, work)
        return [results[i] for i in range(len(clients))]


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
    example: Example | None = None,
) -> BatchedTrainer | WorkerTrainer | PrivateTrainer:
    """Choose and make the trainer for a model: batched, sequential or private.

    Parameters
    ----------
    model, layout, local, device
        See `SequentialTrainer`.
    kind : {"auto", "batched", "sequential"}
        ``"auto"`` batches every model that can be batched; the size of a block follows from the size of the model.
        Other models are trained one client after another, and the log says so. ``"sequential"`` runs the model's own
        code. Its results have the same bits under every engine, whatever other clients are trained. Batched results
        agree with them within the tolerances of `BatchedTrainer`.
    workers : int
        Number of threads, each with a client or a block of clients.
    precision : {"full", "bfloat16"}
        As in `SequentialTrainer`. Any value but ``"full"`` always uses that trainer.
    noisy : NoisySteps, optional
        Noise inside training; the result is then a `PrivateTrainer`, whatever the kind.
    example : tuple of Tensor, optional
        x and y [N, ...] of the declared shape and type; their values are not used. A model with its own code is first
        tried on made-up examples of this shape.

    Raises
    ------
    FieldError
        If the model fails on made-up examples.
    NotStackable
        If the kind is ``"batched"``, and the model cannot be batched.
    """
    require_choice("trainer", kind, TRAINERS)
    if noisy is not None or kind == "batched":
        require_choice("precision", precision, ("full",))
    if noisy is not None:
        return PrivateTrainer(model, layout, local, noisy, device, example=example)
    if local.class_weights:
        weights = ", ".join(f"{weight:g}" for weight in local.class_weights)
        accepted = f'are of noisy steps, behind the clip: without them write loss = "cross_entropy(weight=[{weights}])"'
        raise FieldError("class_weights", local.class_weights, accepted)
    if kind != "sequential" and precision == "full":
        try:
            return BatchedTrainer(model, layout, local, device, workers=workers)
        except NotStackable as error:
            if kind == "batched":
                raise
            _LOG.info("clients are trained one after another: %s", error.reason)
    if example is not None:
        rehearse(model, layout, local, device, *example)
    return WorkerTrainer(model, layout, local, device, workers, precision=precision)


def _unknown(model: nn.Module) -> str | None:
    """Return the name of the first module that may draw random numbers: a drawing layer, or a class of foreign code.

    A model whose code can be traced to known layers has no such module.
    """
    with suppress(NotIsolated):
        recognised(model)
        return None
    for module in model.modules():
        kind = type(module)
        ours = kind.__module__.startswith(("torch.nn.", "fedveil."))
        if not ours or isinstance(module, _STOCHASTIC):
            return kind.__name__
    return None
