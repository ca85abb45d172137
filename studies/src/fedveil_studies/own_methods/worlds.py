"""Constructed worlds, played through the parties that every engine runs; two of them form a duel.

A duel is two worlds that differ in one client, as far apart as the relation permits. Each run uses fresh parties.
Clients admit the broadcast and release, and the server combines. The adversary sees what the parties handed over.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import ZCDP, Ledger, MetricDP, MetricGDP, Release, total
from fedveil.engines import ClientParty, RoundAnswers, ServerParty
from fedveil.gdp import rounded_up
from fedveil.layout import Layout
from fedveil.mechanisms import NoSource, ReproducibleSource, Source
from fedveil.methods import (
    Broadcast,
    CentralState,
    ClientFacts,
    ClientSide,
    Method,
    Plain,
    PublicFacts,
    Publishing,
    Refusal,
    Releases,
    ServerSide,
    TrustedServer,
)

ROUND, ROUNDS = 2, 10


@dataclass(frozen=True)
class Sight:
    """What the adversary sees of one run: models, metrics and the next clip (0: none); and the party."""

    models: tuple[Tensor, ...]
    clip: float
    party: ClientParty | ServerParty
    metrics: tuple[float, ...] = ()

    @property
    def moved(self) -> Tensor:
        """Sum of the models [d]."""
        return torch.stack(self.models).sum(0)


World = Callable[[Source], Sight]
Score = Callable[[Sight], float]


@dataclass(frozen=True)
class Duel:
    """Two worlds of one method, and how the adversary scores what it sees (higher: the first world).

    Attributes
    ----------
    name : str
        Name of the method and its setting.
    worlds : tuple of callable
        Two functions ``source -> Sight``, each one run: with the client (or the first of two inputs), and without.
    score : callable
        Function ``Sight -> float``.
    claimed_mu, claimed_epsilon : float, optional
        Claim of the method: mu of Gaussian DP, or an epsilon at delta 0.
    claim : str
        Claim in words.
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


def claiming(
    name: str,
    world: Callable[[Any], World],
    inside: Any,
    outside: Any,
    score: Score,
    distance: float = 1.0,
) -> Duel:
    """Make a duel with the claim of the first world's ledger; a claim over distance is taken at `distance`."""
    worlds = world(inside), world(outside)
    entries = worlds[0](ReproducibleSource(0)).party.ledger.entries
    whole, rounds = total(e.spend.guarantee for e in entries), len({e.key[0] for e in entries})
    if not whole.proven:
        return Duel(name, worlds, score)
    scope = "round" if rounds == 1 else f"total of {rounds} rounds"
    about, bound = f"{whole.relation}, client, {whole.trust}, {scope}", whole.bound
    if whole.by_distance:
        about = f"parameter vector, {whole.trust}, {scope}"
    if isinstance(bound, MetricDP):
        epsilon = whole.epsilon_at(distance, 0.0)
        return Duel(
            name,
            worlds,
            score,
            None,
            epsilon,
            f"epsilon = {rounded_up(epsilon, 3)} at delta 0 ({about})",
        )
    mu, parameter = (
        bound.mu_per_distance * distance if isinstance(bound, MetricGDP) else whole.mu,
        "",
    )
    if isinstance(bound, ZCDP):
        mu, parameter = math.sqrt(2 * bound.rho), f"rho = {rounded_up(bound.rho, 3)}, like "
    assert mu is not None
    return Duel(name, worlds, score, mu, None, f"{parameter}mu = {rounded_up(mu, 3)} ({about})")


def short(seen: Sight) -> float:
    """Score by minus the length of the model's change."""
    return -float(seen.moved.norm())


def along(direction: Tensor) -> Score:
    """Measure how far a view moved along a direction [d]."""
    return lambda seen: float(seen.moved @ direction)


def unit(d: int, at: int = 0) -> Tensor:
    """A coordinate direction [d]."""
    v = torch.zeros(d, dtype=torch.float64)
    v[at] = 1.0
    return v


def layout(d: int) -> Layout:
    """Make a layout of two layers of about equal size; of one layer if d is 1."""
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
    """Make a broadcast of one model, by default zeros."""
    public = PublicFacts(
        round=round_, rounds=ROUNDS, cohort=cohort, dimension=d, layer_scores=scores
    )
    models = torch.zeros(1, d, dtype=dtype) if start is None else start[None]
    return Broadcast(models=models, public=public)


def server_of(side: ServerSide, d: int, source: Source, **options: Any) -> ServerParty:
    """Make a fresh server party of a method, without clients."""
    return ServerParty(
        Method("game", TrustedServer(), side),
        layout(d),
        Ledger("game", "server"),
        source,
        **options,
    )


def client_of(
    side: ClientSide, d: int, source: Source, number: int = 0, **options: Any
) -> ClientParty:
    """Make a fresh client party of a method, without a server."""
    return ClientParty(
        Method("game", side, Plain()), layout(d), Ledger("game", str(number)), source, **options
    )


def admitted(party: ClientParty, releases: Releases, facts: ClientFacts) -> Tensor:
    """Return the model [d] that a client releases after it has admitted the broadcast."""
    if isinstance(party.admit(facts.broadcast), Refusal):
        raise AssertionError("a client without a budget is never refused")
    (model,) = party.release(releases, facts)
    return model.value


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
    """Make the world of a server whose clients moved by updates [n, d], and may report counts and metrics [n, 2]."""
    n, d = updates.shape
    planned = cohort or n
    facts = ClientFacts(broadcast=opened(d, planned), layout=layout(d))
    replies = {}
    for p in range(n):
        trained: Releases = (Release("model", updates[p]),)
        if counts is not None:
            trained += (Release("count", torch.tensor(counts[p], dtype=torch.float64)),)
        replies[p] = client_of(TrustedServer(), d, NoSource(), p).release(trained, facts)

    def run(source: Source) -> Sight:
        publishing = Publishing(metrics="off" if measured is None else "noised", loss_range=1.0)
        server = server_of(side, d, source, state=state, publishing=publishing)
        models, metrics = list[Tensor](), list[float]()
        for number in range(1, 1 + rounds):
            after, _ = server.combine(opened(d, planned, round_=number), RoundAnswers(replies))
            models.append(after.models[0])
            if measured is not None:
                published = server.publish(number, ("loss", "accuracy"), measured, torch.ones(n))
                metrics += [float(r.value) for r in published]
        return Sight(
            tuple(models),
            server.state.clip if isinstance(server.state, CentralState) else 0.0,
            server,
            tuple(metrics),
        )

    return run


def sent(
    side: ClientSide,
    broadcast: Broadcast,
    update: Tensor,
    *,
    state: Any = None,
    scores: dict[str, float] | None = None,
) -> World:
    """Make the world of one client that moved by an update [d] and also tries to send a count and a loss."""
    d = len(update)
    facts = ClientFacts(broadcast=broadcast, layout=layout(d), layer_scores=scores)
    others = (Release("count", torch.tensor(7.0)), Release("metric", torch.tensor(0.5), "loss"))
    releases = (Release("model", broadcast.models[0] + update), *others)

    def run(source: Source) -> Sight:
        party = client_of(side, d, source, state=state)
        model = admitted(party, releases, facts)
        return Sight((model,), 0.0, party)

    return run
