"""Scattering features: values of another implementation, what a constant image has, and that each image stands alone."""

import numpy as np
import pytest
import torch

from fedveil.data import load
from fedveil.errors import FieldError
from fedveil_studies.data import named
from fedveil_studies.data import scattering as room
from fedveil_studies.data.scattering import directions, features_of, scattering, standardised

ROWS, COLUMNS = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
WAVES = 0.5 + 0.3 * torch.sin(ROWS / 2) + 0.2 * torch.cos((ROWS + 2 * COLUMNS) / 3)


@pytest.mark.parametrize(
    ("place", "value"),
    [  # kymatio 0.3.0, numpy front, J = 2, L = 8, of the same image; it thins between layers
        ((0, 3, 3), 0.522029),
        ((1, 3, 3), 0.0324552),
        ((6, 2, 4), 0.0150319),
        ((12, 3, 3), 0.0695536),
        ((17, 3, 3), 0.00392813),
        ((40, 4, 2), 0.00420983),
        ((80, 3, 3), 0.000277593),
    ],
)
def test_coefficients_are_those_of_another_implementation(place, value):
    assert float(scattering(WAVES[None])[0][place]) == pytest.approx(value, rel=5e-3)


def test_a_constant_image_has_its_mean_and_nothing_else():
    maps = scattering(torch.full((1, 28, 28), 0.7))[0]
    assert maps.shape == (81, 7, 7)
    assert torch.allclose(maps[0], torch.tensor(0.7), atol=1e-3)
    assert float(maps[1:].abs().max()) < 1e-3


def test_an_images_features_have_length_one_and_depend_on_no_other_image():
    others = torch.rand(3, 28, 28, generator=torch.Generator().manual_seed(0))
    alone = features_of(WAVES[None], 16)
    among = features_of(torch.cat([WAVES[None], others]), 16)
    assert float(alone.norm()) == pytest.approx(1.0, abs=1e-5)
    assert torch.allclose(among[0], alone[0], atol=1e-5)
    turn = directions(3969, 16)
    assert torch.allclose(turn.T @ turn, torch.eye(16), atol=1e-5)
    with pytest.raises(FieldError, match="3969"):
        features_of(WAVES[None], 4000)


def test_all_coefficients_are_standardised_by_image_and_group():
    others = torch.rand(2, 28, 28, generator=torch.Generator().manual_seed(0))
    found = standardised(torch.cat([WAVES[None], others]), 27)
    assert torch.allclose(found[0], standardised(WAVES[None], 27)[0], atol=1e-4)
    coefficients = scattering(others)[0].reshape(27, 147)
    deviation = (coefficients.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    by_hand = (coefficients - coefficients.mean(1, keepdim=True)) / deviation
    torch.testing.assert_close(found[1].view(27, 147), by_hand, atol=1e-4, rtol=1e-4)
    assert bool((found.norm(dim=1) < 63).all())
    with pytest.raises(FieldError, match="81"):
        standardised(WAVES[None], 26)


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """Twenty images of noise in the place of MNIST, and an empty cache folder, which it returns."""
    draw = np.random.default_rng(0)
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    monkeypatch.setenv("FEDVEIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(named, "require_version", lambda *given: None)
    halves = {}
    for half in ("train", "test"):
        halves[f"{half}_images"] = draw.integers(0, 256, (10, 28, 28), dtype=np.uint8)
        halves[f"{half}_labels"] = np.arange(10, dtype=np.uint8)
        halves[f"{half}_writer"] = np.arange(10) // 2
    np.savez(tmp_path / "mnist_by_writer.npz", **halves)
    return tmp_path / "cache"


def test_features_of_digits_are_computed_once_and_cached(digits, monkeypatch):
    first = load("mnist-by-writer", scattering=8)
    assert first.x.shape == first.test_x.shape == (10, 8)
    assert len(list(digits.glob("*.npy"))) == 2
    monkeypatch.setattr(room, "features_of", None)
    again = load("mnist-by-writer", scattering=8)
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.test_x, again.test_x)
    with pytest.raises(FieldError, match="scattering"):
        load("mnist-by-writer", scattering=8, features=4)
    with pytest.raises(FieldError, match="scattering_groups"):
        load("mnist-by-writer", scattering=8, scattering_groups=27)


def test_standardised_features_have_a_copy_of_their_own(digits, monkeypatch):
    first = load("mnist-by-writer", scattering_groups=27)
    assert first.x.shape == first.test_x.shape == (10, 3969)
    monkeypatch.setattr(room, "standardised", None)
    assert torch.equal(first.x, load("mnist-by-writer", scattering_groups=27).x)
