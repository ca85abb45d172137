"""Metrics published to clients after each round, and losses of validation clients: with noise, or in the clear.

A published accuracy or loss is a release of the server, as the model is. An attacker with data like a client's can
compare its own loss with the published one. The noise on the model moves both losses alike, so it hides nothing here.

Noised metrics: each client's figures are cut to declared ranges, [0, loss_range] and [0, 1], and scaled to [0, 1]^m.
The server sums the deviations from the middle over all clients of the federation, adds Gaussian noise, and divides by
their fixed number N. A client without a figure counts as the middle. One client moves the mean by at most sqrt(m) /
(2N) under zero-out (the middle replaces its figures) and add/remove, and by sqrt(m) / N under replace-one. The noise
has sigma = z sqrt(m) / (2N).

A validation client never trains. It sends the loss of a broadcast model on its data, which is a release. With
``losses="noised"`` and local trust the client cuts its loss to a declared range [0, R] and adds N(0, (z R)^2).
Replacing the data moves the cut loss by at most R, so each release costs that client mu = 1 / z (replace-one). The
number of releases of one client is capped. Under central trust the server averages the cut losses and adds the noise
once, as `Publishing` does for metrics. That cost is in the server's ledger. Decisions from these numbers are
post-processing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from fedveil.accounting import Draw, Relation, Release, Spend, Trust, nothing, of_round
from fedveil.accounting.bounds import GDP, Heuristic
from fedveil.accounting.events import FACTOR
from fedveil.checks import Count, MetricRange, NumberNoise, Parameters
from fedveil.errors import FieldError
from fedveil.mechanisms import GaussianNoise, Source, noised

Mode = Literal["off", "noised", "clear"]

IN_THE_CLEAR = "clients see aggregated metrics without noise after each round"


@dataclass(frozen=True, kw_only=True)
class Publishing(Parameters):
    """Options for publishing mean metrics to clients: the loss, and the accuracy if there are classes.

    Parameters
    ----------
    metrics : {"off", "noised", "clear"}
        Off: nothing is published; training does not need it. Noised: each client's figures are cut to their ranges,
        averaged and noised, at a privacy cost. Clear: the mean over all held-out examples; the total is then not
        proven.
    noise_multiplier : float
        z of the noised metrics: a round costs mu = 1 / z (replace-one 2 / z).
    loss_range : float
        Declared largest loss, in units of the loss: losses are cut to it. Never read it off private losses.

    Raises
    ------
    FieldError
        For an invalid value.

    Examples
    --------
    >>> fv.Publishing(metrics="noised", noise_multiplier=2.0).metrics
    'noised'
    """

    metrics: Mode = "off"
    noise_multiplier: NumberNoise = 1.0
    loss_range: MetricRange = 3.0

    def release(
        self,
        names: Sequence[str],
        figures: Tensor,
        counts: Tensor,
        relation: Relation,
        source: Source,
    ) -> tuple[tuple[Release, ...], Spend]:
        """Compute the released metrics of one round, with their cost.

        Parameters
        ----------
        names : sequence of str
            m names, ``"loss"`` and ``"accuracy"``.
        figures : Tensor
            [N, m], metrics of each client of the federation, not yet cut or scaled; NaN without a measurement.
        counts : Tensor
            [N], held-out examples of each client.
        relation : {"zero-out", "add/remove", "replace-one"}
            Relation of the method, so that both costs add up.
        source : Source
            Randomness of the noise.
        """
        figures, counts = figures.to(torch.float64), counts.to(torch.float64)
        needed = (len(counts), len(names))
        if tuple(figures.shape) != needed or not len(counts):
            raise FieldError("figures", tuple(figures.shape), f"must be {list(needed)}, not empty")
        if self.metrics == "off":
            raise FieldError("metrics", self.metrics, "nothing is published")
        if self.metrics == "clear":
            measured = ~figures.isnan().any(1)
            total = torch.where(figures.isnan(), 0.0, figures * counts[:, None]).sum(0)
            spend = Spend(guarantee=of_round(Heuristic(IN_THE_CLEAR), "central", relation))
            return _named(names, total / counts[measured].sum()), spend
        largest = {"loss": self.loss_range}
        ranges = torch.tensor([largest.get(name, 1.0) for name in names], dtype=torch.float64)
        n, m = figures.shape
        within = figures.clamp(min=torch.zeros_like(ranges), max=ranges)
        cut = torch.where(figures.isnan(), ranges / 2, within)
        moved = math.sqrt(m) / (2 * n)  # zero-out sensitivity of the scaled mean
        sigma = self.noise_multiplier * moved
        mean = noised(0.5 + (cut / ranges - 0.5).mean(0), GaussianNoise(sigma), source)
        factor = FACTOR[relation]
        conditions: tuple[str, ...] = ()
        if relation == "add/remove":
            conditions = ("the number of clients stays the same whoever belongs",)
        guarantee = of_round(GDP(factor / self.noise_multiplier), "central", relation, *conditions)
        scale = tuple((sigma * ranges).tolist())
        drawn = (
            Draw(
                unit="client",
                relation=relation,
                moved=factor * moved,
                noise=sigma,
            ),
        )
        spend = Spend(
            guarantee=guarantee,
            mechanism="gaussian",
            scale=scale,
            sensitivity=factor * moved,
            draws=drawn,
        )
        return _named(names, mean * ranges), spend

    def describe(self) -> str:
        """Describe the publication in one line."""
        if self.metrics == "off":
            return "off: clients see no metrics"
        if self.metrics == "clear":
            return "clear: clients see them without noise, which no guarantee covers"
        cost = "each round's cost is a line of the ledger, and part of the total where there is one"
        return f"noised: z = {self.noise_multiplier:g}, losses cut at {self.loss_range:g}; {cost}"


def _named(names: Sequence[str], values: Tensor) -> tuple[Release, ...]:
    return tuple(Release("metric", value, name) for name, value in zip(names, values, strict=True))


ANSWERS = "whether and when a validation client answers does not depend on its data"


@dataclass(frozen=True, kw_only=True)
class Validation(Parameters):
    """Options for releasing validation clients' losses.

    Parameters
    ----------
    losses : {"noised", "public"}
        Public: losses are sent in the clear, as in papers; nothing is then promised to validation clients.
    noise_multiplier : float
        z: one release costs its client (central trust: the server) mu = 1 / z.
    loss_range : float
        R, the declared largest loss, in the units of the loss. Do not choose it by looking at private losses.
    releases : int
        Most noised releases of one client in a run.

    Raises
    ------
    FieldError
        For an invalid value.

    Examples
    --------
    >>> fv.Validation(noise_multiplier=4.0, loss_range=3.0).releases
    20
    """

    losses: Literal["noised", "public"] = "noised"
    noise_multiplier: NumberNoise = 5.0
    loss_range: MetricRange = 3.0
    releases: Count = 20

    def quote(self, trust: Trust) -> Spend:
        """Return the cost of one released loss for its client; under central trust the server is charged instead."""
        if self.losses == "public" or trust == "central":
            return nothing(trust)
        guarantee = of_round(GDP(1 / self.noise_multiplier), "local", "replace-one", ANSWERS)
        scale = (self.noise_multiplier * self.loss_range,)
        drawn = (
            Draw(
                unit="client",
                relation="replace-one",
                moved=self.loss_range,
                noise=scale[0],
            ),
        )
        return Spend(
            guarantee=guarantee,
            mechanism="gaussian",
            scale=scale,
            sensitivity=self.loss_range,
            draws=drawn,
        )

    def release(
        self,
        loss: float,
        trust: Trust,
        source: Source,
    ) -> tuple[tuple[Release, ...], Spend]:
        """Release one client's loss, and return it with its cost.

        Under central trust the server adds the noise. A loss that is not finite counts as R, unless it is public.
        """
        spend = self.quote(trust)
        value = torch.tensor(loss, dtype=torch.float64)
        if spend.scale:
            cut = min(max(loss, 0.0), self.loss_range) if isfinite(loss) else self.loss_range
            vector = torch.tensor([cut], dtype=torch.float64)
            value = noised(vector, GaussianNoise(*spend.scale), source)[0]
        return (Release("metric", value, "validation_loss"),), spend

    def publishing(self) -> Publishing:
        """Return the server's part under central trust: the mean of the losses as a noised metric."""
        return Publishing(
            metrics="noised",
            noise_multiplier=self.noise_multiplier,
            loss_range=self.loss_range,
        )
