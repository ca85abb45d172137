"""Losses that have a form for single examples: by name with options, per image, per person, and one's own."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedveil as fv
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import example_loss
from fedveil.learning.losses import loss_of, losses_of
from fedveil.learning.per_example import PerExample

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(8, 6, generator=GENERATOR)
CLASSES = torch.arange(8) % 3
NUMBERS = torch.randn(8, 3, generator=GENERATOR)
COUNTS = torch.randint(0, 5, (8, 3), generator=GENERATOR).float()
BITS = (NUMBERS > 0).float()
TIMES = torch.stack([torch.arange(8) % 4, torch.arange(8) % 2], 1).float()
TIMES[3, 1] = 0.0  # survived all three intervals


class Scaled(nn.Module):
    """Goes as a fixed list of operators."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(6)), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(x * self.scale.abs())


class Branches(Scaled):
    """Goes one example a call."""

    def forward(self, x):
        return super().forward(x if x.sum() > 0 else 2 * x)


def survival(output, y):
    """Minus the logarithm of the chance of what was seen, written out."""
    total = output.sum() * 0
    time, event = int(y[0]), bool(y[1])
    for k in range(time):
        total = total - torch.log(1 - torch.sigmoid(output[k]))
    return total - torch.log(torch.sigmoid(output[time])) if event and time < len(output) else total


CASES = {
    "cross_entropy(weight=[1, 2, 5])": (
        CLASSES,
        lambda o, y: F.cross_entropy(o, y, reduction="none", weight=torch.tensor([1.0, 2.0, 5.0])),
    ),
    "cross_entropy(label_smoothing=0.1)": (
        CLASSES,
        lambda o, y: F.cross_entropy(o, y, reduction="none", label_smoothing=0.1),
    ),
    "bce": (BITS, lambda o, y: F.binary_cross_entropy_with_logits(o, y, reduction="none").mean(1)),
    "bce(pos_weight=[1.0, 2.0, 0.5])": (
        BITS,
        lambda o, y: F.binary_cross_entropy_with_logits(
            o, y, reduction="none", pos_weight=torch.tensor([1.0, 2.0, 0.5])
        ).mean(1),
    ),
    "l1": (NUMBERS, lambda o, y: (o - y).abs().mean(1)),
    "huber(delta=0.5)": (
        NUMBERS,
        lambda o, y: F.huber_loss(o, y, reduction="none", delta=0.5).mean(1),
    ),
    "poisson": (COUNTS, lambda o, y: (o.exp() - y * o).mean(1)),
    "hazards": (
        TIMES,
        lambda o, y: torch.stack([survival(a, b) for a, b in zip(o, y, strict=True)]),
    ),
}


def by_hand(model, x, y, each, clip):
    parameters = list(model.parameters())
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for i in range(len(x)):
        loss = each(model(x[i : i + 1]), y[i : i + 1]).sum()
        row = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]).double()
        total += row * min(1.0, clip / max(float(row.norm()), 1e-12))
    return total


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), Scaled, Branches])
@pytest.mark.parametrize("name", CASES)
def test_the_sum_of_clipped_gradients_is_the_one_by_hand(name, make):
    torch.manual_seed(0)
    model, (y, each) = make(), CASES[name]
    total, losses = PerExample(model, Layout.from_module(model), name).clipped_sum(X, y, 0.7)
    torch.testing.assert_close(total, by_hand(model, X, y, each, 0.7), rtol=1e-3, atol=1e-6)
    alone = torch.cat([each(model(X[i : i + 1]), y[i : i + 1]).detach() for i in range(8)])
    torch.testing.assert_close(losses.float(), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_mean_of_a_batch_is_the_mean_of_its_examples(name):
    y, each = CASES[name]
    output = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    if "weight=[1, 2" not in name:  # PyTorch divides the weights of a batch out
        torch.testing.assert_close(loss_of(name)(output, y), each(output, y).mean())
    torch.testing.assert_close(losses_of(name)(output, y).reshape(8, -1).mean(1), each(output, y))


def test_one_output_fits_targets_without_an_axis():
    output, y = torch.randn(5, 1), torch.rand(5)
    for name in ("bce", "l1", "huber", "poisson"):
        assert losses_of(name)(output, y).reshape(-1).shape == (5,)
        torch.testing.assert_close(loss_of(name)(output, y), losses_of(name)(output, y).mean())
    torch.testing.assert_close(
        loss_of("bce")(output, (y > 0.5).long()), loss_of("bce")(output, (y > 0.5).float())
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cross_entropy(weight=[1, -2])", "weight"),
        ("cross_entropy(weight=[])", "weight"),
        ("cross_entropy(label_smoothing=2)", "label_smoothing"),
        ("cross_entropy(smoothing=0.1)", "label_smoothing"),
        ("cross_entropy(weight=open('x'))", "numbers"),
        ("bce(pos_weight='x')", "pos_weight"),
        ("huber(delta=0)", "delta"),
        ("hubert(delta=1)", "huber"),
        ("mse(x=1)", "mse"),
        ("cross_entropy(", "loss"),
        ("cross_entropy(0.1)", "by name"),
    ],
)
def test_an_option_that_is_none_is_refused(name, said):
    with pytest.raises(FieldError, match=said):
        fv.LocalTraining(loss=name)


class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 1)

    def forward(self, x):
        return self.two(self.one(x).relu())


class OwnPixels(Pixels):
    def forward(self, x):
        return super().forward(x * self.one.bias.abs().sum())


@pytest.mark.parametrize("make", [Pixels, OwnPixels])
@pytest.mark.parametrize("name", ["dice", "soft_dice"])
def test_dice_is_of_each_image(name, make):
    torch.manual_seed(0)
    model, x = make(), torch.randn(5, 1, 6, 6)
    y = torch.randint(0, 3, (5, 6, 6))
    y[0, :2] = -100  # void

    def each(output, y):
        parts = []
        for o, t in zip(output, y, strict=True):
            here = t != -100
            p, truth = o.softmax(0) * here, F.one_hot(t * here, 3).movedim(-1, 0) * here
            both, sums = (p * truth).sum((1, 2)), p.sum((1, 2)) + truth.sum((1, 2))
            soft = (1 - (2 * both + 1) / (sums + 1))[1:].mean()
            entropy = F.cross_entropy(o[None], t[None], reduction="sum") / t.numel()
            parts.append(soft + entropy if name == "dice" else soft)
        return torch.stack(parts)

    total, _ = PerExample(model, Layout.from_module(model), name).clipped_sum(x, y, 0.3)
    torch.testing.assert_close(total, by_hand(model, x, y, each, 0.3), rtol=1e-3, atol=1e-6)


def pinball(output, y):
    rest = y - output
    return torch.maximum(0.9 * rest, -0.1 * rest).mean()


def choosy(output, y):
    if float(y[0]) > 1:
        raise ValueError("no such target")
    return ((output - y) ** 2).sum()


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), Scaled, Branches])
@pytest.mark.parametrize("function", [pinball, choosy])
def test_a_function_of_one_example_is_clipped_by_example(function, make):
    torch.manual_seed(0)
    model, y = make(), NUMBERS.clamp(max=0.9)
    loss = example_loss(function)

    def each(output, y):
        return torch.stack([function(o, t) for o, t in zip(output, y, strict=True)])

    layout = Layout.from_module(model)
    total, _ = PerExample(model, layout, loss).clipped_sum(X, y, 0.7)
    expected = by_hand(model, X, y, each, 0.7)
    torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(loss(model(X), y), each(model(X), y).mean())
    if function is choosy:  # the one that raises counts as zero, and moves nobody
        bad = y.clone()
        bad[2, 0] = 9.0
        left, losses = PerExample(model, layout, loss).clipped_sum(X, bad, 0.7)
        keep = [i for i in range(8) if i != 2]
        torch.testing.assert_close(
            left, by_hand(model, X[keep], y[keep], each, 0.7), rtol=1e-3, atol=1e-6
        )
        assert len(losses) == 7


def test_a_function_of_one_example_trains_in_a_federation_and_must_give_one_number():
    clients = [fv.ClientData(X, NUMBERS), fv.ClientData(X + 1, NUMBERS)]
    for method in (
        fv.methods.build("record", noise_multiplier=1.0, examples=8),
        fv.methods.build("vanilla"),
    ):
        local = fv.LocalTraining(loss=example_loss(pinball), batch_size=8)
        fv.Federation(model=nn.Linear(6, 3), clients=clients, method=method, local=local).run(1)
    vector = fv.LocalTraining(loss=example_loss(lambda o, y: (o - y).abs()))
    method = fv.methods.build("record", noise_multiplier=1.0, examples=8)
    with pytest.raises(FieldError, match="one number"):
        fv.Federation(model=nn.Linear(6, 3), clients=clients, method=method, local=vector)


def cox_partial_likelihood(output, y):
    return output.mean()


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        ("cox", "risk set"),
        (cox_partial_likelihood, "risk set"),
        ("rmse", "root"),
        (nn.MSELoss(reduction="sum"), "reduction"),
        (nn.BCELoss(), "BCEWithLogits"),
        (lambda output, y: output.mean(), "example_loss"),
        (nn.TripletMarginLoss(), "example_loss"),
    ],
)
def test_a_refusal_says_the_reason(loss, reason):
    with pytest.raises(FieldError, match=reason):
        losses_of(loss)


def test_a_person_has_the_mean_of_her_examples():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    total, _ = PerExample(model, Layout.from_module(model), "huber").clipped_sum(
        X, NUMBERS, 0.3, each=2
    )
    rows = []
    for i in range(8):
        loss = F.huber_loss(model(X[i]), NUMBERS[i])
        rows.append(
            torch.cat(
                [g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))]
            ).double()
        )
    means = torch.stack(rows).view(4, 2, -1).mean(1)
    expected = (means * (0.3 / means.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    torch.testing.assert_close(total, expected, rtol=1e-3, atol=1e-6)
