"""What a deployed server says of its rounds."""

import math

import torch

from fedveil.accounting import Release
from fedveil.engines.serving import mean_metrics


def sent(count, value):
    values = {"count": count, "metric": value}
    return tuple(
        Release(
            kind, torch.tensor(number, dtype=torch.float64), "accuracy" if number == value else ""
        )
        for kind, number in values.items()
    )


def test_a_mean_is_weighted_and_finite_whatever_finite_numbers_somebody_sends():
    mean = mean_metrics({0: sent(1.0, 0.2), 1: sent(3.0, 0.6)})["accuracy"]
    assert math.isclose(mean, 0.5)
    beyond = mean_metrics({0: sent(2.0**53, 1e300), 1: sent(1.0, -1e300)})["accuracy"]
    assert math.isclose(beyond, 1e300)
