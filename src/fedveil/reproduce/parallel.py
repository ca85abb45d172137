"""Several cells of a study at once, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from fedveil.errors import FedVeilError, NoReplyError
from fedveil.experiments.runner import Silent
from fedveil.reproduce.cells import Cell, Runs


@dataclass(frozen=True)
class Ended:
    """How a cell went: its seconds, the share of its rounds done in them, and why it has no model, or an empty text."""

    cell: Cell
    seconds: float
    share: float
    why: str


class Jobs:
    """Processes that run cells; leaving the block ends them.

    A run in its own process on one thread costs less than its clients side by side in one process: nobody waits for
    the slowest client, and evaluation runs side by side too.

    Parameters
    ----------
    runs : Runs
        The folder.
    count : int
        How many at once.
    cells : sequence of Cell
        Begun in this order, but none before the one whose sigma it matches.
    """

    def __init__(self, runs: Runs, count: int, cells: Sequence[Cell]) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit threads that do not exist in it
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_follow)
        self._runs, self._count, self._waiting = runs, count, list(cells)
        self._others = set(multiprocessing.active_children())
        self._going: dict[Future[tuple[float, float, str]], Cell] = {}

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # what they have done is on disk: nobody waits for the end of a run that was interrupted
            for process in set(multiprocessing.active_children()) - self._others:
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    @property
    def cells(self) -> list[Cell]:
        """Those that are being run."""
        return list(self._going.values())

    def next(self, patience: float | None = None) -> list[Ended] | None:
        """Begin what can be begun, wait for something to end, and say what did; None when nothing is left.

        Parameters
        ----------
        patience : float, optional
            Seconds to wait at most; then nothing has ended.

        Raises
        ------
        FedVeilError
            What a run refused, or that a process was killed.
        """
        try:
            for cell in self._ready():  # no more than processes: what waits in a pool is begun even at its end
                self._going[self._pool.submit(_run, cell, self._runs.folder)] = cell
                self._waiting.remove(cell)
            if not self._going:
                return None
            done, _ = wait(self._going, patience, FIRST_COMPLETED)
            return [Ended(self._going.pop(future), *future.result()) for future in done]
        except BrokenProcessPool:
            raise FedVeilError(
                "a process that ran one of several runs was killed, perhaps for want of memory; finished rounds are "
                f"kept. Run the same command again, with fewer than --jobs {self._count}"
            ) from None

    def _ready(self) -> list[Cell]:
        unfinished = {cell.key for cell in (*self._waiting, *self._going.values())}
        ready = [cell for cell in self._waiting if cell.sigma_of is None or cell.sigma_of.key not in unfinished]
        return ready[: self._count - len(self._going)]


def _follow() -> None:
    """Leave Ctrl-C to the first process, and end when it does, however it ends: a run's folder survives that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    first = multiprocessing.parent_process()
    assert first is not None

    def end() -> None:
        first.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


class _Share(Silent):
    """Remembers which share of a run's rounds was left to do."""

    left = 1.0

    def begin(self, label: str, done: int, rounds: int) -> None:
        self.left = 1 - done / rounds


def _run(cell: Cell, folder: Path) -> tuple[float, float, str]:
    began, share, why = perf_counter(), _Share(), ""
    try:
        Runs(folder).run(cell, share)
    except NoReplyError as error:
        why = str(error)
    except FedVeilError as error:  # its subclasses do not all survive the way between processes
        raise FedVeilError(str(error)) from None
    return perf_counter() - began, share.left, why
