"""Adapters of low rank: frozen base, merged back, the same function, refused where there is no layer."""

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import lora, merged
from fedveil.learning.per_example import PerExample


def mixed():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 12, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 10),
        nn.Tanh(),
        nn.Linear(10, 4),
    )


def moved(model):
    """The same with other trained values, as after a round."""
    layout = Layout.from_module(model)
    layout.load(
        model,
        layout.read(model)
        + 0.3 * torch.randn(layout.size, generator=torch.Generator().manual_seed(1)),
    )
    return model


def test_it_begins_as_the_base_and_merges_into_its_architecture():
    net, x = mixed(), torch.rand(5, 3, 12, 12)
    expected = net.eval()(x)
    small = lora(net, 2, ("0", "4", "7"), train=("9",))
    torch.testing.assert_close(small.train()(x), expected, rtol=1e-5, atol=1e-6)
    names = Layout.from_module(small).names
    assert {name.rpartition(".")[0] for name in names} == {
        f"{i}.{w}" for i in "047" for w in ("down", "up")
    } | {"9"}
    after = moved(small)
    one = merged(after)
    torch.testing.assert_close(one(x), after(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(after(x), expected, atol=1e-3)
    assert [type(m) for m in one] == [type(m) if i != 1 else nn.Identity for i, m in enumerate(net)]
    assert {
        k: v.shape
        for k, v in merged(lora(nn.Sequential(nn.Linear(4, 3)), 1, ("0",))).state_dict().items()
    } == {
        "0.weight": (3, 4),
        "0.bias": (3,),
    }


def test_seed_and_alpha_are_public():
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    a, b, c = lora(net, 2, ("0",)), lora(net, 2, ("0",)), lora(net, 2, ("0",), seed=1)
    assert torch.equal(a[0].down.weight, b[0].down.weight)
    assert not torch.equal(a[0].down.weight, c[0].down.weight)
    assert lora(net, 2, ("0",), alpha=8.0)[0].scale == 4.0


@pytest.mark.parametrize("each", [1, 2])
def test_gradients_are_the_adapters_own_and_clipped_over_all_that_is_trained(each):
    model, x, y = (
        moved(lora(mixed(), 2, ("0", "4", "7"), train=("9",))),
        torch.rand(6, 3, 12, 12),
        torch.arange(6) % 4,
    )
    layout = Layout.from_module(model)
    sums, clip = PerExample(model, layout, "cross_entropy"), 0.05
    total, _ = sums.clipped_sum(x, y, clip, each=each)
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(6):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        rows.append(
            torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]).double()
        )
    means = torch.stack(rows).view(-1, each, layout.size).mean(1)
    by_hand = means * (clip / means.norm(dim=1, keepdim=True)).clamp(max=1)
    torch.testing.assert_close(total, by_hand.sum(0), rtol=1e-3, atol=1e-6)
    assert sums.rule_name == "layers"


def test_targets_are_ends_of_names():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.query(x) * self.key(x)

    net = nn.Sequential(Attention(), Attention(), nn.Linear(8, 2))
    assert Layout.from_module(lora(net, 1, ("query",))).names == (
        "0.query.down.weight",
        "0.query.up.weight",
        "1.query.down.weight",
        "1.query.up.weight",
    )


@pytest.mark.parametrize(
    ("targets", "rank", "train", "said"),
    [
        (("attention",), 2, (), r"targets.*no layer.*0, 3, 4, 7, 9"),
        ((), 2, (), r"targets.*no layer.*0, 3, 4, 7, 9"),
        (("",), 2, (), "targets"),
        ("7", 2, (), r"\['7'\]"),
        (("7", "nothing"), 2, (), "nothing"),
        (("1",), 2, (), "nn.Linear and nn.Conv2d"),
        (("3",), 2, (), "groups"),
        (("9",), 4, (), r"rank.*below 4"),
        (("7",), 0, (), "rank"),
        (("9",), 2, ("9",), "whole"),
        (("7",), 2, ("head",), "train"),
    ],
)
def test_refused(targets, rank, train, said):
    with pytest.raises(FieldError, match=said):
        lora(mixed(), rank, targets, train=train)


def test_layers_that_are_read_by_their_weights_are_refused_or_read_merged():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    with pytest.raises(FieldError, match="by its weights"):
        lora(nn.ModuleDict({"attention": attention}), 2, ("out_proj",))
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    adapted = moved(lora(block, 2, ("linear1", "linear2")))
    x = torch.rand(3, 5, 8)
    with torch.no_grad():  # its fast path reads the weights
        torch.testing.assert_close(
            adapted.eval()(x), merged(adapted).eval()(x), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            adapted.train()(x), merged(adapted).eval()(x), rtol=1e-4, atol=1e-5
        )


def test_tied_layers_are_refused():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    with pytest.raises(FieldError, match="shares"):
        lora(net, 1, ("1",))


@pytest.mark.parametrize(
    "method",
    [
        fv.methods.build("record", epsilon=8.0, delta=1e-5, rounds=1, clip=1.0, examples=8),
        fv.methods.build(
            "record", unit="person", noise_multiplier=1.0, clip=1.0, people=4, records_per_person=2
        ),
        fv.methods.build("global", noise_multiplier=1.0, clip=1.0),
        fv.methods.build("vanilla"),
    ],
)
def test_a_federation_trains_adapters_alone(method):
    model = lora(mixed(), 2, ("4", "7"), train=("9",))
    generator = torch.Generator().manual_seed(0)
    clients = [
        fv.ClientData(
            torch.rand(8, 3, 12, 12, generator=generator),
            torch.arange(8) % 4,
            person=torch.arange(8) // 2 + 4 * i,
        )
        for i in range(2)
    ]
    federation = fv.Federation(
        model=model, clients=clients, method=method, local=fv.LocalTraining(batch_size=8)
    )
    before = federation.models.clone()
    assert before.shape[1] == Layout.from_module(model).size
    federation.run(1)
    assert not torch.equal(before, federation.models)
