"""Opacus' optimizer as a mechanism: what is left of the last client's rows in a model after one step.

``fedveil verify examples/verify/opacus_step.py:mechanism --claim "eps=1 delta=1e-5 add/remove record total central"``.
`noise_of_the_mean` is the same with noise that is divided by the number of rows once more.
"""

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

ROWS = 16  # by which Opacus divides the sum: a constant, whatever the number of rows is


def mechanism(data_sets, seed):
    """One step over all rows, with noise for one record of a length of at most 1; Opacus draws it freshly."""
    return stepped(np.concatenate(data_sets), 3.7307)


def noise_of_the_mean(data_sets, seed):
    """The same with a sixteenth of the noise."""
    return stepped(np.concatenate(data_sets), 3.7307 / ROWS)


def stepped(rows, noise_multiplier):
    """Parameters of a linear model after one step; the first column is the label."""
    numbers = np.nan_to_num(rows, posinf=0, neginf=0).clip(-1e6, 1e6)
    model = GradSampleModule(torch.nn.Linear(rows.shape[1], 1))
    for weights in model.parameters():
        torch.nn.init.zeros_(weights)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=noise_multiplier,
        max_grad_norm=1.0,
        expected_batch_size=ROWS,
    )
    x = torch.as_tensor(numbers, dtype=torch.float32)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        model(x)[:, 0], (x[:, 0] > 0).float(), reduction="sum"
    )
    (loss / max(1, len(x))).backward()  # Opacus expects the mean over rows, and undoes it
    optimizer.step()
    return list(model.parameters())
