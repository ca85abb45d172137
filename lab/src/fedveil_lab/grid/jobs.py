"""Run several cells at once: each in its own process, or similar ones together in one process.

Together, one learner trains the clients of all runs in one call per round. An interruption loses the runs of the
current block, so blocks are limited in size. Small models gain by large blocks, as one operation trains the clients of
all runs. Models whose training takes seconds gain almost nothing. Dense layers of 167,178 parameters take 0.45 instead
of 0.49 s per run, and small convolutions gain nothing. They run in small blocks or one by one.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from torch import Tensor

from fedveil.engines import Lockstep, Probe
from fedveil.errors import FedVeilError
from fedveil.evidence import Row, row_of
from fedveil.files import Ledgers
from fedveil.methods import Method
from fedveil.registry import Registry
from fedveil_lab.config import Config
from fedveil_lab.grid.cell import Cell
from fedveil_lab.runs.deal import Dealt, deal_out
from fedveil_lab.runs.folder import new_run_id
from fedveil_lab.runs.marks import with_marks
from fedveil_lab.runs.models import first_models, with_features
from fedveil_lab.runs.prepare import Common, Setup, assemble
from fedveil_lab.runs.runner import Judge, begin, conclude, one_thread
from fedveil_lab.runs.summary import Summary, summary_of

Factory = Callable[[], Executor]
EXECUTORS: Registry[Factory] = Registry(
    "--executor", {}, group="fedveil.executors"
)  # or "package.module:factory"
MOST = 20
BYTES = 1e9  # of models and data that a block keeps until its scores are there
SECONDS = 20.0  # that a block may take, about, unless one replicate takes longer
TRIES = 3  # times that a cell is handed over whose worker is lost


@dataclass(frozen=True)
class Ended:
    """End of a cell: its seconds, and the reason for a missing model, or ""."""

    cell: Cell
    seconds: float
    why: str


class Jobs:
    """Processes that run cells; a context manager that ends them when the block is left.

    A run in its own process on one thread costs less than its clients side by side in one process: nobody waits for
    the slowest client, and evaluation runs side by side too.

    Parameters
    ----------
    work : callable
        Runs a cell, and returns its seconds and the reason for a missing model, or an empty text. It must be picklable.
    count : int
        Number of processes.
    cells : sequence of Cell
        Cells, started in this order, but never before a cell whose sigma they use.
    executor : callable, optional
        Makes an executor that replaces the processes of this machine. If a worker is lost, its cell is submitted again
        and continues after its last whole round.
    """

    def __init__(
        self,
        work: Callable[[Cell], tuple[float, str]],
        count: int,
        cells: Sequence[Cell],
        executor: Factory | None = None,
    ) -> None:
        self._local, self._lost = executor is None, Counter[str]()
        context = multiprocessing.get_context(
            "spawn"
        )  # a fork would inherit threads that do not exist in it
        self._executor = executor or partial(
            ProcessPoolExecutor, count, mp_context=context, initializer=_follow
        )
        self._pool = self._executor()
        self._work, self._count, self._waiting = work, count, list(cells)
        self._others = set(multiprocessing.active_children())
        self._going: dict[Future[tuple[float, str]], Cell] = {}

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        begun = set(multiprocessing.active_children()) - self._others
        if (
            kind is not None
        ):  # what they have done is on disk: nobody waits for the end of a run that was interrupted
            for process in begun:
                process.terminate()
        self._pool.shutdown(cancel_futures=True)
        for (
            process
        ) in begun:  # a pool that broke does not wait for a process it had only just begun
            process.join()

    @property
    def cells(self) -> list[Cell]:
        """Cells that are running."""
        return list(self._going.values())

    def next(self, patience: float | None = None) -> list[Ended] | None:
        """Start cells, wait until some end, and return those; None if no cell is left.

        Parameters
        ----------
        patience : float, optional
            Longest wait in seconds; after it the list is empty.

        Raises
        ------
        FedVeilError
            If a run refused something, or a process was killed.
        """
        for (
            cell
        ) in self._ready():  # no more than processes: what waits in a pool is begun even at its end
            self._going[self._submit(cell)] = cell
            self._waiting.remove(cell)
        if not self._going:
            return None
        done, _ = wait(self._going, patience, FIRST_COMPLETED)
        return [ended for future in done for ended in self._of(future)]

    def _submit(self, cell: Cell) -> Future[tuple[float, str]]:
        """Submit a cell; a broken executor is made anew."""
        try:
            return self._pool.submit(self._work, cell)
        except (
            BrokenExecutor,
            OSError,
        ) as error:  # OSError: the pool broke, or memory ended, as a process was begun
            if self._local or isinstance(error, OSError):
                raise self._killed() from None
        self._pool.shutdown()
        self._pool = self._executor()
        return self._pool.submit(self._work, cell)

    def _of(self, future: Future[tuple[float, str]]) -> list[Ended]:
        """Return the end of a cell; a cell whose worker was lost is queued again."""
        cell = self._going.pop(future)
        try:
            return [Ended(cell, *future.result())]
        except Exception as error:  # whatever this executor raises where a worker ends
            if not (
                isinstance(error, BrokenProcessPool)
                if self._local
                else not isinstance(error, FedVeilError)
            ):
                raise
            if self._local:
                raise self._killed() from None
            self._lost[cell.key] += 1
            if self._lost[cell.key] >= TRIES:
                raise FedVeilError(
                    f"{cell.label}: {TRIES} workers were lost that ran it, the last by: {error}"
                ) from error
            self._waiting.insert(0, cell)
            return []

    def _killed(self) -> FedVeilError:
        return FedVeilError(
            "a process that ran one of several runs was killed, perhaps for want of memory; finished rounds are "
            f"kept. Run the same command again, with fewer than --jobs {self._count}"
        )

    def _ready(self) -> list[Cell]:
        unfinished = {cell.key for cell in (*self._waiting, *self._going.values())}
        ready = [
            cell
            for cell in self._waiting
            if not any(source.key in unfinished for source in cell.sources)
        ]
        return ready[: self._count - len(self._going)]


def _follow() -> None:
    """Let only the parent process handle Ctrl-C, and end this process when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    first = multiprocessing.parent_process()
    assert first is not None

    def end() -> None:
        first.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def run_together(
    configs: Sequence[Config],
    probes: Sequence[Sequence[Probe]],
    label: str,
    advance: Callable[[Row], None],
    like: Setup,
) -> list[Summary]:
    """Run configurations that differ only in seeds and participating clients; results equal single runs to the bit.

    Nothing is written, and ledgers live in memory. A run that ends early says why in its summary.

    Parameters
    ----------
    configs : sequence of Config
        Configurations on the embedded engine.
    probes : sequence of sequence of Probe
        Probes of each run.
    label : str
        Label of all runs.
    advance : callable
        Called after each round of the first unfinished run.
    like : Setup
        Setup of one such run.
    """
    began = perf_counter()
    with one_thread():
        setups = [assemble(config, _common_with(like, config)) for config in configs]
        own = [begin(some, setup) for some, setup in zip(probes, setups, strict=True)]
        ledgers = [Ledgers(new_run_id(config)) for config in configs]
        federations = [
            s.federation(book, some) for s, book, some in zip(setups, ledgers, own, strict=True)
        ]
        lockstep = Lockstep(federations)
        rows: list[list[Row]] = [[] for _ in configs]
        for played in lockstep.rounds(configs[0].rounds):
            for i, record in played.items():
                its = federations[i]
                rows[i].append(row_of(record, its.method, its.layout, its.client_sides))
            for first in list(played)[:1]:
                advance(rows[first][-1])
        seconds = (perf_counter() - began) / len(configs)
        conclusions = conclude(own)
        return [
            Summary(
                summary_of(
                    s, f, lockstep.stopped.get(i, ""), book, rows[i], label, seconds, conclusions[i]
                ),
                rows[i],
            )
            for i, (s, f, book) in enumerate(zip(setups, federations, ledgers, strict=True))
        ]


def _common_with(other: Setup, config: Config) -> Common:
    """Prepare a run with another run's learner, and with its data if the data seed is the same."""
    method = config.privacy.build(config.aggregator)
    if config.data_seed != other.config.data_seed:
        dealt = with_features(config, deal_out(config.data, config.data_seed))
        dealt = with_marks(config, dealt, method)
        return Common(dealt, method, other.learner, _starts(config, dealt, method, other))
    starts = other.starts
    if (
        config.pretraining is None and config.model.start != "public"
    ):  # else the server trained the first model
        starts = _starts(config, other.dealt, method, other)
    return Common(other.dealt, method, other.learner, starts)


def _starts(config: Config, dealt: Dealt, method: Method, other: Setup) -> Tensor:
    return first_models(config, dealt, method, other.learner, config.data_seed, None)


def block_size(setup: Setup, probes: Sequence[Probe], seconds: float) -> int:
    """Choose how many similar runs to make together: as many as memory and `SECONDS` allow, at most `MOST`.

    It is at least 1, and at least 2 with several threads, as the three clients of one run would leave a thread idle.

    Parameters
    ----------
    setup : Setup
        Setup of one run.
    probes : sequence of Probe
        Probes of that run.
    seconds : float
        Seconds that one run takes; infinite if unknown.
    """
    x = setup.dealt.dataset.x
    kept = (
        setup.config.rounds
        + 1
        + sum(probe.load(setup) for probe in probes if isinstance(probe, Judge))
    )
    held = 4 * setup.learner.layout.size * kept + x.element_size() * x.numel()
    return int(max(min(2, setup.config.workers), min(MOST, BYTES // held, SECONDS // seconds)))
