import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import (
    ClientData,
    LocalTraining,
    layer_scores,
    region_mask,
    score_maps,
    score_models,
)
from fedveil.learning.learner import Learner
from fedveil.learning.scoring import Scoring


def net(activation, pool):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 3, 3),
            activation(),
            pool(2),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(3 * 2 * 2, 3),
        ).double()


def images(n=2):
    g = torch.Generator().manual_seed(1)
    return torch.rand(n, 2, 6, 6, generator=g, dtype=torch.float64), torch.arange(n) % 3


def naive(module, x, y, mask):
    """The definition, one double backward a parameter."""
    module.eval()
    layout = Layout.from_module(module)
    scores = dict.fromkeys(layout.groups("module"), 0.0)
    for i in range(len(x)):
        image = x[i : i + 1].clone().requires_grad_(True)
        loss = F.cross_entropy(module(image), y[i : i + 1])
        gradients = torch.autograd.grad(loss, list(module.parameters()), create_graph=True)
        squares = {name: torch.zeros(6, 6, dtype=torch.float64) for name in scores}
        for block, gradient in zip(layout.blocks, gradients, strict=True):
            for value in gradient.reshape(-1):
                (row,) = torch.autograd.grad(
                    value, image, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                squares[block.module] += row[0].square().sum(0)
        for name, square in squares.items():
            scores[name] += float(square.sqrt()[mask].mean()) / len(x)
    return scores


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("pool", [nn.MaxPool2d, nn.AvgPool2d])
def test_exact_is_the_definition(activation, pool):
    module, (x, y) = net(activation, pool), images()
    mask = region_mask((1, 0, 4, 3), 6, 6)
    module.train()
    ours = layer_scores(module, "cross_entropy", x, y, (1, 0, 4, 3))
    assert module.training
    assert list(ours) == ["0", "5"]
    theirs = naive(module, x, y, mask)
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    assert layer_scores(module, F.cross_entropy, x, y, mask) == pytest.approx(ours, rel=1e-12)


def test_the_estimate_is_close_and_seeded():
    module, (x, y) = net(nn.Tanh, nn.AvgPool2d), images(4)
    exact = layer_scores(module, "cross_entropy", x, y, (0, 0, 6, 6))
    before = torch.get_rng_state()
    a, b = (
        layer_scores(module, "cross_entropy", x, y, (0, 0, 6, 6), "estimate", probes=256)
        for _ in range(2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert a == b
    assert a == pytest.approx(exact, rel=0.05)
    other = layer_scores(
        module, "cross_entropy", x, y, (0, 0, 6, 6), "estimate", probes=256, seed=1
    )
    assert other != a


def test_many_models_in_layout_order():
    module, (x, y) = net(nn.Tanh, nn.AvgPool2d), images()
    layout = Layout.from_module(module)
    models = torch.stack([layout.read(module), 2 * layout.read(module)])
    found = score_models(module, layout, "cross_entropy", models, x, y, (2, 2, 4, 4))
    assert found.shape == (2, 2)
    assert found.dtype == torch.float64
    own = layer_scores(module, "cross_entropy", x, y, (2, 2, 4, 4))
    assert found[0].tolist() == pytest.approx(list(own.values()), rel=1e-12)
    assert not torch.allclose(found[0], found[1])


def test_float32_is_close_to_float64():
    module, (x, y) = net(nn.Tanh, nn.MaxPool2d), images()
    exact = layer_scores(module, "cross_entropy", x, y, (0, 0, 3, 3))
    assert layer_scores(module.float(), "cross_entropy", x, y, (0, 0, 3, 3)) == pytest.approx(
        exact, rel=1e-4
    )


@pytest.mark.parametrize(
    "region",
    [
        (0, 0, 0, 3),
        (0, 0, 7, 3),
        (3, 3, 2, 4),
        (0, 0, 3),
        (-1, 0, 3, 3),
        torch.zeros(6, 6, dtype=torch.bool),
        torch.ones(5, 6, dtype=torch.bool),
        torch.ones(6, 6),
    ],
)
def test_regions_that_are_refused(region):
    with pytest.raises(FieldError, match="region"):
        layer_scores(net(nn.Tanh, nn.AvgPool2d), "cross_entropy", *images(), region)


def test_other_refusals():
    module, (x, y) = net(nn.Tanh, nn.AvgPool2d), images()
    with pytest.raises(FieldError, match="method"):
        layer_scores(module, "cross_entropy", x, y, (0, 0, 2, 2), "guess")
    with pytest.raises(FieldError, match="x ="):
        layer_scores(module, "cross_entropy", x[0], y, (0, 0, 2, 2))


@pytest.mark.parametrize("method", ["exact", "estimate"])
def test_a_regions_score_is_the_mean_of_its_pixels_in_the_map(method):
    module, (x, y) = net(nn.Tanh, nn.AvgPool2d), images(3)
    layout = Layout.from_module(module)
    maps = score_maps(module, layout, "cross_entropy", layout.read(module), x, y, method)
    assert maps.shape == (2, 6, 6)
    region = (1, 0, 4, 3)
    scores = layer_scores(module, "cross_entropy", x, y, region, method)
    found = maps[:, region_mask(region, 6, 6)].mean(1).tolist()
    assert found == pytest.approx(list(scores.values()), rel=1e-9)


def test_which_images_a_client_is_scored_on():
    module, (x, y) = net(nn.Tanh, nn.AvgPool2d), images(6)
    layout = Layout.from_module(module)
    masks = torch.zeros(6, 6, 6, dtype=torch.bool)
    masks[[1, 3, 4, 5], 2:4, 1:3] = True
    start = layout.read(module)[None]

    def score(data, round_=1, **options):
        learner = Learner(module, layout, LocalTraining(), scoring=Scoring(**options))
        [learned] = learner.learn(start, [data], [(0, round_, 0)], frozenset({"layer_scores"}))
        return learned if isinstance(learned, Exception) else list(learned.layer_scores.values())

    def by_hand(rows, where):
        rows = torch.tensor(rows)
        return list(layer_scores(module, "cross_entropy", x[rows], y[rows], where[rows]).values())

    marked = ClientData(x, y, masks=masks)
    assert score(marked, images=2) == pytest.approx(by_hand([1, 3], masks))
    drawn = [score(marked, r, images=2, draw="anew") for r in range(1, 9)]
    pairs = [by_hand([a, b], masks) for a in (1, 3, 4, 5) for b in (1, 3, 4, 5) if a < b]
    assert all(any(d == pytest.approx(p) for p in pairs) for d in drawn)
    assert len({tuple(d) for d in drawn}) > 1
    assert drawn[2] == score(marked, 3, images=2, draw="anew")
    nothing = ClientData(x, y, masks=torch.zeros_like(masks))
    assert score(nothing, images=2) == pytest.approx(by_hand([0, 1], torch.ones_like(masks)))
    refused = score(nothing, unmarked="refuse")
    assert isinstance(refused, FieldError)
    assert "marks nothing" in str(refused)
