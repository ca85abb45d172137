"""Scores of client inference attacks: their equations on small vectors, and what adversaries may not do."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedveil.engines import Evaluation, Execution, Federation, Lockstep
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining
from fedveil.learning.learner import Learner
from fedveil.methods import Publishing, build
from fedveil_lab.attacks import (
    ATTACKS,
    Active,
    Adaptive,
    CalibratedLoss,
    Colluding,
    Informed,
    Knowledge,
    Loss,
    NoiseSize,
    Observation,
    OwnUpdate,
    SequentialEvidence,
    SideChannel,
    ThreatError,
    ThreatModel,
    craft,
)
from fedveil_lab.attacks.observation import CAPABILITIES
from fedveil_lab.attacks.participation.weighing import PullBack, StepLength
from fedveil_lab.attacks.statistics import auc
from fedveil_lab.config import load
from fedveil_lab.games.roles import AuditedConfig, World
from fedveil_lab.games.view import ParticipationView
from fedveil_lab.runs.prepare import prepare

ABLE = ThreatModel("client", frozenset(CAPABILITIES))


def linear(d=2):
    return nn.Linear(d, 1, bias=False)


def data(*pairs):
    return ClientData(torch.tensor([x for x, _ in pairs]), torch.tensor([[y] for _, y in pairs]))


def watching(adversaries=(0,)):
    """What the clients of a federation of three see."""
    view, config = ParticipationView(), load("digits-cia", ["clients_per_round=3"])
    setup = prepare(AuditedConfig.of(config, World.of(3)))
    view.begin(
        replace(
            setup, method=build("vanilla"), holders=replace(setup.holders, adversaries=adversaries)
        )
    )
    return view


def known(**changes):
    model = linear()
    shadow = data(([1.0, 0.0], 1.0))
    return Knowledge(model, Layout.from_module(model), "mse", shadow, **changes)


def seen(*models, **changes):
    return Observation(torch.tensor(models)[:, None], 3, **changes)


def test_losses_are_those_of_each_broadcast_after_the_first():
    observation = seen([9.0, 9.0], [0.0, 0.0], [0.5, 7.0])
    assert Loss(known(), ABLE).run(observation).tolist() == [
        -1.0,
        -0.25,
    ]  # (w_1 - 1)^2 on the one shadow example
    two = Observation(torch.tensor([[[9.0, 9], [9, 9]], [[0.0, 0], [2, 0]], [[3.0, 0], [0, 0]]]), 3)
    assert Loss(known(), ABLE).run(two).tolist() == [
        -1.0,
        -1.0,
    ]  # of several hypotheses the one that fits best
    published = [{"loss": 3.0}, {"loss": 2.0}]
    assert SideChannel(known(), ABLE).run(replace(observation, published=published)).tolist() == [
        2.0,
        1.75,
    ]
    with pytest.raises(ThreatError, match="published loss in every round"):
        SideChannel(known(), ABLE).run(observation)


def test_a_calibrated_loss_takes_off_reference_and_difficulty():
    knowledge = known(reference=data(([0.0, 1.0], 2.0)), outsider=torch.tensor([0.5, 1.0]))
    [found] = CalibratedLoss(knowledge, ABLE).run(seen([0.0, 0.0], [1.0, 0.0])).tolist()
    assert found == pytest.approx((4.0 - 0.0) - (1.0 - 0.25))
    with pytest.raises(ThreatError, match="needs reference examples"):
        CalibratedLoss(known(), ABLE).run(seen([0.0, 0.0], [1.0, 0.0]))


def test_own_update_projects_what_others_sent_on_the_target_s_trace():
    # without reference the trace is minus the gradient of the shadow loss: (2, 0) at the start, so along the first axis
    observation = seen([0.0, 0.0], [1.0, 5.0], sent=torch.tensor([[[0.6, 0.8]]]))
    assert OwnUpdate(known(), ABLE).run(observation).tolist() == pytest.approx([3 * 1.0 - 0.6])
    clipped = OwnUpdate(known(clip=0.5), ABLE).run(observation)
    assert clipped.tolist() == pytest.approx([3 - 0.3])
    together = replace(observation, sent=torch.tensor([[[0.6, 0.8]], [[1.0, 0.0]]]))
    assert Colluding(known(), ABLE).run(together).tolist() == pytest.approx([3 - 1.6])
    assert OwnUpdate(known(), ABLE).run(together).tolist() == pytest.approx([3 - 0.6])
    flat = known(reference=data(([1.0, 0.0], 1.0)))  # nothing tells shadow and reference apart
    assert OwnUpdate(flat, ABLE).run(observation).tolist() == [0.0]
    with pytest.raises(ThreatError, match="own updates and a single broadcast"):
        OwnUpdate(known(), ABLE).run(seen([0.0, 0.0], [1.0, 5.0]))


def test_with_all_others_in_the_coalition_the_target_s_update_is_left():
    start, others, target = (
        torch.zeros(2),
        torch.tensor([[[1.0, 2.0]], [[-3.0, 1.0]]]),
        torch.tensor([0.25, -4.0]),
    )
    model = start + (others[:, 0].sum(0) + target) / 3
    observation = seen(start.tolist(), model.tolist(), sent=others)
    assert Colluding(known(), ABLE).run(observation).tolist() == pytest.approx([0.25], abs=1e-6)


def test_lengths_of_steps_have_no_direction():
    found = StepLength(known(), ABLE).run(seen([0.0, 0.0], [3.0, 4.0], [3.0, 4.0]))
    assert found.tolist() == pytest.approx([math.log(5.0), math.log(1e-30)])


def test_crafted_updates_pull_the_model_back():
    assert craft(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0])).tolist() == [1.0, 1.0]
    assert craft(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]), gain=2.0).tolist() == [
        -1.0,
        1.0,
    ]
    assert PullBack.needs >= {"crafted updates"}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_without_each_thing_it_needs(name):
    kind = ATTACKS[name]
    model = SequentialEvidence.fit(torch.randn(8, 2, 1), torch.randn(8, 2, 1))
    arguments = {"model": model} if hasattr(kind, "weighs") else {}
    kind(known(), ABLE, **arguments)
    for need in kind.needs:
        weak = ThreatModel("client", kind.needs - {need}, {need: "not today"})
        with pytest.raises(
            ThreatError, match=rf"attack '{name}' needs what a client lacks: '{need}' \(not today\)"
        ):
            kind(known(), weak, **arguments)


def test_weighing_attacks_run_the_attacks_they_weigh():
    knowledge = known(reference=data(([0.0, 1.0], 2.0)), outsider=torch.tensor([0.5, 1.0]))
    sent = torch.tensor([[[0.6, 0.8], [0.0, 0.0]]])
    observation = seen(
        [0.0, 0.0], [1.0, 5.0], [1.0, 4.0], sent=sent, published=[{"loss": 1.0}, {"loss": 2.0}]
    )
    for kind, parts in (
        (Adaptive, (CalibratedLoss, OwnUpdate)),
        (Informed, (CalibratedLoss, OwnUpdate, SideChannel)),
        (Active, (CalibratedLoss, PullBack)),
        (NoiseSize, (StepLength,)),
    ):
        assert kind.weighs == parts
        model = SequentialEvidence.fit(
            torch.randn(9, 2, len(parts)), torch.randn(9, 2, len(parts)), kind.steady
        )
        scores = torch.stack([part(knowledge, ABLE).run(observation) for part in parts], dim=-1)
        assert torch.equal(kind(knowledge, ABLE, model).run(observation), model.weigh(scores))


def test_observations_are_checked():
    with pytest.raises(FieldError, match="rounds"):
        Observation(torch.zeros(1, 1, 2), 3)
    with pytest.raises(FieldError, match="one mapping a round"):
        seen([0.0, 0.0], [1.0, 0.0], published=[{}, {}])
    with pytest.raises(FieldError, match="sent"):
        seen([0.0, 0.0], [1.0, 0.0], sent=torch.zeros(1, 2, 2))


def regression(weights, g, n=200):
    x = torch.randn(2 * n, len(weights), generator=g)
    y = (x @ weights)[:, None] + 0.1 * torch.randn(2 * n, 1, generator=g)
    return ClientData(x[:n], y[:n], x[n:], y[n:])


@pytest.mark.slow
def test_published_metrics_give_an_adversary_with_shadow_data_what_the_noise_took():
    """Noise on the model moves every loss; clear metrics take that off again, and noised ones do not."""
    d, runs, rounds = 16, 30, 3
    common, own = torch.zeros(d), torch.eye(d)[0]
    model = linear(d)
    layout = Layout.from_module(model)
    learner = Learner(model, layout, LocalTraining(epochs=1, batch_size=20, lr=0.1, loss="mse"))
    noised = Publishing(metrics="noised", noise_multiplier=4.0, loss_range=20.0)
    found = {True: [], False: []}
    for inside, scores in found.items():
        made, shadows = [], []
        for seed in range(runs):
            g = torch.Generator().manual_seed(2 * seed + inside)
            target = regression(own, g)
            clients = [
                regression(common, g),
                regression(common, g),
                target if inside else regression(common, g),
            ]
            shadows.append(ClientData(target.x, target.y))
            made.append(
                Federation(
                    model=lambda: linear(d),
                    clients=clients,
                    method=build("global", noise_multiplier=1.0, clip=1.0),
                    execution=Execution(learner=learner),
                    seed=2 * seed + inside,
                    evaluation=Evaluation(
                        publishing=Publishing(metrics="clear"), probes=[watching()]
                    ),
                )
            )
        for _ in Lockstep(made).rounds(rounds):
            pass
        for federation, shadow in zip(made, shadows, strict=True):
            [view] = federation.probes
            knowledge = Knowledge(model, layout, "mse", shadow)
            shown = [
                view.published(Publishing(metrics="clear"), True),
                view.published(noised, False),
            ]
            sights = [replace(view.observation(), published=p) for p in shown]
            kinds = [
                Loss(knowledge, ABLE).run(sights[0]),
                *(SideChannel(knowledge, ABLE).run(s) for s in sights),
            ]
            scores.append([float(k.mean()) for k in kinds])
    inside, outside = (torch.tensor(found[w]).numpy().T for w in (True, False))
    off, clear, covered = (auc(a, b) for a, b in zip(inside, outside, strict=True))
    assert clear > off + 0.05
    assert clear > 0.8
    assert covered < off
