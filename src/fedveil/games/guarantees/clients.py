"""The worst-case worlds of every method on the client, played through its party; the adversary is the server."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedveil.accounting import Ledger, Release
from fedveil.engines import ClientParty
from fedveil.games.guarantees.worlds import ROUND, Duel, Sight, World, claiming, layout, opened, unit
from fedveil.mechanisms import ReproducibleSource, Source
from fedveil.methods import SGALDP, Broadcast, ClientFacts, ClientSide, FedRE, GroupPrivacy, Method, Plain, Refusal
from fedveil.methods.sga_ldp import LastBroadcast


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


def cases_of_clients(d: int) -> list[Duel]:
    """Every method on the client at dimension d."""
    return [*_group(d), *_fedre(d), *_sga(d)]


def _group(d: int) -> list[Duel]:
    """A long and a short step; with a public radius, epsilon 1 a unit of distance, models at distance sqrt(d)."""
    e, facts, apart = unit(d), opened(d, 4), math.sqrt(d)
    printed, sound = GroupPrivacy(noise_multiplier=1.0), GroupPrivacy(noise_multiplier=float(d), radius=1.0)
    return [
        claiming(
            "group privacy, as printed",
            (sent(printed, e, facts), sent(printed, 2 * e, facts)),
            lambda seen: -float(seen.moved.norm()),
        ),
        claiming(
            f"group privacy, public radius, models at distance {apart:.3g}",
            (sent(sound, apart * e, facts), sent(sound, 0 * e, facts)),
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
        claiming(
            "FedRE, mu split by public scores",
            (sent(sound, update, facts), sent(sound, -update, facts)),
            lambda seen: sum(w * float(seen.moved[at]) for w, at in zip(weights, starts, strict=True)),
        )
    ]
    if len(names) == 1:  # one layer has nothing to split
        return found
    printed = FedRE(epsilon=50.0, clip=1.0)
    regions = ({names[0]: 1.0, names[1]: s} for s in (2.0, 1.0))  # a higher score widens b's noise and narrows a's
    worlds = tuple(sent(printed, unit(d), facts, scores=scores) for scores in regions)
    score = lambda seen: float(seen.moved[half:].norm() - seen.moved[:half].norm())  # noqa: E731
    return [claiming("FedRE, as printed", worlds, score), *found]  # type: ignore[arg-type]


def _sga(d: int) -> list[Duel]:
    """An aligned update against another; in the sound variants two opposite updates, the noise at its least."""
    e, reference = unit(d), unit(d, d - 1)
    facts = opened(d, 4, start=reference)
    state = LastBroadcast(ROUND - 1, 0 * reference, reference.clone())
    printed, sound, charged = SGALDP(), SGALDP(similarity="released"), SGALDP(similarity="noised")
    aligned = replace(state, similarity=1.0)
    variance = sent(charged, e, facts, state=aligned)(ReproducibleSource(0)).party.ledger.entries[0].spend.scale[0] ** 2
    other = -reference if d == 1 else e
    return [
        claiming(
            "SGA-LDP, as printed",
            (sent(printed, reference, facts, state=state), sent(printed, other, facts, state=state)),
            lambda seen: -float((seen.moved - reference).norm()),
        ),
        claiming(
            "SGA-LDP, released similarity",
            (sent(sound, e, facts, state=state), sent(sound, -e, facts, state=state)),
            lambda seen: float(seen.moved @ e),
        ),
        claiming(  # the next release's noise shows the noised similarity, which is handed over here as it is
            "SGA-LDP, noised similarity",
            (sent(charged, reference, facts, state=aligned), sent(charged, -reference, facts, state=aligned)),
            lambda seen: 2 * float(seen.moved @ reference) / variance + seen.party.state.similarity,
        ),
    ]
