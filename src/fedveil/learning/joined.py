"""Rewriting of graphs: one matrix product in place of a sum of products, for weights that are used several times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

_ATEN = torch.ops.aten
_RESHAPES = frozenset({_ATEN.view.default, _ATEN._unsafe_view.default})
_SWAPPED_AXES = ((1, 2), (2, 1))


@dataclass(frozen=True)
class Term:
    """Term of a sum in a graph.

    Attributes
    ----------
    node : Node
        Operator that computes the term.
    transposed : bool
        Whether the sum adds the term's transpose.
    """

    node: Node
    transposed: bool

    def is_product(self) -> bool:
        """Whether the term is a batched matrix product."""
        return self.node.target is _ATEN.bmm.default


def join_products(graph: GraphModule) -> None:
    """Replace each output that is a sum of products [B, m, t] times [B, t, n] by one product over all t.

    A recurrent layer's gradient has one product for each time step, each as large as the weights. One joined product
    avoids these tensors.
    """
    [end] = [node for node in graph.graph.nodes if node.op == "output"]
    outputs = list(end.args[0])
    joined = False
    for i, output in enumerate(outputs):
        terms = list(_terms(output, False))
        products = [term for term in terms if term.is_product()]
        if len(products) < 2:
            continue
        others = [term for term in terms if term not in products]
        with graph.graph.inserting_before(end):
            outputs[i] = _joined(graph.graph, products, others)
        joined = True
    if not joined:
        return
    end.args = (outputs,)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _terms(node: Node, transposed: bool) -> Iterator[Term]:
    """Yield the terms of a sum [B, m, n]; a term that is itself a sum is split into its terms."""
    arguments = node.all_input_nodes
    same_shape = _has_one_shape([node, *arguments])
    if _swaps_last_axes(node):
        yield from _terms(arguments[0], not transposed)
    elif node.target in _RESHAPES and same_shape:
        yield from _terms(arguments[0], transposed)
    elif _adds_two_tensors(node) and same_shape:
        for argument in arguments:
            yield from _terms(argument, transposed)
    else:
        yield Term(node, transposed)


def _has_one_shape(nodes: Sequence[Node]) -> bool:
    """Whether all nodes are tensors of the same shape."""
    if any("val" not in node.meta for node in nodes):
        return False
    shapes = {tuple(node.meta["val"].shape) for node in nodes}
    return len(shapes) == 1


def _swaps_last_axes(node: Node) -> bool:
    """Whether an operator transposes the matrices [B, m, n]."""
    if node.target is not _ATEN.transpose.int or node.args[1:] not in _SWAPPED_AXES:
        return False
    return "val" in node.meta and node.meta["val"].dim() == 3


def _adds_two_tensors(node: Node) -> bool:
    """Whether an operator is a plain sum of two different tensors."""
    if node.target is not _ATEN.add.Tensor or node.kwargs:
        return False
    return len(node.all_input_nodes) == len(node.args) == 2


def _joined(graph: Graph, products: list[Term], others: list[Term]) -> Node:
    """Add nodes to a graph: the product of all joined factors, plus the terms that are not products."""

    def transpose(node: Node) -> Node:
        return graph.call_function(_ATEN.transpose.int, (node, 1, 2))

    left: list[Node] = []
    right: list[Node] = []
    for product in products:
        first, second = product.node.args[:2]
        assert isinstance(first, Node)
        assert isinstance(second, Node)
        if product.transposed:
            left.append(second)
            right.append(transpose(first))
        else:
            left.append(transpose(first))
            right.append(second)
    rows = graph.call_function(_ATEN.cat.default, (left, 1))
    columns = graph.call_function(_ATEN.cat.default, (right, 1))
    total = graph.call_function(_ATEN.bmm.default, (transpose(rows), columns))
    for other in others:
        added = transpose(other.node) if other.transposed else other.node
        total = graph.call_function(_ATEN.add.Tensor, (total, added))
    return total
