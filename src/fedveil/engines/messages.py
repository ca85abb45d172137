"""Plain values in the messages of every framework: public facts, metrics, and the mark of a protected reply."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.accounting import Release, count_of
from fedveil.errors import FedVeilError, FieldError, require_choice, require_hypotheses
from fedveil.layout import Layout
from fedveil.methods import Broadcast, ClientSide, PublicFacts, Releases

COUNT, METRICS_KEY = "num-examples", "metrics"
INDEX = "fedveil.index"  # index of the hypothesis that IFCA reports, beside the metrics
PUBLIC, REPLY = "fedveil.public", "fedveil.reply"
SEAL = "seal"  # seal of a reply's receipt, in its mark
MOST_METRICS = 64


class UnprotectedError(FedVeilError):
    """Error for a reply without the privacy layer's mark; nothing of the reply may be used."""


def require_shared(layout: Layout, shapes: Mapping[str, Iterable[int]]) -> None:
    """Refuse arrays that are not declared by the layout as shared, frozen or kept on the client.

    Raises
    ------
    FieldError
        For the first such array; the text names it.
    """
    for name, shape in shapes.items():
        if name not in layout.shapes and name not in layout.kept and name not in layout.constants:
            raise FieldError(
                name,
                tuple(shape),
                "is not part of the layout, so it would leave without protection: send the arrays of "
                'layout.read(model), or lay the model out with Layout.from_module(model, buffers="keep") to keep '
                "running statistics and counters on each client",
            )


def public_values(broadcast: Broadcast) -> dict[str, Any]:
    """Return the public facts of a broadcast as plain values."""
    facts: dict[str, Any] = {"hypotheses": len(broadcast.models)}
    for field in fields(PublicFacts):
        value = getattr(broadcast.public, field.name)
        if isinstance(value, tuple):
            value = list(value)
        if value is not None:
            facts[field.name] = value
    return facts


def read_public(facts: Mapping[str, Any], layout: Layout) -> tuple[PublicFacts, int]:
    """Read the public facts of a broadcast and its number of hypotheses from plain values.

    Raises
    ------
    FieldError
        For an unknown or invalid fact, or for another layout.
    """
    known = [field.name for field in fields(PublicFacts)]
    count = whole(PUBLIC, "hypotheses", facts)
    values: dict[str, Any] = {}
    for name, value in facts.items():
        if name != "hypotheses":
            require_choice(PUBLIC, name, known)
            values[name] = tuple(value) if isinstance(value, list) else value
    for name in ("round", "rounds", "cohort", "dimension"):
        whole(PUBLIC, name, facts)
    public = PublicFacts(**values)
    if public.dimension != layout.size:
        raise FieldError(
            "dimension", public.dimension, f"the client's layout has {layout.size} parameters"
        )
    return public, require_hypotheses("hypotheses", count)


def tensor_of(name: str, array: Any) -> Tensor:
    """Convert an array of a message to a tensor, in the machine's own byte order.

    Raises
    ------
    FieldError
        If its numbers are of a type that PyTorch does not have.
    """
    if isinstance(array, Tensor):
        return array
    numbers = np.asarray(array)
    try:
        return torch.from_numpy(numbers.astype(numbers.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError):
        raise FieldError(name[:64], str(numbers.dtype), "must be an array of numbers") from None


def read_metrics(metrics: Mapping[str, Any], counted: bool = True) -> Releases:
    """Read the known releases of a reply besides the model: the count (if `counted`), IFCA's index, and scalar metrics."""
    released: list[Release] = []
    if counted and isinstance(metrics.get(COUNT), int | float):
        released.append(Release("count", _scalar(metrics[COUNT])))
    if isinstance(metrics.get(INDEX), int | float):
        released.append(Release("index", _scalar(metrics[INDEX])))
    named: list[Release] = []
    for name, value in metrics.items():
        if name not in (COUNT, INDEX) and isinstance(value, int | float):
            named.append(Release("metric", _scalar(value), name))
    shown = all(release.name.isprintable() and len(release.name) <= 64 for release in named)
    if len(named) > MOST_METRICS or not shown:
        accepted = f"at most {MOST_METRICS}, each named by at most 64 printable characters"
        raise FieldError(METRICS_KEY, len(named), accepted)
    return (*released, *named)


def metric_values(releases: Releases) -> dict[str, Any]:
    """Convert the releases of a reply besides the model to plain values: metrics, and a count (1 if none may leave)."""
    count = count_of(releases)
    if count is None:
        count = 1.0
    values: dict[str, Any] = {COUNT: int(count) if count.is_integer() else count}
    for release in releases:
        if release.kind == "index":
            values[INDEX] = float(release.value)
        elif release.kind == "metric":
            values[release.name] = float(release.value)
    return values


def mark_of(client: ClientSide, counted: bool) -> dict[str, Any]:
    """Make the mark of a protected reply: the method's client side and trust, and whether a count was released."""
    return {"side": type(client).__name__, "trust": client.trust, "counted": counted}


def require_mark(mark: Mapping[str, Any], client: ClientSide) -> bool:
    """Check that a reply's mark names the server's method; return whether the reply's count was released.

    Raises
    ------
    UnprotectedError
        If the client uses another method than the server.
    """
    expected = (type(client).__name__, client.trust)
    if (mark.get("side"), mark.get("trust")) != expected:
        given = f"{mark.get('side')!r} ({mark.get('trust')!r} trust)"
        wanted = f"{expected[0]!r} ({expected[1]!r} trust)"
        raise UnprotectedError(
            f"a client protects as {given}, the server expects {wanted}: give both the same method"
        )
    return mark.get("counted") is True


def seals_of(mark: Mapping[str, Any], partition: int) -> dict[int, str]:
    """Read the seal of a marked reply, as a dict with its partition; empty without a seal."""
    sealed = mark.get(SEAL)
    return {partition: sealed} if isinstance(sealed, str) else {}


def whole(record: str, key: str, values: Mapping[str, Any]) -> int:
    """Read an integer from a record; refuse any other value."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"{record}: {key}", value, "must be a whole number")
    return value


def _scalar(value: int | float) -> Tensor:
    """Convert a number to a float64 tensor; an integer too large for it becomes infinity, which no average accepts."""
    try:
        return torch.tensor(float(value), dtype=torch.float64)
    except OverflowError:
        return torch.tensor(math.inf if value > 0 else -math.inf, dtype=torch.float64)
