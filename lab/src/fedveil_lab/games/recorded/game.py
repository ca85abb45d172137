"""Game on a recorded run: three families of attacks, as far as the stored files allow."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from fedveil.errors import FedVeilError, require_choice, require_count
from fedveil.home import weights_of
from fedveil_lab.attacks import Verdict
from fedveil_lab.attacks.statistics import CONFIDENCE
from fedveil_lab.config import Config
from fedveil_lab.games.game import Judgement, Refused
from fedveil_lab.games.recorded import inversion, membership, participation
from fedveil_lab.games.recorded.pairs import Drawn, OrderedPairs, differences, exceeds, proven_by
from fedveil_lab.games.recorded.stored import Stored, stored_run
from fedveil_lab.grid import Cell, Finished

MEMBERSHIP, PARTICIPATION, INVERSION = "membership", "participation", "inversion"
FAMILIES = (MEMBERSHIP, PARTICIPATION, INVERSION)
IN_ORDER = "share of pairs in order"
RECORDED = inversion.RECORDED
LIMITS = (
    "epsilon and mu are lower bounds for replacing one by another; in each family the epsilons hold together at 95%, "
    "and so do the mus; they rest on the random draw of who was held out, or asked",
    "nothing here is an upper bound: an attack that fails on one run is no promise",
)


@dataclass(frozen=True, eq=False)
class RecordedGame:
    """Game that attacks the contents of a finished run's folder.

    Parameters
    ----------
    folder : Path
        Folder of a finished run, or of a deployed server.
    configured : Config, optional
        Configuration whose ``[data]`` and ``[model]`` say which client held which examples. Default: the folder's.
    attacks : tuple of str
        Names from `FAMILIES`; empty: all.
    replicates : int
        Largest number of client answers to invert.

    Raises
    ------
    FieldError
        If a family is unknown, or the folder does not fit.
    """

    folder: Path
    configured: Config | None = None
    attacks: tuple[str, ...] = ()
    replicates: int = 3

    name: ClassVar[str] = "recorded"
    known: ClassVar[Collection[str]] = FAMILIES
    together: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in self.attacks:
            require_choice("--attack", name, FAMILIES)
        require_count("--replicates", self.replicates)

    @cached_property
    def stored(self) -> Stored:
        """The stored run."""
        return stored_run(self.folder, self.configured)

    @property
    def config(self) -> Config:
        """The configuration whose ``[data]`` and ``[model]`` describe the clients."""
        return self.stored.setup.config

    def question(self) -> dict[str, Any]:
        """Return question and model as plain values."""
        digest = hashlib.sha256(weights_of(self.folder)).hexdigest()
        asked = list(self.attacks or FAMILIES)
        return {"attacks": asked, "replicates": self.replicates, "model": digest}

    def check(self) -> list[str]:
        """Return notes on what the folder stores."""
        return [self.stored.contents()]

    def cells(self) -> list[Cell]:
        """Return an empty list, as nothing is trained."""
        return []

    def judge(self, finished: Finished) -> Judgement:
        """Make one verdict per attack; attacks that could not be played are listed with the reason."""
        families: dict[str, Callable[[], _Found]] = {
            MEMBERSHIP: self._membership,
            PARTICIPATION: self._participation,
            INVERSION: self._inversion,
        }
        verdicts: list[Verdict] = []
        refused: list[Refused] = []
        notes: list[str] = []
        for family in self.attacks or FAMILIES:
            try:
                found = families[family]()
            except FedVeilError as error:
                refused.append(Refused(family, RECORDED, str(error)))
                continue
            verdicts += found.verdicts
            notes += found.notes
            refused += [
                Refused(f"{family}: {name}", RECORDED, why) for name, why in found.refused.items()
            ]
        promise = self.stored.promise
        if promise is None:
            told = "none"
        else:
            told = promise.describe(self.stored.delta)
        values = {"promise": told, "stored": self.stored.contents()}
        return Judgement(verdicts, refused, values, [f"the run's promise: {told}", *notes, *LIMITS])

    def _membership(self) -> "_Found":
        without = membership.refused(self.stored)
        played = list(membership.scored(self.stored))
        return self._judged(MEMBERSHIP, "one pair of a client and class", played, without)

    def _participation(self) -> "_Found":
        asked, scores, without = participation.scored(self.stored)
        played = list(scores)
        return self._judged(PARTICIPATION, f"one pair of clients, {asked}", played, without)

    def _inversion(self) -> "_Found":
        found = inversion.inverted(self.stored, self.replicates)
        verdicts = [replace(v, attack=f"{INVERSION}: {v.attack}") for v in found.verdicts]
        return _Found(verdicts, dict(found.refused), [])

    def _judged(
        self,
        family: str,
        unit: str,
        played: Iterable[tuple[str, list[Drawn]]],
        without: Mapping[str, str],
    ) -> "_Found":
        """Judge the attacks of a family together on pairs; each has its share of the error."""
        stored, refused, verdicts, notes = self.stored, dict(without), list[Verdict](), list[str]()
        scores = {name: differences(parts, stored.setup.config.seed) for name, parts in played}
        confidence = 1 - (1 - CONFIDENCE) / max(1, len(scores))
        for name, found in scores.items():
            try:
                proven = proven_by(found, delta=stored.delta, confidence=confidence)
            except FedVeilError as error:
                refused[name] = str(error)
                continue
            verdicts.append(_verdict(f"{family}: {name}", unit, proven))
            of_run = family == MEMBERSHIP
            if of_run and exceeds(stored.promise, proven, stored.delta):
                notes.append(
                    f"{name} REFUTES the promise: it proves more for two than was promised for two"
                )
        return _Found(verdicts, refused, notes)


@dataclass(frozen=True)
class _Found:
    verdicts: list[Verdict]
    refused: dict[str, str]
    notes: list[str]


def _verdict(attack: str, unit: str, proven: OrderedPairs) -> Verdict:
    bound = proven.bound
    details = {
        "epsilon >=": bound.epsilon,
        "epsilon at most provable": bound.epsilon_ceiling,
        "mu >=": bound.mu,
        "mu at most provable": bound.mu_ceiling,
    }
    return Verdict.of(
        proven.order,
        attack=attack,
        setting=RECORDED,
        figure=IN_ORDER,
        n=proven.pairs,
        replication=unit,
        threat=participation.SERVER.who,
        details=details,
    )
