"""One client's round of noised steps: its lots (random batches), their clipped sums, and the noise on each sum."""

import torch
from torch import Tensor

from fedveil.layout import Layout
from fedveil.learning.clients import ClientData, OnDemand
from fedveil.learning.local import Trained
from fedveil.learning.lots import Lots
from fedveil.learning.witness import note_failure
from fedveil.logs import logger
from fedveil.mechanisms import GaussianNoise, SecureSource, Source, noised
from fedveil.methods.facts import NoisySteps

_LOG = logger(__name__)


class NoisyRound:
    """Noised gradients of one client in one round: draw a lot, sum its clipped gradients, add noise.

    Parameters
    ----------
    noisy : NoisySteps
        Steps, sampling, clipping and noise.
    lots : Lots
        Clipped sums of the model's gradients at its current parameters.
    layout : Layout
        Layout of the model.
    client : ClientData
        Examples of the client.
    source : Source
        Randomness; lots, places and noise each have their own stream.
    """

    def __init__(
        self, noisy: NoisySteps, lots: Lots, layout: Layout, client: ClientData, source: Source
    ) -> None:
        self._noisy = noisy
        self._lots = lots
        self._layout = layout
        self._client = client
        self._drawn = source.child("lots")
        self._places = source.child("places")
        self._noise = source.child("noise")
        self._units = len(lots.units_of(client))
        self._loss = 0.0
        self._examples = 0
        self._failure: Exception | None = None
        batch_is_drawn = noisy.images or isinstance(
            client.x, OnDemand
        )  # order drawn from this round's source
        if (
            batch_is_drawn and type(source) is not SecureSource
        ):  # the other cases answer a repeated question with the same bits
            lots.whole.clear()

    def lot(self) -> Tensor:
        """Draw the units [m] of the next step, each independently with the sampling rate (Poisson sampling)."""
        if self._noisy.rate == 1:
            return torch.arange(self._units)
        return (self._drawn.uniform(self._units) < self._noisy.rate).nonzero()[:, 0]

    def clipped_sum(self, chosen: Tensor) -> Tensor:
        """Return the sum [d] of clipped gradients over the chosen units [m], without noise: float64, or int64 on a grid.

        If an error is raised, the sum is zero, and other steps are not affected.
        """
        total = torch.zeros(
            self._layout.size, dtype=torch.int64 if self._noisy.grid else torch.float64
        )
        try:
            if self._units:
                clipped, losses = self._lots.clipped_sum(self._client, chosen, self._places)
                total += clipped.cpu()
                self._loss += float(losses.sum())
                self._examples += len(losses)
        except Exception as error:
            self._failure = error
        return total

    def gradient(self, chosen: Tensor) -> Tensor:
        """Return the noised mean gradient [d] of a step: the noised sum, divided by a constant and rounded."""
        total = noised(
            self.clipped_sum(chosen),
            GaussianNoise(self._noisy.deviation),
            self._noise,
            self._layout.dtype,
        )
        gradient = (total / self._noisy.denominator).to(self._layout.dtype)
        if self._noisy.regions and self._units:
            gradient += self._blanked_gradient()
        return gradient

    def _blanked_gradient(self) -> Tensor:
        """Return the mean gradient [d] of all blanked examples, which is public.

        It is added after the noise. If it were added before, a long gradient could swallow the differences and their
        noise in rounding.
        """
        planned = self._noisy.denominator / self._noisy.rate
        total = self._lots.blanked_sum(self._client).cpu()
        return (total / planned).to(self._layout.dtype)

    def trained(self, model: Tensor, total: Tensor | None = None) -> Trained:
        """Return the result of the round, with the model [d] or the sum [d] of a step on a grid."""
        if self._failure is not None:
            _LOG.error("the examples of a step failed, and count as zero", exc_info=self._failure)
        failed = None if self._examples else self._failure
        if failed is not None:
            note_failure(failed)
        mean = self._loss / max(self._examples, 1)
        return Trained(model, self._client.examples, mean, self._noisy, failed, total=total)
