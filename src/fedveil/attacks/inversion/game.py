"""Releases to invert: one round of a federation, as its server receives it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from fedveil.accounting import Spend, model_of
from fedveil.attacks.inversion.knowledge import ServerKnowledge
from fedveil.attacks.inversion.metrics import two_sided
from fedveil.attacks.observation import Received
from fedveil.engines.probe import Seen
from fedveil.errors import NoReplyError
from fedveil.layout import Layout
from fedveil.learning import ClientData

if TYPE_CHECKING:
    from fedveil.engines import Federation


@dataclass(frozen=True, eq=False)
class Captured:
    """What the server received from one client, what it knows, and the truth to judge by.

    Attributes
    ----------
    received : Received
        The release.
    known : ServerKnowledge
        What the server knows beside it.
    data : ClientData
        What the client trained on, and what it held out.
    """

    received: Received
    known: ServerKnowledge
    data: ClientData

    @property
    def others(self) -> Tensor:
        """Images of the client that it did not train on."""
        return self.data.x[:0] if self.data.test_x is None else self.data.test_x

    @property
    def mask(self) -> Tensor | None:
        """The client's sensitive pixels [n, H, W], if every image has some, and others."""
        return self.data.masks if self.data.masks is not None and two_sided(self.data.masks) else None


class ReleaseView:
    """A probe that keeps what the server receives in a round, as `Captured` releases, for inversion.

    The server is taken to know each release's noise scale, which adaptive methods hide: the stronger adversary is the
    right one to judge a defence by. Under central trust it receives what clients trained, unprotected.

    Parameters
    ----------
    reference : Tensor, optional
        [m, ...], images that belong to nobody, for attacks that estimate statistics.
    pixels : tuple of float
        Range of the inputs.

    Attributes
    ----------
    released : list of Captured
        Of the last round.
    """

    name = "releases"
    figures: Collection[str] = ()

    def __init__(self, reference: Tensor | None = None, pixels: tuple[float, float] = (0.0, 1.0)) -> None:
        self._reference, self._pixels = reference, pixels
        self.released: list[Captured] = []

    def __call__(self, seen: Seen) -> dict[str, float]:
        """One round.

        Raises
        ------
        NoReplyError
            If a client failed: its release is missing, and the others would be a selection.
        """
        federation, log = cast("Federation", seen.federation), seen.record.round
        missing = dict(log.failed) | dict(seen.record.zeroed) | dict(log.refused)
        if missing:
            raise NoReplyError(f"clients without a release of their own: {missing}")
        self.released = []
        for partition, sent in seen.received.items():
            model, data = model_of(sent), federation.clients[partition]
            if model is None:
                raise NoReplyError(f"client {partition} released no model")
            known = ServerKnowledge(
                model=federation.learner.model,
                layout=federation.layout,
                shape=tuple(data.x.shape[1:]),
                examples=data.examples,
                pixels=self._pixels,
                reference=self._reference,
                **_defence(federation, partition),
            )
            received = Received(seen.broadcast.public.round, partition, seen.broadcast.models, model)
            self.released.append(Captured(received, known, data))
        return {}


def play_round(
    federation: Federation, *, reference: Tensor | None = None, pixels: tuple[float, float] = (0.0, 1.0)
) -> list[Captured]:
    """Play one more round of a federation, and hand over what its server receives; see `ReleaseView`."""
    view = ReleaseView(reference, pixels)
    federation.probes.append(view)
    federation.run(federation.round + 1)
    federation.probes.remove(view)
    return view.released


def _defence(federation: Federation, partition: int) -> dict[str, Any]:
    """How the client trained, clipped and noised, as `ServerKnowledge` names it."""
    local, layout, method = federation.learner.local, federation.layout, federation.method
    if method.noisy is not None:  # the mean over a fixed number, in steps that see all examples in expectation
        noisy, count = method.noisy.noisy_steps, federation.clients[partition].examples
        lr = local.rate() * count * noisy.rate / noisy.denominator
        deviation = local.rate() * noisy.deviation * sqrt(noisy.steps) / noisy.denominator
        training = replace(local, lr=lr, epochs=noisy.steps, batch_size=count)
        return {"local": training, "example_clip": noisy.clip, "noise": deviation}
    entries = federation.party(partition).ledger.entries
    noise = noise_of(entries[-1].spend, layout) if entries and method.client.trust == "local" else 0.0
    clip = method.client_clip
    if isinstance(noise, dict) and isinstance(clip, float):  # who noises layer by layer clips so, each to this norm
        clip = dict.fromkeys(noise, clip)
    return {"local": local, "clip": clip, "noise": noise}


def noise_of(spend: Spend, layout: Layout) -> float | dict[str, float]:
    """Deviation of the noise of one coordinate: of all, or of each module.

    The n-dimensional Laplace's length follows Gamma(n, 1 / epsilon), so that a coordinate has variance
    (n + 1) / epsilon^2.
    """
    if not spend.scale:
        return 0.0
    if spend.mechanism == "euclidean-laplace":
        return sqrt(layout.size + 1) / spend.scale[0]
    if len(spend.scale) == 1:
        return spend.scale[0]
    return dict(zip(layout.groups("module"), spend.scale, strict=True))
