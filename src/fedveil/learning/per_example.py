"""Clipped gradients of single examples, summed, for any module that treats its examples apart.

Where every trainable layer is one of a few kinds and is used once, one forward and one backward pass to the layers'
outputs give each layer's inputs and output gradients, from which norms and clipped sums follow without a second pass
(the "book-keeping" of Bu et al. 2023, arXiv 2210.00038): a dense layer's gradients are never formed. Any other module
goes through `torch.func.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.clipping import SHRINK
from fedveil.layout import Layout
from fedveil.learning.losses import LOSSES, Loss

_ELEMENTS = 1 << 24  # gradients of single examples that are held at once
_BLOCK = 1 << 20  # of them that are converted to float64 at once

# (module, inputs, output gradients) -> gradients [B, *shape] of each of its parameters, by name
Rule = Callable[[Any, Tensor, Tensor], dict[str, Tensor]]


class NotApart(Exception):
    """The module is not one whose layers' gradients follow from inputs and output gradients."""


@dataclass
class _Tap:
    """What one layer saw in a forward pass."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[tuple[Tensor, int]] = field(default_factory=list)


class PerExample:
    """Sums of clipped per-example gradients of one module.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode; its parameters are read, and no gradient is left in them.
    layout : Layout
        Of the model.
    loss : callable
        Mean loss of a batch.
    """

    def __init__(self, model: nn.Module, layout: Layout, loss: Loss) -> None:
        self._model, self._layout, self._loss = model, layout, loss
        self._layers = _layers(model, layout)
        self._probed = False

    @property
    def by_layers(self) -> bool:
        """Whether the fast way is taken; False means `torch.func.vmap`."""
        return self._layers is not None

    def clipped_sum(self, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        """Sum of the examples' gradients, each scaled down to a norm of at most `clip`.

        Parameters
        ----------
        x, y : Tensor
            [B, ...], B at least 1.
        clip : float
            C. An example whose gradient is not finite, or that raises (a label out of range), counts as zero, so that
            it does no more than any other. Where all raise, so does this.

        Returns
        -------
        sum : Tensor
            [d], float64: in float32 one example moves a sum of many by more than its own share.
        losses : Tensor
            [B], each example's loss; of those that did not raise.
        """
        try:
            return self._sum(x, y, clip)
        except Exception:
            if len(x) == 1:
                raise
            found = []
            for half in (slice(0, len(x) // 2), slice(len(x) // 2, None)):
                with suppress(Exception):
                    found.append(self.clipped_sum(x[half], y[half], clip))
            if not found:
                raise
        return torch.stack([f[0] for f in found]).sum(0), torch.cat([f[1] for f in found])

    def _sum(self, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        width = max(1, _ELEMENTS // self._layout.size) if self._layers is None else self._width()
        if len(x) <= width:
            return self._part(x, y, clip)
        parts = [self._part(x[i : i + width], y[i : i + width], clip) for i in range(0, len(x), width)]
        return torch.stack([p[0] for p in parts]).sum(0), torch.cat([p[1] for p in parts])

    def _part(self, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        if self._layers is not None:
            try:
                return self._by_layers(x, y, clip)
            except NotApart:
                self._layers = None
        return self._by_vmap(x, y, clip)

    def _width(self) -> int:
        formed = [p.numel() for layer in self._layers or {} if type(layer) is not nn.Linear for p in layer.parameters()]
        return max(1, _ELEMENTS // max(sum(formed), 1))

    def _by_layers(self, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        assert self._layers is not None
        if not self._probed and len(x) > 1:  # of one example: elsewhere another axis may be as long as the batch
            with torch.no_grad():
                self._heard(x[:1])
            self._probed = True
        taps, output = self._heard(x)
        losses = self._losses(output, y)
        grads = torch.autograd.grad(losses.sum(), [tap.outputs[0][0] for tap in taps.values()])
        with torch.no_grad():
            found = [_Gradients(layer, tap.inputs[0], b) for (layer, tap), b in zip(taps.items(), grads, strict=True)]
            scale = _scale(torch.stack([f.squares for f in found]).sum(0).sqrt(), clip)
            parts = {
                name: g
                for f, names in zip(found, self._layers.values(), strict=True)
                for name, g in f.sum(scale, names)
            }
            if not scale.all():  # 0 times infinity is no 0: once more without the examples that count as zero
                kept = scale > 0
                if kept.any():
                    with torch.enable_grad():
                        return self._by_layers(x[kept], y[kept], clip)[0], losses.detach()
                return torch.zeros_like(self._flat(parts)), losses.detach()
            return self._flat(parts), losses.detach()

    def rows_apart(self, x: Tensor) -> bool:
        """Whether row i of every layer belongs to example i of a batch [B, ...], as the fast way takes for granted."""
        with suppress(Exception):  # what fails here fails in training, or is taken one by one
            for rows in (x, x.flip(0)) if self._layers is not None else ():  # sorting leaves one of the two as it is
                taps, output = self._heard(rows)
                grads = torch.autograd.grad(output[0].sum(), [tap.outputs[0][0] for tap in taps.values()])
                if any(bool(g[1:].any()) for g in grads):
                    return False
        return True

    def _heard(self, x: Tensor) -> tuple[dict[nn.Module, _Tap], Tensor]:
        """What each layer sees of a batch, and the model's output; only if every layer keeps the examples apart."""
        taps = {layer: _Tap() for layer in self._layers or {}}
        handles = [layer.register_forward_hook(_listen(tap)) for layer, tap in taps.items()]
        try:
            output = self._model(x)
        finally:
            for handle in handles:
                handle.remove()
        for tap in taps.values():
            if len(tap.outputs) != 1 or tap.outputs[0][0]._version != tap.outputs[0][1]:
                raise NotApart  # used twice or not at all, or its output was overwritten in place
            if len(tap.inputs[0]) != len(x) or len(tap.outputs[0][0]) != len(x):
                raise NotApart  # its rows are parts of examples, each of which would be clipped by itself
        return taps, output

    def _flat(self, parts: dict[str, Tensor]) -> Tensor:
        return torch.cat([parts[name].reshape(-1).to(torch.float64) for name in self._layout.names])

    def _losses(self, output: Tensor, y: Tensor) -> Tensor:
        if self._loss in (LOSSES["cross_entropy"], LOSSES["mse"]):  # the mean of equal shares of the examples
            return self._loss(output, y, reduction="none").reshape(len(output), -1).mean(1)  # type: ignore[call-arg]
        return torch.stack([self._loss(output[i : i + 1], y[i : i + 1]) for i in range(len(output))])

    def _by_vmap(self, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        every = dict(self._model.named_parameters())
        values = {name: every[name].detach() for name in self._layout.names}

        def alone(parameters: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
            output = torch.func.functional_call(self._model, parameters, (one[None],))
            return self._loss(output, target[None])

        each = torch.func.vmap(torch.func.grad_and_value(alone), in_dims=(None, 0, 0), randomness="different")
        grads, losses = each(values, x, y)
        rows = torch.cat([grads[name].reshape(len(x), -1).to(self._layout.dtype) for name in self._layout.names], 1)
        rows = rows.detach()
        scale = _scale(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64), clip)
        kept = scale > 0
        return _weighted(rows[kept], scale[kept]), losses.detach()


def _scale(lengths: Tensor, clip: float) -> Tensor:
    """Factors [B] in float64 that bring lengths down to the clip; 0 where a length is not finite."""
    factor = torch.where(lengths > clip, clip * (1 - SHRINK) / lengths, torch.ones_like(lengths))
    return torch.where(torch.isfinite(lengths), factor, torch.zeros_like(lengths))


class _Gradients:
    """Gradients of one layer's parameters for single examples: their squared norms [B] and their weighted sum."""

    def __init__(self, layer: nn.Module, a: Tensor, b: Tensor) -> None:
        self.squares: Tensor
        self._a, self._b, self._layer = a, b, layer
        self._dense = type(layer) is nn.Linear and a.dim() == 2
        if self._dense:
            bias = layer.bias is not None and layer.bias.requires_grad
            weight = layer.weight.requires_grad
            own = (_square(a) if weight else 0) + (1 if bias else 0)
            self.squares = _square(b) * own
            return
        self._formed = _RULES[type(layer)](layer, a, b)
        self.squares = torch.stack([_square(g) for g in self._formed.values()]).sum(0)

    def sum(self, scale: Tensor, names: dict[str, str]) -> list[tuple[str, Tensor]]:
        """(name in the layout, sum over the examples of scale times gradient)."""
        if not self._dense:
            return [
                (names[k], _weighted(g.reshape(len(g), -1), scale).view(g.shape[1:]))
                for k, g in self._formed.items()
                if k in names
            ]
        scaled = self._b.to(torch.float64) * scale[:, None]
        found: dict[str, Tensor] = {"weight": scaled.T @ self._a.to(torch.float64), "bias": scaled.sum(0)}
        return [(names[k], value) for k, value in found.items() if k in names]


def _weighted(rows: Tensor, weights: Tensor) -> Tensor:
    """Sum [d] of rows [B, d] with weights [B], in float64, a block converted at a time."""
    step = max(1, _BLOCK // max(1, rows.shape[1]))
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for start in range(0, len(rows), step):
        total += weights[start : start + step] @ rows[start : start + step].to(torch.float64)
    return total


def _square(value: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1, dtype=torch.float64)
    return lengths.square()


def _listen(tap: _Tap) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def hook(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        tap.inputs.append(args[0].detach())
        tap.outputs.append((output, output._version))

    return hook


def _layers(model: nn.Module, layout: Layout) -> dict[nn.Module, dict[str, str]] | None:
    """The layers with shared parameters, each with the layout's name of its parameters; None if one is unknown."""
    owners = {id(p): name for name, p in model.named_parameters()}
    found: dict[nn.Module, dict[str, str]] = {}
    seen = 0
    for layer in model.modules():
        own = {k: owners[id(p)] for k, p in layer.named_parameters(recurse=False) if owners.get(id(p)) in layout.names}
        if not own:
            continue
        known = type(layer) in _RULES and (type(layer) is not nn.Conv2d or layer.padding_mode == "zeros")
        whole = all(p.requires_grad for p in layer.parameters(recurse=False))
        if not known or not whole or layer._forward_hooks or layer._forward_pre_hooks:
            return None
        found[layer] = own
        seen += len(own)
    return found if seen == len(layout.names) else None


def _linear(layer: nn.Linear, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    rows, grads = a.reshape(len(a), -1, a.shape[-1]), b.reshape(len(b), -1, b.shape[-1])
    found = {"weight": torch.bmm(grads.transpose(1, 2), rows)}
    return found if layer.bias is None else {**found, "bias": grads.sum(1)}


def _convolution(layer: nn.Conv2d, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    if isinstance(layer.padding, str):
        raise NotApart
    patches = F.unfold(a, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    n, groups, grads = len(a), layer.groups, b.reshape(len(b), layer.out_channels, -1)
    blocks = patches.view(n * groups, -1, patches.shape[-1])
    weight = torch.bmm(grads.reshape(n * groups, -1, grads.shape[-1]), blocks.transpose(1, 2))
    found = {"weight": weight.view(n, *layer.weight.shape)}
    return found if layer.bias is None else {**found, "bias": grads.sum(2)}


def _group_norm(layer: nn.GroupNorm, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    normal = F.group_norm(a, layer.num_groups, None, None, layer.eps)
    shape = (len(a), a.shape[1], -1)
    return {"weight": (b * normal).reshape(shape).sum(2), "bias": b.reshape(shape).sum(2)}


def _layer_norm(layer: nn.LayerNorm, a: Tensor, b: Tensor) -> dict[str, Tensor]:
    normal = F.layer_norm(a, layer.normalized_shape, None, None, layer.eps)
    shape: Sequence[int] = (len(a), -1, *layer.normalized_shape)
    found = {"weight": (b * normal).reshape(shape).sum(1)}
    return found if layer.bias is None else {**found, "bias": b.reshape(shape).sum(1)}


_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
}
