"""Play what an audit has planned, and keep what is finished."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Protocol

from fedveil.attacks.paper import MULTI_ROUND, MULTI_ROUNDS, SINGLE_SHOT
from fedveil.errors import FieldError, NoReplyError
from fedveil.experiments.audit_folder import AuditFolder, Losses
from fedveil.experiments.audit_paper import play_multi_round, play_single_shot
from fedveil.experiments.audit_plan import REHEARSALS, Planned, one_run, stage_of
from fedveil.experiments.compare import multiplier_for
from fedveil.experiments.config import Config
from fedveil.experiments.replicates import Stage
from fedveil.experiments.replicates_record import HONEST, MALICIOUS, Case, Replicate
from fedveil.experiments.settings import configure

SAME = 1e-3  # a matched sigma is what the multiplier gives, to rounding


class AuditProgress(Protocol):
    """Is told how an audit goes."""

    def begin(self, steps: int) -> None:
        """So many rounds of blocks of replicates lie ahead."""

    def advance(self, text: str) -> None:
        """One of them is done."""

    def say(self, text: str) -> None:
        """Something that the user should know."""

    def end(self) -> None:
        """It is over, whatever happened."""


class Quiet:
    """Tells nobody."""

    def begin(self, steps: int) -> None:
        """Nothing."""

    def advance(self, text: str) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


def play(
    config: Config,
    planned: Sequence[Planned],
    stages: Sequence[Stage],
    cases: Sequence[Case],
    chosen: Sequence[str],
    folder: AuditFolder,
    progress: AuditProgress,
) -> None:
    """Play what is not there yet, setting by setting; finished replicates go to the folder block by block.

    Parameters
    ----------
    config : Config
        Of the audit.
    planned, stages
        The settings, in the same order.
    cases : sequence of Case
        All replicates.
    chosen : sequence of str
        Attacks, for the paper's statistics.
    folder : AuditFolder
        Where finished ones are kept.
    progress : AuditProgress
        Is told.
    """
    missing = [c for c in cases if c not in folder.done]
    statistics = [name for name in (SINGLE_SHOT, MULTI_ROUND) if name in chosen]
    if folder.done and missing:
        progress.say(f"going on: {len(cases) - len(missing)} of {len(cases)} replicates are there")
    steps = sum(stage.config.rounds * len(_blocks(stage, missing)) for stage in stages)
    rounds = {SINGLE_SHOT: 1, MULTI_ROUND: MULTI_ROUNDS}
    steps += sum(rounds[s] for stage in stages for s in statistics if (s, stage.label) not in folder.paper)
    progress.begin(steps)
    try:
        for one, first in zip(planned, stages, strict=True):
            stage = _matched(config, one, first, folder.done) if one.matches else first
            _play_paper(stage, statistics, folder, progress)
            for block in _blocks(stage, missing):
                tick = _tick(progress, f"{stage.label}, {len(block)} runs, {block[0].kind} adversary")
                folder.add(stage.play(block, tick))
    finally:
        progress.end()


def _blocks(stage: Stage, missing: Sequence[Case]) -> list[list[Case]]:
    found = []
    for kind in (HONEST, MALICIOUS):
        left = [c for c in missing if (c.setting, c.kind) == (stage.label, kind)]
        found += [left[i : i + stage.block] for i in range(0, len(left), stage.block)]
    return found


def _play_paper(stage: Stage, statistics: Sequence[str], folder: AuditFolder, progress: AuditProgress) -> None:
    players = {SINGLE_SHOT: play_single_shot, MULTI_ROUND: play_multi_round}
    for name in statistics:
        if (name, stage.label) not in folder.paper:
            tick = _tick(progress, f"{stage.label}, {name}")
            try:
                losses: Losses | str = players[name](stage.config, stage.roles, tick)
            except NoReplyError as error:
                losses = str(error)
            folder.add_paper(name, stage.label, losses)


def _tick(progress: AuditProgress, text: str) -> Callable[[], None]:
    return lambda: progress.advance(text)


def _matched(config: Config, planned: Planned, stage: Stage, done: Mapping[Case, Replicate]) -> Stage:
    """The setting with the average sigma of an earlier one: of its first rehearsals, which every audit plays.

    Only of those in which the target takes part, as in the federation that is asked about: metric privacy's sigma
    follows who does, and with the others in the mean the two settings would not be equally noisy in it.

    Raises
    ------
    FieldError
        If replicates are there whose sigma is another: an earlier version matched it otherwise.
    """
    assert planned.setting is not None
    sigmas = [
        r.sigma
        for c, r in done.items()
        if (c.setting, c.kind, c.phase, c.inside) == (planned.matches, HONEST, "rehearsal", True)
        and c.index < REHEARSALS
        and r.sigma is not None
    ]
    _refuse_another_sigma(planned.label, sigmas, done)
    clients = len(stage.setup.arguments["clients"])
    multiplier = multiplier_for(planned.config, fmean(sigmas) if sigmas else None, clients, planned.matches)
    found = configure(config, planned.label, planned.setting, noise_multiplier=multiplier, derived_from=planned.matches)
    return stage_of(replace(planned, config=one_run(found)), stage.roles, config.seed, stage.setup.dealt)


def _refuse_another_sigma(label: str, sigmas: Sequence[float], done: Mapping[Case, Replicate]) -> None:
    for case, replicate in done.items():
        if (case.setting, case.kind, case.inside) != (label, HONEST, True) or replicate.sigma is None or not sigmas:
            continue
        if not math.isclose(replicate.sigma, fmean(sigmas), rel_tol=SAME):
            raise FieldError(
                "--out",
                label,
                f"its runs there have an average sigma of {replicate.sigma:.4g}, the runs that they are matched with "
                f"{fmean(sigmas):.4g}: an earlier version matched them otherwise. Give another folder",
            )
