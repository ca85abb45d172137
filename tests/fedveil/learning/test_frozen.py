"""Frozen parts: statistics folded into weights, features computed once, each alone."""

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import FixedNorm, features, freeze, split
from fedveil.learning.per_example import PerExample


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.conv2, self.bn2 = (
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels, affine=False),
        )

    def forward(self, x):
        return (x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))).relu()


def network():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, groups=1, bias=False),
        nn.BatchNorm2d(8, eps=1e-3),
        nn.ReLU6(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.BatchNorm2d(8),
        Residual(8),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.BatchNorm1d(16),
        nn.Linear(16, 4),
    )
    for part in net.modules():
        if hasattr(part, "running_mean"):
            part.running_mean.normal_()
            part.running_var.uniform_(0.05, 3)
            if part.affine:
                nn.init.normal_(part.weight)
                nn.init.normal_(part.bias)
    return net


def gradients(model, x, y, clip=1e9):
    """Sums of clipped gradients, and each alone by autograd."""
    layout = Layout.from_module(model)
    sums = PerExample(model, layout, "cross_entropy")
    total, _ = sums.clipped_sum(x, y, clip)
    parameters = [p for p in model.parameters() if p.requires_grad]
    alone = []
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        alone.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]))
    return sums.rule_name, total, torch.stack(alone).double()


def test_frozen_normalisation_is_folded_and_the_function_stays():
    net, x = network(), torch.rand(5, 3, 16, 16)
    expected = net.eval()(x)
    frozen = freeze(net.train(), but=("10",)).train()  # as a trainer calls it
    torch.testing.assert_close(frozen(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(frozen(x[:1]), expected[:1], rtol=1e-4, atol=1e-5)
    assert not [
        m for m in frozen.modules() if isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d | FixedNorm)
    ]
    assert Layout.from_module(frozen).names == ("10.weight", "10.bias")
    assert isinstance(net[1], nn.BatchNorm2d)  # the model is left as it was
    assert net[0].weight.requires_grad


def test_what_is_trained_keeps_its_own_form():
    net, x = network(), torch.rand(5, 3, 16, 16)
    expected = net.eval()(x)
    tuned = freeze(net, but=("0", "1", "5", "8", "9", "10"))
    torch.testing.assert_close(tuned.train()(x), expected, rtol=1e-4, atol=1e-5)
    kinds = [type(tuned.get_submodule(name)) for name in ("1", "4", "5.bn1", "5.bn2", "9")]
    assert kinds == [FixedNorm, nn.Identity, FixedNorm, FixedNorm, FixedNorm]
    way, total, alone = gradients(tuned, x, torch.tensor([0, 1, 2, 3, 0]))
    torch.testing.assert_close(total, alone.sum(0), rtol=1e-4, atol=1e-5)
    assert way == "layers"


def test_what_meets_more_than_one_layer_is_not_folded():
    class Branched(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
            self.bn.running_var.fill_(4.0)
            self.twice, self.bn2 = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)
            self.head = nn.Linear(2, 2)

        def forward(self, x):
            y = self.conv(x)
            z = self.twice(self.twice(self.bn(y) + y))
            return self.head(self.bn2(z).mean((2, 3)))

    torch.manual_seed(0)
    net, x = Branched(), torch.rand(3, 2, 4, 4)
    expected = net.eval()(x)
    frozen = freeze(net, but=("head",)).train()
    torch.testing.assert_close(frozen(x), expected, rtol=1e-5, atol=1e-6)
    assert isinstance(frozen.bn, FixedNorm)
    assert isinstance(frozen.bn2, FixedNorm)


def test_tied_layers_and_code_that_cannot_be_read():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn, self.head = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Linear(2, 2)
            self.again = nn.Conv2d(2, 2, 1)
            self.again.weight = self.conv.weight

        def forward(self, x):
            if float(x.sum()) < -1e9:
                return x
            return self.head(self.again(self.bn(self.conv(x))).mean((2, 3)))

    torch.manual_seed(0)
    net, x = Branching(), torch.rand(3, 2, 4, 4)
    net.bn.running_var.fill_(3.0)
    expected = net.eval()(x)
    torch.testing.assert_close(
        freeze(net, but=("head",)).train()(x), expected, rtol=1e-5, atol=1e-6
    )


def test_names_are_the_models():
    with pytest.raises(FieldError, match=r"heads.*head"):
        freeze(nn.ModuleDict({"head": nn.Linear(2, 2)}), but=("heads",))
    with pytest.raises(FieldError, match=r"\['0'\]"):
        freeze(nn.Sequential(nn.Linear(2, 2)), but="0")


def test_what_was_frozen_stays_frozen():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].bias.requires_grad_(False)
    assert Layout.from_module(freeze(net, but=("1",))).names == ("1.weight",)


def test_features_follow_one_example_alone():
    net = freeze(network(), but=("8", "9", "10"))
    front, rest = split(net)
    x = torch.rand(6, 3, 16, 16)
    known = features(front, x)
    torch.testing.assert_close(rest.eval()(known), net.eval()(x), rtol=1e-4, atol=1e-5)
    other = x.clone()
    other[[0, 1, 3, 4, 5]] = torch.tensor([torch.nan, torch.inf, 1e38, 0.0, -1e38]).view(5, 1, 1, 1)
    assert torch.equal(features(front, other)[2], known[2])
    assert torch.equal(features(front, x.flip(0))[3], known[2])
    assert features(front, x[:0]).shape == (0, *known.shape[1:])
    assert (
        Layout.from_module(rest).names == Layout.from_module(net).names
    )  # so that a whole model takes them back


def test_an_example_that_fails_has_none_and_a_model_that_fails_is_refused():
    class Picky(nn.Linear):
        def forward(self, x):
            if bool((x > 5).any()):
                raise ValueError("too large")
            return super().forward(x)

    front = Picky(3, 2).requires_grad_(False)
    x = torch.rand(3, 3)
    x[1] = 9.0
    known = features(front, x)
    assert known[1].isnan().all()
    assert known[[0, 2]].isfinite().all()
    with pytest.raises(FieldError, match="made-up"):
        features(front, torch.rand(3, 4))
    with pytest.raises(FieldError, match="trains weight"):
        features(nn.Linear(3, 2), x)


def test_split_needs_a_frozen_front():
    with pytest.raises(FieldError, match="no frozen part"):
        split(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    with pytest.raises(FieldError, match="Sequential"):
        split(nn.Linear(2, 2))


@pytest.mark.parametrize(
    "method",
    [
        fv.methods.build("record", noise_multiplier=1e-6, clip=1.0, examples=12),
        fv.methods.build(
            "record", unit="person", noise_multiplier=1e-6, clip=1.0, people=6, records_per_person=2
        ),
        fv.methods.build("vanilla"),
    ],
)
def test_a_head_on_features_trains_like_the_whole_model(method):
    """With hardly any noise, so that what is clipped shows."""
    net = freeze(network(), but=("10",))
    front, rest = split(net)
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.rand(12, 3, 16, 16, generator=generator), torch.arange(12) % 4) for _ in range(2)
    ]
    local = fv.LocalTraining(lr=0.1, batch_size=12)

    def trained(model, clients):
        federation = fv.Federation(model=model, clients=clients, method=method, local=local, seed=3)
        federation.run(2)
        return federation.models

    whole = trained(net, [fv.ClientData(x, y, person=torch.arange(12) // 2) for x, y in data])
    cached = trained(
        rest, [fv.ClientData(features(front, x), y, person=torch.arange(12) // 2) for x, y in data]
    )
    assert whole.shape == cached.shape
    torch.testing.assert_close(whole, cached, rtol=1e-3, atol=1e-4)
