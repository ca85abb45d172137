"""What plain PyTorch trains, FedVeil trains to the same numbers, or refuses by name before the first round."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.learning.losses import loss_of, outputs_of
from fedveil.learning.per_example import PerExample
from fedveil.learning.streams import epoch_orders
from zoo_kit import PAGE, ZOO, page

BATCH, LR, SEED = 3, 0.05, 5
CLIPPED_LR = 1.0  # of gradients of length 1: a model that stands still must not pass


def cells(quick):
    return [pytest.param(c, id=c.name) for c in ZOO if c.quick == quick or not quick]


def built(cell):
    torch.manual_seed(1)
    return cell.make()


def clients(cell):
    return [(cell.x[:6], cell.y[:6]), (cell.x[6:], cell.y[6:])]


def record():
    return fv.methods.build(
        "record", fv.FedAvg(), noise_multiplier=1e-5, clip=1.0, examples=6, rounds=1
    )


def by_hand(cell, model, layout):
    """Two clients' loops as anyone writes them, and the mean of their parameters."""
    trained, loss = [], loss_of(cell.loss)
    kind = next(model.parameters()).dtype
    for i, (x, y) in enumerate(clients(cell)):
        own = deepcopy(model).train()
        optimizer = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], lr=LR)
        order = torch.from_numpy(epoch_orders([(SEED, 1, i)], [len(x)], 1)[0][0])
        for rows in order.split(BATCH):
            optimizer.zero_grad()
            inputs = x[rows].to(kind) if x.is_floating_point() else x[rows]
            loss(outputs_of(own(inputs)), y[rows]).backward()
            optimizer.step()
        trained.append(layout.read(own))
    return torch.stack(trained).mean(0)


def federation(cell, model, lr=LR, **options):
    local = fv.LocalTraining(batch_size=BATCH, lr=lr, loss=cell.loss)
    return fv.Federation(model=model, clients=clients(cell), local=local, seed=SEED, **options)


def require_movement(cell, wanted, start):
    """What is compared has moved well beyond the tolerance."""
    assert float((wanted - start).abs().max()) > 5 * cell.within


def look_at_plain_training(cell):
    model = built(cell)
    if cell.plain:
        with pytest.raises(fv.FieldError, match=cell.plain):
            federation(cell, model)
        return
    own = federation(cell, model, **(cell.options or {}))
    model = getattr(model, "_orig_mod", model)  # of a compiled one the module itself
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = by_hand(cell, model, own.layout) if cell.compared else None
    found = own.run(1).models[0]
    assert torch.isfinite(found).all()
    assert not torch.equal(found, own.layout.read(model))
    if wanted is not None:
        require_movement(cell, wanted, own.layout.read(model))
        torch.testing.assert_close(found, wanted, rtol=0, atol=cell.within)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def clipped_by_hand(cell, model, layout):
    """One step of two clients on the mean of gradients that are cut to length 1, example by example."""
    loss, model = loss_of(cell.loss), deepcopy(model).train()
    shared = [p for p in model.parameters() if p.requires_grad]
    mean = torch.zeros(layout.size, dtype=torch.float64)
    for i in range(12):
        x = cell.x[i : i + 1]
        inputs = x.to(next(model.parameters()).dtype) if x.is_floating_point() else x
        value = loss(outputs_of(model(inputs)), cell.y[i : i + 1])
        parts = torch.autograd.grad(value, shared, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([part.reshape(-1) for part in parts]).double()
        mean += gradient / max(1.0, float(gradient.norm())) / 12
    return (layout.read(model).double() - CLIPPED_LR * mean).to(layout.dtype)


def look_at_record_level(cell):
    if cell.record:
        with pytest.raises(fv.FieldError, match=cell.record):
            federation(cell, built(cell), method=record())
        if not cell.mended:
            return
    model = fv.learning.mend(built(cell)) if cell.mended else built(cell)
    own = federation(cell, model, CLIPPED_LR, method=record())
    model = getattr(model, "_orig_mod", model)
    done = own.run(1)
    assert not done.rounds[0].zeroed
    assert torch.isfinite(done.models).all()
    assert not torch.equal(done.models[0], own.layout.read(model))
    if cell.compared:
        wanted = clipped_by_hand(cell, model, own.layout)
        require_movement(cell, wanted, own.layout.read(model))
        torch.testing.assert_close(done.models[0], wanted, rtol=0, atol=cell.within)


@pytest.mark.parametrize("cell", cells(quick=True))
def test_a_quick_slice(cell):
    look_at_plain_training(cell)
    look_at_record_level(cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells(quick=False))
def test_plain_training_is_pytorchs_own(cell):
    look_at_plain_training(cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells(quick=False))
def test_record_level_trains_or_refuses_by_name(cell):
    look_at_record_level(cell)


@pytest.mark.few(12)
@pytest.mark.parametrize(
    "cell", [pytest.param(c, id=c.name) for c in ZOO if not c.record or c.mended]
)
def test_which_take_one_example_a_call_is_said(cell):
    """Attention, tables, recurrent layers and InstanceNorm did, 17 of these networks."""
    model = fv.learning.mend(built(cell)) if cell.mended else built(cell)
    model = getattr(model, "_orig_mod", model).train()
    x = cell.x.to(next(model.parameters()).dtype) if cell.x.is_floating_point() else cell.x
    with torch.no_grad():
        model(x)  # a hook's weight is no leaf before
    sums = PerExample(model, fv.Layout.from_module(model), cell.loss, torch.Generator())
    sums.clipped_sum(x, cell.y, 1.0)
    assert (sums.rule_name == "one by one") == cell.alone


def test_the_page_says_what_is_expected_of_each():
    assert len(ZOO) >= 40
    assert page() == PAGE.read_text(), "write it anew: python tests/fedveil/learning/zoo_kit.py"


def test_the_loop_by_hand_tells_other_training():
    """The comparison has power: another order of the same examples is further away."""
    cell = ZOO[0]
    model = built(cell)
    layout = fv.Layout.from_module(model)
    right = by_hand(cell, model, layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    nn.functional.cross_entropy(model(cell.x), cell.y).backward()
    optimizer.step()
    assert float((layout.read(model) - right).abs().max()) > 3 * cell.within
