"""What the scores decide: weights on the server, what one crafted model does to them, and how many images they need."""

from collections.abc import Mapping
from math import log
from statistics import fmean
from time import perf_counter
from typing import ClassVar

import torch
from torch import Tensor

from fedveil.accounting import model_of
from fedveil.aggregation import perturbation_weights
from fedveil.engines import Seen
from fedveil.errors import FieldError
from fedveil.learning import ClientData, score_models
from fedveil_lab.config import Config

FEW = (1, 2, 10)
ALL = 30  # images that stand for all of a client
DIRECTIONS, DRAWS = 16, 50  # of the comparison's scores; of images


class ServerWeights:
    """The server's weights of a round, and those if one client had sent another model in its place.

    Weights are multiples of the mean's, 1 / K, in the mean over layers: `largest` of any client, `crafted` of one that
    sends zeros, whose scores are the least there are, `loud` of one that sends its model a hundred times as large;
    `printed` is the largest of all under the printed weights, 1 / (K alpha), with that loud client, as a power of 10.
    `noise` is the power of the noise under the weights over that under the plain mean.
    `scoring` is the time that scoring K models takes on the server, over the round's; `client_scoring` that of one
    client's scoring, times K.
    """

    figures: ClassVar[tuple[str, ...]] = (
        "largest",
        "crafted",
        "loud",
        "printed",
        "noise",
        "scoring",
        "client_scoring",
    )

    def __init__(self, full: Config) -> None:
        """Take nothing from the configuration, as all is found in the round."""

    @property
    def name(self) -> str:
        """Name of the measurement."""
        return "weights of PDA-PAM, their noise, those with one model of zeros or 100 times as large, time of scoring"

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Return the figures of a round."""
        scorer = seen.federation.server.scorer
        sent = [model_of(seen.received[p]) for p in sorted(seen.received)]
        models = torch.stack([model for model in sent if model is not None])
        if scorer is None:
            raise FieldError(
                "data.public_examples",
                0,
                "the server scores models on public examples: set some aside",
            )
        began = perf_counter()
        scores = scorer(models)
        seconds = perf_counter() - began

        def weight(scored: Tensor) -> float:
            return float(
                len(models) * perturbation_weights(torch.cat([scored, scores[1:]]))[0].mean()
            )

        loud, weights = scorer(100 * models[:1]), perturbation_weights(scores)
        exponents = -torch.log_softmax(torch.cat([loud, scores[1:]]).double(), 0) - log(len(models))
        return {
            "largest": float(len(models) * weights.mean(1).max()),
            "crafted": weight(scorer(torch.zeros_like(models[:1]))),
            "loud": weight(loud),
            "printed": float(exponents.max()) / log(10),
            "noise": _noise_power(seen, weights),
            "scoring": seconds / seen.record.seconds,
            "client_scoring": len(models) * self._client(seen) / seen.record.seconds,
        }

    def _client(self, seen: Seen) -> float:
        """Seconds that the first client's scoring takes."""
        client, learner = seen.federation.clients[0], seen.federation.learner
        scoring, rows = learner.scoring, slice(0, learner.scoring.images)
        everything = torch.ones(len(client.x[rows]), *client.x.shape[2:], dtype=torch.bool)
        given = (client.x[rows], client.y[rows], everything, scoring.method)
        models, began = seen.broadcast.models[:1], perf_counter()
        score_models(
            learner.model, learner.layout, learner.local.loss, models, *given, probes=scoring.probes
        )
        return perf_counter() - began


def _noise_power(seen: Seen, weights: Tensor) -> float:
    """Squared noise in the round's sum, over that in the plain mean; 1 where nobody noised."""
    scales, layout = seen.record.client_scales, seen.federation.layout
    lengths = []
    for slices in layout.groups("module").values():
        lengths.append(sum(part.stop - part.start for part in slices))
    sizes = torch.tensor(lengths)
    deviations = [scales.get(p) or [0.0] * len(sizes) for p in sorted(seen.received)]
    powers = torch.tensor(deviations, dtype=torch.float64).square() * sizes
    plain = powers.sum() / len(weights) ** 2
    if plain:
        return float((weights.square() * powers).sum() / plain)
    return 1.0


class FewImages:
    """How far shares of the budget from few images are from those of many: total variation, in the mean over draws.

    Both are scored by `DIRECTIONS` random directions, each its own, so that `floor`, the distance of many images from
    themselves, is what directions leave; ``as run`` has the study's own number of images and directions. Scored are
    the model that opened the round, and the one that closed it (``trained``).
    """

    figures: ClassVar[tuple[str, ...]] = tuple(
        f"{when}{what}"
        for when in ("", "trained ")
        for what in (*(f"of {n}" for n in FEW), "floor", "as run")
    )

    def __init__(self, full: Config) -> None:
        """Take nothing from the configuration, as all is found in the round."""

    @property
    def name(self) -> str:
        """Name with everything that determines the figures."""
        return f"budget shares from {FEW} images of {ALL} in {DRAWS} draws, {DIRECTIONS} directions; and as run"

    def __call__(self, seen: Seen) -> Mapping[str, float]:
        """Return the figures of a round, for the first client with enough marked images."""
        wanted = max(*FEW, seen.federation.learner.scoring.images)
        for client in seen.federation.clients:
            if client.masks is None:
                continue
            marked = client.masks.flatten(1).any(1).nonzero().reshape(-1)
            if len(marked) > wanted:
                break
        else:
            raise FieldError(
                "data.sensitive",
                None,
                f"must mark something in more than {wanted} images of a client",
            )
        figures = self._distances(seen, seen.broadcast.models[:1], client, marked[:ALL])
        closed = self._distances(seen, seen.models[:1], client, marked[:ALL])
        for name, value in closed.items():
            figures[f"trained {name}"] = value
        return figures

    def _distances(
        self, seen: Seen, model: Tensor, client: ClientData, rows: Tensor
    ) -> dict[str, float]:
        assert client.masks is not None
        masks, learner = client.masks, seen.federation.learner

        def scored(some: Tensor, directions: int, seed: int) -> Tensor:
            given, method = (client.x[some], client.y[some], masks[some]), "estimate"
            own = (learner.model, learner.layout, learner.local.loss)
            return score_models(*own, model, *given, method, probes=directions, seed=seed)

        one = torch.cat([scored(row[None], DIRECTIONS, 2 * int(row)) for row in rows])
        other = torch.cat([scored(row[None], DIRECTIONS, 2 * int(row) + 1) for row in rows])
        every, generator = _shares(other), torch.Generator().manual_seed(0)
        draws = [torch.randperm(len(rows), generator=generator) for _ in range(DRAWS)]
        distances = {}
        for n in FEW:
            apart = [_apart(_shares(one[draw[:n]]), every) for draw in draws]
            distances[f"of {n}"] = fmean(apart)
        few = scored(rows[: learner.scoring.images], learner.scoring.probes, 0)
        distances["floor"] = _apart(_shares(one), every)
        distances["as run"] = _apart(_shares(few), every)
        return distances


def _shares(scores: Tensor) -> Tensor:
    """Shares of the budget [L] from the scores of images [n, L]."""
    mean = scores.mean(0)
    inverse = 1 / mean.clamp_min(1e-12 * float(mean.max()))
    return inverse / inverse.sum()


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum() / 2)
