"""The noise itself: every method's parties play ten rounds, and what is left of their releases is tested.

The game knows one round; noise that is missing in another, or is used again, passes it. Here inputs are such that a
release without its noise is known: updates shorter than C whose mean, median and trimmed mean are one vector. What is
left of each release, over the deviation that the party's own ledger declares, has to be independent standard normal
numbers (see `fedveil.attacks.residuals`); the radius of Euclidean Laplace noise is mapped to that of a normal vector.
"""

from dataclasses import dataclass
from typing import Any

from fedveil.aggregation import FedMedian, Krum, TrimmedMean
from fedveil.attacks.residuals import Departure, departures
from fedveil.clipping import QuantileClip
from fedveil.games.guarantees.played import (
    Play,
    clip_noise,
    drawn_noise,
    published_noise,
    sent_noise,
    served_noise,
    trained_noise,
)
from fedveil.mechanisms import Source
from fedveil.methods import SGALDP, FedRE, GlobalDP, GroupPrivacy, MetricPrivacy, RecordDP
from fedveil.methods.central import STEPS

LEVEL = 1e-3  # chance of a false alarm in all rows of one call together, at most


@dataclass(frozen=True)
class NoiseGame:
    """A method and its noise.

    Attributes
    ----------
    name : str
        The method and its setting.
    play : callable
        ``source -> [parties, rounds, coordinates]``, residuals over their declared deviation.
    resolution : float
        Width of the grid that the noise lies on, in deviations.
    """

    name: str
    play: Play
    resolution: float = 1e-12

    def examine(self, source: Source) -> Departure:
        """What fits the declared noise least."""
        return departures(self.play(source), self.resolution)[0]


def methods(d: int) -> list[NoiseGame]:
    """Every method that adds noise, at dimension d."""
    z: dict[str, Any] = {"noise_multiplier": 1.0, "clip": 1.0}
    moving = QuantileClip(initial=1.0, quantile=0.5, lr=0.2, bit_noise=1.0)
    found = [
        NoiseGame("global DP, FedAvg", served_noise(GlobalDP(**z), d)),
        NoiseGame("global DP, FedAvg, a client replaced", served_noise(GlobalDP(**z, relation="replace-one"), d)),
        NoiseGame("global DP, FedAvg, as printed", served_noise(GlobalDP(**z, order="printed"), d)),
        NoiseGame("global DP, FedMedian", served_noise(GlobalDP(FedMedian(), **z), d)),
        NoiseGame("global DP, TrimmedMean", served_noise(GlobalDP(TrimmedMean(0.25), **z), d)),
        NoiseGame("global DP, Krum", served_noise(GlobalDP(Krum(malicious=1), **z), d, cohort=7, apart=0.0)),
        NoiseGame("global DP, discrete noise", served_noise(GlobalDP(**z, noise="discrete"), d, apart=0.0), 1 / STEPS),
        NoiseGame("global DP, adaptive clipping", served_noise(GlobalDP(noise_multiplier=1.0, clip=moving), d)),
        NoiseGame("metric privacy, scale from releases", served_noise(MetricPrivacy(**z, distance_on="released"), d)),
        NoiseGame("metric privacy, as printed", served_noise(MetricPrivacy(**z, order="printed"), d)),
        NoiseGame("group privacy, as printed", sent_noise(GroupPrivacy(noise_multiplier=1.0), d)),
        NoiseGame("group privacy, public radius", sent_noise(GroupPrivacy(noise_multiplier=float(d), radius=1.0), d)),
        NoiseGame("FedRE, as printed", sent_noise(FedRE(epsilon=50.0, clip=1.0), d)),
        NoiseGame("FedRE, mu split by public scores", sent_noise(FedRE(epsilon=50.0, clip=1.0, scores="public"), d)),
        NoiseGame("SGA-LDP, as printed", sent_noise(SGALDP(), d)),
        NoiseGame("SGA-LDP, released similarity", sent_noise(SGALDP(similarity="released"), d)),
        NoiseGame("SGA-LDP, noised similarity", sent_noise(SGALDP(similarity="noised"), d)),
        NoiseGame("record-level DP, two steps", trained_noise(RecordDP(examples=4, noise_multiplier=1.0, steps=2), d)),
        NoiseGame(
            "person-level DP",
            trained_noise(RecordDP(unit="person", people=4, records_per_person=2, noise_multiplier=1.0), d),
        ),
        NoiseGame("secure source", drawn_noise(d)),
    ]
    if d == 1:
        found += [
            NoiseGame("published metrics", published_noise()),
            NoiseGame("adaptive clipping, the next norm", clip_noise(moving)),
        ]
    return found
