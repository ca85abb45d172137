"""No record in two roles: a promise for those who train does not cover the losses of those who validate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from fedveil.errors import FieldError
from fedveil.learning import ClientData

BLOCK = 4096  # rows that are looked at together


def require_disjoint(training: Sequence[ClientData], validating: Sequence[ClientData], twins: bool) -> None:
    """Refuse a validation client that holds a row of a training client, held-out ones included.

    Parameters
    ----------
    training, validating : sequence of ClientData
        Both sides.
    twins : bool
        Whether equal rows are different records: then rows are compared by where they lie in memory alone.

    Raises
    ------
    FieldError
        Naming the first validation client that shares a row.
    """
    looks = (_places,) if twins else (_places, _contents)
    for look in looks:
        held = {mark: i for i, client in enumerate(training) for rows in _tables(client) for mark in look(rows)}
        for i, client in enumerate(validating):
            shared = next((mark for rows in _tables(client) for mark in look(rows) if mark in held), None)
            if shared is not None:
                accepted = (
                    f"shares rows with clients[{held[shared]}], whose promise does not cover the losses of a client "
                    "that validates: give each record to one of them"
                )
                if look is _contents:
                    accepted += "; where equal rows are different records, say so: EarlyStopping(twins=True)"
                raise FieldError(f"stopping.clients[{i}]", client.name or "data", accepted)


def _tables(client: ClientData) -> Iterator[Tensor]:
    yield from (x for x in (client.x, client.test_x) if x is not None and x.numel())


def _places(rows: Tensor) -> Iterator[int | bytes]:
    step = rows.stride(0) * rows.element_size()
    return (rows.data_ptr() + i * step for i in range(len(rows)))


def _contents(rows: Tensor) -> Iterator[int | bytes]:
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK].detach().cpu().reshape(-1, rows[0].numel()).to(torch.float64)
        for row in (block + 0.0).numpy():  # of two zeros one
            yield blake2b(row.tobytes(), digest_size=16).digest()
