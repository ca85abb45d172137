"""Recording of a function's operators as a graph, at the level of kernels, below vmap and autograd."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import getitem
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary


def recorded(
    function: Callable[..., Any], *inputs: Tensor, layers: Sequence[str] = ()
) -> GraphModule:
    """Call a function of tensors once, and record its operators as a graph module with the same inputs.

    The module returns the outputs of the function as a flat list of tensors. A tensor that comes neither from the
    inputs nor from an operator is a constant. Each node's ``meta["val"]`` has its shape and type without values;
    ``meta["layer"]`` is the name of the running layer.

    Parameters
    ----------
    function : callable
        Function whose operators are the same for all values, and do not work in place (see
        ``torch.func.functionalize``).
    inputs : Tensor
        Tensors whose shapes and types the graph will accept.
    layers : sequence of str
        Names of running layers, the innermost last (see `running_layers`).
    """
    recorder = _Recorder(layers)
    for i, tensor in enumerate(inputs):
        recorder.keep(recorder.graph.placeholder(f"input_{i}"), tensor)
    with recorder:
        outputs = function(*inputs)
    flat: Sequence[Tensor] = tree_flatten(outputs)[0]
    recorder.graph.output([recorder.node_of(value) for value in flat])
    recorder.graph.eliminate_dead_code()
    return GraphModule(recorder.constants, recorder.graph)


def running_layers(model: nn.Module) -> list[str]:
    """Return a list that, during any call of a model, holds the names of its running layers, the innermost last."""
    running: list[str] = []

    def enter(layer: nn.Module, given: Any, name: str) -> None:
        running.append(name)

    def leave(layer: nn.Module, given: Any, output: Any) -> None:
        running.pop()

    for name, layer in model.named_modules():
        shown = f"{name} ({type(layer).__name__})" if name else ""
        layer.register_forward_pre_hook(partial(enter, name=shown))
        layer.register_forward_hook(leave)
    return running


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that adds every operator to a graph. It recognises tensors by identity, and does not keep them alive."""

    def __init__(self, layers: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.constants = nn.Module()
        self._layers = layers
        self._nodes = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator, and add it to the graph."""
        named = kwargs or {}
        given = tree_map_only(Tensor, self.node_of, (tuple(args), named))
        result = func(*args, **named)
        node = self.graph.call_function(func, *given)
        node.meta["layer"] = self._layers[-1] if self._layers else ""
        if isinstance(result, Tensor):
            self.keep(node, result)
        elif isinstance(result, tuple | list):
            for i, part in enumerate(result):
                if isinstance(part, Tensor):
                    self.keep(self.graph.call_function(getitem, (node, i)), part)
        return result

    def keep(self, node: Node, value: Tensor) -> None:
        """Store the node that produced a tensor."""
        node.meta["val"] = torch.empty(value.shape, dtype=value.dtype, device="meta")
        self._nodes[value] = node

    def node_of(self, value: Tensor) -> Node:
        """Return the node that produced a tensor; a constant gets its node at its first use."""
        node: Node | None = self._nodes.get(value)  # type: ignore[no-untyped-call]
        if node is None:
            name = f"constant_{len(list(self.constants.buffers()))}"
            self.constants.register_buffer(name, value.detach())
            node = self.graph.get_attr(name)
            self.keep(node, value)
        return node
