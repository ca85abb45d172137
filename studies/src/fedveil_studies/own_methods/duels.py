"""The worst-case worlds of every method, played through its parties.

The adversary of a method on the server is a client, that of a method on clients the server.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedveil.aggregation import FedAdam, FedAvg, FedMedian, Krum, TrimmedMean
from fedveil.clipping import QuantileClip
from fedveil.mechanisms import ReproducibleSource
from fedveil.methods import SGALDP, FedRE, GlobalDP, GroupPrivacy, LastBroadcast, MetricPrivacy
from fedveil_studies.own_methods.worlds import (
    ROUND,
    Duel,
    Score,
    Sight,
    along,
    claiming,
    layout,
    opened,
    sent,
    served,
    short,
    unit,
)


def cases(d: int) -> list[Duel]:
    """Make the duels of every method at dimension d."""
    return [
        *_proven_central(d),
        *_adaptive_central(d),
        *_heuristic_central(d),
        *_group(d),
        *_fedre(d),
        *_sga(d),
    ]


def _weighted(d: int) -> Score:
    """Rounds weighted by the noise that their other coordinates show: a round without noise decides alone."""
    if d == 1:
        return along(unit(d))

    def score(seen: Sight) -> float:
        rounds = torch.stack(seen.models)
        weights = 1 / (rounds[:, 1:].square().mean(1) + 1e-300)
        return float((weights * rounds[:, 0]).sum() / weights.sum())

    return score


def _proven_central(d: int) -> list[Duel]:
    """Fixed noise, C = 1, z = 1, four clients unless the rule needs others."""
    e, zero = unit(d), torch.zeros(d, dtype=torch.float64)

    def case(
        name: str, inside: Sequence[Tensor], outside: Sequence[Tensor], **options: Any
    ) -> Duel:
        score = options.pop("score", along(e))
        rule, played = (
            options.pop("rule", FedAvg()),
            {k: options.pop(k) for k in ("rounds", "counts") if k in options},
        )
        side = GlobalDP(rule, noise_multiplier=1.0, clip=1.0, **options)
        world = partial(served, side, cohort=len(inside), **played)
        return claiming(
            f"global DP, {name}", world, torch.stack([*inside]), torch.stack([*outside]), score
        )

    here, gone, swapped = ((first, zero, zero, zero) for first in (e, zero, -e))
    bounded = FedAvg("examples", max_examples=100)
    krum = (-e, -e, -e, e, e, e)
    return [
        case("FedAvg", here, gone),
        case("FedAvg, three rounds", here, gone, rounds=3, score=_weighted(d)),
        case("FedAvg, a client replaced", here, swapped, relation="replace-one"),
        case("FedAvg, a client stays away", here, gone[1:], relation="add/remove"),
        case(
            "FedAvg by examples",
            here,
            swapped,
            relation="replace-one",
            rule=bounded,
            counts=[1e15, 1, 1, 1],
        ),
        case("FedAvg, discrete noise", here, gone, noise="discrete"),
        case("FedMedian", (e, zero, e), (zero, zero, e), rule=FedMedian()),
        case(
            "FedMedian, as printed",
            (e, zero, e, e),
            (zero, zero, e, e),
            rule=FedMedian(),
            order="printed",
        ),
        case("TrimmedMean", (e, zero, e, e), (zero, zero, e, e), rule=TrimmedMean(0.25)),
        case("Krum", (*krum, e), (*krum, -e), rule=Krum(malicious=1), relation="replace-one"),
        case("FedAdam", here, gone, rule=FedAdam()),
    ]


def _adaptive_central(d: int) -> list[Duel]:
    """Noise or clipping norms that follow earlier releases."""
    e, zero = unit(d), torch.zeros(3, d, dtype=torch.float64)
    gone, here = torch.cat([0 * e[None], zero]), torch.cat([2 * e[None], zero])
    moving = GlobalDP(
        noise_multiplier=1.0, clip=QuantileClip(initial=1.0, quantile=0.5, lr=0.2, bit_noise=1.0)
    )

    def joint(seen: Sight) -> float:
        """Log-likelihood ratio of the model (sigma = 1/4, moved by 1/4) and of the noised number of short updates."""
        short = 4 * (0.5 - math.log(seen.clip) / 0.2)
        return 4 * float(seen.moved @ e) - short

    released = MetricPrivacy(noise_multiplier=1.0, clip=1.0, distance_on="released")
    plain, nobody = GlobalDP(noise_multiplier=1.0, clip=1.0), torch.full((4, 2), 0.5)
    somebody = torch.cat(
        [torch.ones(1, 2), nobody[1:]]
    )  # loss and accuracy of one client, at the ends of their ranges

    def joint_with_metrics(seen: Sight) -> float:
        """The same of the model and of two metrics (sigma = sqrt(2)/8, each moved by 1/8)."""
        return 4 * float(seen.moved @ e) + 4 * (sum(seen.metrics) - 1)

    far = 10 * (
        unit(d) + unit(d, d - 1)
    )  # how far the model moved: beyond the public range, whose end costs the most
    state = replace(released.init(d, torch.float64), released=far)
    pairs = (here, somebody), (gone, nobody)
    return [
        claiming(
            "global DP, adaptive clipping, with the next norm",
            partial(served, moving),
            here,
            gone,
            joint,
        ),
        claiming(
            "global DP, with published metrics",
            lambda pair: served(plain, pair[0], measured=pair[1]),
            *pairs,
            joint_with_metrics,
        ),
        claiming(
            "metric privacy, scale from releases",
            partial(served, released, state=state),
            here,
            gone,
            along(e),
        ),
    ]


def _heuristic_central(d: int) -> list[Duel]:
    """Make duels of printed (heuristic) methods, which promise nothing."""
    last, zero = unit(d, d - 1), torch.zeros(d, dtype=torch.float64)
    spread = torch.ones(d, dtype=torch.float64) / math.sqrt(d)
    adam = GlobalDP(FedAdam(lr=1.0), noise_multiplier=1.0, clip=1.0, order="printed")
    metric = MetricPrivacy(noise_multiplier=1.0, clip=1.0, order="printed")
    near, far = (
        torch.stack([x * unit(d), 0.05 * last, -0.05 * last, 0.05 * last]) for x in (0.05, 0.49)
    )
    here, gone = torch.stack([spread, zero, zero, zero]), torch.stack([zero] * 4)

    return [
        claiming(
            "global DP, FedAdam, as printed", partial(served, adam), here, gone, along(spread)
        ),
        claiming("metric privacy, as printed", partial(served, metric), far, near, short),
    ]


def _group(d: int) -> list[Duel]:
    """A long and a short step; with a public radius, epsilon 1 a unit of distance, models at distance sqrt(d)."""
    e, facts, apart = unit(d), opened(d, 4), math.sqrt(d)
    printed, sound = (
        GroupPrivacy(noise_multiplier=1.0),
        GroupPrivacy(noise_multiplier=float(d), radius=1.0),
    )

    def nearer(seen: Sight) -> float:
        return float(seen.moved.norm() - (seen.moved - apart * e).norm())

    name = f"group privacy, public radius, models at distance {apart:.3g}"
    return [
        claiming("group privacy, as printed", partial(sent, printed, facts), e, 2 * e, short),
        claiming(name, partial(sent, sound, facts), apart * e, 0 * e, nearer, apart),
    ]


def _fedre(d: int) -> list[Duel]:
    """The same update, another sensitive region; with public scores two opposite updates, of full length a layer."""
    names, half = list(layout(d).groups("module")), d // 2
    facts = opened(d, 4, scores=(1.0, 3.0)[: len(names)])
    starts = [0] if len(names) == 1 else [0, half]
    update = torch.stack([unit(d, at) for at in starts]).sum(0)
    sound = FedRE(epsilon=50.0, clip=1.0, scores="public")
    public = partial(sent, sound, facts)
    scale = public(update)(ReproducibleSource(0)).party.ledger.entries[0].spend.scale
    weights = [1 / s**2 for s in scale]

    def weighted(seen: Sight) -> float:
        return float(sum(w * float(seen.moved[at]) for w, at in zip(weights, starts, strict=True)))

    def wider(seen: Sight) -> float:
        return float(seen.moved[half:].norm() - seen.moved[:half].norm())

    duels = [claiming("FedRE, mu split by public scores", public, update, -update, weighted)]
    if len(names) == 1:  # one layer has nothing to split
        return duels
    printed = FedRE(epsilon=50.0, clip=1.0)
    # a higher score of b widens its noise, and narrows that of a
    world = lambda score: sent(printed, facts, unit(d), scores={names[0]: 1.0, names[1]: score})  # noqa: E731
    return [claiming("FedRE, as printed", world, 2.0, 1.0, wider), *duels]


def _sga(d: int) -> list[Duel]:
    """An aligned update against another; in the sound variants two opposite updates, the noise at its least."""
    e, reference = unit(d), unit(d, d - 1)
    facts = opened(d, 4, start=reference)
    state = LastBroadcast(ROUND - 1, 0 * reference, reference.clone())
    printed, sound, charged = SGALDP(), SGALDP(similarity="released"), SGALDP(similarity="noised")
    aligned = replace(state, similarity=1.0)
    noised = partial(sent, charged, facts, state=aligned)
    variance = noised(e)(ReproducibleSource(0)).party.ledger.entries[0].spend.scale[0] ** 2

    def near(seen: Sight) -> float:
        return -float((seen.moved - reference).norm())

    def joint(
        seen: Sight,
    ) -> float:  # the next release's noise shows the noised similarity, handed over here as it is
        return float(2 * float(seen.moved @ reference) / variance + seen.party.state.similarity)

    other = -reference if d == 1 else e
    return [
        claiming(
            "SGA-LDP, as printed",
            partial(sent, printed, facts, state=state),
            reference,
            other,
            near,
        ),
        claiming(
            "SGA-LDP, released similarity",
            partial(sent, sound, facts, state=state),
            e,
            -e,
            along(e),
        ),
        claiming("SGA-LDP, noised similarity", noised, reference, -reference, joint),
    ]
