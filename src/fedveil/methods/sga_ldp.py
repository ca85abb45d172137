"""SGA-LDP: each client's budget follows the cosine of its update with the last global update.

Source: the SGA-LDP paper, Algorithms 1 and 2, equations 2 to 4 (with Delta / max(1, ||Delta|| / C) for the garbled
equation 1). Trust model: untrusted server, some malicious clients. The server takes the plain mean. Heuristic: the
noise's size reveals the private cosine; and a malicious client that computes its own budget can lie. The reading of
section B, where the server works out the budget, is `sga-central` of the studies.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Literal

from torch import Tensor

from fedveil.accounting import Draw, Guarantee, Release, Spend, compose_mu, model_of, nothing, of_round
from fedveil.accounting.bounds import GDP, Heuristic
from fedveil.accounting.guarantee import LIVENESS
from fedveil.aggregation import Aggregator, require_rule
from fedveil.calibration import AlignmentLDP, cosine
from fedveil.checks import Clip, Delta, Epsilon, Fraction, NumberNoise
from fedveil.clipping import clip
from fedveil.gdp import mu_of_epsilon
from fedveil.layout import Layout
from fedveil.mechanisms import GaussianNoise, Source, noised
from fedveil.methods.contract import ClientDefaults, noise_figures
from fedveil.methods.facts import Broadcast, ClientFacts, Protected, Releases

_mu = lru_cache(maxsize=1024)(mu_of_epsilon)


@dataclass(frozen=True)
class LastBroadcast:
    """What a client remembers; none of it is private.

    Attributes
    ----------
    round : int
        Of the last broadcast that it received; 0: none yet.
    model, released : Tensor, optional
        That broadcast [d], and the model that it released then.
    reference : Tensor, optional
        [d], mean of the global updates until then, where it is averaged over rounds.
    similarity : float, optional
        Of that round's update, with its noise.
    """

    round: int = 0
    model: Tensor | None = None
    released: Tensor | None = None
    reference: Tensor | None = None
    similarity: float | None = None


@dataclass(frozen=True, kw_only=True)
class SGALDP(ClientDefaults):
    """Client side of SGA-LDP.

    The reference is the difference of the two latest broadcasts, so only a client that received both has one; in its
    first round and after a missed one it spends epsilon_min.

    Parameters
    ----------
    aggregator : Aggregator, optional
        The server's rule; FedAvg by default. It works on what is noised.
    epsilon_min, epsilon_max, delta : float
        Range of the budget per release: the paper's calibration, not a guarantee. Where both ends are equal (static
        local DP) the noise is the same in every round, and its cost for any two inputs is proven and composed.
    clip : float
        C.
    similarity : {"update", "released", "noised"}
        Which cosine decides: that of this round's private update (the paper); of the update that the client released
        last time (sound: the budget then follows from what the server knows already); or of last round's private
        update, with Gaussian noise, which is charged as a release of its own (sound, too).
    similarity_noise : float
        Deviation of that noise; max(0, cosine) lies in [0, 1], so a round's similarity costs mu = 1 / deviation.
    memory : float
        In [0, 1): the reference is memory times the one before plus (1 - memory) times the last global update. 0 is the
        paper's. Clients know it from the broadcasts; after a missed one it begins anew.

    Examples
    --------
    >>> side = fv.SGALDP(epsilon_min=1.0, epsilon_max=5.0, similarity="released")
    >>> side.similarity
    'released'
    """

    aggregator: Aggregator | None = field(default=None, kw_only=False)
    epsilon_min: Epsilon = 1.0
    epsilon_max: Epsilon = 5.0
    delta: Delta = 1e-5
    clip: Clip = 1.0
    similarity: Literal["update", "released", "noised"] = "update"
    similarity_noise: NumberNoise = 1.0
    memory: Fraction = 0.0

    outside_promise: ClassVar[frozenset[str]] = frozenset({"aggregator"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.aggregator is not None:
            require_rule("aggregator", self.aggregator)
        self._calibrator()

    @property
    def static(self) -> bool:
        """Whether the budget is the same whatever the cosine (the paper's static rule): its noise tells nothing."""
        return self.epsilon_min == self.epsilon_max

    def init(self) -> LastBroadcast:  # type: ignore[override]
        return LastBroadcast()

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Figures of the median client's noise."""
        return noise_figures(scales, layout, self.clip)

    def quote(self, broadcast: Broadcast, state: LastBroadcast) -> Spend:
        """A heuristic participation; in the sound variants and under the static rule the exact cost."""
        return self._spend((), self._known_epsilon(broadcast, state))

    def protect(self, releases: Releases, facts: ClientFacts, state: LastBroadcast, source: Source) -> Protected:
        """Clip and noise the update; everything else stays on the client. A failed client spends epsilon_min."""
        model = model_of(releases)
        if model is None:
            return Protected((), nothing("local"), state)
        now, calibrator = facts.broadcast.public.round, self._calibrator()
        update = clip(model - facts.start, self.clip)
        reference = self._reference(facts.broadcast, state)
        if self.similarity == "update":
            epsilon = calibrator.epsilon(update, None if facts.failed or self.static else reference)
            sigma = calibrator.sigma(epsilon)
        else:
            epsilon = self._known_epsilon(facts.broadcast, state)
            sigma = 2 * calibrator.sigma(epsilon)  # any two inputs: a clipped update can move by 2C
        similarity: float | None = None
        if self.similarity == "noised":
            aligned = 0.0 if reference is None else max(0.0, cosine(update, reference))
            noise = source.child("similarity").normal(1)
            similarity = aligned + self.similarity_noise * float(noise[0])
        released = facts.start + noised(update, GaussianNoise(sigma), source)
        kept = reference if self.memory else None
        after = LastBroadcast(now, facts.start.clone(), released.clone(), kept, similarity)
        return Protected((Release("model", released),), self._spend((sigma,), epsilon), after)

    def _calibrator(self) -> AlignmentLDP:
        return AlignmentLDP(self.epsilon_min, self.epsilon_max, self.delta, self.clip)

    def _known_epsilon(self, broadcast: Broadcast, state: LastBroadcast) -> float:
        """The budget, as far as it follows from earlier releases; else epsilon_min."""
        reference = None if self.static else self._reference(broadcast, state)
        if reference is None or state.model is None or state.released is None:
            return self.epsilon_min
        if self.similarity == "noised":
            return self._calibrator().epsilon_at(state.similarity or 0.0)
        if self.similarity == "released":
            return self._calibrator().epsilon(state.released - state.model, reference)
        return self.epsilon_min

    def _reference(self, broadcast: Broadcast, state: LastBroadcast) -> Tensor | None:
        """The last global update, or its mean over rounds, if the client received both broadcasts."""
        if state.model is None or state.round != broadcast.public.round - 1:
            return None
        last = broadcast.models[0] - state.model
        if not self.memory:
            return last
        return (1 - self.memory) * last + (0 if state.reference is None else self.memory * state.reference)

    def _spend(self, scale: tuple[float, ...], epsilon: float) -> Spend:
        guarantee = _promise(self)
        if not guarantee.proven:
            return Spend(guarantee=guarantee, mechanism="gaussian", scale=scale)
        charge = None if self.similarity == "update" else compose_mu((_mu(epsilon, self.delta), *_beside(self)))
        length = 2 * self.clip
        drawn = tuple(Draw(unit="client", relation="replace-one", moved=length, noise=sigma) for sigma in scale)
        if scale and self.similarity == "noised":
            drawn += (Draw(unit="client", relation="replace-one", moved=1.0, noise=self.similarity_noise),)
        return Spend(
            guarantee=guarantee, mechanism="gaussian", scale=scale, sensitivity=length, charge=charge, draws=drawn
        )


@lru_cache(maxsize=64)
def _promise(side: SGALDP) -> Guarantee:
    """The promise of a round, whatever is spent in it."""
    if side.similarity == "update" and not side.static:
        return of_round(Heuristic("the noise's size depends on the private update"), "local")
    mu = _mu(side.epsilon_max, side.delta)
    # static: calibrated to C, moved by 2C for any two inputs
    bound = GDP(2 * mu if side.similarity == "update" else compose_mu((mu, *_beside(side))))
    return of_round(bound, "local", "replace-one", LIVENESS)


def _beside(side: SGALDP) -> tuple[float, ...]:
    """What a round costs beside its model: the noised similarity, which lies in [0, 1]."""
    return (1 / side.similarity_noise,) if side.similarity == "noised" else ()
