"""The worst-case worlds of every method, played through the parties that every engine runs.

A case is two worlds that differ in one client, as far apart as the relation permits. Each run takes fresh parties: the
clients admit the broadcast and release, the server combines; what the adversary sees is what was handed over.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedveil.engines import ClientParty, ServerParty
from fedveil.layout import Layout
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, PublicFacts

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
