"""From scores to verdicts: thresholds and likelihoods come from rehearsals, figures from the other runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedveil.attacks import ATTACKS, Active, Adaptive, SequentialEvidence, SideChannel, Weighing, decide, judge
from fedveil.attacks.adaptive import ERROR
from fedveil.attacks.observation import Attack
from fedveil.attacks.result import AuditResult
from fedveil.attacks.statistics import Estimate, rate
from fedveil.experiments.replicates import PUBLISHED
from fedveil.experiments.replicates_data import WORLDS, Roles
from fedveil.experiments.replicates_record import HONEST, MALICIOUS, Case, Replicate


@dataclass(frozen=True)
class Sequential:
    """How the adaptive attack decided.

    Attributes
    ----------
    wanted : float
        Error rate of either kind that the boundaries are for.
    miss, alarm : Estimate
        Measured: OUT said of runs with the target, IN of runs without.
    undecided : int
        Runs that ended without a decision, of both worlds.
    rounds_in, rounds_out : float
        Median number of rounds to a decision (all rounds, where there was none).
    """

    wanted: float
    miss: Estimate
    alarm: Estimate
    undecided: int
    rounds_in: float
    rounds_out: float


@dataclass(frozen=True, eq=False)
class Verdict:
    """One attack in one setting: its result, and what figures are drawn from.

    Attributes
    ----------
    result : AuditResult
        Figures.
    inside, outside : Tensor
        [n, R], evidence after each round of the evaluated runs.
    sequential : Sequential or None
        Of the adaptive attack.
    """

    result: AuditResult
    inside: Tensor
    outside: Tensor
    sequential: Sequential | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, verdicts included."""
        values = self.result.to_dict()
        scores = {"in": self.inside[:, -1].tolist(), "out": self.outside[:, -1].tolist()}
        return {**values, "scores": scores, "sequential": None if self.sequential is None else asdict(self.sequential)}


@dataclass(frozen=True)
class Refused:
    """An attack that could not be run, and why."""

    attack: str
    setting: str
    reason: str


@dataclass(frozen=True, eq=False)
class Judged:
    """All attacks of one audit."""

    verdicts: list[Verdict] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


def rows_of(attack: str) -> tuple[str, ...]:
    """Rows of the table: the side channel has one for each way of publishing."""
    return tuple(PUBLISHED.values()) if attack == SideChannel.name else (attack,)


def judge_all(
    replicates: Mapping[Case, Replicate],
    settings: Sequence[str],
    attacks: Iterable[str],
    roles: Roles,
    delta: float,
) -> Judged:
    """Judge every attack in every setting, the undefended one first.

    Parameters
    ----------
    replicates : mapping
        Finished ones.
    settings : sequence of str
        Labels; the first is the federation without its defence.
    attacks : iterable of str
        Of `ATTACKS`.
    roles : Roles
        Of the audit.
    delta : float
        Of the epsilon that is bounded.
    """
    found = Judged()
    for attack in attacks:
        for row in rows_of(attack):
            valid: bool | None = None
            for setting in settings:
                verdict = _judged(replicates, setting, ATTACKS[attack], row, roles, delta)
                if isinstance(verdict, Refused):
                    found.refused.append(verdict)
                    continue
                if setting == settings[0]:
                    valid = verdict.result.succeeds
                result = replace(verdict.result, valid_without_defence=valid)
                found.verdicts.append(replace(verdict, result=result))
    return found


def _judged(
    replicates: Mapping[Case, Replicate], setting: str, attack: type[Attack], row: str, roles: Roles, delta: float
) -> Verdict | Refused:
    kind = MALICIOUS if attack is Active else HONEST
    weighing = attack if issubclass(attack, Weighing) else None
    traces = [row] if weighing is None else [w.name for w in weighing.weighs]
    chosen = [r for r in replicates.values() if (r.case.setting, r.case.kind) == (setting, kind)]
    chosen.sort(key=lambda r: r.case)
    refused = [r.refused.get(trace, r.stopped) for r in chosen for trace in traces if trace not in r.scores]
    if refused or not chosen:
        return Refused(row, setting, refused[0] if refused else "was not played")
    rounds = min(len(r.scores[trace]) for r in chosen for trace in traces)

    def group(phase: str, inside: bool) -> Tensor:
        some = [r.scores for r in chosen if (r.case.phase, r.case.inside) == (phase, inside)]
        found = {t: torch.tensor([s[t][:rounds] for s in some], dtype=torch.float64) for t in traces}
        return found[row] if weighing is None else weighing.stacked(found)

    rehearsed = group("rehearsal", True), group("rehearsal", False)
    inside, outside = group("run", True), group("run", False)
    threshold: float | None = None
    if weighing is not None:
        model = SequentialEvidence.fit(*rehearsed)
        inside, outside, threshold = model.weigh(inside), model.weigh(outside), 0.0
    else:
        inside, outside = attack.evidence(inside), attack.evidence(outside)
    last = outside[:, -1].numpy()
    earlier = attack.evidence(rehearsed[0])[:, -1].numpy(), attack.evidence(rehearsed[1])[:, -1].numpy()
    result = judge(
        row,
        setting,
        inside[:, -1].numpy(),
        last,
        rehearsed=earlier if weighing is None else None,
        threshold=threshold,
        null=(last[::2], last[1::2]) if len(last) >= 4 else None,
        delta=delta,
        relation=WORLDS[roles.world],
        threat="malicious client" if kind == MALICIOUS else "semi-honest client",
    )
    sequential = _sequential(inside, outside) if attack is Adaptive else None
    return Verdict(result, inside, outside, sequential)


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
