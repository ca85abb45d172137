"""A model as a processor trains it fastest: pooling before ReLU, one order of memory, steps in the backward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fedveil.learning.inputs import channels_last
from fedveil.learning.recognised import recognised
from fedveil.learning.rules import NotApart

LARGE = 1 << 18  # numbers of a weight that is read from memory at every step
FEW = 32  # rows up to which, with AVX-512, weight times inputs is the faster order of that product; without, never
PART = 1 << 18  # numbers of a weight that stay in the cache from one product to the next


def rearranged(model: nn.Module, dense: bool = True) -> nn.Module:
    """The same function with the same parameters and gradients, in an order that reads memory less often.

    * The maximum commutes with ReLU, and gradients do, too: pooling comes first, a quarter of the work.
    * The gradient of images that were flattened is put back into the memory order of the images.
    * ReLU after a convolution, a dense layer or pooling is done in place.
    * Large dense layers are `LargeDense`.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode. It is returned where more is in it than known layers, or buffers are.
    dense : bool
        Whether large dense layers may be replaced.
    """
    if next(model.buffers(), None) is not None:
        return model  # each client has its own
    try:
        module = recognised(model)
    except NotApart:
        return model
    for node in list(module.graph.nodes):
        _pool_first(module, node)
    for node in list(module.graph.nodes):
        layer = _layer(module, node)
        if type(layer) is nn.Flatten or node.target in _FLATTENING:
            with module.graph.inserting_before(node):
                node.replace_input_with(node.all_input_nodes[0], module.graph.call_function(in_order, node.args[:1]))
        elif dense and type(layer) is nn.Linear and _alone(module, node, layer):
            module.set_submodule(str(node.target), LargeDense(layer))
    for node in list(module.graph.nodes):
        _in_place(module, node)
    return fx.GraphModule(module, module.graph)


class LargeDense(nn.Module):
    """A dense layer with a large weight and few rows, for which memory is what takes time.

    Parameters
    ----------
    layer : torch.nn.Linear
        Whose parameters it has.

    Attributes
    ----------
    rate : float, optional
        With a rate, the backward pass takes the weight's step of SGD itself, in one pass over the weight, and leaves
        no gradient.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.rate: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        """X W^T + b on the last axis."""
        rows: Tensor = _Product.apply(x.reshape(-1, x.shape[-1]), self.weight, self)  # type: ignore[no-untyped-call]
        outputs = rows.view(*x.shape[:-1], -1)
        return outputs if self.bias is None else outputs + self.bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: LargeDense) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
        return (weight @ x.t()).t().contiguous() if wide and len(x) <= FEW else x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        if ctx.layer.rate is None:
            return grad @ weight if ctx.needs_input_grad[0] else None, grad.t() @ x, None
        back = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        width = max(1, PART // len(weight))
        for start in range(0, x.shape[1], width):
            columns = slice(start, start + width)
            some = weight[:, columns]
            if back is not None:
                torch.mm(grad, some, out=back[:, columns])
            some.addmm_(grad.t(), x[:, columns], alpha=-ctx.layer.rate)
        return back, None, None


def _pool_first(module: fx.GraphModule, pool: fx.Node) -> None:
    before = pool.args[0] if pool.args else None
    if not (isinstance(before, fx.Node) and len(before.users) == 1 and _is_pooling(module, pool)):
        return
    if not _is_relu(module, before):
        return
    pool.replace_input_with(before, before.all_input_nodes[0])
    with module.graph.inserting_after(pool):
        after = module.graph.create_node(before.op, before.target, (pool,), before.kwargs)
    pool.replace_all_uses_with(after, delete_user_cb=lambda user: user is not after)
    module.graph.erase_node(before)


def _in_place(module: fx.GraphModule, node: fx.Node) -> None:
    """ReLU of what nobody else reads, and no gradient follows, is written over it."""
    if not _is_relu(module, node) or len(node.all_input_nodes) != 1:
        return
    [before] = node.all_input_nodes
    made = isinstance(_layer(module, before), (nn.Conv1d, nn.Conv2d, nn.Linear, LargeDense))
    if len(before.users) == 1 and (made or _is_pooling(module, before)):
        with module.graph.inserting_before(node):
            node.replace_all_uses_with(module.graph.call_function(torch.relu_, (before,)))
        module.graph.erase_node(node)


def _is_relu(module: fx.GraphModule, node: fx.Node) -> bool:
    return type(_layer(module, node)) is nn.ReLU or node.target in (F.relu, torch.relu, "relu")


def _layer(module: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return module.get_submodule(str(node.target)) if node.op == "call_module" else None


def _is_pooling(module: fx.GraphModule, node: fx.Node) -> bool:
    layer = _layer(module, node)
    if type(layer) is nn.MaxPool2d:
        return not layer.return_indices
    return node.target is F.max_pool2d and not node.kwargs.get("return_indices")


def _alone(module: fx.GraphModule, node: fx.Node, layer: nn.Linear) -> bool:
    """Whether a dense layer's weight is large, trained, and used by this node alone."""
    every = [id(p) for _, p in module.named_parameters(remove_duplicate=False)]
    calls = [other for other in module.graph.nodes if other.target == node.target]
    large = layer.weight.requires_grad and layer.weight.numel() >= LARGE
    return large and len(calls) == 1 and every.count(id(layer.weight)) == 1


def in_order(images: Tensor) -> Tensor:
    """The images themselves; their gradient gets their order of memory."""
    if images.requires_grad and images.dim() == 4 and not images.is_contiguous():
        images.register_hook(channels_last)  # type: ignore[no-untyped-call]
    return images


_FLATTENING: tuple[Callable[..., Tensor] | str, ...] = (torch.flatten, "flatten", "view", "reshape", torch.reshape)
