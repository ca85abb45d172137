"""Games of `fedveil verify` on the parties of every method, without data; each cell gives verdicts.

There are three games. One plays every method's worst-case worlds against its claim. One tests its noise over ten rounds
against its ledger. One plays canaries in one run against its ledger. A verdict's detail "broken" is 1 if a promise does
not hold, and missing if there is no promise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from fedveil.errors import require_count
from fedveil.mechanisms import ReproducibleSource
from fedveil_lab.attacks import GameResult, Verdict, bound
from fedveil_lab.games.game import Judgement, Unconfigured
from fedveil_lab.grid import Cell, Finished
from fedveil_lab.runs import Summary
from fedveil_studies.own_methods.canaries import audits
from fedveil_studies.own_methods.duels import cases
from fedveil_studies.own_methods.noise import LEVEL, NoiseGame, methods
from fedveil_studies.own_methods.worlds import Duel

DIMENSIONS = (1, 11, 1000)


@dataclass(frozen=True, eq=False)
class PartyGame(Unconfigured):
    """Game whose cells run parties in constructed worlds.

    Attributes
    ----------
    name : str
        Name for reports.
    plays : sequence of callable
        One function per cell; it returns verdicts.
    asked : mapping
        Options of the game, as plain values.
    """

    name: str
    plays: Sequence[Callable[[], list[Verdict]]]
    asked: Mapping[str, Any]

    def question(self) -> dict[str, Any]:
        return dict(self.asked)

    @cached_property
    def _cells(self) -> list[Cell]:
        cells = []
        for i, play in enumerate(self.plays):
            cells.append(Cell(f"{self.name} {i}", self.config, make=partial(_summed, play)))
        return cells

    def cells(self) -> list[Cell]:
        return self._cells

    def judge(self, finished: Finished) -> Judgement:
        """Collect the verdicts of all cells."""
        verdicts = list[Verdict]()
        for cell in self._cells:
            verdicts += finished.outcomes[cell.key].summary.values["verdicts"]
        return Judgement(verdicts)


def _summed(play: Callable[[], list[Verdict]]) -> Summary:
    return Summary({"verdicts": play()}, [])


def guarantees_game(runs: int, dimensions: Sequence[int] = DIMENSIONS) -> PartyGame:
    """Make the distinguishing game on every method's worst-case worlds, with `runs` runs each, half for the threshold."""
    require_count("--runs", runs, least=8)
    plays = []
    for d in dimensions:
        for case in cases(d):
            plays.append(partial(duel_verdicts, case, d, runs))
    return PartyGame("distinguishing game", plays, {"runs": runs})


def noise_game(dimensions: Sequence[int] = DIMENSIONS) -> PartyGame:
    """Make the game that tests every method's noise over ten rounds; false alarms have probability at most `LEVEL`."""
    every = [(d, one) for d in dimensions for one in methods(d)]
    plays = [partial(_examined, one, d, LEVEL / len(every)) for d, one in every]
    return PartyGame("noise", plays, {"level": LEVEL})


def canary_game(m: int) -> PartyGame:
    """Make the game that plays `m` canaries on every method as it is, and with each planted bug."""
    require_count("--canaries", m, least=10)
    plays = [partial(audit.verdicts, name) for name, audit in audits(m).items()]
    return PartyGame("canaries", plays, {"canaries": m})


def duel(case: Duel, d: int, runs: int) -> GameResult:
    """Run both worlds at dimension d, each run with fresh parties and noise, and bound mu."""
    source = ReproducibleSource(d)
    both = []
    for w, world in zip((1, 0), case.worlds, strict=True):
        scores = [case.score(world(source.child(case.name, w, r))) for r in range(runs)]
        both.append(np.array(scores))
    inside, outside = both
    return bound(inside, outside)


def held(case: Duel, result: GameResult) -> bool | None:
    """Whether the adversary proves no more than is claimed; None without a claim."""
    if case.claimed_mu is not None:
        return result.mu_lower <= case.claimed_mu
    if case.claimed_epsilon is not None:
        return result.epsilon_lower <= case.claimed_epsilon
    return None


def duel_verdicts(case: Duel, d: int, runs: int) -> list[Verdict]:
    """Return the verdict of a duel, compared with its claim."""
    result = duel(case, d, runs)
    kept = held(case, result)
    details = {
        "dimension": d,
        "epsilon at delta 0": result.epsilon_lower,
        "ceiling": result.ceiling,
    }
    if kept is not None:
        details["broken"] = float(not kept)
    return [
        Verdict.of(
            result.mu_lower,
            attack="distinguishing game",
            setting=case.name,
            figure=f"mu, lower bound at {result.confidence:.1%}",
            n=result.runs,
            replication="one run of the parties",
            threat="whoever sees what is handed over",
            details=details,
            notes=[case.claim],
        )
    ]


def _examined(one: NoiseGame, d: int, level: float) -> list[Verdict]:
    least = one.examine(ReproducibleSource(0).child("noise", one.name, d))
    return [
        Verdict.of(
            least.p,
            attack=least.kind,
            setting=one.name,
            figure="p of the noise that is declared",
            n=1,
            replication="one run of ten rounds",
            details={"dimension": d, "broken": float(least.p <= level)},
            notes=[least.what],
        )
    ]
