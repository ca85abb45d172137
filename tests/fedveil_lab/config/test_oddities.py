"""Settings that are odd beside the data are said with their number; ordinary ones are not."""

import warnings

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.engines.warning import RunWarning
from fedveil_lab.config import parse
from fedveil_lab.runs.prepare import prepare

ORDINARY = {
    "name": "o",
    "rounds": 2,
    "data": {"name": "breast-cancer", "clients": 4},
    "model": {"name": "logistic"},
    "privacy": {"method": "record", "epsilon": 4.0, "examples": 113, "clip": 1.0},
}


def said(**changes):
    values = {
        name: dict(value) if isinstance(value, dict) else value for name, value in ORDINARY.items()
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            values.setdefault(section, {})[key] = value
        else:
            values[section] = value
    return " ".join(prepare(parse(values)).warnings)


def test_an_ordinary_configuration_is_not_commented_on():
    assert said() == ""


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"privacy__examples": 5}, ("examples = 5", "114")),
        ({"privacy__examples": 5000}, ("examples = 5000", "114")),
        ({"privacy__epsilon": 1e9}, ("1e+09",)),
        ({"privacy__epsilon": 101.0}, ("101",)),
        ({"privacy__clip": 1e-9}, ("1e-09",)),
        ({"privacy__clip": 1e9}, ("1e+09",)),
        ({"privacy__delta": 0.05}, ("0.05", "1e-05", "epsilon = 4")),
        ({"privacy": {"method": "vanilla"}, "local": {"batch_size": 5000}}, ("5000", "114")),
    ],
)
def test_what_is_odd_is_said_with_its_number(changes, numbers):
    text = said(**changes)
    assert all(number in text for number in numbers), text


def test_clients_with_the_same_examples_are_named():
    x, y = torch.rand(9, 3), torch.tensor([0, 1, 0] * 3)
    others = [(torch.rand(9, 3), y) for _ in range(2)]
    with pytest.warns(RunWarning, match=r"\(1, 3\)"):
        fv.Federation(model=nn.Linear(3, 2), clients=[others[0], (x, y), others[1], (x.clone(), y)])
    shuffled = torch.tensor([4, 2, 0, 8, 1, 6, 7, 3, 5])
    clients = [others[0], (x, y), others[1], (x[shuffled], y[shuffled])]
    with pytest.warns(RunWarning, match=r"\(1, 3\)"):
        fv.Federation(model=nn.Linear(3, 2), clients=clients)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fv.Federation(model=nn.Linear(3, 2), clients=[*others, (x, y)])
        fv.Federation(model=nn.Linear(3, 2), clients=[(x, y), (x[shuffled], y)])
