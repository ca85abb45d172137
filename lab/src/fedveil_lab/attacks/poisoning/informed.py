"""Malicious clients that know the honest updates: all send one vector, with the strongest factor against the rule."""

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
    """Find the factor whose vector moves an aggregation rule's result furthest from the honest mean.

    Parameters
    ----------
    make : callable
        Function ``factor -> vector [d]``. 19 factors from 0.1 to 50 are tried, then 8 around the best one.
    honest : Tensor
        Honest updates [h, d].
    malicious : int
        Number of malicious clients, which all send the vector.
    rule : Aggregator
        The server's rule. The adversary does not know its random draws, memory or own training. It uses its own draw,
        no memory, and the honest mean as the server's update.
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
    """Base class of malicious clients that know the honest updates; all send one vector, computed once per round.

    An adversary that knows the server's rule chooses the strongest factor. It moves the rule's result furthest from the
    honest mean, as in ByzFL's "optimal" variants (arXiv 2505.24802).

    Give all malicious clients the same instance. With fewer than two honest updates each sends its trained model.

    Parameters
    ----------
    bypass : bool
        Whether the malicious clients skip the method's protection. If so, they compute their vector from the honest
        updates with noise, as the server receives them; else from the updates before protection.
    rule : Aggregator, optional
        The server's rule, if the adversary knows it.
    """

    omniscient = True
    bypass: bool = False
    rule: Aggregator | None = None
    _sent: list[tuple[Tensor, Tensor]] = field(
        default_factory=list, init=False, repr=False
    )  # against which, what

    def vector(self, honest: Tensor, malicious: int) -> Tensor:
        """Compute the vector [d] of `malicious` clients against at least two honest updates [h, d]."""
        raise NotImplementedError

    def strongest(
        self,
        make: Callable[[float], Tensor],
        factor: float | None,
        usual: float,
        honest: Tensor,
        malicious: int,
    ) -> Tensor:
        """Compute the vector of a factor: the given one, else the strongest against a known rule, else `usual`."""
        if factor is None:
            if self.rule is None:
                factor = usual
            else:
                factor = furthest(make, honest, malicious, self.rule)
        return make(factor)

    def model(self, turn: Turn) -> Tensor | None:
        """Return the start plus the vector."""
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
    """ALIE attack ("a little is enough") with `z` deviations. Default: the strongest against `rule`, or the paper's.

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
    """Inner product manipulation attack. Default `factor`: the strongest against `rule`, or 1.

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
    """Min-max attack along `direction`; it does not use the server's rule.

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
