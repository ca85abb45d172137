"""Experiments' files, numbers of the command line and arrays from Python: run, or refused by field."""

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedveil as fv
from fedveil.accounting import advise, plan
from fedveil.engines.messages import tensor_of
from fedveil_lab.config import load, parse
from fuzz_kit import REFUSED, bytes_of, outcome, played, trees, values
from test_fuzz_data import arrays

pytestmark = pytest.mark.slow

CONFIG = {
    "name": "a",
    "seed": 1,
    "rounds": 3,
    "clients_per_round": 2,
    "data": {
        "name": "breast-cancer",
        "clients": 3,
        "holdout": 0.2,
        "partition": "dirichlet",
        "alpha": 1.0,
    },
    "model": {"name": "mlp", "hidden": [8]},
    "local": {"epochs": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.5},
    "aggregator": {"name": "trimmed-mean", "fraction": 0.2},
    "privacy": {
        "method": "global",
        "epsilon": 8.0,
        "rounds": 3,
        "clip": 1.0,
        "budget": {"epsilon": 9.0},
    },
    "publish": {"metrics": "noised", "noise_multiplier": 1.0},
    "compare": {
        "settings": [{"label": "none", "method": "vanilla"}, {"method": "record", "examples": 20}]
    },
}
TEXT = tomli_w.dumps(CONFIG).encode()


@played(8_000)
@given(trees(CONFIG))
def test_a_configuration_of_any_values(changed):
    if isinstance(changed, dict):
        outcome(lambda: parse(changed))


@played(4_000)
@given(bytes_of(TEXT))
def test_a_configuration_s_file(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "a.toml"
    path.write_bytes(raw)
    outcome(lambda: load(path))


NUMBERS = st.fixed_dictionaries(
    dict.fromkeys(("clients", "examples", "dimension", "rounds", "epsilon", "delta"), values)
)
PLAIN = {
    "clients": 10,
    "examples": 100,
    "dimension": 650,
    "rounds": 5,
    "epsilon": 4.0,
    "delta": 1e-5,
}


@played(2_000)
@given(st.sampled_from(sorted(PLAIN)), values)
def test_advice_for_any_number(name, value):
    outcome(lambda: advise(**{**PLAIN, name: value}))


@played(2_000)
@given(st.sampled_from(["epsilon", "delta", "rounds", "clients", "clip", "dimension"]), values)
def test_a_plan_for_any_number(name, value):
    given_ = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "rounds": 5,
        "clients": 10,
        "clip": 1.0,
        "dimension": 650,
    }
    found = outcome(lambda: plan(**{**given_, name: value}))
    if found is not REFUSED:
        assert found.noise_multiplier > 0


def network():
    return torch.nn.Linear(4, 2)


@played(4_000)
@given(arrays(), arrays())
def test_a_federation_of_any_arrays(x, y):
    good = (np.ones((6, 4), np.float32), np.arange(6) % 2)

    def trained():
        federation = fv.Federation(model=network, clients=[good, good, (x, y)], seed=1)
        return federation.run(1)

    found = outcome(trained)
    if found is not REFUSED:
        assert torch.isfinite(found.models).all()


@played(3_000)
@given(arrays())
def test_a_layout_takes_one_shape(array):
    layout = fv.Layout.from_module(torch.nn.Linear(4, 2))

    def flat():
        return layout.flatten({"weight": tensor_of("weight", array), "bias": torch.zeros(2)})

    found = outcome(flat)
    if found is not REFUSED:
        assert found.shape == (10,)
