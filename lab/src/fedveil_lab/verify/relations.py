"""Check whether two worlds that somebody else made are neighbours in the claimed relation.

Data are compared in their order. Only data of known form can be compared; what an item is, the caller says.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np

from fedveil.errors import FieldError

Same = Callable[[Any, Any], bool]


def require_neighbours(
    world: str, inside: object, outside: object, relation: str, unit: str
) -> None:
    """Refuse two worlds that are no neighbours, if both are lists of arrays [examples, columns], one per client.

    Parameters
    ----------
    world : str
        Name of the worlds, for the refusal.
    inside, outside : object
        Data of both worlds. Data of another form cannot be compared, and pass.
    relation, unit : str
        Relation and unit of the claim. Under zero-out any row may count as nothing, as its author says.

    Raises
    ------
    FieldError
        If more differs than the relation allows.
    """
    if not _of_clients(inside) or not _of_clients(outside):
        return
    if unit == "client":
        why = _why_no_client(inside, outside, relation)
    else:
        why = _why_no_part(inside, outside, relation, unit)
    if why:
        accepted = (
            f"are no such neighbours: {why} (data that are no list of clients: in a dictionary)"
        )
        raise FieldError(f"worlds: {world}", f"{relation} {unit}", accepted)


def why_no_rows(
    inside: Sequence[Any], outside: Sequence[Any], relation: str, unit: str, same: Same
) -> str:
    """Say why the rows of one client differ by more than one record or person; empty if they do not.

    Parameters
    ----------
    inside, outside : sequence
        Rows of the client in both worlds.
    relation, unit : str
        Relation and unit (record or person) of the claim.
    same : callable
        Whether two rows are equal.
    """
    if relation == "add/remove":
        longer, shorter = inside, outside
        if len(longer) < len(shorter):
            longer, shorter = shorter, longer
        if not _within(shorter, longer, same):
            return "the rows of one world are not all among those of the other, in the same order"
        if unit == "record" and len(longer) - len(shorter) > 1:
            return f"{len(longer) - len(shorter)} records are added"
        return ""
    changed = _places(inside, outside, same)
    if changed is None:
        return f"one world has {len(inside)} rows of the client, and the other {len(outside)}"
    if unit == "record" and len(changed) > 1:
        return f"{len(changed)} records differ"
    return ""


def same_arrays(one: Any, other: Any) -> bool:
    """Whether two arrays are equal; NaN is equal to NaN."""
    first, second = np.asarray(one), np.asarray(other)
    if first.dtype.kind not in "fc" or second.dtype.kind not in "fc":
        return bool(np.array_equal(first, second))
    return bool(np.array_equal(first, second, equal_nan=True))


def _why_no_part(inside: Sequence[Any], outside: Sequence[Any], relation: str, unit: str) -> str:
    """Say why the worlds differ by more than one record or person of a client; empty if they do not."""
    changed = _places(inside, outside, same_arrays)
    if changed is None or len(changed) > 1:
        return "more than one client's data differ"
    if not changed:
        return ""
    [at] = changed
    return why_no_rows(inside[at], outside[at], relation, unit, same_arrays)


def _why_no_client(inside: Sequence[Any], outside: Sequence[Any], relation: str) -> str:
    """Say why the worlds differ by more than one client; empty if they do not."""
    if relation == "add/remove":
        longer, shorter = inside, outside
        if len(longer) < len(shorter):
            longer, shorter = shorter, longer
        if len(longer) - len(shorter) > 1 or not _within(shorter, longer, same_arrays):
            return "more differs than one client that is there or not"
        return ""
    changed = _places(inside, outside, same_arrays)
    if changed is None:
        return f"one world has {len(inside)} clients, and the other {len(outside)}"
    if len(changed) > 1:
        return f"{len(changed)} clients differ"
    if relation == "zero-out" and changed:
        both = inside[changed[0]], outside[changed[0]]
        if all(np.any(one != 0) for one in both):
            return f"client {changed[0]} has data in both"
    return ""


def _of_clients(data: object) -> TypeGuard[Sequence[Any]]:
    """Whether data are a list of arrays [examples, columns], one per client."""
    return isinstance(data, list | tuple) and all(
        isinstance(one, np.ndarray) and one.ndim == 2 for one in data
    )


def _places(first: Sequence[Any], second: Sequence[Any], same: Same) -> list[int] | None:
    """Places at which two sequences differ; None if they are not equally long."""
    if len(first) != len(second):
        return None
    return [at for at, (a, b) in enumerate(zip(first, second, strict=True)) if not same(a, b)]


def _within(shorter: Sequence[Any], longer: Sequence[Any], same: Same) -> bool:
    """Whether the shorter sequence is the longer one with items left out."""
    rest = iter(longer)
    return all(any(same(one, other) for other in rest) for one in shorter)
