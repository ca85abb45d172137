"""SGA-LDP: each client's budget follows the cosine of its update with the last global update.

Source: the SGA-LDP paper, Algorithms 1 and 2, equations 2 to 4 (with Delta / max(1, ||Delta|| / C) for the garbled
equation 1). Trust model: untrusted server, some malicious clients. The server takes the plain mean. Heuristic: the
noise's size reveals the private cosine; and a malicious client that computes its own budget can lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedveil.accounting import Guarantee, Release, Spend, Trust, model_of, nothing
from fedveil.calibration import AlignmentLDP
from fedveil.clipping import clip
from fedveil.mechanisms import Gaussian, Source
from fedveil.methods.contract import ClientFacts, Protected, PublicFacts, Releases


@dataclass(frozen=True)
class LastBroadcast:
    """The last model [d] a client received, and in which round (0: none yet)."""

    round: int = 0
    model: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class SGALDP:
    """Client side of SGA-LDP.

    The reference is the difference of the two latest broadcasts, so only a client that received both has one; in its
    first round and after a missed one it spends epsilon_min.

    Parameters
    ----------
    epsilon_min, epsilon_max, delta : float
        Range of the budget per release: the paper's calibration, not a guarantee.
    clip : float
        C.
    """

    epsilon_min: float = 1.0
    epsilon_max: float = 5.0
    delta: float = 1e-5
    clip: float = 1.0

    trust: ClassVar[Trust] = "local"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        """Check all."""
        self._calibrator()

    def init(self) -> LastBroadcast:
        """No broadcast received."""
        return LastBroadcast()

    def quote(self, public: PublicFacts, state: LastBroadcast) -> Spend:
        """A heuristic participation."""
        return self._spend(())

    def protect(self, releases: Releases, facts: ClientFacts, state: LastBroadcast, source: Source) -> Protected:
        """Clip and noise the update; everything else stays on the client."""
        model = model_of(releases)
        if model is None:
            return Protected((), nothing("local"), state)
        now = facts.broadcast.public.round
        update = clip(model - facts.start, self.clip)
        reference = None if state.model is None or state.round != now - 1 else facts.start - state.model
        calibrator = self._calibrator()
        sigma = calibrator.sigma(calibrator.epsilon(update, reference))
        update = update + Gaussian(sigma).sample(len(update), source=source, dtype=update.dtype)
        released = (Release("model", facts.start + update),)
        return Protected(released, self._spend((sigma,)), LastBroadcast(now, facts.start.clone()))

    def _calibrator(self) -> AlignmentLDP:
        return AlignmentLDP(self.epsilon_min, self.epsilon_max, self.delta, self.clip)

    def _spend(self, scale: tuple[float, ...]) -> Spend:
        guarantee = Guarantee(
            unit="client",
            relation="zero-out",
            trust="local",
            status="heuristic",
            scope="round",
            reason="the noise's size depends on the private update",
        )
        return Spend(guarantee=guarantee, mechanism="gaussian", scale=scale)
