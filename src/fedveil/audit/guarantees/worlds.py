"""The worst-case worlds of every method, played through the parties that every engine runs.

A case is two worlds that differ in one client, as far apart as the relation permits. Each run takes fresh parties: the
clients admit the broadcast and release, the server combines; what the adversary sees is what was handed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Ledger, Release, total
from fedveil.aggregation import FedAdam, FedAvg, FedMedian, Krum, TrimmedMean
from fedveil.clipping import QuantileClip
from fedveil.engines import ClientParty, ServerParty
from fedveil.gdp import rounded_up
from fedveil.layout import Layout
from fedveil.mechanisms import NoSource, ReproducibleSource, Source
from fedveil.methods import (
    SGALDP,
    Broadcast,
    ClientFacts,
    ClientSide,
    FedRE,
    GlobalDP,
    GroupPrivacy,
    Method,
    MetricPrivacy,
    Plain,
    PublicFacts,
    Publishing,
    Refusal,
    Releases,
    ServerFacts,
    ServerSide,
    TrustedServer,
)
from fedveil.methods.sga_ldp import LastBroadcast

ROUND, ROUNDS = 2, 10


@dataclass(frozen=True)
class Sight:
    """What the adversary sees of one run: models, metrics and the next clipping norm (0: none); and the party."""

    models: tuple[Tensor, ...]
    clip: float
    party: ClientParty | ServerParty
    metrics: tuple[float, ...] = ()

    @property
    def moved(self) -> Tensor:
        """The sum of the models [d]."""
        return torch.stack(self.models).sum(0)


World = Callable[[Source], Any]  # Sight, or of `crowd` the round's Combined
Score = Callable[[Any], float]


@dataclass(frozen=True)
class Duel:
    """Two worlds of one method, and how the adversary scores what it sees (higher: the second world).

    Attributes
    ----------
    name : str
        The method and its setting.
    worlds : tuple of callable
        ``source -> Sight``, one run each.
    score : callable
        ``Sight -> float``.
    claimed_mu, claimed_epsilon : float, optional
        What it claims, in Gaussian DP or as an epsilon at delta 0.
    claim : str
        The same in words.
    """

    name: str
    worlds: tuple[World, World]
    score: Score
    claimed_mu: float | None = None
    claimed_epsilon: float | None = None
    claim: str = "none (heuristic)"

    @property
    def proven(self) -> bool:
        """Whether the method claims anything."""
        return self.claimed_mu is not None or self.claimed_epsilon is not None


def cases(d: int) -> list[Duel]:
    """Every method at dimension d."""
    return [*_proven_central(d), *_adaptive_central(d), *_heuristic_central(d), *_local(d)]


def unit(d: int, at: int = 0) -> Tensor:
    """A coordinate direction [d]."""
    v = torch.zeros(d, dtype=torch.float64)
    v[at] = 1.0
    return v


def layout(d: int) -> Layout:
    """Two layers of about equal size; one where there is one coordinate."""
    shapes = {"a.weight": (d // 2,), "b.weight": (d - d // 2,)} if d > 1 else {"a.weight": (1,)}
    return Layout.from_shapes(shapes, torch.float64)


def opened(
    d: int,
    cohort: int,
    *,
    start: Tensor | None = None,
    round_: int = ROUND,
    scores: Any = None,
    dtype: torch.dtype = torch.float64,
) -> Broadcast:
    """A broadcast of one model, zeros if none is given."""
    public = PublicFacts(round=round_, rounds=ROUNDS, cohort=cohort, dimension=d, layer_scores=scores)
    models = torch.zeros(1, d, dtype=dtype) if start is None else start[None]
    return Broadcast(models=models, public=public)


# ---- many clients


def straddling(n: int) -> Tensor:
    """Updates [n, 1] (float32, C = 1) by which one client moves a float32 mean furthest, the first client's being 0.

    Half of the others bring the sum to just below a power of two, where the first client's update would carry it
    beyond. There the spacing of floats doubles: the others then move the sum up and down by about one spacing, which
    leaves it where it is below, and rounds it up every time above. Sums grow apart by one spacing with each client.
    """
    edge, weight = torch.tensor(0.5), torch.tensor(1 / n)
    unit = float(edge) * 2.0**-24
    rows, total = torch.zeros(n), torch.zeros(())
    for i in range(1, n // 2 + 16):
        rows[i] = min(1.0, float((edge - 4 * unit - total) / weight))
        total.add_(rows[i], alpha=float(weight))
    rest = torch.arange(n - n // 2 - 16)
    rows[n // 2 + 16 :] = torch.where(rest % 2 == 0, 1.05 * unit * n, -0.95 * unit * n)
    return rows[:, None]


def crowd(n: int) -> Duel:
    """The mean of many clients, of whom all but one are the adversary's: whether that one stays away, or moves by C."""
    side, absent = GlobalDP(noise_multiplier=1.0, clip=1.0), straddling(n)
    facts = ServerFacts(broadcast=opened(1, n, dtype=torch.float32), layout=layout(1), partitions=tuple(range(n)))
    others = [(Release("model", row),) for row in absent[1:]]

    def world(first: float) -> World:
        replies = [(Release("model", torch.tensor([first])),), *others]
        return lambda source: side.combine(replies, facts, side.init(1, torch.float32), source)

    worlds = (world(0.0), world(1.0))
    mu = worlds[0](ReproducibleSource(0)).spend.guarantee.mu
    claim = f"mu = {rounded_up(mu, 3)} (zero-out, client, central, round)"
    return Duel(f"global DP, FedAvg, {n:,} clients", worlds, lambda seen: float(seen.models[0, 0]), mu, claim=claim)


# ---- the server


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
                told = server.publish(number, ("loss", "accuracy"), measured, torch.ones(n))
                metrics += [float(r.value) for r in told]
        return Sight(tuple(models), getattr(server.state, "clip", 0.0), server, tuple(metrics))

    return run


def central(name: str, worlds: tuple[World, World], score: Score) -> Duel:
    """A case of the server, with the claim that its own ledger makes."""
    entries = worlds[1](ReproducibleSource(0)).party.ledger.entries
    whole = total(e.spend.guarantee for e in entries)
    if not whole.proven:
        return Duel(name, worlds, score)
    mu = math.sqrt(2 * (whole.rho or 0.0)) if whole.mu is None else whole.mu
    parameter = f"mu = {rounded_up(mu, 3)}"
    if whole.mu is None:
        parameter = f"rho = {rounded_up(whole.rho or 0.0, 3)}, like {parameter}"
    rounds = len({e.key[0] for e in entries})
    scope = "round" if rounds == 1 else f"total of {rounds} rounds"
    return Duel(name, worlds, score, claimed_mu=mu, claim=f"{parameter} ({whole.relation}, client, central, {scope})")


def _along(d: int) -> Score:
    e = unit(d)
    return lambda seen: float(seen.moved @ e)


def _proven_central(d: int) -> list[Duel]:
    """Fixed noise, C = 1, z = 1, four clients unless the rule needs others."""
    e, zero = unit(d), torch.zeros(d, dtype=torch.float64)

    def case(name: str, first: Sequence[Tensor], second: Sequence[Tensor], **options: Any) -> Duel:
        rule, played = options.pop("rule", FedAvg()), {k: options.pop(k) for k in ("rounds", "counts") if k in options}
        side, cohort = GlobalDP(rule, noise_multiplier=1.0, clip=1.0, **options), len(second)
        worlds = tuple(served(side, torch.stack(list(w)), cohort=cohort, **played) for w in (first, second))
        return central(f"global DP, {name}", worlds, _along(d))  # type: ignore[arg-type]

    here, gone, swapped = ((first, zero, zero, zero) for first in (e, zero, -e))
    bounded = FedAvg("examples", max_examples=100)
    krum = (-e, -e, -e, e, e, e)
    return [
        case("FedAvg", gone, here),
        case("FedAvg, three rounds", gone, here, rounds=3),
        case("FedAvg, a client replaced", swapped, here, relation="replace-one"),
        case("FedAvg, a client stays away", gone[1:], here, relation="add/remove"),
        case("FedAvg by examples", swapped, here, relation="replace-one", rule=bounded, counts=[1e15, 1, 1, 1]),
        case("FedAvg, discrete noise", gone, here, noise="discrete"),
        case("FedMedian", (zero, zero, e), (e, zero, e), rule=FedMedian()),
        case("FedMedian, as printed", (zero, zero, e, e), (e, zero, e, e), rule=FedMedian(), order="printed"),
        case("TrimmedMean", (zero, zero, e, e), (e, zero, e, e), rule=TrimmedMean(0.25)),
        case("Krum", (*krum, -e), (*krum, e), rule=Krum(malicious=1), relation="replace-one"),
        case("FedAdam", gone, here, rule=FedAdam()),
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

    def told(seen: Sight) -> float:
        """The same of the model and of two metrics (sigma = sqrt(2)/8, each moved by 1/8)."""
        return 4 * float(seen.moved @ e) + 4 * (sum(seen.metrics) - 1)

    far = 10 * (unit(d) + unit(d, d - 1))  # how far the model moved: beyond the public range, whose end costs the most
    state = replace(released.init(d, torch.float64), released=far)
    return [
        central(
            "global DP, adaptive clipping, with the next norm", (served(moving, gone), served(moving, here)), joint
        ),
        central(
            "global DP, with published metrics",
            (served(plain, gone, measured=nobody), served(plain, here, measured=somebody)),
            told,
        ),
        central(
            "metric privacy, scale from releases",
            (served(released, gone, state=state), served(released, here, state=state)),
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
        central(
            "global DP, FedAdam, as printed",
            (served(adam, torch.stack([zero] * 4)), served(adam, torch.stack([spread, zero, zero, zero]))),
            lambda seen: float(seen.moved @ spread),
        ),
        central(
            "metric privacy, as printed",
            (served(metric, near), served(metric, far)),
            lambda seen: -float(seen.moved.norm()),
        ),
    ]


# ---- clients; the adversary is the server


def sent(
    side: ClientSide, update: Tensor, broadcast: Broadcast, *, state: Any = None, scores: dict[str, float] | None = None
) -> World:
    """The world of one client that moved by an update [d]; beside its model it tries to send a count and a loss."""
    shape = layout(len(update))
    facts = ClientFacts(broadcast=broadcast, layout=shape, layer_scores=scores)
    others = (Release("count", torch.tensor(7.0)), Release("metric", torch.tensor(0.5), "loss"))
    releases = (Release("model", broadcast.models[0] + update), *others)

    def run(source: Source) -> Sight:
        party = ClientParty(Method("game", side, Plain()), shape, Ledger("game", "0"), source, state=state)
        if isinstance(party.admit(broadcast), Refusal):
            raise AssertionError("a client without a budget is never refused")
        (model,) = party.release(releases, facts)
        return Sight((model.value,), 0.0, party)

    return run


def local(name: str, worlds: tuple[World, World], score: Score, distance: float = 1.0) -> Duel:
    """A case of a client, with the claim that its own ledger makes."""
    guarantee = worlds[1](ReproducibleSource(0)).party.ledger.entries[0].spend.guarantee
    if not guarantee.proven:
        return Duel(name, worlds, score)
    if guarantee.mu is not None:
        claim = f"mu = {rounded_up(guarantee.mu, 3)} ({guarantee.relation}, client, local, round)"
        return Duel(name, worlds, score, claimed_mu=guarantee.mu, claim=claim)
    if guarantee.mu_per_distance is not None:
        mu = guarantee.mu_per_distance * distance
        claim = f"mu = {rounded_up(mu, 3)} (parameter vector, local, round)"
        return Duel(name, worlds, score, claimed_mu=mu, claim=claim)
    epsilon = guarantee.epsilon_at(distance, 0.0)
    claim = f"epsilon = {rounded_up(epsilon, 3)} at delta 0 (parameter vector, local, round)"
    return Duel(name, worlds, score, claimed_epsilon=epsilon, claim=claim)


def _local(d: int) -> list[Duel]:
    return [*_group(d), *_fedre(d), *_sga(d)]


def _group(d: int) -> list[Duel]:
    """A long and a short step; with a public radius, epsilon 1 a unit of distance, models at distance sqrt(d)."""
    e, facts, apart = unit(d), opened(d, 4), math.sqrt(d)
    printed, sound = GroupPrivacy(noise_multiplier=1.0), GroupPrivacy(noise_multiplier=float(d), radius=1.0)
    return [
        local(
            "group privacy, as printed",
            (sent(printed, 2 * e, facts), sent(printed, e, facts)),
            lambda seen: -float(seen.moved.norm()),
        ),
        local(
            f"group privacy, public radius, models at distance {apart:.3g}",
            (sent(sound, 0 * e, facts), sent(sound, apart * e, facts)),
            lambda seen: float(seen.moved.norm() - (seen.moved - apart * e).norm()),
            apart,
        ),
    ]


def _fedre(d: int) -> list[Duel]:
    """The same update, another sensitive region; with public scores two opposite updates, of full length a layer."""
    names, half = list(layout(d).groups("module")), d // 2
    facts = opened(d, 4, scores=(1.0, 3.0)[: len(names)])
    starts = [0] if len(names) == 1 else [0, half]
    update = torch.stack([unit(d, at) for at in starts]).sum(0)
    sound = FedRE(epsilon=50.0, clip=1.0, scores="public")
    scale = sent(sound, update, facts)(ReproducibleSource(0)).party.ledger.entries[0].spend.scale
    weights = [1 / s**2 for s in scale]
    found = [
        local(
            "FedRE, mu split by public scores",
            (sent(sound, -update, facts), sent(sound, update, facts)),
            lambda seen: sum(w * float(seen.moved[at]) for w, at in zip(weights, starts, strict=True)),
        )
    ]
    if len(names) == 1:  # one layer has nothing to split
        return found
    printed = FedRE(epsilon=50.0, clip=1.0)
    regions = ({names[0]: 1.0, names[1]: s} for s in (1.0, 2.0))  # a higher score widens b's noise and narrows a's
    worlds = tuple(sent(printed, unit(d), facts, scores=scores) for scores in regions)
    score = lambda seen: float(seen.moved[half:].norm() - seen.moved[:half].norm())  # noqa: E731
    return [local("FedRE, as printed", worlds, score), *found]  # type: ignore[arg-type]


def _sga(d: int) -> list[Duel]:
    """An aligned update against another; by released similarity two opposite updates, the noise at its least."""
    e, reference = unit(d), unit(d, d - 1)
    facts = opened(d, 4, start=reference)
    state = LastBroadcast(ROUND - 1, 0 * reference, reference.clone())
    printed, sound = SGALDP(), SGALDP(similarity="released")
    other = -reference if d == 1 else e
    return [
        local(
            "SGA-LDP, as printed",
            (sent(printed, other, facts, state=state), sent(printed, reference, facts, state=state)),
            lambda seen: -float((seen.moved - reference).norm()),
        ),
        local(
            "SGA-LDP, released similarity",
            (sent(sound, -e, facts, state=state), sent(sound, e, facts, state=state)),
            lambda seen: float(seen.moved @ e),
        ),
    ]
