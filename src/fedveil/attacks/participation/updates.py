"""Client inference from how the model moved, less what the adversary and its colluders sent."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.attacks.observation import ATTACKS, Attack, Knowledge, Observation, ThreatError
from fedveil.clipping import clip


@ATTACKS.register("own-update")
@dataclass(frozen=True, eq=False)
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

    name: ClassVar[str] = "own-update"
    summary: ClassVar[str] = "the others' summed update (own one subtracted) along the target's trace"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow", "own updates"})

    def run(self, observation: Observation) -> Tensor:
        return trace(self.name, self.knowledge, observation, observation.sent[:1])


def trace(name: str, knowledge: Knowledge, observation: Observation, own: Tensor) -> Tensor:
    """The equations above for updates [c, R, d] of any number of clients."""
    if not len(own) or observation.models.shape[1] != 1:
        raise ThreatError(f"attack {name!r} needs the adversary's own updates and a single broadcast model")
    models = observation.models[:, 0]
    known = own if knowledge.clip is None else clip(own.reshape(-1, own.shape[2]), knowledge.clip).view_as(own)
    rest = observation.cohort * (models[1:] - models[:-1]) - known.sum(0)
    scores = []
    for start, moved in zip(models[:-1], rest, strict=True):
        direction = direction_of(knowledge, start)
        length = float(direction.double().norm())
        scores.append(float(moved.double() @ direction.double()) / length if length > 0 else 0.0)
    return torch.tensor(scores, dtype=torch.float64)


def direction_of(knowledge: Knowledge, start: Tensor) -> Tensor:
    """Where a client with the target's data would move the model [d], beyond where anybody would."""
    descent = -knowledge.gradient(start, knowledge.shadow)
    return descent if knowledge.reference is None else descent + knowledge.gradient(start, knowledge.reference)


@ATTACKS.register("colluding")
@dataclass(frozen=True, eq=False)
class Colluding(Attack):
    """Score by what the coalition did not send, along the target's trace; see `Attack` for the parameters.

    Colluding client inference: k clients subtract all they sent, and less is left to hide behind.

    Source: named, not built, in Sáinz-Pardo Díaz et al. 2026, section 8.1; the equations are those of `OwnUpdate`.
    With everybody but the target in the coalition, what is left without noise is the target's update itself.

    Threat model: k semi-honest clients that share what they sent; each receives the models; together they hold the
    shadow examples.

        rest_r = n (W_{r+1} - W_r) - sum over the k of clip(own update_r)
    """

    name: ClassVar[str] = "colluding"
    summary: ClassVar[str] = "as own-update, by several clients together"
    needs: ClassVar[frozenset[str]] = frozenset({"models", "shadow", "own updates", "colluders"})

    def run(self, observation: Observation) -> Tensor:
        return trace(self.name, self.knowledge, observation, observation.sent)
