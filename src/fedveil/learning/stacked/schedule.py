"""Which examples every client of a block sees in each step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedveil.learning.streams import Key, order_table


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
    """

    rows: Tensor
    scale: Tensor
    last: Tensor
    active: list[int]

    def sizes(self) -> list[list[int]]:
        """Examples in each client's batch, [T][n]."""
        return (self.scale > 0).sum(2).tolist()

    def to(self, device: torch.device) -> "Schedule":
        """The same with its tensors elsewhere."""
        moved = (self.rows.to(device), self.scale.to(device), self.last.to(device))
        return Schedule(*moved, self.active)


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
    epoch, step = np.divmod(np.arange(steps)[:, None], per_epoch)  # [T, n], of each client's own epochs
    left = np.where(epoch < epochs, counts - step * batch_size, 0)  # examples of its epoch before the step
    place = np.arange(width)
    filled = place < left[:, :, None]
    of_epoch = np.minimum(step[:, :, None] * batch_size + place, counts.max() - 1)
    order = order_table(keys, counts, epochs)
    drawn = order[np.arange(len(counts))[:, None], np.minimum(epoch, epochs - 1)[:, :, None], of_epoch]
    rows = np.where(filled, drawn, 0) + (np.cumsum(counts) - counts)[:, None]
    scale = filled * (1 / np.clip(left, 1, batch_size))[:, :, None]
    last = filled * ((epoch == epochs - 1) / counts)[:, :, None]
    weights = (torch.from_numpy(scale).to(dtype), torch.from_numpy(last).to(dtype))
    return Schedule(torch.from_numpy(rows), *weights, (epoch < epochs).sum(1).tolist())
