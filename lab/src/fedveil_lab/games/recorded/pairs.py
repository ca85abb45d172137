"""Bounds from pairs of a member and a non-member, which a fair coin told apart.

A run is one sample, so nothing can be said about repeated runs. But each client drew its held-out examples at random
within each class. Take two examples of one client and class, one trained on and one held out. A fair coin, independent
of all other pairs, decided which is which. Changing a coin replaces one example by another. So
`fedveil_lab.attacks.bounds.paired_run` (Steinke et al. 2023, Mahloujifar et al. 2024) applies, with one canary per
pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedveil.accounting import REGIONS, Guarantee
from fedveil.errors import FieldError
from fedveil.mechanisms import keyed_seed
from fedveil_lab.attacks.bounds import OneRun, paired_run
from fedveil_lab.attacks.statistics import Estimate, rate

LEAST = 10  # pairs: with fewer no bound is above 0


@dataclass(frozen=True, eq=False)
class Drawn:
    """Scores of members and non-members, each with the key of its stratum.

    Attributes
    ----------
    inside, outside : Tensor
        Scores [n] and [m]; higher means in.
    inside_keys, outside_keys : Tensor
        Keys of the strata, int64 [n] and [m]. Within a stratum chance decided which units are in.
    """

    inside: Tensor
    outside: Tensor
    inside_keys: Tensor
    outside_keys: Tensor


def differences(parts: Sequence[Drawn], seed: int = 0) -> Tensor:
    """Pair members and non-members of each stratum at random; return score differences [pairs], member minus non-member.

    The pairs depend on the seed only, never on scores.
    """
    draw = torch.Generator().manual_seed(keyed_seed("recorded pairs", seed))
    found: list[Tensor] = []
    for part in parts:
        for key in torch.unique(part.inside_keys).tolist():
            first = _shuffled(part.inside[part.inside_keys == key], draw)
            second = _shuffled(part.outside[part.outside_keys == key], draw)
            pairs = min(len(first), len(second))
            found.append(first[:pairs].double() - second[:pairs].double())
    if found:
        return torch.cat(found)
    return torch.zeros(0, dtype=torch.float64)


def _shuffled(scores: Tensor, draw: torch.Generator) -> Tensor:
    return scores[torch.randperm(len(scores), generator=draw)]


@dataclass(frozen=True)
class OrderedPairs:
    """Result of an attack on pairs: its rate of right guesses, and the bounds that follow.

    Attributes
    ----------
    order : Estimate
        Share of pairs in which the member scores higher (ties count half), with its exact 95% interval.
    bound : OneRun
        Lower bounds of mu and epsilon under replace-one.
    pairs : int
        Number of pairs.
    """

    order: Estimate
    bound: OneRun
    pairs: int


def proven_by(found: Tensor, *, delta: float, confidence: float) -> OrderedPairs:
    """Compute the bounds that an attack's score differences prove.

    Parameters
    ----------
    found : Tensor
        Score differences [pairs], from `differences`.
    delta : float
        Delta of the bounded epsilon.
    confidence : float
        Joint confidence of both bounds.

    Raises
    ------
    FieldError
        For fewer than ten pairs.
    """
    if len(found) < LEAST:
        accepted = f"are too few: {LEAST} pairs of one that took part and one that did not are the least; hold out more"
        raise FieldError("pairs", len(found), accepted)
    right = int((found > 0).sum()) + int((found == 0).sum()) // 2
    bound = paired_run(found.numpy(), delta=delta, confidence=confidence)
    return OrderedPairs(rate(right, len(found)), bound, len(found))


def exceeds(promise: Guarantee | None, proven: OrderedPairs, delta: float) -> bool | None:
    """Whether the bounds refute a promise; None without a promise, or if it protects regions, not participation.

    Replacing a unit is removing one and adding another, so a promise under add/remove or zero-out is taken for a group
    of two. This holds for records, persons and clients alike, as both of a pair belong to one client.
    """
    if promise is None or promise.unit in REGIONS:
        return None
    if promise.relation == "replace-one":
        two = promise
    else:
        two = promise.of_group(2)
    if two.mu is not None:
        return proven.bound.mu > two.mu
    return proven.bound.epsilon > two.epsilon(delta)
