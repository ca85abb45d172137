"""Whose contribution is clipped: single examples, or persons with all their images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.errors import FieldError
from fedveil.learning.clients import ClientData


@dataclass(frozen=True, eq=False)
class Units:
    """The rows of a client's units: as many for each, so that nobody's images move another's.

    Attributes
    ----------
    rows : Tensor
        [n, each] int64: a unit's examples, in their order; 0 where there is none.
    present : Tensor
        [n, each] bool: where there is one.
    """

    rows: Tensor
    present: Tensor

    def __len__(self) -> int:
        """How many there are."""
        return len(self.rows)

    @property
    def each(self) -> int:
        """Rows of a unit."""
        return self.rows.shape[1]

    @classmethod
    def of(cls, client: ClientData, images: int) -> "Units":
        """Single examples where `images` is 0; else persons, with the first so many images of each.

        What is left out of a person follows her own images alone.

        Raises
        ------
        FieldError
            If persons are asked for and the client does not say whose its examples are.
        """
        if not images:
            rows = torch.arange(client.examples)[:, None]
            return cls(rows, torch.ones_like(rows, dtype=torch.bool))
        if client.person is None:
            accepted = (
                "is needed to protect persons: say whose each example is, by data.person = 'patient' in TOML, or "
            )
            accepted += "ClientData(x, y, person=numbers)"
            raise FieldError("person", None, accepted)
        owner = torch.unique(client.person, return_inverse=True)[1] if client.examples else client.person
        order = owner.argsort(stable=True)
        count = torch.bincount(owner)
        first = count.cumsum(0) - count
        place = torch.arange(len(order)) - first[owner[order]]
        kept = place < images
        rows = torch.zeros(len(count), images, dtype=torch.int64)
        present = torch.zeros(len(count), images, dtype=torch.bool)
        where = owner[order][kept], place[kept]
        rows[where], present[where] = order[kept], True
        return cls(rows, present)

    def at(self, chosen: Tensor, places: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
        """Rows and presence, [count * each], of chosen units at their places; dummies elsewhere.

        Parameters
        ----------
        chosen : Tensor
            Units [m].
        places : Tensor or None
            [m], different numbers below `count`; None: one after another.
        count : int
            Places in all.
        """
        where = torch.arange(len(chosen)) if places is None else places
        rows = torch.zeros(count, self.each, dtype=torch.int64)
        present = torch.zeros(count, self.each, dtype=torch.bool)
        rows[where], present[where] = self.rows[chosen], self.present[chosen]
        return rows.view(-1), present.view(-1)
