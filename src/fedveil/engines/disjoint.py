"""No record, and no person, in two roles: the promise to those who train covers no loss of those who validate."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from fedveil.errors import FieldError
from fedveil.learning import ClientData

Clients = Sequence[ClientData]
BLOCK = 4096  # rows that are looked at together


def require_disjoint(training: Clients, validating: Clients, twins: bool, people: bool = False) -> None:
    """Refuse a validation client that holds a row, or a person, of a training client; held-out rows are included.

    Parameters
    ----------
    training, validating : sequence of ClientData
        Both sides.
    twins : bool
        Whether equal rows are different records: then rows are compared by where they lie in memory alone.
    people : bool
        Whether persons are protected: then the numbers that clients give for theirs are compared, too.

    Raises
    ------
    FieldError
        Naming the first validation client that shares one.
    """
    looks = (_places,) if twins else (_places, _contents)
    for look in (*looks, _people) if people else looks:
        held = {mark: i for i, client in enumerate(training) for mark in look(client)}
        for i, client in enumerate(validating):
            shared = next((mark for mark in look(client) if mark in held), None)
            if shared is not None:
                what = "persons" if look is _people else "rows"
                accepted = f"shares {what} with clients[{held[shared]}], whose promise covers no validation loss: "
                accepted += "give each to one of them"
                if look is _contents:
                    accepted += "; where equal rows are different records, say so: EarlyStopping(twins=True)"
                raise FieldError(f"stopping.clients[{i}]", client.name or "data", accepted)


def _tables(client: ClientData) -> Iterator[Tensor]:
    yield from (x for x in (client.x, client.test_x) if x is not None and x.numel())


def _places(client: ClientData) -> Iterator[int | bytes]:
    for rows in _tables(client):
        step = rows.stride(0) * rows.element_size()
        yield from (rows.data_ptr() + i * step for i in range(len(rows)))


def _people(client: ClientData) -> Iterator[int | bytes]:
    yield from [] if client.person is None else set(client.person.tolist())


def _contents(client: ClientData) -> Iterator[int | bytes]:
    for rows in _tables(client):
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK].detach().cpu().reshape(-1, rows[0].numel()).to(torch.float64)
            for row in (block + 0.0).numpy():  # of two zeros one
                yield blake2b(row.tobytes(), digest_size=16).digest()
