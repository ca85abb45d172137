"""Proposition 3.2 of the group-privacy paper: what noise of a length can cost, whatever its direction."""

import pytest
import torch
from torch.func import functional_call, jacrev

from fedveil.layout import Layout
from fedveil.learning import build_model
from fedveil.mechanisms import EuclideanLaplaceNoise, ReproducibleSource

G = torch.Generator().manual_seed(0)
X, Y = (
    torch.rand(60, 3, generator=G, dtype=torch.float64),
    torch.rand(60, generator=G, dtype=torch.float64),
)


@pytest.fixture(scope="module")
def fitted():
    """Outputs of the paper's 3-2-1 network as a function of its 11 parameters, where it stands, and its Jacobian."""
    model = build_model("regression", input_shape=(3,), outputs=1, seed=3).double()
    layout = Layout.from_module(model)

    def outputs(theta):
        return functional_call(model, layout.unflatten(theta), (X,))[:, 0]

    theta = layout.read(model)
    return outputs, theta, jacrev(outputs)(theta)


def rise(outputs, theta, noise):
    """Of the root mean squared error, which the paper's (14) has without the constant 1 / sqrt(examples)."""
    return float((outputs(theta + noise) - Y).norm() - (outputs(theta) - Y).norm())


@pytest.mark.parametrize("epsilon", [1e3, 1e4])
def test_laplace_noise_costs_at_most_its_length_times_the_jacobian(fitted, epsilon):
    outputs, theta, jacobian = fitted
    slope, source = float(torch.linalg.matrix_norm(jacobian, 2)), ReproducibleSource(1)
    for i in range(300):
        noise = EuclideanLaplaceNoise(epsilon).sample(len(theta), source=source.child(i))
        assert (
            rise(outputs, theta, noise) <= slope * float(noise.norm()) * 1.05
        )  # o(length), small here


def test_the_bound_is_reached_and_names_no_direction(fitted):
    outputs, theta, jacobian = fitted
    slope, worst = float(torch.linalg.matrix_norm(jacobian, 2)), torch.linalg.svd(jacobian).Vh[0]
    moved = float((outputs(theta + 1e-4 * worst) - outputs(theta)).norm())
    assert moved == pytest.approx(1e-4 * slope, rel=0.01)
    source = ReproducibleSource(2)
    for i in range(100):  # half the slope would be too little: the constant is the right one
        noise = EuclideanLaplaceNoise(1e4).sample(len(theta), source=source.child(i))
        turned = noise.norm() * worst
        assert float((outputs(theta + turned) - outputs(theta)).norm()) > 0.5 * slope * float(
            noise.norm()
        )
