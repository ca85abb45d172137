"""What an audit plays: settings, the undefended federation first, and their replicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.attacks import ATTACKS, Active
from fedveil.attacks.observation import ThreatError
from fedveil.attacks.paper import MULTI_ROUND, SINGLE_SHOT
from fedveil.errors import FieldError, nearest
from fedveil.experiments.audit_folder import Earlier
from fedveil.experiments.config import Config
from fedveil.experiments.dealing import Dealt
from fedveil.experiments.replicates import Stage
from fedveil.experiments.replicates_record import HONEST, MALICIOUS, Case, never_drawn
from fedveil.experiments.replicates_roles import Roles
from fedveil.experiments.sections import Comparison, Setting
from fedveil.experiments.settings import configure, variants_of
from fedveil.experiments.setup import prepare, resolve_device

VANILLA = "vanilla"
NAMES = (*ATTACKS, SINGLE_SHOT, MULTI_ROUND)
LEAST, REHEARSALS = 4, 8  # runs in each world; rehearsals are half as many as runs, and at least so many


@dataclass(frozen=True, eq=False)
class Planned:
    """One setting of an audit.

    Attributes
    ----------
    label : str
        For tables.
    config : Config
        Of one run; with a noise multiplier of 1 where that has yet to be matched.
    setting : Setting or None
        As written in ``[compare]``.
    """

    label: str
    config: Config
    setting: Setting | None = None

    @property
    def matches(self) -> str:
        """The setting whose average sigma this one takes, or ""."""
        return "" if self.setting is None else self.setting.match_sigma_of


def plan_settings(config: Config, compare: bool) -> list[Planned]:
    """The undefended federation, then the one of ``[privacy]``, or each of ``[compare]``."""
    single = one_run(config)
    if compare:
        found = [_planned(config, v.label, v.setting) for v in variants_of(config)]
    else:
        found = [Planned(config.privacy.method, single)]
    plain = [p for p in found if p.config.privacy.method == VANILLA]
    if not plain:
        undefended = configure(single, VANILLA, Setting.model_validate({"method": VANILLA}))
        plain = [Planned(VANILLA, undefended)]
    return [*plain, *(p for p in found if p not in plain)]


def one_run(config: Config, compare: bool = False) -> Config:
    """Without ``[compare]``, unless that is kept, and on the embedded engine, which plays many at once."""
    kept = config.compare if compare else Comparison()
    return config.model_copy(update={"compare": kept, "engine": "local", "device": resolve_device(config.device)})


def chosen_attacks(asked: Sequence[str], config: Config) -> tuple[str, ...]:
    """The attacks that were asked for, or all that the configuration allows.

    Raises
    ------
    FieldError
        For an unknown name, and for a statistic without what it is computed from.
    """
    for name in asked:
        if name not in NAMES:
            raise FieldError("--attack", name, nearest(name, NAMES))
    if SINGLE_SHOT in asked and not config.data.holdout:
        raise FieldError("--attack", SINGLE_SHOT, "needs an aggregated test loss: set data.holdout")
    every = (n for n in NAMES if n != SINGLE_SHOT or config.data.holdout)
    return tuple(dict.fromkeys(asked)) or tuple(every)


def with_earlier(chosen: Sequence[str], runs: int, earlier: Earlier) -> tuple[tuple[str, ...], int, str]:
    """Attacks and replicates of a folder once more has been asked for: what is there is kept.

    Returns
    -------
    tuple
        Attacks, in the order of `NAMES`; replicates; one line on what was kept though it was not asked for, or "".
    """
    union = tuple(name for name in NAMES if name in {*chosen, *earlier.attacks})
    kept = [name for name in union if name not in chosen]
    said = [f"its attacks ({', '.join(kept)})"] if kept else []
    said += [f"its {earlier.replicates} replicates, instead of {runs}"] if earlier.replicates > runs else []
    line = f"kept from the audit in this folder: {' and '.join(said)}" if said else ""
    return union, max(runs, earlier.replicates), line


def stage_of(planned: Planned, roles: Roles, seed: int, dealt: Dealt | None = None) -> Stage:
    """Build one setting, on data that were dealt out already or have to be loaded."""
    return Stage(planned.label, planned.config, prepare(planned.config, dealt=dealt), roles, seed)


def check_threats(stages: Sequence[Stage], asked: Sequence[str]) -> None:
    """Refuse what was asked for by name and no adversary of a defended federation can do.

    Raises
    ------
    ThreatError
        Naming what is missing.
    """
    defended = stages[1:] or stages
    for name in asked:
        if name not in ATTACKS:
            continue
        kind, errors = MALICIOUS if name == Active.name else HONEST, []
        for stage in defended:
            try:
                stage.threat(kind, reference=True).require(name, ATTACKS[name].needs)
            except ThreatError as error:
                errors.append(error)
        if len(errors) == len(defended):  # where only some lack it, their lines say so
            raise errors[0]


def plan_cases(planned: Sequence[Planned], attacks: Sequence[str], runs: int) -> list[Case]:
    """Every replicate: of each setting, with honest and crafted updates as needed, rehearsed and evaluated."""
    honest = any(name != Active.name for name in attacks) or (bool(attacks) and any(p.matches for p in planned))
    kinds = [HONEST] * honest + [MALICIOUS] * (Active.name in attacks)
    counts = {"rehearsal": rehearsals_for(runs), "run": runs}
    return [
        Case(label, kind, phase, inside, index)
        for label in (p.label for p in planned)
        for kind in kinds
        for phase, count in counts.items()
        for index in range(count)
        for inside in (True, False)
    ]


def rehearsals_for(runs: int) -> int:
    """Rehearsals in each world."""
    return max(REHEARSALS, runs // 2)


def look_ahead(stage: Stage, cases: Sequence[Case]) -> list[str]:
    """Refuse what cannot work before anything is written; say what is odd."""
    own = [case for case in cases if case.setting == stage.label]
    stage.rehearse_deal(own)
    notes = list(stage.setup.warnings)
    inside = [case for case in own if case.inside]
    lost = never_drawn(stage.config, len(stage.setup.arguments["clients"]), stage.roles, inside, stage.config.seed)
    if inside and len(lost) == len(inside):
        accepted = "is in no round's cohort in any run: it never trains; raise rounds or clients_per_round"
        raise FieldError("--target", stage.roles.target, accepted)
    if lost:
        notes.append(f"in {len(lost)} of {len(inside)} runs 'with' the target it is in no cohort, and never trains")
    return notes


def _planned(config: Config, label: str, setting: Setting) -> Planned:
    forced: dict[str, Any] = {"noise_multiplier": 1.0} if setting.match_sigma_of else {}
    return Planned(label, one_run(configure(config, label, setting, **forced)), setting)
