"""What the server of a deployed run leaves behind: ledger, one line a round, model, summary."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from fedveil.accounting import Guarantee, Ledger, guarantee_values, unprotected
from fedveil.engines import RoundRecord
from fedveil.engines.party import SERVER, LineStore, lacking_rounds
from fedveil.engines.server import Round
from fedveil.engines.serving import Serving, Standing
from fedveil.errors import FieldError, LedgerError, require_a
from fedveil.evidence.opening import opening_of_server
from fedveil.evidence.rows import METRICS_CSV, METRICS_FILE, Row, row_of, rows_csv
from fedveil.evidence.standing import FOLDER as CHECKPOINT
from fedveil.evidence.standing import OF_QUOTES, SUMMARY, read_standing, rows_of, write_standing
from fedveil.evidence.summary import REPRODUCIBLE, core_of, write_result
from fedveil.files import SERVERS_LEDGER, FolderLock, LedgerFiles, append, make_folder, refuse_used, write_atomic
from fedveil.home.description import Description
from fedveil.layout import Layout
from fedveil.logs import logger
from fedveil.mechanisms import Source
from fedveil.methods import Method
from fedveil.reading import json_of

_LOG = logger("flwr")


class ServerFolder:
    """The folder of a server under Flower or NVIDIA FLARE, which the laboratory reads like that of any run.

    Parameters
    ----------
    path : str or Path
        New or empty; or that of a run that goes on, of which some rounds are done.
    about : Description, optional
        What the model takes, and names of its classes: stored beside it, so that `fv.load` can answer. A server that is
        given none knows arrays alone.
    resume : bool
        Go on with the run in the folder, from its last checkpoint and its ledger alone. What a server released in a
        round is stored before it is handed over, and handed over again at no cost. A round whose ledger line is there
        and whose models are not is done anew, with fresh noise and fresh training, and charged again.

    Attributes
    ----------
    run : str
        The framework's id of the run, by which clients' own ledgers know it.
    standing : Standing, optional
        Where the run stands that goes on, once it is opened; None before the end of its first round.
    """

    def __init__(self, path: str | Path, about: Description | None = None, *, resume: bool = False) -> None:
        if about is not None:
            require_a("about", about, Description, "must be a Description: fedveil.home.describe(...)")
        require_a("resume", resume, bool, "must be True or False")
        self.path, self.about, self.resume, self.opened, self.run = Path(path), about, resume, False, ""
        self.standing: Standing | None = None
        self._finished = False

    def open(
        self, method: Method, layout: Layout, rounds: int, source: Source, engine: str, done: int = 0
    ) -> tuple[Ledger, LineStore]:
        """Make the folder, for a run that this process alone writes; or, with rounds `done`, go on in it.

        With a source that is deployable each ledger line is on the disk before its release is handed over.

        Raises
        ------
        FieldError
            If the folder holds anything, or lacks one of the rounds that are done.
        LedgerError
            If its ledger was edited.
        """
        if self.resume:
            require_resumable(self.path, method)
        elif done:
            run_of(self.path / SERVERS_LEDGER, done)
        else:
            refuse_used(self.path)
        make_folder(self.path)
        self.opened = True
        self._engine, self._durable = engine, source.deployable
        self._method, self._layout, self._planned = method, layout, rounds
        self._began, self._rows = perf_counter(), list[Row]()
        self._lock = FolderLock(self.path)
        self._lock.take()
        try:
            for folder in (self.path, self.path / "ledger", self.path / CHECKPOINT):
                make_folder(folder)
                for part in folder.glob(".*.part"):  # of a process that was killed while it replaced a file
                    part.unlink()
            return self._opened(done, source)
        except BaseException:
            self._lock.release()
            raise

    def _opened(self, done: int, source: Source) -> tuple[Ledger, LineStore]:
        where, file = self.path / "ledger", self.path / SERVERS_LEDGER
        if self.resume and b"\n" not in file.read_bytes():
            file.unlink()  # a first line that was not written whole: nobody was asked after it
        run = run_of(file, done) if file.exists() and (self.resume or done) else uuid.uuid4().hex
        self._ledgers = LedgerFiles(where, run, durable=self._durable, message=_LOG.warning)
        if file.exists():
            self._go_on(done, source)
        return self._ledgers.open(SERVER)

    def begin(self, run: str, delta: float) -> None:
        """Bind the run, by the framework's id, in the first line of the server's ledger, before anybody is asked."""
        self.run, self._delta = run, delta
        if not self._finished:
            (self.path / SUMMARY).unlink(missing_ok=True)  # it would be that of the rounds before alone
            write_atomic(self.path / METRICS_FILE, "".join(json.dumps(row) + "\n" for row in self._rows).encode())
        self._ledgers.begin(opening_of_server(self._method, delta, self._engine, run), [SERVER])
        self._ledgers.flush()

    def _go_on(self, done: int, source: Source) -> None:
        """Read the ledger and the figures of the rounds that are done; what lies beyond them stays charged."""
        found = None
        if self.resume:
            fresh = self._method.server.init(self._layout.size, self._layout.dtype)
            found = read_standing(self.path, fresh, self._bound)
        if found is not None:
            self.standing, lines = found
            done = self.standing.round
        self._ledgers.resume({} if found is None else {SERVER: lines})
        book = self._ledgers.books[SERVER]
        kinds = {entry.source for entry in book.entries} - {source.kind, "none", ""}
        if kinds:
            accepted = f"its rounds before were noised by a {kinds.pop()} source: give the same seed, or none, as then"
            raise FieldError("seed", source.kind, accepted)
        if lacking := lacking_rounds(book, done):
            accepted = f"its ledger lacks round {lacking[0]}: give the folder in which all rounds before were done"
            raise FieldError("folder" if self.resume else "done", done, accepted)
        figures = self.path / METRICS_FILE
        self._rows = rows_of(figures)[:done]
        if [row["round"] for row in self._rows] != [*range(1, done + 1)]:
            accepted = f"{figures} lacks one of these rounds: restore the file"
            raise FieldError("folder" if self.resume else "done", done, accepted)
        self._finished = self.resume and done == self._planned and (self.path / SUMMARY).exists()

    @property
    def _bound(self) -> dict[str, Any]:
        """What may not change when the run goes on; the ledger's first line binds the rest."""
        shapes = {name: list(shape) for name, shape in self._layout.shapes.items()}
        return {"method": self._method.name, "rounds": self._planned, "layout": shapes}

    def finish_round(self, log: Round, metrics: Mapping[str, float], standing: Standing) -> None:
        """Make a round durable: its ledger line, its figures, and last its models and the server's state."""
        self._ledgers.flush()
        record = RoundRecord(log, dict(metrics), [], {}, perf_counter() - self._began)
        self._began = perf_counter()
        self._rows.append(row_of(record, self._method, self._layout, {}))
        append(self.path / METRICS_FILE, json.dumps(self._rows[-1]) + "\n")
        write_atomic(self.path / METRICS_CSV, rows_csv(self._rows))
        self.keep(standing)

    def keep(self, standing: Standing) -> None:
        """Replace the checkpoint: released models, and the server's state where that follows from released ones."""
        if not self._method.keeps_released:
            standing = replace(standing, state=self._method.server.init(self._layout.size, self._layout.dtype))
        self._ledgers.flush()
        said = self._said(unprotected(), self._delta, len(standing.partitions))
        write_standing(self.path, standing, self._bound, self._ledgers.books[SERVER].lines, said)

    def finish(self, models: Tensor, serving: Serving, stopped: str, clients: int) -> None:
        """Write the last released model and the summary, and let go of the folder."""
        self._ledgers.flush()
        if not self._finished:
            state_dicts = [self._layout.views(model) for model in models]
            write_result(self.path, state_dicts, self._summary(serving, stopped, clients), self.about)
        self.leave()

    def leave(self) -> None:
        """Let go of the folder."""
        if self.opened:
            self._lock.release()

    def _summary(self, serving: Serving, stopped: str, clients: int) -> dict[str, Any]:
        promise, central = serving.guarantee, self._method.client.trust == "central"
        return {
            **self._said(promise, serving.delta, clients),
            "guarantees": {SERVER if central else OF_QUOTES: guarantee_values(promise, serving.delta)},
            "stopped": stopped,
            "always_failed": {str(p): why for p, why in serving.always_failed().items()},
        }

    def _said(self, promise: Guarantee, delta: float, clients: int) -> dict[str, Any]:
        """A summary but for what each party was promised, and how the run ended."""
        return {
            **core_of(self._method.name, self._method, self._layout, self._rows, promise, delta),
            "name": self.path.name,
            "run": self.run,
            "rounds_planned": self._planned,
            "clients": clients,
            "source": "secure" if self._durable else REPRODUCIBLE,
            "engine": self._engine,
        }


def require_resumable(path: Path, method: Method) -> None:
    """Refuse to go on where no server's run was begun, or with a method whose state is not released.

    Raises
    ------
    FieldError
        Naming what to give.
    """
    if not method.keeps_released:
        accepted = "its server keeps what no noise was added to, and no checkpoint holds that: a method of "
        accepted += "order='formal' can be resumed, and one of yours that declares keeps_released = True"
        raise FieldError("resume", method.name, accepted)
    if not (path / SERVERS_LEDGER).exists():
        accepted = "holds no ledger of a server's run to go on from: leave resume out to begin one, or give its folder"
        raise FieldError("resume", str(path), accepted)


def run_of(ledger: Path, done: int) -> str:
    """The id of the run that a server's ledger belongs to.

    Raises
    ------
    FieldError
        If there is none.
    LedgerError
        If it cannot be read.
    """
    if not ledger.exists():
        accepted = f"{ledger} is not there: give the folder in which the rounds before were done, or leave done out"
        raise FieldError("done", done, accepted)
    try:
        return str(json_of(ledger.read_bytes().split(b"\n", 1)[0])["run"])
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{ledger} is no server's ledger: {error}; restore the file") from error
