"""The order of memory in which a model sees images: channels last in FedVeil's own and in chains of known layers."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import fedveil as fv
from fedveil.learning import ClientData, LocalTraining, build_model, make_trainer, predict
from fedveil.learning.inputs import Inputs, takes_channels_last
from fedveil.learning.per_example import PerExample
from fedveil_lab.attacks.observation import Knowledge

X = torch.rand(12, 2, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


class Quickstart(nn.Module):
    """Flattens by `.view`, as tutorials do."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool, self.head = nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.Linear(36, 3)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv(x)))
        return self.head(x.view(-1, 36))


SEEN = []


class Straight(nn.Module):
    """Notes the strides of what it is given."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        SEEN.append(x.is_contiguous())
        return self.head(self.conv(x).mean((2, 3)))


def record():
    return fv.methods.build(
        "record", fv.FedAvg(), noise_multiplier=1.0, clip=1.0, examples=6, rounds=1
    )


def hooked(model):
    model.register_forward_pre_hook(
        lambda module, args: (args[0].view(len(args[0]), -1).view(args[0].shape),)
    )
    return model


GROUP_NORMS = {
    "first": "nn.Sequential(nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(128, 3))",
    "behind a frozen convolution": "nn.Sequential(nn.Conv2d(2, 4, 3).requires_grad_(False), nn.GroupNorm(2, 4), "
    "nn.Flatten(), nn.Linear(144, 3))",
    "in a U-Net whose convolutions are frozen": "frozen(fv.learning.build_model('unet', input_shape=(2, 8, 8), "
    "outputs=3, seed=0, widths=(4, 8)))",
    "mended": "fv.learning.mend(nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(128, 3)))",
    "of images given channels last": "nn.Sequential(nn.GroupNorm(2, 2), nn.Flatten(), nn.Linear(128, 3))",
}


@pytest.mark.few(0)
def test_group_normalisation_without_a_gradient_before_it_trains():
    """In a process of its own: what went wrong ended the interpreter."""
    code = """
import torch, fedveil as fv
from torch import nn

def frozen(model):
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            part.requires_grad_(False)
    return model

""" + "".join(
        f"""
print({name!r}, flush=True)
x, y = torch.randn(12, 2, 8, 8), torch.arange(12) % 3
model = {model}
if "U-Net" in {name!r}:
    y = y[:, None, None].expand(12, 8, 8).contiguous()
if "channels last" in {name!r}:
    x = x.to(memory_format=torch.channels_last)
clients = [(x[:6], y[:6]), (x[6:], y[6:])]
record = fv.methods.build("record", fv.FedAvg(), noise_multiplier=1.0, clip=1.0, examples=6, rounds=1)
for method in (fv.FedAvg(), record):
    fv.Federation(model=model, clients=clients, method=method).run(1)
"""
        for name, model in GROUP_NORMS.items()
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr[-2000:])


@pytest.mark.parametrize("method", [None, fv.GlobalDP(noise_multiplier=1.0, clip=1.0), record()])
@pytest.mark.parametrize("trainer", ["auto", "sequential"])
def test_a_forward_method_that_views_images_is_trained_measured_and_attacked(method, trainer):
    model = Quickstart()
    clients = [(X[:6], Y[:6], X[6:], Y[6:]), (X[6:], Y[6:], X[:6], Y[:6])]
    history = fv.Federation(
        model=model, clients=clients, method=method, execution=fv.Execution(trainer=trainer)
    ).run(1)
    assert history.rounds[0].metrics["examples"] == 12
    assert not history.rounds[0].zeroed


def test_a_foreign_forward_method_sees_contiguous_images_whatever_it_is_given():
    x = X.to(memory_format=torch.channels_last)
    model = Straight()
    layout = fv.Layout.from_module(model)
    start = layout.read(model)
    local = LocalTraining(batch_size=4)
    trainer = make_trainer(model, layout, local, "sequential")
    trainer.train(start[None], [ClientData(x, Y)], [(0, 1, 0)])
    predict(model, layout, start, x)
    own = Knowledge(model, layout, "cross_entropy", ClientData(x, Y))
    own.gradient(start, ClientData(x, Y))
    own.loss_of(start[None, None], ClientData(x, Y))
    assert len(SEEN) >= 6
    assert all(SEEN)


def test_the_networks_of_the_library_and_chains_of_known_layers_keep_the_fast_order():
    assert takes_channels_last(build_model("small_cnn", input_shape=(1, 8, 8), outputs=3, seed=0))
    assert takes_channels_last(
        build_model("unet", input_shape=(1, 8, 8), outputs=2, seed=0, widths=(4, 8), rank=2)
    )
    assert takes_channels_last(
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3))
    )
    for model in (Quickstart(), Straight(), hooked(nn.Sequential(nn.Flatten(), nn.Linear(128, 3)))):
        assert not takes_channels_last(model)


@pytest.mark.parametrize(
    ("given", "wanted"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")]
)
def test_examples_keep_a_type_that_the_model_has(given, wanted):
    whole = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2).double())
    model.register_parameter("table", whole)
    assert Inputs.of(model)(torch.rand(3, 2).to(getattr(torch, given))).dtype == getattr(
        torch, wanted
    )
    assert Inputs.of(model)(torch.ones(3, 2, dtype=torch.int64)).dtype == torch.int64


def test_sums_of_single_examples_follow_the_order_of_the_model():
    model = Quickstart()
    layout = fv.Layout.from_module(model)
    total, losses = PerExample(model, layout, "cross_entropy").clipped_sum(X, Y, 1e6)
    loss = nn.functional.cross_entropy(model(X), Y, reduction="sum")
    wanted = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
    assert len(losses) == 12
    torch.testing.assert_close(total.float(), wanted, rtol=1e-4, atol=1e-4)
