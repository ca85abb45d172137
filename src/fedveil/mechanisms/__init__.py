"""Draw noise: mechanisms and the sources of their randomness."""

from fedveil.mechanisms.discrete import DiscreteGaussianNoise, WideGaussianNoise, to_grid
from fedveil.mechanisms.noise import MECHANISMS, EuclideanLaplaceNoise, GaussianNoise, Mechanism, gaussian_sigma, noised
from fedveil.mechanisms.secure import KeyedSource, SecureSource
from fedveil.mechanisms.source import NoSource, ReproducibleSource, Source, keyed_seed

__all__ = [
    "MECHANISMS",
    "DiscreteGaussianNoise",
    "EuclideanLaplaceNoise",
    "GaussianNoise",
    "KeyedSource",
    "Mechanism",
    "NoSource",
    "ReproducibleSource",
    "SecureSource",
    "Source",
    "WideGaussianNoise",
    "gaussian_sigma",
    "keyed_seed",
    "noised",
    "to_grid",
]
