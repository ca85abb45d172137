"""A reproducible source's stream: Philox with its key, and single draws as a row has them."""

import numpy as np
import pytest

from fedveil.mechanisms import ReproducibleSource
from fedveil.mechanisms.source import _philox


@pytest.mark.parametrize("key", [0, 5, 2**64 - 1, 2**64, 2**100 + 17, 2**128 - 1])
def test_streams_are_philox_with_that_key(key):
    ours, theirs = (np.random.Generator(p) for p in (_philox(key), np.random.Philox(key=key)))
    for _ in range(2):
        assert (ours.standard_normal(33) == theirs.standard_normal(33)).all()
        assert (
            ours.standard_normal(7, dtype=np.float32) == theirs.standard_normal(7, dtype=np.float32)
        ).all()
        assert (ours.integers(0, 1 << 53, size=9) == theirs.integers(0, 1 << 53, size=9)).all()


def test_single_draws_are_those_of_a_row():
    one, row = ReproducibleSource(3), ReproducibleSource(3)
    for _ in range(20):
        assert one._one_normal() == float(row.normal(1)[0])
        assert one._one_uniform() == float(row.uniform(1)[0])
