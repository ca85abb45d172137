"""Inversion by the direction of the update: cosine similarity, with normalisation statistics, or in groups."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedveil.errors import FieldError
from fedveil_lab.attacks.inversion.analytic import recover_labels
from fedveil_lab.attacks.inversion.knowledge import (
    INVERSIONS,
    Inversion,
    Reconstruction,
    ServerKnowledge,
)
from fedveil_lab.attacks.inversion.matching import Matching, best_start, signed_adam
from fedveil_lab.attacks.inversion.metrics import matched
from fedveil_lab.attacks.observation import Received

Objective = Callable[[Tensor], Tensor]  # examples [N, ...] -> a number


@INVERSIONS.register("cosine")
@dataclass(frozen=True, kw_only=True)
class Cosine(Inversion):
    """Attack that matches the direction of the update, by signed Adam.

    Cosine similarity and total variation: what works on ReLU networks.

    Source: Geiping, Bauermeister, Droege and Moeller 2020 (Inverting Gradients, arXiv 2003.14053), on updates.

    Threat model: honest-but-curious server; receives the client's own model, knows how it trained.

        min over x    2 (1 - cos(U(x, y), u))  +  w TV(x)          by Adam on the signs of the gradient

    U simulates local training, labels y are read from the last layer. A direction is all that this needs: flat clipping
    changes nothing. Noise-aware: coordinates weigh as their noise allows, and w grows with the noise, see `matching`.

    Parameters
    ----------
    steps : int
        Steps of Adam from one start.
    lr : float
        First step, as a share of the pixels' range.
    variation : float
        Weight of the mean total variation where there is no noise.
    restarts : int
        Number of further starts; the result with the best objective is returned.
    seed : int
        Seed of the starts.
    """

    steps: int = 800
    lr: float = 0.1
    variation: float = 1e-3
    restarts: int = 0
    seed: int = 0

    summary: ClassVar[str] = "match the update's direction under total variation, by signed Adam"

    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        matching = Matching(received, known, self.seed, dtype=torch.float32)
        labels, prior = recover_labels(received, known, matching.generator), self._prior(matching)

        def objective(x: Tensor) -> Tensor:
            return matching.cosine(x[None], labels) + matching.prior(x, self.variation) + prior(x)

        best, value = best_start(
            lambda _: signed_adam(objective, matching.dummy(), known.pixels, self.steps, self.lr),
            self.restarts,
        )
        return Reconstruction(best.to(torch.float64), labels, value)

    def _prior(self, matching: Matching) -> Objective:
        """Further penalty of subclasses; none here."""
        return lambda x: x.new_zeros(())


_Normalisation = nn.modules.batchnorm._BatchNorm
Statistics = list[tuple[Tensor, Tensor]]  # mean and variance of each layer's inputs, by channel


@INVERSIONS.register("running-statistics")
@dataclass(frozen=True, kw_only=True)
class RunningStatistics(Cosine):
    """Attack that also matches the client's normalisation statistics; see `Cosine` for other parameters.

    Huang's attack: also match normalisation statistics, where the model has batch normalisation.

    Source: Huang, Gupta, Song, Li and Arora 2021 (arXiv 2112.00059), who show how much of inversion's success rests on
    knowing them; the penalty is that of Yin et al. 2021 (arXiv 2104.07586).

    Threat model: honest-but-curious server; knows how clients train, and mean and variance of the inputs of each
    normalisation layer: `RunningStatistics` from the client (in the buffers of `ServerKnowledge.model`; FedVeil never
    sends them, so the usual server lacks this capability), `EstimatedStatistics` from reference images of its own.

        cosine's objective  +  w mean over layers of  |mean(x) - mu|^2 / |mu|^2 + |var(x) - s^2|^2 / |s^2|^2

    Parameters
    ----------
    statistics : float
        Weight w of the statistics.
    """

    statistics: float = 0.1

    summary: ClassVar[str] = (
        "as cosine, with the running statistics of the client's normalisation layers"
    )
    needs: ClassVar[frozenset[str]] = Cosine.needs | {"statistics"}

    def _prior(self, matching: Matching) -> Objective:
        wanted = self._wanted(matching)

        def prior(x: Tensor) -> Tensor:
            total = x.new_zeros(())
            for (mean, variance), (mu, s2) in zip(observed(matching, x), wanted, strict=True):
                total = total + (mean - mu).square().sum() / mu.square().sum().clamp(min=1e-12)
                total = total + (variance - s2).square().sum() / s2.square().sum().clamp(min=1e-12)
            return self.statistics * total / len(wanted)

        return prior

    def _wanted(self, matching: Matching) -> Statistics:
        """Return mean and variance of each layer, from the server's copy of the buffers."""
        wanted = []
        for part in layers(matching):
            if part.running_mean is None or part.running_var is None:
                kind = type(matching.known.model).__name__
                raise FieldError("model", kind, "its normalisation keeps no running statistics")
            wanted.append((part.running_mean.detach().clone(), part.running_var.detach().clone()))
        return wanted


@INVERSIONS.register("estimated-statistics")
class EstimatedStatistics(RunningStatistics):
    """Attack that matches statistics estimated on reference images; see `RunningStatistics` for the parameters."""

    summary: ClassVar[str] = (
        "as cosine, with normalisation statistics estimated on reference images"
    )
    needs: ClassVar[frozenset[str]] = Cosine.needs | {"reference"}

    def _wanted(self, matching: Matching) -> Statistics:
        reference = matching.known.reference
        if reference is None:
            raise FieldError(
                "reference", None, "statistics are estimated on reference images: give some"
            )
        with torch.no_grad():
            return observed(matching, reference.to(matching.start.dtype))


def layers(matching: Matching) -> list[_Normalisation]:
    """Find the model's normalisation layers.

    Raises
    ------
    FieldError
        If there is none.
    """
    normalisations = [
        part for part in matching.module.modules() if isinstance(part, _Normalisation)
    ]
    if not normalisations:
        kind = type(matching.known.model).__name__
        raise FieldError(
            "model", kind, "has no batch normalisation, hence no statistics to match: use cosine"
        )
    return normalisations


def observed(matching: Matching, x: Tensor) -> Statistics:
    """Measure mean and variance of each normalisation layer's inputs on examples [N, ...], under the start."""
    statistics: Statistics = []

    def note(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0].transpose(0, 1).flatten(1)
        statistics.append((rows.mean(1), rows.var(1, correction=0)))

    handles = [part.register_forward_pre_hook(note) for part in layers(matching)]
    try:
        matching.outputs(matching.start, x)
    finally:
        for handle in handles:
            handle.remove()
    return statistics


@INVERSIONS.register("see-through")
@dataclass(frozen=True, kw_only=True)
class SeeThrough(Cosine):
    """Attack that makes reconstructions from several seeds agree; see `Cosine` for other parameters.

    See-Through's group consistency for larger batches: several reconstructions at once, each pulled to their mean.

    Source: Yin, Mallya, Vahdat, Alvarez, Kautz and Molchanov 2021 (See Through Gradients, arXiv 2104.07586). Images are
    registered by the Hungarian method among equal labels, not by optical flow, which small pictures do not need.

    Threat model: honest-but-curious server; receives the client's own model, knows how it trained.

        sum over seeds g of [cosine's objective of x_g  +  w |x_g - mean of the registered x_h|^2 / pixels]

    The seed with the least cosine distance is returned. A group of G costs G times as much as `cosine`.

    Parameters
    ----------
    group : int
        Number of seeds.
    consistency : float
        Weight w.
    register_every : int
        Steps between registrations; the group runs free before the first.
    """

    group: int = 3
    consistency: float = 0.05
    register_every: int = 100

    summary: ClassVar[str] = "as cosine, from several seeds drawn to their mean"

    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        matching = Matching(received, known, self.seed, dtype=torch.float32)
        labels = recover_labels(received, known, matching.generator)
        first = torch.stack([matching.dummy() for _ in range(self.group)])
        mean, calls = first.mean(0), 0

        def objective(group: Tensor) -> Tensor:
            nonlocal mean, calls
            calls += 1
            if calls % self.register_every == 0:
                mean = registered(group.detach(), labels)
            total = group.new_zeros(())
            for x in group:
                total = total + matching.cosine(x[None], labels) + matching.prior(x, self.variation)
                if calls >= self.register_every:
                    total = (
                        total
                        + self.consistency
                        * (x - in_order(mean, x.detach(), labels)).square().mean()
                    )
            return total

        group, _ = signed_adam(objective, first, known.pixels, self.steps, self.lr)
        fits = torch.stack([matching.cosine(x[None], labels).detach() for x in group])
        best = int(fits.argmin())
        return Reconstruction(group[best].to(torch.float64), labels, float(fits[best]))


def in_order(images: Tensor, like: Tensor, labels: Tensor) -> Tensor:
    """Reorder images [N, ...] to match those in `like` that they resemble most, within equal labels."""
    result = images.clone()
    for label in set(labels.tolist()):
        rows = (labels == label).nonzero()[:, 0]
        if len(rows) > 1:
            result[rows] = images[rows[matched(like[rows], images[rows])]]
    return result


def registered(group: Tensor, labels: Tensor) -> Tensor:
    """Order the images of each member of a group [G, N, ...] like those of the first, and return the members' mean."""
    return torch.stack([in_order(x, group[0], labels) for x in group]).mean(0)
