"""One replicate: which one, what is recorded while it is played, and what stays of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from fedveil.accounting import Relation, model_of
from fedveil.attacks import Observation
from fedveil.attacks.observation import ThreatError
from fedveil.engines import Federation
from fedveil.engines.assembly import draw_cohort
from fedveil.engines.history import publishable
from fedveil.engines.lockstep import Played
from fedveil.experiments.config import Config
from fedveil.experiments.replicates_roles import Roles
from fedveil.learning import Metrics
from fedveil.mechanisms import keyed_seed
from fedveil.methods import Publishing

HONEST, MALICIOUS = "honest", "crafted"  # what the adversary sends


@dataclass(frozen=True, order=True)
class Case:
    """One replicate.

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
    trained : int
        Rounds in which the target was in the cohort.
    stopped : str
        Why the run ended early, or "".
    sigma : float or None
        Of the server's noise, mean over rounds; None without such noise.
    relation : str
        That the guarantee's epsilon is for; "" where it has none.
    """

    case: Case
    scores: Mapping[str, Sequence[float]]
    refused: Mapping[str, str]
    accuracy: float | None
    guarantee: str
    missing: Sequence[int]
    trained: int
    stopped: str = ""
    sigma: float | None = None
    relation: str = ""


class Recording:
    """What one federation's adversaries see, round by round."""

    def __init__(self, federation: Federation, adversaries: Sequence[int]) -> None:
        self._models = [federation.models]
        self._adversaries = adversaries
        self._sent: list[Tensor] = []
        self._measured: list[Sequence[Metrics]] = []
        self._shown: list[Mapping[str, float]] = []
        self._sigmas: list[float] = []
        self._observed: Observation | None = None
        self.cohorts: list[Sequence[int]] = []
        self.accuracy: float | None = None

    def add(self, federation: Federation, played: Played) -> None:
        """One round."""
        start, collected = played.asked.broadcast.models, played.collected.replies
        rows = []
        for partition in self._adversaries:
            model = model_of(collected[partition]) if partition in collected else None
            usable = model is not None and bool(model.isfinite().all())  # the server drops what is not
            rows.append(model - start[0] if model is not None and usable else torch.zeros_like(start[0]))
        self._sent.append(torch.stack(rows))
        self._models.append(federation.models)
        self._measured.append(played.record.client_metrics)
        self._shown.append(played.record.published)
        report = played.record.round.report
        self._sigmas += [report["sigma"]] if "sigma" in report else []
        self.cohorts.append(played.asked.partitions)
        self.accuracy = None if played.record.metrics is None else played.record.metrics.accuracy

    def observation(self, cohort: int) -> Observation:
        """All rounds, without metrics."""
        if not self._sent:
            raise ThreatError("the run ended before its first round: there is nothing to observe")
        if self._observed is None or self._observed.rounds < len(self._sent):
            self._observed = Observation(torch.stack(self._models), cohort, sent=torch.stack(self._sent, dim=1))
        return self._observed

    @property
    def sigma(self) -> float | None:
        """Of the server's noise, mean over rounds."""
        return fmean(self._sigmas) if self._sigmas else None

    def published(self, publishing: Publishing, federation: Federation) -> Sequence[Mapping[str, float]]:
        """What clients were shown; published in another way, what they would be shown, with the noise drawn then."""
        if publishing == federation.server.publishing:
            return self._shown if all(self._shown) else ()
        shown = []
        relation: Relation = getattr(federation.method.server, "relation", "zero-out")
        for number, single in enumerate(self._measured, start=1):
            names, figures, counts = publishable(single)
            if not bool((counts > 0).any()):
                return ()
            source = federation.source.child("server", number, "publish", 0)
            releases, _ = publishing.release(names, figures, counts, relation, source)
            shown.append({r.name: float(r.value) for r in releases})
        return shown


def never_drawn(config: Config, n: int, roles: Roles, cases: Sequence[Case], base: int) -> list[Case]:
    """Cases whose target is in no cohort of n clients: such a run has no target, whatever its world is called."""
    size = config.clients_per_round or n
    lost = []
    for case in cases:
        seed = case.seed(base)
        drawn = (draw_cohort(seed, r, range(n), size) for r in range(1, config.rounds + 1))
        if case.inside and not any(roles.target in cohort for cohort in drawn):
            lost.append(case)
    return lost
