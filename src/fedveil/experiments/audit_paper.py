"""The attacks of the metric privacy paper on its own schedule: one run, or one with and one without the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from fedveil.attacks import Knowledge, Loss
from fedveil.attacks.observation import Observation, ThreatModel
from fedveil.attacks.paper import (
    MULTI_EPOCHS,
    MULTI_ROUNDS,
    SINGLE_EPOCHS,
    SingleShot,
    multi_round,
    single_shot,
)
from fedveil.attacks.result import AuditResult
from fedveil.engines import Federation, Lockstep
from fedveil.errors import FieldError
from fedveil.experiments.config import Config
from fedveil.experiments.replicates_data import Roles, shadow_of
from fedveil.experiments.setup import Setup, prepare
from fedveil.learning import evaluate
from fedveil.mechanisms import keyed_seed

THREAT = ThreatModel("semi-honest client", frozenset({"models", "metrics", "shadow"}))


def play_single_shot(label: str, config: Config, roles: Roles, tick: Callable[[], None]) -> SingleShot:
    """One round of 20 local epochs; the shadow is a tenth of the target's training examples.

    Raises
    ------
    FieldError
        If clients hold nothing out, so that there is no aggregated loss.
    """
    local = replace(config.local, epochs=SINGLE_EPOCHS)
    once = config.model_copy(update={"rounds": 1, "local": local})
    setup = prepare(once)
    federation = _federation(once, setup, roles, inside=True)
    history = federation.run(1)
    tick()
    if history.metrics is None or history.metrics.loss is None:
        raise FieldError("data.holdout", config.data.holdout, "the paper's single shot needs an aggregated test loss")
    shadow = shadow_of(setup.arguments["clients"][roles.target], "clean", setup.dataset, _rng(config))
    learner = federation.learner
    own = evaluate(learner.model, federation.layout, federation.models[0], shadow.x, shadow.y)
    return single_shot(label, float(own.loss or 0.0), history.metrics.loss)


def play_multi_round(label: str, config: Config, roles: Roles, tick: Callable[[], None]) -> AuditResult:
    """Five epochs, 20 rounds, once with the target and once without; the shadow is noisy."""
    local = replace(config.local, epochs=MULTI_EPOCHS)
    twice = config.model_copy(update={"rounds": MULTI_ROUNDS, "local": local})
    setup = prepare(twice)
    pair = [_federation(twice, setup, roles, inside) for inside in (True, False)]
    models = [[f.models] for f in pair]
    lockstep = Lockstep(pair)
    for played in lockstep.rounds(MULTI_ROUNDS):
        for i in played:
            models[i].append(pair[i].models)
        tick()
    shadow = shadow_of(setup.arguments["clients"][roles.target], "noisy", setup.dataset, _rng(config))
    learner = pair[0].learner
    attack = Loss(Knowledge(learner.model, learner.layout, learner.local.loss, shadow), THREAT)
    scores = [attack.run(Observation(torch.stack(m), f.cohort_size)).numpy() for m, f in zip(models, pair, strict=True)]
    return multi_round(label, *scores)


def _federation(config: Config, setup: Setup, roles: Roles, inside: bool) -> Federation:
    clients = list(setup.arguments["clients"])
    if not inside:
        del clients[roles.target]
    size = config.clients_per_round
    arguments = {**setup.arguments, "clients": clients}
    arguments["clients_per_round"] = None if size is None else min(size, len(clients))
    return Federation(**arguments, source=config.source.build(config.seed), publishing=config.publish)


def _rng(config: Config) -> np.random.Generator:
    return np.random.default_rng(keyed_seed("paper shadow", config.seed))
