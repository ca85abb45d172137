"""Known layers behind a forward method of somebody's own: read symbolically, run without it.

A symbolic trace has no values, so that no branch follows one, and what it finds is run instead of the method: only
calls of known layers, and operations that are listed here because a row of their result follows from that row alone.
"""

import operator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fedveil.learning.rules import NotApart, is_known, refuse_hooks


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_known(m) and type(m) is not nn.Sequential


def recognised(model: nn.Module) -> fx.GraphModule:
    """The layers of a model and what is done between them, as a module.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode.

    Raises
    ------
    NotApart
        If there is anything else in it, or something listens.
    """
    refuse_hooks(model)
    own = fresh(model)
    try:
        graph = _Tracer().trace(own)
    except Exception as error:
        raise NotApart(f"it cannot be read: {error}") from error
    for node in graph.nodes:
        if node.op in ("call_function", "call_method") and not _apart(node):
            raise NotApart(f"{node.target} is not known to keep examples apart")
        if node.op == "get_attr" or (node.op == "placeholder" and node.args):
            raise NotApart("it uses more than its layers and one batch")
    return fx.GraphModule(own, graph)


def check(module: fx.GraphModule, x: Tensor) -> None:
    """Refuse a shape under which a result has no row an example, or one operand is spread out over another.

    Raises
    ------
    NotApart
        Naming the operation.
    """
    ran = fx.Interpreter(module, garbage_collect_values=False)
    ran.run(x)
    for node in module.graph.nodes:
        value = ran.env.get(node)
        if isinstance(value, Tensor) and (not value.dim() or len(value) != len(x)):
            raise NotApart(f"{node} has no row an example")
        parts = {ran.env[one].shape for one in node.all_input_nodes if isinstance(ran.env[one], Tensor)}
        if node.target in _BINARY and len(parts) > 1:
            raise NotApart(f"{node} joins different shapes")


def fresh(model: nn.Module, *, shared: bool = True) -> nn.Module:
    """A copy with the same generators and parameters (or copies), and nothing that a call leaves in the module."""
    kept: list[object] = [*(model.parameters() if shared else ()), *generators_of(model)]
    return deepcopy(model, {id(one): one for one in kept})


def generators_of(model: nn.Module) -> list[torch.Generator]:
    """What the modules of a model draw from, beside the global random state."""
    generators = [v for m in model.modules() for v in vars(m).values() if isinstance(v, torch.Generator)]
    return list({id(g): g for g in generators}.values())


def _apart(node: fx.Node) -> bool:
    """Whether an operation keeps the rows of its tensors apart, given that each of its results has one an example."""
    target, more = node.target, node.args[1:]
    if node.kwargs.get("inplace") or any(isinstance(value, bool) for value in more):
        return False
    if target in _ELEMENTWISE:
        return not any(isinstance(value, fx.Node) for value in more)
    if target is getattr:
        return more == ("shape",)
    if target is operator.getitem:
        sizes = isinstance(node.args[0], fx.Node) and node.args[0].target in (getattr, "size")
        return sizes or (isinstance(more[0], tuple) and more[0][0] == slice(None))
    if target in _AXES:
        given: Any = more[0] if more else node.kwargs.get("dim", node.kwargs.get("start_dim"))
        several = given if isinstance(given, tuple | list) else (given,)
        return bool(several) and all(isinstance(axis, int) and axis >= 1 for axis in several)
    return target in _BINARY or target in _SHAPE or target in _POOLS


_ELEMENTWISE = frozenset(
    {torch.relu, torch.tanh, torch.sigmoid, F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.mish}
    | {F.softplus, F.softsign, F.tanh, F.sigmoid, F.logsigmoid, F.hardtanh, F.hardswish, F.tanhshrink}
    | {operator.neg, operator.pow, "relu", "tanh", "sigmoid", "contiguous"}
)
_BINARY = frozenset({operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.mul})
_POOLS = frozenset({F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d})
# rows stay in their order where the first axis keeps its length
_SHAPE = frozenset({"view", "reshape", torch.reshape, "size"})
# of axes, which must not be the first
_AXES = frozenset({torch.flatten, "flatten", F.softmax, F.log_softmax, "mean", "sum"})
