"""View of an attacking client and its colluders in a run, and the scores of every participation attack."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from fedveil.accounting import model_of
from fedveil.engines import Seen, publishable
from fedveil.errors import FieldError
from fedveil.learning import ClientData, Figures, make_trainer
from fedveil.methods import Method, Publishing
from fedveil_lab.attacks import (
    Active,
    Attack,
    CalibratedLoss,
    Colluding,
    Knowledge,
    Loss,
    Observation,
    OwnUpdate,
    SideChannel,
    ThreatError,
    ThreatModel,
)
from fedveil_lab.attacks.participation.weighing import StepLength
from fedveil_lab.games.roles import DRAWN, World
from fedveil_lab.games.world import AuditedSetup
from fedveil_lab.runs.prepare import Setup

PUBLISHED = {
    mode: f"{SideChannel.name} ({mode})" for mode in ("noised", "clear")
}  # what is recorded for each
PASSIVE: tuple[type[Attack], ...] = (Loss, CalibratedLoss, OwnUpdate, Colluding, StepLength)
OUTSIDER_EPOCHS = 40  # at most, of the adversary's own model, which never sees the target
NOTHING = "the run ended before its first round: there is nothing to observe"


class ParticipationView:
    """Probe of audited runs: it keeps what the adversary sees, and scores every attack.

    Passive attacks score runs with an honest adversary. Attacks that craft updates score the other runs.

    Parameters
    ----------
    others : tuple of type
        Attacks from other packages, which are played too. They are part of the probe's name.
    """

    figures: Collection[str] = ()

    def __init__(self, others: tuple[type[Attack], ...] = ()) -> None:
        self._others = others
        self.name = " + ".join(["participation", *sorted(kind.name for kind in others)])

    def begin(self, setup: Setup) -> None:
        """Take the adversary's data; see `fedveil_lab.runs.runner.Judge`."""
        self._setup = _audited(setup)
        self._holders, self._world = self._setup.holders, self._setup.world
        self._models: list[Tensor] = []
        self._sent: list[Tensor] = []
        self._measured: list[Sequence[Figures]] = []
        self._shown: list[Mapping[str, float]] = []
        self._last: Seen | None = None

    def load(self, setup: Setup) -> int:
        models = setup.method.server.hypotheses - 1 + len(_audited(setup).world.colluders)
        return (setup.config.rounds + 1) * models

    def __call__(self, seen: Seen) -> dict[str, float]:
        starts, rows = seen.broadcast.models, []
        for partition in self._holders.adversaries:
            model = model_of(seen.received.get(partition, ()))
            if model is not None and bool(model.isfinite().all()):
                rows.append(model - starts[0])
            else:  # the server drops it
                rows.append(torch.zeros_like(starts[0]))
        if not self._models:
            self._models.append(starts)
        self._models.append(seen.models)
        self._sent.append(torch.stack(rows))
        self._measured.append(seen.record.client_metrics)
        self._shown.append(seen.record.published)
        self._last = seen
        return {}

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Return one dict per run.

        ``scores`` has a score per round by attack, ``refused`` the reason by attack, and ``missing`` the classes that
        the shadow data lack.
        """
        pairs = zip(judges, _outsiders(judges), strict=True)
        return [judge._concluded(outsider) for judge, outsider in pairs]

    def _concluded(self, outsider: Tensor | None) -> dict[str, Any]:
        scores: dict[str, list[float]] = {}
        refused: dict[str, str] = {}
        holders, setup = self._holders, self._setup
        known = Knowledge(
            model=setup.learner.model,
            layout=setup.learner.layout,
            loss=setup.learner.local.loss,
            shadow=holders.shadow,
            reference=holders.reference,
            outsider=outsider,
            clip=setup.method.server.public_clip,
        )
        threat = threat_of(self._world, setup.method, holders.reference is not None)
        observation = self.observation()
        for name, kind, published in self._played():
            try:
                if observation is None:
                    raise ThreatError(NOTHING)
                conclusion = kind(known, threat).run(replace(observation, published=published))
                scores[name] = torch.nan_to_num(
                    conclusion, nan=-1e6, posinf=1e6, neginf=-1e6
                ).tolist()
            except ThreatError as error:
                refused[name] = str(error)
        return {"scores": scores, "refused": refused, "missing": list(holders.missing)}

    def observation(self) -> Observation | None:
        """Collect what the adversary saw; None for a run without a round."""
        if not self._sent:
            return None
        # With the target or without, the same cohort: a smaller one would tell the adversary the answer.
        cohort = self._setup.config.clients_per_round or len(self._setup.dealt.clients)
        return Observation(torch.stack(self._models), cohort, sent=torch.stack(self._sent, dim=1))

    def _played(self) -> Iterator[tuple[str, type[Attack], Sequence[Mapping[str, float]]]]:
        if self._world.crafted:
            for kind in Active.weighs:
                yield kind.name, kind, ()
            return
        for kind in (*PASSIVE, *self._others):
            yield kind.name, kind, ()
        configured = self._setup.config.publish
        for mode, name in PUBLISHED.items():
            if self._setup.method.client.trust != "central":
                yield name, SideChannel, ()
                continue
            publishing = replace(configured, metrics=mode)  # type: ignore[arg-type]
            yield name, SideChannel, self.published(publishing, configured.metrics == mode)

    def published(self, publishing: Publishing, as_set: bool) -> Sequence[Mapping[str, float]]:
        """Return the metrics that clients see under a way of publishing, with its noise."""
        if as_set:
            if all(self._shown):
                return self._shown
            return ()
        if self._last is None:
            return ()
        federation, shown = self._last.federation, []
        for number, single in enumerate(self._measured, start=1):
            if not single:
                return ()
            names, figures, counts = publishable(single)
            if not bool((counts > 0).any()):
                return ()
            source = federation.source.child("server", number, "publish", 0)
            releases, _ = publishing.release(
                names, figures, counts, self._setup.method.server.relation, source
            )
            shown.append({r.name: float(r.value) for r in releases})
        return shown


def _audited(setup: Setup) -> AuditedSetup:
    """Refuse a run without the table ``[world]``.

    Raises
    ------
    FieldError
        If the run lacks the table ``[world]``.
    """
    if not isinstance(setup, AuditedSetup):
        raise FieldError("world", None, "who asks about whom: give [world], target and colluders")
    return setup


def threat_of(world: World, method: Method, reference: bool) -> ThreatModel:
    """Return the capabilities of the adversary in such a run."""
    able, lacking = {"models", "shadow", "own updates", "rehearsals"}, {}
    if reference:
        able.add("reference")
    else:
        fewer = "deal out fewer"
        if world.stand_in in DRAWN:
            fewer = "use --out-world remove, or deal out fewer"
        lacking["reference"] = f"all examples are dealt out; {fewer}"
    if len(world.colluders) > 1:
        able.add("colluders")
    else:
        lacking["colluders"] = "one client alone: it takes a third one, and --colluders 2"
    if method.client.trust == "central":
        able.add("metrics")
    else:
        lacking["metrics"] = "under local trust no metric leaves a client"
    if world.crafted:
        able.add("crafted updates")
        return ThreatModel("malicious client", frozenset(able), lacking)
    return ThreatModel("semi-honest client", frozenset(able), lacking)


def _outsiders(judges: Sequence[ParticipationView]) -> list[Tensor | None]:
    """Train the adversaries' own models together, each on its data without the target's."""
    first, starts, held, keys = judges[0]._setup, [], [], []
    for judge in judges:
        setup, holders = judge._setup, judge._holders
        own = setup.clients[holders.adversaries[0]]
        if holders.reference is not None:
            x = torch.cat([own.x, holders.reference.x])
            own = ClientData(x, torch.cat([own.y, holders.reference.y]))
        held.append(ClientData(own.x, own.y))
        starts.append(setup.starts[0])
        keys.append((setup.config.seed, 0, judge._world.attacker))
    config, learner = first.config, first.learner
    epochs = min(OUTSIDER_EPOCHS, config.rounds * learner.local.epochs)
    alone = replace(learner.local, epochs=epochs, prox=0.0)
    how: dict[str, Any] = {"device": config.device, "workers": config.workers}
    trainer = make_trainer(learner.model, learner.layout, alone, config.trainer, **how)
    trained = trainer.train(torch.stack(starts), held, keys)
    outsiders = list[Tensor | None]()
    for one, judge in zip(trained, judges, strict=True):
        if isinstance(one, Exception) or judge._holders.reference is None:
            outsiders.append(None)
        else:
            outsiders.append(one.model)
    return outsiders
