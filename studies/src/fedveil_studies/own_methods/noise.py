"""Test the noise of every method: its parties play ten rounds, and the residuals of their releases are tested.

The game knows one round; noise that is missing in another, or is used again, passes it. Here inputs are such that a
release without its noise is known: updates shorter than C whose mean, median and trimmed mean are one vector. What is
left of each release, over the deviation that the party's own ledger declares, has to be independent standard normal
numbers (see `fedveil_lab.attacks.residuals`); the radius of Euclidean Laplace noise is mapped to that of a normal
vector.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import scipy
import torch
from torch import Tensor

from fedveil.accounting import Release, Spend
from fedveil.aggregation import FedMedian, Krum, TrimmedMean
from fedveil.clipping import QuantileClip
from fedveil.engines import Evaluation, Federation, RoundAnswers, ServerParty, Shared
from fedveil.errors import FieldError
from fedveil.learning import ClientData, LocalTraining
from fedveil.mechanisms import SecureSource, Source
from fedveil.methods import (
    SGALDP,
    STEPS,
    CentralState,
    ClientFacts,
    ClientSide,
    FedRE,
    GlobalDP,
    GroupPrivacy,
    MetricPrivacy,
    Publishing,
    RecordDP,
    Releases,
    ServerSide,
)
from fedveil_lab.attacks.inversion.knowledge import deviations_of, noise_of
from fedveil_lab.attacks.observation import ServerView
from fedveil_lab.attacks.residuals import Departure, departures
from fedveil_studies.own_methods.worlds import (
    ROUNDS,
    admitted,
    client_of,
    layout,
    opened,
    server_of,
    unit,
)

LEVEL = 1e-3  # chance of a false alarm in all rows of one call together, at most
PARTIES = 20  # of each method: servers of federations of their own, or clients of one
Play = Callable[
    [Source], Tensor
]  # residuals [parties, rounds, coordinates] over their declared deviation


def standardised(residual: Tensor, spend: Spend) -> Tensor:
    """Divide a release's residual [d] by its declared deviation; it is standard normal if the noise is as declared.

    Raises
    ------
    FieldError
        If the ledger declares no noise.
    """
    if not spend.scale:
        raise FieldError(
            "scale", spend.scale, "the ledger declares no noise: there is nothing to test"
        )
    if spend.mechanism == "euclidean-laplace":
        return _normal(residual * spend.scale[0])
    if len(spend.scale) in (1, len(residual)):
        return residual / torch.tensor(spend.scale, dtype=torch.float64)
    shape = layout(len(residual))
    return residual / deviations_of(noise_of(spend, shape), shape)


def _normal(noise: Tensor) -> Tensor:
    """Map Euclidean Laplace noise at epsilon 1, with radius Gamma(d), to a normal vector of the same direction."""
    d, radius = len(noise), float(noise.norm())
    if scipy.special.gammainc(d, radius) < 0.5:
        length = math.sqrt(2 * scipy.special.gammaincinv(d / 2, scipy.special.gammainc(d, radius)))
    else:
        length = math.sqrt(
            2 * scipy.special.gammainccinv(d / 2, scipy.special.gammaincc(d, radius))
        )
    return noise * (length / radius) if radius else noise


def by_servers(
    side: ServerSide, d: int, played: Callable[[ServerParty], list[Tensor]], **options: Any
) -> Play:
    """Residuals of several servers of federations of their own; `played` has those of one, round by round."""

    def play(source: Source) -> Tensor:
        servers = [server_of(side, d, source.child("server", k), **options) for k in range(PARTIES)]
        return torch.stack([torch.stack(played(server)) for server in servers])

    return play


def served_noise(side: ServerSide, d: int, cohort: int = 4, apart: float = 0.01) -> Play:
    """Make residuals of a server whose clients lie in pairs on either side of one update, `apart` from it."""
    update = torch.full((d,), 0.02 / math.sqrt(d), dtype=torch.float64)
    updates = torch.stack([update + apart * (-1) ** p * unit(d, d - 1) for p in range(cohort)])

    def played(server: ServerParty) -> list[Tensor]:
        broadcast, residuals = (
            server.open(torch.zeros(1, d, dtype=torch.float64), 1, ROUNDS, cohort),
            [],
        )
        for _ in range(ROUNDS):
            before = broadcast.models[0]
            replies: dict[int, Releases] = {
                p: (Release("model", before + updates[p]),) for p in range(cohort)
            }
            broadcast, _ = server.combine(broadcast, RoundAnswers(replies))
            residuals.append(
                standardised(broadcast.models[0] - before - update, server.ledger.entries[-1].spend)
            )
        return residuals

    return by_servers(side, d, played)


def sent_noise(side: ClientSide, d: int) -> Play:
    """Make residuals of clients of one federation, each of which starts a round at its own last release."""
    update, names = (
        torch.full((d,), 0.02 / math.sqrt(d), dtype=torch.float64),
        list(layout(d).groups("module")),
    )
    scores = (1.0, 3.0)[: len(names)]

    def play(source: Source) -> Tensor:
        return torch.stack([rounds_of(k, source) for k in range(PARTIES)])

    def rounds_of(k: int, source: Source) -> Tensor:
        party = client_of(side, d, source, k)
        start, residuals = torch.zeros(d, dtype=torch.float64), list[Tensor]()
        for t in range(1, ROUNDS + 1):
            broadcast = opened(d, PARTIES, start=start, round_=t, scores=scores)
            own = dict(zip(names, scores, strict=True))
            facts = ClientFacts(broadcast=broadcast, layout=layout(d), layer_scores=own)
            model = admitted(party, (Release("model", start + update),), facts)
            residuals.append(standardised(model - start - update, party.ledger.entries[-1].spend))
            start = model
        return torch.stack(residuals)

    return play


def trained_noise(side: RecordDP, d: int) -> Play:
    """Play silos whose records, and so gradients, are zero: each sends only its steps' noise (two classes)."""
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
        noise = torch.stack(
            [(one.model - one.starts[0]).double() / deviation for one in view.received]
        )
        return noise.reshape(ROUNDS, PARTIES, 2 * d).transpose(0, 1)

    return play


def drawn_noise(d: int) -> Play:
    """Make residuals of noise from the operating system's entropy, as in a deployment, whatever the given source."""

    def play(source: Source) -> Tensor:
        streams = [[SecureSource().child(str(k), t) for t in range(ROUNDS)] for k in range(PARTIES)]
        return torch.stack([torch.stack([stream.normal(d) for stream in row]) for row in streams])

    return play


def published_noise() -> Play:
    """Make residuals of the published loss and accuracy of four clients."""
    figures = torch.full((4, 2), 0.5, dtype=torch.float64)

    def played(server: ServerParty) -> list[Tensor]:
        residuals = []
        for t in range(1, ROUNDS + 1):
            published = server.publish(t, ("loss", "accuracy"), figures, torch.ones(4))
            residual = torch.stack([one.value for one in published]) - figures[0]
            residuals.append(standardised(residual, server.ledger.entries[-1].spend))
        return residuals

    publishing = Publishing(metrics="noised", loss_range=1.0)
    return by_servers(GlobalDP(noise_multiplier=1.0), 1, played, publishing=publishing)


def clip_noise(clip: QuantileClip) -> Play:
    """The noise on the share of updates within C, read off the next C; all four updates are of no length."""

    def played(server: ServerParty) -> list[Tensor]:
        broadcast, norm = (
            server.open(torch.zeros(1, 1, dtype=torch.float64), 1, ROUNDS, 4),
            clip.initial,
        )
        residuals = list[Tensor]()
        for _ in range(ROUNDS):
            unmoved: Releases = (Release("model", broadcast.models[0]),)
            broadcast, _ = server.combine(broadcast, RoundAnswers(dict.fromkeys(range(4), unmoved)))
            assert isinstance(server.state, CentralState)
            share = clip.quantile - math.log(server.state.clip / norm) / clip.lr
            residuals.append(torch.tensor([(4 * share - 4) / clip.bit_noise], dtype=torch.float64))
            norm = server.state.clip
        return residuals

    return by_servers(GlobalDP(noise_multiplier=1.0, clip=clip), 1, played)


@dataclass(frozen=True)
class NoiseGame:
    """Test of one method's noise.

    Attributes
    ----------
    name : str
        Name of the method and its setting.
    play : callable
        Function ``source -> [parties, rounds, coordinates]`` that returns residuals over their declared deviation.
    resolution : float
        Width of the noise's grid, in deviations.
    """

    name: str
    play: Play
    resolution: float = 1e-12

    def examine(self, source: Source) -> Departure:
        """Return the test that fits the declared noise least."""
        return departures(self.play(source), self.resolution)[0]


def methods(d: int) -> list[NoiseGame]:
    """Make the noise tests of every method that adds noise, at dimension d."""
    z: dict[str, Any] = {"noise_multiplier": 1.0, "clip": 1.0}
    moving = QuantileClip(initial=1.0, quantile=0.5, lr=0.2, bit_noise=1.0)
    played = [
        NoiseGame("global DP, FedAvg", served_noise(GlobalDP(**z), d)),
        NoiseGame(
            "global DP, FedAvg, a client replaced",
            served_noise(GlobalDP(**z, relation="replace-one"), d),
        ),
        NoiseGame("global DP, FedAvg, as printed", served_noise(GlobalDP(**z, order="printed"), d)),
        NoiseGame("global DP, FedMedian", served_noise(GlobalDP(FedMedian(), **z), d)),
        NoiseGame("global DP, TrimmedMean", served_noise(GlobalDP(TrimmedMean(0.25), **z), d)),
        NoiseGame(
            "global DP, Krum",
            served_noise(GlobalDP(Krum(malicious=1), **z), d, cohort=7, apart=0.0),
        ),
        NoiseGame(
            "global DP, discrete noise",
            served_noise(GlobalDP(**z, noise="discrete"), d, apart=0.0),
            1 / STEPS,
        ),
        NoiseGame(
            "global DP, adaptive clipping",
            served_noise(GlobalDP(noise_multiplier=1.0, clip=moving), d),
        ),
        NoiseGame(
            "metric privacy, scale from releases",
            served_noise(MetricPrivacy(**z, distance_on="released"), d),
        ),
        NoiseGame(
            "metric privacy, as printed", served_noise(MetricPrivacy(**z, order="printed"), d)
        ),
        NoiseGame("group privacy, as printed", sent_noise(GroupPrivacy(noise_multiplier=1.0), d)),
        NoiseGame(
            "group privacy, public radius",
            sent_noise(GroupPrivacy(noise_multiplier=float(d), radius=1.0), d),
        ),
        NoiseGame("FedRE, as printed", sent_noise(FedRE(epsilon=50.0, clip=1.0), d)),
        NoiseGame(
            "FedRE, mu split by public scores",
            sent_noise(FedRE(epsilon=50.0, clip=1.0, scores="public"), d),
        ),
        NoiseGame("SGA-LDP, as printed", sent_noise(SGALDP(), d)),
        NoiseGame("SGA-LDP, released similarity", sent_noise(SGALDP(similarity="released"), d)),
        NoiseGame("SGA-LDP, noised similarity", sent_noise(SGALDP(similarity="noised"), d)),
        NoiseGame(
            "record-level DP, two steps",
            trained_noise(RecordDP(examples=4, noise_multiplier=1.0, steps=2), d),
        ),
        NoiseGame(
            "person-level DP",
            trained_noise(
                RecordDP(unit="person", people=4, records_per_person=2, noise_multiplier=1.0), d
            ),
        ),
        NoiseGame("secure source", drawn_noise(d)),
    ]
    if d == 1:
        played += [
            NoiseGame("published metrics", published_noise()),
            NoiseGame("adaptive clipping, the next norm", clip_noise(moving)),
        ]
    return played
