"""Canary clients and records against every method of the house: measured beside declared, in one table."""

from __future__ import annotations

from collections.abc import Callable

from fedveil.aggregation import FedAdam, FedAvg, NormBounding, TrimmedMean
from fedveil.attacks.membership.canaries import CanaryRun, audited, client_canaries, orthogonal_records, server_canaries
from fedveil.attacks.verdict import Verdict
from fedveil.methods import SGALDP, FedRE, GlobalDP, GroupPrivacy, MetricPrivacy, RecordDP

DELTA = 1e-5
LENGTH = 10.0  # of a canary's update, in units of C = 1: it has to be clipped
RADIUS = 0.5  # of group privacy's public radius, whose vectors are not clipped


def audits(m: int, seed: int = 0) -> dict[str, Callable[[], tuple[CanaryRun, float | None]]]:
    """One run a method, by name, with the distance of its canaries where its promise is over distance."""

    def central(side: GlobalDP | MetricPrivacy, rounds: int = 1) -> Callable[[], tuple[CanaryRun, None]]:
        relation = side.relation
        return lambda: (
            server_canaries(side, m, LENGTH, relation=relation, rounds=rounds, delta=DELTA, seed=seed),
            None,
        )

    def local(
        side: SGALDP | FedRE | GroupPrivacy, dimension: int = 10, length: float = LENGTH, distance: float | None = None
    ) -> Callable[[], tuple[CanaryRun, float | None]]:
        scores = (1.0,) if "public_layer_scores" in side.needs else None
        return lambda: (
            client_canaries(side, m, dimension, length, delta=DELTA, seed=seed, layer_scores=scores),
            distance,
        )

    def records(side: RecordDP) -> Callable[[], tuple[CanaryRun, None]]:
        return lambda: (orthogonal_records(side, m, delta=DELTA, seed=seed), None)

    one = GlobalDP(noise_multiplier=1.0, clip=1.0)
    return {
        "global DP": central(one),
        "global DP, a client replaced": central(GlobalDP(noise_multiplier=2.0, clip=1.0, relation="replace-one")),
        "global DP, four rounds": central(GlobalDP(noise_multiplier=2.0, clip=1.0), rounds=4),
        "global DP, discrete noise": central(GlobalDP(noise_multiplier=1.0, clip=1.0, noise="discrete")),
        "global DP, FedAdam": central(GlobalDP(FedAdam(), noise_multiplier=1.0, clip=1.0)),
        "global DP, trimmed mean": central(GlobalDP(TrimmedMean(0.1), noise_multiplier=1.0, clip=1.0)),
        "global DP, norm bounding": central(GlobalDP(NormBounding(0.5), noise_multiplier=1.0, clip=1.0)),
        "global DP, as printed": central(GlobalDP(FedAvg(), noise_multiplier=1.0, clip=1.0, order="printed")),
        "metric privacy, as published": central(MetricPrivacy(noise_multiplier=1.0, clip=1.0, order="printed")),
        "metric privacy, released distances": central(
            MetricPrivacy(noise_multiplier=1.0, clip=1.0, distance_on="released"), rounds=2
        ),
        "group privacy, public radius": local(GroupPrivacy(noise_multiplier=5.0, radius=RADIUS), 2, RADIUS, 2 * RADIUS),
        "group privacy, as published": local(GroupPrivacy(noise_multiplier=5.0), 2, RADIUS),
        "FedRE, split by public scores": local(FedRE(epsilon=5.0, delta=DELTA, clip=1.0, scores="public")),
        "SGA-LDP, as published": local(SGALDP(epsilon_min=1.0, epsilon_max=5.0)),
        "SGA-LDP, released similarity": local(SGALDP(epsilon_min=1.0, epsilon_max=5.0, similarity="released")),
        "record-level DP, full batch": records(RecordDP(examples=m / 2, noise_multiplier=1.0)),
        "record-level DP, four sampled steps": records(
            RecordDP(examples=m / 2, noise_multiplier=1.0, steps=4, rate=0.25, relation="add/remove")
        ),
        "static local DP": local(SGALDP(epsilon_min=5.0, epsilon_max=5.0, similarity="released")),
    }


def audit_methods(m: int = 1000, seed: int = 0) -> list[Verdict]:
    """Every method's promise against m canaries; a heuristic declares nothing, and is measured all the same."""
    return [audited(name, *play()) for name, play in audits(m, seed).items()]
