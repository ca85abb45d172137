"""The noise itself: every method's parties play ten rounds, and what is left of their releases is tested.

The game knows one round; noise that is missing in another, or is used again, passes it. Here inputs are such that a
release without its noise is known: updates shorter than C whose mean, median and trimmed mean are one vector. What is
left of each release, over the deviation that the party's own ledger declares, has to be independent standard normal
numbers (see `fedveil.attacks.residuals`); the radius of Euclidean Laplace noise is mapped to that of a normal vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import scipy
import torch
from torch import Tensor

from fedveil.accounting import Ledger, Release, Spend
from fedveil.aggregation import FedMedian, Krum, TrimmedMean
from fedveil.attacks.observation import ServerView
from fedveil.attacks.residuals import Departure, departures
from fedveil.audit.guarantees.worlds import ROUNDS, layout, opened, unit
from fedveil.clipping import QuantileClip
from fedveil.engines import ClientParty, ServerParty
from fedveil.engines.local import Federation
from fedveil.errors import FieldError
from fedveil.learning import ClientData, LocalTraining
from fedveil.mechanisms import SecureSource, Source
from fedveil.methods import (
    SGALDP,
    ClientFacts,
    ClientSide,
    FedRE,
    GlobalDP,
    GroupPrivacy,
    Method,
    MetricPrivacy,
    Plain,
    Publishing,
    RecordDP,
    Refusal,
    ServerSide,
    TrustedServer,
)
from fedveil.methods.central import STEPS, CentralState

PARTIES = 20  # of each method: servers of federations of their own, or clients of one
LEVEL = 1e-3  # chance of a false alarm in all rows of one call together, at most


@dataclass(frozen=True)
class Played:
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
    play: Callable[[Source], Tensor]
    resolution: float = 1e-12

    def examine(self, source: Source) -> Departure:
        """What fits the declared noise least."""
        return departures(self.play(source), self.resolution)[0]


def standardised(residual: Tensor, spend: Spend) -> Tensor:
    """A release's residual [d] over its declared deviation: standard normal where the noise is as declared.

    Raises
    ------
    FieldError
        If the ledger declares no noise.
    """
    if not spend.scale:
        raise FieldError("scale", spend.scale, "the ledger declares no noise: there is nothing to test")
    if spend.mechanism == "euclidean-laplace":
        return _normal(residual * spend.scale[0])
    if len(spend.scale) in (1, len(residual)):
        return residual / torch.tensor(spend.scale, dtype=torch.float64)
    deviation = torch.empty_like(residual)
    for scale, columns in zip(spend.scale, layout(len(residual)).groups("module").values(), strict=True):
        for part in columns:
            deviation[part] = scale
    return residual / deviation


def _normal(noise: Tensor) -> Tensor:
    """Euclidean Laplace noise at epsilon 1, its radius Gamma(d), as a normal vector of the same direction."""
    d, radius = len(noise), float(noise.norm())
    if scipy.special.gammainc(d, radius) < 0.5:
        length = math.sqrt(2 * scipy.special.gammaincinv(d / 2, scipy.special.gammainc(d, radius)))
    else:
        length = math.sqrt(2 * scipy.special.gammainccinv(d / 2, scipy.special.gammaincc(d, radius)))
    return noise * (length / radius) if radius else noise


def methods(d: int) -> list[Played]:
    """Every method that adds noise, at dimension d."""
    z: dict[str, Any] = {"noise_multiplier": 1.0, "clip": 1.0}
    moving = QuantileClip(initial=1.0, quantile=0.5, lr=0.2, bit_noise=1.0)
    found = [
        Played("global DP, FedAvg", _served(GlobalDP(**z), d)),
        Played("global DP, FedAvg, a client replaced", _served(GlobalDP(**z, relation="replace-one"), d)),
        Played("global DP, FedAvg, as printed", _served(GlobalDP(**z, order="printed"), d)),
        Played("global DP, FedMedian", _served(GlobalDP(FedMedian(), **z), d)),
        Played("global DP, TrimmedMean", _served(GlobalDP(TrimmedMean(0.25), **z), d)),
        Played("global DP, Krum", _served(GlobalDP(Krum(malicious=1), **z), d, cohort=7, apart=0.0)),
        Played("global DP, discrete noise", _served(GlobalDP(**z, noise="discrete"), d, apart=0.0), 1 / STEPS),
        Played("global DP, adaptive clipping", _served(GlobalDP(noise_multiplier=1.0, clip=moving), d)),
        Played("metric privacy, scale from releases", _served(MetricPrivacy(**z, distance_on="released"), d)),
        Played("metric privacy, as printed", _served(MetricPrivacy(**z, order="printed"), d)),
        Played("group privacy, as printed", _sent(GroupPrivacy(noise_multiplier=1.0), d)),
        Played("group privacy, public radius", _sent(GroupPrivacy(noise_multiplier=float(d), radius=1.0), d)),
        Played("FedRE, as printed", _sent(FedRE(epsilon=50.0, clip=1.0), d)),
        Played("FedRE, mu split by public scores", _sent(FedRE(epsilon=50.0, clip=1.0, scores="public"), d)),
        Played("SGA-LDP, as printed", _sent(SGALDP(), d)),
        Played("SGA-LDP, released similarity", _sent(SGALDP(similarity="released"), d)),
        Played("SGA-LDP, noised similarity", _sent(SGALDP(similarity="noised"), d)),
        Played("record-level DP, two steps", _trained(RecordDP(examples=4, noise_multiplier=1.0, steps=2), d)),
        Played("secure source", _drawn(d)),
    ]
    if d == 1:
        found += [
            Played("published metrics", _published()),
            Played("adaptive clipping, the next norm", _clipped(moving)),
        ]
    return found


def examine_all(
    dimensions: tuple[int, ...], source: Source, tell: Callable[[dict[str, Any]], None] = lambda row: None
) -> list[dict[str, Any]]:
    """Test every method's noise at every dimension.

    Parameters
    ----------
    dimensions : tuple of int
        Coordinates of the model.
    source : Source
        Of the noise.
    tell : callable
        Is told each row as it is found.

    Returns
    -------
    list of dict
        Method, dimension, the least fitting test, its p-value over all tests of the row, and whether the noise is as
        declared: at most one call in 1 / `LEVEL` says that of sound noise somewhere.
    """
    every, rows = [(d, one) for d in dimensions for one in methods(d)], []
    for d, one in every:
        least = one.examine(source.child("noise", one.name, d))
        row = {"method": one.name, "dimension": d, "least": least.what, "kind": least.kind}
        rows.append({**row, "p": float(f"{least.p:.2g}"), "as_declared": least.p > LEVEL / len(every)})
        tell(rows[-1])
    return rows


def _served(side: ServerSide, d: int, cohort: int = 4, apart: float = 0.01) -> Callable[[Source], Tensor]:
    """Servers of federations of their own; clients lie in pairs on either side of one update, a little apart."""
    update = torch.full((d,), 0.02 / math.sqrt(d), dtype=torch.float64)
    updates = torch.stack([update + apart * (-1) ** p * unit(d, d - 1) for p in range(cohort)])

    def play(source: Source) -> Tensor:
        return torch.stack([rounds_of(source.child("server", k)) for k in range(PARTIES)])

    def rounds_of(source: Source) -> Tensor:
        method = Method("noise", TrustedServer(), side)
        server, left = ServerParty(method, layout(d), Ledger("noise", "server"), source), list[Tensor]()
        broadcast = server.open(torch.zeros(1, d, dtype=torch.float64), 1, ROUNDS, cohort)
        for _ in range(ROUNDS):
            before = broadcast.models[0]
            broadcast, _ = server.combine(
                broadcast, {p: (Release("model", before + updates[p]),) for p in range(cohort)}
            )
            left.append(standardised(broadcast.models[0] - before - update, server.ledger.entries[-1].spend))
        return torch.stack(left)

    return play


def _sent(side: ClientSide, d: int) -> Callable[[Source], Tensor]:
    """Clients of one federation, each of which starts a round at its own last release."""
    update, names = torch.full((d,), 0.02 / math.sqrt(d), dtype=torch.float64), list(layout(d).groups("module"))
    scores = (1.0, 3.0)[: len(names)]

    def play(source: Source) -> Tensor:
        return torch.stack([rounds_of(k, source) for k in range(PARTIES)])

    def rounds_of(k: int, source: Source) -> Tensor:
        party = ClientParty(Method("noise", side, Plain()), layout(d), Ledger("noise", str(k)), source)
        start, left = torch.zeros(d, dtype=torch.float64), list[Tensor]()
        for t in range(1, ROUNDS + 1):
            broadcast = opened(d, PARTIES, start=start, round_=t, scores=scores)
            if isinstance(party.admit(broadcast), Refusal):
                raise AssertionError("a client without a budget is never refused")
            own = dict(zip(names, scores, strict=True))
            facts = ClientFacts(broadcast=broadcast, layout=layout(d), layer_scores=own)
            (model,) = party.release((Release("model", start + update),), facts)
            left.append(standardised(model.value - start - update, party.ledger.entries[-1].spend))
            start = model.value
        return torch.stack(left)

    return play


def _trained(side: RecordDP, d: int) -> Callable[[Source], Tensor]:
    """Silos whose records are zeros, so that gradients are: each sends the noise of its steps, of two classes."""
    deviation = side.noisy_steps.deviation * math.sqrt(side.steps) / side.noisy_steps.denominator

    def play(source: Source) -> Tensor:
        data, view = ClientData(torch.zeros(4, d), torch.zeros(4, dtype=torch.int64)), ServerView()
        Federation(
            model=torch.nn.Linear(d, 2, bias=False).double(),
            clients=[data] * PARTIES,
            method=side,
            local=LocalTraining(lr=1.0),
            initial=torch.zeros(1, 2 * d, dtype=torch.float64),
            seed=0,
            source=source,
            probes=[view],
        ).run(ROUNDS)
        left = torch.stack([(one.model - one.starts[0]).double() / deviation for one in view.received])
        return left.reshape(ROUNDS, PARTIES, 2 * d).transpose(0, 1)

    return play


def _drawn(d: int) -> Callable[[Source], Tensor]:
    """The operating system's entropy, as a deployment's parties draw it, whatever source the others have."""

    def play(source: Source) -> Tensor:
        streams = [[SecureSource().child(str(k), t) for t in range(ROUNDS)] for k in range(PARTIES)]
        return torch.stack([torch.stack([stream.normal(d) for stream in row]) for row in streams])

    return play


def _published() -> Callable[[Source], Tensor]:
    """Loss and accuracy of four clients."""
    figures, side = torch.full((4, 2), 0.5, dtype=torch.float64), GlobalDP(noise_multiplier=1.0)

    def play(source: Source) -> Tensor:
        return torch.stack([rounds_of(source.child("server", k)) for k in range(PARTIES)])

    def rounds_of(source: Source) -> Tensor:
        method, publishing = Method("noise", TrustedServer(), side), Publishing(metrics="noised", loss_range=1.0)
        server = ServerParty(method, layout(1), Ledger("noise", "server"), source, publishing=publishing)
        left = list[Tensor]()
        for t in range(1, ROUNDS + 1):
            told = server.publish(t, ("loss", "accuracy"), figures, torch.ones(4))
            residual = torch.stack([one.value for one in told]) - figures[0]
            left.append(standardised(residual, server.ledger.entries[-1].spend))
        return torch.stack(left)

    return play


def _clipped(clip: QuantileClip) -> Callable[[Source], Tensor]:
    """The noise on the share of updates within C, read off the next C; all four updates are of no length."""

    def play(source: Source) -> Tensor:
        return torch.stack([rounds_of(source.child("server", k)) for k in range(PARTIES)])

    def rounds_of(source: Source) -> Tensor:
        method = Method("noise", TrustedServer(), GlobalDP(noise_multiplier=1.0, clip=clip))
        server, left = ServerParty(method, layout(1), Ledger("noise", "server"), source), list[float]()
        broadcast, norm = server.open(torch.zeros(1, 1, dtype=torch.float64), 1, ROUNDS, 4), clip.initial
        for _ in range(ROUNDS):
            broadcast, _ = server.combine(broadcast, dict.fromkeys(range(4), (Release("model", broadcast.models[0]),)))
            assert isinstance(server.state, CentralState)
            share = clip.quantile - math.log(server.state.clip / norm) / clip.lr
            left.append((4 * share - 4) / clip.bit_noise)
            norm = server.state.clip
        return torch.tensor(left, dtype=torch.float64)[:, None]

    return play
