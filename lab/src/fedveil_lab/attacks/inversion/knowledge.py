"""What a server knows about a release that it inverts, and its reconstruction."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from fedveil.accounting import Spend, model_of
from fedveil.checks import Count, Parameters, Positive
from fedveil.engines import Seen
from fedveil.errors import FieldError, NoReplyError, require_non_negative, require_positive
from fedveil.layout import Layout
from fedveil.learning import ClientData, LocalTraining, marks_of
from fedveil_lab.attacks.observation import Attacks, Received, ThreatModel

if TYPE_CHECKING:
    from fedveil.engines import Federation

# The usual server: it follows the protocol, and works on what it receives.
SERVER = ThreatModel(
    "honest-but-curious server",
    frozenset({"client models", "training", "reference"}),
    {
        "statistics": "normalisation statistics never leave a client; the server may estimate them from reference images"
    },
)


@dataclass(frozen=True, eq=False)
class Marking:
    """Marks of a client's examples, which are public, and what a server knows of the rest.

    Attributes
    ----------
    marks : Tensor
        Marked coordinates, bool [N, *shape].
    blank : float
        Value of a blanked coordinate.
    differences : bool
        Whether the client clips what marked content changes of an example's gradient, and nothing else
        (`fedveil.learning.regions`).
    x, y : Tensor, optional
        Examples and labels with their marked content blanked, if all that is unmarked is known (capability
        ``unmarked``). Only marked content is then searched.
    """

    marks: Tensor
    blank: float
    differences: bool = False
    x: Tensor | None = None
    y: Tensor | None = None

    def around(self, x: Tensor) -> Tensor:
        """Put what is known around marked content that is tried, [..., N, *shape]."""
        if self.x is None:
            return x
        return torch.where(self.marks, x, self.x.to(x.dtype))

    def blanked(self, x: Tensor) -> Tensor:
        """Blank marked content, [N, *shape]."""
        return x.masked_fill(self.marks, self.blank)


@dataclass(frozen=True, kw_only=True, eq=False)
class ServerKnowledge(Parameters):
    """What a server knows about the training behind a release; the release itself contains none of it.

    Parameters
    ----------
    model : torch.nn.Module
        Model architecture; its buffers are the server's own copy of normalisation statistics.
    layout : Layout
        Layout of the model.
    local : LocalTraining
        Learning rate, epochs, batch size and loss. Only plain SGD can be simulated.
    shape : tuple of int
        Shape of one example, without the batch axis.
    examples : int
        Number N of examples on which the client trained.
    labels : Tensor, optional
        Labels, int64 [N], or [N, H, W] with a class per pixel, if they are known (capability ``labels``).
    clip : float or mapping of str to float, optional
        Public norm to which the client clips its update, or a norm for each layer.
    example_clip : float, optional
        Public norm to which the client clips each example's gradient (record-level DP).
    noise : float or mapping of str to float
        Standard deviation of the noise on one coordinate of the update, or one for each module; 0 if there is none or
        it is unknown.
    pixels : tuple of float
        Least and largest value of an input.
    reference : Tensor, optional
        Images of the same kind that belong to no client, [m, *shape].
    marking : Marking, optional
        Marks of the examples, and what is known beside marked content.

    Raises
    ------
    FieldError
        If the training cannot be simulated, or values do not fit.
    """

    model: nn.Module
    layout: Layout
    local: LocalTraining
    shape: tuple[int, ...]
    examples: Count = 1
    labels: Tensor | None = None
    clip: float | Mapping[str, float] | None = None
    example_clip: Positive | None = None
    noise: float | Mapping[str, float] = 0.0
    pixels: tuple[float, float] = (0.0, 1.0)
    reference: Tensor | None = None
    marking: Marking | None = None

    def __post_init__(self) -> None:
        """Refuse values that no attack here can use."""
        super().__post_init__()
        if self.local.optimizer != "sgd" or self.local.momentum:
            raise FieldError(
                "local.optimizer",
                self.local.optimizer,
                "only SGD without momentum can be simulated",
            )
        if self.local.loss != "cross_entropy":
            raise FieldError(
                "local.loss", self.local.loss, "inversion is of classifiers: cross_entropy"
            )
        name = self.local.unusual
        if name:
            raise FieldError(
                f"local.{name}", getattr(self.local, name), "is not simulated: leave it out"
            )
        pixels = (self.examples, *self.shape[1:])
        if self.labels is not None and (
            tuple(self.labels.shape) not in ((self.examples,), pixels)
            or self.labels.dtype != torch.int64
        ):
            given = (tuple(self.labels.shape), self.labels.dtype)
            raise FieldError(
                "labels",
                given,
                f"must be int64 [{self.examples}] or, a class a pixel, {list(pixels)}",
            )
        for name, value, check in (
            ("clip", self.clip, require_positive),
            ("noise", self.noise, require_non_negative),
        ):
            for each in (
                value.values() if isinstance(value, Mapping) else () if value is None else (value,)
            ):
                check(name, each)
            if isinstance(value, Mapping):
                self.layout.grouping_of(name, value)
        if not self.pixels[0] < self.pixels[1]:
            raise FieldError("pixels", self.pixels, "must be (least, largest)")
        if self.reference is not None and tuple(self.reference.shape[1:]) != tuple(self.shape):
            raise FieldError(
                "reference", tuple(self.reference.shape), f"must be [m, *{self.shape}]"
            )

    @property
    def data_range(self) -> float:
        """Difference between the largest and the smallest input value."""
        return self.pixels[1] - self.pixels[0]

    @property
    def capabilities(self) -> frozenset[str]:
        """Capabilities that a server needs to know this, beside those that an attack needs."""
        held = set()
        if self.labels is not None:
            held.add("labels")
        if self.marking is not None and self.marking.x is not None:
            held.add("unmarked")
        return frozenset(held)

    def deviations(self) -> Tensor:
        """Standard deviations of the noise, float64 [d]."""
        return deviations_of(self.noise, self.layout)


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Images that an attack reconstructed from one release.

    Attributes
    ----------
    images : Tensor
        Images, float64 [N, *shape], in no particular order, within the range of the inputs.
    labels : Tensor
        Labels in the order of `images`, int64 [N].
    objective : float
        Final value of the minimised objective; smaller is better among runs of one attack. NaN for attacks without one.
    """

    images: Tensor
    labels: Tensor
    objective: float


@dataclass(frozen=True, kw_only=True)
class Inversion(ABC):
    """Base class of inversion attacks; each documents its source, its needs and its equation.

    Attributes
    ----------
    name, summary : str
        Name in the registry, and a one-line summary for tables.
    needs : frozenset of str
        Capabilities that the attack needs.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset({"client models", "training"})

    @abstractmethod
    def run(self, received: Received, known: ServerKnowledge) -> Reconstruction:
        """Reconstruct the client's examples."""


INVERSIONS: Attacks[type[Inversion]] = Attacks("--attack", {}, group="fedveil.inversions")


def invert(
    received: Received, known: ServerKnowledge, attack: Inversion, threat: ThreatModel = SERVER
) -> Reconstruction:
    """Reconstruct a client's examples from its release.

    Parameters
    ----------
    received : Received
        Release of the client.
    known : ServerKnowledge
        What the server knows about the training.
    attack : Inversion
        The attack.
    threat : ThreatModel
        Capabilities of the adversary.

    Raises
    ------
    ThreatError
        If the attack needs a capability that the adversary lacks.
    FieldError
        If the attack cannot use this release: it is empty, missing, or of another model.
    """
    threat.require(attack.name, attack.needs | known.capabilities)
    require_readable(received, known)
    reconstruction = attack.run(received, known)
    return replace(reconstruction, images=reconstruction.images.clamp(*known.pixels))


def require_readable(received: Received, known: ServerKnowledge) -> None:
    """Refuse a release that no attack can use: of another model, damaged, or equal to its start."""
    known.layout.check(received.starts, "starts")
    known.layout.check(received.model, "model")
    if not torch.isfinite(received.model).all():
        raise FieldError(
            "model", "NaN or infinity", "the release is damaged: there is nothing to invert"
        )
    if not bool(received.update.any()):
        raise FieldError("update", 0.0, "the client sent its start: there is nothing to invert")


def two_sided(mask: Tensor) -> bool:
    """Whether a mask [n, H, W] has pixels inside and outside in every image."""
    flat = mask.flatten(1)
    return bool((flat.any(1) & ~flat.all(1)).all())


@dataclass(frozen=True, eq=False)
class Captured:
    """Release of one client, the server's knowledge, and the true data to judge by.

    Attributes
    ----------
    received : Received
        The release.
    known : ServerKnowledge
        What the server knows about the training.
    data : ClientData
        The client's training and held-out examples.
    """

    received: Received
    known: ServerKnowledge
    data: ClientData

    @property
    def others(self) -> Tensor:
        """Images that the client held out."""
        if self.data.test_x is None:
            return self.data.x[:0]
        return self.data.test_x

    @property
    def mask(self) -> Tensor | None:
        """The client's sensitive pixels [n, H, W], if every image has sensitive pixels and others; else None."""
        if self.data.masks is not None and two_sided(self.data.masks):
            return self.data.masks
        return None


class ReleaseView:
    """Probe that keeps what the server receives in a round, as `Captured` releases, for inversion.

    The server is assumed to know each release's noise scale, although adaptive methods hide it. So a defence is judged
    by the stronger adversary. Under central trust it receives unprotected models.

    Parameters
    ----------
    reference : Tensor, optional
        Images that belong to no client, for attacks that estimate statistics, [m, ...].
    pixels : tuple of float
        Range of the inputs.

    Attributes
    ----------
    released : list of Captured
        Releases of the last round.
    """

    name = "releases"
    figures: Collection[str] = ()

    def __init__(
        self, reference: Tensor | None = None, pixels: tuple[float, float] = (0.0, 1.0)
    ) -> None:
        self._reference, self._pixels = reference, pixels
        self.released: list[Captured] = []

    def __call__(self, seen: Seen) -> dict[str, float]:
        """Keep a round's releases.

        Raises
        ------
        NoReplyError
            If a client failed, since the remaining releases would be a biased selection.
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
                marking=_marking_of(federation, data),
                **defence_of(federation, partition),
            )
            received = Received(
                seen.broadcast.public.round, partition, seen.broadcast.models, model
            )
            self.released.append(Captured(received, known, data))
        return {}


def play_round(
    federation: "Federation",
    *,
    reference: Tensor | None = None,
    pixels: tuple[float, float] = (0.0, 1.0),
) -> list[Captured]:
    """Play one more round of a federation, and return what its server receives; see `ReleaseView`."""
    view = ReleaseView(reference, pixels)
    federation.probes.append(view)
    federation.run(federation.round + 1)
    federation.probes.remove(view)
    return view.released


def _marking_of(federation: "Federation", data: ClientData) -> Marking | None:
    """Return a client's marks at region level; None at other levels."""
    noisy = federation.method.noisy
    if noisy is None or not noisy.noisy_steps.regions:
        return None
    return Marking(marks_of(data), noisy.noisy_steps.blank, differences=True)


def defence_of(
    federation: "Federation", partition: int, spend: Spend | None = None
) -> dict[str, Any]:
    """Return how the client trained, clipped and noised, by the names of `ServerKnowledge`.

    `spend` is what the client spent on the release; by default that of the last line of its ledger.
    """
    local, layout, method = federation.learner.local, federation.layout, federation.method
    if (
        method.noisy is not None
    ):  # the mean over a fixed number, in steps that see all examples in expectation
        noisy, count = method.noisy.noisy_steps, federation.clients[partition].examples
        lr = local.rate() * count * noisy.rate / noisy.denominator
        deviation = local.rate() * noisy.deviation * sqrt(noisy.steps) / noisy.denominator
        training = replace(local, lr=lr, epochs=noisy.steps, batch_size=count)
        return {"local": training, "example_clip": noisy.clip, "noise": deviation}
    if spend is None:
        entries = federation.party(partition).ledger.entries
        if entries:
            spend = entries[-1].spend
        else:
            spend = None
    local_trust = method.client.trust == "local"
    if spend is not None and local_trust:
        noise = noise_of(spend, layout)
    else:
        noise = 0.0
    clip = method.client_clip
    if isinstance(noise, dict) and isinstance(
        clip, float
    ):  # who noises layer by layer clips so, each to this norm
        clip = dict.fromkeys(noise, clip)
    return {"local": local, "clip": clip, "noise": noise}


def noise_of(spend: Spend, layout: Layout) -> float | dict[str, float]:
    """Return the deviation of the noise on one coordinate: one number for all, or one for each module.

    The length of n-dimensional Laplace noise follows Gamma(n, 1 / epsilon), so a coordinate has variance (n + 1) /
    epsilon^2.
    """
    if not spend.scale:
        return 0.0
    if spend.mechanism == "euclidean-laplace":
        return sqrt(layout.size + 1) / spend.scale[0]
    if len(spend.scale) == 1:
        return spend.scale[0]
    return dict(zip(layout.groups("module"), spend.scale, strict=True))


def deviations_of(noise: float | Mapping[str, float], layout: Layout) -> Tensor:
    """Return the noise's standard deviation on each coordinate, float64 [d], from one number or one per layer."""
    if not isinstance(noise, Mapping):
        return torch.full((layout.size,), float(noise), dtype=torch.float64)
    result = torch.zeros(layout.size, dtype=torch.float64)
    for name, slices in layout.groups(layout.grouping_of("noise", noise)).items():
        for part in slices:
            result[part] = noise[name]
    return result
