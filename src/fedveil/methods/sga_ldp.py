"""SGA-LDP: each client's budget follows the cosine of its update with the last global update.

Source: the SGA-LDP paper, Algorithms 1 and 2, equations 2 to 4. Equation 1 is garbled; it is read as Delta / max(1,
||Delta|| / C). Trust model: untrusted server, some malicious clients. The server takes the plain mean. It is a
heuristic: the size of the noise reveals the private cosine, and a malicious client can lie about its budget. In section
B of the paper the server computes the budget; `sga-central` of the studies is that reading.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Literal

from torch import Tensor

from fedveil.accounting import (
    Draw,
    Guarantee,
    Release,
    Spend,
    compose_mu,
    model_of,
    nothing,
    of_round,
)
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
    """State of a client between rounds; none of it is private.

    Attributes
    ----------
    round : int
        Round of the last received broadcast; 0: none yet.
    model, released : Tensor, optional
        [d] each: the model of that broadcast, and the client's own release in that round.
    reference : Tensor, optional
        [d], mean of the global updates until then, if it is averaged over rounds.
    similarity : float, optional
        Noised similarity of that round's update.
    """

    round: int = 0
    model: Tensor | None = None
    released: Tensor | None = None
    reference: Tensor | None = None
    similarity: float | None = None


@dataclass(frozen=True, kw_only=True)
class SGALDP(ClientDefaults):
    """Client side of SGA-LDP.

    The last global update is the difference of the two latest broadcasts. Only a client that received both knows it; in
    its first round, and after a missed one, a client spends epsilon_min.

    Parameters
    ----------
    aggregator : Aggregator, optional
        Rule of the server, applied to noised models; FedAvg by default.
    epsilon_min, epsilon_max, delta : float
        Range of the budget of a release, and its delta: the paper's calibration, not a guarantee. If both limits are
        equal (static local DP), the cost for any two inputs is proven and composed.
    clip : float
        C, the clipping norm of an update.
    similarity : {"update", "released", "noised"}
        Update whose cosine sets the budget. "update": this round's private one (the paper). "released": the client's
        last release (sound). "noised": the last round's update; its cosine gets noise, which is charged as a release of
        its own (sound).
    similarity_noise : float
        Deviation of the noise on the cosine. max(0, cosine) lies in [0, 1], so a round's similarity costs mu = 1 /
        deviation.
    memory : float
        Weight in [0, 1) of earlier global updates in the reference of the cosine; the last one has the remaining
        weight. 0 is the paper's. After a missed broadcast the reference begins anew.

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
        """Whether the budget is fixed (the paper's static rule). The noise then reveals nothing about the cosine."""
        return self.epsilon_min == self.epsilon_max

    def init(self) -> LastBroadcast:  # type: ignore[override]
        return LastBroadcast()

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Return figures of the median client's noise."""
        return noise_figures(scales, layout, self.clip)

    def quote(self, broadcast: Broadcast, state: LastBroadcast) -> Spend:
        """Return the cost of taking part: exact for sound variants and a fixed budget, else heuristic."""
        return self._spend((), self._known_epsilon(broadcast, state))

    def protect(
        self,
        releases: Releases,
        facts: ClientFacts,
        state: LastBroadcast,
        source: Source,
    ) -> Protected:
        """Clip the update and add noise; nothing else leaves the client. A failed client spends epsilon_min."""
        model = model_of(releases)
        if model is None:
            return Protected((), nothing("local"), state)
        now, calibrator = facts.broadcast.public.round, self._calibrator()
        update = clip(model - facts.start, self.clip)
        reference = self._reference(facts.broadcast, state)
        if self.similarity == "update":
            unaligned = facts.failed or self.static
            epsilon = calibrator.epsilon(update, None if unaligned else reference)
            sigma = calibrator.sigma(epsilon)
        else:
            epsilon = self._known_epsilon(facts.broadcast, state)
            sigma = 2 * calibrator.sigma(
                epsilon
            )  # for any two inputs, as a clipped update can move by 2C
        similarity: float | None = None
        if self.similarity == "noised":
            aligned = 0.0 if reference is None else max(0.0, cosine(update, reference))
            noise = source.child("similarity").normal(1)
            similarity = aligned + self.similarity_noise * float(noise[0])
        released = facts.start + noised(update, GaussianNoise(sigma), source)
        kept = reference if self.memory else None
        after = LastBroadcast(
            now,
            facts.start.clone(),
            released.clone(),
            kept,
            similarity,
        )
        return Protected((Release("model", released),), self._spend((sigma,), epsilon), after)

    def _calibrator(self) -> AlignmentLDP:
        return AlignmentLDP(self.epsilon_min, self.epsilon_max, self.delta, self.clip)

    def _known_epsilon(self, broadcast: Broadcast, state: LastBroadcast) -> float:
        """Return the budget if it depends on earlier releases alone, else epsilon_min."""
        reference = None if self.static else self._reference(broadcast, state)
        if reference is None or state.model is None or state.released is None:
            return self.epsilon_min
        if self.similarity == "noised":
            return self._calibrator().epsilon_at(state.similarity or 0.0)
        if self.similarity == "released":
            return self._calibrator().epsilon(state.released - state.model, reference)
        return self.epsilon_min

    def _reference(self, broadcast: Broadcast, state: LastBroadcast) -> Tensor | None:
        """Return the last global update, or its mean over rounds; None unless the client received both broadcasts."""
        if state.model is None or state.round != broadcast.public.round - 1:
            return None
        last = broadcast.models[0] - state.model
        if not self.memory:
            return last
        remembered = 0 if state.reference is None else self.memory * state.reference
        return (1 - self.memory) * last + remembered

    def _spend(self, scale: tuple[float, ...], epsilon: float) -> Spend:
        guarantee = _promise(self)
        if not guarantee.proven:
            return Spend(guarantee=guarantee, mechanism="gaussian", scale=scale)
        charge = None
        if self.similarity != "update":
            charge = compose_mu((_mu(epsilon, self.delta), *_similarity_mu(self)))
        length = 2 * self.clip
        drawn = [
            Draw(
                unit="client",
                relation="replace-one",
                moved=length,
                noise=sigma,
            )
            for sigma in scale
        ]
        if scale and self.similarity == "noised":
            drawn.append(
                Draw(
                    unit="client",
                    relation="replace-one",
                    moved=1.0,
                    noise=self.similarity_noise,
                )
            )
        return Spend(
            guarantee=guarantee,
            mechanism="gaussian",
            scale=scale,
            sensitivity=length,
            charge=charge,
            draws=tuple(drawn),
        )


@lru_cache(maxsize=64)
def _promise(side: SGALDP) -> Guarantee:
    """Return the promise of a round for any budget within the limits."""
    if side.similarity == "update" and not side.static:
        return of_round(Heuristic("the noise's size depends on the private update"), "local")
    mu = _mu(side.epsilon_max, side.delta)
    if side.similarity == "update":
        mu = 2 * mu  # static: the noise is calibrated to C, and any two inputs are at most 2C apart
    else:
        mu = compose_mu((mu, *_similarity_mu(side)))
    return of_round(GDP(mu), "local", "replace-one", LIVENESS)


def _similarity_mu(side: SGALDP) -> tuple[float, ...]:
    """Return mu of a round's noised similarity; empty if the similarity is not noised."""
    return (1 / side.similarity_noise,) if side.similarity == "noised" else ()
