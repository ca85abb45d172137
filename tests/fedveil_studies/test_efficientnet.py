"""EfficientNet-B0 on a weights file that is made here: MONAI's own network says what it must give."""

import hashlib

import pytest
import torch

from fedveil import ClientData, Federation, LocalTraining
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import build_model
from fedveil.methods import SGALDP

nets = pytest.importorskip("monai.networks.nets")


@pytest.fixture(scope="module")
def original():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nets.EfficientNetBN("efficientnet-b0", pretrained=False, num_classes=5)
        for part in net.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.1, 0.3)
    return net.eval()


@pytest.fixture(scope="module")
def file(original, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "b0.pth"
    torch.save(original.state_dict(), path)
    return path


def built(file, outputs=5, **options):
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    options = {"weights": str(file), "sha256": digest[:8], "pixels": 32, **options}
    return build_model(
        "efficientnet_b0", input_shape=(3, 28, 28), outputs=outputs, seed=0, **options
    )


def test_it_is_monais_network_and_statistics_stay_when_it_trains(original, file):
    model, x = built(file, head=False, dropout=0.0), torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        expected = original(x)
        torch.testing.assert_close(model.train()(x), expected, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(
            model(x[:1]), expected[:1], rtol=1e-3, atol=1e-5
        )  # whatever is beside it
    assert float(expected.abs().max()) > 1e-3
    assert Layout.from_module(model).size == sum(
        p.numel() for p in original.parameters()
    )  # and no buffers: not refused


def test_only_the_head_trains_and_starts_anew_for_other_classes(file):
    model = built(file, outputs=8)
    assert Layout.from_module(model).size == 8 * 1281
    x = torch.rand(2, 3, 28, 28)
    assert model(x).shape == (2, 8)


def test_weights_are_those_that_were_named(file, tmp_path):
    with pytest.raises(FieldError, match=r"model\.weights.*github"):
        built(file, weights="nowhere.pth")
    with pytest.raises(FieldError, match=r"model\.sha256"):
        built(file, sha256="355c32eb")
    with pytest.raises(FieldError, match=r"model\.sha256"):
        built(file, sha256="")
    other = tmp_path / "other.pth"
    torch.save({"_conv_stem.weight": torch.zeros(32, 3, 3, 3)}, other)
    with pytest.raises(FieldError, match="lacks"):
        built(other)
    torch.save([1, 2], other)
    with pytest.raises(FieldError, match="state dictionary"):
        built(other)


def test_a_federation_trains_its_head_under_local_privacy(file):
    generator = torch.Generator().manual_seed(0)
    clients = [
        ClientData(torch.rand(4, 3, 28, 28, generator=generator), torch.tensor([0, 1, 2, 0]))
        for _ in range(2)
    ]
    method = SGALDP(epsilon_min=5.0, epsilon_max=5.0)
    federation = Federation(
        model=built(file, outputs=3), clients=clients, method=method, local=LocalTraining(lr=0.1)
    )
    before = federation.models.clone()
    assert before.shape == (1, 3 * 1281)
    federation.run(1)
    assert not torch.equal(federation.models, before)
