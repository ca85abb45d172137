"""Malicious clients that know the honest updates: one vector for all fellows, and the strongest factor."""

from collections.abc import Callable
from dataclasses import dataclass, field

import scipy
import torch
from torch import Tensor

from fedveil.aggregation import Aggregator
from fedveil.engines import Behaviour, Turn
from fedveil.errors import require_choice
from fedveil.mechanisms import ReproducibleSource
from fedveil_lab.attacks.poisoning.data import BEHAVIOURS

_FACTORS = tuple(float(f) for f in torch.logspace(-1, 1.7, 19))  # .1 to 50


def furthest(
    make: Callable[[float], Tensor], honest: Tensor, malicious: int, rule: Aggregator
) -> float:
    """The factor whose vector moves a rule's result furthest from the honest mean.

    Parameters
    ----------
    make : callable
        ``factor -> vector [d]``; 19 factors from .1 to 50 are tried, and 8 around the best of them.
    honest : Tensor
        [h, d].
    malicious : int
        How many send the vector.
    rule : Aggregator
        The server's; what it draws, remembers or trains is not known to the adversary, who takes a draw of its own, no
        memory, and the honest mean for the server's update.
    """
    mean = honest.mean(0)
    weights = torch.full(
        (len(honest) + malicious,), 1 / (len(honest) + malicious), dtype=torch.float64
    )
    source = ReproducibleSource(0)
    known = rule.for_round(rule.init(len(mean), mean.dtype), source, mean)

    def moved(factor: float) -> float:
        vectors = torch.cat([honest, make(factor).expand(malicious, -1)])
        return float((known.reduce(vectors, weights) - mean).norm())

    best = max(_FACTORS, key=moved)
    return max((best * r for r in (0.75, 0.8, 0.86, 0.93, 1.0, 1.08, 1.16, 1.25, 1.35)), key=moved)


@dataclass(frozen=True, eq=False, kw_only=True)
class InformedUpdate(Behaviour):
    """A malicious client that knows the honest updates: all of them send the same vector, worked out once a round.

    An adversary that knows the server's rule takes the factor that moves the result of the rule furthest from the
    honest mean (as ByzFL's "optimal" variants do, arXiv 2505.24802).

    Give all of them the same instance. With fewer than two honest updates it sends what it trained.

    Parameters
    ----------
    bypass : bool
        Leave the method's protection out; the vector then follows the honest updates as the server receives them
        (with their noise), and otherwise as they are before protection.
    rule : Aggregator, optional
        The server's, where the adversary knows it.
    """

    omniscient = True
    bypass: bool = False
    rule: Aggregator | None = None
    _sent: list[tuple[Tensor, Tensor]] = field(
        default_factory=list, init=False, repr=False
    )  # against which, what

    def vector(self, honest: Tensor, malicious: int) -> Tensor:
        """The vector [d] of f malicious clients against at least two honest updates [h, d]."""
        raise NotImplementedError

    def strongest(
        self,
        make: Callable[[float], Tensor],
        factor: float | None,
        usual: float,
        honest: Tensor,
        malicious: int,
    ) -> Tensor:
        """The vector of a factor, where none is given of that which is strongest against the rule, or of the usual."""
        if factor is None:
            if self.rule is None:
                factor = usual
            else:
                factor = furthest(make, honest, malicious, self.rule)
        return make(factor)

    def model(self, turn: Turn) -> Tensor | None:
        """The start plus the vector."""
        if self.bypass:
            honest = turn.released
        else:
            honest = turn.honest
        if len(honest) < 2:
            return None
        if (
            not self._sent or self._sent[0][0] is not honest
        ):  # a fellow of the same round is shown the same tensor
            self._sent[:] = [(honest, self.vector(honest, len(turn.fellows)))]
        return turn.start + self._sent[0][1]


@BEHAVIOURS.register("alie")
@dataclass(frozen=True, eq=False, kw_only=True)
class ALIE(InformedUpdate):
    """A little is enough; with `z` deviations, by default the strongest against `rule`, or the paper's.

    ALIE: a deviation from the honest mean that hides in the honest updates' own spread.

    Source: "A little is enough" (Baruch, Baruch and Goldberg 2019, arXiv 1902.06156, section 3.3).

        sent = start + m - z s        m, s: mean and deviations of the honest updates, coordinate by coordinate

    The paper's z: of n = h + f clients, s = floor(n / 2) + 1 - f honest ones are needed for a majority, and z is the
    quantile of (h - s) / h.

    Threat model: colluding malicious clients that know all honest updates of the round, and perhaps the server's rule.
    """

    z: float | None = None

    def vector(self, honest: Tensor, malicious: int) -> Tensor:
        h, mean, deviation = len(honest), honest.mean(0), honest.std(0)
        needed = (h + malicious) // 2 + 1 - malicious
        usual = float(scipy.special.ndtri(min(max((h - needed) / h, 0.5), 1 - 1e-6)))
        return self.strongest(lambda z: mean - z * deviation, self.z, usual, honest, malicious)


@BEHAVIOURS.register("ipm")
@dataclass(frozen=True, eq=False, kw_only=True)
class IPM(InformedUpdate):
    """Inner product manipulation; `factor` is by default the strongest against `rule`, or 1.

    IPM: turn the sign of the inner product of the result with the honest mean.

    Source: inner product manipulation (Xie, Koyejo and Gupta 2020, arXiv 1903.03936).

        sent = start - factor m        m: mean of the honest updates

    Threat model: colluding malicious clients that know all honest updates of the round, and perhaps the server's rule.
    """

    factor: float | None = None

    def vector(self, honest: Tensor, malicious: int) -> Tensor:
        mean = honest.mean(0)
        return self.strongest(lambda factor: mean * -factor, self.factor, 1.0, honest, malicious)


@BEHAVIOURS.register("min-max")
@dataclass(frozen=True, eq=False, kw_only=True)
class MinMax(InformedUpdate):
    """MinMax along `direction`; it looks at no rule.

    MinMax: as far from the honest mean as the honest updates are from each other.

    Source: Shejwalkar and Houmansadr 2021, "Manipulating the Byzantine" (NDSS, section IV-D).

        sent = start + m + g p        p: -m / |m|, -s or -sign(m), scaled to length 1; g the largest for which no honest
                                      update is further away than two honest ones are from each other

    For each x_i the bound |m + g p - x_i| <= R is a quadratic in g; the smallest of their positive roots is exact,
    where the paper halves an interval.

    Threat model: colluding malicious clients that know all honest updates of the round; no rule is looked at.
    """

    direction: str = "mean"

    def vector(self, honest: Tensor, malicious: int) -> Tensor:
        x = honest.to(torch.float64)
        mean = x.mean(0)
        towards = {"mean": -mean, "std": -x.std(0), "sign": -mean.sign()}
        p = towards[require_choice("direction", self.direction, towards)]
        if not float(p.norm()) > 0:
            return honest.mean(0)
        p, away = p / p.norm(), mean - x
        diameter = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").max()
        b, c = away @ p, away.square().sum(1) - diameter**2  # g^2 + 2 b g + c = 0, and c <= 0
        g = (-b + (b.square() - c).clamp_(min=0.0).sqrt()).min()
        return torch.add(mean, g * p).to(honest.dtype)
