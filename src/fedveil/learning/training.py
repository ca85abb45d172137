"""Local training: one client after another on one model, every stream keyed, nothing shared between clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.clients import ClientData
from fedveil.learning.dropout import with_keyed_dropout
from fedveil.learning.local import LocalTraining, StepInfo, Trained
from fedveil.learning.losses import as_input, fast_format, loss_of, losses_of, outputs_of
from fedveil.learning.streams import Key, epoch_orders, stream
from fedveil.mechanisms.source import keyed_seed

Hook = Callable[[Tensor, StepInfo], Tensor]


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
    hook : callable, optional
        ``hook(gradient [d], StepInfo) -> gradient [d]`` at every step, on the gradient of the data's loss and before
        FedProx's term, which needs no data beyond the steps already taken.
    device : str
        Where to train, e.g. ``"cpu"`` or ``"cuda"``. Results come back on the CPU.
    per_example : bool
        Hand the hook the gradients [B, d] of the batch's single examples instead of their mean.
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
        hook: Hook | None = None,
        device: str = "cpu",
        *,
        per_example: bool = False,
        shared_random: bool = True,
        before_step: Callable[[], None] | None = None,
    ) -> None:
        if per_example:
            losses_of(local.loss)
        self._shared_random, self.per_example, self._before_step = shared_random, per_example, before_step
        self.layout, self.local, self.hook = layout, local, hook
        self._device = torch.device(device)
        self._model = deepcopy(model).to(self._device)
        self._generator = torch.Generator()
        with_keyed_dropout(self._model, self._generator)
        with torch.no_grad():
            for p in self._model.parameters():
                p.data = fast_format(p.data)
        every = dict(self._model.named_parameters())
        missing = [name for name in layout.names if name not in every]
        if missing:
            raise FieldError("layout", missing[0], "is no parameter of the model: take Layout.from_module(model)")
        self._parameters = [every[name] for name in layout.names]
        self._buffers = {name: b.detach().clone() for name, b in self._model.named_buffers()}
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
        optimizer = self._optimizer(local.rate(key[1], step, steps))
        anchors = [p.detach().clone() for p in self._parameters] if local.prox else []
        orders = torch.from_numpy(epoch_orders([key], [client.examples], local.epochs)).view(local.epochs, -1)
        stream(key, "dropout", self._generator)
        seed = keyed_seed("train", *key, "module")
        with _seeded(seed, self._device) if self._shared_random else nullcontext():
            for epoch, order in enumerate(orders):
                losses = []
                for rows in torch.split(order, local.batch_size):
                    if self._before_step is not None:
                        self._before_step()
                    x, y = self._batch(client, rows)
                    loss = self._gradients(x, y, StepInfo(key, epoch, step, len(rows)))
                    if not local.slack or (self._moved(start) > local.slack):
                        for p, anchor in zip(self._parameters, anchors, strict=False):
                            p.grad = _gradient(p).add_(p.detach() - anchor, alpha=local.prox)
                    for group in optimizer.param_groups:
                        group["lr"] = local.rate(key[1], step, steps)
                    optimizer.step()
                    losses.append(loss.detach() * len(rows))
                    step += 1
                total = float(torch.stack(losses).sum())
        found = self.layout.read(model).cpu()
        if local.keep < 1:
            found = start + _longest(found - start, local.keep)
        state = model.state_dict() if self._kept else {}
        own = {name: state[name].detach().cpu().clone() for name in self._kept} or None
        return Trained(found, client.examples, total / client.examples, buffers=own)

    def _moved(self, start: Tensor) -> float:
        return float((self.layout.read(self._model).cpu() - start).norm())

    def _gradients(self, x: Tensor, y: Tensor, info: StepInfo) -> Tensor:
        """Leave the gradient of a batch, after the hook, in the parameters, and return the mean loss."""
        if self.hook is None or not self.per_example:
            self._model.zero_grad()
            loss = self._loss(outputs_of(self._model(x)), y)
            torch.autograd.backward(loss)
            if self.hook is not None:
                self._write(check_hook(self.hook(flat := self._read(), info), flat))
            return loss.detach()
        losses, rows = [], []
        for i in range(len(x)):
            self._model.zero_grad()
            loss = self._loss(outputs_of(self._model(x[i : i + 1])), y[i : i + 1])
            torch.autograd.backward(loss)
            losses.append(loss.detach())
            rows.append(self._read())
        self._write(check_hook(self.hook(torch.stack(rows), info), rows[0]))
        return torch.stack(losses).mean()

    def _reset(self, start: Tensor, buffers: Mapping[str, Tensor] | None = None) -> None:
        self.layout.load(self._model, start.to(self._device))
        for name, value in {**self._buffers, **(buffers or {})}.items():
            owner, _, leaf = name.rpartition(".")
            setattr(self._model.get_submodule(owner), leaf, value.to(self._device, copy=True))
        self._model.zero_grad()
        self._model.train()

    def _optimizer(self, lr: float) -> torch.optim.Optimizer:
        local, fused = self.local, self._device.type in ("cpu", "cuda")
        if local.optimizer == "adamw":
            return torch.optim.AdamW(self._parameters, lr=lr, weight_decay=local.weight_decay, fused=fused)
        if local.optimizer == "adam":
            return torch.optim.Adam(self._parameters, lr=lr, fused=fused)
        return torch.optim.SGD(self._parameters, lr=lr, momentum=local.momentum, fused=fused)

    def _batch(self, client: ClientData, rows: Tensor) -> tuple[Tensor, Tensor]:
        return as_input(client.x[rows], self._parameters[0]), client.y[rows].to(self._device)

    def _read(self) -> Tensor:
        return torch.cat([_gradient(p).reshape(-1).to(self.layout.dtype) for p in self._parameters])

    def _write(self, flat: Tensor) -> None:
        for p, block in zip(self._parameters, self.layout.blocks, strict=True):
            grad = torch.empty_like(p)
            p.grad = grad.copy_(flat[block.start : block.stop].view(block.shape))


def _longest(update: Tensor, share: float) -> Tensor:
    """The update with all but this share of its coordinates, the longest ones, at 0."""
    kept = torch.zeros_like(update)
    places = update.abs().topk(max(1, round(share * len(update)))).indices
    kept[places] = update[places]
    return kept


def check_request(layout: Layout, starts: Tensor, clients: Sequence[ClientData], keys: Sequence[Key]) -> None:
    """Refuse starts, clients and keys that do not fit together."""
    layout.check(starts, "starts")
    if starts.dim() != 2 or not len(starts) == len(clients) == len(keys):
        given = (tuple(starts.shape), len(clients), len(keys))
        raise FieldError("starts, clients, keys", given, "must be [n, d], n clients and n keys")


def check_hook(changed: Tensor, gradient: Tensor) -> Tensor:
    """Refuse what a hook returned if it is not like the gradient [d]."""
    if changed.shape != gradient.shape or changed.dtype != gradient.dtype:
        given = (tuple(changed.shape), changed.dtype)
        raise FieldError("hook", given, f"must return {tuple(gradient.shape)} {gradient.dtype}")
    return changed


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
