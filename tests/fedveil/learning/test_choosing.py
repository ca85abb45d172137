"""Thousands of clients choose and are measured at once, each as it would alone."""

import pytest
import torch
from torch import nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import (
    BatchedTrainer,
    ClientData,
    LocalTraining,
    SequentialTrainer,
    build_model,
    choose,
    choose_each,
    client_losses,
    evaluate,
    evaluate_clients,
)
from fedveil.learning import evaluation as module
from fedveil.learning.losses import loss_of, losses_of, predict

SHAPES = {"cross_entropy": (3, torch.int64), "mse": (1, torch.float32), "rmse": (1, torch.float32)}


def setup(loss, n=40, k=3):
    outputs, kind = SHAPES[loss]
    model = build_model("mlp", input_shape=(4,), outputs=outputs, seed=0, hidden=(5,))
    layout = Layout.from_module(model)
    g = torch.Generator().manual_seed(1)
    models = torch.randn(k, layout.size, generator=g)
    clients = []
    for i in range(n):
        x = torch.randn(i % 6, 4, generator=g)
        y = (
            torch.randint(0, 3, (len(x),), generator=g)
            if kind == torch.int64
            else torch.randn(len(x), generator=g)
        )
        clients.append(ClientData(x, y, x, y))
    return model, layout, models, clients


@pytest.mark.parametrize("loss", SHAPES)
def test_each_chooses_as_it_would_alone(loss, monkeypatch):
    model, layout, models, clients = setup(loss)
    alone = [choose(model, layout, models, c, loss) for c in clients]
    assert len(set(alone)) > 1
    assert choose_each(model, layout, models, clients, loss) == alone
    monkeypatch.setattr(module, "ROOM", 50)  # several blocks
    monkeypatch.setattr(module, "choose", None)  # nobody is nearly undecided
    assert choose_each(model, layout, models, clients, loss) == alone


def test_losses_of_clients_are_the_losses():
    for loss in SHAPES:
        model, layout, models, clients = setup(loss)
        found = client_losses(model, layout, models, clients, loss)
        assert found.shape == (40, 3)
        assert found[0].isnan().all()
        for i in (1, 5, 11):
            outputs = predict(model, layout, models[2], clients[i].x).double()
            assert float(found[i, 2]) == pytest.approx(
                float(loss_of(loss)(outputs, clients[i].y)), rel=1e-6
            )


def test_near_ties_and_broken_data_are_settled_client_by_client():
    model, layout, models, clients = setup("cross_entropy", k=2)
    near = torch.stack([models[0], models[0] * (1 + 1e-7), models[1] * 0 + 50])
    alone = [choose(model, layout, near, c, "cross_entropy") for c in clients]
    assert choose_each(model, layout, near, clients, "cross_entropy") == alone
    clients[7] = ClientData(clients[7].x, clients[7].y + 99)
    found = choose_each(model, layout, models, clients, "cross_entropy")
    assert isinstance(found[7], FieldError)
    assert [f for i, f in enumerate(found) if i != 7] == [
        choose(model, layout, models, c, "cross_entropy") for i, c in enumerate(clients) if i != 7
    ]
    assert choose_each(model, layout, models[:1], clients, "cross_entropy") == [0] * 40


def test_each_is_measured_as_alone():
    model, layout, models, clients = setup("cross_entropy")
    chosen = [i % 3 for i in range(40)]
    names = ("loss", "accuracy", "balanced_accuracy", "iou", "auc", "micro_auc")
    single, _ = evaluate_clients(model, layout, models, clients, chosen, names)
    for client, j, found in zip(clients, chosen, single, strict=True):
        assert found == pytest.approx(
            evaluate(model, layout, models[j], client.x, client.y, names), rel=1e-6
        )


def test_rmse_by_hand():
    loss = loss_of("rmse")(torch.tensor([[3.0], [4.0]]), torch.tensor([0.0, 0.0]))
    assert float(loss) == pytest.approx((12.5 + 1e-12) ** 0.5)
    perfect = torch.zeros(2, 1, requires_grad=True)
    loss_of("rmse")(perfect, torch.zeros(2)).backward()
    assert torch.equal(perfect.grad, torch.zeros(2, 1))


@pytest.mark.parametrize("batch_size", [2, 32])
def test_rmse_trains_alike_in_batches_and_one_by_one(batch_size):
    model, _, _, clients = setup("rmse")
    model = model.double()
    layout = Layout.from_module(model)
    local = LocalTraining(epochs=3, batch_size=batch_size, lr=0.05, loss="rmse")
    data = [ClientData(c.x.double(), c.y.double()) for c in clients[:12]]
    starts = torch.stack([layout.read(model)] * 12)
    keys = [(0, 1, i) for i in range(12)]
    one = SequentialTrainer(model, layout, local).train(starts, data, keys)
    many = BatchedTrainer(model, layout, local).train(starts, data, keys)
    squared = BatchedTrainer(
        model, layout, LocalTraining(epochs=3, batch_size=batch_size, lr=0.05, loss="mse")
    )
    for i, (a, b, c) in enumerate(zip(one, many, squared.train(starts, data, keys), strict=True)):
        assert torch.allclose(a.model, b.model, rtol=1e-10, atol=1e-12)
        assert a.loss == pytest.approx(b.loss, rel=1e-10)
        assert torch.equal(b.model, c.model) == (not data[i].examples)


def test_single_examples_have_no_rmse():
    with pytest.raises(FieldError, match="rmse"):
        losses_of("rmse")


def test_a_class_a_pixel_is_trained_and_chosen_in_batches():
    model = nn.Sequential(
        nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)
    ).double()  # classes are the first axis
    layout, local = Layout.from_module(model), LocalTraining(epochs=2, batch_size=3)
    g = torch.Generator().manual_seed(0)
    images = [torch.rand(n, 2, 6, generator=g, dtype=torch.float64) for n in (4, 7, 1)]
    clients = [ClientData(x, (x[:, 0] > 0.5).long()) for x in images]
    keys = [(0, 1, i) for i in range(3)]
    starts = torch.stack([layout.read(model)] * 3)
    one = SequentialTrainer(model, layout, local).train(starts, clients, keys)
    many = BatchedTrainer(model, layout, local).train(starts, clients, keys)
    for a, b in zip(one, many, strict=True):
        assert torch.allclose(a.model, b.model, rtol=1e-10, atol=1e-12)
    models = torch.stack([a.model for a in one])
    assert choose_each(model, layout, models, clients, "cross_entropy") == [
        choose(model, layout, models, c, "cross_entropy") for c in clients
    ]
