"""Known layers behind a user's forward method: a symbolic trace of the method is run in its place.

A symbolic trace has no values, so no branch depends on one. Its graph may hold calls of known layers and the operations
listed here. Each row of their results depends on the same row of their inputs only.
"""

import operator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fedveil.learning.rules import NotIsolated, is_known, refuse_hooks


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_known(m) and type(m) is not nn.Sequential


def recognised(model: nn.Module) -> fx.GraphModule:
    """Trace a model to a graph of known layers and listed operations, which runs in place of the model.

    Parameters
    ----------
    model : torch.nn.Module
        Model in training mode.

    Raises
    ------
    NotIsolated
        If the model uses another layer or operation, or a module has hooks.
    """
    refuse_hooks(model)
    own = fresh(model)
    try:
        graph = _Tracer().trace(own)
    except Exception as error:
        raise NotIsolated(f"it cannot be read: {error}") from error
    for node in graph.nodes:
        is_operation = node.op in ("call_function", "call_method")
        if is_operation and not _keeps_rows_apart(node):
            raise NotIsolated(f"{node.target} is not known to keep examples apart")
        has_default = node.op == "placeholder" and node.args
        if node.op == "get_attr" or has_default:
            raise NotIsolated("it uses more than its layers and one batch")
    return fx.GraphModule(own, graph)


def check(module: fx.GraphModule, x: Tensor) -> None:
    """Refuse an operation with another number of rows than examples, or with operands of different shapes, on examples x.

    Raises
    ------
    NotIsolated
        For the first such operation; the text names it.
    """
    interpreter = fx.Interpreter(module, garbage_collect_values=False)
    interpreter.run(x)
    for node in module.graph.nodes:
        value = interpreter.env.get(node)
        if isinstance(value, Tensor) and (not value.dim() or len(value) != len(x)):
            raise NotIsolated(f"{node} has no row an example")
        if node.target not in _BINARY:
            continue
        shapes: set[torch.Size] = set()
        for argument in node.all_input_nodes:
            operand = interpreter.env[argument]
            if isinstance(operand, Tensor):
                shapes.add(operand.shape)
        if len(shapes) > 1:
            raise NotIsolated(f"{node} joins different shapes")


def fresh(model: nn.Module, *, shared: bool = True) -> nn.Module:
    """Copy a model without the state that calls left in it; generators are kept, and parameters too if `shared`."""
    kept: list[object] = list(generators_of(model))
    if shared:
        kept += model.parameters()
    memo = {id(one): one for one in kept}
    return deepcopy(model, memo)


def generators_of(model: nn.Module) -> list[torch.Generator]:
    """Return the random generators that a model's modules own, besides PyTorch's global one."""
    generators: dict[int, torch.Generator] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Generator):
                generators[id(value)] = value
    return list(generators.values())


def _keeps_rows_apart(node: fx.Node) -> bool:
    """Whether an operation keeps rows apart, given that its results have one row for each example."""
    target = node.target
    more = node.args[1:]
    if node.kwargs.get("inplace"):
        return False
    if any(isinstance(value, bool) for value in more):
        return False
    if target in _ELEMENTWISE:
        return not any(isinstance(value, fx.Node) for value in more)
    if target is getattr:
        return more == ("shape",)
    if target is operator.getitem:
        return _takes_a_size(node) or _takes_all_rows(more[0])
    if target in _AXES:
        return _axes_leave_rows(more[0] if more else _axis_by_name(node))
    return target in _BINARY or target in _SHAPE or target in _POOLS


def _takes_a_size(node: fx.Node) -> bool:
    """Whether an indexing operation reads a tensor's shape."""
    taken_from = node.args[0]
    return isinstance(taken_from, fx.Node) and taken_from.target in (getattr, "size")


def _takes_all_rows(index: object) -> bool:
    """Whether an index keeps the whole first axis."""
    return isinstance(index, tuple) and index[0] == slice(None)


def _axis_by_name(node: fx.Node) -> Any:
    return node.kwargs.get("dim", node.kwargs.get("start_dim"))


def _axes_leave_rows(given: Any) -> bool:
    """Whether axes are given as numbers, and none is the first axis."""
    axes = given if isinstance(given, tuple | list) else (given,)
    return bool(axes) and all(isinstance(axis, int) and axis >= 1 for axis in axes)


_ELEMENTWISE = frozenset(
    {
        torch.relu,
        torch.tanh,
        torch.sigmoid,
        F.relu,
        F.relu6,
        F.leaky_relu,
        F.elu,
        F.selu,
        F.gelu,
        F.silu,
        F.mish,
    }
    | {
        F.softplus,
        F.softsign,
        F.tanh,
        F.sigmoid,
        F.logsigmoid,
        F.hardtanh,
        F.hardswish,
        F.tanhshrink,
    }
    | {operator.neg, operator.pow, "relu", "tanh", "sigmoid", "contiguous"}
)
_BINARY = frozenset(
    {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.mul}
)
_POOLS = frozenset({F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d})
# rows keep their order if the first axis keeps its length
_SHAPE = frozenset({"view", "reshape", torch.reshape, "size"})
# operations over axes, none of which may be the first
_AXES = frozenset({torch.flatten, "flatten", F.softmax, F.log_softmax, "mean", "sum"})
