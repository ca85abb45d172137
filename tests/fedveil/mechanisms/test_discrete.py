"""Discrete Gaussian noise: the exact distribution, whole numbers throughout, and a norm that rounding cannot exceed."""

import hashlib
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from core_kit import IMPOSSIBLE, PLAUSIBLE, variance_p
from fedveil.errors import FieldError
from fedveil.mechanisms import (
    DiscreteGaussianNoise,
    KeyedSource,
    ReproducibleSource,
    SecureSource,
    WideGaussianNoise,
    to_grid,
)
from fedveil.mechanisms import discrete as module

DRAWS = 30_000


def pmf(sigma, width=12):
    """Probabilities of the integers within so many sigma, straight from the definition."""
    values = np.arange(-width * sigma, width * sigma + 1)
    weights = np.exp(-(values.astype(float) ** 2) / (2 * sigma**2))
    return values, weights / weights.sum()


def fit_p(drawn, sigma):
    """Chi-squared p-value of the counts of every integer that is expected at least ten times."""
    values, probabilities = pmf(sigma)
    expected = len(drawn) * probabilities
    kept = expected >= 10
    counts = np.array([(drawn == v).sum() for v in values[kept]])
    rest = len(drawn) - counts.sum(), len(drawn) - expected[kept].sum()
    observed, expected = np.append(counts, rest[0]), np.append(expected[kept], rest[1])
    return stats.chisquare(observed, expected).pvalue


@pytest.mark.parametrize("sigma", [1, 2, 7])
def test_every_integer_has_its_probability(sigma):
    drawn = DiscreteGaussianNoise(sigma).sample(DRAWS, source=ReproducibleSource(sigma))
    assert drawn.dtype == torch.int64
    assert fit_p(drawn.numpy(), sigma) > PLAUSIBLE
    assert fit_p(drawn.numpy(), sigma + 1) < IMPOSSIBLE
    if sigma > 1:
        assert fit_p(drawn.numpy(), sigma - 1) < IMPOSSIBLE


def test_a_rounded_normal_is_another_distribution():
    # its variance is larger by 1/12
    rounded = np.rint(np.random.default_rng(0).standard_normal(DRAWS)).astype(int)
    assert fit_p(rounded, 1) < IMPOSSIBLE


@pytest.mark.parametrize(
    "source", [ReproducibleSource(0), SecureSource()], ids=["reproducible", "secure"]
)
def test_the_widest_noise_has_its_deviation_and_shape(source):
    drawn = DiscreteGaussianNoise(2048).sample(DRAWS, source=source).double().numpy()
    assert variance_p(drawn, 2048) > 1e-6
    assert variance_p(drawn, 2048 * 1.05) < IMPOSSIBLE
    assert variance_p(drawn, 2048 / 1.05) < IMPOSSIBLE
    assert stats.kstest(drawn, stats.norm(scale=2048).cdf).pvalue > 1e-6
    assert np.abs(drawn).max() < 7 * 2048


@pytest.mark.parametrize("bits", [62, 125])
@pytest.mark.parametrize("sigma", [1, 2, 7])
def test_thresholds_are_those_of_the_law(sigma, bits):
    # against decimal arithmetic of 100 digits, whose exponentials are correctly rounded
    with localcontext() as context:
        context.prec = 100
        weights = [(Decimal(-x * x) / (2 * sigma**2)).exp() for x in range(40 * sigma)]
        everything = 2 * sum(weights) - weights[0]
        inside, wanted = -weights[0], []
        for weight in weights:
            inside += 2 * weight
            wanted.append(int(inside / everything * 2**bits))
    last = 2**bits - 1
    wanted = wanted[: wanted.index(last) + 1]
    assert module._exact(sigma, bits) == wanted
    assert module._exact(sigma, bits, guard=2) == wanted  # too few guard bits are doubled


class Given(ReproducibleSource):
    """A source whose bits are given one after another."""

    def __init__(self, *drawn):
        super().__init__(0)
        self.drawn = list(drawn)

    def bits(self, size):
        return torch.tensor([self.drawn.pop(0) for _ in range(size)])


def test_more_bits_decide_where_the_first_fall_on_a_threshold():
    first = module._exact(7, 62)[3]
    further = module._exact(7, 125)[3]
    assert further >> 63 == first
    rest = further - (first << 63)
    noise, twice = DiscreteGaussianNoise(7), 2 * first  # the last bit is the sign
    assert noise.sample(1, source=Given(twice - 2)).item() == 3
    assert noise.sample(1, source=Given(twice + 2)).item() == 4
    assert noise.sample(1, source=Given(twice, rest - 1)).item() == 3
    assert noise.sample(1, source=Given(twice + 1, rest - 1)).item() == -3
    assert noise.sample(1, source=Given(twice, rest + 1)).item() == 4
    even_further = module._exact(7, 188)[3] - (further << 63)
    assert noise.sample(1, source=Given(twice, rest, even_further - 1)).item() == 3
    assert noise.sample(1, source=Given(twice, rest, even_further + 1)).item() == 4
    far = Given(2**63 - 2, 2**62)  # beyond all thresholds of the first bits
    assert len(module._exact(7, 62)) - 1 <= noise.sample(1, source=far).item() < 12 * 7


def test_the_smallest_and_the_largest_bits_are_the_middle_and_the_end():
    noise = DiscreteGaussianNoise(2048)
    assert noise.sample(2, source=Given(0, 1)).tolist() == [0, 0]
    end = noise.sample(1, source=Given(2**63 - 1, 0)).item()
    assert end == -len(module._exact(2048, 62)) + 1


def test_a_share_of_a_known_key_keeps_its_bits():
    # a site that answers a question again has to draw the same noise; other noise needs another `shares.VERSION`
    noise = WideGaussianNoise().sample(1000, source=KeyedSource(bytes(32)).child("noise", 1))
    digest = hashlib.sha256(noise.numpy().astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "e1f81c61de977dbe"


@pytest.mark.parametrize("sigma", [0, -1, 1.5, 2049, float("nan"), True, None])
def test_bad_parameters_are_refused(sigma):
    with pytest.raises(FieldError, match="sigma"):
        DiscreteGaussianNoise(sigma)
    with pytest.raises(FieldError, match="size"):
        DiscreteGaussianNoise(2).sample(0, source=ReproducibleSource(0))


# ---- the grid


def test_rounding_goes_towards_zero():
    steps = to_grid(torch.tensor([[0.29, -0.29, 0.3, 0.05]], dtype=torch.float64), 1.0, 0.1)
    assert steps.tolist() == [[2, -2, 2, 0]]  # .3 / .1 is a hair below 3 in binary
    assert steps.dtype == torch.int64


@given(st.integers(1, 40), st.floats(1e-3, 1e3), st.floats(0.5, 5000), st.integers(0, 2**32 - 1))
def test_no_row_is_longer_on_the_grid(d, clip, steps, seed):
    rows = torch.randn(5, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows *= clip * (1 - 1e-9) / rows.norm(dim=1, keepdim=True)
    on_grid = to_grid(rows, clip, clip / steps)
    assert all(sum(int(v) ** 2 for v in row) <= steps**2 * (1 + 1e-12) for row in on_grid)


@pytest.mark.parametrize("length", [1.001, 50.0])
def test_a_row_that_was_not_clipped_is_refused(length):
    rows = torch.stack([torch.ones(4), length * torch.ones(4)]).double() / 2
    with pytest.raises(FieldError, match="longer than the clipping norm"):
        to_grid(rows, 1.0, 1e-4)
    assert to_grid(rows[:1], 1.0, 1e-4).tolist() == [[5000] * 4]


def test_a_grid_on_which_squares_overflow_is_refused():
    with pytest.raises(FieldError, match="grid"):
        to_grid(torch.ones(1, 1, dtype=torch.float64), 1.0, 1e-10)
