"""The server's own examples: a share of the set's test half, on which it may train the first model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedveil.data import DataSet
from fedveil.data.dealing import holdout
from fedveil.errors import FieldError, require_positive
from fedveil.learning import ClientData, LocalTraining
from fedveil.learning.learner import Trainer
from fedveil.mechanisms import keyed_seed

ROUND = 0  # of the keys: no federated round has this number


def keep_validation(dataset: DataSet, share: float | None, seed: int) -> tuple[DataSet, ClientData | None]:
    """Give the server a stratified share of the set's test half.

    Parameters
    ----------
    dataset : DataSet
        Loses what the server keeps.
    share : float or None
        Above 0 and below 1; None for nothing.
    seed : int
        Decides which examples.

    Returns
    -------
    DataSet
        With what is left of the test half, for final figures.
    ClientData or None
        The server's validation examples.

    Raises
    ------
    FieldError
        If the share is no share, or the set has no test half.
    """
    if share is None:
        return dataset, None
    if require_positive("validation", share) >= 1:
        raise FieldError("validation", share, "must be above 0 and below 1")
    x, y = dataset.test_x, dataset.test_y
    if x is None or y is None:
        raise FieldError("validation", share, f"{dataset.name!r} has no test half to take a share of; leave it out")
    strata = y.numpy() if dataset.classes else np.zeros(len(y), dtype=np.int64)
    rest, kept = holdout(strata, np.arange(len(y)), share, seed=keyed_seed("validation", seed))
    own, left = torch.from_numpy(kept), torch.from_numpy(rest)
    return replace(dataset, test_x=x[left], test_y=y[left]), ClientData(x[own], y[own], name="validation")


def first_model(start: Tensor, validation: ClientData, trainer: Trainer, seed: int) -> Tensor:
    """Train the first model [1, d] on the server's examples; `trainer` says for how long.

    Raises
    ------
    Exception
        Whatever the training raised.
    """
    [outcome] = trainer.train(start, [validation], [(seed, ROUND, 0)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome.model[None]


def pretraining_of(local: LocalTraining, epochs: int) -> LocalTraining:
    """Local training for the server alone: its own number of epochs, and no proximal term."""
    return replace(local, epochs=epochs, prox=0.0)
