"""A straight chain of common layers: recognised in a module, and run with many clients' parameters in one pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.losses import IGNORED, RMSE_FLOOR, of_classes
from fedveil.learning.recognised import fresh
from fedveil.learning.stacked import stages as make
from fedveil.learning.stacked.stages import Dense, Dropout, Embedding, Flatten, Norm, Stage, Weights

Parameters = dict[str, Tensor]


class Stack:
    """A straight chain of layers for n clients, each with its own parameters.

    Parameters
    ----------
    stages : sequence of Stage
        In order.
    layout : Layout
        Of the parameters.
    """

    def __init__(self, stages: Sequence[Stage], layout: Layout) -> None:
        self.stages, self.layout = list(stages), layout
        self.dropouts = [s for s in self.stages if isinstance(s, Dropout) and s.p > 0]
        self._first = next((i for i, s in enumerate(self.stages) if s.names), len(self.stages))

    def weights(self, values: Parameters, targets: Parameters, n: int, alpha: float, beta: float) -> list[Weights]:
        """The parameters of the first n clients, stage by stage.

        Parameters
        ----------
        values, targets : dict of str to Tensor
            The parameters, and where gradients go: ``beta * value + alpha * gradient``.
        """
        result = []
        for i, stage in enumerate(self.stages):
            own, into = ([given[name][:n] for name in stage.names] for given in (values, targets))
            result.append(Weights(own, into, alpha, beta, first=i <= self._first))
        return result

    def descend(self, x: Tensor, y: Tensor, scale: Tensor, weights: Sequence[Weights], loss: str) -> Tensor:
        """One pass forwards and one backwards.

        Parameters
        ----------
        x, y : Tensor
            [n, b, ...], a batch of each client.
        scale : Tensor
            [n, b], the weight of each example's loss; 0 takes an example out.
        weights : sequence of Weights
            From `weights`; what they say happens with the gradients happens.
        loss : {"cross_entropy", "mse", "rmse"}
            Per example, averaged over the trailing axes; rmse per batch.

        Returns
        -------
        Tensor
            [n, b], the loss of each example; with rmse, of its batch.
        """
        kept = []
        for stage, own in zip(self.stages, weights, strict=True):
            x, saved = stage.forward(x, own)
            kept.append(saved)
        losses, grad = BATCHED[loss](x, y, scale)
        for stage, saved, own in zip(reversed(self.stages), reversed(kept), reversed(weights), strict=True):
            back = stage.backward(grad, saved, own)
            if back is None:
                break
            grad = back
        return losses


def _cross_entropy(logits: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(logits, 2)
    if y.numel() and int(y.min()) < 0:
        return _of_some(logs, y, scale)
    index = y.unsqueeze(2)
    losses = logs.gather(2, index).squeeze(2).neg_()
    grad = logs.exp_().scatter_add_(2, index, torch.full_like(index, -1, dtype=logs.dtype))
    if losses.dim() > 2:  # one label a pixel
        scale = scale / losses[0, 0].numel()
        losses = losses.flatten(2).mean(2)
    return losses, _scaled(grad, scale)


def _of_some(logs: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy where labels are void (-100): of each client's batch the mean over its others, as torch has it."""
    if bool(((y < 0) & (y != IGNORED)).any()):
        raise FieldError("y", int(y.min()), f"classes are numbered from 0 on; a void label is {IGNORED}")
    here = (y != IGNORED).to(logs.dtype)
    weight = scale.view(*scale.shape, *(1,) * (y.dim() - 2)).expand_as(here)
    every, others = (part.flatten(1).sum(1) for part in (weight, weight * here))
    more = torch.where(others > 0, every / others.clamp_min(torch.finfo(logs.dtype).tiny), 0.0)
    counted = here * more.view(-1, *(1,) * (y.dim() - 1))
    index = y.clamp_min(0).unsqueeze(2)
    losses = logs.gather(2, index).squeeze(2).neg_().mul_(counted)
    grad = logs.exp().scatter_add_(2, index, torch.full_like(index, -1, dtype=logs.dtype))
    if losses.dim() > 2:  # one label a pixel
        scale = scale / losses[0, 0].numel()
        losses = losses.flatten(2).mean(2)
    return losses, _scaled(grad.mul_(counted.unsqueeze(2)), scale)


def _mse(output: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    if of_classes(output.shape, y, 2):
        y = F.one_hot(y, output.shape[2])
    rest = output.reshape(y.shape) - y.to(output.dtype)
    losses = rest.square().reshape(*scale.shape, -1).mean(2)
    return losses, _scaled((2 / max(rest[0, 0].numel(), 1)) * rest, scale).reshape(output.shape)


def _rmse(output: Tensor, y: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    losses, grad = _mse(output, y, scale)
    root = ((losses * scale).sum(1, keepdim=True) + RMSE_FLOOR).sqrt()
    return root.expand_as(losses), _scaled(grad, (0.5 / root).expand_as(scale))


BATCHED = {"cross_entropy": _cross_entropy, "mse": _mse, "rmse": _rmse}


def _scaled(grad: Tensor, scale: Tensor) -> Tensor:
    return grad.mul_(scale.view(*scale.shape, *(1,) * (grad.dim() - 2)))


class NotStackable(FieldError):
    """A module is no chain of known layers; the text says what stands in the way."""

    def __init__(self, reason: str) -> None:
        super().__init__("trainer", "batched", f"cannot train this model: {reason}; take 'auto' or 'sequential'")
        self.reason = reason


def compile_stack(module: nn.Module, layout: Layout) -> Stack:
    """Turn a module into a stack that runs many clients at once.

    Parameters
    ----------
    module : torch.nn.Module
        A ``Sequential`` (nested ones too), or any module whose forward pass is a straight line through layers of
        `torch.nn` and functions of `torch.nn.functional`. It is traced in training mode and never changed.
    layout : Layout
        Of the module.

    Returns
    -------
    Stack
        The same function.

    Raises
    ------
    NotStackable
        With the first thing that cannot be stacked: an unknown layer, a branch, a frozen or tied parameter, a hook,
        several types of parameters.
    """
    modules = dict(module.named_modules(remove_duplicate=False))
    hooked = [name or type(m).__name__ for name, m in modules.items() if m._forward_hooks or m._forward_pre_hooks]
    if hooked:
        raise NotStackable(f"{hooked[0]} has a forward hook")
    if len({block.dtype for block in layout.blocks}) > 1:
        raise NotStackable("the parameters are of several types")
    stages: list[Stage] = []
    for node in _chain(module):
        stage = _stage(node, modules, layout)
        if stage is not None:
            stages.append(stage)
    used = [name for s in stages for name in s.names]
    if sorted(used) != sorted(layout.names):
        odd = sorted(set(layout.names) ^ set(used)) or sorted(n for n in used if used.count(n) > 1)
        raise NotStackable(f"{odd[0]} is not used exactly once")
    return Stack(stages, layout)


def _chain(module: nn.Module) -> list[fx.Node]:
    try:
        graph = fx.Tracer().trace(fresh(module).train())
    except Exception as error:  # whatever a model's own forward raises under tracing
        raise NotStackable(f"{type(module).__name__} cannot be traced: {error}") from error
    nodes = list(graph.nodes)
    before, chain = nodes[0], nodes[1:-1]
    if sum(n.op == "placeholder" for n in nodes) != 1:
        raise NotStackable(f"{type(module).__name__} takes several inputs")
    for node in [*chain, nodes[-1]]:
        if list(node.all_input_nodes) != [before]:
            raise NotStackable(f"{node.name} is no step of a straight chain")
        before = node
    return chain


def _stage(node: fx.Node, modules: dict[str, nn.Module], layout: Layout) -> Stage | None:
    """The stage of a node, or None for one that does nothing."""
    if node.op == "call_module":
        name = str(node.target)
        kind = type(modules[name])
        if kind is nn.Identity:
            return None
        if kind not in _LAYERS:
            raise NotStackable(f"{name}: {kind.__name__} is not known")
        return _LAYERS[kind](name, modules[name], layout)
    if not node.args or not isinstance(node.args[0], fx.Node):
        raise NotStackable(f"{node.name} does not take its input first")
    function = _METHODS.get(str(node.target)) if node.op == "call_method" else _FUNCTIONS.get(node.target)
    if function is None:
        raise NotStackable(f"{node.name} is not known")
    try:
        return function(*node.args[1:], **node.kwargs)
    except TypeError as error:
        raise NotStackable(f"{node.name}: {error}") from error


def _parameters(name: str, module: nn.Module, layout: Layout) -> tuple[str, ...]:
    """The names of its weight and bias, as far as it has them."""
    own = {part: f"{name}.{part}" for part, _ in module.named_parameters()}
    for full in own.values():
        if full not in layout.shapes:
            raise NotStackable(f"{full} is frozen or tied")
    return tuple(own[part] for part in ("weight", "bias") if part in own)


def _linear(name: str, m: Any, layout: Layout) -> Stage:
    return Dense(_parameters(name, m, layout))


def _layer_norm(name: str, m: Any, layout: Layout) -> Stage:
    return Norm(_parameters(name, m, layout), m.eps, tuple(m.normalized_shape))


def _embedding(name: str, m: Any, layout: Layout) -> Stage:
    if m.max_norm is not None or m.scale_grad_by_freq or m.sparse:
        raise NotStackable(f"{name} renormalises, rescales or is sparse")
    return Embedding(_parameters(name, m, layout)[0], m.padding_idx)


def _flatten(start_dim: int = 0, end_dim: int = -1) -> Stage:
    if start_dim < 1:
        raise NotStackable("flatten joins the batch axis with others")
    return Flatten(start_dim, end_dim)


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> Stage | None:
    return Dropout(p) if training else None


def _relu(inplace: bool = False) -> Stage:
    return make.relu()


_LAYERS: dict[type[nn.Module], Callable[[str, Any, Layout], Stage]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
    nn.ReLU: lambda *_: make.relu(),
    nn.Tanh: lambda *_: make.tanh(),
    nn.Sigmoid: lambda *_: make.sigmoid(),
    nn.GELU: lambda _, m, __: make.gelu(m.approximate),
    nn.Softplus: lambda _, m, __: make.softplus(m.beta, m.threshold),
    nn.Flatten: lambda _, m, __: _flatten(m.start_dim, m.end_dim),
    nn.Dropout: lambda _, m, __: Dropout(m.p),
    nn.Dropout1d: lambda _, m, __: Dropout(m.p, 1),
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
