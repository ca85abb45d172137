"""Search the examples that fit several releases of one client best, all made from the same examples.

With noise of its own in each release, the most likely examples minimise the sum of the releases' squared errors over
their noise, plus the prior once. So the releases add up to one of less noise: a promise over all rounds is judged by
what all rounds show. See `fedveil_lab.attacks.inversion.matching` for the terms.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedveil.errors import FieldError
from fedveil_lab.attacks.inversion.knowledge import ServerKnowledge, require_readable
from fedveil_lab.attacks.inversion.matching import Matching, lbfgs, signed_adam
from fedveil_lab.attacks.observation import Received, ThreatModel

ENOUGH = 1e-13  # an objective at which the search by distance ends
STEP, VARIATION = (
    0.1,
    1e-3,
)  # first step and total variation of the search by direction, as of `Cosine`

Releases = Sequence[tuple[Received, ServerKnowledge]]
Search = Callable[[Releases, int, int], Tensor]


def by_distance(releases: Releases, steps: int, seed: int = 0) -> Tensor:
    """Minimise the distances of the simulated updates from those received, by L-BFGS; images float64 [N, *shape]."""
    together = _Together(releases, seed, torch.float64)

    def objective(x: Tensor) -> Tensor:
        return together.mean(Matching.euclidean, x) + together.prior(x)

    low, high = torch.tensor(together.known.pixels, dtype=torch.float64)
    best, _ = lbfgs(objective, together.dummy(), (low, high), steps=steps, enough=ENOUGH)
    return together.whole(best)


def by_direction(releases: Releases, steps: int, seed: int = 0) -> Tensor:
    """Maximise the cosines of the simulated updates and those received, by Adam on signs; float64 [N, *shape]."""
    together = _Together(releases, seed, torch.float32)

    def objective(x: Tensor) -> Tensor:
        return together.mean(Matching.cosine, x) + together.prior(x, VARIATION)

    best, _ = signed_adam(objective, together.dummy(), together.known.pixels, steps, STEP)
    return together.whole(best).to(torch.float64)


SEARCHES: dict[str, Search] = {"distance": by_distance, "direction": by_direction}


def require_rounds(releases: Releases, threat: ThreatModel) -> None:
    """Refuse releases that no search can use, or a server that knows more than it may.

    Raises
    ------
    FieldError
        Without a release, for one that is damaged or equals its start, or without labels.
    ThreatError
        If the server lacks a capability that its knowledge needs.
    """
    if not releases:
        raise FieldError("releases", 0, "at least one is needed")
    for received, known in releases:
        needs = frozenset({"client models", "training"}) | known.capabilities
        threat.require("search over rounds", needs)
        if known.labels is None:
            raise FieldError("labels", None, "are not searched here: give them")
        require_readable(received, known)


class _Together:
    """Several releases as one: each weighs by what it tells, the prior counts once."""

    def __init__(self, releases: Releases, seed: int, dtype: torch.dtype) -> None:
        self._each = [Matching(received, known, seed, dtype=dtype) for received, known in releases]
        self.known = releases[0][1]
        first, noises = self._each[0], [one.weight for one in self._each]
        if all(noises):
            weights = [1 / noise for noise in noises]
            first.weight = 1 / sum(weights)
        else:  # a release without noise tells all, and needs no prior
            weights = [float(not noise) for noise in noises]
            first.weight = 0.0
        total = sum(weights)
        self._shares = [weight / total for weight in weights]

    def mean(self, distance: Callable[[Matching, Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
        """Average a distance over the releases for examples [N, *shape]."""
        assert self.known.labels is not None
        total = x.new_zeros(())
        for share, one in zip(self._shares, self._each, strict=True):
            if share:
                total = total + share * distance(one, x[None], self.known.labels)
        return total

    def prior(self, x: Tensor, least: float = 0.0) -> Tensor:
        """Penalty of examples [N, *shape], see `Matching.prior`."""
        first = self._each[0]
        return first.prior(first.whole(x), least)

    def dummy(self) -> Tensor:
        """First examples of a search."""
        return self._each[0].dummy()

    def whole(self, x: Tensor) -> Tensor:
        """Put what is known around the marked content."""
        return self._each[0].whole(x).clamp(*self.known.pixels)
