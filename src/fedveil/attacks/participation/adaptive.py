"""Adaptive client inference: gather evidence round by round; a sequential test says when it suffices.

Source: the sequential probability ratio test (Wald 1945), on the evidence of `evidence` over the scores of
`calibrated_loss` and `own_update` together. Named, not built, in Sáinz-Pardo Díaz et al. 2026, section 5.2.

Threat model: semi-honest client; as for both, and able to rehearse (see `likelihood_ratio`).

    stop with IN  as soon as the log-likelihood ratio reaches   log((1 - miss) / alarm)
    stop with OUT as soon as it falls to                        log(miss / (1 - alarm))

The wanted error rates hold as far as the rehearsed model does; those that were measured stand beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedveil.attacks.observation import Attack
from fedveil.attacks.participation.calibrated_loss import CalibratedLoss
from fedveil.attacks.participation.own_update import OwnUpdate
from fedveil.attacks.participation.weighing import Weighing
from fedveil.errors import FieldError

ERROR = 0.05  # wanted rate of either error


@dataclass(frozen=True, eq=False)
class Adaptive(Weighing):
    """Weigh losses and the others' updates, and stop early; see `Weighing` for the parameters."""

    name: ClassVar[str] = "adaptive"
    summary: ClassVar[str] = "sequential test on calibrated losses and own-update scores, learnt from rehearsals"
    needs: ClassVar[frozenset[str]] = CalibratedLoss.needs | OwnUpdate.needs | {"rehearsals"}
    weighs: ClassVar[tuple[type[Attack], ...]] = (CalibratedLoss, OwnUpdate)


@dataclass(frozen=True)
class Decisions:
    """How sequential tests ended.

    Attributes
    ----------
    said : tuple of int
        One a run: 1 (IN), 0 (OUT), -1 (undecided when the run ended).
    rounds : tuple of int
        Rounds until each decision, or all of them.
    """

    said: tuple[int, ...]
    rounds: tuple[int, ...]


def decide(evidence: Tensor, miss: float = ERROR, alarm: float = ERROR) -> Decisions:
    """Wald's test on log-likelihood ratios [n, R].

    Parameters
    ----------
    evidence : Tensor
        After each round of each run.
    miss, alarm : float
        Wanted rates: OUT is said although the target takes part, IN although it does not.

    Raises
    ------
    FieldError
        For rates outside of (0, .5).
    """
    for name, value in (("miss", miss), ("alarm", alarm)):
        if not 0 < value < 0.5:
            raise FieldError(name, value, "must be a number strictly between 0 and 0.5")
    lower, upper = boundaries(miss, alarm)
    said, rounds = [], []
    for row in evidence:
        crossed = ((row >= upper) | (row <= lower)).nonzero()
        if len(crossed):
            first = int(crossed[0])
            said.append(1 if float(row[first]) >= upper else 0)
            rounds.append(first + 1)
        else:
            said.append(-1)
            rounds.append(len(row))
    return Decisions(tuple(said), tuple(rounds))


def boundaries(miss: float = ERROR, alarm: float = ERROR) -> tuple[float, float]:
    """The lower and the upper boundary, for figures."""
    return math.log(miss / (1 - alarm)), math.log((1 - miss) / alarm)
