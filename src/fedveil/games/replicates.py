"""One run of an audit: which one, and what stays of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedveil.config import Config
from fedveil.config.world import World
from fedveil.engines.assembly import draw_cohort
from fedveil.grid import Outcome
from fedveil.mechanisms import keyed_seed

HONEST, MALICIOUS = "honest", "crafted"  # what the adversary sends


@dataclass(frozen=True, order=True)
class Case:
    """One run.

    Attributes
    ----------
    setting : str
        The defence, or "vanilla".
    kind : {"honest", "crafted"}
        What the adversary sends.
    phase : {"rehearsal", "run"}
        Rehearsals teach thresholds and likelihoods; runs are evaluated.
    inside : bool
        Whether the target takes part.
    index : int
        From 0.
    """

    setting: str
    kind: str
    phase: str
    inside: bool
    index: int

    def seed(self, base: int) -> int:
        """Of data, first model, training and noise: the same in every setting, so that settings are compared alike."""
        return keyed_seed("audit", base, self.phase, int(self.inside), self.index)


@dataclass(frozen=True)
class Replicate:
    """What stays of one.

    Attributes
    ----------
    case : Case
        Which one.
    scores : dict of str to list of float
        One a round for each attack that could run.
    refused : dict of str to str
        Attacks that could not, and why.
    accuracy : float or None
        Of the last model, pooled.
    guarantee : str
        Of the run.
    missing : tuple of int
        Classes of the target that the shadow set lacks.
    stopped : str
        Why the run ended early, or "".
    sigma : float or None
        Of the server's noise, mean over rounds; None without such noise.
    relation : str
        That the guarantee's epsilon is for; "" where it has none, or one for a record.
    """

    case: Case
    scores: Mapping[str, Sequence[float]]
    refused: Mapping[str, str]
    accuracy: float | None
    guarantee: str
    missing: Sequence[int] = ()
    stopped: str = ""
    sigma: float | None = None
    relation: str = ""

    @classmethod
    def of(cls, case: Case, outcome: Outcome) -> Replicate:
        """Read a finished run."""
        values = outcome.summary.values
        [seen] = values["concluded"].values()
        server = values["guarantees"].get("server") or values["guarantees"]["worst client"]
        return cls(
            case=case,
            scores=seen["scores"],
            refused=seen["refused"],
            accuracy=values["metrics"].get("accuracy"),
            guarantee=values["guarantee"],
            missing=tuple(seen["missing"]),
            stopped=values["stopped"],
            sigma=outcome.summary.noise("sigma") if values["trust"] == "central" else None,
            relation=server["relation"] if "epsilon" in server and server["unit"] != "record" else "",
        )


def never_drawn(config: Config, n: int, world: World, cases: Sequence[Case]) -> list[Case]:
    """Cases whose target is in no cohort of n clients: such a run has no target, whatever its world is called."""
    size = config.clients_per_round or n
    lost = []
    for case in cases:
        seed = case.seed(world.base)
        drawn = (draw_cohort(seed, r, range(n), size) for r in range(1, config.rounds + 1))
        if case.inside and not any(world.target in cohort for cohort in drawn):
            lost.append(case)
    return lost
