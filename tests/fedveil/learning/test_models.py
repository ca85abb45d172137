import pytest
import torch
from torch import nn

from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning import MODELS, build_model, initial_models


@pytest.mark.parametrize(
    "name", sorted({*MODELS} - {"efficientnet_b0", "efficientnet_lite0"})
)  # which need a file
def test_same_seed_same_bits_and_the_global_state_is_left(name):
    before = torch.get_rng_state()
    a, b, c = (build_model(name, input_shape=(1, 20, 20), outputs=3, seed=s) for s in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    layout = Layout.from_module(a)
    assert torch.equal(layout.read(a), layout.read(b))
    assert not torch.equal(layout.read(a), layout.read(c))
    assert a(torch.zeros(2, 1, 20, 20)).shape[:2] == (2, 62 if name == "femnist_cnn" else 3)


def test_parameter_counts_of_the_papers():
    # methods of the papers: 6,517,476 parameters at 128x128 with 3x3 kernels; 3-2-1 has 11
    assert (
        Layout.from_module(
            build_model("alzheimer_cnn", input_shape=(1, 128, 128), outputs=4, seed=0)
        ).size
        == 6517476
    )
    assert (
        Layout.from_module(build_model("regression", input_shape=(3,), outputs=1, seed=0)).size
        == 11
    )


def test_pooling_before_relu_is_exact():
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(nn.MaxPool2d(2)(x).relu(), nn.MaxPool2d(2)(x.relu()))


def test_hypotheses_differ_and_the_first_is_the_ordinary_model():
    models = initial_models("logistic", k=3, seed=5, input_shape=(4,), outputs=2)
    model = build_model("logistic", input_shape=(4,), outputs=2, seed=5)
    assert models.shape == (3, 10)
    assert torch.equal(models[0], Layout.from_module(model).read(model))
    assert len({tuple(row.tolist()) for row in models}) == 3
    by_function = initial_models(
        lambda s: build_model("logistic", input_shape=(4,), outputs=2, seed=s), k=3, seed=5
    )
    assert torch.equal(by_function, models)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "mpl"}, "did you mean 'mlp'"),
        ({"name": "mlp", "hiden": (3,)}, "did you mean 'hidden'"),
        ({"name": "logistic", "hidden": (3,)}, "no such option; accepted: bias"),
        ({"name": "mlp", "activation": "gelu"}, "activation"),
        ({"name": "alzheimer_cnn", "input_shape": (1, 17, 20)}, "input_shape"),
        ({"name": "alzheimer_cnn", "dropout": 1.0}, "dropout"),
        ({"name": "mlp", "outputs": 0}, "outputs"),
    ],
)
def test_refusals_name_the_field(arguments, message):
    with pytest.raises(FieldError, match=message):
        build_model(**{"input_shape": (1, 20, 20), "outputs": 2, "seed": 0, **arguments})
