"""Laps of several engines, interleaved, so that what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch


@dataclass(frozen=True)
class Lap:
    """Seconds of one round: by the clock, and of processor time in all threads of the process."""

    wall: float
    cpu: float


@dataclass
class Stopwatch:
    """Collects laps; `device` is waited for before the clock is read."""

    device: str = "cpu"
    laps: list[Lap] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start."""
        self._last = self._now()

    def lap(self, *_: object) -> None:
        """End a lap and begin the next; takes and ignores arguments, so that it can be a callback."""
        now = self._now()
        self.laps.append(Lap(now[0] - self._last[0], now[1] - self._last[1]))
        self._last = now

    def _now(self) -> tuple[float, float]:
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()


@dataclass(frozen=True)
class Case:
    """One line of a comparison.

    Attributes
    ----------
    name : str
        Of the line.
    rounds : callable
        ``rounds(n) -> laps``: does n rounds.
    threads : int
        Intra-op threads of the main thread meanwhile.
    burst : int
        Rounds in one go.
    """

    name: str
    rounds: Callable[[int], Sequence[Lap]]
    threads: int = 1
    burst: int = 1


def interleave(cases: Sequence[Case], bursts: int) -> dict[str, list[Lap]]:
    """Do one burst of every case after another, `bursts` times, the order turned every time."""
    laps: dict[str, list[Lap]] = {case.name: [] for case in cases}
    for i in range(bursts):
        for case in cases if i % 2 == 0 else reversed(cases):
            torch.set_num_threads(case.threads)
            laps[case.name] += case.rounds(case.burst)
    torch.set_num_threads(1)
    return laps


def summary(laps: Sequence[Lap]) -> dict[str, Any]:
    """Milliseconds: minimum and median by the clock, minimum and median of processor time, and the number of laps."""
    wall, cpu = [1e3 * lap.wall for lap in laps], [1e3 * lap.cpu for lap in laps]
    return {
        "minimum_ms": round(min(wall), 3),
        "median_ms": round(median(wall), 3),
        "minimum_cpu_ms": round(min(cpu), 3),
        "median_cpu_ms": round(median(cpu), 3),
        "laps": len(laps),
    }


def ratios(rows: Mapping[str, Mapping[str, Any]], base: str) -> dict[str, dict[str, float]]:
    """How many times as long as `base` every row takes, by minimums and by medians."""
    return {
        name: {
            "of_minimums": round(row["minimum_ms"] / rows[base]["minimum_ms"], 2),
            "of_medians": round(row["median_ms"] / rows[base]["median_ms"], 2),
        }
        for name, row in rows.items()
    }
