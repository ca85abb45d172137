"""Losses of validation clients, on which a run is stopped: noised at a price, or in the clear.

A validation client never trains; what it sends is the loss of a broadcast model on its data, and that is a release.

Noised, under local trust: the client cuts its loss to a declared range [0, R] and adds N(0, (z R)^2) before it leaves.
Any two data sets move the cut loss by at most R, so each release costs that client mu = 1 / z (replace-one); how many
releases one client makes is capped. Under central trust the server averages the cut losses and adds the noise once, as
`Publishing` does for metrics, in its own ledger. What is decided from these numbers is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch

from fedveil.accounting import Guarantee, Release, Spend, Trust, nothing
from fedveil.accounting.bounds import GDP
from fedveil.checks import Count, Parameters, Positive
from fedveil.mechanisms import GaussianNoise, Source, noised
from fedveil.methods.publishing import Publishing

ANSWERS = "whether and when a validation client answers does not depend on its data"


@dataclass(frozen=True, kw_only=True)
class Validation(Parameters):
    """What becomes of validation clients' losses.

    Parameters
    ----------
    losses : {"noised", "public"}
        Public: they are sent in the clear, as papers do; nothing is then promised to validation clients.
    noise_multiplier : float
        z: one release costs its client (central trust: the server) mu = 1 / z.
    loss_range : float
        R, the declared largest loss, in the units of the loss: not to be chosen by looking at private losses.
    releases : int
        Noised releases that one client makes at most, in a run.

    Raises
    ------
    FieldError
        For any other value.

    Examples
    --------
    >>> fv.Validation(noise_multiplier=4.0, loss_range=3.0).releases
    20
    """

    losses: Literal["noised", "public"] = "noised"
    noise_multiplier: Positive = 5.0
    loss_range: Positive = 3.0
    releases: Count = 20

    def quote(self, trust: Trust) -> Spend:
        """What one release costs its client, whatever its loss; nothing under central trust, where the server pays."""
        if self.losses == "public" or trust == "central":
            return nothing(trust)
        guarantee = Guarantee(
            unit="client",
            relation="replace-one",
            trust="local",
            scope="round",
            bound=GDP(1 / self.noise_multiplier),
            conditions=(ANSWERS,),
        )
        scale = (self.noise_multiplier * self.loss_range,)
        return Spend(guarantee=guarantee, mechanism="gaussian", scale=scale, sensitivity=self.loss_range)

    def release(self, loss: float, trust: Trust, source: Source) -> tuple[tuple[Release, ...], Spend]:
        """What one client sends, and what that costs it.

        Under central trust the server is the one to add noise. A loss that is no finite number counts as R, unless it
        is public.
        """
        spend = self.quote(trust)
        value = torch.tensor(loss, dtype=torch.float64)
        if spend.scale:
            cut = min(max(loss, 0.0), self.loss_range) if isfinite(loss) else self.loss_range
            value = noised(torch.tensor([cut], dtype=torch.float64), GaussianNoise(*spend.scale), source)[0]
        return (Release("metric", value, "validation_loss"),), spend

    def publishing(self) -> Publishing:
        """The server's side under central trust: the mean of the losses as a noised metric."""
        return Publishing(metrics="noised", noise_multiplier=self.noise_multiplier, loss_range=self.loss_range)
