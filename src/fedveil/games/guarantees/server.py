"""The worst-case worlds of every method of the server, played through its party."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Ledger, Release
from fedveil.aggregation import FedAdam, FedAvg, FedMedian, Krum, TrimmedMean
from fedveil.clipping import QuantileClip
from fedveil.engines import ClientParty, ServerParty
from fedveil.games.guarantees.worlds import ROUND, Duel, Score, Sight, World, claiming, layout, opened, unit
from fedveil.mechanisms import NoSource, Source
from fedveil.methods import (
    ClientFacts,
    GlobalDP,
    Method,
    MetricPrivacy,
    Publishing,
    Releases,
    ServerSide,
    TrustedServer,
)
from fedveil.methods.central import CentralState


def cases_of_server(d: int) -> list[Duel]:
    """Every central method at dimension d."""
    return [*_proven_central(d), *_adaptive_central(d), *_heuristic_central(d)]


def served(
    side: ServerSide,
    updates: Tensor,
    *,
    cohort: int | None = None,
    counts: Sequence[float] | None = None,
    measured: Tensor | None = None,
    rounds: int = 1,
    state: Any = None,
) -> World:
    """The server's world on clients that moved by updates [n, d]; with counts and metrics [n, 2] that they report."""
    n, d = updates.shape
    method, shape, planned = Method("game", TrustedServer(), side), layout(d), cohort or n
    facts = ClientFacts(broadcast=opened(d, planned), layout=shape)
    replies = {}
    for p in range(n):
        sent: Releases = (Release("model", updates[p]),)
        if counts is not None:
            sent += (Release("count", torch.tensor(counts[p], dtype=torch.float64)),)
        replies[p] = ClientParty(method, shape, Ledger("game", str(p)), NoSource()).release(sent, facts)

    def run(source: Source) -> Sight:
        publishing = Publishing(metrics="off" if measured is None else "noised", loss_range=1.0)
        server = ServerParty(method, shape, Ledger("game", "server"), source, state=state, publishing=publishing)
        models, metrics = list[Tensor](), list[float]()
        for number in range(ROUND, ROUND + rounds):
            after, _ = server.combine(opened(d, planned, round_=number), replies)
            models.append(after.models[0])
            if measured is not None:
                published = server.publish(number, ("loss", "accuracy"), measured, torch.ones(n))
                metrics += [float(r.value) for r in published]
        return Sight(
            tuple(models), server.state.clip if isinstance(server.state, CentralState) else 0.0, server, tuple(metrics)
        )

    return run


def _along(d: int) -> Score:
    e = unit(d)
    return lambda seen: float(seen.moved @ e)


def _weighted(d: int) -> Score:
    """Rounds weighted by the noise that their other coordinates show: a round without noise decides alone."""
    if d == 1:
        return _along(d)

    def score(seen: Sight) -> float:
        rounds = torch.stack(seen.models)
        weights = 1 / (rounds[:, 1:].square().mean(1) + 1e-300)
        return float((weights * rounds[:, 0]).sum() / weights.sum())

    return score


def _proven_central(d: int) -> list[Duel]:
    """Fixed noise, C = 1, z = 1, four clients unless the rule needs others."""
    e, zero = unit(d), torch.zeros(d, dtype=torch.float64)

    def case(name: str, inside: Sequence[Tensor], outside: Sequence[Tensor], **options: Any) -> Duel:
        score = options.pop("score", _along(d))
        rule, played = options.pop("rule", FedAvg()), {k: options.pop(k) for k in ("rounds", "counts") if k in options}
        side, cohort = GlobalDP(rule, noise_multiplier=1.0, clip=1.0, **options), len(inside)
        worlds = tuple(served(side, torch.stack(list(w)), cohort=cohort, **played) for w in (inside, outside))
        return claiming(f"global DP, {name}", worlds, score)  # type: ignore[arg-type]

    here, gone, swapped = ((first, zero, zero, zero) for first in (e, zero, -e))
    bounded = FedAvg("examples", max_examples=100)
    krum = (-e, -e, -e, e, e, e)
    return [
        case("FedAvg", here, gone),
        case("FedAvg, three rounds", here, gone, rounds=3, score=_weighted(d)),
        case("FedAvg, a client replaced", here, swapped, relation="replace-one"),
        case("FedAvg, a client stays away", here, gone[1:], relation="add/remove"),
        case("FedAvg by examples", here, swapped, relation="replace-one", rule=bounded, counts=[1e15, 1, 1, 1]),
        case("FedAvg, discrete noise", here, gone, noise="discrete"),
        case("FedMedian", (e, zero, e), (zero, zero, e), rule=FedMedian()),
        case("FedMedian, as printed", (e, zero, e, e), (zero, zero, e, e), rule=FedMedian(), order="printed"),
        case("TrimmedMean", (e, zero, e, e), (zero, zero, e, e), rule=TrimmedMean(0.25)),
        case("Krum", (*krum, e), (*krum, -e), rule=Krum(malicious=1), relation="replace-one"),
        case("FedAdam", here, gone, rule=FedAdam()),
    ]


def _adaptive_central(d: int) -> list[Duel]:
    """Noise or clipping norms that follow earlier releases."""
    e, zero = unit(d), torch.zeros(3, d, dtype=torch.float64)
    gone, here = torch.cat([0 * e[None], zero]), torch.cat([2 * e[None], zero])
    moving = GlobalDP(noise_multiplier=1.0, clip=QuantileClip(initial=1.0, quantile=0.5, lr=0.2, bit_noise=1.0))

    def joint(seen: Sight) -> float:
        """Log-likelihood ratio of the model (sigma = 1/4, moved by 1/4) and of the noised number of short updates."""
        short = 4 * (0.5 - math.log(seen.clip) / 0.2)
        return 4 * float(seen.moved @ e) - short

    released = MetricPrivacy(noise_multiplier=1.0, clip=1.0, distance_on="released")
    plain, nobody = GlobalDP(noise_multiplier=1.0, clip=1.0), torch.full((4, 2), 0.5)
    somebody = torch.cat([torch.ones(1, 2), nobody[1:]])  # loss and accuracy of one client, at the ends of their ranges

    def joint_with_metrics(seen: Sight) -> float:
        """The same of the model and of two metrics (sigma = sqrt(2)/8, each moved by 1/8)."""
        return 4 * float(seen.moved @ e) + 4 * (sum(seen.metrics) - 1)

    far = 10 * (unit(d) + unit(d, d - 1))  # how far the model moved: beyond the public range, whose end costs the most
    state = replace(released.init(d, torch.float64), released=far)
    return [
        claiming(
            "global DP, adaptive clipping, with the next norm", (served(moving, here), served(moving, gone)), joint
        ),
        claiming(
            "global DP, with published metrics",
            (served(plain, here, measured=somebody), served(plain, gone, measured=nobody)),
            joint_with_metrics,
        ),
        claiming(
            "metric privacy, scale from releases",
            (served(released, here, state=state), served(released, gone, state=state)),
            _along(d),
        ),
    ]


def _heuristic_central(d: int) -> list[Duel]:
    """What is printed, and proves nothing."""
    last, zero = unit(d, d - 1), torch.zeros(d, dtype=torch.float64)
    spread = torch.ones(d, dtype=torch.float64) / math.sqrt(d)
    adam = GlobalDP(FedAdam(lr=1.0), noise_multiplier=1.0, clip=1.0, order="printed")
    metric = MetricPrivacy(noise_multiplier=1.0, clip=1.0, order="printed")
    near, far = (torch.stack([x * unit(d), 0.05 * last, -0.05 * last, 0.05 * last]) for x in (0.05, 0.49))
    return [
        claiming(
            "global DP, FedAdam, as printed",
            (served(adam, torch.stack([spread, zero, zero, zero])), served(adam, torch.stack([zero] * 4))),
            lambda seen: float(seen.moved @ spread),
        ),
        claiming(
            "metric privacy, as printed",
            (served(metric, far), served(metric, near)),
            lambda seen: -float(seen.moved.norm()),
        ),
    ]
