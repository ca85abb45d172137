"""Many canaries in each of a few runs: every site holds some, each put in or left out by a fair coin of its own.

The bound is that of one run (Steinke, Nasr and Jagielski 2023; Mahloujifar et al. 2024). Runs with coins of their own are
together one run of a mechanism that does all of them, under the same promise: their canaries are judged together.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedveil.errors import FieldError
from fedveil_lab.attacks.bounds import one_run
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.described import MechanismSteps, prove
from fedveil_lab.verify.judged import INSPECTION, WORLD, Caught, Judged, judge_bounds
from fedveil_lab.verify.measuring import Floats, measurement, of_canaries
from fedveil_lab.verify.playing import Effort, Say
from fedveil_lab.verify.transcripts import (
    Transcript,
    fit_server,
    fit_sites,
    scores_of_server,
    scores_of_site,
)

LEAST_SITES = 3  # whose messages without canaries tell how large the noise is
LEAST = 10  # canaries
Worlds = dict[str, dict[str, Any]]
Play = Callable[[Worlds, int], Transcript]


@dataclass(frozen=True)
class Design:
    """Who holds which canary.

    Attributes
    ----------
    sites : tuple of str
        In order.
    claim : PrivacyClaim
        For its unit, relation and trust.
    shared : bool
        Whether all sites hold the same rows beside their canaries.
    held : tuple of int
        Numbers of the canaries that a site may hold in a judged run; empty: one, that of its place.
    one : bool
        Whether there is one canary for everybody.
    """

    sites: tuple[str, ...]
    claim: PrivacyClaim
    shared: bool
    held: tuple[int, ...]
    one: bool

    @classmethod
    def of(cls, sites: Sequence[str], claim: PrivacyClaim, neighbours: bool) -> "Design":
        """The design for a claim.

        Under local trust a site is seen alone, so that all sites may hold the same rows and the same canaries. Under
        central trust all are seen in one sum, in which each needs a direction of its own.
        """
        if len(sites) < LEAST_SITES:
            accepted = f"at least {LEAST_SITES} are needed: they tell how large the noise is"
            raise FieldError("sites", len(sites), accepted)
        if claim.trust == "central":
            return cls(tuple(sites), claim, False, (), False)
        if claim.unit == "client" or neighbours:
            return cls(tuple(sites), claim, True, (0,), True)
        return cls(tuple(sites), claim, True, tuple(range(len(sites))), False)

    @property
    def of_a_run(self) -> int:
        """Canaries of one judged run."""
        return len(self.sites) * max(1, len(self.held))

    def known(self, inside: bool) -> Worlds:
        """Worlds of a run whose coins are known: each site's own canary in, or none at all."""
        made = {}
        for place, site in enumerate(self.sites):
            own = 0 if self.one else place
            numbers = self.held if self.held and not self.one else (own,)
            units = [(number, inside and number == own) for number in numbers]
            made[site] = self._world(units)
        return made

    def drawn(self, coins: Sequence[Sequence[bool]]) -> Worlds:
        """Worlds of a judged run: coins [sites, canaries of each]."""
        made = {}
        for place, site in enumerate(self.sites):
            numbers = self.held or (place,)
            units = [(number, bool(coin)) for number, coin in zip(numbers, coins[place], strict=True)]
            made[site] = self._world(units)
        return made

    def _world(self, units: list[tuple[int, bool]]) -> dict[str, Any]:
        nothing = self.claim.unit == "client" and self.claim.relation == "zero-out"
        return {"units": units, "zeroed": nothing and not units[0][1]}


def judge_by_canaries(
    play: Play, design: Design, canaries: int, effort: Effort, say: Say
) -> Judged:
    """Two runs with known coins, then as many as hold so many canaries; one statement on all of them.

    Parameters
    ----------
    play : callable
        ``(worlds, seed) -> Transcript``, one run.
    design : Design
        Who holds what.
    canaries : int
        At least so many are judged.
    effort : Effort
        For its seed and its error.
    say : callable
        Is told the budget first.
    """
    claim, delta = design.claim, 1e-5 if design.claim.delta is None else design.claim.delta
    rng = np.random.default_rng(effort.seed)
    runs = max(1, -(-max(canaries, LEAST) // design.of_a_run))
    count = runs * design.of_a_run
    ceiling = ceiling_of(count, claim, delta, effort.alpha)
    reach = f"at most {claim.figure} {ceiling:.2f} can be shown at confidence {1 - effort.alpha:g}"
    if ceiling <= claim.most:
        reach += f", so that a claim of {claim.most:.3g} is out of reach"
    say(f"{runs + 2} runs of {len(design.sites)} sites, {count} canaries; {reach}")
    started = time.monotonic()
    all_out = play(design.known(False), int(rng.integers(2**31)))
    each = time.monotonic() - started
    say(f"a run takes {each:.0f} s: about {each * (runs + 1):.0f} s to come")
    all_in = play(design.known(True), int(rng.integers(2**31)))
    score, bare = _scorer(design, all_in, all_out)
    inside: list[float] = []
    outside: list[float] = []
    for number in range(runs):
        coins = rng.integers(2, size=(len(design.sites), max(1, len(design.held)))).astype(bool)
        found = score(play(design.drawn(coins.tolist()), int(rng.integers(2**31))))
        inside += found[coins].tolist()
        outside += found[~coins].tolist()
        say(f"run {number + 1} of {runs}: {len(inside) + len(outside)} canaries")
    first, second = np.array(inside), np.array(outside)
    bounds = of_canaries(first, second, delta=delta, alpha=effort.alpha / 2, shares=shares_of(count))
    measured = measurement(first, second, "canaries", bounds, effort.alpha)
    caught = judge_bounds(claim, measured, WORLD, "numbered outliers")
    if bare:
        names = ", ".join(name.partition(": ")[2] for name in bare[:3])
        caught += (Caught(INSPECTION, f"{names} left without noise and followed the data", False),)
    return Judged(
        subject="",
        claim=claim,
        measured=measured,
        world=f"numbered outliers: {count} canaries by fair coins, {design.of_a_run} a run",
        caught=caught,
        effort={
            "runs": runs + 2,
            "seconds": round(time.monotonic() - started, 1),
            "seeds": [effort.seed],
        },
    )


def _scorer(
    design: Design, all_in: Transcript, all_out: Transcript
) -> tuple[Callable[[Transcript], Floats], tuple[str, ...]]:
    """What gives each canary of a run a score [sites, canaries of each], and what left without noise."""
    if design.claim.trust == "central":
        server = fit_server(all_in, all_out)
        return lambda run: scores_of_server(run, server)[:, None], ()
    fitted = fit_sites(all_in, all_out, design.one)

    def score(run: Transcript) -> Floats:
        return np.stack([scores_of_site(run.sites[site], fitted) for site in design.sites])

    return score, fitted.bare


def shares_of(canaries: int) -> tuple[float, ...]:
    """Of how many canaries is guessed: with few, all or half of them, as each number of guesses has its share of the error."""
    return (0.5, 1.0) if canaries < 200 else (0.05, 0.2, 0.5, 1.0)


def ceiling_of(canaries: int, claim: PrivacyClaim, delta: float, alpha: float) -> float:
    """What so many canaries could show, were every guess right."""
    half = canaries // 2
    found = one_run(
        np.ones(half),
        np.zeros(canaries - half),
        delta=delta,
        confidence=1 - alpha / 2,
        shares=shares_of(canaries),
    )
    return found.mu_ceiling if claim.figure == "mu" else found.epsilon_ceiling


def with_steps(judged: Judged, steps: MechanismSteps | None, **more: Any) -> Judged:
    """A verdict with what can be proven beside what was measured."""
    assert judged.claim is not None
    proven = None if steps is None else prove(steps, judged.claim)
    caught = (*judged.caught, *judge_bounds(judged.claim, None, WORLD, proven=proven))
    return replace(judged, proven=proven, caught=caught, **more)


def run_settings(
    claim: PrivacyClaim, worlds: Mapping[str, Any], base: str, data: str, neighbours: str, rows: int
) -> dict[str, Any]:
    """What the loading of data has to know of a run."""
    return {
        "unit": claim.unit,
        "relation": claim.relation,
        "worlds": dict(worlds),
        "base": base,
        "data": data,
        "neighbours": neighbours,
        "rows": rows,
    }
