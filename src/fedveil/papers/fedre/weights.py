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
    """The server's weights of a round, and those if one client had sent another model in its place.

    Weights are multiples of the mean's, 1 / K, in the mean over layers: `largest` of any client, `crafted` of one that
    sends zeros, whose scores are the least there are, `loud` of one that sends its model a hundred times as large.
    `scoring` is the time that scoring K models takes on the server, over the round's; `client_scoring` that of one
    client's scoring, times K.
    """

    figures: ClassVar[tuple[str, ...]] = ("largest", "crafted", "loud", "scoring", "client_scoring")

    def __init__(self, full: Config) -> None:
        self.method, self.probes, self.images = full.scoring.method, full.scoring.probes, full.scoring.images

    @property
    def name(self) -> str:
        """What is measured."""
        return "weights of PDA-PAM, those with one model of zeros or a hundred times as large, and the time of scoring"

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

        def weight(sent: Tensor) -> float:
            changed = torch.cat([scorer(sent), scores[1:]])
            return float(len(models) * perturbation_weights(changed)[0].mean())

        return {
            "largest": float(len(models) * perturbation_weights(scores).mean(1).max()),
            "crafted": weight(torch.zeros_like(models[:1])),
            "loud": weight(100 * models[:1]),
            "scoring": seconds / seen.record.seconds,
            "client_scoring": len(models) * self._client(seen) / seen.record.seconds,
        }

    def _client(self, seen: Seen) -> float:
        """Seconds that the first client's scoring takes."""
        client, learner = seen.federation.clients[0], seen.federation.learner
        rows = slice(0, self.images)
        everything = torch.ones(len(client.x[rows]), *client.x.shape[2:], dtype=torch.bool)
        given = (client.x[rows], client.y[rows], everything, self.method)
        models, began = seen.broadcast.models[:1], perf_counter()
        score_models(learner.model, learner.layout, learner.local.loss, models, *given, probes=self.probes)
        return perf_counter() - began


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
