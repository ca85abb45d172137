"""Huang's attack: also match normalisation statistics, where the model has batch normalisation.

Source: Huang, Gupta, Song, Li and Arora 2021 (arXiv 2112.00059), who show how much of inversion's success rests on
knowing them; the penalty is that of Yin et al. 2021 (arXiv 2104.07586).

Threat model: honest-but-curious server; knows how clients train, and mean and variance of the inputs of each
normalisation layer: `RunningStatistics` from the client (in the buffers of `ServerKnowledge.model`; FedVeil never sends
them, so the usual server lacks this capability), `EstimatedStatistics` from reference images of its own.

    cosine's objective  +  w mean over layers of  |mean(x) - mu|^2 / |mu|^2 + |var(x) - s^2|^2 / |s^2|^2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedveil.attacks.inversion.cosine import Cosine, Prior
from fedveil.attacks.inversion.knowledge import ServerKnowledge
from fedveil.attacks.inversion.simulate import Simulator
from fedveil.attacks.observation import Received
from fedveil.errors import FieldError

_Normalisation = nn.modules.batchnorm._BatchNorm
Statistics = list[tuple[Tensor, Tensor]]  # mean and variance of each layer's inputs, by channel


@dataclass(frozen=True, kw_only=True)
class RunningStatistics(Cosine):
    """Match the client's running statistics too; see `Cosine` for the other parameters.

    Parameters
    ----------
    statistics : float
        Weight w of the statistics.
    """

    statistics: float = 0.1

    name: ClassVar[str] = "running-statistics"
    summary: ClassVar[str] = "as cosine, with the running statistics of the client's normalisation layers"
    needs: ClassVar[frozenset[str]] = Cosine.needs | {"statistics"}

    def _prior(self, simulator: Simulator, received: Received, known: ServerKnowledge) -> Prior:
        wanted = self._wanted(simulator, known)

        def prior(x: Tensor) -> Tensor:
            total = x.new_zeros(())
            for (mean, variance), (mu, s2) in zip(observed(simulator, x), wanted, strict=True):
                total = total + (mean - mu).square().sum() / mu.square().sum().clamp(min=1e-12)
                total = total + (variance - s2).square().sum() / s2.square().sum().clamp(min=1e-12)
            return self.statistics * total / len(wanted)

        return prior

    def _wanted(self, simulator: Simulator, known: ServerKnowledge) -> Statistics:
        """Mean and variance of each layer, as the server's copy of the buffers has them."""
        found = []
        for part in layers(simulator):
            if part.running_mean is None or part.running_var is None:
                raise FieldError("model", type(known.model).__name__, "its normalisation keeps no running statistics")
            found.append((part.running_mean.detach().clone(), part.running_var.detach().clone()))
        return found


@dataclass(frozen=True, kw_only=True)
class EstimatedStatistics(RunningStatistics):
    """Match statistics estimated on reference images; see `RunningStatistics` for the parameters."""

    name: ClassVar[str] = "estimated-statistics"
    summary: ClassVar[str] = "as cosine, with normalisation statistics estimated on reference images"
    needs: ClassVar[frozenset[str]] = Cosine.needs | {"reference"}

    def _wanted(self, simulator: Simulator, known: ServerKnowledge) -> Statistics:
        if known.reference is None:
            raise FieldError("reference", None, "statistics are estimated on reference images: give some")
        with torch.no_grad():
            return observed(simulator, known.reference.to(simulator.start.dtype))


def layers(simulator: Simulator) -> list[_Normalisation]:
    """The normalisation layers.

    Raises
    ------
    FieldError
        If there is none.
    """
    found = [part for part in simulator.module.modules() if isinstance(part, _Normalisation)]
    if not found:
        kind = type(simulator.known.model).__name__
        raise FieldError("model", kind, "has no batch normalisation, hence no statistics to match: use cosine")
    return found


def observed(simulator: Simulator, x: Tensor) -> Statistics:
    """Mean and variance of what enters each normalisation layer on examples [N, ...], under the start."""
    found: Statistics = []

    def note(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0].transpose(0, 1).flatten(1)
        found.append((rows.mean(1), rows.var(1, correction=0)))

    handles = [part.register_forward_pre_hook(note) for part in layers(simulator)]
    try:
        simulator.outputs(simulator.start, x)
    finally:
        for handle in handles:
            handle.remove()
    return found
