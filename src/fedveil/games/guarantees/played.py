"""What is left of the releases of every kind of party, played over rounds on inputs whose release is known."""

import math
from collections.abc import Callable
from typing import Any

import scipy
import torch
from torch import Tensor

from fedveil.accounting import Ledger, Release, Spend
from fedveil.attacks.observation import ServerView
from fedveil.clipping import QuantileClip
from fedveil.engines import ClientParty, Evaluation, Federation, ServerParty, Shared
from fedveil.errors import FieldError
from fedveil.games.guarantees.worlds import ROUNDS, layout, opened, unit
from fedveil.learning import ClientData, LocalTraining
from fedveil.mechanisms import SecureSource, Source
from fedveil.methods import (
    ClientFacts,
    ClientSide,
    GlobalDP,
    Method,
    Plain,
    Publishing,
    RecordDP,
    Refusal,
    ServerSide,
    TrustedServer,
)
from fedveil.methods.central import CentralState

PARTIES = 20  # of each method: servers of federations of their own, or clients of one
Play = Callable[[Source], Tensor]  # residuals [parties, rounds, coordinates] over their declared deviation


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


def by_servers(side: ServerSide, d: int, left: Callable[[ServerParty], list[Tensor]], **options: Any) -> Play:
    """What each of several servers of federations of their own leaves, round by round."""

    def play(source: Source) -> Tensor:
        method = Method("noise", TrustedServer(), side)
        sources = [source.child("server", k) for k in range(PARTIES)]
        servers = [ServerParty(method, layout(d), Ledger("noise", "server"), one, **options) for one in sources]
        return torch.stack([torch.stack(left(server)) for server in servers])

    return play


def served_noise(side: ServerSide, d: int, cohort: int = 4, apart: float = 0.01) -> Play:
    """Clients lie in pairs on either side of one update, a little apart."""
    update = torch.full((d,), 0.02 / math.sqrt(d), dtype=torch.float64)
    updates = torch.stack([update + apart * (-1) ** p * unit(d, d - 1) for p in range(cohort)])

    def left(server: ServerParty) -> list[Tensor]:
        broadcast, found = server.open(torch.zeros(1, d, dtype=torch.float64), 1, ROUNDS, cohort), []
        for _ in range(ROUNDS):
            before = broadcast.models[0]
            replies = {p: (Release("model", before + updates[p]),) for p in range(cohort)}
            broadcast, _ = server.combine(broadcast, replies)
            found.append(standardised(broadcast.models[0] - before - update, server.ledger.entries[-1].spend))
        return found

    return by_servers(side, d, left)


def sent_noise(side: ClientSide, d: int) -> Play:
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


def trained_noise(side: RecordDP, d: int) -> Play:
    """Silos whose records are zeros, so that gradients are: each sends the noise of its steps, of two classes."""
    deviation = side.noisy_steps.deviation * math.sqrt(side.steps) / side.noisy_steps.denominator

    def play(source: Source) -> Tensor:
        zeros = torch.zeros(4, dtype=torch.int64)
        data, view = ClientData(torch.zeros(4, d), zeros, person=torch.arange(4)), ServerView()
        Federation(
            model=torch.nn.Linear(d, 2, bias=False).double(),
            clients=[data] * PARTIES,
            method=side,
            local=LocalTraining(lr=1.0),
            shared=Shared(initial=torch.zeros(1, 2 * d, dtype=torch.float64)),
            seed=0,
            source=source,
            evaluation=Evaluation(probes=[view]),
        ).run(ROUNDS)
        left = torch.stack([(one.model - one.starts[0]).double() / deviation for one in view.received])
        return left.reshape(ROUNDS, PARTIES, 2 * d).transpose(0, 1)

    return play


def drawn_noise(d: int) -> Play:
    """The operating system's entropy, as a deployment's parties draw it, whatever source the others have."""

    def play(source: Source) -> Tensor:
        streams = [[SecureSource().child(str(k), t) for t in range(ROUNDS)] for k in range(PARTIES)]
        return torch.stack([torch.stack([stream.normal(d) for stream in row]) for row in streams])

    return play


def published_noise() -> Play:
    """Loss and accuracy of four clients."""
    figures = torch.full((4, 2), 0.5, dtype=torch.float64)

    def left(server: ServerParty) -> list[Tensor]:
        found = []
        for t in range(1, ROUNDS + 1):
            published = server.publish(t, ("loss", "accuracy"), figures, torch.ones(4))
            residual = torch.stack([one.value for one in published]) - figures[0]
            found.append(standardised(residual, server.ledger.entries[-1].spend))
        return found

    publishing = Publishing(metrics="noised", loss_range=1.0)
    return by_servers(GlobalDP(noise_multiplier=1.0), 1, left, publishing=publishing)


def clip_noise(clip: QuantileClip) -> Play:
    """The noise on the share of updates within C, read off the next C; all four updates are of no length."""

    def left(server: ServerParty) -> list[Tensor]:
        broadcast, norm = server.open(torch.zeros(1, 1, dtype=torch.float64), 1, ROUNDS, 4), clip.initial
        found = list[Tensor]()
        for _ in range(ROUNDS):
            broadcast, _ = server.combine(broadcast, dict.fromkeys(range(4), (Release("model", broadcast.models[0]),)))
            assert isinstance(server.state, CentralState)
            share = clip.quantile - math.log(server.state.clip / norm) / clip.lr
            found.append(torch.tensor([(4 * share - 4) / clip.bit_noise], dtype=torch.float64))
            norm = server.state.clip
        return found

    return by_servers(GlobalDP(noise_multiplier=1.0, clip=clip), 1, left)
