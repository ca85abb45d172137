"""Local training: one client after another on one model, every stream keyed, nothing shared between clients."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any

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


def rehearse(model: nn.Module, layout: Layout, local: LocalTraining, device: str, x: Tensor, y: Tensor) -> None:
    """Train a copy on two made-up examples like x and y [N, ...], whose values are not used.

    Raises
    ------
    FieldError
        If that fails.
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

    Shuffling and dropout are keyed by the client's key, so a client's result depends neither on the order nor on the
    choice of the other clients, nor on the global random state, which is left as it was. (While a client trains, the
    global state is set from its key, for modules that draw from it: use no second thread that draws.)

    Parameters
    ----------
    model : torch.nn.Module
        Copied; the caller's model is never changed. Frozen parameters stay. Buffers (running means and the like)
        start from the client's own, or else from the model's; those that the layout keeps are in what `train` returns.
    layout : Layout
        Of the model.
    local : LocalTraining
        What to do.
    device : str
        Where to train, e.g. ``"cpu"`` or ``"cuda"``. Results come back on the CPU.
    precision : {"full", "bfloat16"}
        Of products and convolutions; parameters, sums and the optimiser stay as they are. ``"bfloat16"`` trains other
        models (each update is several percent off), faster on machines that have it.
    shared_random : bool
        Whether to set (and put back) the global random state for modules that draw from it; several trainers in
        threads must not, see `WorkerTrainer`.
    before_step : callable, optional
        Called before every step; what it raises ends the training.
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
        self._shared_random, self._before_step = shared_random, before_step
        self.layout, self.local = layout, local
        self._device = device_of(device)
        self._model = deepcopy(model).to(self._device).train()
        self._generator = torch.Generator()
        with_keyed_dropout(self._model, self._generator)
        every = dict(self._model.named_parameters())
        missing = [name for name in layout.names if name not in every]
        if missing:
            raise FieldError("layout", missing[0], "is no parameter of the model: take Layout.from_module(model)")
        self._parameters = [every[name] for name in layout.names]
        self._inputs = Inputs.of(self._model)
        self._values: Tensor | None = None  # all parameters [d], where they are of one type
        self.lends = False  # whether a result is read before the next client is trained, whose memory it then is
        self._room: Tensor | None = None  # that memory
        self._buffers = {name: b.detach().clone() for name, b in self._model.named_buffers()}
        self._own_state = OwnState(self._model)
        self._kept = sorted(self._buffers.keys() & set(layout.kept))
        self._loss = loss_of(local.loss)

    def train(self, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]) -> list[Trained | Exception]:
        """Train each client from its own start.

        Parameters
        ----------
        starts : Tensor
            [n, d].
        clients : sequence of ClientData
            n of them. One without examples returns its start.
        keys : sequence of tuple of int
            n of them: (seed, round, partition).

        Returns
        -------
        list of Trained or Exception
            In the order of `clients`. A client that raises leaves its exception in its place and the others go on.
            A model that diverged is returned as it is: `protect` refuses it.

        Raises
        ------
        FieldError
            If the three do not fit together.
        """
        check_request(self.layout, starts, clients, keys)
        results: list[Trained | Exception] = []
        for start, client, key in zip(starts, clients, keys, strict=True):
            try:
                results.append(self._train(start, client, key))
            except Exception as error:  # whatever a client's data or model raises is that client's failure
                results.append(error)
        return results

    def _train(self, start: Tensor, client: ClientData, key: Key) -> Trained:
        if not client.examples:
            return Trained(start.detach().clone(), 0, 0.0)
        self._reset(start, client.buffers)
        local, model, step, total = self.local, self._model, 0, 0.0
        steps = local.epochs * math.ceil(client.examples / local.batch_size)
        optimizer = Stepper(self._parameters, local)
        anchors = [p.detach().clone() for p in self._parameters] if local.prox else []
        orders = torch.from_numpy(epoch_orders([key], [client.examples], local.epochs)[0])
        stream(key, "dropout", self._generator)
        seed = keyed_seed("train", *key, "module")
        with _seeded(seed, self._device) if self._shared_random else nullcontext():
            for order in orders:
                losses = []
                for rows in torch.split(order, local.batch_size):
                    if self._before_step is not None:
                        self._before_step()
                    rate = local.rate(key[1], step, steps)
                    loss = self._gradients(*batch_of(client, rows, self._inputs))
                    if not local.slack or (self._moved(start) > local.slack):
                        for p, anchor in zip(self._parameters, anchors, strict=False):
                            p.grad = _gradient(p).add_(p.detach() - anchor, alpha=local.prox)
                    optimizer.step(rate)
                    losses.append(loss.detach() * len(rows))
                    step += 1
                total = float(torch.stack(losses).sum())
        self._require_constants()
        trained = self._read()
        if local.keep < 1:
            trained = start + _longest(trained - start, local.keep)
        state = model.state_dict() if self._kept else {}
        own = {name: state[name].detach().cpu().clone() for name in self._kept} or None
        return Trained(trained, client.examples, total / client.examples, buffers=own)

    def _require_constants(self) -> None:
        """Refuse a model whose own code wrote a buffer that was taken for a constant."""
        now = dict(self._model.named_buffers()) if self.layout.constants else {}
        for name in self.layout.constants:
            if name not in now or not torch.equal(now[name], self._buffers[name]):
                accepted = (
                    "is a buffer that training writes, which nobody shares or noises: leave it out of the model, or "
                )
                raise FieldError("module", name, f'{accepted}in Python Federation(..., shared=Shared(buffers="keep"))')

    def _moved(self, start: Tensor) -> float:
        return float((self._read() - start).norm())

    def _gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Leave the gradient of a batch in the parameters, and return the mean loss."""
        self._model.zero_grad()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            outputs = outputs_of(self._model(x))
            if y.numel() and void_labels(self.local.loss, y, outputs.shape).all():
                loss = 0.0 * outputs.sum()  # nothing is asked for, where a mean over no label would be no number
            else:
                loss = self._loss(outputs, y)
        torch.autograd.backward(loss)
        for p in self._parameters:
            if p.grad is not None and p.grad.is_sparse:  # of an embedding with sparse=True
                p.grad = p.grad.to_dense()
        return loss.detach()

    def _read(self) -> Tensor:
        """The parameters [d], on the CPU."""
        return (self.layout.read(self._model) if self._values is None else self._values).cpu()

    def _reset(self, start: Tensor, buffers: Mapping[str, Tensor] | None = None) -> None:
        if {block.dtype for block in self.layout.blocks} != {self.layout.dtype}:
            self.layout.load(self._model, start.to(self._device))
        else:
            if not self.lends or self._room is None:  # what is trained in place is what is returned
                values = start.to(self._device, self.layout.dtype, copy=True)
                self._room = values if self.lends else None
            else:
                values = self._room.copy_(start)
            self._values = values
            for p, block in zip(self._parameters, self.layout.blocks, strict=True):
                p.data = values[block.start : block.stop].view(block.shape)
        for name, value in {**self._buffers, **(buffers or {})}.items():
            owner, _, leaf = name.rpartition(".")
            setattr(self._model.get_submodule(owner), leaf, value.to(self._device, copy=True))
        self._own_state.restore()
        self._model.zero_grad()
        self._model.train()


def batch_of(client: ClientData, rows: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Some rows of a client's examples and labels, as a model takes them."""
    return inputs(client.x.index_select(0, rows)), client.y[rows].to(inputs.like.device)


class Stepper:
    """What torch.optim's optimiser of that name does, to the bit, by its own functions.

    The classes load a compiler that nobody asked for: half a second of every process.

    Parameters
    ----------
    parameters : sequence of torch.nn.Parameter
        Changed in place; one without a gradient is passed over.
    local : LocalTraining
        Stepper, momentum and weight decay.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], local: LocalTraining) -> None:
        self._parameters, self._local, self._device = parameters, local, parameters[0].device
        self._state: dict[Tensor, list[Any]] = {}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One step."""
        local = self._local
        own: list[Tensor] = [p for p in self._parameters if p.grad is not None]
        plain = local.optimizer == "sgd"
        for p in own:
            if p not in self._state:
                self._state[p] = (
                    [None] if plain else [*map(torch.zeros_like, (p, p)), torch.zeros((), device=self._device)]
                )
        grads: list[Any] = [p.grad for p in own]
        first, *others = [[self._state[p][i] for p in own] for i in range(1 if plain else 3)]
        if not plain:
            adam_step(local, lr, own, grads, first, *others)
            return
        more: dict[str, Any] = {"dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False}
        sgd(own, grads, first, momentum=local.momentum, lr=lr, fused=_fused(own), **more)
        self._state.update({p: [buffer] for p, buffer in zip(own, first, strict=True)})


def adam_step(
    local: LocalTraining, lr: float, values: list[Tensor], gradients: list[Tensor], *state: list[Tensor]
) -> None:
    """One step of Adam (Kingma and Ba, 2015), or of AdamW, in place, with torch's defaults and its fused kernel.

    The state is the means, the squares and the numbers of steps, one of each a value.
    """
    means, squares, counts = state
    decay = local.weight_decay if local.optimizer == "adamw" else 0.0
    more: dict[str, Any] = {"amsgrad": False, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "maximize": False}
    more |= {"weight_decay": decay, "decoupled_weight_decay": decay > 0, "fused": _fused(values)}
    adam(values, gradients, means, squares, [], counts, lr=lr, **more)


def _fused(values: Sequence[Tensor]) -> bool:
    """Whether torch's fused step is right for these: on a CPU it leaves most of a half-precision parameter as it was.

    Seen in torch 2.13, and so does ``torch.optim.SGD(..., fused=True)``: 48 of 48 bfloat16 values do not move.
    """
    exact = all(value.dtype in (torch.float32, torch.float64) for value in values)
    return all(value.device.type == "cuda" or (value.device.type == "cpu" and exact) for value in values)


def _longest(update: Tensor, share: float) -> Tensor:
    """The update with all but this share of its coordinates, the longest ones, at 0."""
    kept = torch.zeros_like(update)
    places = update.abs().topk(max(1, round(share * len(update)))).indices
    kept[places] = update[places]
    return kept


def device_of(device: str | torch.device) -> torch.device:
    """The device itself, where PyTorch has it.

    Raises
    ------
    FieldError
        Otherwise.
    """
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise FieldError("device", device, "is no device that PyTorch can use here; accepted: cpu") from error


def check_request(layout: Layout, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]) -> None:
    """Refuse starts, clients and keys that do not fit together."""
    layout.check(starts, "starts")
    if starts.dim() != 2 or not len(starts) == len(clients) == len(keys):
        given = (tuple(starts.shape), len(clients), len(keys))
        raise FieldError("starts, clients, keys", given, "must be [n, d], n clients and n keys")


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:  # an unused layer has no gradient; it is 0
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
