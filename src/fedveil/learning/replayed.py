"""What makes a trace right for every later batch: branches for all values, and sums in one fixed order."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock, get_ident

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten
_PUTS = frozenset({_ATEN.index_put.default, _ATEN._unsafe_index_put.default})
_TRACING = RLock()


@contextmanager
def branches_of_a_trace() -> Iterator[None]:
    """Let `torch.compiler.is_compiling` be true for this thread, as it is in `torch.export`.

    Hugging Face's masks look at values, to save work where nothing is padded. If code is traced, they do not look, and
    compute what is right for all values.
    """
    own = get_ident()
    with _TRACING:
        before = torch.compiler.is_compiling

        def is_compiling() -> bool:
            return get_ident() == own or before()

        torch.compiler.is_compiling = is_compiling
        try:
            yield
        finally:
            torch.compiler.is_compiling = before


def add_in_order(graph: GraphModule) -> None:
    """Let one thread add values at the places of a table (the gradient of rows that are picked by an index).

    Several threads add the values of one place in the order in which they arrive. An example's bits would then depend
    on time.
    """
    sums = [node for node in graph.graph.nodes if node.target in _PUTS and _adds(node)]
    for node in sums:
        node.target = added_by_one_thread
    if sums:
        graph.recompile()


def _adds(node: Node) -> bool:
    """Whether an operator adds values to a table, and does not overwrite its rows."""
    return bool(node.kwargs.get("accumulate", len(node.args) > 3 and node.args[3]))


def added_by_one_thread(
    table: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = True,
) -> Tensor:
    """Return a table with values added at the places of the indices, in the order of the values."""
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        added: Tensor = _ATEN.index_put.default(table, list(indices), values, accumulate)
    finally:
        if threads > 1:
            torch.set_num_threads(threads)
    return added
