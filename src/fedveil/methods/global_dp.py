"""Global DP: Gaussian noise of a fixed scale on the server's aggregate.

Trust model: honest server, semi-honest clients.

Formal order: the noise is added to the rule's reduced update, before a server optimiser sees it. Sigma is z times the
rule's zero-out sensitivity over the planned cohort. For a mean of n planned clients that is z * C / n, for a median of
an odd number z * C. A round's mu is the sensitivity under the chosen relation, divided by sigma.

As printed: the noise is added to the rule's output, and sigma = z * C / n with n valid replies, whatever the rule. Mu
follows from the sensitivity of the rule that ran: C * max weight for a mean, about C for a median.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedveil.accounting import Spend, plan
from fedveil.aggregation import RunningSum
from fedveil.checks import Delta, Epsilon, NoiseLevel, Rounds
from fedveil.clipping import QuantileClip
from fedveil.errors import FieldError
from fedveil.methods.central import CentralNoise


@dataclass(frozen=True)
class GlobalDP(CentralNoise):
    """Global DP: Gaussian noise of a fixed scale on the server's aggregate.

    `fedveil.methods.CentralNoise` describes the other parameters: `aggregator`, `clip`, `order`, `relation`, `noise`.

    Parameters
    ----------
    noise_multiplier : float
        z. Without it, z follows from the three parameters below.
    epsilon, delta, rounds : float, float, int, optional
        Target over all rounds, from which z is computed: ``GlobalDP(epsilon=8, delta=1e-5, rounds=20)``. This needs the
        formal order, Gaussian noise and a fixed C.
    derived_from : str
        Description of private runs from which the noise multiplier was computed, if any. The release then has no
        epsilon: its status is heuristic.

    Examples
    --------
    >>> side = fv.GlobalDP(fv.FedAvg(), epsilon=8, delta=1e-5, rounds=10, clip=1.0)
    >>> round(side.noise_multiplier, 2)
    1.9
    """

    noise_multiplier: NoiseLevel = field(default=0.0, kw_only=True)
    epsilon: Epsilon | None = field(default=None, kw_only=True)
    delta: Delta = field(default=1e-5, kw_only=True)
    rounds: Rounds | None = field(default=None, kw_only=True)
    derived_from: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse combinations of parameters that cannot work, such as neither a noise multiplier nor an epsilon."""
        self._require_names()
        if self.epsilon is not None:
            object.__setattr__(self, "noise_multiplier", self._calibrated(self.epsilon))
        elif self.noise_multiplier == 0:
            plan_it = (
                "plan it: fedveil plan --epsilon E --delta D --rounds R gives the one of a budget"
            )
            raise FieldError(
                "noise_multiplier", None, f"{plan_it}; or write GlobalDP(epsilon=8, rounds=20)"
            )
        super().__post_init__()

    def _calibrated(self, epsilon: float) -> float:
        """Return the smallest z whose total stays within epsilon."""
        if self.rounds is None:
            raise FieldError(
                "rounds", None, "it is needed beside epsilon, which is a total over all rounds"
            )
        if (
            self.order != "formal"
            or self.noise != "gaussian"
            or isinstance(self.clip, QuantileClip)
        ):
            raise FieldError(
                "epsilon",
                epsilon,
                "needs the formal order, Gaussian noise and a fixed C; else plan z",
            )
        z = plan(
            epsilon=epsilon,
            delta=self.delta,
            rounds=self.rounds,
            relation=self.relation,
        ).noise_multiplier
        if self.noise_multiplier not in (0, z):
            raise FieldError(
                "noise_multiplier",
                self.noise_multiplier,
                f"epsilon {epsilon:g} asks for {z:g}: give one",
            )
        return z

    @property
    def may_be_proven(self) -> bool:  # type: ignore[override]
        """Whether the noise can have an epsilon; it cannot if z was derived from private runs."""
        return not self.derived_from and super().may_be_proven

    def _spend(self, sigma: float, bound: float, weights: Tensor, cohort: int) -> Spend:
        if self.derived_from:
            where = f"the noise multiplier was derived from private runs of {self.derived_from!r}"
            return self._heuristic(f"{where}: a study, not a deployment", sigma)
        return self._proven(sigma, bound, weights, cohort)


def running_sum(
    side: object,
    start: Tensor,
    counts: Tensor,
    cohort: int,
    state: Any,
) -> RunningSum | None:
    """Make a running sum for a round's updates if the server side needs only their sum; else return None.

    Parameters
    ----------
    side : ServerSide
        Server side of any method.
    start : Tensor
        [d], broadcast model.
    counts : Tensor
        [n], float64, number of examples of each training client.
    cohort : int
        Planned number of clients.
    state : object
        State of the server side.
    """
    if type(side) is not GlobalDP or side.order != "formal" or side.noise == "discrete":
        return None
    if not side.aggregator.linear:
        return None
    if not RunningSum.worthwhile(len(counts), len(start)):
        return None
    return RunningSum(
        start, state.clip, side.aggregator.planned_weights(counts, len(counts), cohort)
    )
