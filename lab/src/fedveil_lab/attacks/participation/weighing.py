"""Client inference that combines the scores of other attacks, weighted by likelihoods from rehearsals."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil_lab.attacks.observation import ATTACKS, Attack, Observation
from fedveil_lab.attacks.participation.evidence import SequentialEvidence
from fedveil_lab.attacks.participation.rounds import CalibratedLoss, OwnUpdate, SideChannel


@dataclass(frozen=True, eq=False)
class Weighing(Attack):
    """Base class of attacks that combine other attacks' scores; see `Attack` for the other parameters.

    Parameters
    ----------
    model : SequentialEvidence
        Fitted on `stacked` scores of rehearsals.

    Attributes
    ----------
    weighs : tuple of type
        Attacks whose scores are combined.
    steady : bool
        Whether the scores point the same way in every round; see `SequentialEvidence`.
    """

    model: SequentialEvidence

    cumulative: ClassVar[bool] = True
    weighs: ClassVar[tuple[type[Attack], ...]]
    steady: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Collect the needs of the weighed attacks, and add rehearsals."""
        cls.needs = frozenset({"rehearsals"}).union(*(kind.needs for kind in cls.weighs))

    def run(self, observation: Observation) -> Tensor:
        scores = {
            kind.name: kind(self.knowledge, self.threat).run(observation) for kind in self.weighs
        }
        return self.model.weigh(self.stacked(scores))

    @classmethod
    def stacked(cls, scores: Mapping[str, Tensor]) -> Tensor:
        """Stack the scores [..., R] of the weighed attacks, by name, as [..., R, F]."""
        return torch.stack([scores[kind.name] for kind in cls.weighs], dim=-1)


@ATTACKS.register("likelihood-ratio")
class LikelihoodRatio(Weighing):
    """Weigh calibrated losses; see `Weighing` for the parameters.

    Shadow-calibrated likelihood ratio: how likely these scores are with the target, and how likely without.

    Source: the likelihood ratio attack (Carlini et al. 2022, arXiv 2112.03570), with whole federations as shadow models
    and a client as the member; per-round scores are those of `CalibratedLoss`, weighed by `SequentialEvidence`.

    Threat model: semi-honest client; as for `CalibratedLoss`, and able to rehearse: to run federations like this one,
    dealt anew from the whole data set, with and without a client like the target. Rehearsals fix the direction, the
    weights of the rounds and the threshold (0); no evaluated run has a say in them.
    """

    summary: ClassVar[str] = "likelihood ratio of the calibrated losses, learnt from rehearsals"
    weighs: ClassVar[tuple[type[Attack], ...]] = (CalibratedLoss,)


ERROR = 0.05  # wanted rate of either error


@ATTACKS.register("adaptive")
class Adaptive(Weighing):
    """Weigh losses and the others' updates, and stop early; see `Weighing` for the parameters.

    Adaptive client inference: gather evidence round by round; a sequential test says when it suffices.

    Source: the sequential probability ratio test (Wald 1945), on the `SequentialEvidence` of the scores of
    `CalibratedLoss` and `OwnUpdate` together. Named, not built, in Sáinz-Pardo Díaz et al. 2026, section 5.2.

    Threat model: semi-honest client; as for both, and able to rehearse (see `LikelihoodRatio`).

        stop with IN  as soon as the log-likelihood ratio reaches   log((1 - miss) / alarm)
        stop with OUT as soon as it falls to                        log(miss / (1 - alarm))

    The wanted error rates hold as far as the rehearsed model does; measured rates are reported too.
    """

    summary: ClassVar[str] = (
        "sequential test on calibrated losses and own-update scores, learnt from rehearsals"
    )
    weighs: ClassVar[tuple[type[Attack], ...]] = (CalibratedLoss, OwnUpdate)


@dataclass(frozen=True)
class Decisions:
    """Decisions of sequential tests, and when they were made.

    Attributes
    ----------
    said : tuple of int
        Decision for each run: 1 (IN), 0 (OUT), -1 (undecided when the run ended).
    rounds : tuple of int
        Rounds until each decision, or all of them.
    """

    said: tuple[int, ...]
    rounds: tuple[int, ...]


def decide(evidence: Tensor) -> Decisions:
    """Apply Wald's test to log-likelihood ratios [n, R] after each round of each run, at `ERROR`.

    `ERROR` is the wanted rate of both errors: OUT although the target takes part, IN although it does not.
    """
    lower, upper = boundaries()
    crossed = (evidence >= upper) | (evidence <= lower)
    ended, first = crossed.any(1), crossed.to(torch.int8).argmax(1)
    above = evidence.gather(1, first[:, None])[:, 0] >= upper
    said = torch.where(ended, above.to(torch.int64), -1)
    rounds = torch.where(ended, first + 1, evidence.shape[1])
    return Decisions(tuple(said.tolist()), tuple(rounds.tolist()))


def boundaries() -> tuple[float, float]:
    """Return the lower and upper boundary of the sequential test, for figures."""
    return math.log(ERROR / (1 - ERROR)), math.log((1 - ERROR) / ERROR)


@ATTACKS.register("informed")
class Informed(Adaptive):
    """Weigh the published loss too, and stop early; see `Weighing` for the parameters.

    Informed client inference: everything that `Adaptive` weighs, and the metrics that the server publishes.

    Source: FedVeil's own. What publishing metrics gives away is the difference between this attack and `Adaptive`: an
    adversary that may ignore them loses nothing by seeing them, but for what there is to learn in its rehearsals.

    Threat model: semi-honest client; as for `Adaptive`, and sees the aggregated metrics.

        scores of `CalibratedLoss`, `OwnUpdate` and `SideChannel`, weighed together by `SequentialEvidence`
    """

    summary: ClassVar[str] = "as adaptive, weighing the side channel too"
    weighs: ClassVar[tuple[type[Attack], ...]] = (*Adaptive.weighs, SideChannel)


class StepLength(Attack):
    """Length of the model's change in each round, without direction; `NoiseSize` weighs it."""

    name: ClassVar[str] = "step-length"
    summary: ClassVar[str] = "log of the length of the model's step"
    needs: ClassVar[frozenset[str]] = frozenset({"models"})

    def run(self, observation: Observation) -> Tensor:
        steps = (observation.models[1:] - observation.models[:-1]).flatten(1).to(torch.float64)
        return torch.log(torch.linalg.vector_norm(steps, dim=1).clamp(min=1e-30))


@ATTACKS.register("noise-size")
class NoiseSize(Weighing):
    """Weigh the lengths of the model's steps; see `Weighing` for the parameters.

    Client inference by the size of the noise: a rule that scales noise by private data tells them by its scale.

    Source: FedVeil's own. Metric privacy divides by the distance of the clients' models, so a client unlike the others
    makes the noise smaller; with d parameters the scale can be read off one release to about 1 / sqrt(2 d).

    Threat model: semi-honest client; receives the models and can rehearse (see `LikelihoodRatio`), which tells it what
    the target does to the scale. It is handed no example of the target; its rehearsals are dealt from the whole data
    set.

        s_r = log |W_{r+1} - W_r|, weighed by `SequentialEvidence`
    """

    summary: ClassVar[str] = (
        "likelihood ratio of the length of the model's steps, learnt from rehearsals"
    )
    weighs: ClassVar[tuple[type[Attack], ...]] = (StepLength,)
    steady: ClassVar[bool] = False  # a target may lengthen the first steps and shorten the last


GAIN = 1.0


class PullBack(OwnUpdate):
    """Score by the others' update after the attacker reset the model; `Active` uses it. See `Attack` for the parameters."""

    name: ClassVar[str] = "pull-back"
    summary: ClassVar[str] = "as own-update, after pulling the model back to its start"
    needs: ClassVar[frozenset[str]] = OwnUpdate.needs | {"crafted updates"}


@ATTACKS.register("active")
class Active(Weighing):
    """Craft updates, then weigh losses and the others' updates; see `Weighing` for the parameters.

    Active client inference: undo the training, so that every round shows what the target does to a young model.

    Source: model replacement (Bagdasaryan et al. 2020, arXiv 1807.00459), turned from planting a backdoor to keeping
    the target's trace large. Named, not built, in Sáinz-Pardo Díaz et al. 2026, section 5.2. (Gradient ascent on the
    shadow examples, as of Nasr et al. 2019, was tried first: others that hold such examples pull back too, and it
    gained nothing.)

    Threat model: a malicious client; receives the models, holds shadow and reference examples, can rehearse (see
    `LikelihoodRatio`), and sends what it likes instead of what it trained. The server cuts it to the public clipping
    norm like everybody; without such a bound it may pull harder, and others see the accuracy fall.

        sent_r = W_r + gain (W_1 - W_r)                      W_1: the first broadcast
        s_r    = the scores of `CalibratedLoss` and of `OwnUpdate` (with the update that was really sent subtracted),
                 weighed together by `SequentialEvidence`
    """

    summary: ClassVar[str] = "as adaptive, after pulling the model back to its start in every round"
    weighs: ClassVar[tuple[type[Attack], ...]] = (CalibratedLoss, PullBack)


def craft(start: Tensor, first: Tensor, gain: float = GAIN) -> Tensor:
    """Make the model [d] that the malicious client sends instead of the trained one.

    Parameters
    ----------
    start, first : Tensor
        Broadcasts [d] of this round and of the first round.
    gain : float
        Strength of the pull. 1 sends the first model itself; about n replaces the average of n clients.
    """
    return start + gain * (first - start)
