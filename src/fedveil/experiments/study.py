"""Global DP whose noise was tuned on private runs: for comparisons only, and never sold as a guarantee."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedveil.accounting import Spend
from fedveil.methods import GlobalDP


@dataclass(frozen=True)
class DerivedGlobalDP(GlobalDP):
    """Global DP with a noise multiplier computed from private runs.

    The multiplier itself then depends on private data, so no epsilon of this mechanism covers the release: its status
    is heuristic, in the ledger as in every table.

    Parameters
    ----------
    derived_from : str
        The setting whose runs the multiplier was computed from.
    """

    derived_from: str = field(default="", kw_only=True)

    def _spend(self, sigma: float, bound: float, weights: Tensor, cohort: int) -> Spend:
        where = f"the noise multiplier was derived from private runs of {self.derived_from!r}"
        return self._heuristic(f"{where}: a study, not a deployment", sigma)
