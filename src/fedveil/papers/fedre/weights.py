"""What the scores decide: weights on the server, what one crafted model does to them, and how many images they need."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.accounting import model_of
from fedveil.aggregation import perturbation_weights
from fedveil.config import Config
from fedveil.engines.probe import Seen
from fedveil.errors import FieldError
from fedveil.learning import ClientData, score_models

FEW = (1, 2, 10)
ALL = 40  # images that stand for all of a client


class ServerWeights:
    """The server's weights of a round, and those if one client had sent zeros, whose scores are the least there are.

    Weights are multiples of the mean's, 1 / K, in the mean over layers: `largest` of any client, `crafted` of the one
    that sends zeros. `scoring` is the time that scoring K models takes, over the round's.
    """

    figures: ClassVar[tuple[str, ...]] = ("largest", "crafted", "scoring")

    def __init__(self, full: Config) -> None:
        """Nothing of the scenario is needed."""

    @property
    def name(self) -> str:
        """What is measured."""
        return "weights of PDA-PAM, and those with one model of zeros"

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """The figures of a round."""
        scorer = seen.federation.server.scorer
        found = [model_of(seen.received[p]) for p in sorted(seen.received)]
        models = torch.stack([model for model in found if model is not None])
        if scorer is None:
            raise FieldError("data.public_examples", 0, "the server scores models on public examples: set some aside")
        began = perf_counter()
        scores = scorer(models)
        seconds = perf_counter() - began
        crafted = scores.clone()
        crafted[0] = scorer(torch.zeros_like(models[:1]))[0]
        honest, changed = (len(models) * perturbation_weights(s).mean(1) for s in (scores, crafted))
        return {"largest": float(honest.max()), "crafted": float(changed[0]), "scoring": seconds / seen.record.seconds}


class FewImages:
    """How far shares of the budget from few images are from those of many: total variation, of the first client."""

    figures: ClassVar[tuple[str, ...]] = tuple(f"of {n}" for n in FEW)

    def __init__(self, full: Config) -> None:
        self.probes = full.scoring.probes

    @property
    def name(self) -> str:
        """With what decides the figures."""
        return f"budget shares from {FEW} images against {ALL}, {self.probes} directions"

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """The figures of a round."""
        client = seen.federation.clients[0]
        marked = torch.zeros(0) if client.masks is None else client.masks.flatten(1).any(1).nonzero().reshape(-1)
        if len(marked) <= max(FEW):
            raise FieldError("data.sensitive", None, f"must mark something in more than {max(FEW)} images of a client")
        every = self._shares(seen, client, marked[:ALL])
        few = {n: self._shares(seen, client, marked[-n:]) for n in FEW}
        return {f"of {n}": float((shares - every).abs().sum() / 2) for n, shares in few.items()}

    def _shares(self, seen: Seen, client: ClientData, rows: Tensor) -> Tensor:
        learner, models = seen.federation.learner, seen.broadcast.models[:1]
        assert client.masks is not None
        given = (client.x[rows], client.y[rows], client.masks[rows], "estimate")
        scores = score_models(learner.model, learner.layout, learner.local.loss, models, *given, probes=self.probes)[0]
        inverse = 1 / scores.clamp_min(1e-12 * float(scores.max()))
        return inverse / inverse.sum()
