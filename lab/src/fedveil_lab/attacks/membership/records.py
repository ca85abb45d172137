"""Membership attacks by a server that measures records in every round.

Your own attack is a function of `ServerRecords`. It returns the scores of members and non-members, once for all clients
or once per client. Register it with ``@MEMBERSHIPS.register(name)``. Register scores of shadow models with
`register_score` in `fedveil_lab.attacks.membership.scores`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedveil.errors import FedVeilError, FieldError
from fedveil.registry import Registry
from fedveil_lab.attacks.statistics import auc, log_roc, true_rate_at
from fedveil_lab.attacks.verdict import ALPHAS

Pairs = Sequence[
    tuple[Tensor, Tensor]
]  # scores of members and of others, one pair for all clients or one a client


def fed_mia(measure: Tensor, target: int) -> Tensor:
    """Score each record by how likely the target client trained on it, [N] (FedMIA).

    FedMIA: the server takes the other clients' updates for the null hypothesis; no shadow models.

    Source: Zhu et al. 2024, "FedMIA: an effective membership inference attack exploiting the all for one principle"
    (arXiv 2402.06289): for each round and record, where does the measure under the target client's update lie among the
    measures under the others'?

        score(i) = mean over rounds of Phi((m[r, target, i] - mean over others) / deviation over others)

    The measure m is the received model's log-odds of the true class. Where clients hold different classes (Dirichlet
    .1) the null is wrong: the other clients do not know the class, and the score shows only who holds it. So `by_class`
    standardises the effect of each client's update on a record by its effect on *reference* records of the same class,
    on which nobody trained. Non-members with the members' classes (`same_classes`) show how much of an AUC is knowledge
    of the class.

    Threat model: honest-but-curious server with the records in question, and with reference records for `by_class`.

    Parameters
    ----------
    measure : Tensor
        Measure [R, K, N] of R rounds, K clients and N records; higher under an update that was trained on the record.
    target : int
        Index of the target client among the K.

    Raises
    ------
    FieldError
        If there are fewer than two other clients.
    """
    if measure.dim() != 3 or measure.shape[1] < 3:
        raise FieldError(
            "measure", tuple(measure.shape), "must be [R, K, N] with at least two other clients"
        )
    others = torch.cat([measure[:, :target], measure[:, target + 1 :]], dim=1)
    z = (measure[:, target] - others.mean(1)) / others.std(1).clamp(min=1e-9)
    return torch.mean(torch.special.ndtr(z), 0)


def by_class(measure: Tensor, y: Tensor, reference: Tensor, reference_y: Tensor) -> Tensor:
    """Standardise the measure by each client's mean and deviation on reference records of the same class.

    Parameters
    ----------
    measure : Tensor
        Measure [..., K, N] on the records.
    y : Tensor
        Classes [N] of the records.
    reference : Tensor
        The same measure on reference records, [..., K, M].
    reference_y : Tensor
        Classes [M] of the reference records.

    Raises
    ------
    FieldError
        If a class has fewer than two reference records.
    """
    calibrated = measure.clone()
    for c in set(y.tolist()):
        rows = reference_y == c
        if int(rows.sum()) < 2:
            raise FieldError("reference", c, "needs two reference records of this class")
        usual = reference[..., rows]
        shifted = calibrated[..., y == c] - usual.mean(-1, keepdim=True)
        calibrated[..., y == c] = shifted / usual.std(-1, keepdim=True).clamp(min=1e-9)
    return calibrated


def same_classes(members: Tensor, others: Tensor, seed: int = 0) -> Tensor:
    """Draw non-members with the same class shares as the members.

    Parameters
    ----------
    members, others : Tensor
        Classes [n] and [m].
    seed : int
        Seed of the draw.

    Returns
    -------
    Tensor
        Indices into `others`: k non-members per member of each class, with the largest possible k.

    Raises
    ------
    FieldError
        If there are fewer non-members of a class than members.
    """
    draw = torch.Generator().manual_seed(seed)
    counts: dict[int, int] = {}
    of_class: dict[int, Tensor] = {}
    shares: dict[int, float] = {}  # other records for each member, by class
    for c in sorted(set(members.tolist())):
        counts[c] = int((members == c).sum())
        of_class[c] = (others == c).nonzero().flatten()
        shares[c] = len(of_class[c]) / counts[c]
    k = int(min(shares.values()))
    if k < 1:
        short = min(shares, key=shares.__getitem__)
        raise FieldError(
            "others",
            len(of_class[short]),
            f"are too few of class {short}: there are {counts[short]} members",
        )
    picked = []
    for c, rows in of_class.items():
        drawn = torch.randperm(len(rows), generator=draw)[: k * counts[c]]
        picked.append(rows[drawn])
    return torch.cat(picked).sort().values


def guess(measure: Tensor) -> Tensor:
    """Guess the owner of each record: index [N] of the client with the largest measure [K, N], such as minus the loss."""
    return measure.argmax(0)


@dataclass(frozen=True, eq=False)
class ServerRecords:
    """Measurements of a server with K clients on N members, M non-members and L reference records.

    Attributes
    ----------
    losses : Tensor
        Minus the loss under each round's global model, [R, N + M + L].
    odds : Tensor
        Log-odds of the true class under each client's model, [R, K, N + M + L].
    y : Tensor
        Classes [N + M + L].
    owner : Tensor
        Index of the client that trains on each member, [N].
    others : int
        Number M of non-members.
    persons : tuple of Tensor, optional
        Persons of the N members, and of the M + L other records.
    """

    losses: Tensor
    odds: Tensor
    y: Tensor
    owner: Tensor
    others: int
    persons: tuple[Tensor, Tensor] | None = None

    @property
    def members(self) -> int:
        """Number of members, N."""
        return len(self.owner)

    @cached_property
    def own(self) -> list[Tensor]:
        """List the indices of each client's members.

        Raises
        ------
        FieldError
            If a client has fewer than two members, so that it cannot be attacked alone.
        """
        records = [
            (self.owner == client).nonzero().flatten() for client in range(self.odds.shape[1])
        ]
        few = [client for client, mine in enumerate(records) if len(mine) < 2]
        if few:
            raise FieldError(
                "clients", few[:5], "have too few training records: two of each are asked for"
            )
        return records

    @cached_property
    def fedmia(self) -> list[Tensor]:
        """Compute FedMIA's scores [N + M] for each client."""
        asked = self.odds[..., : self.members + self.others]
        return [fed_mia(asked, client) for client in range(len(self.own))]

    def split(self, scores: Tensor) -> Pairs:
        """Split scores [N + M, or more] into those of members and of non-members."""
        return [(scores[: self.members], scores[self.members : self.members + self.others])]

    def by_client(self, scores: Sequence[Tensor]) -> Pairs:
        """Split each client's own scores [N + M] into those of its members and of all others."""
        pairs = []
        for one, mine in zip(scores, self.own, strict=True):
            pairs.append((one[mine], one[self.members :]))
        return pairs

    def by_person(self, scores: Tensor) -> Pairs:
        """Average scores over each person's records; a person of two hospitals is in if she is in at one of them.

        Raises
        ------
        FieldError
            If the records name no persons.
        """
        if self.persons is None:
            raise FieldError("data.person", None, "clients do not say whose their records are")
        who, others = self.persons
        away = ~torch.isin(others, who)
        return [
            (
                of_people(scores[: self.members], who),
                of_people(scores[self.members :][away], others[away]),
            )
        ]


def fedmia_by_class(seen: ServerRecords) -> Pairs:
    """Apply FedMIA to the measure standardised by class on the reference records."""
    n = seen.members + seen.others
    scaled = by_class(seen.odds[..., :n], seen.y[:n], seen.odds[..., n:], seen.y[n:])
    return seen.by_client([fed_mia(scaled, client) for client in range(len(seen.own))])


def fedmia_same_classes(seen: ServerRecords) -> Pairs:
    """Apply FedMIA against non-members with the members' class shares, at clients with enough of them."""
    by_class, n = [], seen.members
    for scores, mine in zip(seen.fedmia, seen.own, strict=True):
        with suppress(FieldError):
            alike = n + same_classes(seen.y[mine], seen.y[n : n + seen.others])
            by_class.append((scores[mine], scores[alike]))
    if not by_class:
        raise FieldError(
            "clients", len(seen.own), "no client has enough non-members of its members' classes"
        )
    return by_class


def source(seen: ServerRecords) -> float:
    """Accuracy of naming the client with the largest odds as a record's owner, minus chance."""
    right = guess(seen.odds[..., : seen.members].mean(0)) == seen.owner
    return float(right.double().mean()) - 1 / seen.odds.shape[1]


MEMBERSHIPS: Registry[Callable[[Any], Pairs | float]] = Registry(
    "--attack",
    {
        "loss": lambda seen: seen.split(seen.losses[-1]),  # under the last global model
        "loss-trajectory": lambda seen: seen.split(seen.losses.mean(0)),  # mean over the rounds
        "fedmia": lambda seen: seen.by_client(seen.fedmia),  # against all others
        "fedmia-by-class": fedmia_by_class,
        "fedmia-same-classes": fedmia_same_classes,
        "source": source,
        "person-loss": lambda seen: seen.by_person(seen.losses[-1]),
        "person-loss-trajectory": lambda seen: seen.by_person(seen.losses.mean(0)),
    },
    group="fedveil.memberships",
)


def of_people(scores: Tensor, person: Tensor) -> Tensor:
    """Average the scores over each person's records [N]; `person` names the person of each record."""
    owner = torch.unique(person, return_inverse=True)[1]
    return torch.bincount(owner, scores.double()) / torch.bincount(owner)


def concluded(attacks: Mapping[str, Callable[[], Pairs | float]]) -> dict[str, Any]:
    """Judge attacks, and return plain values by name of the attack.

    Returns
    -------
    dict
        ``figures``: an AUC, the mean over the clients where each is attacked by itself; or what the attack returns.
        ``rates``: true positive rates at those of `ALPHAS` at which ten false positives are expected. ``others``: how
        many non-members there are. ``roc``: points of `log_roc`. ``refused``: why an attack has no figures.
    """
    conclusion: dict[str, dict[str, Any]] = {
        "figures": {},
        "rates": {},
        "others": {},
        "roc": {},
        "refused": {},
    }
    for name, attack in attacks.items():
        try:
            pairs = attack()
        except FedVeilError as error:
            conclusion["refused"][name] = str(error)
            continue
        if isinstance(pairs, float):
            conclusion["figures"][name] = pairs
            continue
        own, others = zip(*pairs, strict=True)
        inside, outside = torch.cat(own).numpy(), torch.cat(others).numpy()
        areas = [auc(scores.numpy(), of_others.numpy()) for scores, of_others in pairs]
        conclusion["figures"][name] = float(np.mean(areas))
        rates: dict[str, float] = {}
        for alpha in ALPHAS:
            rate = true_rate_at(inside, outside, alpha)
            if rate is not None:
                rates[f"{alpha:g}"] = rate.point
        conclusion["rates"][name] = rates
        conclusion["others"][name] = len(outside)
        conclusion["roc"][name] = [axis.tolist() for axis in log_roc(inside, outside, 40)]
    return conclusion
