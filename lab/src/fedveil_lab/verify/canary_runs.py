"""Judge a claim with many canaries per run: each site holds several, and a fair coin puts each of them in or out.

The bound is that for one run (Steinke, Nasr and Jagielski 2023; Mahloujifar et al. 2024). Several runs with their own
coins count as one run of a larger mechanism with the same promise. So the canaries of all runs are judged together.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedveil.errors import FieldError
from fedveil_lab.attacks.bounds import epsilon_bound_of_guesses, mu_bound_of_guesses
from fedveil_lab.verify.aims import Floats
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.claim import PrivacyClaim
from fedveil_lab.verify.described import MechanismSteps, prove
from fedveil_lab.verify.isolation import NoVerdict
from fedveil_lab.verify.judged import INSPECTION, WORLD, Caught, Judged, judge_bounds
from fedveil_lab.verify.measuring import LowerBound, measurement
from fedveil_lab.verify.screening import Say
from fedveil_lab.verify.transcripts import (
    Transcript,
    fit_server,
    fit_sites,
    scores_of_server,
    scores_of_sites,
    told_apart,
    unread_of_server,
)

LEAST_SITES = 3  # whose messages without canaries tell how large the noise is
LEAST = 10  # canaries
LISTED = 5  # numbers that were not looked at
NOTHING_SENT = "no model that sites are sent was seen: whole models that they answer are hardly told apart, differences are"
Worlds = dict[str, dict[str, Any]]
Play = Callable[[Worlds, int], Transcript]


@dataclass(frozen=True)
class Design:
    """Which site holds which canary.

    Attributes
    ----------
    sites : tuple of str
        Names of the sites, in order.
    claim : PrivacyClaim
        The claim, which gives unit, relation and trust.
    shared : bool
        Whether all sites hold the same data beside their canaries.
    held : tuple of int
        Numbers of the canaries that each site may hold in a judged run. Empty: one canary, which has the site's number.
    one : bool
        Whether all sites use one and the same canary.
    holders : tuple of int
        Indices of the sites that hold canaries in a judged run.
    """

    sites: tuple[str, ...]
    claim: PrivacyClaim
    shared: bool
    held: tuple[int, ...]
    one: bool
    holders: tuple[int, ...]

    @classmethod
    def of(cls, sites: Sequence[str], claim: PrivacyClaim, neighbours: bool) -> "Design":
        """Make the design that suits a claim.

        Under local trust the adversary sees each site's messages alone, so all sites may hold the same data and
        canaries. Under central trust it sees one sum of all sites, so each canary needs its own direction.
        """
        if len(sites) < LEAST_SITES:
            accepted = f"at least {LEAST_SITES} are needed: they tell how large the noise is"
            raise FieldError("sites", len(sites), accepted)
        names, all_of_them = tuple(sites), tuple(range(len(sites)))
        if claim.trust != "local":
            return cls(names, claim, False, (), False, all_of_them)
        if claim.unit == "client" or neighbours:
            return cls(names, claim, True, (0,), True, all_of_them)
        return cls(names, claim, True, all_of_them, False, all_of_them)

    @property
    def of_a_run(self) -> int:
        """Number of canaries in one judged run."""
        return len(self.holders) * max(1, len(self.held))

    def known(self, inside: bool) -> Worlds:
        """Return the worlds of a run with known coins: each site's own canary is in, or none is."""
        made = {}
        for place, site in enumerate(self.sites):
            own = 0 if self.one else place
            numbers = self.held if self.held and not self.one else (own,)
            units = [(number, inside and number == own) for number in numbers]
            made[site] = self._world(units)
        return made

    def drawn(self, coins: NDArray[np.bool_]) -> Worlds:
        """Return the worlds of a judged run, given its coins [holders, canaries per holder]."""
        made = {}
        for place, site in enumerate(self.sites):
            numbers = self.held or (place,)
            own = (
                coins[self.holders.index(place)]
                if place in self.holders
                else (False,) * len(numbers)
            )
            units = [(number, bool(coin)) for number, coin in zip(numbers, own, strict=True)]
            made[site] = self._world(units)
        return made

    def _world(self, units: list[tuple[int, bool]]) -> dict[str, Any]:
        nothing = self.claim.unit == "client" and self.claim.relation == "zero-out"
        return {"units": units, "zeroed": nothing and not units[0][1]}


def judge_by_canaries(
    play: Play, design: Design, canaries: int, effort: Effort, say: Say
) -> Judged:
    """Judge a claim with many canaries: two runs with known coins fit the scores, the runs after them are judged together.

    Parameters
    ----------
    play : callable
        Function ``(worlds, seed) -> Transcript`` that makes one run.
    design : Design
        Which site holds which canary.
    canaries : int
        Smallest number of canaries to judge.
    effort : Effort
        Gives the seed and the error.
    say : callable
        Receives progress messages, the budget first.
    """
    claim, delta = design.claim, 1e-5 if design.claim.delta is None else design.claim.delta
    rng = np.random.default_rng(effort.seed)
    runs, count = planned(design, canaries, effort, delta, say)
    started = time.monotonic()
    all_out = play(design.known(False), int(rng.integers(2**31)))
    each = time.monotonic() - started
    say(f"a run takes {each:.0f} s: about {each * (runs + 1):.0f} s to come")
    all_in = play(design.known(True), int(rng.integers(2**31)))
    design, score, seen = fitted_to(design, all_in, all_out)
    if design.of_a_run * runs < count:
        say("the model is too small to tell all canaries of a run apart: fewer are held")
        runs, count = planned(design, canaries, effort, delta, say)
    until = math.inf if effort.seconds is None else started + effort.seconds
    inside: list[float] = []
    outside: list[float] = []
    made = 0
    while made < runs and time.monotonic() < until:
        shape = (len(design.holders), max(1, len(design.held)))
        coins = rng.integers(2, size=shape).astype(bool)
        found = score(play(design.drawn(coins), int(rng.integers(2**31))))
        inside += found[coins].tolist()
        outside += found[~coins].tolist()
        made += 1
        say(f"run {made} of {runs}: {len(inside) + len(outside)} canaries")
    notes = (*seen.notes, *stopped(made, runs, len(inside) + len(outside), effort))
    first, second = np.array(inside), np.array(outside)
    bounds = bounds_of_signs(first, second, delta, effort.alpha)
    measured = measurement(first, second, "canaries", bounds, effort.alpha)
    caught = judge_bounds(claim, measured, WORLD, "numbered outliers")
    if seen.bare:
        names = ", ".join(name.partition(": ")[2] for name in seen.bare[:3])
        caught += (Caught(INSPECTION, f"{names} left without noise and followed the data", False),)
    return Judged(
        subject="",
        claim=claim,
        measured=measured,
        world=f"numbered outliers: {len(first) + len(second)} canaries by fair coins, {design.of_a_run} a run",
        caught=caught,
        effort={
            "runs": made + 2,
            "seconds": round(time.monotonic() - started, 1),
            "seeds": [effort.seed],
        },
        notes=notes,
    )


def stopped(made: int, runs: int, canaries: int, effort: Effort) -> tuple[str, ...]:
    """Note that time was over; nothing where it was not.

    Raises
    ------
    NoVerdict
        If too few canaries were judged by then.
    """
    if made == runs:
        return ()
    over = f"{effort.seconds:g} s were over after {made} of {runs} judged runs"
    if canaries < LEAST:
        raise NoVerdict(f"{over}: give more --seconds")
    return (over,)


def planned(
    design: Design, canaries: int, effort: Effort, delta: float, say: Say
) -> tuple[int, int]:
    """Return the numbers of judged runs and of canaries; `say` receives both, and the largest bound they can prove."""
    claim = design.claim
    runs = max(1, -(-max(canaries, LEAST) // design.of_a_run))
    count = runs * design.of_a_run
    ceiling = ceiling_of(count, claim, delta, effort.alpha)
    reach = f"at most {claim.figure} {ceiling:.2f} can be shown at confidence {1 - effort.alpha:g}"
    if ceiling <= claim.most:
        reach += f", so that a claim of {claim.most:.3g} is out of reach"
    if claim.trust != "local":
        reach += "; only the published model is compared"
    limit = "" if effort.seconds is None else f"; no run begins after {effort.seconds:g} s"
    say(f"{runs + 2} runs of {len(design.sites)} sites, {count} canaries{limit}; {reach}")
    return runs, count


@dataclass(frozen=True)
class SeenBeside:
    """Further findings of the two runs with known coins.

    Attributes
    ----------
    bare : tuple of str
        Names of outputs that carry no noise and depend on the data.
    notes : tuple of str
        Names of outputs that were not examined.
    """

    bare: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def fitted_to(
    design: Design, all_in: Transcript, all_out: Transcript
) -> tuple[Design, Callable[[Transcript], Floats], SeenBeside]:
    """Return the design with the distinguishable canaries, the function that scores them, and the further findings."""
    if design.claim.trust != "local":
        server = fit_server(all_in, all_out)
        holders = tuple(told_apart(server.directions[0]))
        chosen = replace(design, holders=holders)
        beside = SeenBeside(notes=(not_looked_at(unread_of_server(all_in, all_out, server)),))
        return chosen, lambda run: scores_of_server(run, server, holders)[:, None], beside
    fitted = fit_sites(all_in, all_out, design.one)
    if not design.one:
        held = told_apart(fitted.directions)
        design = replace(design, held=tuple(held))
        fitted = replace(fitted, directions=fitted.directions[held])
    beside = SeenBeside(fitted.bare, () if fitted.model else (NOTHING_SENT,))
    return design, lambda run: scores_of_sites(run, design.sites, fitted), beside


def not_looked_at(names: Sequence[str]) -> str:
    """Say in one sentence that only the model was compared, and name the other published numbers."""
    listed = "other numbers that are published"
    if names:
        more = ", ..." if len(names) > LISTED else ""
        listed += f" ({', '.join(names[:LISTED])}{more})"
    return f"only the published model was compared: {listed}, and the log, were not looked at"


def shares_of(canaries: int) -> tuple[float, ...]:
    """Return the fractions of canaries to guess. They are fixed in advance, as each fraction that is tried uses up error."""
    return (0.5, 1.0) if canaries < 200 else (0.2, 0.5, 1.0)


def bounds_of_signs(
    inside: Floats, outside: Floats, delta: float, alpha: float
) -> tuple[LowerBound, LowerBound]:
    """Lower bounds of epsilon and mu from guesses by sign: a positive score guesses "in". The clearest scores are guessed.

    Parameters
    ----------
    inside, outside : array
        Log-likelihood ratios of the canaries that are in, and of those that are out. A ratio of 0 counts as a wrong
        guess.
    delta, alpha : float
        Delta of the epsilon; probability that either bound is too large.
    """
    scores = np.concatenate([inside, outside])
    right = np.concatenate([inside > 0, outside < 0])
    order = np.argsort(-np.abs(scores), kind="stable")
    count, shares = len(scores), shares_of(len(scores))
    guessed = [max(1, round(share * count)) for share in shares]
    tried = [(int(right[order[:number]].sum()), number) for number in guessed]
    return _bounds(tried, guessed, count, delta, alpha)


def _bounds(
    tried: Sequence[tuple[int, int]], guessed: Sequence[int], count: int, delta: float, alpha: float
) -> tuple[LowerBound, LowerBound]:
    """Lower bounds of epsilon and mu, the best of several numbers of guesses, each with its share of the error."""
    sure = 1 - alpha / 2 / len(tried)

    def epsilon(right: int, number: int) -> float:
        return epsilon_bound_of_guesses(right, number, count, delta, sure)

    def mu(right: int, number: int) -> float:
        return mu_bound_of_guesses(right, number, count, sure)

    best = [(number, number) for number in guessed]
    confidence = 1 - alpha / 2
    return (
        LowerBound(
            "guesses (Steinke et al. 2023)",
            "epsilon",
            max(epsilon(*one) for one in tried),
            max(epsilon(*one) for one in best),
            delta,
            confidence,
        ),
        LowerBound(
            "guesses (Mahloujifar et al. 2024)",
            "mu",
            max(mu(*one) for one in tried),
            max(mu(*one) for one in best),
            None,
            confidence,
        ),
    )


def ceiling_of(canaries: int, claim: PrivacyClaim, delta: float, alpha: float) -> float:
    """Largest lower bound that so many canaries can prove: that of guesses which are all right."""
    half = canaries // 2
    found = bounds_of_signs(np.ones(half), -np.ones(canaries - half), delta, alpha)
    return next(one.ceiling for one in found if one.figure == claim.figure)


def with_steps(judged: Judged, steps: MechanismSteps | None, **more: Any) -> Judged:
    """Add to a verdict the epsilon that follows from the described steps."""
    assert judged.claim is not None
    proven = None if steps is None else prove(steps, judged.claim)
    caught = (*judged.caught, *judge_bounds(judged.claim, None, WORLD, proven=proven))
    return replace(judged, proven=proven, caught=caught, **more)


def run_settings(
    claim: PrivacyClaim, worlds: Mapping[str, Any], base: str, data: str, neighbours: str, rows: int
) -> dict[str, Any]:
    """Collect the settings of a run that the replaced data loader needs."""
    return {
        "unit": claim.unit,
        "relation": claim.relation,
        "worlds": dict(worlds),
        "base": base,
        "data": data,
        "neighbours": neighbours,
        "rows": rows if claim.unit == "person" else 1,
    }
