"""One product in place of a sum of products: gradients of weights that are used several times."""

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten
_SAME = frozenset({_ATEN.view.default, _ATEN._unsafe_view.default})

Term = tuple[Node, bool]  # a part of a sum, and whether it stands there turned round


def join_products(graph: GraphModule) -> None:
    """Replace outputs that are sums of products [B, m, t] times [B, t, n] by one product over all of t.

    A recurrent layer's gradient has a product a step, each as large as the weights; here they are never formed.
    """
    [end] = [node for node in graph.graph.nodes if node.op == "output"]
    outputs = list(end.args[0])
    for i, output in enumerate(outputs):
        terms = list(_terms(output, False))
        products = [term for term in terms if term[0].target is _ATEN.bmm.default]
        if len(products) > 1:
            with graph.graph.inserting_before(end):
                outputs[i] = _joined(graph, products, [term for term in terms if term not in products])
    end.args = (outputs,)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _terms(node: Node, turned: bool) -> Iterator[Term]:
    """The parts of a sum [B, m, n], down to what is no sum."""
    arguments = node.all_input_nodes
    shapes = [tuple(one.meta["val"].shape) for one in (node, *arguments) if "val" in one.meta]
    alike = len(shapes) == 1 + len(arguments) and all(shape == shapes[0] for shape in shapes)
    if node.target is _ATEN.transpose.int and len(shapes[0]) == 3 and node.args[1:] in ((1, 2), (2, 1)):
        yield from _terms(arguments[0], not turned)
    elif node.target in _SAME and alike:
        yield from _terms(arguments[0], turned)
    elif node.target is _ATEN.add.Tensor and alike and len(arguments) == len(node.args) == 2 and not node.kwargs:
        for one in arguments:
            yield from _terms(one, turned)
    else:
        yield node, turned


def _joined(graph: GraphModule, products: list[Term], others: list[Term]) -> Node:
    """The product of all factors side by side, plus what is no product."""

    def turn(node: Node) -> Node:
        return graph.graph.call_function(_ATEN.transpose.int, (node, 1, 2))

    left, right = [], []
    for node, turned in products:
        first, second = node.args[:2]
        assert isinstance(first, Node)
        assert isinstance(second, Node)
        left.append(second if turned else turn(first))
        right.append(turn(first) if turned else second)
    both = [graph.graph.call_function(_ATEN.cat.default, (parts, 1)) for parts in (left, right)]
    total = graph.graph.call_function(_ATEN.bmm.default, (turn(both[0]), both[1]))
    for node, turned in others:
        total = graph.graph.call_function(_ATEN.add.Tensor, (total, turn(node) if turned else node))
    return total
