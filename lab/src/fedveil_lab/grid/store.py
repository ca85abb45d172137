"""Store of runs: it knows the finished cells, and runs the others."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, sleep

from fedveil.errors import FedVeilError, FieldError, NoReplyError
from fedveil.evidence import METRICS_FILE, Row
from fedveil.files import CONFIG, make_folder, write_atomic
from fedveil_lab.config import Config, load
from fedveil_lab.grid.cell import (
    Cell,
    Finished,
    Outcome,
    distinct,
    matched,
    play_made,
    require_data,
)
from fedveil_lab.grid.jobs import Factory, Jobs, block_size, run_together
from fedveil_lab.grid.kept import Kept
from fedveil_lab.runs import Progress, Summary, run
from fedveil_lab.runs.prepare import Setup, here, prepare, resolve_device
from fedveil_lab.runs.runner import Silent, judged

PATIENCE = 60.0  # seconds between two lines on runs that go on in other processes

STEP = 1.0  # seconds between two looks at runs that other drivers have
BEGUN = "begun"  # first rounds that runs share: without noise, so deleted when all runs are done


class Store(Kept):
    """Runs in a folder: each cell is run once, and an interrupted one continues where it stopped.

    Parameters
    ----------
    folder : Path or None
        Folder of the runs, made with the first run. A cell's folder is ``cells/<label>-<key>``. None keeps finished
        cells in memory.
    """

    def run(
        self,
        cells: Sequence[Cell],
        progress: Progress | None = None,
        jobs: int = 1,
        *,
        together: bool = False,
        executor: Factory | None = None,
    ) -> Finished:
        """Run the unfinished cells. Several drivers may share a folder: no two run the same cell.

        Parameters
        ----------
        cells : sequence of Cell
            Cells, run in this order, but never before cells whose sigma they use.
        progress : Progress, optional
            Receives the progress.
        jobs : int
            Number of parallel cells, each in its own process. `progress` then receives finished cells, and sometimes
            rounds of the others.
        together : bool
            Whether cells that differ only in seeds and participating clients run together, in blocks of a fast size.
            Their ledgers, models and checkpoints are not kept, and an interruption loses the current block.
        executor : callable, optional
            Makes a `concurrent.futures.Executor` whose workers can access the folder. Each runs one cell at a time,
            with the same results to the bit. With `jobs` above 1 at most this many cells are submitted at once, else
            all.

        Returns
        -------
        Finished
            Outcomes of the cells, and of those whose sigma they use. A cell fails if a round has no usable reply.

        Raises
        ------
        FieldError, FedVeilError
            If a run refuses something; finished rounds are kept.
        """
        progress, every = progress or Silent(), distinct(cells)
        done, failed = self.collect(every).outcomes, dict[str, str]()
        remaining = [cell for cell in every if cell.key not in done]
        if executor is None:  # else its workers read the data
            require_data(remaining)
        if done and remaining:
            progress.say(f"{len(done)} of {len(every)} runs are finished already")
        while remaining:
            if executor is not None or (min(jobs, len(remaining)) > 1 and not together):
                self._at_once(remaining, jobs, progress, failed, executor)
            elif together:
                self._together(remaining, progress)
            else:
                self._in_turn(remaining, len(every), progress, failed)
            remaining = [
                cell for cell in remaining if cell.key not in failed and self.find(cell) is None
            ]
            if remaining:
                progress.say(f"{len(remaining)} runs go on in other processes: waiting")
            while remaining and all(self._claimed(cell) for cell in remaining):
                sleep(STEP)
        finished = Finished(self.collect(every).outcomes, failed)
        if self.folder is not None and not failed and len(finished.outcomes) == len(every):
            shutil.rmtree(
                self.folder / BEGUN, ignore_errors=True
            )  # models without noise, of no use any more
        return finished

    def _in_turn(
        self, remaining: Sequence[Cell], of: int, progress: Progress, failed: dict[str, str]
    ) -> None:
        for number, cell in enumerate(remaining, of - len(remaining) + 1):
            with self.claim([cell]) as mine:
                if not mine:
                    continue
                if of > 1:
                    progress.say(f"run {number} of {of}: {cell.label}")
                try:
                    self.run_one(cell, progress)
                except (
                    NoReplyError
                ) as error:  # a model that diverged: the other cells still say something
                    failed[cell.key] = str(error)
                    progress.say(f"{cell.label}: {error}")

    def run_one(self, cell: Cell, progress: Progress) -> Outcome:
        """Run an unfinished cell, or its remaining rounds, after the cells whose sigma it uses.

        Raises
        ------
        NoReplyError
            If a round has no usable reply.
        """
        done = self.find(cell)
        if done is not None:
            return done
        if cell.make is not None:
            progress.begin(f"{cell.label}, seed {cell.config.seed}", 0, cell.config.rounds)
            try:
                return self._remember(cell, play_made(cell, progress.advance))
            finally:
                progress.end()
        path, config, memo = self.path(cell), self._resolved(cell, progress), None
        begun = self.state(cell) == "begun"
        if path is not None:
            if begun and judged(cell.probes):  # what they kept of the first rounds is gone
                shutil.rmtree(path)
                begun = False
            if begun:
                config = config.model_copy(
                    update={"device": _begun_on(path, config.device, progress)}
                )
            make_folder(path)
            if (
                config.rounds == 1 or config.pretraining is not None
            ):  # else what begins alike is a small part of a run
                memo = path.parents[1] / BEGUN
        label, probes = cell.label, cell.probes
        summary = run(
            config, path, resume=begun, progress=progress, setting=label, memo=memo, probes=probes
        )
        return self._remember(cell, summary, path)

    def _together(self, remaining: Sequence[Cell], progress: Progress) -> None:
        groups: dict[str, list[Cell]] = {}
        for cell in remaining:
            groups.setdefault(cell.kind, []).append(cell)
        count, seconds = 0, math.inf  # of a round of one run, as those before took

        def advance(row: Row, rounds: int = 1) -> None:
            nonlocal count
            count += rounds
            progress.advance({**row, "round": count})

        progress.begin(
            f"all rounds of {len(remaining)} runs", 0, sum(cell.config.rounds for cell in remaining)
        )
        try:
            for group in groups.values():
                if group[0].make is not None:
                    self._remember(group[0], play_made(group[0], advance))
                    continue
                like, waiting = prepare(self._resolved(group[0], progress)), list(group)
                while waiting:
                    size = block_size(like, group[0].probes, seconds * like.config.rounds)
                    block, waiting, began = waiting[:size], waiting[size:], perf_counter()
                    with self.claim(block) as mine:
                        self._play_together(
                            mine, partial(advance, rounds=len(mine)), like, progress
                        )
                        if mine:
                            seconds = (perf_counter() - began) / len(mine) / like.config.rounds
        finally:
            progress.end()

    def _play_together(
        self, block: Sequence[Cell], advance: Callable[[Row], None], like: Setup, progress: Progress
    ) -> None:
        if not block:
            return
        configs = [self._resolved(cell, progress) for cell in block]
        summaries = run_together(configs, [c.probes for c in block], block[0].label, advance, like)
        for cell, config, summary in zip(block, configs, summaries, strict=True):
            self._keep(cell, config, summary)

    def _resolved(self, cell: Cell, progress: Progress) -> Config:
        """Make the configuration to run, after the cells whose sigma it uses are finished."""
        config = here(cell.config)
        if not cell.sources:
            return config
        return matched(config, [self.run_one(source, progress).summary for source in cell.sources])

    def _keep(self, cell: Cell, config: Config, summary: Summary) -> None:
        """Write what is kept of a run in memory; the summary is written last, and marks the cell as finished."""
        path = self.path(cell)
        self._remember(cell, summary, path)
        if path is None:
            return
        make_folder(path)
        for name, text in (
            (CONFIG, config.to_toml()),
            (METRICS_FILE, "".join(f"{json.dumps(r)}\n" for r in summary.rows)),
        ):
            write_atomic(path / name, text.encode())
        write_atomic(path / "summary.json", (json.dumps(summary.values) + "\n").encode())

    def _at_once(
        self,
        remaining: Sequence[Cell],
        jobs: int,
        progress: Progress,
        failed: dict[str, str],
        executor: Factory | None,
    ) -> None:
        if self.folder is None:
            raise FieldError("--jobs", jobs, "needs a folder that the processes share: give --out")
        if executor is not None and jobs == 1:
            most = len(remaining)
        else:
            most = min(jobs, len(remaining))
        progress.say(f"{len(remaining)} runs, {most} at once")
        count = 0
        with Jobs(
            partial(run_in_process, self.folder.absolute()), most, remaining, executor
        ) as going:
            while (ended := going.next(PATIENCE)) is not None:
                if not ended:
                    each = (
                        f"{c.label}: {self.rounds_done(c)} of {c.config.rounds} rounds"
                        for c in going.cells
                    )
                    progress.say(f"so far: {', '.join(each)}")
                for one in ended:
                    count += 1
                    if one.why:
                        failed[one.cell.key] = one.why
                    said = one.why or f"{one.seconds:.0f} s"
                    progress.say(f"{count} of {len(remaining)}: {one.cell.label} ({said})")


def _begun_on(path: Path, wanted: str, progress: Progress) -> str:
    """Return the device on which a run began, as another one would give different bits."""
    device = load(path).device
    if device != wanted:
        try:
            resolve_device(device)
        except FieldError as error:
            lacks = f"{path} was begun on {device!r}, which this machine lacks: go on where there is one, or begin "
            lacks += "anew in another folder (--out)"
            raise FieldError("--device", wanted, lacks) from error
        progress.say(f"{path.name} was begun on {device!r} and goes on there, not on {wanted!r}")
    return device


def run_in_process(folder: Path, cell: Cell) -> tuple[float, str]:
    """Run one cell of a folder for `Jobs`; return its seconds, and the reason for a missing model.

    A cell that another driver has is skipped.
    """
    began, why, store = perf_counter(), "", Store(folder)
    try:
        with store.claim([cell]) as mine:
            for one in mine:
                store.run_one(one, Silent())
    except NoReplyError as error:
        why = str(error)
    except FedVeilError as error:  # its subclasses do not all survive the way between processes
        raise FedVeilError(str(error)) from None
    return perf_counter() - began, why
