"""SGA-LDP: each client's budget follows the cosine of its update with the last global update.

Source: the SGA-LDP paper, Algorithms 1 and 2, equations 2 to 4 (with Delta / max(1, ||Delta|| / C) for the garbled
equation 1). Trust model: untrusted server, some malicious clients. The server takes the plain mean. Heuristic: the
noise's size reveals the private cosine; and a malicious client that computes its own budget can lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedveil.accounting import Guarantee, Release, Spend, SpendFilter, Trust, model_of, nothing
from fedveil.calibration import AlignmentLDP
from fedveil.calibration.alignment import cosines
from fedveil.clipping import clip
from fedveil.errors import FieldError, Suggesting, require_choice
from fedveil.gdp import mu_of_epsilon
from fedveil.layout import Layout
from fedveil.mechanisms import GaussianNoise, Source, noised
from fedveil.methods.contract import LIVENESS, SMALL, held_to, noise_figures
from fedveil.methods.facts import Broadcast, ClientFacts, Protected, Releases

_mu = lru_cache(maxsize=1024)(mu_of_epsilon)


@dataclass(frozen=True)
class LastBroadcast:
    """The last model [d] a client received, in which round (0: none yet), and the model it released then."""

    round: int = 0
    model: Tensor | None = None
    released: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class SGALDP(Suggesting):
    """Client side of SGA-LDP.

    The reference is the difference of the two latest broadcasts, so only a client that received both has one; in its
    first round and after a missed one it spends epsilon_min.

    Parameters
    ----------
    epsilon_min, epsilon_max, delta : float
        Range of the budget per release: the paper's calibration, not a guarantee. Where both ends are equal (static
        local DP) the noise is the same in every round, and its cost for any two inputs is proven and composed.
    clip : float
        C.
    similarity : {"update", "released"}
        Which update the cosine is taken of: this round's private one (the paper), or the one the client released last
        time (sound: the budget then follows from what the server knows already).
    """

    epsilon_min: float = 1.0
    epsilon_max: float = 5.0
    delta: float = 1e-5
    clip: float = 1.0
    similarity: Literal["update", "released"] = "update"

    trust: ClassVar[Trust] = "local"
    most_models: ClassVar[int | None] = 1
    composed: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        """Check all."""
        self._calibrator()
        require_choice("similarity", self.similarity, ("update", "released"))

    @property
    def static(self) -> bool:
        """Whether the budget is the same whatever the cosine (the paper's static rule): its noise tells nothing."""
        return self.epsilon_min == self.epsilon_max

    def init(self) -> LastBroadcast:
        """No broadcast received."""
        return LastBroadcast()

    def noise(self, scales: Sequence[tuple[float, ...]], layout: Layout) -> dict[str, float]:
        """Of the median client."""
        return noise_figures(scales, layout, self.clip)

    def budgets(self, epsilon: float | None, delta: float) -> list[SpendFilter]:
        """On the total."""
        return held_to(epsilon, delta)

    def quote(self, broadcast: Broadcast, state: LastBroadcast) -> Spend:
        """A heuristic participation; in the sound variant and under the static rule the exact cost."""
        return self._spend((), self._released_epsilon(broadcast, state))

    def protect(self, releases: Releases, facts: ClientFacts, state: LastBroadcast, source: Source) -> Protected:
        """Clip and noise the update; everything else stays on the client. A failed client spends epsilon_min."""
        model = model_of(releases)
        if model is None:
            return Protected((), nothing("local"), state)
        now, calibrator = facts.broadcast.public.round, self._calibrator()
        update = clip(model - facts.start, self.clip)
        if self.similarity == "released":
            epsilon = self._released_epsilon(facts.broadcast, state)
            sigma = 2 * calibrator.sigma(epsilon)  # any two inputs: a clipped update can move by 2C
        else:
            known = None if facts.failed or self.static else _reference(facts.broadcast, state)
            epsilon = calibrator.epsilon(update, known)
            sigma = calibrator.sigma(epsilon)
        update = noised(update, GaussianNoise(sigma), source)
        released = facts.start + update
        spend = self._spend((sigma,), epsilon)
        return Protected(
            (Release("model", released),), spend, LastBroadcast(now, facts.start.clone(), released.clone())
        )

    def protect_each(
        self, models: Tensor, facts: Sequence[ClientFacts], states: Sequence[LastBroadcast], sources: Sequence[Source]
    ) -> list[Protected | None]:
        """`protect` for trained clients of small models, to the bit; None for one that has to be protected alone."""
        size, broadcast, dtype = models.shape[1], facts[0].broadcast, models.dtype
        protected: list[Protected | None] = [None] * len(facts)
        start = facts[0].start
        lengths = torch.linalg.vector_norm(models - start, dim=1, dtype=torch.float64)
        rows = lengths.isfinite().nonzero().reshape(-1).tolist()
        if size > SMALL or sources[0].deployable or not rows:
            return protected
        updates = clip((models - start)[rows], self.clip, lengths=lengths[rows])
        try:
            epsilons = self._epsilons(updates, broadcast, [states[i] for i in rows])
        except FieldError:  # of one client, which is found out where each is protected alone
            return protected
        times, calibrator = 2 if self.similarity == "released" else 1, self._calibrator()
        sigmas = [times * calibrator.sigma(epsilon) for epsilon in epsilons]
        noise = [sources[i].normal(size, dtype).mul_(sigma) for i, sigma in zip(rows, sigmas, strict=True)]
        released, received = start + (updates + torch.stack(noise)), start.clone()
        for i, model, sigma, epsilon in zip(rows, released, sigmas, epsilons, strict=True):
            state = LastBroadcast(broadcast.public.round, received, model.clone())
            protected[i] = Protected((Release("model", model),), self._spend((sigma,), epsilon), state)
        return protected

    def _epsilons(self, updates: Tensor, broadcast: Broadcast, states: Sequence[LastBroadcast]) -> list[float]:
        """Budgets of clients with these clipped updates [n, d]; those that share a reference are taken together."""
        found, calibrator = [self.epsilon_min] * len(states), self._calibrator()
        alike: dict[int, tuple[Tensor, list[int]]] = {}
        for i, state in enumerate([] if self.static else states):
            if state.model is not None and state.round == broadcast.public.round - 1:
                alike.setdefault(id(state.model), (state.model, []))[1].append(i)
        for model, members in alike.values():
            vectors = updates[members]
            if self.similarity == "released":
                vectors = torch.stack([s.released for i in members if (s := states[i]).released is not None]) - model
            for i, similarity in zip(members, cosines(vectors, broadcast.models[0] - model), strict=True):
                found[i] = calibrator.epsilon_at(similarity)
        return found

    def _calibrator(self) -> AlignmentLDP:
        return AlignmentLDP(self.epsilon_min, self.epsilon_max, self.delta, self.clip)

    def _released_epsilon(self, broadcast: Broadcast, state: LastBroadcast) -> float:
        if self.static or self.similarity == "update":
            return self.epsilon_min
        reference = _reference(broadcast, state)
        if reference is None or state.model is None or state.released is None:
            return self.epsilon_min
        return self._calibrator().epsilon(state.released - state.model, reference)

    def _spend(self, scale: tuple[float, ...], epsilon: float) -> Spend:
        guarantee = _promise(self)
        if not guarantee.proven:
            return Spend(guarantee=guarantee, mechanism="gaussian", scale=scale)
        charge = _mu(epsilon, self.delta) if self.similarity == "released" else None
        return Spend(guarantee=guarantee, mechanism="gaussian", scale=scale, sensitivity=2 * self.clip, charge=charge)


@lru_cache(maxsize=64)
def _promise(side: SGALDP) -> Guarantee:
    """Of a round, whatever is spent in it."""
    if side.similarity == "update" and not side.static:
        return Guarantee(
            unit="client",
            relation="zero-out",
            trust="local",
            status="heuristic",
            scope="round",
            reason="the noise's size depends on the private update",
        )
    mu = _mu(side.epsilon_max, side.delta)
    return Guarantee(
        unit="client",
        relation="replace-one",
        trust="local",
        status="conditional",
        scope="round",
        mu=mu if side.similarity == "released" else 2 * mu,  # any two inputs: calibrated to C, moved by 2C
        conditions=(LIVENESS,),
    )


def _reference(broadcast: Broadcast, state: LastBroadcast) -> Tensor | None:
    """The last global update, if the client received both broadcasts."""
    if state.model is None or state.round != broadcast.public.round - 1:
        return None
    return broadcast.models[0] - state.model
