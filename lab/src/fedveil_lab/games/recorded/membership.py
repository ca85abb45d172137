"""Membership attacks on records and persons of a recorded run, without training."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedveil.errors import FieldError
from fedveil.learning import ClientData
from fedveil_lab.attacks.membership import MEMBERSHIPS, ServerRecords, by_round_and_client
from fedveil_lab.attacks.membership.records import Pairs
from fedveil_lab.games.membership import BY_CLIENT, BY_PERSON, records_of
from fedveil_lab.games.recorded.pairs import Drawn
from fedveil_lab.games.recorded.stored import Stored
from fedveil_lab.games.shadows import held_out, shadowed

OF_ANSWERS = (*BY_CLIENT, "source")
OF_ROUNDS = ("loss-trajectory", "person-loss-trajectory")
OWN_MATCH = "fedmia-same-classes"
ONE_COIN = "records of one person or document are held out together: one coin for all of them, and a bound takes one for each"
SEVERAL_CLIENTS = "a person is at several clients: her coin fell once, and would be counted at each"


def refused(stored: Stored) -> dict[str, str]:
    """Return the attacks of `MEMBERSHIPS` that the stored files do not allow, each with the reason."""
    why: dict[str, str] = {}
    in_groups = _held_out_in_groups(stored)
    for name in MEMBERSHIPS:
        if shadowed(name):
            why[name] = "trains shadow models: fedveil audit without --recorded plays it"
        elif name in OF_ROUNDS and not stored.rounds:
            why[name] = 'needs the model of each round: ServerFolder(..., keep=["models"])'
        elif name in OF_ANSWERS and not stored.received:
            why[name] = (
                'needs each site\'s answer, which is not stored: ServerFolder(..., keep=["updates"])'
            )
        elif name == "source":
            why[name] = (
                "tells clients apart; no coin decided who owns a record, so that nothing is proven"
            )
        elif name == OWN_MATCH:
            why[name] = "matches classes itself; here the pairs of every attack are of one class"
        elif name in BY_PERSON and not _persons(stored):
            why[name] = "needs to know whose the records are: data.person"
        elif name in BY_PERSON and _at_several_clients(stored):
            why[name] = SEVERAL_CLIENTS
        elif name not in BY_PERSON and in_groups:
            why[name] = ONE_COIN
        elif name in BY_CLIENT and len(by_round_and_client(stored.received)[0]) < 3:
            why[name] = "needs three sites that answered in every round"
    return why


def scored(stored: Stored) -> Iterator[tuple[str, list[Drawn]]]:
    """Yield each possible attack with the scores of members and of held-out records.

    Raises
    ------
    FieldError
        If clients have no held-out records.
    """
    members, table = _members(stored), None
    if stored.received:
        members, table = by_round_and_client(stored.received)
    clients = [stored.setup.clients[partition] for partition in members]
    out_x, _ = held_out(clients)
    if not len(out_x):
        raise FieldError("data.holdout", 0, "non-members are what clients hold out: set it")
    learner = stored.setup.learner
    seen = records_of(clients, (learner.model, learner.layout), stored.models, table)
    without = refused(stored)
    for name, attack in MEMBERSHIPS.items():
        if name not in without:
            pairs = attack(seen)
            assert not isinstance(pairs, float)  # `source` alone returns one
            yield name, _drawn(name, pairs, seen, _owners(clients))


def _members(stored: Stored) -> list[int]:
    """List the partitions of clients that trained, as far as the folder says."""
    replied = {partition for one in stored.rounds for partition in one.replied}
    return sorted(replied) or list(range(len(stored.setup.clients)))


def _persons(stored: Stored) -> bool:
    return all(c.person is not None for c in stored.setup.clients)


def _held_out_in_groups(stored: Stored) -> bool:
    """Whether one random draw decided about several records together."""
    group = stored.setup.dealt.dataset.group
    return group is not None and len(torch.unique(group)) < len(group)


def _at_several_clients(stored: Stored) -> bool:
    """Whether a person has records at more than one client."""
    seen: set[int] = set()
    for client in stored.setup.clients:
        own: set[int] = set()
        for people in (client.person, client.test_person):
            own.update([] if people is None else people.tolist())
        if own & seen:
            return True
        seen |= own
    return False


def _owners(clients: Sequence[ClientData]) -> Tensor:
    """Return the client of each non-member, in the order of `ServerRecords`."""
    counts = torch.tensor([0 if c.test_x is None else len(c.test_x) for c in clients])
    return torch.repeat_interleave(torch.arange(len(clients)), counts)[::2]


def _drawn(name: str, pairs: Pairs, seen: ServerRecords, owners: Tensor) -> list[Drawn]:
    """Add strata to scores: client and class, within which the held-out records were drawn at random."""
    classes = int(seen.y.max()) + 1
    asked = seen.members + seen.others
    inside = seen.owner * classes + seen.y[: seen.members]
    outside = owners * classes + seen.y[seen.members : asked]
    if name in BY_PERSON:
        assert seen.persons is not None  # refused otherwise
        who, others = seen.persons[0], seen.persons[1][: seen.others]
        away = ~torch.isin(others, who)
        inside, outside = _of_people(inside, who), _of_people(outside[away], others[away])
    if len(pairs) == 1:
        return [Drawn(*pairs[0], inside, outside)]
    found = []
    for client, (mine, rest) in enumerate(pairs):
        own = seen.own[client]
        found.append(Drawn(mine, rest[owners == client], inside[own], outside[owners == client]))
    return found


def _of_people(keys: Tensor, person: Tensor) -> Tensor:
    """Return the stratum of each person, in ascending order of persons: that of her first record."""
    _, first = np.unique(person.numpy(), return_index=True)
    return keys[torch.from_numpy(first)]
