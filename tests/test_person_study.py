"""The study of person-level privacy: what its lines promise, and whose digits nobody trains on."""

import pytest
import torch

from fedveil.data import load
from fedveil.data.sets import DataSet
from fedveil.gdp import epsilon_of_mu
from fedveil_studies.data.writers import first_images, parts_of, with_components
from fedveil_studies.frame import Choices, Reproduction
from fedveil_studies.person_level import study


def writers():
    generator = torch.Generator().manual_seed(0)
    x, test = (torch.rand(n, 1, 4, 4, generator=generator) for n in (60, 400))
    owner = torch.arange(60) % 7
    found = DataSet(name="toy", x=x, y=owner % 2, test_x=test, test_y=torch.arange(400) % 2, classes=2, owner=owner)
    return found, torch.arange(400) % 90


def test_public_writers_tuning_writers_and_the_rest_are_apart():
    found, writer = writers()
    parts = parts_of(writer)
    assert torch.equal(sum(part.long() for part in parts.values()), torch.ones(400, dtype=torch.int64))
    sets = [set(writer[part].tolist()) for part in parts.values()]
    assert [len(one) for one in sets] == [30, 30, 30]
    kept = {part: with_components(found, writer, 5, part) for part in parts}
    assert [len(one.test_x) for one in kept.values()] == [int(part.sum()) for part in parts.values()]
    assert torch.equal(kept["rest"].x, kept["tuning"].x)
    torch.testing.assert_close(kept["rest"].x.norm(dim=1), torch.ones(60))
    moved = found.test_x.clone()
    moved[~parts["public"]] += 1  # others' digits change nobody's features
    again = with_components(DataSet(**{**vars(found), "test_x": moved}), writer, 5, "rest")
    assert torch.equal(again.x, kept["rest"].x)


def test_the_first_images_of_each_writer_are_kept():
    found, _ = writers()
    kept = first_images(found, 3)
    assert torch.bincount(kept.owner).tolist() == [3] * 7
    assert torch.equal(kept.x, found.x[:21])


@pytest.mark.data
@pytest.mark.parametrize("setting", ["sum", "secure", "alone"])
def test_lines_of_one_epsilon_promise_a_writer_the_same(setting):
    planned = Reproduction(study, Choices(seed=1, seeds=1))
    for row, epsilon in (("8", 8.0), ("4", 4.0), ("1", 1.0)):
        person, group = (planned.cell(scenario, row, setting, 1).config for scenario in ("writers", "group"))
        for config, people in ((person, 1), (group, 10)):
            side = config.privacy.build(config.aggregator).client
            spend = side._spend().guarantee
            total = spend.mu * config.rounds**0.5
            assert epsilon_of_mu(total * people, 1e-5) == pytest.approx(epsilon, rel=1e-6)
            assert spend.unit == ("person" if people == 1 else "record")
    assert load("mnist-by-writer", features=8, most=10).input_shape == (8,)
