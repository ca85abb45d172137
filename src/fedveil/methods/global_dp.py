"""Global DP: Gaussian noise of a fixed scale on the server's aggregate.

Trust model: honest server, semi-honest clients. Per round sigma = z * C / n. As printed (noise on the output of the
rule) the guarantee follows the sensitivity of what ran, which is C * max weight for a mean and about C for a median.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedveil.accounting import Spend
from fedveil.aggregation import Updates
from fedveil.errors import FieldError
from fedveil.methods.central import CentralNoise, CentralState
from fedveil.methods.facts import ServerFacts


@dataclass(frozen=True)
class GlobalDP(CentralNoise):
    """Global DP around an aggregation rule; see `CentralNoise` for the other parameters.

    Parameters
    ----------
    noise_multiplier : float
        z, needed: `fedveil.accounting.plan` gives it for a budget, as does ``fedveil plan``.
    derived_from : str
        Private runs that the noise multiplier was computed from, if so. It then depends on private data itself, and no
        epsilon of this mechanism covers the release: its status is heuristic, in the ledger as in every table.
    """

    noise_multiplier: float = field(default=0.0, kw_only=True)
    derived_from: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what cannot work, and a noise that nobody chose."""
        if self.noise_multiplier == 0:
            plan = "plan it: fedveil plan --epsilon E --delta D --rounds R gives the one of a budget"
            raise FieldError("noise_multiplier", "missing", plan)
        super().__post_init__()

    @property
    def may_be_proven(self) -> bool:
        """Not of a multiplier that was derived from private runs."""
        return not self.derived_from and super().may_be_proven

    def _scale(
        self, base: float, updates: Updates, clipped: Updates, facts: ServerFacts, state: CentralState
    ) -> tuple[float, dict[str, float]]:
        return base, {}

    def _spend(self, sigma: float, bound: float, weights: Tensor, cohort: int) -> Spend:
        if self.derived_from:
            where = f"the noise multiplier was derived from private runs of {self.derived_from!r}"
            return self._heuristic(f"{where}: a study, not a deployment", sigma)
        return self._proven(sigma, bound, weights, cohort)
