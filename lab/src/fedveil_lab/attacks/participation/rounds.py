"""Client inference from single rounds: by the loss on shadow examples, or by the model's change.

A loss is used alone, or compared with an outsider's or the published loss. From a change of the model the updates of
the adversary and its colluders are subtracted.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedveil.clipping import clip
from fedveil_lab.attacks.observation import ATTACKS, Attack, Observation, ThreatError


@ATTACKS.register("loss")
class Loss(Attack):
    """Score by the loss on the shadow examples; see `Attack` for the parameters.

    Client inference by loss: a model that the target trained fits the target's data better.

    Source: Sáinz-Pardo Díaz et al. 2026 (metric privacy), section 7.4.2; the per-round score of its multi-round attack,
    here averaged over the rounds of a run so that one run gives one number.

    Threat model: semi-honest client; receives the models, holds shadow examples.

        s_r = -loss(W_r, shadow)
    """

    summary: ClassVar[str] = "minus the loss on shadow data (the paper's score), mean over rounds"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow"})

    def run(self, observation: Observation) -> Tensor:
        return -self.knowledge.loss_of(observation.models[1:], self.knowledge.shadow)


@ATTACKS.register("calibrated-loss")
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

    summary: ClassVar[str] = (
        "how far the loss on shadow data is below that of a model that never saw the target"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow", "reference"})

    def run(self, observation: Observation) -> Tensor:
        known = self.knowledge
        if known.reference is None or known.outsider is None:
            raise ThreatError(
                f"attack {self.name!r} needs reference examples and a model trained without the target"
            )
        models = observation.models[1:]
        easier = known.loss_of(models, known.reference) - known.loss_of(models, known.shadow)
        outside = known.outsider[None, None]
        return easier - (
            known.loss_of(outside, known.reference) - known.loss_of(outside, known.shadow)
        )


@ATTACKS.register("side-channel")
class SideChannel(Attack):
    """Score by the loss on shadow examples against the published one; see `Attack` for the parameters.

    Client inference through published metrics: the noise on a model moves both losses, and their difference forgets it.

    Source: FedVeil's own measurement; the difference of a shadow loss and the published loss is also what the
    single-shot attack of Sáinz-Pardo Díaz et al. 2026, section 7.4.1, computes.

    Threat model: semi-honest client; receives the models and the aggregated metrics, holds shadow examples.

        s_r = published loss_r - loss(W_r, shadow)
    """

    summary: ClassVar[str] = "published aggregate loss minus the loss on shadow data"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "metrics", "shadow"})

    def run(self, observation: Observation) -> Tensor:
        published = [metrics.get("loss") for metrics in observation.published]
        if not published or any(value is None for value in published):
            raise ThreatError(
                f"attack {self.name!r} needs a published loss in every round, and there is none"
            )
        aggregate = torch.tensor(published, dtype=torch.float64)
        return aggregate - self.knowledge.loss_of(observation.models[1:], self.knowledge.shadow)


@ATTACKS.register("own-update")
class OwnUpdate(Attack):
    """Score by the others' update along the target's trace; see `Attack` for the parameters.

    Client inference by subtraction: what moved the model, less what the adversary itself sent, along the target's
    trace.

    Source: the subtraction follows property inference against federated learning (Melis et al. 2019, arXiv 1805.04049);
    the projection is the matched filter for a known direction in Gaussian noise.

    Threat model: semi-honest client; receives the models, holds shadow examples (and, if it has them, reference
    examples), takes part and knows what it sent, the planned cohort n and the public clipping norm C.

        rest_r = n (W_{r+1} - W_r) - clip(own update_r)
        u_r    = gradient of loss(W_r, reference) - gradient of loss(W_r, shadow)      (without reference: - the latter)
        s_r    = <rest_r, u_r> / |u_r|

    It assumes that the model moves by the uniform mean of the updates. Under other rules the scale is off, and the sign
    of the projection still carries information.
    """

    summary: ClassVar[str] = (
        "the others' summed update (own one subtracted) along the target's trace"
    )
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow", "own updates"})

    def run(self, observation: Observation) -> Tensor:
        own, bound, models = self.sent(observation), self.knowledge.clip, observation.models[:, 0]
        if not len(own) or observation.models.shape[1] != 1:
            raise ThreatError(
                f"attack {self.name!r} needs the adversary's own updates and a single broadcast model"
            )
        if bound is None:
            known = own
        else:
            known = clip(own.reshape(-1, own.shape[2]), bound).view_as(own)
        rest = observation.cohort * (models[1:] - models[:-1]) - known.sum(0)
        scores = []
        for start, moved in zip(models[:-1], rest, strict=True):
            direction = self._direction(start)
            length = float(direction.double().norm())
            scores.append(
                float(moved.double() @ direction.double()) / length if length > 0 else 0.0
            )
        return torch.tensor(scores, dtype=torch.float64)

    def sent(self, observation: Observation) -> Tensor:
        """Return the updates [c, R, d] that are subtracted."""
        return observation.sent[:1]

    def _direction(self, start: Tensor) -> Tensor:
        """Return the direction [d] in which a client with the target's data would move the model, beyond everybody's move."""
        known = self.knowledge
        descent = -known.gradient(start, known.shadow)
        if known.reference is None:
            return descent
        return descent + known.gradient(start, known.reference)


@ATTACKS.register("colluding")
class Colluding(OwnUpdate):
    """Score by what the coalition did not send, along the target's trace; see `Attack` for the parameters.

    Colluding client inference: k clients subtract all they sent, and less is left to hide behind.

    Source: named, not built, in Sáinz-Pardo Díaz et al. 2026, section 8.1; the equations are those of `OwnUpdate`.
    With everybody but the target in the coalition, what is left without noise is the target's update itself.

    Threat model: k semi-honest clients that share what they sent; each receives the models; together they hold the
    shadow examples.

        rest_r = n (W_{r+1} - W_r) - sum over the k of clip(own update_r)
    """

    summary: ClassVar[str] = "as own-update, by several clients together"
    needs: ClassVar[frozenset[str]] = OwnUpdate.needs | {"colluders"}

    def sent(self, observation: Observation) -> Tensor:
        return observation.sent
