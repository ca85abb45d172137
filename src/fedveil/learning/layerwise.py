"""Gradients of single examples from layers' inputs and output gradients, for models of known layers alone.

One forward and one backward pass to the layers' outputs give each layer's inputs and output gradients, from which norms
and clipped sums follow without a second pass (the "book-keeping" of Bu et al. 2023, arXiv 2210.00038): a dense layer's
gradients are never formed.

Row i of every tensor belongs to example i because every module is of a type that is listed here, or its own method is
replaced by what `fedveil.learning.recognised` reads in it, and nothing listens: a subclass, a hook or a parametrisation
may mix rows, and a model with one goes another way.
"""

from typing import Any

import torch
from torch import Tensor, fx, nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.gradients import Formed, Gradients, GradientsAndLosses, Piece, Products
from fedveil.learning.losses import losses_of, usable
from fedveil.learning.recognised import check, recognised
from fedveil.learning.rules import LayerRule, NotApart, is_known, refuse_hooks, rule_of
from fedveil.learning.torch_losses import Labelwise

Layers = dict[nn.Module, tuple[LayerRule, dict[str, str]]]
Seen = tuple[Tensor, Tensor, int]  # of one layer in a forward pass: inputs, outputs, and the outputs' version


def known_layers(model: nn.Module, layout: Layout, names: dict[int, str]) -> Layers:
    """The layers with shared parameters: each with its rule, and the layout's names (by identity) of its parameters.

    Raises
    ------
    NotApart
        If a shared parameter belongs to something else.
    """
    layers: Layers = {}
    for layer in model.modules():
        own = {k: names[id(p)] for k, p in layer.named_parameters(recurse=False) if names[id(p)] in layout.names}
        rule, kind = rule_of(layer), type(layer).__name__
        if own and rule is None:
            raise NotApart(f"{kind} has no rule, or one that does not fit its options")
        if own and len(own) != len(list(layer.parameters(recurse=False))):
            raise NotApart(f"{kind} is trained in part")
        if own and rule is not None:
            layers[layer] = rule, own
    found = [name for _, own in layers.values() for name in own.values()]
    if sorted(found) != sorted(layout.names):
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
    loss : str or Labelwise
        Of an example.

    Raises
    ------
    NotApart
        If the model has a module that is not known.
    """

    def __init__(self, model: nn.Module, layout: Layout, loss: str | Labelwise) -> None:
        self._model, self._layout, self._loss = model, layout, loss
        refuse_hooks(model)
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

    def __call__(self, x: Tensor, y: Tensor, here: Tensor, lengths: Tensor | None = None) -> GradientsAndLosses:
        """Gradients, losses [B], and which examples [B] have both."""
        seen, output = self._listened(x)
        y, good = usable(y, output.shape, self._loss)
        losses = losses_of(self._loss)(output, y).reshape(len(x), -1).mean(1)
        grads = torch.autograd.grad(losses.sum(), [outputs for _, outputs, _ in seen])
        with torch.no_grad():
            layers = zip(self._layers.items(), seen, grads, strict=True)
            pieces = [_piece(layer, *known, inputs, b) for (layer, known), (inputs, _, _), b in layers]
        return Gradients(pieces, self._layout), losses.detach(), here & good

    def _listened(self, x: Tensor) -> tuple[list[Seen], Tensor]:
        """What each layer sees of a batch, and the model's output."""
        calls: dict[nn.Module, list[Seen]] = {layer: [] for layer in self._layers}

        def listen(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            calls[layer].append((args[0].detach(), output, output._version))

        handles = [layer.register_forward_hook(listen) for layer in calls]
        try:
            output = self._model(x)
        finally:
            for handle in handles:
                handle.remove()
        for layer, seen in calls.items():
            if len(seen) != 1 or seen[0][1]._version != seen[0][2]:
                raise NotApart("a layer is used twice or not at all, or its output is overwritten")
            inputs, outputs, _ = seen[0]
            if not len(inputs) == len(outputs) == len(output) == len(x) or inputs.dim() < self._layers[layer][0].axes:
                raise NotApart("a layer does not see one row an example")
        return [seen[0] for seen in calls.values()], output


def _piece(layer: nn.Module, rule: LayerRule, names: dict[str, str], inputs: Tensor, grads: Tensor) -> Piece:
    if type(layer) is nn.Linear and inputs.dim() == 2:
        return Products(names, inputs, grads.T)
    formed = rule.form(layer, inputs, grads)
    shapes = {key: (len(inputs), *layer.get_parameter(key).shape) for key in names}
    given = {key: tuple(rows.shape) for key, rows in formed.items()}
    if given != shapes:
        accepted = f"must return a gradient of each example by parameter, in no other shape than {shapes}"
        raise FieldError(f"layer_rule({type(layer).__name__})", given, accepted)
    return Formed({names[key]: rows for key, rows in formed.items()})
