"""Clients trained side by side by worker threads, and the choice of a trainer by name."""

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
# Modules of torch.nn that draw from the global generator, which threads would share (dropout is keyed).
_STOCHASTIC = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


class WorkerTrainer:
    """Train several clients at once; the bits are those of one client after another on one intra-op thread.

    Small models gain nothing from threads inside an operation and much from threads over clients. Two workers train the
    48x48 CNN about 1.5 times faster than two intra-op threads do.

    Parameters
    ----------
    model, layout, local, device, precision
        See `SequentialTrainer`.
    workers : int
        Threads. Models with modules that this library does not know to be free of shared randomness are trained by
        one worker, with one line in the log.
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
        """Threads in use."""
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

        # the largest first, so that no worker is left with a long one at the end
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
    """Make a trainer by name.

    Parameters
    ----------
    model, layout, local, device
        See `SequentialTrainer`.
    kind : {"auto", "batched", "sequential"}
        ``"auto"`` batches every model that can be batched; `BatchedTrainer` takes the size of blocks from the size of
        the model. Otherwise it trains one client after another, with one line in the log. ``"sequential"`` runs the
        model's own code and gives the same bits whoever else is trained, under every engine. The others agree with it
        within the tolerances of `BatchedTrainer`.
    workers : int
        Threads over clients or blocks of clients.
    precision : {"full", "bfloat16"}
        See `SequentialTrainer`, which trains what is not ``"full"``.
    noisy : NoisySteps, optional
        Noise inside training: the answer is then a `PrivateTrainer`, whatever the kind.
    example : tuple of Tensor, optional
        x and y [N, ...] of the declared shape and type: a model with code of its own is tried on made-up ones first.

    Raises
    ------
    FieldError
        If it fails on them.
    NotStackable
        If ``"batched"`` is asked of a model that cannot be batched.
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
    """Name the first module whose class is not from torch.nn or this library, or that is known to draw.

    A module of yours that can be read, and is no more than known layers, is left out.
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
