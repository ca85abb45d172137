"""Data of a client, and its step."""

import numpy as np


def load_data(partition_id):
    """Forty rows of a client, and their labels."""
    rng = np.random.default_rng(partition_id)
    x = rng.normal(size=(40, 5))
    return x, (x.sum(axis=1) > 0).astype(float)


def gradient_step(model, x, y):
    """A step of logistic regression."""
    odds = 1 / (1 + np.exp(-np.clip(x @ model, -50, 50)))
    return model - 5.0 * (odds - y) @ x / len(x)
