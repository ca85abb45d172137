"""Play the worst-case worlds of every method, and set what an adversary proves beside what is claimed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedveil.attacks import GameResult, bound
from fedveil.games.guarantees.clients import cases_of_clients
from fedveil.games.guarantees.server import cases_of_server
from fedveil.games.guarantees.worlds import Duel
from fedveil.gdp import rounded_down
from fedveil.mechanisms import ReproducibleSource

DIMENSIONS = (1, 11, 1000)


def cases(d: int) -> list[Duel]:
    """Every method at dimension d."""
    return [*cases_of_server(d), *cases_of_clients(d)]


def play(case: Duel, d: int, runs: int) -> GameResult:
    """Both worlds at dimension d, each run with fresh parties and noise of its own."""
    source = ReproducibleSource(d)
    outside, inside = (
        np.array([case.score(world(source.child(case.name, w, r))) for r in range(runs)])
        for w, world in enumerate(case.worlds)
    )
    return bound(inside, outside)


def held(case: Duel, result: GameResult) -> bool | None:
    """Whether the adversary proves no more than is claimed; None where nothing is."""
    if case.claimed_mu is not None:
        return result.mu_lower <= case.claimed_mu
    return None if case.claimed_epsilon is None else result.epsilon_lower <= case.claimed_epsilon


def verify(runs: int, tell: Callable[[dict[str, Any]], None] = lambda row: None) -> list[dict[str, Any]]:
    """Play every case at every dimension.

    Parameters
    ----------
    runs : int
        Of each world, half of them to choose the threshold.
    tell : callable
        Is told each row as it is found.

    Returns
    -------
    list of dict
        Method, dimension, claim, and the bounds on mu and epsilon that were proven at 99.9%.
    """
    rows = []
    for d in DIMENSIONS:
        for case in cases(d):
            result = play(case, d, runs)
            rows.append(
                {
                    "method": case.name,
                    "dimension": d,
                    "claim": case.claim,
                    "mu_lower": float(rounded_down(result.mu_lower, 3)),
                    "epsilon_lower_at_delta_0": float(rounded_down(result.epsilon_lower, 3)),
                    "ceiling_mu": round(result.ceiling, 2),
                    "held": held(case, result),
                }
            )
            tell(rows[-1])
    return rows
