"""Verdict: what one attack reached against one setting, whatever its family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from fedveil.errors import FieldError


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One figure of an attack with its uncertainty.

    Parameters
    ----------
    attack, setting : str
        Which attack, and against what.
    figure : str
        What is measured, with its unit: ``"AUC"``, ``"MSE (pixel range 1)"``, ``"success rate"``.
    point, low, high : float
        The estimate and its 95% interval; `low` and `high` equal `point` where there is no replication.
    n : int
        Independent units behind the interval.
    replication : str
        What such a unit is: one run, one image, one client.
    without_defence : float or None
        The same figure of the same attack where no defence stood.
    valid : bool or None
        Whether the attack succeeds without the defence. If it does not, the figure says nothing about the defence.
        None if that was not measured.
    threat : str
        Who attacks.
    details : mapping of str to float
        Further figures by name.
    notes : sequence of str
        What has to be said beside the figures.

    Raises
    ------
    FieldError
        If the interval does not hold the point, or there is no unit behind it.
    """

    attack: str
    setting: str
    figure: str
    point: float
    low: float
    high: float
    n: int
    replication: str
    without_defence: float | None = None
    valid: bool | None = None
    threat: str = ""
    details: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check the interval."""
        if not isfinite(self.point) or not self.low <= self.point <= self.high:
            raise FieldError("point", self.point, f"must be finite and lie in its interval [{self.low}, {self.high}]")
        if self.n < 1:
            raise FieldError("n", self.n, "must be at least 1")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)
