"""Gradients of single examples from layers' inputs and output gradients, for models of known layers alone.

One forward and one backward pass to the layers' outputs give each layer's inputs and output gradients, from which norms
and clipped sums follow without a second pass (the "book-keeping" of Bu et al. 2023, arXiv 2210.00038): a dense layer's
gradients are never formed.

Row i of every tensor belongs to example i because every module is of a type that is listed here, or its own method is
replaced by what `fedveil.learning.recognised` reads in it, and nothing listens: a subclass, a hook or a parametrisation
may mix rows, and a model with one goes another way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as torch_module

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.gradients import Formed, Found, Gradients, Piece, Products
from fedveil.learning.labels import usable
from fedveil.learning.losses import losses_of
from fedveil.learning.recognised import check, recognised
from fedveil.learning.rules import LayerRule, NotApart, has_hooks, is_known, rule_of

Layers = dict[nn.Module, dict[str, str]]


@dataclass
class _Tap:
    """What one layer saw in a forward pass."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[tuple[Tensor, int]] = field(default_factory=list)


def known_layers(model: nn.Module, layout: Layout, names: dict[int, str]) -> Layers:
    """The layers with shared parameters, each with the layout's name (by identity, in `names`) of its parameters.

    Raises
    ------
    NotApart
        If a shared parameter belongs to something else.
    """
    layers: Layers = {}
    for layer in model.modules():
        own = {k: names[id(p)] for k, p in layer.named_parameters(recurse=False) if names[id(p)] in layout.names}
        if own and (rule_of(layer) is None or len(own) != len(list(layer.parameters(recurse=False)))):
            raise NotApart(f"{type(layer).__name__} is no known layer, or trained in part")
        if own:
            layers[layer] = own
    if sum(map(len, layers.values())) != len(layout.names):
        raise NotApart("a parameter is in no layer that is used, or in two")
    return layers


class ByLayers:
    """The way of known layers.

    Parameters
    ----------
    model : torch.nn.Module
        Read only.
    layout : Layout
        Of the model.
    loss : str
        Of an example.

    Raises
    ------
    NotApart
        If the model has a module that is not known.
    """

    def __init__(self, model: nn.Module, layout: Layout, loss: str) -> None:
        self._model, self._layout, self._loss = model, layout, loss
        if torch_module._has_any_global_hook() or any(has_hooks(m) for m in model.modules()):  # type: ignore[no-untyped-call]
            raise NotApart("a module has hooks")
        if not all(is_known(m) for m in model.modules()):
            self._model = recognised(model)
        names = {id(p): name for name, p in model.named_parameters()}
        self._layers = known_layers(self._model, layout, names)
        formed = [p.numel() for one in self._layers if type(one) is not nn.Linear for p in one.parameters()]
        self.held = max(1, sum(formed))

    def prepare(self, x: Tensor, y: Tensor) -> None:
        """Check with dummies, and with one alone: in a batch, another axis may be as long as the batch.

        Raises
        ------
        NotApart
            If a layer does not see one row an example.
        """
        with torch.no_grad():
            for rows in (x[:1], x):
                if isinstance(self._model, fx.GraphModule):
                    check(self._model, rows)
                self._listened(rows)

    def __call__(self, x: Tensor, y: Tensor, here: Tensor, lengths: Tensor | None = None) -> Found:
        """Gradients, losses [B], and which examples [B] have both."""
        taps, output = self._listened(x)
        y, good = usable(y, output.shape, self._loss)
        losses = losses_of(self._loss)(output, y).reshape(len(x), -1).mean(1)
        grads = torch.autograd.grad(losses.sum(), [tap.outputs[0][0] for tap in taps])
        with torch.no_grad():
            pairs = zip(self._layers.items(), taps, grads, strict=True)
            pieces = [_piece(layer, names, tap.inputs[0], b) for (layer, names), tap, b in pairs]
        return Gradients(pieces, self._layout), losses.detach(), here & good

    def _listened(self, x: Tensor) -> tuple[list[_Tap], Tensor]:
        """What each layer sees of a batch, and the model's output."""
        taps = {layer: _Tap() for layer in self._layers}
        handles = [layer.register_forward_hook(_listen(tap)) for layer, tap in taps.items()]
        try:
            output = self._model(x)
        finally:
            for handle in handles:
                handle.remove()
        for layer, tap in taps.items():
            rule = _rule(layer)
            if len(tap.outputs) != 1 or tap.outputs[0][0]._version != tap.outputs[0][1]:
                raise NotApart("a layer is used twice or not at all, or its output is overwritten")
            a, b = tap.inputs[0], tap.outputs[0][0]
            if not len(a) == len(b) == len(output) == len(x) or a.dim() < rule.axes:
                raise NotApart("a layer does not see one row an example")
        return list(taps.values()), output


def _piece(layer: nn.Module, names: dict[str, str], inputs: Tensor, grads: Tensor) -> Piece:
    if type(layer) is nn.Linear and inputs.dim() == 2:
        return Products(names, inputs, grads.T)
    formed = _rule(layer).form(layer, inputs, grads)
    shapes = {key: (len(inputs), *layer.get_parameter(key).shape) for key in names}
    if {key: tuple(rows.shape) for key, rows in formed.items()} != shapes:
        accepted = f"must return gradients of single examples by parameter: {shapes}"
        raise FieldError(
            f"layer_rule({type(layer).__name__})", {k: tuple(v.shape) for k, v in formed.items()}, accepted
        )
    return Formed({names[key]: rows for key, rows in formed.items()})


def _rule(layer: nn.Module) -> LayerRule:
    rule = rule_of(layer)
    assert rule is not None
    return rule


def _listen(tap: _Tap) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
    def hook(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        tap.inputs.append(args[0].detach())
        tap.outputs.append((output, output._version))

    return hook
