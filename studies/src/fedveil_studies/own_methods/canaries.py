"""Canary clients and records against every FedVeil method: measured and declared figures in one table.

An audit must also find bugs that exist. So each method is tested with planted bugs. They are half of its noise, no
clipping (C is as long as the canaries' updates, the noise as declared), and noise that is used again in a second round,
in which canaries do nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedveil.aggregation import FedAdam, FedAvg, NormBounding, TrimmedMean
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import SGALDP, FedRE, GlobalDP, GroupPrivacy, MetricPrivacy, RecordDP
from fedveil_lab.attacks.membership.canaries import (
    CanaryRun,
    audited,
    client_canaries,
    orthogonal_records,
    server_canaries,
)
from fedveil_lab.attacks.verdict import Verdict

DELTA = 1e-5
LENGTH = 10.0  # of a canary's update, in units of C = 1: it has to be clipped
RADIUS = 0.5  # of group privacy's public radius, whose vectors are not clipped
EVERY = HALF, UNCLIPPED, REUSED = "half the noise", "no clipping", "a stream used again"


class Scaled(ReproducibleSource):
    """Planted bug: a source of normal noise times a factor."""

    def __init__(self, seed: int, factor: float, *, _key: tuple[Any, ...] = ()) -> None:
        super().__init__(seed, _key=_key)
        self.factor = factor

    def child(self, *key: Any) -> "Scaled":
        """Return a child source with the same factor."""
        return Scaled(self._seed, self.factor, _key=(*self._key, *key))

    def normal(self, size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return super().normal(size, dtype) * self.factor


class Reused(ReproducibleSource):
    """Planted bug: a source with the same stream in every round, as a child ignores its round."""

    def child(self, *key: Any) -> ReproducibleSource:
        """Return a child source that depends on the party only."""
        kept = [part for part in key if not isinstance(part, int)]
        party = key[0] if str(key[0]).isdigit() else kept[0]
        return ReproducibleSource(self._seed, _key=(party, *kept))


@dataclass(frozen=True)
class CanaryAudit:
    """Canary audit of one method.

    Attributes
    ----------
    play : callable
        ``(side, **options) -> CanaryRun``; options are `source`, `rounds` and `contrast`, where it takes them.
    side : object
        The method's side that adds the noise.
    by_source : bool
        Whether a source can halve its noise; else its noise multiplier is halved.
    distance : float, optional
        Distance of the canaries' updates, if the promise depends on distance.
    bugs : tuple of str
        Planted bugs that are tested. Reused noise is left out if it cannot cancel: if its size differs between rounds,
        or an optimiser follows it.
    """

    play: Callable[..., CanaryRun]
    side: Any
    by_source: bool = True
    distance: float | None = None
    bugs: tuple[str, ...] = (HALF, UNCLIPPED, REUSED)

    def honest(self, name: str) -> Verdict:
        """Test the method as it is."""
        return audited(name, self.play(self.side), self.distance)

    def verdicts(self, name: str) -> list[Verdict]:
        """Verdict of the method as it is, then of each bug, in the order of `bugs`."""
        return [self.honest(name), *(self.planted(name, bug, 0) for bug in self.bugs)]

    def planted(self, name: str, bug: str, seed: int) -> Verdict:
        """Test the method with a planted bug, against what is declared without it."""
        options: dict[str, Any] = {"rounds": 2, "contrast": True} if bug == REUSED else {}
        declared = self.play(self.side, **options).guarantee
        if bug == HALF and not self.by_source:
            run = self.play(replace(self.side, noise_multiplier=self.side.noise_multiplier / 2))
        elif bug == HALF:
            run = self.play(self.side, source=Scaled(seed, 0.5))
        elif bug == UNCLIPPED:
            run = self.play(replace(self.side, clip=LENGTH), source=Scaled(seed, 1 / LENGTH))
        else:
            run = self.play(self.side, source=Reused(seed), **options)
        return audited(f"{name}: {bug}", replace(run, guarantee=declared), self.distance)


def audits(m: int, seed: int = 0) -> dict[str, CanaryAudit]:
    """Make the audit of every method with `m` canaries, by name."""

    def central(
        side: GlobalDP | MetricPrivacy,
        rounds: int = 1,
        bugs: tuple[str, ...] = EVERY,
        by_source: bool = True,
    ) -> CanaryAudit:
        how: dict[str, Any] = {
            "relation": side.relation,
            "delta": DELTA,
            "seed": seed,
            "rounds": rounds,
        }
        return CanaryAudit(
            partial(server_canaries, m=m, length=LENGTH, **how), side, by_source, bugs=bugs
        )

    def local(
        side: SGALDP | FedRE | GroupPrivacy,
        dimension: int = 10,
        length: float = LENGTH,
        follow: int = 0,
        **rest: Any,
    ) -> CanaryAudit:
        scores = (1.0, 3.0) if "public_layer_scores" in side.needs else None

        how: dict[str, Any] = {
            "delta": DELTA,
            "seed": seed,
            "follow": follow,
            "layer_scores": scores,
        }
        return CanaryAudit(
            partial(client_canaries, m=m, dimension=dimension, length=length, **how), side, **rest
        )

    def records(side: RecordDP, bugs: tuple[str, ...] = (HALF, UNCLIPPED)) -> CanaryAudit:
        return CanaryAudit(
            partial(orthogonal_records, m=m, delta=DELTA, seed=seed), side, bugs=bugs
        )

    one: dict[str, Any] = {"noise_multiplier": 1.0, "clip": 1.0}
    two = {**one, "noise_multiplier": 2.0}
    return {
        "global DP": central(GlobalDP(**one)),
        "global DP, a client replaced": central(GlobalDP(**two, relation="replace-one")),
        "global DP, four rounds": central(GlobalDP(**two), rounds=4),
        "global DP, discrete noise": central(
            GlobalDP(**one, noise="discrete"), bugs=(HALF,), by_source=False
        ),
        "global DP, FedAdam": central(GlobalDP(FedAdam(), **one), bugs=(HALF, UNCLIPPED)),
        "global DP, trimmed mean": central(GlobalDP(TrimmedMean(0.1), **one), bugs=()),
        "global DP, norm bounding": central(
            GlobalDP(NormBounding(0.5), **one), bugs=(HALF, REUSED)
        ),
        "global DP, as printed": central(GlobalDP(FedAvg(), **one, order="printed")),
        "metric privacy, as published": central(MetricPrivacy(**one, order="printed"), bugs=()),
        "metric privacy, released distances": central(
            MetricPrivacy(**one, distance_on="released"), rounds=2, bugs=()
        ),
        "group privacy, public radius": local(
            GroupPrivacy(noise_multiplier=5.0, radius=RADIUS),
            2,
            RADIUS,
            by_source=False,
            distance=2 * RADIUS,
            bugs=(HALF, REUSED),
        ),
        "group privacy, as published": local(
            GroupPrivacy(noise_multiplier=5.0), 2, RADIUS, bugs=()
        ),
        "FedRE, split by public scores": local(
            FedRE(epsilon=5.0, delta=DELTA, clip=1.0, scores="public")
        ),
        "SGA-LDP, as published": local(SGALDP(epsilon_min=1.0, epsilon_max=5.0), bugs=()),
        "SGA-LDP, released similarity": local(
            SGALDP(epsilon_min=1.0, epsilon_max=5.0, similarity="released"), follow=1
        ),
        "SGA-LDP, noised similarity": local(
            SGALDP(epsilon_min=4.0, epsilon_max=5.0, similarity="noised", similarity_noise=4.0),
            follow=2,
            bugs=(HALF, UNCLIPPED),
        ),
        "record-level DP, full batch": records(RecordDP(examples=m / 2, noise_multiplier=1.0)),
        "record-level DP, four sampled steps": records(
            RecordDP(
                examples=m / 2, noise_multiplier=1.0, steps=4, rate=0.25, relation="add/remove"
            ),
            (HALF,),
        ),
        "person-level DP, three images each": records(
            RecordDP(unit="person", people=m / 2, records_per_person=3, noise_multiplier=1.0)
        ),
        "static local DP": local(SGALDP(epsilon_min=5.0, epsilon_max=5.0, similarity="released")),
    }
