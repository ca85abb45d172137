"""Which examples every client of a block sees in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedveil.learning.streams import Key, epoch_orders


@dataclass(frozen=True, eq=False)
class Schedule:
    """The steps of n clients with different numbers of examples, from the one with the most steps on.

    Attributes
    ----------
    rows : Tensor
        [T, n, b] int64, rows of the clients' joined examples; a place nobody fills repeats some row of the client.
    scale : Tensor
        [T, n, b], the weight of each place's loss: one over the size of the client's batch, or 0.
    last : Tensor
        [T, n, b], the weight of each place in the mean loss of the last epoch.
    active : list of int
        Clients still training in each step: always the first ones.
    per_epoch : list of int
        Steps of an epoch, client by client.
    """

    rows: Tensor
    scale: Tensor
    last: Tensor
    active: list[int]
    per_epoch: list[int]

    def sizes(self) -> list[list[int]]:
        """Examples in each client's batch, [T][n]."""
        return (self.scale > 0).sum(2).tolist()

    def to(self, device: torch.device) -> Schedule:
        """The same with its tensors elsewhere."""
        moved = (self.rows.to(device), self.scale.to(device), self.last.to(device))
        return Schedule(*moved, self.active, self.per_epoch)


def schedule(
    examples: Sequence[int], keys: Sequence[Key], epochs: int, batch_size: int, dtype: torch.dtype
) -> Schedule:
    """Draw every client's order of examples and cut it into batches.

    Parameters
    ----------
    examples : sequence of int
        At least 1 each; ordered so that the number of batches never grows.
    keys : sequence of tuple of int
        Of the clients.
    epochs, batch_size : int
        As in `LocalTraining`.
    dtype : torch.dtype
        Of the weights.
    """
    counts = np.asarray(examples, np.int64)
    per_epoch = -(-counts // batch_size)
    width, steps = min(batch_size, int(counts.max())), epochs * int(per_epoch.max())
    offsets = np.cumsum(counts) - counts
    client = np.repeat(np.arange(len(counts)), epochs * counts)
    own = counts[client]
    epoch, place = np.divmod(np.arange(len(client)) - epochs * offsets[client], own)
    step, column = np.divmod(place, batch_size)
    where = ((epoch * per_epoch[client] + step) * len(counts) + client) * width + column
    shape = (steps, len(counts), width)
    rows = np.empty(shape, np.int64)
    rows[:] = offsets[:, None]
    rows.reshape(-1)[where] = offsets[client] + epoch_orders(keys, counts, epochs)
    scale, last = np.zeros(shape), np.zeros(shape)
    scale.reshape(-1)[where] = 1 / np.minimum(batch_size, own - step * batch_size)
    last.reshape(-1)[where] = (epoch == epochs - 1) / own
    active = (epochs * per_epoch[:, None] > np.arange(steps)).sum(0)
    weights = (torch.from_numpy(scale).to(dtype), torch.from_numpy(last).to(dtype))
    return Schedule(torch.from_numpy(rows), *weights, active.tolist(), per_epoch.tolist())
