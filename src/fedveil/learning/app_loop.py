"""Training loop of an app with FedVeil's lots and noise: only the broadcast plus FedVeil's noised steps leave the site.

The app keeps its loop, its optimiser and its schedule. FedVeil draws and reads the lots (random batches). On its own
copy of the model it computes a noised mean of clipped gradients, and puts this mean in place of the app's gradients. So
the app's gradients, batches and edits of its model influence nothing that leaves. The app's gradients are compared once
with FedVeil's, on made-up examples.

FedVeil cannot check the rest. The app might read the data elsewhere, write into its optimiser, or let a learning rate
depend on its training loss. That it does not is a condition of the promise (`fedveil.accounting.guarantee.APP_LOOP`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fedveil.errors import FieldError, kind_of, require_count
from fedveil.learning.clients import ClientData, as_client
from fedveil.learning.local import Trained
from fedveil.learning.made_up import labels, probes
from fedveil.learning.private import PrivateTrainer
from fedveil.learning.streams import KeyedDropout
from fedveil.learning.witness import note_failure
from fedveil.logs import logger
from fedveil.mechanisms import Source

_LOG = logger(__name__)
_ROWS = 2  # rows of the made-up batch
_ALIKE = 1e-3  # relative to the longest coordinate: gradients closer than this count as equal
_DROPOUTS = (nn.modules.dropout._DropoutNd, KeyedDropout)

Batch = Callable[[Tensor, Tensor], Any]


def as_pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return a batch as the pair (x, y), the form in which most loaders yield it."""
    return x, y


class AppLoop:
    """Give an app the batches of one round, and replace its gradients by noised ones before each optimiser step.

    Use it as a context, and iterate over it `passes` times. The first batch is made up, and its step moves nothing. On
    that batch the app's gradient must be the mean of single examples' gradients under the trainer's loss. Then come the
    lots of the plan, divided among the passes. If the app skips a step, FedVeil makes that step at the next batch or at
    the end. So the result never depends on the app's control flow. An error that the app raises over its data goes into
    the site's own log.

    Parameters
    ----------
    trainer : PrivateTrainer
        Trainer with the loss, the noise and the model.
    model : torch.nn.Module
        Model of the app, with the same layout. Its parameters are set to those of FedVeil's copy before each step.
    optimizer : torch.optim.Optimizer
        Optimiser of the app, over parameters of `model`.
    data : ClientData, DataLoader, Dataset or tuple
        Examples of the site, in a form that `fedveil.learning.as_client` accepts.
    start : Tensor
        [d], broadcast model.
    source : Source
        Randomness of lots and noise.
    batch : callable
        Function that turns x and y [m, ...] into what the app's loop unpacks.
    passes : int
        Number of passes (the app's epochs) among which the plan's steps are divided; at most one a step.

    Attributes
    ----------
    trained : Trained
        Result of the round, available after the context has ended.

    Raises
    ------
    FieldError
        For a sum over sites, or a method without ``loop = "app"``. For a model, an optimiser's parameters or a learning
        rate that differ from the trainer's.
    """

    trained: Trained

    def __init__(
        self,
        trainer: PrivateTrainer,
        model: nn.Module,
        optimizer: Optimizer,
        data: ClientData | Sequence[Any],
        start: Tensor,
        source: Source,
        batch: Batch = as_pair,
        passes: int = 1,
    ) -> None:
        _require_method(trainer)
        self._passes = require_count("passes", passes, 1, trainer.noisy.steps)
        self._trainer = trainer
        self._model = model
        self._parameters = _parameters_of(model, trainer)
        self._optimizer = optimizer
        _require_optimizer(optimizer, self._parameters, trainer)
        self._start = start
        self._client = as_client(data, "data")
        self._source = source
        self._batch = batch
        self._lot: Tensor | None = None  # lot of a batch whose step is still to come
        self._gradient: Tensor | None = (
            None  # noised gradient of that lot, drawn once however often it is requested
        )
        self._taken = 0
        self._passed = 0  # passes that began
        self._made_up: tuple[Tensor, Tensor] | None = None
        self._compared = False
        self._open = False
        self._still = ExitStack()  # keeps dropout off

    def __len__(self) -> int:
        """Return the largest number of batches in a pass: the made-up one, and the pass's share of the plan."""
        return 1 + ceil(self._trainer.noisy.steps / self._passes)

    def __enter__(self) -> "AppLoop":
        """Set the model to the broadcast, and hook into the optimiser's steps."""
        with ExitStack() as entered:
            taken = self._trainer.taken_for(self._start, self._client, (0,), self._source)
            self._round = entered.enter_context(taken)
            for hook in (
                self._optimizer.register_step_pre_hook(self._before_step),
                self._optimizer.register_step_post_hook(self._after_step),
            ):
                entered.callback(hook.remove)
            self._restore()
            self._until_end = entered.pop_all()
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Make the steps that the app skipped, and read the result. An app's error over its data only goes into the log."""
        try:
            if not self._compared or self._made_up is not None:  # no data were seen yet
                if error is None:
                    raise FieldError(
                        "loop",
                        "no step",
                        "its first batch needs loss.backward() and optimizer.step()",
                    )
                return False
            if error is not None and not isinstance(error, Exception):
                return False
            if error is not None:
                self._tell(error)
                note_failure(error)
            self._finish()
            self.trained = self._round.trained(self._trainer.read())
            return True
        finally:
            self._open = False
            self._still.close()
            self._until_end.close()

    def __iter__(self) -> Iterator[Any]:
        """Yield a made-up batch in the first pass, then each lot of the pass; an empty lot becomes one example of zeros.

        Raises
        ------
        FieldError
            Outside the context, or for more passes than declared.
        """
        if not self._open:
            raise FieldError(
                "loop", "closed", "goes within its context: with AppLoop(...) as loop:"
            )
        steps = self._trainer.noisy.steps
        if self._passed == self._passes:
            accepted = f"lies beyond the plan: a round's {steps} steps take {self._passes} passes; "
            accepted += "passes = ... declares more"
            raise FieldError("loop", "one more pass", accepted)
        self._passed += 1
        if self._passed == 1:
            self._made_up = self._made_up_batch()
            self._still.enter_context(_without_dropout(self._model, self._trainer.own_model))
            yield self._batch(*self._made_up)
        if self._made_up is not None:
            self._end_comparison()
        self._make_up_for()
        share = steps * self._passed // self._passes  # steps up to the end of this pass
        while self._taken < share:
            self._lot = self._round.lot()
            yield self._batch(*self._rows(self._lot))
            self._make_up_for()

    def _end_comparison(self) -> None:
        """Go on from the made-up batch to the data, if the app made its step on it."""
        self._still.close()
        if not self._compared:
            accepted = "it must follow each batch: accumulating gradients would use the noise of one step for several"
            raise FieldError("optimizer.step()", None, accepted)
        self._made_up = None

    def _make_up_for(self) -> None:
        """Make the step of a lot that the app left without one."""
        if self._lot is not None:
            _LOG.warning("the app's loop left a step out: it is made without it")
            self._optimizer.step()

    def _made_up_batch(self) -> tuple[Tensor, Tensor]:
        """Return two different made-up examples, with their labels."""
        first, second = next(probes(self._client.x, _ROWS))
        x = torch.stack([first[0], second[1]])
        return x, labels(self._client.y, _ROWS, classes=2)

    def _rows(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples of the chosen units [m], or one example of zeros if none are chosen."""
        rows = self._trainer.rows_of(self._client, chosen)
        x, y = self._client.x, self._client.y
        if not len(rows):
            return torch.zeros((1, *x.shape[1:]), dtype=x.dtype), torch.zeros(
                (1, *y.shape[1:]), dtype=y.dtype
            )
        return x[rows], y[rows]

    def _before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Replace the app's gradient by the noised one."""
        if len(args) > 1 or kwargs:
            accepted = "would be called for gradients without noise: call step() without arguments"
            raise FieldError("optimizer.step(closure)", "a closure", accepted)
        if self._made_up is not None:
            self._compare(*self._made_up)
            return
        if self._lot is None:
            accepted = "call it once for each batch of this loop: a batch that the loop did not draw has no place in the plan"
            raise FieldError("optimizer.step()", "a step without a batch", accepted)
        self._restore()
        if self._gradient is None:
            self._gradient = self._round.gradient(self._lot)
        gradient = self._gradient
        for parameter, block in zip(self._parameters, self._trainer.layout.blocks, strict=True):
            own = gradient[block.start : block.stop].view(block.shape)
            parameter.grad = own.to(parameter.device, parameter.dtype, copy=True)

    def _after_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Copy the result of the optimiser's step into FedVeil's model."""
        if self._made_up is not None:
            return
        self._lot, self._gradient = None, None
        self._taken += 1
        with torch.no_grad():
            for own, parameter in zip(self._trainer.own_parameters, self._parameters, strict=True):
                own.copy_(parameter)

    def _restore(self) -> None:
        """Set the app's parameters to those of FedVeil's model."""
        with torch.no_grad():
            for own, parameter in zip(self._trainer.own_parameters, self._parameters, strict=True):
                parameter.copy_(own)

    def _compare(self, x: Tensor, y: Tensor) -> None:
        """Refuse an app whose gradient on made-up examples is not the mean of single examples' gradients. Then clear it."""
        if self._compared:
            accepted = "call it once for each batch of this loop"
            raise FieldError("optimizer.step()", "a second step on one batch", accepted)
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        theirs = torch.cat([gradient.detach().reshape(-1).double().cpu() for gradient in found])
        ours, again = self._trainer.mean_gradients(x, y)
        allowed = _ALIKE * float(ours.abs().max())
        if float((ours - again).abs().max()) > allowed:
            _LOG.warning("the model draws numbers of its own: the app's gradient is not compared")
        elif not float((ours - theirs).abs().max()) <= allowed:
            apart = float((ours - theirs).abs().max() / ours.abs().max().clamp(min=1e-30))
            accepted = "must be the mean of single examples' gradients under the trainer's loss: take the loop's batch "
            accepted += "and LocalTraining(loss=criterion), and leave out losses over several examples, other terms, "
            accepted += "gradient scaling and clipping"
            raise FieldError("loss.backward()", f"{apart:.2g} away on made-up examples", accepted)
        self._compared = True
        for parameter in self._parameters:
            parameter.grad = (
                None  # without gradients the step moves nothing and leaves the optimiser's state
            )

    def _tell(self, error: Exception) -> None:
        """Write an error of the app's code into the site's own log."""
        if self._taken < self._trainer.noisy.steps:
            _LOG.error("the app's loop failed; its steps are made without it", exc_info=error)
            return
        told = "the app's code failed after its loop (%s); the loop's steps are the answer"
        _LOG.warning(told, type(error).__name__, exc_info=error)

    def _finish(self) -> None:
        """Make the steps that the app skipped."""
        left = self._trainer.noisy.steps - self._taken
        if left:
            _LOG.warning("the app's loop left %d steps out: they are made without it", left)
        while self._taken < self._trainer.noisy.steps:
            self._lot = self._round.lot() if self._lot is None else self._lot
            self._optimizer.step()


def _require_method(trainer: PrivateTrainer) -> None:
    noisy = trainer.noisy
    if noisy.summed or noisy.grid:
        accepted = (
            'goes with sum = "none" alone: a share of a sum is one step of plain SGD, train_noisily'
        )
        raise FieldError("loop", "app", accepted)
    if not noisy.by_app:
        accepted = 'say it in the method, loop = "app": its promise is then conditional on what the app\'s code does'
        raise FieldError("loop", "trainer", accepted)


def _parameters_of(model: nn.Module, trainer: PrivateTrainer) -> list[nn.Parameter]:
    """Return the app's parameters in the layout's order."""
    every = dict(model.named_parameters())
    for block in trainer.layout.blocks:
        shape = tuple(every[block.name].shape) if block.name in every else None
        if shape != tuple(block.shape):
            raise FieldError(
                "model",
                f"{block.name} {shape}",
                f"must be the trainer's model: {tuple(block.shape)}",
            )
    return [every[name] for name in trainer.layout.names]


def _require_optimizer(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], trainer: PrivateTrainer
) -> None:
    if not isinstance(optimizer, Optimizer):
        raise FieldError(
            "optimizer",
            kind_of(optimizer),
            "must be one of PyTorch's, or a class of that kind",
        )
    shared = {id(parameter) for parameter in parameters}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(one.requires_grad and id(one) not in shared for one in held):
        accepted = "holds parameters that are not the model's shared ones: they would be trained without noise"
        raise FieldError("optimizer", kind_of(optimizer), accepted)
    own, rate = optimizer.param_groups[0]["lr"], trainer.local.rate()
    if not abs(float(own) - rate) <= 1e-9 * rate:
        accepted = (
            f"must be that of LocalTraining(lr={rate:g}), with which a client that fails answers"
        )
        raise FieldError("optimizer.lr", float(own), accepted)


@contextmanager
def _without_dropout(*models: nn.Module) -> Iterator[None]:
    """Turn off dropout in all layers within this context."""
    layers = [layer for model in models for layer in model.modules()]
    rates = [(layer, name, getattr(layer, name)) for layer in layers if (name := _rate_of(layer))]
    try:
        for layer, name, _ in rates:
            setattr(layer, name, 0.0)
        yield
    finally:
        for layer, name, rate in rates:
            setattr(layer, name, rate)


def _rate_of(layer: nn.Module) -> str:
    """Return the name of a layer's dropout rate; "" for a layer without dropout."""
    if isinstance(layer, _DROPOUTS):
        return "p"
    return "dropout" if isinstance(layer, nn.MultiheadAttention | nn.RNNBase) else ""
