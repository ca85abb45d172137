"""The study of all four methods: its attacks by hand, and its settings."""

from types import SimpleNamespace

import pytest
import torch

from fedveil.layout import Layout
from fedveil.learning import ClientData
from fedveil_studies.four_methods import alignment, member_area, of_their_class, rebuilt
from fedveil_studies.frame import Choices, Reproduction, find

STUDY = find("four-methods")


@pytest.fixture
def federation():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    return SimpleNamespace(learner=SimpleNamespace(model=module), layout=Layout.from_module(module))


def losses(federation, model, x, y):
    values = federation.layout.unflatten(model)
    output = torch.func.functional_call(federation.learner.model, values, (x,))
    return torch.nn.functional.cross_entropy(output, y, reduction="none")


def test_alignment_is_how_fast_a_loss_falls_along_the_move(federation):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 5, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])
    model, move = torch.randn(2, federation.layout.size, generator=generator)
    step = 1e-3 * move / move.norm()
    fallen = losses(federation, model - step, x, y) - losses(federation, model + step, x, y)
    torch.testing.assert_close(
        alignment(federation, model, move, x, y), fallen / 2e-3, rtol=1e-2, atol=1e-3
    )


def test_the_input_of_a_single_example_is_rebuilt_from_its_gradient(federation):
    module = federation.learner.model
    x = torch.randn(1, 5, generator=torch.Generator().manual_seed(2))
    torch.nn.functional.cross_entropy(module(x), torch.tensor([1])).backward()
    gradient = torch.cat([p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(rebuilt(federation, -0.1 * gradient), x[0])


def test_membership_is_judged_within_classes():
    y = torch.tensor([0, 0, 1, 1, 0, 1])
    client = ClientData(torch.zeros(4, 1), y[:4], test_x=torch.zeros(2, 1), test_y=y[4:])
    scores = torch.tensor(
        [1.0, 2.0, 11.0, 12.0, 0.0, 10.0]
    )  # members above in each class, and classes far apart
    assert member_area(scores, client) == 1.0
    torch.testing.assert_close(of_their_class(scores, y), torch.tensor([0.0, 1, 0, 1, -1, -1]))


def test_settings_at_a_total_of_epsilon_8_promise_it():
    study = Reproduction(STUDY, Choices())
    for name in ("static-8", "released-8", "record", "record-sum", "fedre-8"):
        config = study.cell("blood", "replace", name, 0, probe="watch").config
        budget, told = config.privacy.budget.epsilon, config.privacy.options.get("epsilon")
        assert 8.0 in (budget, told), name
        assert (
            config.rounds * config.local.epochs * config.privacy.options.get("steps", 1) == 50
        )  # as many steps
