"""Run one experiment from its configuration."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from fedveil.engines import Federation, History, Probe, RoundRecord
from fedveil.evidence import Row, row_of
from fedveil.files import Ledgers
from fedveil_lab.config.experiment import Config
from fedveil_lab.runs.classified import classified_of
from fedveil_lab.runs.described import about_of
from fedveil_lab.runs.folder import RunFolder, new_run_id
from fedveil_lab.runs.opening import opening_of
from fedveil_lab.runs.prepare import Setup, here, prepare
from fedveil_lab.runs.promised import few_rounds
from fedveil_lab.runs.summary import Summary, summary_of

_TURN = RLock()  # torch's number of threads and its tracer of models are the process's


class Progress(Protocol):
    """Protocol of objects that receive a run's progress."""

    def begin(self, label: str, done: int, rounds: int) -> None:
        """Called when a run starts, or continues after `done` rounds."""

    def advance(self, row: Row) -> None:
        """Called after each round, with its row of metrics."""

    def say(self, text: str) -> None:
        """Show a message to the user."""

    def end(self) -> None:
        """Called when the run is over, also after an error."""


class Silent:
    """Progress receiver that shows nothing."""

    def begin(self, label: str, done: int, rounds: int) -> None:
        """Ignore the start."""

    def advance(self, row: Row) -> None:
        """Ignore the round."""

    def say(self, text: str) -> None:
        """Ignore the message."""

    def end(self) -> None:
        """Ignore the end."""


@runtime_checkable
class Judge(Probe, Protocol):
    """Protocol of probes that judge a whole run, such as attacks.

    The state is kept in memory, so an interrupted run starts again.
    """

    def begin(self, setup: Setup) -> None:
        """Called before the run: store what the adversary has at that time."""

    def load(self, setup: Setup) -> int:
        """Return the number of parameter vectors that the probe keeps of a run."""

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Return plain values for the summaries of several runs, whose attack models are trained together."""


def run(
    config: Config,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    setting: str = "",
    memo: Path | None = None,
    probes: Sequence[Probe] = (),
) -> Summary:
    """Run one experiment from its configuration, and return its summary.

    Parameters
    ----------
    config : Config
        Configuration of one run; its ``[compare]`` is ignored.
    out : path, optional
        Folder of the run. Without one the ledgers are kept in memory and nothing is written.
    resume : bool
        Whether to continue in `out` after the last whole round. With the reproducible source and the same device, the
        result equals that of an uninterrupted run to the bit, on any number of workers.
    progress : Progress, optional
        Receives the progress.
    setting : str
        Label of the run. Default: the method's name.
    memo : Path, optional
        Folder that caches first rounds for runs that begin alike. It may be deleted at any time.
    probes : sequence of Probe
        Measurements after each round; results are in the row's "figures".

    Raises
    ------
    FieldError, ConfigError
        If something does not fit. Nothing is written then, unless only training shows it.
    LedgerError
        If a ledger of a resumed run was edited or shortened.
    NoReplyError
        If a round ends without a usable reply.
    """
    progress = progress or Silent()
    label = setting or config.privacy.method
    with one_thread(), ExitStack() as stack:
        began, folder = perf_counter(), None
        config = here(config)
        if out is not None:
            folder = RunFolder(Path(out), config, resume=resume, message=progress.say)
            stack.callback(folder.close)
        setup = prepare(config, memo)
        if not setting and not resume:
            setup = replace(setup, warnings=(*setup.warnings, *few_rounds(setup)))
        for warning in (
            () if setting else setup.warnings
        ):  # a comparison says them once, beside its table
            progress.say(warning)
        if folder:
            ledgers = folder.ledgers
        else:
            ledgers = Ledgers(new_run_id(config))
        own = begin(probes, setup)
        federation = setup.federation(
            ledgers, own, (lambda text: None) if setting else progress.say
        )
        rows: list[Row] = []
        if folder:
            rows = folder.rows
        if folder is not None:
            folder.create(opening_of(setup, federation, label))
            if folder.checkpoint is not None:
                folder.checkpoint.restore(federation)

        def on_round(record: RoundRecord) -> None:
            row = row_of(record, federation.method, federation.layout, federation.client_sides)
            if folder is None:
                rows.append(row)
            else:
                folder.finish_round(federation, row)
            progress.advance(row)

        progress.begin(label, federation.round, config.rounds)
        try:
            history = federation.run(config.rounds, on_round)
        finally:
            progress.end()
            ledgers.flush()
            if folder is not None:
                folder.leave()
        if judged(own):
            progress.say(f"{label}: attacks on what the run left")
        seconds = perf_counter() - began
        values = summary_of(
            setup, federation, history.stopped, ledgers, rows, label, seconds, conclude([own])[0]
        )
        found = classified_of(setup, federation)
        if found:
            values["classified"] = found
        if folder is not None:
            folder.finish(history.state_dicts, values, about_of(setup), _best(federation, history))
    return Summary(values, rows)


def begin(probes: Sequence[Probe], setup: Setup) -> list[Probe]:
    """Copy the probes for one run, and pass its setup to them."""
    own = [copy(probe) for probe in probes]
    for probe in own:
        if isinstance(probe, Judge):
            probe.begin(setup)
    return own


def conclude(runs: Sequence[Sequence[Probe]]) -> list[dict[str, Any]]:
    """Collect the probes' conclusions for several similar runs: one dict per run, by the probe's name."""
    conclusions: list[dict[str, Any]] = [{} for _ in runs]
    for alike in zip(*runs, strict=True):
        if isinstance(alike[0], Judge):
            for values, concluded in zip(conclusions, type(alike[0]).conclude(alike), strict=True):
                values[alike[0].name] = concluded
    return conclusions


def judged(probes: Sequence[Probe]) -> bool:
    """Whether any of the probes judges the whole run."""
    return any(isinstance(probe, Judge) for probe in probes)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in PyTorch, for the same bits on any number of cores; runs in other threads wait.

    Worker processes still train clients in parallel.
    """
    with _TURN:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _best(federation: Federation, history: History) -> list[dict[str, Tensor]] | None:
    """Return the models with the least validation loss, as state dicts; None if there are none."""
    if history.best is None or history.best.models is None:
        return None
    module = federation.learner.model
    return [federation.layout.state_dict(module, model) for model in history.best.models]
