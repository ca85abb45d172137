"""Gradients of single examples from layers' inputs and output gradients, for models of known layers only.

One forward and one backward pass to the layers' outputs give each layer's inputs and output gradients. Norms and
clipped sums follow from them without a second pass (the "book-keeping" of Bu et al. 2023, arXiv 2210.00038). A dense
layer's gradients are never formed.

Row i of every tensor belongs to example i. For this, every module is of a listed type, or its method is replaced by the
graph that `fedveil.learning.recognised` reads from it. A subclass, a hook or a parametrisation may mix rows, so a model
with one takes another rule.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.gradients import Formed, Gradients, GradientsAndLosses, Piece, Products
from fedveil.learning.losses import losses_of, usable
from fedveil.learning.recognised import check, recognised
from fedveil.learning.rules import LayerRule, NotIsolated, is_known, refuse_hooks, rule_of
from fedveil.learning.torch_losses import Labelwise

Layers = dict[nn.Module, tuple[LayerRule, dict[str, str]]]


@dataclass(frozen=True)
class _Call:
    """One call of a layer in a forward pass: its inputs, its outputs, and the version counter of the outputs."""

    inputs: Tensor
    outputs: Tensor
    version: int

    def is_overwritten(self) -> bool:
        """Whether the outputs were changed in place after the call."""
        return self.outputs._version != self.version


def known_layers(model: nn.Module, layout: Layout, names: dict[int, str]) -> Layers:
    """Find the layers whose parameters are shared with the server, with each layer's gradient rule and parameter names.

    Parameters
    ----------
    model : torch.nn.Module
        Model, only read.
    layout : Layout
        Layout of the model.
    names : dict of int to str
        Names of the model's parameters, by identity.

    Raises
    ------
    NotIsolated
        If a shared parameter belongs to any other module.
    """
    layers: Layers = {}
    found: list[str] = []
    for layer in model.modules():
        own: dict[str, str] = {}
        parameters = dict(layer.named_parameters(recurse=False))
        for key, parameter in parameters.items():
            name = names[id(parameter)]
            if name in layout.names:
                own[key] = name
        if not own:
            continue
        kind = type(layer).__name__
        rule = rule_of(layer)
        if rule is None:
            raise NotIsolated(f"{kind} has no rule, or one that does not fit its options")
        if len(own) != len(parameters):
            raise NotIsolated(f"{kind} is trained in part")
        layers[layer] = rule, own
        found += own.values()
    if sorted(found) != sorted(layout.names):
        raise NotIsolated("a parameter is in no layer that is used, or in two")
    return layers


class ByLayers:
    """Gradient rule for models of known layers: from each layer's inputs and output gradients.

    Parameters
    ----------
    model : torch.nn.Module
        Model, only read.
    layout : Layout
        Layout of the model.
    loss : str or Labelwise
        Loss of an example.

    Raises
    ------
    NotIsolated
        If the model has an unknown module.
    """

    def __init__(self, model: nn.Module, layout: Layout, loss: str | Labelwise) -> None:
        refuse_hooks(model)
        self._layout = layout
        self._loss = loss
        self._model = model
        if not all(is_known(module) for module in model.modules()):
            self._model = recognised(model)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._layers = known_layers(self._model, layout, names)
        self.numbers_an_example = max(1, self._formed_numbers())

    def _formed_numbers(self) -> int:
        """Count how many numbers of one example's gradient are formed: the parameters outside dense layers."""
        count = 0
        for layer in self._layers:
            if type(layer) is not nn.Linear:
                count += sum(parameter.numel() for parameter in layer.parameters())
        return count

    def prepare(self, x: Tensor, y: Tensor) -> None:
        """Check the model on made-up examples: a batch, and one alone, as another axis may be as long as the batch.

        Raises
        ------
        NotIsolated
            If a layer does not see one row for each example.
        """
        with torch.no_grad():
            for rows in (x[:1], x):
                if isinstance(self._model, fx.GraphModule):
                    check(self._model, rows)
                self._run(rows)

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        here: Tensor,
        lengths: Tensor | None = None,
    ) -> GradientsAndLosses:
        """Return gradients, losses [B], and a bool [B] that marks the examples with finite results."""
        calls, output = self._run(x)
        y, usable_labels = usable(y, output.shape, self._loss)
        losses = losses_of(self._loss)(output, y).reshape(len(x), -1).mean(1)
        grads = torch.autograd.grad(losses.sum(), [call.outputs for call in calls])
        pieces: list[Piece] = []
        with torch.no_grad():
            for (layer, (rule, names)), call, grad in zip(
                self._layers.items(), calls, grads, strict=True
            ):
                pieces.append(_piece(layer, rule, names, call.inputs, grad))
        return Gradients(pieces, self._layout), losses.detach(), here & usable_labels

    def _run(self, x: Tensor) -> tuple[list[_Call], Tensor]:
        """Return the calls of all layers on a batch, and the output of the model."""
        calls: dict[nn.Module, list[_Call]] = {layer: [] for layer in self._layers}

        def listen(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            calls[layer].append(_Call(args[0].detach(), output, output._version))

        handles = [layer.register_forward_hook(listen) for layer in calls]
        try:
            output = self._model(x)
        finally:
            for handle in handles:
                handle.remove()
        seen: list[_Call] = []
        for layer, own in calls.items():
            if len(own) != 1 or own[0].is_overwritten():
                raise NotIsolated(
                    "a layer is used twice or not at all, or its output is overwritten"
                )
            [call] = own
            rule, _ = self._layers[layer]
            one_row_each = len(call.inputs) == len(call.outputs) == len(output) == len(x)
            if not one_row_each or call.inputs.dim() < rule.axes:
                raise NotIsolated("a layer does not see one row an example")
            seen.append(call)
        return seen, output


def _piece(
    layer: nn.Module,
    rule: LayerRule,
    names: dict[str, str],
    inputs: Tensor,
    grads: Tensor,
) -> Piece:
    """Return a layer's gradients of single examples: as products for a dense layer, else by its rule."""
    if type(layer) is nn.Linear and inputs.dim() == 2:
        return Products(names, inputs, grads.T)
    formed = rule.form(layer, inputs, grads)
    shapes: dict[str, tuple[int, ...]] = {}
    for key in names:
        shapes[key] = (len(inputs), *layer.get_parameter(key).shape)
    given = {key: tuple(rows.shape) for key, rows in formed.items()}
    if given != shapes:
        accepted = (
            f"must return a gradient of each example by parameter, in no other shape than {shapes}"
        )
        raise FieldError(f"layer_rule({type(layer).__name__})", given, accepted)
    return Formed({names[key]: rows for key, rows in formed.items()})
