"""Membership scores from a model's log-odds phi of the true class; higher means member.

    loss         -l(x)                                                                    Yeom 2018; SGA-LDP
    calibrated   mean of l(x) over shadow models without x, less l(x)                     Watson 2022, 2111.08440
    lira         log N(phi; in) - log N(phi; out); offline (phi - mean out) / deviation   Carlini 2022, 2112.03570
    rmia         share of a population z with LR(x) / LR(z) >= gamma, LR = p / mean p      Zarifzadeh 2024, 2312.03262
    bavaria      as lira, with variances under a conjugate prior                          Brannvall 2026, 2603.11799

All are log-likelihood ratios in exponential families that estimate more or fewer parameters a record (2603.11799).
BaVarIA puts a normal-inverse-gamma prior on a record's mean and variance: its predictive is Student's t (``"t"``), or a
Gaussian with the stabilised variance (``"normal"``). Here the mean's prior is flat, and the variance's two parameters
are fitted to all records by the moments of the logarithms of their variances (Smyth 2004, section 6.2): our choice.

Offline, no shadow model has seen a record in question; online, half of them have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import scipy
import torch
from torch import Tensor

from fedveil.errors import FieldError, require_choice, require_positive
from fedveil.registry import Registry
from fedveil_lab.attacks.membership.records import MEMBERSHIPS, Pairs
from fedveil_lab.attacks.membership.shadow import Signals, loss_of_confidence

FEW = 32  # shadow models a side, below which LiRA takes one variance for all records
_LEAST = 1e-12  # of a variance


SCORES: Registry[Callable[[Signals], Tensor]] = Registry("score", {})
Score = TypeVar("Score", bound=Callable[[Signals], Tensor])
TARGETS = (
    "",
    "-update",
    "-trajectory",
)  # the last global model, what a client sent last, and in its last rounds
PEOPLE = (
    "person-"  # the last global model, whose shadow models have all records of a person or none
)


@dataclass(frozen=True)
class ShadowScore:
    """Membership attack made from a score, on one of `TARGETS`, or on persons (`PEOPLE`) by their mean score."""

    score: Callable[[Signals], Tensor]
    target: str

    def __call__(self, attacked: Sequence[tuple[Sequence[Signals], int]]) -> Pairs:
        """Score members and others over all attacked models; each gives the signals of its rounds, members first."""
        scored = [(trajectory(rounds, self.score), members) for rounds, members in attacked]
        return [(torch.cat([v[:n] for v, n in scored]), torch.cat([v[n:] for v, n in scored]))]


def register_score(name: str) -> Callable[[Score], Score]:
    """Return a decorator that adds a score to `SCORES`, and to `MEMBERSHIPS` for each of `TARGETS` and for persons."""

    def add(score: Score) -> Score:
        plain = name.lower().replace(" ", "-")
        for target in TARGETS:
            MEMBERSHIPS.register(plain + target)(ShadowScore(score, target))
        MEMBERSHIPS.register(PEOPLE + plain)(ShadowScore(score, PEOPLE))
        SCORES[name] = score
        return score

    return add


class Moments(NamedTuple):
    """Moments of shadow models with a record, or without it, [N] each: count, mean, and sum of squared deviations."""

    models: Tensor
    mean: Tensor
    squares: Tensor


@SCORES.register("loss")
def loss(signals: Signals) -> Tensor:
    """Score by minus the loss (Yeom et al. 2018)."""
    return -loss_of_confidence(signals.target)


@register_score("calibrated loss")
def calibrated(signals: Signals) -> Tensor:
    """Score by how far the loss is below the mean loss of shadow models without the record (Watson et al. 2022)."""
    losses, outside = loss_of_confidence(signals.shadows), (~signals.inside).to(torch.float64)
    return (losses * outside).sum(0) / outside.sum(0) - loss_of_confidence(signals.target)


@register_score("LiRA online")
def lira(signals: Signals, online: bool = True) -> Tensor:
    """Score by the likelihood ratio of two Gaussians per record; offline by the standardised distance to non-members."""

    def fitted(side: Moments) -> tuple[Tensor, Tensor]:
        pooled = side.squares.sum() / (side.models - 1).sum()
        own = side.squares / (side.models - 1).clamp(min=1)
        return side.mean, torch.where(side.models >= FEW, own, pooled).clamp(min=_LEAST)

    outer = fitted(_side(signals, False))
    if not online:
        return (signals.target - outer[0]) / outer[1].sqrt()
    return _normal(signals.target, *fitted(_side(signals, True))) - _normal(signals.target, *outer)


@register_score("RMIA online")
def rmia(signals: Signals, online: bool = True, gamma: float = 1.0, a: float = 0.3) -> Tensor:
    """Score by the share of a population whose likelihood ratio the record's exceeds by a factor `gamma` (RMIA).

    Parameters
    ----------
    signals : Signals
        Signals with a population.
    online : bool
        Offline, the mean probability is ((1 + a) p_out + 1 - a) / 2, where p_out is that of models without the record.
    gamma : float
        Factor by which the record's ratio has to be larger; at the paper's 2 the scores of confident models tie at 0
        and 1.
    a : float
        Parameter of the offline form, in [0, 1].
    """
    require_positive("gamma", gamma)
    if signals.population is None or signals.population_shadows is None:
        raise FieldError(
            "population", None, "RMIA compares with records that are in no model: give some"
        )
    probabilities = torch.sigmoid(signals.shadows)
    outside = (~signals.inside).to(torch.float64)
    usual = (probabilities * outside).sum(0) / outside.sum(0)
    others = torch.sigmoid(signals.population_shadows).mean(0)
    if online:
        within = signals.inside.to(torch.float64)
        usual = (usual + (probabilities * within).sum(0) / within.sum(0)) / 2
    else:
        usual, others = (((1 + a) * p + 1 - a) / 2 for p in (usual, others))
    own = torch.nn.functional.logsigmoid(signals.target) - usual.clamp(min=1e-300).log()
    rest = torch.nn.functional.logsigmoid(signals.population) - others.clamp(min=1e-300).log()
    beaten = torch.searchsorted(rest.sort().values, own - float(np.log(gamma)), right=True)
    return beaten.to(torch.float64) / len(rest)


@register_score("BaVarIA online")
def bavaria(signals: Signals, online: bool = True, tail: str = "t") -> Tensor:
    """Score as LiRA does, with variances shrunk towards a common one as far as a record's own are uncertain."""
    require_choice("tail", tail, ("t", "normal"))

    def fitted(side: Moments) -> tuple[Tensor, Tensor, Tensor]:
        weight, usual = variance_prior(side)
        freedom = weight + side.models - 1
        variance = ((weight * usual + side.squares) / freedom).clamp(min=_LEAST)
        return side.mean, variance * (1 + 1 / side.models) if tail == "t" else variance, freedom

    def density(mean: Tensor, variance: Tensor, freedom: Tensor) -> Tensor:
        if tail == "normal":
            return _normal(signals.target, mean, variance)
        z = (signals.target - mean).square() / variance
        constant = (
            torch.lgamma((freedom + 1) / 2)
            - torch.lgamma(freedom / 2)
            - (freedom * variance).log() / 2
        )
        return constant - (freedom + 1) / 2 * torch.log1p(z / freedom)

    outer = fitted(_side(signals, False))
    if not online:
        return (signals.target - outer[0]) / outer[1].sqrt()
    return density(*fitted(_side(signals, True))) - density(*outer)


register_score("LiRA offline")(partial(lira, online=False))
register_score("RMIA offline")(partial(rmia, online=False))
register_score("BaVarIA offline")(partial(bavaria, online=False))
register_score("BaVarIA-n online")(partial(bavaria, tail="normal"))


def trajectory(rounds: Sequence[Signals], score: Callable[[Signals], Tensor] = loss) -> Tensor:
    """Average a score [N] over the models of several rounds.

    The adversary is a client that sees the global models, or a server that sees what one client sends. Log-likelihood
    ratios are added as if rounds were independent, although consecutive models are similar.
    """
    return torch.stack([score(signals) for signals in rounds]).mean(0)


def variance_prior(side: Moments) -> tuple[float, float]:
    """Fit weight (degrees of freedom) and value of the common variance to all records (Smyth 2004, section 6.2).

    With s^2 the variances on g degrees of freedom and e = log s^2 - digamma(g / 2) + log(g / 2), the weight w solves
    trigamma(w / 2) = var(e) - mean trigamma(g / 2); where that is not positive the records do not differ, and w is
    1e6.
    """
    several = side.models.numpy() > 1
    g = side.models.numpy()[several] - 1
    e = (
        np.log((side.squares.numpy()[several] / g).clip(min=_LEAST))
        - scipy.special.digamma(g / 2)
        + np.log(g / 2)
    )
    if len(e) > 1:
        spread = float(e.var(ddof=1) - scipy.special.polygamma(1, g / 2).mean())
    else:
        spread = 0.0
    weight = 1e6
    if spread > scipy.special.polygamma(1, weight / 2):
        weight = 2 * float(
            scipy.optimize.brentq(lambda w: scipy.special.polygamma(1, w) - spread, 1e-3, 1e6)
        )
    return weight, float(np.exp(e.mean() + scipy.special.digamma(weight / 2) - np.log(weight / 2)))


def _side(signals: Signals, inside: bool) -> Moments:
    mask = (signals.inside if inside else ~signals.inside).to(torch.float64)
    count = mask.sum(0)
    if float(count.min()) < 1 or float(count.max()) < 2:
        which = "without"
        if inside:
            which = "with"
        raise FieldError(
            "shadows", int(count.min()), f"needs a model {which} each record, and two for some"
        )
    mean = (signals.shadows * mask).sum(0) / count
    return Moments(count, mean, ((signals.shadows - mean).square() * mask).sum(0))


def _normal(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -(x - mean).square() / (2 * variance) - variance.log() / 2
