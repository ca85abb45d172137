"""Clients trained as one computation come out as they do one after another."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import (
    BatchedTrainer,
    ClientData,
    LocalTraining,
    SequentialTrainer,
    Trained,
    WorkerTrainer,
    build_model,
    make_trainer,
)
from fedveil.learning.stacked import NotStackable, compile_stack
from fedveil.learning.streams import epoch_orders

SIZES = (7, 23, 1, 0, 16, 12)


class Chain(nn.Module):
    """A forward pass written out with functions."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Linear(8, 4), nn.Linear(4, 6)
        self.out = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.c1(x))
        return self.out(torch.flatten(torch.tanh(self.c2(x)), 1))


def stack(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: stack(nn.Linear(6, 5)), (6,)),
    "flatten, relu, no bias": (
        lambda: stack(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5, bias=False)),
        (2, 3),
    ),
    "tanh, dropout": (
        lambda: stack(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 5)),
        (6,),
    ),
    "gelu": (lambda: stack(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)), (6,)),
    "gelu by tanh, sigmoid": (
        lambda: stack(
            nn.Linear(6, 8), nn.GELU("tanh"), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 5)
        ),
        (6,),
    ),
    "layer norm": (
        lambda: stack(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5)),
        (6,),
    ),
    "layer norm first": (
        lambda: stack(nn.LayerNorm((2, 3)), nn.Flatten(), nn.Linear(6, 5)),
        (2, 3),
    ),
    "embedding": (
        lambda: stack(nn.Embedding(11, 6, padding_idx=0), nn.Flatten(), nn.Linear(18, 5)),
        (3,),
    ),
    "functions": (Chain, (2, 8)),
    "nested": (
        lambda: stack(
            stack(nn.Linear(6, 4), nn.ReLU()), stack(nn.Identity(), stack(nn.Linear(4, 5)))
        ),
        (6,),
    ),
}
HOWS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "prox": {"prox": 0.5},
    "momentum": {"momentum": 0.9, "prox": 0.1, "lr": 0.05},
    "adam": {"optimizer": "adam", "lr": 0.01},
}


def clients(
    shape: tuple[int, ...], dtype: torch.dtype, words: int = 0, sizes: Any = SIZES
) -> list[ClientData]:
    g = torch.Generator().manual_seed(0)
    made = []
    for n in sizes:
        x = (
            torch.randint(0, words, (n, *shape), generator=g)
            if words
            else torch.randn(n, *shape, generator=g).to(dtype)
        )
        made.append(ClientData(x, torch.randint(0, 5, (n,), generator=g)))
    return made


def both(
    name: str, local: LocalTraining, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Any, Any]:
    make, shape = CASES[name]
    torch.manual_seed(1)
    model = make().to(dtype)
    layout = Layout.from_module(model)
    data = clients(shape, dtype, words=11 if name == "embedding" else 0)
    g = torch.Generator().manual_seed(2)
    starts = layout.read(model) + 0.1 * torch.randn(len(data), layout.size, generator=g).to(dtype)
    keys = [(5, 2, p) for p in range(len(data))]
    one = SequentialTrainer(model, layout, local).train(starts, data, keys)
    many = BatchedTrainer(model, layout, local, **options).train(starts, data, keys)
    return one, many


def apart(one: list[Trained], many: list[Trained]) -> float:
    for a, b in zip(one, many, strict=True):
        assert not isinstance(a, Exception), a
        assert not isinstance(b, Exception), b
        assert a.examples == b.examples
        assert b.loss == pytest.approx(a.loss, rel=1e-4, abs=1e-9)
    return max(float((a.model - b.model).abs().max()) for a, b in zip(one, many, strict=True))


@pytest.fixture(autouse=True)
def no_fallback(caplog: pytest.LogCaptureFixture) -> Any:
    """Nothing here may train one by one in secret, unless a test says so."""
    caplog.set_level(logging.DEBUG, logger="fedveil.learning")
    yield
    if "one by one" in caplog.text or "one after another" in caplog.text:
        assert "expected" in caplog.text, caplog.text


@pytest.mark.few(20)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", CASES)
def test_every_layer_agrees_in_float64(name: str, how: str) -> None:
    local = LocalTraining(**{"epochs": 1, "batch_size": 5, "lr": 0.1} | HOWS[how])
    for block in (None, 1, 4):
        assert apart(*both(name, local, block=block)) < 1e-9


@pytest.mark.parametrize("name", CASES)
def test_every_layer_agrees_in_float32(name: str) -> None:
    one, many = both(name, LocalTraining(epochs=1, batch_size=5, lr=0.1), torch.float32, block=3)
    assert apart(one, many) < 1e-5


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=9),
    batch=st.integers(1, 12),
    epochs=st.integers(1, 3),
    block=st.integers(1, 9),
)
@settings(max_examples=25, deadline=None)
def test_unequal_clients_agree(sizes: list[int], batch: int, epochs: int, block: int) -> None:
    model = stack(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 5)).double()
    layout = Layout.from_module(model)
    data, local = (
        clients((3,), torch.float64, sizes=sizes),
        LocalTraining(epochs=epochs, batch_size=batch, lr=0.3),
    )
    starts, keys = layout.read(model).expand(len(sizes), -1), [(0, 1, p) for p in range(len(sizes))]
    one = SequentialTrainer(model, layout, local).train(starts, data, keys)
    assert (
        apart(one, BatchedTrainer(model, layout, local, block=block).train(starts, data, keys))
        < 1e-9
    )  # type: ignore[arg-type]


def test_regression_and_labels_a_pixel() -> None:
    g = torch.Generator().manual_seed(3)
    cases: list[tuple[nn.Module, Tensor, Tensor, str]] = [
        (
            stack(nn.Linear(3, 1)),
            torch.randn(9, 3, generator=g),
            torch.randn(9, generator=g),
            "mse",
        ),
        (
            stack(nn.Linear(3, 2)),
            torch.randn(9, 3, generator=g),
            torch.randn(9, 2, generator=g),
            "mse",
        ),
        (
            stack(nn.Linear(6, 4)),
            torch.randn(9, 3, 6, generator=g),
            torch.randint(0, 3, (9, 4), generator=g),
            "cross_entropy",
        ),
        (
            stack(nn.Linear(3, 4)),
            torch.randn(9, 3, generator=g),
            torch.randint(0, 4, (9,), generator=g),
            "mse",
        ),
        (
            stack(nn.Linear(3, 4)),
            torch.randn(9, 3, generator=g),
            torch.randint(0, 4, (9,), generator=g),
            "rmse",
        ),
    ]
    for model, x, y, loss in cases:
        model.double()
        layout, local = (
            Layout.from_module(model),
            LocalTraining(epochs=2, batch_size=4, lr=0.2, loss=loss),
        )
        y = y.double() if y.is_floating_point() else y
        data = [ClientData(x.double(), y), ClientData(x[:3].double(), y[:3])]
        starts, keys = layout.read(model).expand(2, -1), [(0, 1, 0), (0, 1, 1)]
        one = SequentialTrainer(model, layout, local).train(starts, data, keys)
        assert (
            apart(one, BatchedTrainer(model, layout, local, block=2).train(starts, data, keys))
            < 1e-9
        )  # type: ignore[arg-type]


def test_threads_change_nothing() -> None:
    local = LocalTraining(epochs=2, batch_size=5, lr=0.1)
    for name in ("tanh, dropout", "functions"):
        _, one = both(name, local, block=2)
        _, two = both(name, local, block=2, workers=2)
        assert all(torch.equal(a.model, b.model) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    "make", [Chain, lambda: stack(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))]
)
def test_bfloat16_is_near_and_not_the_same(make: Any) -> None:
    torch.manual_seed(1)
    model, local = make(), LocalTraining(epochs=1, batch_size=5, lr=0.1)
    layout, shape = Layout.from_module(model), (2, 8) if make is Chain else (2, 2, 4)
    data, keys = clients(shape, torch.float32, sizes=(7, 23)), [(5, 2, p) for p in range(2)]
    starts = layout.read(model).expand(2, -1)
    one = SequentialTrainer(model, layout, local).train(starts, data, keys)
    half = make_trainer(model, layout, local, precision="bfloat16").train(starts, data, keys)
    gap = apart_relative(one, half)  # type: ignore[arg-type]
    assert 1e-4 < gap < 0.2
    assert half[0].model.dtype == torch.float32  # type: ignore[union-attr]


def apart_relative(one: list[Trained], many: list[Trained]) -> float:
    starts = [t.model for t in one]
    return max(float((a - b.model).norm() / a.norm()) for a, b in zip(starts, many, strict=True))


def test_a_failing_client_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    model = stack(nn.Linear(3, 5))
    layout, local = Layout.from_module(model), LocalTraining(lr=0.1, batch_size=4)
    good = clients((3,), torch.float32, sizes=(6, 6, 6))
    bad = [
        ClientData(torch.randn(6, 3), torch.full((6,), 9)),
        ClientData(torch.randn(6, 2), torch.zeros(6).long()),
    ]
    data = [good[0], *bad, *good[1:]]
    starts, keys = layout.read(model).expand(5, -1), [(0, 1, p) for p in range(5)]
    results = make_trainer(model, layout, local).train(starts, data, keys)
    assert [isinstance(r, Exception) for r in results] == [False, True, True, False, False]
    logging.getLogger("fedveil.learning").debug("expected")


def test_a_diverging_client_diverges_alone() -> None:
    model = stack(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))
    layout, local = Layout.from_module(model), LocalTraining(lr=0.1, batch_size=4)
    data = clients((3,), torch.float32, sizes=(6, 6, 6))
    data[1] = ClientData(data[1].x * 1e30, data[1].y)
    starts, keys = layout.read(model).expand(3, -1), [(0, 1, p) for p in range(3)]
    one = SequentialTrainer(model, layout, local).train(starts, data, keys)
    many = BatchedTrainer(model, layout, local, block=3).train(starts, data, keys)
    assert not torch.isfinite(many[1].model).all()  # type: ignore[union-attr]
    for i in (0, 2):
        assert torch.allclose(one[i].model, many[i].model, atol=1e-6)  # type: ignore[union-attr]


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.a(x)


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else x


def frozen() -> nn.Module:
    model = stack(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)  # type: ignore[index]
    return model


def tied() -> nn.Module:
    one = nn.Linear(3, 3)
    return stack(one, nn.ReLU(), one)


def hooked() -> nn.Module:
    model = stack(nn.Linear(3, 2))
    model[0].register_forward_hook(lambda *_: None)  # type: ignore[index]
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Branch, "straight chain"),
        (Looks, "cannot be traced"),
        (frozen, "frozen"),
        (tied, "exactly once"),
        (hooked, "hook"),
        (lambda: stack(nn.Linear(3, 3), nn.Hardtanh()), "Hardtanh is not known"),
        (lambda: stack(nn.Conv2d(1, 1, 3)), "Conv2d is not known"),
        (lambda: stack(nn.Embedding(4, 2, max_norm=1.0)), "renormalises"),
        (lambda: stack(nn.Flatten(0), nn.Linear(3, 3)), "batch axis"),
    ],
)
def test_what_cannot_be_batched_falls_back_with_one_line(
    make: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = make()
    layout = Layout.from_module(model)
    with pytest.raises(NotStackable, match=reason):
        make_trainer(model, layout, LocalTraining(), "batched")
    caplog.clear()
    assert isinstance(make_trainer(model, layout, LocalTraining()), WorkerTrainer)
    assert len([r for r in caplog.records if reason in r.getMessage()]) == 1
    logging.getLogger("fedveil.learning").debug("expected")


def test_batch_norm_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    model = stack(nn.Linear(3, 3), nn.BatchNorm1d(3))
    layout = Layout.from_module(model, buffers="keep")
    assert isinstance(make_trainer(model, layout, LocalTraining()), WorkerTrainer)
    assert "BatchNorm1d is not known" in caplog.text
    logging.getLogger("fedveil.learning").debug("expected")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("logistic", (4,)), ("mlp", (4,)), ("regression", (3,))],
)
def test_every_dense_model_of_the_library_is_batched(name: str, shape: tuple[int, ...]) -> None:
    model = build_model(name, input_shape=shape, outputs=2, seed=0)
    assert isinstance(
        make_trainer(model, Layout.from_module(model), LocalTraining()), BatchedTrainer
    )


def test_the_model_stays_as_it_is() -> None:
    model = stack(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 5)).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    layout = Layout.from_module(model)
    compile_stack(model, layout)
    BatchedTrainer(model, layout, LocalTraining(lr=1.0)).train(
        layout.read(model)[None], clients((3,), torch.float32, sizes=(6,)), [(0, 0, 0)]
    )
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not any(m.training for m in model.modules())


def test_bad_options_name_themselves() -> None:
    model = stack(nn.Linear(3, 5))
    layout = Layout.from_module(model)
    with pytest.raises(FieldError, match="trainer"):
        make_trainer(model, layout, LocalTraining(), "fast")
    with pytest.raises(FieldError, match="precision"):
        make_trainer(model, layout, LocalTraining(), "batched", precision="bfloat16")
    with pytest.raises(FieldError, match="workers"):
        BatchedTrainer(model, layout, LocalTraining(), workers=0)
    with pytest.raises(FieldError, match="starts"):
        BatchedTrainer(model, layout, LocalTraining()).train(torch.zeros(2, 3), [], [])


def test_orders_are_permutations_keyed_by_client_alone() -> None:
    keys = [(1, 2, 3), (1, 2, 4), (1, 3, 3)]
    together = epoch_orders(keys, [5, 1, 7], 3)
    apart_ = [epoch_orders([k], [n], 3)[0] for k, n in zip(keys, [5, 1, 7], strict=True)]
    assert all(
        rows[:, :n].tolist() == own.tolist()
        for rows, n, own in zip(together, [5, 1, 7], apart_, strict=True)
    )
    assert all(sorted(row) == list(range(7)) for row in apart_[2].tolist())
    assert len({tuple(row) for row in apart_[2].tolist()}) == 3


def test_orders_are_uniform() -> None:
    orders = epoch_orders([(0, 1, p) for p in range(6000)], [3] * 6000, 1).reshape(6000, 3)
    codes = torch.from_numpy(orders[:, 0] * 3 + orders[:, 1])
    counts = torch.bincount(codes, minlength=9)[torch.tensor([1, 2, 3, 5, 6, 7])].double()
    assert (
        float(((counts - 1000) ** 2 / 1000).sum()) < 25
    )  # chi-square with 5 degrees of freedom: p = 1e-4
