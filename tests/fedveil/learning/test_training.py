import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import (
    ClientData,
    LocalTraining,
    SequentialTrainer,
    Trained,
    WorkerTrainer,
    build_model,
    choose,
    make_trainer,
)
from fedveil.learning.losses import LOSSES, losses_of, predict
from fedveil.learning.streams import KeyedDropout
from fedveil.learning.training import Stepper
from fedveil.methods.facts import NoisySteps


def client(n=7, features=3, classes=4, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return ClientData(
        torch.randn(n, features, generator=g, dtype=dtype),
        torch.randint(0, classes, (n,), generator=g),
    )


def linear(features=3, classes=4, dtype=torch.float32):
    return build_model("logistic", input_shape=(features,), outputs=classes, seed=0).to(dtype)


def run(model, data, local, key=(0, 1, 0), start=None, **options):
    layout = Layout.from_module(model)
    start = layout.read(model) if start is None else start
    (result,) = SequentialTrainer(model, layout, local, **options).train(start[None], [data], [key])
    if isinstance(result, Exception):
        raise result
    return result


class Scale(nn.Module):
    """w * x, one parameter: every step can be done by hand."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return self.w * x


ONE = ClientData(
    torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([[6.0]], dtype=torch.float64)
)


def test_one_sgd_step_by_hand():
    # loss (2w - 6)^2, gradient 4 (2w - 6) = -16 at w = 1, so w = 1 + .1 * 16
    result = run(
        Scale(),
        ONE,
        LocalTraining(lr=0.1, loss="mse"),
        start=torch.tensor([1.0], dtype=torch.float64),
    )
    assert result.model.tolist() == pytest.approx([2.6], abs=1e-12)
    assert result.examples == 1
    assert result.loss == pytest.approx(16.0)


def test_a_proximal_term_with_slack_is_silent_nearby():
    # as below, but after the first step w is 1.6 from its start: within a slack of 2 nothing pulls, beyond one of 1 all
    start, told = (
        torch.tensor([1.0], dtype=torch.float64),
        {"epochs": 2, "lr": 0.1, "loss": "mse", "prox": 0.5},
    )
    near, far = (
        run(Scale(), ONE, LocalTraining(**told, slack=s), start=start).model for s in (2.0, 1.0)
    )
    assert near.tolist() == pytest.approx([2.6 + 0.32], abs=1e-12)
    assert far.tolist() == pytest.approx([2.6 + 0.32 - 0.08], abs=1e-12)


def test_the_rate_falls_from_round_to_round():
    start, local = (
        torch.tensor([1.0], dtype=torch.float64),
        LocalTraining(lr=0.1, loss="mse", decay=0.5),
    )
    found = [run(Scale(), ONE, local, key=(0, r, 0), start=start).model.item() for r in (1, 2, 3)]
    assert found == pytest.approx([1 + 1.6, 1 + 0.8, 1 + 0.4], abs=1e-12)


def test_the_rate_rises_and_falls_within_a_round():
    local = LocalTraining(lr=0.1, epochs=20, decay=0.5, schedule="cosine")
    rates = [local.rate(3, step, 20) for step in range(20)]
    assert rates[:2] == pytest.approx([0.0125, 0.025 * (1 + math.cos(math.pi * 1.5 / 20)) / 2])
    assert max(rates) == rates[1]
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[10] + rates[9] == pytest.approx(0.025)
    assert 0 < rates[-1] < 1e-3
    start = torch.tensor([1.0], dtype=torch.float64)
    [one, other] = (
        run(Scale(), ONE, LocalTraining(lr=0.1, loss="mse", schedule=s), start=start).model.item()
        for s in ("cosine", "constant")
    )
    assert one - 1 == pytest.approx((other - 1) / 2)  # of one step, the middle of the cosine


def test_only_the_longest_part_of_an_update_is_kept():
    model, local = linear(), {"lr": 0.5, "batch_size": 4}
    start = Layout.from_module(model).read(model)
    whole = run(model, client(), LocalTraining(**local)).model - start
    kept = run(model, client(), LocalTraining(**local, keep=0.25)).model - start
    assert int((kept != 0).sum()) == round(0.25 * len(whole))
    assert float(whole[kept == 0].abs().max()) <= float(kept[kept != 0].abs().min())
    assert torch.equal(kept[kept != 0], whole[kept != 0])


@pytest.mark.parametrize(
    ("name", "value"), [("slack", 1.0), ("keep", 0.5), ("decay", 0.5), ("schedule", "cosine")]
)
def test_only_one_client_after_another_follows_unusual_local_training(name, value):
    model = linear()
    layout = Layout.from_module(model)
    assert isinstance(make_trainer(model, layout, LocalTraining(**{name: value})), WorkerTrainer)
    noisy = NoisySteps(steps=1, rate=1.0, clip=1.0, deviation=1.0, denominator=7.0)
    with pytest.raises(FieldError, match=name):
        make_trainer(model, layout, LocalTraining(**{name: value}), noisy=noisy)
    if name == "schedule":
        return
    for wrong in (-1.0, 2.0) if name != "slack" else (-1.0, math.nan):
        with pytest.raises(FieldError, match=name):
            LocalTraining(**{name: wrong})


def test_fedprox_term_by_hand():
    # first step as above (no pull at the start), then gradient 4 (5.2 - 6) = -3.2 plus .5 * (2.6 - 1) = .8
    local = LocalTraining(epochs=2, lr=0.1, loss="mse", prox=0.5)
    result = run(Scale(), ONE, local, start=torch.tensor([1.0], dtype=torch.float64))
    assert result.model.tolist() == pytest.approx([2.6 + 0.24], abs=1e-12)


@pytest.mark.parametrize(
    ("options", "make"),
    [
        ({}, torch.optim.SGD),
        ({"momentum": 0.9}, lambda p, **more: torch.optim.SGD(p, momentum=0.9, **more)),
        ({"optimizer": "adam"}, torch.optim.Adam),
        (
            {"optimizer": "adamw", "weight_decay": 0.03},
            lambda p, **more: torch.optim.AdamW(p, weight_decay=0.03, **more),
        ),
    ],
)
def test_steps_are_those_of_torch_optim_to_the_bit(options, make):
    generator = torch.Generator().manual_seed(0)
    theirs = [
        nn.Parameter(torch.randn(size, generator=generator)) for size in ((5, 7), (1000,), (3,))
    ]
    ours = [nn.Parameter(p.detach().clone()) for p in theirs]
    optimizer, own = (
        make(theirs, lr=0.1, fused=True),
        Stepper(ours, LocalTraining(lr=0.1, **options)),
    )
    for _ in range(4):
        for p, q in zip(theirs[:2], ours[:2], strict=True):  # the third has no gradient
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        optimizer.step()
        own.step(0.1)
    assert all(torch.equal(p, q) for p, q in zip(theirs, ours, strict=True))


def test_momentum_by_hand():
    # velocity -16, then .5 * -16 + -3.2 = -11.2
    local = LocalTraining(epochs=2, lr=0.1, loss="mse", momentum=0.5)
    result = run(Scale(), ONE, local, start=torch.tensor([1.0], dtype=torch.float64))
    assert result.model.tolist() == pytest.approx([2.6 + 1.12], abs=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_agrees_with_an_ordinary_loop(optimizer):
    model, data = linear(dtype=torch.float64), client(dtype=torch.float64)
    local = LocalTraining(
        epochs=5, batch_size=7, lr=0.01, optimizer=optimizer
    )  # one batch an epoch: no order
    ours = run(model, data, local)
    make = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    opt = make(model.parameters(), lr=0.01)
    for _ in range(5):
        opt.zero_grad()
        loss = F.cross_entropy(model(data.x), data.y)
        loss.backward()
        opt.step()
    torch.testing.assert_close(
        ours.model, Layout.from_module(model).read(model), atol=1e-12, rtol=0
    )
    assert ours.loss == pytest.approx(float(loss.detach()), abs=1e-12)


def test_every_example_is_used_once_an_epoch_and_the_short_batch_is_kept():
    seen = []

    def loss(outputs, y):
        seen.append(len(y))
        return F.cross_entropy(outputs, y)

    run(linear(), client(7), LocalTraining(epochs=2, batch_size=3, loss=loss))
    assert seen == [3, 3, 1, 3, 3, 1]


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.drop, self.out = nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(
            F.dropout(self.drop(self.dense(x)), 0.3, self.training)
        )  # one keyed, one of torch's own


def test_results_depend_neither_on_order_nor_on_the_others_nor_on_the_global_state():
    model, layout = Noisy(), None
    layout = Layout.from_module(model)
    data = [client(5 + i, seed=i) for i in range(4)]
    keys = [(9, 2, i) for i in range(4)]
    start = layout.read(model).repeat(4, 1)
    trainer = SequentialTrainer(model, layout, LocalTraining(epochs=2, batch_size=2, momentum=0.5))
    all_of_them = trainer.train(start, data, keys)
    torch.manual_seed(123)
    before = torch.get_rng_state()
    turned = trainer.train(start, data[::-1], keys[::-1])[::-1]
    assert torch.equal(before, torch.get_rng_state())
    (alone,) = trainer.train(start[:1], data[2:3], keys[2:3])
    for a, b in zip(all_of_them, turned, strict=True):
        assert torch.equal(a.model, b.model)
    assert torch.equal(alone.model, all_of_them[2].model)
    (other,) = trainer.train(start[:1], data[2:3], [(9, 3, 2)])
    assert not torch.equal(other.model, alone.model)


def test_the_callers_model_is_left_alone():
    model = Noisy()
    layout = Layout.from_module(model)
    before = layout.read(model)
    run(model, client(), LocalTraining(epochs=3))
    assert torch.equal(before, layout.read(model))
    assert isinstance(model.drop, nn.Dropout)


def test_one_client_that_raises_does_not_stop_the_rest():
    model, layout = linear(), Layout.from_module(linear())
    bad = ClientData(torch.randn(4, 9), torch.zeros(4, dtype=torch.int64))
    trainer = SequentialTrainer(model, layout, LocalTraining())
    first, second, third = trainer.train(
        layout.read(model).repeat(3, 1),
        [client(), bad, client()],
        [(0, 1, 0), (0, 1, 1), (0, 1, 0)],
    )
    assert isinstance(second, RuntimeError)
    assert torch.equal(first.model, third.model)


def test_an_interrupt_is_not_a_clients_failure():
    def loss(outputs, y):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(linear(), client(), LocalTraining(loss=loss))


def test_a_client_without_examples_returns_its_start():
    start = torch.arange(16.0)
    result = run(linear(), client(0), LocalTraining(), start=start)
    assert torch.equal(result.model, start)
    assert (result.examples, result.loss) == (0, 0.0)


def test_frozen_parameters_and_buffers_are_the_same_for_every_client():
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    model[0].bias.requires_grad_(False)
    layout = Layout.from_module(model, buffers="keep")
    trainer = SequentialTrainer(model, layout, LocalTraining(batch_size=7))
    starts = layout.read(model).repeat(2, 1)
    first, second = trainer.train(starts, [client(), client()], [(0, 1, 0)] * 2)
    assert torch.equal(first.model, second.model)
    assert model[1].num_batches_tracked == 0


def test_a_diverged_model_is_returned_as_it_is():
    result = run(
        linear(),
        client(),
        LocalTraining(loss=lambda outputs, y: F.cross_entropy(outputs, y) * float("inf")),
    )
    assert not torch.isfinite(result.model).all()


def test_mismatched_lists_are_refused():
    layout = Layout.from_module(linear())
    trainer = SequentialTrainer(linear(), layout, LocalTraining())
    with pytest.raises(FieldError, match="n keys"):
        trainer.train(torch.zeros(2, layout.size), [client()], [(0, 1, 0)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 2.5},
        {"lr": float("nan")},
        {"lr": 0},
        {"optimizer": "rmsprop"},
        {"momentum": 1.0},
        {"prox": -1},
        {"loss": "mae"},
        {"optimizer": "adam", "momentum": 0.5},
    ],
)
def test_local_training_refuses_by_field(wrong):
    with pytest.raises(FieldError, match=str(list(wrong)[-1])):
        LocalTraining(**wrong)


def test_keyed_dropout_keeps_the_mean_and_drops_whole_channels():
    drop = KeyedDropout(0.25, 2, torch.Generator().manual_seed(0))
    out = drop(torch.ones(200, 50, 3, 3))
    assert float(out.mean()) == pytest.approx(1.0, abs=0.02)
    assert out.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert torch.equal(out.amax((2, 3)), out.amin((2, 3)))
    assert torch.equal(drop.eval()(out), out)
    assert torch.equal(KeyedDropout(1.0, 0, torch.Generator())(torch.ones(3)), torch.zeros(3))


def test_choose_takes_the_least_loss_the_lowest_index_and_never_nan():
    model = linear(dtype=torch.float64)
    layout, data = Layout.from_module(model), client(dtype=torch.float64)
    good = run(model, data, LocalTraining(epochs=50)).model
    start = layout.read(model)
    nan = torch.full_like(good, float("nan"))
    assert choose(model, layout, torch.stack([start, nan, good, good]), data, "cross_entropy") == 2
    assert choose(model, layout, torch.stack([start, good]), client(0), "cross_entropy") == 0
    assert choose(model, layout, nan[None], data, "cross_entropy") == 0
    with pytest.raises(FieldError, match="NaN"):
        choose(model, layout, torch.stack([nan, nan]), data, "cross_entropy")
    assert torch.equal(layout.read(model), start)


@given(
    n=st.integers(1, 12),
    batch=st.integers(1, 14),
    epochs=st.integers(1, 3),
    prox=st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=25, deadline=None)
def test_the_same_key_gives_the_same_bits(n, batch, epochs, prox):
    local = LocalTraining(epochs=epochs, batch_size=batch, prox=prox)
    a, b = (run(linear(), client(n), local) for _ in range(2))
    assert isinstance(a, Trained)
    assert torch.equal(a.model, b.model)
    assert a.loss == b.loss


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": torch.zeros(2, 3, dtype=torch.int32), "y": torch.zeros(2)}, "x ="),
        ({"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.int32)}, "y ="),
        ({"x": torch.zeros(2, 3), "y": torch.zeros(3)}, "y = 3"),
        ({"x": torch.tensor([[0.0], [float("nan")]]), "y": torch.zeros(2)}, r"x\[1\]"),
        ({"x": torch.zeros(1, 3), "y": torch.tensor([-2])}, "y = -2"),
        ({"x": torch.zeros(1, 3), "y": torch.zeros(1), "test_x": torch.zeros(1, 3)}, "test_y"),
        (
            {
                "x": torch.zeros(1, 3),
                "y": torch.zeros(1),
                "test_x": torch.zeros(1, 2),
                "test_y": torch.zeros(1),
            },
            "test_x",
        ),
    ],
)
def test_client_data_refuses_by_field(fields, message):
    with pytest.raises(FieldError, match=message):
        ClientData(**fields)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convolutions_give_the_same_bits_again_and_agree_with_an_ordinary_loop(dtype):
    model = build_model(
        "small_cnn", input_shape=(2, 8, 8), outputs=3, seed=0, channels=(4, 4), dense=8
    ).to(dtype)
    g = torch.Generator().manual_seed(0)
    data = ClientData(torch.randn(6, 2, 8, 8, generator=g, dtype=dtype), torch.arange(6) % 3)
    local = LocalTraining(epochs=3, batch_size=6, lr=0.05)
    first, second = run(model, data, local), run(model, data, local)
    assert torch.equal(first.model, second.model)
    layout = Layout.from_module(model)
    assert (
        choose(model, layout, torch.stack([layout.read(model), first.model]), data, "cross_entropy")
        == 1
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        opt.zero_grad()
        F.cross_entropy(model(data.x), data.y).backward()
        opt.step()
    torch.testing.assert_close(
        first.model, layout.read(model), atol=1e-5 if dtype == torch.float32 else 1e-12, rtol=0
    )


def test_classes_that_the_model_does_not_have_are_named():
    data = ClientData(torch.randn(6, 3), torch.tensor([1, 2, 3, 4, 1, 2]))
    with pytest.raises(
        FieldError, match=r"y = 'from 1 to 4': classes must be numbered from 0 to 3"
    ):
        run(linear(), data, LocalTraining(batch_size=6))


def test_dice_by_hand_and_where_it_is_refused():
    logits = torch.zeros(1, 2, 1, 4)
    y = torch.tensor([[[0, 1, 1, 0]]])
    # softmax .5 everywhere: ln 2, and 1 - (2 * 1 + 1) / (2 + 2 + 1)
    assert float(LOSSES["dice"](logits, y)) == pytest.approx(math.log(2) + 1 - 3 / 5)
    sure = torch.stack([1 - y.float(), y.float()], 1) * 100
    assert float(LOSSES["dice"](sure, y)) == pytest.approx(0, abs=1e-6)
    assert float(LOSSES["soft_dice"](logits, y)) == pytest.approx(1 - 3 / 5)
    with pytest.raises(FieldError, match="class a pixel"):
        LOSSES["dice"](torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))
    model = build_model("unet", input_shape=(1, 8, 8), outputs=2, seed=0, widths=(4, 8))
    layout = Layout.from_module(model)
    local = LocalTraining(epochs=60, batch_size=4, lr=0.03, optimizer="adam", loss="dice")
    x = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    client = ClientData(x, (x[:, 0] > 0.8).long())
    [trained] = SequentialTrainer(model, layout, local).train(
        layout.read(model)[None], [client], [(0, 1, 0)]
    )
    found = predict(model, layout, trained.model, x).argmax(1)
    both, either = ((found & client.y).sum(), (found | client.y).sum())
    assert both / either > 0.7
    with pytest.raises(FieldError, match="root"):
        losses_of("rmse")
