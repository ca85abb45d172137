"""Client inference from losses on the shadow examples: alone, against an outsider's, against the published loss."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.attacks.observation import ATTACKS, Attack, Observation, ThreatError


@ATTACKS.register("loss")
@dataclass(frozen=True, eq=False)
class Loss(Attack):
    """Score by the loss on the shadow examples; see `Attack` for the parameters.

    Client inference by loss: a model that the target trained fits the target's data better.

    Source: Sáinz-Pardo Díaz et al. 2026 (metric privacy), section 7.4.2; the per-round score of its multi-round attack,
    here averaged over the rounds of a run so that one run gives one number.

    Threat model: semi-honest client; receives the models, holds shadow examples.

        s_r = -loss(W_r, shadow)
    """

    name: ClassVar[str] = "loss"
    summary: ClassVar[str] = "minus the loss on shadow data (the paper's score), mean over rounds"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow"})

    def run(self, observation: Observation) -> Tensor:
        return -self.knowledge.loss_of(observation.models[1:], self.knowledge.shadow)


@ATTACKS.register("calibrated-loss")
@dataclass(frozen=True, eq=False)
class CalibratedLoss(Attack):
    """Score by the loss on shadow examples, less their difficulty; see `Attack` for the parameters.

    Client inference by a calibrated loss: easy examples have a low loss whoever trained, so compare with an outsider.

    Source: difficulty calibration of membership inference (Watson et al. 2022, arXiv 2111.08440), here for a client's
    whole shadow set, and against the same model's loss on reference examples, which takes off what the noise does to
    both.

    Threat model: semi-honest client; receives the models, holds shadow and reference examples, from which (and from its
    own data) it trained a model that never saw the target.

        s_r = [loss(W_r, reference) - loss(W_r, shadow)] - [loss(outsider, reference) - loss(outsider, shadow)]
    """

    name: ClassVar[str] = "calibrated-loss"
    summary: ClassVar[str] = "how far the loss on shadow data is below that of a model that never saw the target"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow", "reference"})

    def run(self, observation: Observation) -> Tensor:
        known = self.knowledge
        if known.reference is None or known.outsider is None:
            raise ThreatError(f"attack {self.name!r} needs reference examples and a model trained without the target")
        models = observation.models[1:]
        easier = known.loss_of(models, known.reference) - known.loss_of(models, known.shadow)
        outside = known.outsider[None, None]
        return easier - (known.loss_of(outside, known.reference) - known.loss_of(outside, known.shadow))


@ATTACKS.register("side-channel")
@dataclass(frozen=True, eq=False)
class SideChannel(Attack):
    """Score by the loss on shadow examples against the published one; see `Attack` for the parameters.

    Client inference through published metrics: the noise on a model moves both losses, and their difference forgets it.

    Source: FedVeil's own measurement; the difference of a shadow loss and the published loss is also what the
    single-shot attack of Sáinz-Pardo Díaz et al. 2026, section 7.4.1, computes.

    Threat model: semi-honest client; receives the models and the aggregated metrics, holds shadow examples.

        s_r = published loss_r - loss(W_r, shadow)
    """

    name: ClassVar[str] = "side-channel"
    summary: ClassVar[str] = "published aggregate loss minus the loss on shadow data"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "metrics", "shadow"})

    def run(self, observation: Observation) -> Tensor:
        published = [metrics.get("loss") for metrics in observation.published]
        if not published or any(value is None for value in published):
            raise ThreatError(f"attack {self.name!r} needs a published loss in every round, and there is none")
        aggregate = torch.tensor(published, dtype=torch.float64)
        return aggregate - self.knowledge.loss_of(observation.models[1:], self.knowledge.shadow)
