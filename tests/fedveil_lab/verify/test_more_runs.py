"""What more runs would show is what they show: the runs that half the noise takes, and the ceiling of a longer test."""

import re

import numpy as np
import pytest

from fedveil_lab.verify import PrivacyClaim
from fedveil_lab.verify.budget import Effort, ceiling_of
from fedveil_lab.verify.isolation import SameProcess
from fedveil_lab.verify.measuring import at_threshold
from fedveil_lab.verify.more_runs import Spent, runs_for_half_noise, what_more_shows
from fedveil_lab.verify.playing import play
from fedveil_lab.verify.worlds import Sizes, library

LAPLACE = PrivacyClaim.parse("eps=1 delta=0 add/remove record total central")
NORMAL = PrivacyClaim.parse("eps=1 delta=1e-5 zero-out client total central")
SHIFT = PrivacyClaim.parse("mu=0.5 zero-out client total central")
ALPHA = 0.01


def refuted(claim, runs, noise, cut, seeds=200):
    """How often so many judged runs of each side refute this noise at the best threshold."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(seeds):
        inside, outside = noise(rng, runs) + 1, noise(rng, runs)
        bounds = at_threshold(inside, outside, cut, delta=claim.delta or 0.0, alpha=ALPHA)
        found += next(one.value for one in bounds if one.figure == claim.figure) > claim.most
    return found / seeds


def test_so_many_runs_refute_half_the_noise_in_about_half_of_all_tests():
    cases = [
        (LAPLACE, lambda rng, n: rng.laplace(0, 0.5, n), 0.8),
        (SHIFT, lambda rng, n: rng.normal(0, 1.0, n), 0.5),
    ]
    for claim, noise, cut in cases:
        needed = runs_for_half_noise(claim, ALPHA)
        assert refuted(claim, needed // 3, noise, cut) < 0.3
        assert 0.3 < refuted(claim, needed, noise, cut) < 0.75
        assert refuted(claim, 3 * needed, noise, cut) > 0.85


def test_a_smaller_claim_takes_more_runs_and_one_of_nothing_too_many():
    needed = []
    for epsilon in (2, 1, 0.5):
        claim = PrivacyClaim.parse(f"eps={epsilon} delta=1e-5 zero-out client total central")
        needed.append(runs_for_half_noise(claim, ALPHA))
    assert needed == sorted(needed)
    nothing = PrivacyClaim.parse("eps=0 delta=0 zero-out client total central")
    assert runs_for_half_noise(nothing, ALPHA) is None


def test_who_says_that_the_noise_is_gaussian_needs_fewer_runs():
    said = NORMAL.describe() + " gaussian"
    assert (
        runs_for_half_noise(PrivacyClaim.parse(said), ALPHA)
        < runs_for_half_noise(NORMAL, ALPHA) / 10
    )
    for claim, tip in ((NORMAL, True), (PrivacyClaim.parse(said), False), (LAPLACE, False)):
        _, told = what_more_shows(claim, Effort(), Spent(300, 1_200, 60.0))
        assert ("'gaussian'" in told) == tip


@pytest.mark.parametrize("claim", [LAPLACE, NORMAL, SHIFT])
def test_the_ceiling_is_that_of_runs_without_an_error(claim):
    bounds = at_threshold(np.ones(300), np.zeros(300), 0.5, delta=claim.delta or 0.0, alpha=ALPHA)
    shown = next(one.ceiling for one in bounds if one.figure == claim.figure)
    assert ceiling_of(300, claim, ALPHA) == pytest.approx(shown, rel=1e-9)


def test_a_longer_test_is_extrapolated_from_the_time_of_this_one():
    told, _ = what_more_shows(NORMAL, Effort(seconds=60), Spent(300, 1_200, 60.0))
    assert "--seconds 600" in told
    assert "3,000" in told
    assert f"{ceiling_of(3_000, NORMAL, ALPHA):.2f}" in told
    told, _ = what_more_shows(NORMAL, Effort(runs=400), Spent(100, 400, 700.0))
    assert "--seconds" not in told


def test_only_a_verdict_that_refutes_nothing_says_what_more_runs_show():
    worlds = library(LAPLACE, Sizes())[:2]
    for scale, right in ((1.0, True), (0.1, False)):

        def counted(data, seed, scale=scale):
            return len(np.concatenate(data)) + np.random.default_rng(seed).laplace(0, scale)

        found = play(SameProcess(counted), worlds, LAPLACE, Effort(runs=200))
        said = [note for note in found.notes if re.search("half of the needed noise", note)]
        assert len(said) == right
