"""Layer scores of clients and of the public set: choice of images, and treatment of clients without masks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedveil.checks import Count, Parameters
from fedveil.errors import FieldError
from fedveil.layout import Layout
from fedveil.learning.clients import ClientData
from fedveil.learning.losses import LossFunction
from fedveil.learning.scores import Region, score_models
from fedveil.learning.streams import Key, stream

Unmarked = Literal["everything", "uniform", "refuse"]


@dataclass(frozen=True, kw_only=True)
class Scoring(Parameters):
    """Options of layer scores on a client's sensitive pixels, for FedRE.

    Parameters
    ----------
    images : int
        Number of images that are scored, in place of all images of a client. The scores are used for `every` rounds.
    every : int
        Number of rounds between scorings; in between a client uses its last scores. Above 1, every client must take
        part in every round.
    draw : {"fixed", "anew"}
        Choice among the images with marked pixels. "fixed": the first ones. "anew": others in every round.
    method : {"exact", "estimate", "signal"}
        Method, as for `layer_scores`.
    probes : int
        Random directions of the estimate.
    unmarked : {"everything", "uniform", "refuse"}
        Treatment of a client without marked pixels: every pixel counts as sensitive, the budget is split evenly, or the
        client fails and sends noise alone. The noise reveals the split to the server; an even split reveals that the
        client has no marked pixels or failed.
    pixels : {"marked", "all"}
        "all" scores layers on whole images, whatever is marked, also on the server: the baseline without regions.
    """

    images: Count = 10
    draw: Literal["fixed", "anew"] = "fixed"
    method: Literal["exact", "estimate", "signal"] = "exact"
    probes: Count = 32
    unmarked: Unmarked = "everything"
    pixels: Literal["marked", "all"] = "marked"
    every: Count = 1


@dataclass(frozen=True, eq=False)
class LayerScorer:
    """Compute layer scores of models, for methods that need them.

    Parameters
    ----------
    model : torch.nn.Module
        Architecture.
    layout : Layout
        Layout of the model.
    loss : str or callable
        Loss of local training.
    region : Region, optional
        Sensitive pixels of every image.
    how : Scoring
        Options: images, draws and method.
    unmarked : mapping of int to str
        For single clients, by partition: a value that replaces `Scoring.unmarked`.
    """

    model: nn.Module
    layout: Layout
    loss: str | LossFunction
    region: Region | None
    how: Scoring
    unmarked: Mapping[int, str]

    def of_client(self, start: Tensor, client: ClientData, key: Key) -> dict[str, float]:
        """Score the layers of a start [d] on a client's images; scores by layer name."""
        layers = self.layout.groups("module")
        choice = self.unmarked.get(key[2], self.how.unmarked)
        if choice == "uniform" and _marks_nothing(client, self.how):
            return dict.fromkeys(layers, 1.0)
        [scores] = self._score(start[None], client, key, choice)
        return dict(zip(layers, scores.tolist(), strict=True))

    def of_models(self, models: Tensor, public: ClientData) -> Tensor:
        """Score the layers of models [n, d] on public images, [n, L]."""
        return self._score(models, public, None, self.how.unmarked)

    def _score(self, models: Tensor, data: ClientData, key: Key | None, unmarked: str) -> Tensor:
        """Return scores [n, L] on a few images with their sensitive pixels."""
        masks, how = data.masks, self.how
        images = (
            data.x if data.x.dim() > 2 else data.x[:, None, None]
        )  # features are one row of pixels
        if how.pixels == "all":
            masks = torch.ones(len(images), *images.shape[2:], dtype=torch.bool)
        if masks is None and self.region is None:
            accepted = "the method scores layers on a region: give (top, left, bottom, right), or data with masks"
            raise FieldError("region", None, accepted)
        if _marks_nothing(data, how):
            if unmarked == "refuse":
                owner = "the public set" if key is None else "the client"
                raise FieldError(
                    "masks",
                    "empty",
                    f"{owner} marks nothing as sensitive: mark something, or allow that",
                )
            masks = images.new_ones(len(images), *images.shape[2:], dtype=torch.bool)
        rows = scored_rows(data, how, key)
        where = self.region if masks is None else masks[rows]
        assert where is not None
        return score_models(
            self.model,
            self.layout,
            self.loss,
            models,
            images[rows],
            data.y[rows],
            where,
            how.method,
            probes=how.probes,
        )


def scored_rows(data: ClientData, how: Scoring, key: Key | None = None) -> Tensor:
    """Choose the images on which layers are scored, as ascending row numbers; `key` is a client's, None for public data."""
    rows = torch.arange(len(data.x))
    if data.masks is not None and how.pixels == "marked" and data.masks.any():
        rows = data.masks.flatten(1).any(1).nonzero().reshape(-1)
    if how.draw == "anew" and key is not None:
        rows = rows[torch.randperm(len(rows), generator=stream(key, "scored images"))]
    return rows[: how.images].sort().values


def _marks_nothing(data: ClientData, how: Scoring) -> bool:
    if data.masks is None or how.pixels != "marked":
        return False
    return not bool(data.masks.any())
