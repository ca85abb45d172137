"""A chain of common layers: recognised in a module, and run with the parameters of many clients at once."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.recognised import fresh
from fedveil.learning.scaled_inputs import ScaledInputs
from fedveil.learning.stacked import stages as make
from fedveil.learning.stacked.batched_losses import BATCHED
from fedveil.learning.stacked.stages import (
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Norm,
    ScaledStage,
    Stage,
    Weights,
)

Parameters = dict[str, Tensor]


class Stack:
    """Chain of layers that runs for n clients at once, each with its own parameters.

    Parameters
    ----------
    stages : sequence of Stage
        Stages in order.
    layout : Layout
        Layout of the parameters.
    """

    def __init__(self, stages: Sequence[Stage], layout: Layout) -> None:
        self.stages = list(stages)
        self.layout = layout
        self.dropouts: list[Dropout] = []
        trained: list[int] = []
        for i, stage in enumerate(self.stages):
            if isinstance(stage, Dropout) and stage.p > 0:
                self.dropouts.append(stage)
            if stage.names:
                trained.append(i)
        self._first = trained[0] if trained else len(self.stages)

    def weights(
        self,
        values: Parameters,
        targets: Parameters,
        n: int,
        alpha: float,
        beta: float,
    ) -> list[Weights]:
        """Return the parameters of the first n clients, stage by stage.

        Parameters
        ----------
        values, targets : dict of str to Tensor
            Parameters by name, and the tensors into which ``beta * value + alpha * gradient`` is written.
        """
        result: list[Weights] = []
        for i, stage in enumerate(self.stages):
            own = [values[name][:n] for name in stage.names]
            into = [targets[name][:n] for name in stage.names]
            result.append(Weights(own, into, alpha, beta, first=i <= self._first))
        return result

    def descend(
        self,
        x: Tensor,
        y: Tensor,
        scale: Tensor,
        weights: Sequence[Weights],
        loss: str,
    ) -> Tensor:
        """Run one forward pass and one backward pass for all clients, and write the gradients.

        Parameters
        ----------
        x, y : Tensor
            [n, b, ...], a batch of each client.
        scale : Tensor
            [n, b], weight of each example's loss; 0 leaves an example out.
        weights : sequence of Weights
            Result of `weights`; it determines where gradients go.
        loss : {"cross_entropy", "mse", "rmse"}
            Loss of each example, averaged over the trailing axes; rmse is of a batch.

        Returns
        -------
        Tensor
            [n, b], loss of each example; with rmse, loss of its batch.
        """
        kept = []
        for stage, own in zip(self.stages, weights, strict=True):
            x, saved = stage.forward(x, own)
            kept.append(saved)
        losses, grad = BATCHED[loss](x, y, scale)
        steps = zip(self.stages, kept, weights, strict=True)
        for stage, saved, own in reversed(list(steps)):
            back = stage.backward(grad, saved, own)
            if back is None:
                break
            grad = back
        return losses


class NotStackable(FieldError):
    """Refusal of a module that is not a chain of known layers; the text names the obstacle."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "trainer", "batched", f"cannot train this model: {reason}; take 'auto' or 'sequential'"
        )
        self.reason = reason


def compile_stack(module: nn.Module, layout: Layout) -> Stack:
    """Compile a module to a stack, which runs it for many clients at once.

    Parameters
    ----------
    module : torch.nn.Module
        A ``Sequential`` (nested ones too), or any module whose forward pass is a straight line through layers of
        `torch.nn` and functions of `torch.nn.functional`. It is traced in training mode and never changed.
    layout : Layout
        Layout of the module.

    Returns
    -------
    Stack
        Stack that computes the same function.

    Raises
    ------
    NotStackable
        For the first obstacle: an unknown layer, a branch, a frozen or tied parameter, a hook, or several types of
        parameters.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    for name, layer in modules.items():
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise NotStackable(f"{name or type(layer).__name__} has a forward hook")
    if len({block.dtype for block in layout.blocks}) > 1:
        raise NotStackable("the parameters are of several types")
    stages: list[Stage] = []
    used: Counter[str] = Counter()
    for node in _chain(module):
        stage = _stage(node, modules, layout)
        if isinstance(stage, ScaledStage) and not all(
            isinstance(s, Flatten | ScaledStage) for s in stages
        ):
            raise NotStackable("inputs are scaled behind another layer")
        if stage is not None:
            stages.append(stage)
            used.update(stage.names)
    for name in sorted({*layout.names, *used}):
        if used[name] != 1 or name not in layout.names:
            raise NotStackable(f"{name} is not used exactly once")
    return Stack(stages, layout)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, ScaledInputs) or super().is_leaf_module(m, module_qualified_name)


def _chain(module: nn.Module) -> list[fx.Node]:
    """Return the steps of a module in order; refuse one that is not a straight chain."""
    kind = type(module).__name__
    try:
        graph = _Tracer().trace(fresh(module).train())
    except Exception as error:  # whatever a model's own forward method raises under tracing
        raise NotStackable(f"{kind} cannot be traced: {error}") from error
    before, *steps = graph.nodes
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        raise NotStackable(f"{kind} takes several inputs")
    for node in steps:
        if list(node.all_input_nodes) != [before]:
            raise NotStackable(f"{node.name} is no step of a straight chain")
        before = node
    return steps[:-1]


def _stage(
    node: fx.Node,
    modules: dict[str, nn.Module],
    layout: Layout,
) -> Stage | None:
    """Return the stage for a step of the chain; None for a step without effect."""
    if node.op == "call_module":
        return _stage_of_layer(str(node.target), modules, layout)
    if not node.args or not isinstance(node.args[0], fx.Node):
        raise NotStackable(f"{node.name} does not take its input first")
    if node.op == "call_method":
        make_stage = _METHODS.get(str(node.target))
    else:
        make_stage = _FUNCTIONS.get(node.target)
    if make_stage is None:
        raise NotStackable(f"{node.name} is not known")
    try:
        return make_stage(*node.args[1:], **node.kwargs)
    except TypeError as error:
        raise NotStackable(f"{node.name}: {error}") from error


def _stage_of_layer(
    name: str,
    modules: dict[str, nn.Module],
    layout: Layout,
) -> Stage | None:
    kind = type(modules[name])
    if kind is nn.Identity:
        return None
    if kind not in _LAYERS:
        raise NotStackable(f"{name}: {kind.__name__} is not known")
    return _LAYERS[kind](name, modules[name], layout)


def _parameters(name: str, module: nn.Module, layout: Layout) -> tuple[str, ...]:
    """Return the names of a layer's weight and bias, as far as it has them."""
    own: dict[str, str] = {}
    for part, _ in module.named_parameters():
        own[part] = f"{name}.{part}"
        if own[part] not in layout.shapes:
            raise NotStackable(f"{own[part]} is frozen or tied")
    return tuple(own[part] for part in ("weight", "bias") if part in own)


def _linear(name: str, layer: Any, layout: Layout) -> Stage:
    return Dense(_parameters(name, layer, layout))


def _layer_norm(name: str, layer: Any, layout: Layout) -> Stage:
    return Norm(_parameters(name, layer, layout), layer.eps, tuple(layer.normalized_shape))


def _embedding(name: str, layer: Any, layout: Layout) -> Stage:
    if layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        raise NotStackable(f"{name} renormalises, rescales or is sparse")
    [weight, *_] = _parameters(name, layer, layout)
    return Embedding(weight, layer.padding_idx)


def _scaled_layer(name: str, m: Any, layout: Layout) -> Stage:
    return ScaledStage(m)


def _relu_layer(name: str, layer: Any, layout: Layout) -> Stage:
    return make.relu()


def _tanh_layer(name: str, layer: Any, layout: Layout) -> Stage:
    return make.tanh()


def _sigmoid_layer(name: str, layer: Any, layout: Layout) -> Stage:
    return make.sigmoid()


def _gelu_layer(name: str, layer: Any, layout: Layout) -> Stage:
    return make.gelu(layer.approximate)


def _softplus_layer(name: str, layer: Any, layout: Layout) -> Stage:
    return make.softplus(layer.beta, layer.threshold)


def _flatten_layer(name: str, layer: Any, layout: Layout) -> Stage:
    return _flatten(layer.start_dim, layer.end_dim)


def _dropout_layer(name: str, layer: Any, layout: Layout) -> Stage:
    return Dropout(layer.p)


def _channel_dropout_layer(name: str, layer: Any, layout: Layout) -> Stage:
    return Dropout(layer.p, 1)


def _flatten(start_dim: int = 0, end_dim: int = -1) -> Stage:
    if start_dim < 1:
        raise NotStackable("flatten joins the batch axis with others")
    return Flatten(start_dim, end_dim)


def _relu(inplace: bool = False) -> Stage:
    return make.relu()


_LAYERS: dict[type[nn.Module], Callable[[str, Any, Layout], Stage]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
    ScaledInputs: _scaled_layer,
    nn.ReLU: _relu_layer,
    nn.Tanh: _tanh_layer,
    nn.Sigmoid: _sigmoid_layer,
    nn.GELU: _gelu_layer,
    nn.Softplus: _softplus_layer,
    nn.Flatten: _flatten_layer,
    nn.Dropout: _dropout_layer,
    nn.Dropout1d: _channel_dropout_layer,
}
_FUNCTIONS: dict[Any, Callable[..., Stage | None]] = {
    F.relu: _relu,
    torch.relu: _relu,
    F.tanh: make.tanh,
    torch.tanh: make.tanh,
    F.sigmoid: make.sigmoid,
    torch.sigmoid: make.sigmoid,
    F.gelu: make.gelu,
    F.softplus: make.softplus,
    torch.flatten: _flatten,
}
_METHODS: dict[str, Callable[..., Stage | None]] = {
    "relu": make.relu,
    "tanh": make.tanh,
    "sigmoid": make.sigmoid,
    "flatten": _flatten,
}
