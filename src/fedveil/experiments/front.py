"""Attack every setting of a comparison, so that accuracy can be set against what a client learns of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedveil.errors import require_count
from fedveil.experiments.attacked import AUDIT, keep
from fedveil.experiments.audit import audit
from fedveil.experiments.audit_plan import LEAST, look_ahead, plan_cases, plan_settings, stage_of
from fedveil.experiments.audit_play import AuditProgress
from fedveil.experiments.config import Config
from fedveil.experiments.replicates_roles import Roles
from fedveil.experiments.setup import prepare
from fedveil.experiments.summary import Summary

ATTACKS = ("loss", "calibrated-loss", "likelihood-ratio", "own-update", "adaptive", "noise-size")
"""Every attack that needs no metrics, no colluders and no crafted updates: one set of replicates serves them all."""


def check_audit(config: Config, replicates: int) -> None:
    """Refuse what cannot be audited, before anything is run; 0 replicates are no audit.

    Raises
    ------
    FieldError
        For too few replicates or clients, or too few examples to put another client in one's place.
    """
    if not replicates:
        return
    require_count("--audit", replicates, least=LEAST)
    first, *_ = planned = plan_settings(config, compare=True)
    roles = Roles.of(len(prepare(first.config).arguments["clients"]), None, None)
    stage = stage_of(first, roles, config.seed)
    look_ahead(stage, plan_cases(planned, ATTACKS, replicates))


def attack_settings(
    config: Config, folder: Path, summaries: Sequence[Summary], replicates: int, progress: AuditProgress
) -> list[Summary]:
    """Attack every setting of a comparison; replicates that are there are not played again.

    Parameters
    ----------
    config : Config
        Of the comparison.
    folder : Path
        Where it is.
    summaries : sequence of Summary
        Of its runs.
    replicates : int
        Evaluated runs with a client, and as many without.
    progress : AuditProgress
        Is told how it goes.

    Returns
    -------
    list of Summary
        With their "audits"; comparison.json holds them too.
    """
    audit(config, folder / AUDIT, attacks=ATTACKS, replicates=replicates, compare=True, progress=progress)
    return keep(summaries, folder)
