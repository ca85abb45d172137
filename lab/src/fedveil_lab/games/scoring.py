"""Verdicts from scores: rehearsals set thresholds and likelihoods, the other runs give the figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import attrgetter
from statistics import median
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedveil.accounting import PARTS
from fedveil.engines import draw_cohort
from fedveil.mechanisms import keyed_seed
from fedveil_lab.attacks import (
    ATTACKS,
    Active,
    Adaptive,
    SequentialEvidence,
    SideChannel,
    Weighing,
    decide,
    judge,
)
from fedveil_lab.attacks.bounds import EpsilonBound, joint_bound
from fedveil_lab.attacks.observation import Attack
from fedveil_lab.attacks.participation.weighing import ERROR
from fedveil_lab.attacks.statistics import Estimate, rate
from fedveil_lab.attacks.verdict import Participation
from fedveil_lab.config import Config
from fedveil_lab.games.game import Judgement, Refused
from fedveil_lab.games.roles import WORLDS, World
from fedveil_lab.games.view import PUBLISHED
from fedveil_lab.grid import Outcome
from fedveil_lab.runs import Summary

HONEST, MALICIOUS = "honest", "crafted"  # what the adversary sends


@dataclass(frozen=True, order=True)
class Case:
    """One run of a participation game: its setting, world and number.

    Attributes
    ----------
    setting : str
        Label of the defence, or "vanilla".
    kind : {"honest", "crafted"}
        What the adversary sends.
    phase : {"rehearsal", "run"}
        Rehearsals set thresholds and likelihoods; runs are evaluated.
    inside : bool
        Whether the target takes part.
    index : int
        Number of the run, from 0.
    """

    setting: str
    kind: str
    phase: str
    inside: bool
    index: int

    def seed(self, base: int) -> int:
        """Seed of data, first model, training and noise; it is the same in every setting, for a fair comparison."""
        return keyed_seed("audit", base, self.phase, int(self.inside), self.index)


def cases_of(
    settings: Iterable[str], kinds: Sequence[str], rehearsals: int, runs: int
) -> list[Case]:
    """List all runs of the settings in both worlds, the one with the target first."""
    cases = []
    for setting, kind in product(settings, kinds):
        for phase, count in (("rehearsal", rehearsals), ("run", runs)):
            for index, inside in product(range(count), (True, False)):
                cases.append(Case(setting, kind, phase, inside, index))
    return cases


@dataclass(frozen=True)
class Replicate:
    """Figures that are kept of one run.

    Attributes
    ----------
    case : Case
        Setting, world and number of the run.
    summary : Summary
        The run's summary.
    scores : dict of str to list of float
        Scores by attack, one per round.
    refused : dict of str to str
        Attacks that could not run, with the reason.
    missing : sequence of int
        Classes of the target that the shadow set lacks.
    """

    case: Case
    summary: Summary
    scores: Mapping[str, Sequence[float]]
    refused: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[int] = ()

    @classmethod
    def of(cls, case: Case, outcome: Outcome) -> "Replicate":
        """Make the figures of a finished run."""
        [seen] = outcome.summary.values["concluded"].values()
        return cls(case, outcome.summary, **seen)

    @property
    def stopped(self) -> str:
        """Why the run ended early, or ""."""
        return str(self.summary.values["stopped"])

    @property
    def sigma(self) -> float | None:
        """Mean sigma of the server's noise over rounds; None without such noise."""
        if self.summary.values["trust"] != "central":
            return None
        return self.summary.noise("sigma")

    @property
    def relation(self) -> str:
        """Neighbouring relation of the client's epsilon; "" without one."""
        parties = self.summary.values["guarantees"]
        party = parties.get("server") or parties["worst client"]
        if "epsilon" not in party or party["unit"] in PARTS:
            return ""
        return str(party["relation"])


def never_drawn(config: Config, n: int, world: World, cases: Sequence[Case]) -> list[Case]:
    """List the cases in which the target is in no cohort of the `n` clients, so that the run has no target at all."""
    size = config.clients_per_round or n
    lost = []
    for case in cases:
        seed = case.seed(world.base)
        drawn = (draw_cohort(seed, r, range(n), size) for r in range(1, config.rounds + 1))
        if case.inside and not any(world.target in cohort for cohort in drawn):
            lost.append(case)
    return lost


UNPLAYED = "was not played"


@dataclass(frozen=True)
class Sequential:
    """Decisions of the adaptive (sequential) attack.

    Attributes
    ----------
    wanted : float
        Error rate, of either kind, for which the boundaries are set.
    miss, alarm : Estimate
        Measured error rates: miss is "out" with the target, alarm is "in" without it.
    undecided : int
        Number of runs without a decision, over both worlds.
    rounds_in, rounds_out : float
        Median number of rounds until a decision, in each world; all rounds if there is none.
    """

    wanted: float
    miss: Estimate
    alarm: Estimate
    undecided: int
    rounds_in: float
    rounds_out: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Scored(Participation):
    """Result of one attack in one setting, with the data for figures.

    Attributes
    ----------
    inside, outside : Tensor
        Evidence after each round of the evaluated runs with the target and without, [n, R].
    sequential : Sequential or None
        Decisions of an adaptive attack.
    supposed : bool
        Whether the attack uses metrics that are not published in this way.
    """

    inside: Tensor
    outside: Tensor
    sequential: Sequential | None = None
    supposed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, verdicts included."""
        values = super().to_dict()
        supposed, sequential = values.pop("supposed"), values.pop("sequential")
        scores = {
            "in": values.pop("inside")[:, -1].tolist(),
            "out": values.pop("outside")[:, -1].tolist(),
        }
        return {**values, "supposed": supposed, "scores": scores, "sequential": sequential}


@dataclass(frozen=True, eq=False)
class Audit(Judgement):
    """Result of a participation game.

    Attributes
    ----------
    settings : tuple of str
        Labels of the settings, the undefended federation first.
    together : dict of str to EpsilonBound
        Joint bound of all attacks at 95%, by setting.
    """

    verdicts: list[Scored] = field(default_factory=list)
    together: dict[str, EpsilonBound] = field(default_factory=dict)
    settings: tuple[str, ...] = ()


def modes_of(attack: str) -> tuple[str, ...]:
    """List the ways of publishing for which an attack has a row each; one row if it uses no published metrics."""
    if "metrics" in ATTACKS[attack].needs:
        return tuple(PUBLISHED)
    return ("",)


def row_of(attack: str, mode: str) -> str:
    """Return the name of an attack's row in tables."""
    if not mode:
        return attack
    return f"{attack} ({mode})"


def attack_of(row: str) -> str:
    """Return the attack of a row: the inverse of `row_of`."""
    return row.partition(" (")[0]


def judge_all(
    replicates: Mapping[Case, Replicate],
    settings: Sequence[str],
    attacks: Iterable[str],
    world: str,
    delta: float,
    published: str = "off",
) -> Audit:
    """Judge every attack in every setting, the undefended one first.

    Parameters
    ----------
    replicates : mapping
        Finished runs by case.
    settings : sequence of str
        Labels of the settings; the first is the undefended federation.
    attacks : iterable of str
        Names from `ATTACKS`.
    world : str
        Name from `WORLDS`: what replaces the target.
    delta : float
        Delta of the bounded epsilon.
    published : {"off", "noised", "clear"}
        How metrics are published. Attacks on other ways are marked as supposed.
    """
    audit = Audit(settings=tuple(settings))
    for attack in attacks:
        for mode in modes_of(attack):
            valid: bool | None = None
            plain: float | None = None
            for setting in settings:
                verdict = _judged(replicates, setting, ATTACKS[attack], mode, world, delta)
                if isinstance(verdict, Refused):
                    audit.refused.append(verdict)
                    continue
                if setting == settings[0]:
                    valid, plain = verdict.succeeds, verdict.point
                supposed = bool(mode) and mode != published
                audit.verdicts.append(
                    replace(verdict, valid=valid, without_defence=plain, supposed=supposed)
                )
    audit.together.update(_together(audit.verdicts, delta))
    return audit


def _together(verdicts: Sequence[Scored], delta: float) -> dict[str, EpsilonBound]:
    """Make joint bounds by setting, from attacks on what adversaries really see."""
    judged: dict[str, list[tuple[ArrayLike, ArrayLike, float]]] = {}
    for verdict in verdicts:
        threshold = verdict.threshold
        if threshold is not None and not verdict.supposed:
            scores = verdict.inside[:, -1].numpy(), verdict.outside[:, -1].numpy()
            judged.setdefault(verdict.setting, []).append((*scores, threshold))
    return {setting: joint_bound(alone, delta=delta) for setting, alone in judged.items()}


def _judged(
    replicates: Mapping[Case, Replicate],
    setting: str,
    attack: type[Attack],
    mode: str,
    world: str,
    delta: float,
) -> Scored | Refused:
    kind, threat, row = HONEST, "semi-honest client", row_of(attack.name, mode)
    if attack is Active:
        kind, threat = MALICIOUS, "malicious client"
    parts, weighing = [attack], None
    if issubclass(attack, Weighing):
        parts, weighing = list(attack.weighs), attack
    traces = {part.name: part.name for part in parts}
    if SideChannel in parts:
        traces[SideChannel.name] = row_of(SideChannel.name, mode)
    chosen = [r for r in replicates.values() if (r.case.setting, r.case.kind) == (setting, kind)]
    chosen.sort(key=attrgetter("case"))
    if not chosen:
        return Refused(row, setting, UNPLAYED)
    lengths = []
    for replicate in chosen:
        for trace in traces.values():
            if trace not in replicate.scores:
                why = replicate.refused.get(trace) or replicate.stopped or UNPLAYED
                return Refused(row, setting, why)
            lengths.append(len(replicate.scores[trace]))
    rounds = min(lengths)

    def group(phase: str, inside: bool) -> Tensor:
        some = [r.scores for r in chosen if (r.case.phase, r.case.inside) == (phase, inside)]
        tensors = {}
        for name, trace in traces.items():
            evidence = [scores[trace][:rounds] for scores in some]
            tensors[name] = torch.tensor(evidence, dtype=torch.float64)
        if weighing is None:
            return tensors[attack.name]
        return weighing.stacked(tensors)

    rehearsed = group("rehearsal", True), group("rehearsal", False)
    inside, outside = group("run", True), group("run", False)
    threshold: float | None = None
    earlier: tuple[ArrayLike, ArrayLike] | None = None
    if weighing is not None:
        model = SequentialEvidence.fit(*rehearsed, steady=weighing.steady)
        inside, outside, threshold = model.weigh(inside), model.weigh(outside), 0.0
    else:
        inside, outside = attack.evidence(inside), attack.evidence(outside)
        with_target, without = map(attack.evidence, rehearsed)
        earlier = with_target[:, -1].numpy(), without[:, -1].numpy()
    result = judge(
        row,
        setting,
        inside[:, -1].numpy(),
        outside[:, -1].numpy(),
        rehearsed=earlier,
        threshold=threshold,
        delta=delta,
        relation=WORLDS[world],
        threat=threat,
    )
    sequential = None
    if issubclass(attack, Adaptive):
        sequential = _sequential(inside, outside)
    return Scored(**vars(result), inside=inside, outside=outside, sequential=sequential)


def _sequential(inside: Tensor, outside: Tensor) -> Sequential:
    first, second = decide(inside), decide(outside)
    return Sequential(
        wanted=ERROR,
        miss=rate(first.said.count(0), len(first.said)),
        alarm=rate(second.said.count(1), len(second.said)),
        undecided=first.said.count(-1) + second.said.count(-1),
        rounds_in=float(median(first.rounds)),
        rounds_out=float(median(second.rounds)),
    )
