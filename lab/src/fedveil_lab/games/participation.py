"""Participation game: a federation is run many times, and clients guess whether one other client took part.

On every setting of a comparison it compares accuracy with the success of attacks.

The attacks also run against the federation without its defence: an attack that fails there says nothing about the
defence. Every run has its own data, first model, training order, cohorts and noise.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from fedveil.accounting import PARTS
from fedveil.errors import FieldError, damaged, require_count
from fedveil.methods import Publishing
from fedveil.reading import json_of
from fedveil_lab.attacks import ATTACKS, Active, Attack, SideChannel, ThreatError, Weighing
from fedveil_lab.attacks.bounds import epsilon_ceiling
from fedveil_lab.attacks.verdict import RUN
from fedveil_lab.config import Config
from fedveil_lab.games.game import GAMES, RESULT, Attacking, Planned, play
from fedveil_lab.games.roles import IN_ITS_PLACE, WORLDS, AuditedConfig, World, world_of
from fedveil_lab.games.scoring import (
    HONEST,
    MALICIOUS,
    Audit,
    Case,
    Replicate,
    cases_of,
    judge_all,
    never_drawn,
)
from fedveil_lab.games.view import PASSIVE, ParticipationView, threat_of
from fedveil_lab.games.world import hand_out
from fedveil_lab.grid import Cell, Finished
from fedveil_lab.grid.comparison import write
from fedveil_lab.runs import Progress, Summary
from fedveil_lab.runs.deal import Dealt, deal_out
from fedveil_lab.runs.prepare import Setup, prepare
from fedveil_lab.runs.promised import prepared, promised

LEAST, REHEARSALS = (
    4,
    8,
)  # runs in each world; rehearsals are half as many as runs, and at least so many
DRAWN = ("dirichlet", "quantity", "shards")  # partitions that draw the clients' sizes
AUDIT = "audit"  # in the folder of a comparison
# Need no metrics, no colluders and no crafted updates: one set of replicates serves them all.
COMPARED = ("loss", "calibrated-loss", "likelihood-ratio", "own-update", "adaptive", "noise-size")


@GAMES.register("participation")
@dataclass(frozen=True, eq=False)
class ParticipationGame(Attacking):
    """Participation game of a client that tries to detect whether another client takes part.

    Parameters
    ----------
    config : Config
        Configuration of one run or of a comparison; the embedded engine runs it.
    compare : bool
        Whether to play every setting of ``[compare]`` instead of the one in ``[privacy]``.
    attacks : tuple of str
        Names from `ATTACKS`; empty: all of them.
    replicates : int
        Number of evaluated runs per world. Half as many (at least 8) are added as rehearsals.
    target, attacker : int, optional
        Partitions of target and attacker. Default: the first client attacks the last.
    colluders : int, optional
        Number of clients, with the attacker, that share what they sent. Default: 2, if there are enough clients.
    shadow : {"clean", "noisy", "partial", "public"}
        Which data of the target the adversary holds.
    world : {"replace", "twin", "remove", "empty", "itself"}, optional
        What replaces the target in the other world. Default: the first playable one of these: the world for the first
        guarantee's relation, "replace", "remove" (as with natural clients), "empty".
    """

    target: int | None = None
    attacker: int | None = None
    colluders: int | None = None
    shadow: str = "clean"
    world: str | None = None

    name: ClassVar[str] = "participation"
    known: ClassVar[Collection[str]] = ATTACKS
    least: ClassVar[int] = LEAST

    def question(self) -> dict[str, Any]:
        return {**self.roles.roles(), **super().question()}

    @cached_property
    def dealt(self) -> Dealt:
        """Divide the data among clients as in an ordinary run."""
        return deal_out(self.config.data, self.config.seed)

    @cached_property
    def roles(self) -> World:
        """Choose the roles: attacker, colluders and target."""
        if self.world is not None:
            return self._roles(self.world)
        playable = (roles for roles in map(self._roles, self._worlds) if not self._lacking(roles))
        return next(playable, self._roles(self._worlds[0]))

    @cached_property
    def _worlds(self) -> list[str]:
        """List the possible worlds without the target, the preferred first."""
        promised = next(map(world_of, filter(None, map(self._relation, self.settings))), "replace")
        return list(dict.fromkeys((promised, "replace", "remove", "empty")))

    def _roles(self, stand_in: str) -> World:
        n, seed = len(self.dealt.clients), self.config.seed
        return World.of(n, self.target, self.attacker, stand_in, self.shadow, self.colluders, seed)

    def _lacking(self, roles: World) -> FieldError | None:
        """Return why a world cannot be played, or None."""
        for planned in self.settings:
            if roles.stand_in == "empty" and planned.config.privacy.method == "record":
                accepted = f"has a client that takes no noisy step in {planned.label!r}: use --out-world remove or replace"
                return FieldError("--out-world", roles.stand_in, accepted)
        last = self.settings[-1].config
        own = [case for case in self.cases if case.setting == self.settings[-1].label]
        if last.data.partition not in DRAWN and roles.stand_in != "twin":
            own = own[:1]  # one deal tells for all
        try:
            for seed in {case.seed(self.config.seed) for case in own}:
                hand_out(last.data, self.dealt, roles.model_copy(update={"inside": False}), seed)
        except FieldError as error:
            return error
        return None

    def _relation(self, planned: Planned) -> str:
        """Return the relation of a client's promise for a setting's models, or ""."""
        with suppress(FieldError):
            quiet = planned.config.model_copy(update={"publish": Publishing()})
            promise = promised(prepared(quiet)).guarantee
            if promise.proven and promise.unit not in PARTS:
                return promise.relation
        return ""

    @property
    def rehearsals(self) -> int:
        """Number of rehearsals in each world."""
        return max(REHEARSALS, self.replicates // 2)

    @cached_property
    def cases(self) -> list[Case]:
        """List every run: for each setting, honest and crafted updates as needed, rehearsals and evaluated runs."""
        kinds, labels = [], [planned.label for planned in self.settings]
        matched = any(planned.matches for planned in self.settings)
        if matched or set(self.chosen) - {Active.name}:
            kinds.append(HONEST)
        if Active.name in self.chosen:
            kinds.append(MALICIOUS)
        return cases_of(labels, kinds, self.rehearsals, self.replicates)

    @cached_property
    def of_case(self) -> dict[Case, Cell]:
        """Map each case to its cell.

        A setting that matches another's sigma uses the average sigma of the other's rehearsals with the target. Metric
        privacy's sigma depends on the participating clients.
        """
        by_label, cells = {planned.label: planned for planned in self.settings}, dict[Case, Cell]()
        for case in self.cases:
            setting, sources = by_label[case.setting], None
            if setting.matches:
                sources = self.rehearsed(setting.matches, cells)
            played = {"inside": case.inside, "crafted": case.kind == MALICIOUS}
            world = self.roles.model_copy(update=played)
            config = AuditedConfig.of(setting.config, world, seed=case.seed(self.config.seed))
            cells[case] = Cell(case.setting, config, (ParticipationView(self._others),), sources)
        return cells

    @cached_property
    def _others(self) -> tuple[type[Attack], ...]:
        """Return attacks beyond the built-in ones, also those whose scores a chosen attack combines."""
        parts = list[type[Attack]]()
        for name in self.chosen:
            kind = ATTACKS.get(name)
            if kind is None:
                continue
            if issubclass(kind, Weighing):
                parts += kind.weighs
            else:
                parts.append(kind)
        own = {*PASSIVE, SideChannel, *Active.weighs}
        return tuple(dict.fromkeys(part for part in parts if part not in own))

    def rehearsed(self, label: str, cells: Mapping[Case, Cell]) -> tuple[Cell, ...]:
        """Return a setting's rehearsals with the target; a matching setting uses their average sigma."""
        cases = [Case(label, HONEST, "rehearsal", True, i) for i in range(self.rehearsals)]
        return tuple(cells[case] for case in cases)

    def cells(self) -> list[Cell]:
        return [*self.of_case.values()]

    def check(self) -> list[str]:
        """Refuse adversaries that are impossible, and data that cannot be divided; return notes for the user."""
        last = self.settings[-1].config
        world = self.roles.model_copy(
            update={"anew": False, "stand_in": "empty", "shadow": "clean"}
        )
        setups = [prepare(AuditedConfig.of(planned.config, world)) for planned in self.settings]
        self._check_threats(setups[1:] or setups)
        lacking = self._lacking(self.roles)
        if lacking:
            raise lacking
        without = self.roles.model_copy(update={"inside": False})
        for planned in self.settings:
            _require_runs(prepare(AuditedConfig.of(planned.config, without)))
        notes = list(setups[-1].warnings)
        played, usual = self.roles.stand_in, self._worlds[0]
        if self.world is None and played != usual:
            lacking = self._lacking(self._roles(usual))
            if lacking:
                why = f"as {usual!r} {lacking.accepted.partition(':')[0]}"
                notes.append(
                    f"--out-world {played} is played, {why}; in place of the target is {IN_ITS_PLACE[played]}"
                )
        label = self.settings[-1].label
        inside = [case for case in self.cases if case.setting == label and case.inside]
        lost = never_drawn(last, len(self.dealt.clients), self.roles, inside)
        if inside and len(lost) == len(inside):
            accepted = "is in no round's cohort in any run: it never trains; raise rounds or clients_per_round"
            raise FieldError("--target", self.roles.target, accepted)
        if lost:
            notes.append(
                f"in {len(lost)} of {len(inside)} runs 'with' the target it is in no cohort, and never trains"
            )
        return notes

    def _check_threats(self, setups: Sequence[Setup]) -> None:
        for name in self.attacks:
            errors, world = [], self.roles.model_copy(update={"crafted": name == Active.name})
            for setup in setups:
                try:
                    threat_of(world, setup.method, reference=True).require(
                        name, ATTACKS[name].needs
                    )
                except ThreatError as error:
                    errors.append(error)
            if len(errors) == len(setups):  # where only some lack it, their lines say so
                raise errors[0]

    def judge(self, finished: Finished) -> Audit:
        """Make the verdicts from finished runs."""
        delta, labels = self.config.privacy.budget.delta, tuple(p.label for p in self.settings)
        done = {}
        for case, cell in self.of_case.items():
            done[case] = Replicate.of(case, finished.outcomes[cell.key])
        judged = judge_all(
            done, labels, self.chosen, self.roles.stand_in, delta, self.config.publish.metrics
        )
        runs = {case.index for case in self.cases if case.phase == "run"}
        rehearsed = {case.index for case in self.cases if case.phase == "rehearsal"}
        values = {
            "name": self.config.name,
            **self.roles.roles(),
            "relation": WORLDS[self.roles.stand_in],
            "unit": RUN,
            "replicates": len(runs),
            "rehearsals": len(rehearsed),
            "delta": delta,
            "epsilon_ceiling": epsilon_ceiling(len(runs), delta),
            "published_metrics": {
                "mode": self.config.publish.metrics,
                "text": self.config.publish.describe(),
            },
            "settings": {p.label: _about(p, done.values()) for p in self.settings},
            "together": {label: asdict(bound) for label, bound in judged.together.items()},
            "seed": self.config.seed,
        }
        return replace(judged, values=values, notes=_afterthoughts(list(done.values())))


def _afterthoughts(replicates: Sequence[Replicate]) -> list[str]:
    """Return notes on the finished runs."""
    notes = []
    lacking = [replicate for replicate in replicates if replicate.missing]
    if lacking:
        classes = sorted(set[int]().union(*(replicate.missing for replicate in lacking)))
        notes.append(
            f"in {len(lacking)} of {len(replicates)} runs the shadow data lack classes that the target has "
            f"({', '.join(map(str, classes))}): attacks with such shadow data are weaker"
        )
    stopped = [r for r in replicates if r.stopped]
    if stopped:
        notes.append(f"{len(stopped)} of {len(replicates)} runs ended early: {stopped[0].stopped}")
    return notes


def _about(planned: Planned, replicates: Iterable[Replicate]) -> dict[str, Any]:
    played = [r for r in replicates if r.case.setting == planned.label]
    played = [r for r in played if r.case.phase == "run"] or played
    played = [r for r in played if r.case.kind == HONEST] or played
    inside, outside = list[Replicate](), list[Replicate]()
    for replicate in played:
        if replicate.case.inside:
            inside.append(replicate)
        else:
            outside.append(replicate)
    guarantee = relation = ""
    if inside:
        guarantee, relation = inside[0].summary.values["guarantee"], inside[0].relation
    accuracies = []
    for replicate in sorted(inside, key=attrgetter("case.index")):
        accuracies.append(replicate.summary.values["metrics"].get("accuracy"))
    return {
        "method": planned.config.privacy.method,
        "guarantee": guarantee,
        "guarantee_relation": relation,
        "accuracy": _mean(accuracies),
        "accuracies": accuracies,
        "sigma": _mean(map(attrgetter("sigma"), inside)),
        "sigma_without_target": _mean(map(attrgetter("sigma"), outside)),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return fmean(known)


def check_audit(config: Config, replicates: int) -> None:
    """Refuse an audit that cannot work, before anything is run; 0 replicates mean no audit.

    Raises
    ------
    FieldError
        If there are too few replicates or clients, or too few examples for a replacement client.
    """
    if not replicates:
        return
    require_count("--audit", replicates, least=LEAST)
    ParticipationGame(config, True, COMPARED, replicates).check()


def attack_settings(config: Config, folder: Path, replicates: int, progress: Progress) -> None:
    """Attack every setting of the comparison in a folder; finished replicates are not repeated."""
    play(ParticipationGame(config, True, COMPARED, replicates), folder / AUDIT, progress)


def with_attacks(summaries: Sequence[Summary], folder: Path) -> list[Summary]:
    """Add "audits" to the summaries of a comparison, also in its ``comparison.json``.

    "audited" marks a setting that was attacked, but without a valid attack. An attack is valid if it works without the
    defence, or evidently against that setting.
    """
    attacks = _attacks(folder / AUDIT / RESULT)
    attacked = []
    for summary in summaries:
        own = attacks.get(summary.setting)
        place = {"audits": own or [], "audited": own is not None}
        attacked.append(Summary({**summary.values, **place}, summary.rows))
    write(folder, [summary.values for summary in attacked])
    return attacked


def _attacks(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return attack, auc, low, high and runs of the valid attacks by setting, the strongest first.

    Raises
    ------
    FieldError
        If the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        values = json_of(path.read_bytes())
        attacks: dict[str, list[dict[str, Any]]] = {str(label): [] for label in values["settings"]}
        for r in values["results"]:
            auc = r["auc"]
            if not r["supposed"] and (r["valid_without_defence"] is not False or auc["low"] > 0.5):
                entry = {
                    "attack": r["attack"],
                    "auc": auc["point"],
                    "low": auc["low"],
                    "high": auc["high"],
                    "runs": values["replicates"],
                }
                attacks[r["setting"]].append(entry)
        for entries in attacks.values():
            entries.sort(key=lambda entry: -float(entry["auc"]))
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(
            "audit", path, error, "restore it, or move it away and ask the audit again"
        ) from error
    return attacks


def _require_runs(setup: Setup) -> None:
    """Refuse a federation whose sum needs more clients than are there, or another number of them.

    Raises
    ------
    FieldError
        The message names the number of clients without the target.
    """
    if setup.method.noisy is not None:
        setup.method.noisy.require_sites(setup.cohort, "clients without the target")
