"""A model that torch.compile returned is trained as its own module is, and that is said; elsewhere it is refused."""

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.engines.warning import RunWarning


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def compiled():
    return torch.compile(network(), backend="eager")


def trained(model, **how):
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(20, 4, generator=generator), torch.randint(0, 2, (20,), generator=generator))
        for _ in range(3)
    ]
    return fv.Federation(
        model=model, clients=clients, local=fv.LocalTraining(lr=0.1), seed=0, **how
    ).run(2)


@pytest.mark.parametrize("given", [compiled, lambda: compiled], ids=["a module", "a function"])
@pytest.mark.parametrize("level", ["clients", "records"])
def test_it_ends_in_the_bits_of_its_own_module(given, level):
    options = {"epsilon": 4.0, "delta": 1e-5, "rounds": 2, "examples": 20, "clip": 1.0}
    how = {"method": fv.methods.build("record", **options)} if level == "records" else {}
    model = given()
    plain = trained(network() if isinstance(model, nn.Module) else network, **how)
    with pytest.warns(RunWarning, match="compile") as told:
        history = trained(model, **how)
    assert sum("compile" in str(one.message) for one in told) == 1
    assert torch.equal(history.models, plain.models)
    network().load_state_dict(history.state_dicts[0])


def test_a_part_that_is_compiled_by_itself_is_refused_by_its_name():
    model = nn.Sequential(torch.compile(nn.Linear(4, 8), backend="eager"), nn.Linear(8, 2))
    with pytest.raises(fv.FieldError, match="module 0"):
        trained(model)
    with pytest.raises(fv.FieldError, match="_orig_mod"):
        fv.Layout.from_module(compiled())
