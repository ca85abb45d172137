"""Independent runs of a federation, with and without the target, side by side, and what adversaries score in each.

A replicate is one whole run: data, first model, training, cohorts and noise under its own seed. Of a finished replicate
the scores stay, a few numbers a round; models are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedveil.attacks import Active, CalibratedLoss, Colluding, Knowledge, Loss, OwnUpdate, SideChannel
from fedveil.attacks.active import craft
from fedveil.attacks.noise_size import StepLength
from fedveil.attacks.observation import Attack, ThreatError, ThreatModel
from fedveil.engines import Federation, Lockstep
from fedveil.engines.history import Asked
from fedveil.engines.lockstep import Craft
from fedveil.experiments.config import Config
from fedveil.experiments.dealing import Dealt
from fedveil.experiments.replicates_blocks import block_size
from fedveil.experiments.replicates_data import REFERENCE, Hands, deal
from fedveil.experiments.replicates_record import MALICIOUS, Case, Recording, Replicate
from fedveil.experiments.replicates_roles import Roles
from fedveil.experiments.setup import Setup, client_budget, epsilon_filter
from fedveil.learning import ClientData, LocalTraining, initial_models, make_trainer
from fedveil.learning.learner import Learner
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import Publishing

PUBLISHED = {mode: f"{SideChannel.name} ({mode})" for mode in ("noised", "clear")}  # what is recorded for each
PASSIVE: tuple[type[Attack], ...] = (Loss, CalibratedLoss, OwnUpdate, Colluding, StepLength)

OUTSIDER_EPOCHS = 40  # at most, of the model that never saw the target


class Stage:
    """One setting of an audit: its learner, its method, and how its replicates are played.

    Parameters
    ----------
    label : str
        Of the setting.
    config : Config
        Of one run.
    setup : Setup
        What `prepare` made of it.
    roles : Roles
        Who attacks whom.
    base : int
        Seed of the audit.
    """

    def __init__(self, label: str, config: Config, setup: Setup, roles: Roles, base: int) -> None:
        self.label, self.config, self.setup, self.roles, self._base = label, config, setup, roles, base
        self.learner: Learner = setup.arguments["learner"]
        self.model, self.layout, self.local = self.learner.model, self.learner.layout, self.learner.local
        self._dealt = Dealt(setup.dataset, setup.arguments["clients"])
        self._epochs = min(OUTSIDER_EPOCHS, config.rounds * self.local.epochs)
        alone: LocalTraining = replace(self.local, epochs=self._epochs, prox=0.0)
        self._outsiders = make_trainer(
            self.model, self.layout, alone, config.trainer, device=config.device, workers=config.workers
        )
        self.central = self.setup.method.client.trust == "central"
        # What the adversary takes for the cohort, with the target or without: a smaller one would tell it the answer.
        self.cohort = config.clients_per_round or len(setup.arguments["clients"])

    @cached_property
    def block(self) -> int:
        """Replicates to play at once."""
        kept = (self.config.rounds + 1) * (self.setup.method.server.hypotheses + len(self.roles.colluders))
        own = self.setup.arguments["clients"][self.roles.attacker].examples + REFERENCE
        return block_size(self.config, self.setup, kept, own * self._epochs)

    def threat(self, kind: str, reference: bool) -> ThreatModel:
        """What the adversary of a replicate can do."""
        able = {"models", "shadow", "own updates", "rehearsals"}
        lacking: dict[str, str] = {}
        if reference:
            able.add("reference")
        else:
            lacking["reference"] = "all examples are dealt out; use --out-world remove, or deal out fewer"
        if len(self.roles.colluders) > 1:
            able.add("colluders")
        else:
            lacking["colluders"] = "one client alone: it takes a third one, and --colluders 2"
        if self.central:
            able.add("metrics")
        else:
            lacking["metrics"] = "under local trust no metric leaves a client"
        if kind == MALICIOUS:
            able.add("crafted updates")
        return ThreatModel("malicious client" if kind == MALICIOUS else "semi-honest client", frozenset(able), lacking)

    def rehearse_deal(self, cases: Sequence[Case]) -> None:
        """Deal out replicates, to meet refusals before anything is written: all of them, where the sizes are drawn."""
        drawn = self.config.data.partition in ("dirichlet", "quantity", "shards") or self.roles.world == "twin"
        for seed in {case.seed(self._base) for case in (cases if drawn else cases[:1])}:
            deal(self.config.data, self._dealt, self.roles, False, seed)

    def play(self, cases: Sequence[Case], tick: Callable[[], None]) -> list[Replicate]:
        """Play a block of replicates, all of this setting and of one kind; `tick` is called after each round."""
        dealt = [deal(self.config.data, self._dealt, self.roles, c.inside, c.seed(self._base)) for c in cases]
        federations = [self._federation(c, d) for c, d in zip(cases, dealt, strict=True)]
        known = self._known(cases, dealt, [f.models for f in federations])
        crafted = self._craft(dealt, [f.models for f in federations]) if cases[0].kind == MALICIOUS else None
        lockstep = Lockstep(federations, crafted)
        records = [Recording(f, d.adversaries) for f, d in zip(federations, dealt, strict=True)]
        for played in lockstep.rounds(self.config.rounds):
            for i, one in played.items():
                records[i].add(federations[i], one)
            tick()
        return [
            self._scored(case, d, k, record, federation, lockstep.stopped.get(i, ""))
            for i, (case, d, k, record, federation) in enumerate(
                zip(cases, dealt, known, records, federations, strict=True)
            )
        ]

    def _federation(self, case: Case, dealt: Hands) -> Federation:
        config, arguments, seed = self.config, self.setup.arguments, case.seed(self._base)
        starts = arguments["initial"]
        if config.pretraining is None:
            data = self.setup.dataset
            shape: dict[str, Any] = {"input_shape": data.input_shape, "outputs": data.outputs, **config.model.options}
            starts = initial_models(config.model.name, k=self.setup.method.server.hypotheses, seed=seed, **shape)
        size = config.clients_per_round
        return Federation(
            model=self.model,
            initial=starts,
            clients=dealt.clients,
            privacy=self.setup.method,
            learner=self.learner,
            seed=seed,
            source=ReproducibleSource(seed),
            clients_per_round=None if size is None else min(size, len(dealt.clients)),
            public_data=arguments["public_data"],
            client_budgets=lambda partition: client_budget(config.privacy.budget, self.central),
            server_budget=epsilon_filter(config.privacy.budget) if self.central else None,
            publishing=config.publish,
        )

    def _known(self, cases: Sequence[Case], dealt: Sequence[Hands], starts: Sequence[Tensor]) -> list[Knowledge]:
        own = [d.clients[d.adversaries[0]] for d in dealt]
        base = [[o] if d.reference is None else [o, d.reference] for o, d in zip(own, dealt, strict=True)]
        held = [ClientData(torch.cat([p.x for p in b]), torch.cat([p.y for p in b])) for b in base]
        keys = [(c.seed(self._base), 0, self.roles.attacker) for c in cases]
        trained = self._outsiders.train(torch.stack([s[0] for s in starts]), held, keys)
        bound = getattr(self.setup.method.server, "clip", None)
        return [
            Knowledge(
                model=self.model,
                layout=self.layout,
                loss=self.local.loss,
                shadow=d.shadow,
                reference=d.reference,
                outsider=None if isinstance(t, Exception) or d.reference is None else t.model,
                clip=float(bound) if isinstance(bound, int | float) and self.central else None,
            )
            for d, t in zip(dealt, trained, strict=True)
        ]

    def _craft(self, dealt: Sequence[Hands], first: Sequence[Tensor]) -> Craft:
        def crafted(i: int, asked: Asked, partition: int, trained: Tensor) -> Tensor:
            if partition != dealt[i].adversaries[0] or len(asked.broadcast.models) > 1:
                return trained
            return craft(asked.broadcast.models[0], first[i][0])

        return crafted

    def _scored(
        self, case: Case, dealt: Hands, known: Knowledge, record: Recording, federation: Federation, stopped: str
    ) -> Replicate:
        scores: dict[str, list[float]] = {}
        refused: dict[str, str] = {}
        threat = self.threat(case.kind, dealt.reference is not None)
        for name, kind, published in self._plan(case, record, federation):
            try:
                found = kind(known, threat).run(replace(record.observation(self.cohort), published=published))
                scores[name] = torch.nan_to_num(found, nan=-1e6, posinf=1e6, neginf=-1e6).tolist()
            except ThreatError as error:
                refused[name] = str(error)
        guarantee = federation.history([], stopped).guarantee
        return Replicate(
            case=case,
            scores=scores,
            refused=refused,
            accuracy=record.accuracy,
            guarantee=guarantee.describe(self.config.privacy.budget.delta),
            relation=guarantee.relation if guarantee.proven and guarantee.epsilon_per_distance is None else "",
            missing=dealt.missing,
            trained=sum(dealt.target in cohort for cohort in record.cohorts) if dealt.target is not None else 0,
            stopped=stopped,
            sigma=record.sigma,
        )

    def _plan(
        self, case: Case, record: Recording, federation: Federation
    ) -> Iterator[tuple[str, type[Attack], Sequence[Mapping[str, float]]]]:
        if case.kind == MALICIOUS:
            for kind in Active.weighs:
                yield kind.name, kind, ()
            return
        for kind in PASSIVE:
            yield kind.name, kind, ()
        for mode, name in PUBLISHED.items():
            yield name, SideChannel, record.published(self.publishing(mode), federation) if self.central else ()

    def publishing(self, mode: str) -> Publishing:
        """How metrics are published in one of the modes: as configured, where that is the mode."""
        configured = self.config.publish
        return configured if configured.metrics == mode else replace(configured, metrics=mode)  # type: ignore[arg-type]
