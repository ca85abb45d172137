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
    """Is told how a run goes."""

    def begin(self, label: str, done: int, rounds: int) -> None:
        """A run starts, or goes on after `done` rounds."""

    def advance(self, row: Row) -> None:
        """A round is done."""

    def say(self, text: str) -> None:
        """Something that the user should know."""

    def end(self) -> None:
        """The run is over, whatever happened."""


class Silent:
    """Tells nobody."""

    def begin(self, label: str, done: int, rounds: int) -> None:
        """Nothing."""

    def advance(self, row: Row) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


@runtime_checkable
class Judge(Probe, Protocol):
    """Methods of a probe that judges a whole run, such as an attack on it.

    What it keeps lives in the process: a run that was interrupted begins anew.
    """

    def begin(self, setup: Setup) -> None:
        """Take what the adversary holds before the run begins."""

    def load(self, setup: Setup) -> int:
        """Parameter vectors that it keeps of a run."""

    @classmethod
    def conclude(cls, judges: Sequence[Self]) -> list[dict[str, Any]]:
        """Plain values for the summary, of several runs at once: what is trained for them is trained together."""


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
    """Run an experiment.

    Parameters
    ----------
    config : Config
        Of one run; its ``[compare]`` is not looked at.
    out : path, optional
        The run's folder. Without one the ledgers live in memory and nothing is written.
    resume : bool
        Go on in `out` after the last whole round. With the reproducible source and the same device, the result is the
        same to the bit as without the interruption, on any number of workers.
    progress : Progress, optional
        Is told how it goes.
    setting : str
        The run's label; by default the method's name.
    memo : Path, optional
        A folder where first rounds are kept for other runs that begin alike; may be deleted at any time.
    probes : sequence of Probe
        Measure more after each round; what they return are the row's "figures".

    Raises
    ------
    FieldError, ConfigError
        If something does not fit; before anything is written, unless only training shows it.
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
        ledgers = folder.ledgers if folder else Ledgers(new_run_id(config))
        own = begin(probes, setup)
        federation = setup.federation(
            ledgers, own, (lambda text: None) if setting else progress.say
        )
        rows: list[Row] = folder.rows if folder else []
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
        if found := classified_of(setup, federation):
            values["classified"] = found
        if folder is not None:
            folder.finish(history.state_dicts, values, about_of(setup), _best(federation, history))
    return Summary(values, rows)


def begin(probes: Sequence[Probe], setup: Setup) -> list[Probe]:
    """Copies of the probes for one run, told what they need."""
    own = [copy(probe) for probe in probes]
    for probe in own:
        if isinstance(probe, Judge):
            probe.begin(setup)
    return own


def conclude(runs: Sequence[Sequence[Probe]]) -> list[dict[str, Any]]:
    """Collect what the probes of several runs of like cells conclude: for each run, by the probe's name."""
    conclusions: list[dict[str, Any]] = [{} for _ in runs]
    for alike in zip(*runs, strict=True):
        if isinstance(alike[0], Judge):
            for values, concluded in zip(conclusions, type(alike[0]).conclude(alike), strict=True):
                values[alike[0].name] = concluded
    return conclusions


def judged(probes: Sequence[Probe]) -> bool:
    """Whether one of them judges the whole run."""
    return any(isinstance(probe, Judge) for probe in probes)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in PyTorch: the same bits on any number of cores. Runs in threads of one process take turns.

    Clients are trained side by side by workers all the same.
    """
    with _TURN:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _best(federation: Federation, history: History) -> list[dict[str, Tensor]] | None:
    """Return the models with the least validation loss, by the names of the network's parameters."""
    if history.best is None or history.best.models is None:
        return None
    module = federation.learner.model
    return [federation.layout.state_dict(module, model) for model in history.best.models]
