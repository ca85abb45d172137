"""The server's own examples: a share of the set's test half, on which it may train the first model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedveil.data import DataSet
from fedveil.data.dealing import holdout
from fedveil.errors import FieldError, require_positive
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, SequentialTrainer, evaluate
from fedveil.learning.learner import Trainer
from fedveil.mechanisms import keyed_seed

EPOCHS = (3, 10, 30, 100)  # of which one is chosen for a public model
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


def public_model(module: nn.Module, layout: Layout, start: Tensor, public: ClientData, seed: int) -> Tensor:
    """A model [d] trained on public examples and their classes, by settings chosen on these alone.

    One dense layer is a logistic regression whose strength is chosen by cross-validation (scikit-learn). Any other
    model is trained by Adam, on four fifths for each number of epochs, and on all for the one that was best on the
    last fifth.

    Parameters
    ----------
    module, layout
        The model.
    start : Tensor
        [d], where training begins.
    public : ClientData
        Examples with classes.
    seed : int
        Of the split and of training.
    """
    some = next((part for part in module.modules() if not isinstance(part, nn.Sequential | nn.Flatten)), None)
    if isinstance(some, nn.Linear) and layout.size == sum(p.numel() for p in some.parameters()):
        return _logistic(layout, start, public)
    rest, kept = holdout(public.y.numpy(), np.arange(public.examples), 0.2, seed=keyed_seed("public model", seed))
    most, best = (ClientData(public.x[i], public.y[i]) for i in map(torch.from_numpy, (rest, kept)))

    def trained(on: ClientData, epochs: int) -> Tensor:
        local = LocalTraining(epochs=epochs, batch_size=32, lr=0.001, optimizer="adam")
        return first_model(start[None], on, SequentialTrainer(module, layout, local), seed)[0]

    losses = {n: evaluate(module, layout, trained(most, n), best.x, best.y, ("loss",))["loss"] for n in EPOCHS}
    return trained(public, min(losses, key=losses.__getitem__))


def _logistic(layout: Layout, start: Tensor, public: ClientData) -> Tensor:
    """The logistic regression of public examples as one layer's parameters; a class that none shows keeps its own."""
    from sklearn.linear_model import LogisticRegressionCV

    head = LogisticRegressionCV(
        Cs=8, cv=5, max_iter=2000, l1_ratios=(0,), scoring="accuracy", use_legacy_attributes=False
    )
    head.fit(public.x.flatten(1).numpy(), public.y.numpy())
    weight, bias = (torch.from_numpy(np.atleast_2d(v)).to(start.dtype) for v in (head.coef_, head.intercept_[:, None]))
    if len(weight) == 1:  # of two classes: each is the other's negative
        weight, bias = (torch.cat([-v, v]) / 2 for v in (weight, bias))
    parts, rows = layout.unflatten(start), torch.from_numpy(head.classes_)
    for values in parts.values():
        values[rows] = bias[:, 0] if values.dim() == 1 else weight
    return layout.flatten(parts)


def pretraining_of(local: LocalTraining, epochs: int) -> LocalTraining:
    """Local training for the server alone: its own number of epochs, and no proximal term."""
    return replace(local, epochs=epochs, prox=0.0)
