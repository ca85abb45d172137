"""Noise mechanisms, and the sources of their randomness."""

from fedveil.mechanisms.discrete import DiscreteGaussianNoise as DiscreteGaussianNoise
from fedveil.mechanisms.discrete import WideGaussianNoise as WideGaussianNoise
from fedveil.mechanisms.discrete import to_grid as to_grid
from fedveil.mechanisms.noise import MECHANISMS as MECHANISMS
from fedveil.mechanisms.noise import EuclideanLaplaceNoise as EuclideanLaplaceNoise
from fedveil.mechanisms.noise import GaussianNoise as GaussianNoise
from fedveil.mechanisms.noise import Mechanism as Mechanism
from fedveil.mechanisms.noise import gaussian_sigma as gaussian_sigma
from fedveil.mechanisms.noise import noised as noised
from fedveil.mechanisms.secure import KeyedSource as KeyedSource
from fedveil.mechanisms.secure import SecureSource as SecureSource
from fedveil.mechanisms.secure import source_of as source_of
from fedveil.mechanisms.source import NoSource as NoSource
from fedveil.mechanisms.source import ReproducibleSource as ReproducibleSource
from fedveil.mechanisms.source import Source as Source
from fedveil.mechanisms.source import begin_normals as begin_normals
from fedveil.mechanisms.source import keyed_seed as keyed_seed
from fedveil.mechanisms.source import zeros as zeros
