"""Client inference in a recorded run: which clients answered in each round, and which only validated."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil_lab.attacks import ATTACKS, Attack, Knowledge, Observation, ThreatError, ThreatModel
from fedveil_lab.games.recorded.pairs import Drawn
from fedveil_lab.games.recorded.stored import Stored
from fedveil_lab.games.shadows import held_out

ONE_RUN = "one run shows no other, so that nothing can be rehearsed: fedveil audit without --recorded plays it"
SERVER = ThreatModel(
    "honest-but-curious server",
    frozenset({"models", "shadow", "reference"}),
    {
        "rehearsals": ONE_RUN,
        "own updates": "a server sends none",
        "colluders": "a server needs none",
        "crafted updates": "the run is over",
        "metrics": "figures of a round are the same for all clients, and tell none apart",
    },
)
REFERENCE = 512  # examples that were held out, in all


def comparisons(
    stored: Stored,
) -> tuple[str, list[tuple[str, Observation, list[int], list[int], Tensor]]]:
    """Return a text on what is compared, and for each comparison its name, observation, members, others and first model.

    Raises
    ------
    FieldError
        If everybody took part in every stored round, or the rounds of a sampled cohort are not stored.
    """
    setup, found = stored.setup, []
    everybody = range(len(setup.clients))
    for one in stored.rounds:
        others = [partition for partition in everybody if partition not in one.replied]
        if others and len(one.replied) == setup.cohort:
            observed = Observation(torch.stack([one.starts, one.models]), setup.cohort)
            found.append(
                (f"round {one.number}", observed, list(one.replied), others, one.starts[0])
            )
    if found:
        return "who took part in a round", found
    validating = len(setup.dealt.clients) - len(setup.clients)
    if validating and setup.config.stopping is not None:
        if stored.rounds:
            start = stored.rounds[0].starts[0]
        else:
            start = setup.starts[0]
        models = torch.cat([start[None], stored.models])[:, None]
        outside = list(range(len(setup.clients), len(setup.clients) + validating))
        return "who took part in the run", [
            ("run", Observation(models, setup.cohort), list(everybody), outside, start)
        ]
    if not stored.rounds and setup.cohort < len(setup.clients):
        accepted = 'are not stored, so that nobody knows who took part in which: ServerFolder(..., keep=["models"])'
        raise FieldError("rounds", 0, accepted)
    accepted = "took part in every round: there is no client to compare with; it takes clients_per_round below their "
    accepted += "number, or clients that only validate ([stopping] clients)"
    raise FieldError("clients", len(setup.clients), accepted)


def scored(stored: Stored) -> tuple[str, Iterator[tuple[str, list[Drawn]]], dict[str, str]]:
    """Return the question, the scores by attack, and the attacks that cannot be played with the reasons.

    Raises
    ------
    FieldError
        See `comparisons`.
    """
    asked, compared = comparisons(stored)
    without: dict[str, str] = {}
    kinds: dict[str, type[Attack]] = {}
    for name, kind in ATTACKS.items():
        try:
            SERVER.require(name, kind.needs)
            kinds[name] = kind
        except ThreatError as error:
            without[name] = str(error)

    def each() -> Iterator[tuple[str, list[Drawn]]]:
        for name, kind in kinds.items():
            try:
                yield name, [_one(stored, kind, *one[1:]) for one in compared]
            except ThreatError as error:
                without[name] = str(error)

    return asked, each(), without


def _one(
    stored: Stored,
    kind: type[Attack],
    observed: Observation,
    inside: list[int],
    outside: list[int],
    start: Tensor,
) -> Drawn:
    """Score both sides of a comparison; all clients form one stratum, as the server drew them."""
    learner = stored.setup.learner
    x, y = held_out(stored.setup.clients)
    if len(x):
        reference = ClientData(x[:REFERENCE], y[:REFERENCE])
    else:
        reference = None
    known = Knowledge(
        learner.model,
        learner.layout,
        learner.local.loss,
        shadow=stored.setup.everybody[0],
        reference=reference,
        outsider=start,
    )
    if reference is not None:
        able = SERVER
    else:
        able = _without_reference()
    scores = []
    for partition in (*inside, *outside):
        data = stored.setup.everybody[partition]
        about = replace(known, shadow=ClientData(data.x, data.y))
        attack = kind(about, able)
        scores.append(attack.evidence(attack.run(observed))[-1])
    together = torch.stack(scores)
    sides = together[: len(inside)], together[len(inside) :]
    keys = (torch.zeros(len(side), dtype=torch.int64) for side in sides)
    return Drawn(*sides, *keys)


def _without_reference() -> ThreatModel:
    lacking = {**SERVER.lacking, "reference": "clients hold nothing out"}
    return ThreatModel(SERVER.who, SERVER.capabilities - {"reference"}, lacking)
