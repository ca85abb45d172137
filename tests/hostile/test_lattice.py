"""Policies are in an order: a stricter one admits no more, and a run that promises less is admitted nowhere else."""

from random import Random

import pytest

from lattice_kit import broken, outcome


def test_of_random_policies_some_admit_and_some_refuse():
    admitted = sum(outcome(Random(i)) for i in range(300))
    assert 20 < admitted < 280


def test_the_order_holds_in_a_thousand_draws():
    assert not [found for i in range(1000) if (found := broken(Random(i)))]


@pytest.mark.few(0)
def test_the_order_holds_with_sampled_steps():
    assert not [found for i in range(4) if (found := broken(Random(i), sampled=0.2))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draws", "sampled"), [(30_000, 0.0), (1_500, 0.15)], ids=["full batches", "sampled"]
)
def test_the_order_holds_in_thirty_thousand_draws(draws, sampled):
    found = [one for i in range(1000, 1000 + draws) if (one := broken(Random(i), sampled))]
    print(f"policies and runs in order: {draws:,} draws, {len(found)} out of order")
    assert not found, found[0]
