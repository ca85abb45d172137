"""The game on every method's whole path, through the parties that every engine runs, at d = 1, 11 and 1,000.

The worlds are those of `fedveil verify`, which makes the page of results. What is claimed must hold; the same
game must be won without noise, and with too little of it; a release without a claim has none to break.
"""

from functools import cache

import numpy as np
import pytest
import torch

from core_kit import ScaledSource
from fedveil.errors import HeuristicError
from fedveil.mechanisms import DiscreteGaussianNoise, ReproducibleSource
from fedveil_lab.attacks import bound
from fedveil_studies.own_methods import cases as all_cases

DIMENSIONS = (1, 11, 1000)
QUICK = (
    "global DP, FedAvg",
    "global DP, FedAvg, a client replaced",
    "global DP, with published metrics",
    "group privacy, public radius",
    "FedRE, mu split by public scores",
    "SGA-LDP, released similarity",
)


@cache
def cases(d):
    return all_cases(d)


def case_of(d, name):
    return next(
        c for c in cases(d) if c.name == name or (c.name.startswith(name) and "distance" in c.name)
    )


def named(d):
    return [c.name for c in cases(d)]


ALL = [(d, name) for d in DIMENSIONS for name in named(d)]


def scores(case, source, runs):
    """Scores [2, runs], in and out; each run with fresh parties and a stream of its own."""
    worlds = zip((1, 0), case.worlds, strict=True)
    return np.array(
        [
            [case.score(world(source.child(case.name, w, r))) for r in range(runs)]
            for w, world in worlds
        ]
    )


def beaten(case, result):
    """Whether the adversary did better than the claim allows."""
    if case.claimed_mu is not None:
        return result.mu_lower > case.claimed_mu
    return result.epsilon_lower > case.claimed_epsilon


class Silent(ReproducibleSource):
    """No noise to speak of: normals of 1e-150, which still have a direction, and radii of 0."""

    def child(self, *key):
        return Silent(0)

    def normal(self, size, dtype=torch.float64):
        return torch.full((size,), 1e-150, dtype=torch.float64).to(dtype)

    def gamma(self, shape):
        return 0.0


@pytest.mark.few(3)
@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("d", DIMENSIONS)
def test_no_claim_is_beaten(d, name):
    case = case_of(d, name)
    assert case.proven
    assert not beaten(case, bound(*scores(case, ReproducibleSource(d), 120)))


@pytest.mark.slow
@pytest.mark.parametrize(("d", "name"), ALL)
def test_no_claim_is_beaten_in_2000_runs(d, name):
    case = case_of(d, name)
    result = bound(*scores(case, ReproducibleSource(d), 2000))
    assert result.mu_lower > 0 or "distance" in name or not case.proven
    if case.proven:
        assert not beaten(case, result)


@pytest.mark.parametrize(("d", "name"), ALL)
def test_without_noise_every_claim_is_beaten(d, name, monkeypatch):
    case = case_of(d, name)
    if not case.proven:
        ledger = case.worlds[0](ReproducibleSource(0)).party.ledger
        assert {e.spend.guarantee.status for e in ledger.entries} == {"heuristic"}
        with pytest.raises(HeuristicError):
            ledger.entries[0].spend.guarantee.epsilon(1e-5)
        return
    nothing = lambda self, size, *, source: torch.zeros(size, dtype=torch.int64)  # noqa: E731
    monkeypatch.setattr(DiscreteGaussianNoise, "sample", nothing)
    inside, outside = scores(case, Silent(0), 1)
    # every run is the same: what 2,000 of them would show
    result = bound(np.full(4000, inside[0]), np.full(4000, outside[0]))
    assert inside[0] > outside[0]
    if "distance" in name and d > 1:  # of pure promises 4,000 runs can break but small ones
        assert result.mu_lower == pytest.approx(result.ceiling)
    else:
        assert beaten(case, result)


@pytest.mark.few(0)
@pytest.mark.parametrize(
    ("name", "runs"),
    [("global DP, TrimmedMean", 500), ("metric privacy, scale from releases", 1000)],
)
def test_half_the_noise_is_found_out_where_canaries_find_nothing(name, runs):
    """A canary is trimmed away, and moves no distance near the range's end: the worst case is what finds it."""
    case = case_of(1, name)
    assert beaten(case, bound(*scores(case, ScaledSource(1, 0.5), runs)))
    assert not beaten(case, bound(*scores(case, ScaledSource(1, 1.0), runs)))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", ["global DP, FedAvg, a client replaced", "SGA-LDP, released similarity"]
)
@pytest.mark.parametrize("d", DIMENSIONS)
def test_a_quarter_of_the_noise_is_found_out(d, name):
    case = case_of(d, name)
    assert beaten(case, bound(*scores(case, ScaledSource(d, 0.25), 120)))
