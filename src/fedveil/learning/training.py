"""Local training of one client after another on one model, with random streams of its own for each client."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedveil.errors import FieldError, require_choice
from fedveil.layout import Layout
from fedveil.learning.clients import ClientData
from fedveil.learning.inputs import Inputs
from fedveil.learning.local import LocalTraining, Trained
from fedveil.learning.losses import loss_of, outputs_of
from fedveil.learning.made_up import labels, not_trainable, probes
from fedveil.learning.objective import void_labels
from fedveil.learning.own_state import OwnState
from fedveil.learning.streams import Key, epoch_orders, stream, with_keyed_dropout
from fedveil.mechanisms.source import keyed_seed


def rehearse(
    model: nn.Module,
    layout: Layout,
    local: LocalTraining,
    device: str,
    x: Tensor,
    y: Tensor,
) -> None:
    """Try out training: train a copy of the model on two made-up examples shaped like x and y [N, ...].

    Raises
    ------
    FieldError
        If the training fails.
    """
    trainer = SequentialTrainer(model, layout, replace(local, epochs=1), device)
    failure: Exception | None = None
    for classes, (probe, _) in zip((1, 2, 1), probes(x, 2), strict=True):
        made_up = ClientData(probe, labels(y, 2, classes))
        [outcome] = trainer.train(layout.read(model)[None], [made_up], [(0, 1, 0)])
        if not isinstance(outcome, Exception):
            return
        failure = failure or outcome
    raise not_trainable(model, x, y, failure) from failure


class SequentialTrainer:
    """Train clients one after another, for any ``torch.nn.Module``.

    Shuffling and dropout are determined by the client's key. So a client's result depends neither on other clients nor
    on the global random state. While a client trains, the global state is seeded from its key, for modules that draw
    from it; no other thread may draw then. Afterwards it is restored.

    Parameters
    ----------
    model : torch.nn.Module
        Model, copied; the caller's is never changed. Frozen parameters stay. Buffers (running means and the like) start
        from the client's own, or else from the model's. If the layout keeps buffers with the client, they are part of
        the result of `train`.
    layout : Layout
        Layout of the model.
    local : LocalTraining
        Options of training.
    device : str
        Device for training, e.g. ``"cpu"`` or ``"cuda"``. Results are on the CPU.
    precision : {"full", "bfloat16"}
        Precision of products and convolutions; parameters, sums and the optimiser are unchanged. ``"bfloat16"`` changes
        each update by several percent, and is faster on machines that support it.
    shared_random : bool
        Whether to seed and restore the global random state. It must be False if several trainers run in threads
        (`WorkerTrainer`).
    before_step : callable, optional
        Called before every step; if it raises an error, the training ends.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        local: LocalTraining,
        device: str = "cpu",
        *,
        precision: str = "full",
        shared_random: bool = True,
        before_step: Callable[[], None] | None = None,
    ) -> None:
        self._half = require_choice("precision", precision, ("full", "bfloat16")) == "bfloat16"
        self._shared_random = shared_random
        self._before_step = before_step
        self.layout = layout
        self.local = local
        self._device = device_of(device)
        self._model = deepcopy(model).to(self._device).train()
        self._generator = torch.Generator()
        with_keyed_dropout(self._model, self._generator)
        every = dict(self._model.named_parameters())
        for name in layout.names:
            if name not in every:
                raise FieldError(
                    "layout", name, "is no parameter of the model: take Layout.from_module(model)"
                )
        self._parameters = [every[name] for name in layout.names]
        self._inputs = Inputs.of(self._model)
        self._values: Tensor | None = None  # all parameters [d], if they have one type
        self.reuses_memory = False  # if set, a result is valid until the next client is trained
        self._memory: Tensor | None = None
        self._buffers = {
            name: buffer.detach().clone() for name, buffer in self._model.named_buffers()
        }
        self._own_state = OwnState(self._model)
        self._kept = sorted(self._buffers.keys() & set(layout.kept))
        self._loss = loss_of(local.loss)

    def train(
        self,
        starts: Tensor,
        clients: Sequence[ClientData],
        keys: Sequence[Key],
    ) -> list[Trained | Exception]:
        """Train each client from its own start.

        Parameters
        ----------
        starts : Tensor
            [n, d], initial parameters.
        clients : sequence of ClientData
            n clients. A client without examples returns its start.
        keys : sequence of tuple of int
            n keys (seed, round, partition).

        Returns
        -------
        list of Trained or Exception
            Results in the order of `clients`. A client whose training fails has its exception in its place, and the
            others continue. A diverged model is returned as it is; `protect` refuses it.

        Raises
        ------
        FieldError
            If starts, clients and keys do not fit together.
        """
        check_request(self.layout, starts, clients, keys)
        results: list[Trained | Exception] = []
        for start, client, key in zip(starts, clients, keys, strict=True):
            try:
                results.append(self._train(start, client, key))
            except (
                Exception
            ) as error:  # an error of a client's data or model is that client's failure
                results.append(error)
        return results

    def _train(self, start: Tensor, client: ClientData, key: Key) -> Trained:
        if not client.examples:
            return Trained(start.detach().clone(), 0, 0.0)
        self._reset(start, client.buffers)
        local = self.local
        optimizer = Stepper(self._parameters, local)
        anchors = (
            [parameter.detach().clone() for parameter in self._parameters] if local.prox else []
        )
        orders = torch.from_numpy(epoch_orders([key], [client.examples], local.epochs)[0])
        stream(key, "dropout", self._generator)
        seed = keyed_seed("train", *key, "module")
        steps = local.epochs * math.ceil(client.examples / local.batch_size)
        step = 0
        total = 0.0  # sum of the losses of the last epoch
        with _seeded(seed, self._device) if self._shared_random else nullcontext():
            for order in orders:
                losses: list[Tensor] = []
                for rows in torch.split(order, local.batch_size):
                    if self._before_step is not None:
                        self._before_step()
                    rate = local.rate(key[1], step, steps)
                    loss = self._gradients(*batch_of(client, rows, self._inputs))
                    if anchors and self._is_beyond_slack(start):
                        self._pull(anchors)
                    optimizer.step(rate)
                    losses.append(loss.detach() * len(rows))
                    step += 1
                total = float(torch.stack(losses).sum())
        self._require_constants()
        trained = self._read()
        if local.keep < 1:
            trained = start + _longest(trained - start, local.keep)
        return Trained(
            trained, client.examples, total / client.examples, buffers=self._kept_buffers()
        )

    def _is_beyond_slack(self, start: Tensor) -> bool:
        """Whether FedProx's term applies: the distance of the model from the start [d] exceeds `slack`."""
        if not self.local.slack:
            return True
        return float((self._read() - start).norm()) > self.local.slack

    def _pull(self, anchors: Sequence[Tensor]) -> None:
        """Add FedProx's proximal term to the gradients."""
        for parameter, anchor in zip(self._parameters, anchors, strict=True):
            gradient = _gradient(parameter)
            parameter.grad = gradient.add_(parameter.detach() - anchor, alpha=self.local.prox)

    def _kept_buffers(self) -> dict[str, Tensor] | None:
        """Return the buffers that the layout keeps with each client; None without such buffers."""
        if not self._kept:
            return None
        state = self._model.state_dict()
        return {name: state[name].detach().cpu().clone() for name in self._kept}

    def _require_constants(self) -> None:
        """Refuse a model whose own code changed a buffer that is declared constant."""
        if not self.layout.constants:
            return
        now = dict(self._model.named_buffers())
        for name in self.layout.constants:
            if name not in now or not torch.equal(now[name], self._buffers[name]):
                accepted = "is a buffer that training writes, which nobody shares or noises: leave it out of the model,"
                fix = 'or in Python Federation(..., shared=Shared(buffers="keep"))'
                raise FieldError("module", name, f"{accepted} {fix}")

    def _gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the gradient of a batch into the parameters' ``grad``, and return the mean loss."""
        self._model.zero_grad()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            outputs = outputs_of(self._model(x))
            is_void = y.numel() and void_labels(self.local.loss, y, outputs.shape).all()
            if is_void:
                loss = 0.0 * outputs.sum()  # zero, as a mean over no label would be NaN
            else:
                loss = self._loss(outputs, y)
        torch.autograd.backward(loss)
        for parameter in self._parameters:
            if (
                parameter.grad is not None and parameter.grad.is_sparse
            ):  # an embedding with sparse=True
                parameter.grad = parameter.grad.to_dense()
        return loss.detach()

    def _read(self) -> Tensor:
        """Return the parameters [d], on the CPU."""
        values = self.layout.read(self._model) if self._values is None else self._values
        return values.cpu()

    def _reset(
        self,
        start: Tensor,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Load parameters [d] and buffers into the module, and reset the state that its own code keeps."""
        kinds = {block.dtype for block in self.layout.blocks}
        if kinds == {self.layout.dtype}:
            self._train_in_place(start)
        else:
            self.layout.load(self._model, start.to(self._device))
        own = {**self._buffers, **(buffers or {})}
        for name, value in own.items():
            owner, _, leaf = name.rpartition(".")
            setattr(self._model.get_submodule(owner), leaf, value.to(self._device, copy=True))
        self._own_state.restore()
        self._model.zero_grad()
        self._model.train()

    def _train_in_place(self, start: Tensor) -> None:
        """Make the module's parameters views of one vector [d], so that the result needs no copy."""
        if self.reuses_memory and self._memory is not None:
            values = self._memory.copy_(start)
        else:
            values = start.to(self._device, self.layout.dtype, copy=True)
            self._memory = values if self.reuses_memory else None
        self._values = values
        for parameter, block in zip(self._parameters, self.layout.blocks, strict=True):
            parameter.data = values[block.start : block.stop].view(block.shape)


def batch_of(client: ClientData, rows: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Return some rows of a client's examples and labels in the form that a model takes."""
    x = inputs(client.x.index_select(0, rows))
    y = client.y[rows].to(inputs.like.device)
    return x, y


class Stepper:
    """SGD, Adam or AdamW, with the same bits as the classes of ``torch.optim``.

    It calls PyTorch's own functions. Importing the classes would load a compiler, which takes half a second in every
    process.

    Parameters
    ----------
    parameters : sequence of torch.nn.Parameter
        Parameters, changed in place; a parameter without a gradient is skipped.
    local : LocalTraining
        Name of the optimiser, momentum and weight decay.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        local: LocalTraining,
    ) -> None:
        self._parameters = parameters
        self._local = local
        self._velocities: dict[Tensor, Tensor | None] = {}  # state of SGD
        self._moments: dict[
            Tensor, tuple[Tensor, Tensor, Tensor]
        ] = {}  # state of Adam: means, squares, numbers of steps

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Take one step with learning rate `lr`."""
        values: list[Tensor] = []
        gradients: list[Tensor] = []
        for parameter in self._parameters:
            if parameter.grad is not None:
                values.append(parameter)
                gradients.append(parameter.grad)
        if self._local.optimizer == "sgd":
            self._sgd_step(lr, values, gradients)
        else:
            self._adam_step(lr, values, gradients)

    def _sgd_step(
        self,
        lr: float,
        values: list[Tensor],
        gradients: list[Tensor],
    ) -> None:
        velocities = [self._velocities.get(value) for value in values]
        sgd(
            values,
            gradients,
            velocities,
            momentum=self._local.momentum,
            lr=lr,
            fused=_fused(values),
            dampening=0,
            weight_decay=0,
            nesterov=False,
            maximize=False,
        )
        self._velocities.update(zip(values, velocities, strict=True))

    def _adam_step(
        self,
        lr: float,
        values: list[Tensor],
        gradients: list[Tensor],
    ) -> None:
        means: list[Tensor] = []
        squares: list[Tensor] = []
        counts: list[Tensor] = []
        for value in values:
            if value not in self._moments:
                count = torch.zeros((), device=value.device)
                self._moments[value] = torch.zeros_like(value), torch.zeros_like(value), count
            mean, square, count = self._moments[value]
            means.append(mean)
            squares.append(square)
            counts.append(count)
        adam_step(self._local, lr, values, gradients, means, squares, counts)


def adam_step(
    local: LocalTraining,
    lr: float,
    values: list[Tensor],
    gradients: list[Tensor],
    *state: list[Tensor],
) -> None:
    """Take one step of Adam (Kingma and Ba, 2015) or AdamW in place, with PyTorch's defaults and fused kernel.

    `state` is three lists: means of gradients, means of their squares, and numbers of steps.
    """
    means, squares, counts = state
    decay = local.weight_decay if local.optimizer == "adamw" else 0.0
    adam(
        values,
        gradients,
        means,
        squares,
        [],
        counts,
        lr=lr,
        amsgrad=False,
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
        maximize=False,
        weight_decay=decay,
        decoupled_weight_decay=decay > 0,
        fused=_fused(values),
    )


def _fused(values: Sequence[Tensor]) -> bool:
    """Whether torch's fused step is correct for these values.

    On a CPU it leaves most values of a half-precision parameter unchanged. Seen in torch 2.13; ``torch.optim.SGD(...,
    fused=True)`` does the same: 48 of 48 bfloat16 values do not move.
    """
    devices = {value.device.type for value in values}
    kinds = {value.dtype for value in values}
    is_exact = kinds <= {torch.float32, torch.float64}
    return devices <= {"cuda"} or (devices <= {"cpu", "cuda"} and is_exact)


def _longest(update: Tensor, share: float) -> Tensor:
    """Keep this share of an update's coordinates, those of largest size, and set the others to 0."""
    kept = torch.zeros_like(update)
    places = update.abs().topk(max(1, round(share * len(update)))).indices
    kept[places] = update[places]
    return kept


def device_of(device: str | torch.device) -> torch.device:
    """Return the PyTorch device of this name.

    Raises
    ------
    FieldError
        If PyTorch has no such device here.
    """
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise FieldError(
            "device", device, "is no device that PyTorch can use here; accepted: cpu"
        ) from error


def check_request(
    layout: Layout,
    starts: Tensor,
    clients: Sequence[ClientData],
    keys: Sequence[Key],
) -> None:
    """Refuse different numbers of starts, clients and keys, or starts that do not fit the layout."""
    layout.check(starts, "starts")
    if starts.dim() != 2 or not len(starts) == len(clients) == len(keys):
        given = (tuple(starts.shape), len(clients), len(keys))
        raise FieldError("starts, clients, keys", given, "must be [n, d], n clients and n keys")


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Return a parameter's gradient; a missing one is created as 0."""
    if parameter.grad is None:  # a layer that was not used has no gradient; it is 0
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global random state for this context, and restore it afterwards."""
    on_cuda = device.type == "cuda"
    devices = [device] if on_cuda else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
