"""Probes that judge a whole run: they are told before it what the adversary holds, and conclude after it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Protocol, Self, runtime_checkable

from fedveil.engines.probe import Probe
from fedveil.runs.prepare import Setup


@runtime_checkable
class Judge(Probe, Protocol):
    """What a probe has besides its figures if it judges a whole run, such as an attack on it.

    What it keeps lives in the process: a run that was interrupted begins anew.
    """

    def begin(self, setup: Setup) -> None:
        """Take what the adversary holds before the run begins."""

    def load(self, setup: Setup) -> tuple[int, int]:
        """Parameter vectors that it keeps of a run, and examples, epochs included, that it trains on after it."""

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Plain values for the summary, of several runs at once: what is trained for them is trained together."""


def begin(probes: Sequence[Probe], setup: Setup) -> list[Probe]:
    """Copies of the probes for one run, told what they need."""
    own = [copy(probe) for probe in probes]
    for probe in own:
        if isinstance(probe, Judge):
            probe.begin(setup)
    return own


def conclude(runs: Sequence[Sequence[Probe]]) -> list[dict[str, Any]]:
    """What the probes of several runs of like cells conclude: for each run, by the probe's name."""
    found: list[dict[str, Any]] = [{} for _ in runs]
    for alike in zip(*runs, strict=True):
        if isinstance(alike[0], Judge):
            for values, concluded in zip(found, type(alike[0]).conclude(alike), strict=True):
                values[alike[0].name] = concluded
    return found


def judged(probes: Sequence[Probe]) -> bool:
    """Whether one of them judges the whole run."""
    return any(isinstance(probe, Judge) for probe in probes)
