"""The attacks of the metric privacy paper on its own schedule: one run, or one with and one without the target.

Here they are played; what is made of the losses is in `fedveil.attacks.paper`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from fedveil.attacks import Knowledge, Loss
from fedveil.attacks.observation import Observation, ThreatModel
from fedveil.attacks.paper import MULTI_EPOCHS, MULTI_ROUND, MULTI_ROUNDS, SINGLE_EPOCHS, SINGLE_SHOT
from fedveil.engines import Federation, Lockstep
from fedveil.errors import FieldError, NoReplyError
from fedveil.experiments.config import Config
from fedveil.experiments.replicates_data import shadow_of
from fedveil.experiments.replicates_roles import Roles
from fedveil.experiments.setup import Setup, prepare
from fedveil.learning import ClientData, initial_models
from fedveil.mechanisms import keyed_seed

THREAT = ThreatModel("semi-honest client", frozenset({"models", "metrics", "shadow"}))
Losses = list[float]
PLAYED = {
    SINGLE_SHOT: f"one round of {SINGLE_EPOCHS} epochs on the paper's own shadow data, whatever --shadow says: a tenth "
    "of the target's training examples",
    MULTI_ROUND: f"{MULTI_ROUNDS} rounds of {MULTI_EPOCHS} epochs on the paper's own shadow data and world without the "
    "target, whatever --shadow and --out-world say: a tenth of its training examples with Gaussian noise, and nobody "
    "in its place",
}


def play_single_shot(config: Config, roles: Roles, tick: Callable[[], None]) -> tuple[Losses, Losses]:
    """One round of 20 local epochs; the shadow is a tenth of the target's training examples.

    Returns
    -------
    tuple
        Shadow loss and aggregated loss, one each.

    Raises
    ------
    FieldError
        If clients hold nothing out, so that there is no aggregated loss.
    NoReplyError
        If the round has no usable reply.
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
    return _known(federation, shadow).loss_of(federation.models[None], shadow).tolist(), [history.metrics.loss]


def play_multi_round(config: Config, roles: Roles, tick: Callable[[], None]) -> tuple[Losses, Losses]:
    """Five epochs, 20 rounds, once with the target and once without; the shadow is noisy.

    Returns
    -------
    tuple
        Scores of all rounds, with the target and without.

    Raises
    ------
    NoReplyError
        If a round has no usable reply.
    """
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
    for why in lockstep.stopped.values():
        raise NoReplyError(why)
    shadow = shadow_of(setup.arguments["clients"][roles.target], "noisy", setup.dataset, _rng(config))
    attack = Loss(_known(pair[0], shadow), THREAT)
    inside, outside = (
        attack.run(Observation(torch.stack(m), f.cohort_size)).tolist() for m, f in zip(models, pair, strict=True)
    )
    return inside, outside


def play_without_target(config: Config, roles: Roles, runs: int) -> list[Losses]:
    """The multi-round scores of runs without the target: one deal and one shadow, but models, order and noise anew.

    Any two of them are what the paper's statistic sees where there is nothing to see.
    """
    local = replace(config.local, epochs=MULTI_EPOCHS)
    many = config.model_copy(update={"rounds": MULTI_ROUNDS, "local": local})
    setup = prepare(many)
    shape = {"input_shape": setup.dataset.input_shape, "outputs": setup.dataset.outputs, **many.model.options}
    k = setup.method.server.hypotheses
    federations = []
    for seed in (keyed_seed("without target", config.seed, i) for i in range(runs)):
        starts = initial_models(many.model.name, k=k, seed=seed, **shape)
        single = many.model_copy(update={"seed": seed})
        fresh = replace(setup, arguments={**setup.arguments, "initial": starts, "seed": seed})
        federations.append(_federation(single, fresh, roles, inside=False))
    models = [[f.models] for f in federations]
    for played in Lockstep(federations).rounds(MULTI_ROUNDS):
        for i in played:
            models[i].append(federations[i].models)
    shadow = shadow_of(setup.arguments["clients"][roles.target], "noisy", setup.dataset, _rng(config))
    attack = Loss(_known(federations[0], shadow), THREAT)
    return [
        attack.run(Observation(torch.stack(m), f.cohort_size)).tolist()
        for m, f in zip(models, federations, strict=True)
    ]


def _known(federation: Federation, shadow: ClientData) -> Knowledge:
    learner = federation.learner
    return Knowledge(learner.model, learner.layout, learner.local.loss, shadow)


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
