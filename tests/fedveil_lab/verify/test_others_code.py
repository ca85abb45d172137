"""Mechanisms around others' code: a Flower mod and strategy, Opacus' optimizer, a FLARE filter, each as a stranger writes it."""

import logging

import pytest

from fedveil_lab.verify import PrivacyClaim
from fedveil_lab.verify.budget import Effort
from fedveil_lab.verify.isolation import FreshProcesses, SameProcess
from fedveil_lab.verify.playing import play, verify_mechanism
from fedveil_lab.verify.worlds import Sizes, library
from verify_kit import EXAMPLES, module

LOCAL = "eps=1 delta=1e-5 replace-one client total local"
CENTRAL = "eps=1 delta=1e-5 zero-out client total central"
RECORD = "eps=1 delta=1e-5 add/remove record total central"
# file, what it needs, claim, clients, its wrong function
CASES = [
    ("flower_mod", "flwr", LOCAL, 3, "small_sensitivity"),
    ("flower_strategy", "flwr", CENTRAL, 16, "weighted_by_examples"),
    ("flare_filter", "nvflare", LOCAL, 3, "small_sensitivity"),
    ("opacus_step", "opacus", RECORD, 3, "noise_of_the_mean"),
]


def worlds_of(claim, clients):
    """The claim, and all worlds for it."""
    own = PrivacyClaim.parse(claim)
    return own, library(own, Sizes(clients=clients))


@pytest.mark.few(1)  # the first is what needs a process of its own: a name for Flower's messages
@pytest.mark.parametrize(("name", "needs", "claim", "clients", "wrong"), CASES)
def test_a_fresh_process_answers_in_every_world(name, needs, claim, clients, wrong):
    pytest.importorskip(needs)
    _, worlds = worlds_of(claim, clients)
    for function in ("mechanism", wrong):
        with FreshProcesses(EXAMPLES / f"{name}.py", function) as processes:
            for world in worlds:
                for side, data in (("in", world.inside), ("out", world.outside)):
                    processes.hold(f"{world.name}: {side}", data)
                    found = processes.run(f"{world.name}: {side}", 1)
                    assert found.kind == "ok", (world.name, side, found.why)


@pytest.mark.few(3)  # Opacus takes seconds
@pytest.mark.parametrize(("name", "needs", "claim", "clients", "wrong"), CASES)
@pytest.mark.slow
def test_too_little_noise_in_others_code_is_caught_and_enough_is_not(
    name, needs, claim, clients, wrong, monkeypatch
):
    pytest.importorskip(needs)
    if needs == "flwr":
        from flwr.supercore.task_identity import TaskIdentity

        for part in ("_task_id", "_run_id", "_node_id"):
            monkeypatch.setattr(TaskIdentity, part, 1)
        monkeypatch.setattr(logging.getLogger("flwr"), "disabled", True)
    own, worlds = worlds_of(claim, clients)
    telling = [world for world in worlds if world.name in ("plain", "extreme counts")]
    loaded = module(name)
    for function, refuted in ((wrong, True), ("mechanism", False)):
        runner = SameProcess(getattr(loaded, function))
        assert play(runner, telling, own, Effort(runs=400)).refuted == refuted, function


@pytest.mark.slow
@pytest.mark.parametrize(("name", "needs", "claim", "clients", "wrong"), CASES)
def test_the_command_judges_others_code(name, needs, claim, clients, wrong):
    pytest.importorskip(needs)
    own, worlds = worlds_of(claim, clients)
    for function, refuted in ((wrong, True), ("mechanism", False)):
        effort = Effort(runs=1500)
        file = EXAMPLES / f"{name}.py"
        assert verify_mechanism(file, function, own, worlds, effort=effort).refuted == refuted
