"""Plain values in every framework's messages: public facts, metrics, and the mark of a protected reply."""

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
    """Error: a client answered without its privacy layer, so nothing of its reply may be used."""


def require_shared(layout: Layout, shapes: Mapping[str, Iterable[int]]) -> None:
    """Refuse an array that the layout neither shares nor keeps on the client.

    Raises
    ------
    FieldError
        For such an array; the text names the first one.
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
    """Return the public facts and the number of hypotheses.

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
    """Return an array of a message as a tensor, in the machine's own byte order.

    Raises
    ------
    FieldError
        If it does not hold numbers of a type that PyTorch knows.
    """
    if isinstance(array, Tensor):
        return array
    numbers = np.asarray(array)
    try:
        return torch.from_numpy(numbers.astype(numbers.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError):
        raise FieldError(name[:64], str(numbers.dtype), "must be an array of numbers") from None


def read_metrics(metrics: Mapping[str, Any], counted: bool = True) -> Releases:
    """Return the known releases other than the model: the count (if `counted`), IFCA's index, scalar metrics."""
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
    """Return the values of a reply other than the model: metrics, and a count (1 if none may leave)."""
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
    """Return the mark that the privacy layer ran, with its method."""
    return {"side": type(client).__name__, "trust": client.trust, "counted": counted}


def require_mark(mark: Mapping[str, Any], client: ClientSide) -> bool:
    """Whether the count of a marked reply was released.

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
    """Return the seal of a marked reply, by its partition; empty without one."""
    sealed = mark.get(SEAL)
    return {partition: sealed} if isinstance(sealed, str) else {}


def whole(record: str, key: str, values: Mapping[str, Any]) -> int:
    """Read a whole number from a record."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"{record}: {key}", value, "must be a whole number")
    return value


def _scalar(value: int | float) -> Tensor:
    """Return a number as a tensor; a whole number too large for float64 becomes infinite, which no average accepts."""
    try:
        return torch.tensor(float(value), dtype=torch.float64)
    except OverflowError:
        return torch.tensor(math.inf if value > 0 else -math.inf, dtype=torch.float64)
