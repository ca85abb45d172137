"""Folder of a deployed run's server: ledger, one line for each round, checkpoint, model, summary."""

import json
import uuid
from collections.abc import Collection, Mapping
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
from fedveil.evidence.kept import refuse_clear, require_keeps, write_round
from fedveil.evidence.opening import opening_of_server
from fedveil.evidence.rows import METRICS_CSV, METRICS_FILE, Row, row_of, rows_csv
from fedveil.evidence.standing import FOLDER as CHECKPOINT
from fedveil.evidence.standing import OF_QUOTES, SUMMARY, read_standing, rows_of, write_standing
from fedveil.evidence.summary import REPRODUCIBLE, core_of, write_result
from fedveil.files import (
    SERVERS_LEDGER,
    FolderLock,
    LedgerFiles,
    append,
    make_folder,
    refuse_used,
    write_atomic,
)
from fedveil.home.description import Description
from fedveil.layout import Layout
from fedveil.logs import logger
from fedveil.mechanisms import Source
from fedveil.methods import Broadcast, Method, Releases
from fedveil.reading import json_of

_LOG = logger("flwr")


class ServerFolder:
    """Folder of a server under Flower or NVIDIA FLARE, in the same form as the folder of any other run.

    Parameters
    ----------
    path : str or Path
        Path of a new or empty folder, or of the folder of a run to continue.
    about : Description, optional
        Description of the model's inputs and classes, stored with the model for `fv.load`. Without it only the arrays
        are stored.
    resume : bool
        Whether to continue the run in the folder from its last checkpoint and its ledger. A release is stored before it
        is sent, and can be sent again at no cost. If a round has a ledger line but no models, it is repeated with new
        noise and training, and charged again.
    keep : collection of {"models", "updates", "shares"}
        Parts of each round to store in the folder ``rounds``: the models before and after it, each site's model, or the
        arrived shares without their senders. `fedveil audit --recorded` reads the first two, `fedveil.evidence.replay`
        the last. Models are released, so storing them costs nothing. Updates may be stored under local trust, or
        without a promise; shares under local trust and in a secure sum.

    Attributes
    ----------
    run : str
        Framework's id of the run, as in the clients' own ledgers.
    standing : Standing, optional
        State of a resumed run, after opening; None before the end of its first round.
    """

    def __init__(
        self,
        path: str | Path,
        about: Description | None = None,
        *,
        resume: bool = False,
        keep: Collection[str] = (),
    ) -> None:
        if about is not None:
            require_a(
                "about", about, Description, "must be a Description: fedveil.home.describe(...)"
            )
        require_a("resume", resume, bool, "must be True or False")
        self.path, self.about, self.resume = Path(path), about, resume
        self._keep = require_keeps(keep)
        self.opened, self.run = False, ""
        self.standing: Standing | None = None
        self._finished = False

    def open(
        self,
        method: Method,
        layout: Layout,
        rounds: int,
        source: Source,
        engine: str,
        done: int = 0,
    ) -> tuple[Ledger, LineStore]:
        """Create and lock the folder for a run, or continue in it after `done` rounds.

        With a deployable source each ledger line is on the disk before its release is sent.

        Raises
        ------
        FieldError
            If the folder is in use, lacks a done round, or would store answers that a promise requires to be forgotten.
        LedgerError
            If its ledger was edited.
        """
        refuse_clear(method, self._keep)
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
                for part in folder.glob(
                    ".*.part"
                ):  # files of a process that was killed while it replaced one
                    part.unlink()
            return self._opened(done, source)
        except BaseException:
            self._lock.release()
            raise

    def _opened(self, done: int, source: Source) -> tuple[Ledger, LineStore]:
        where, file = self.path / "ledger", self.path / SERVERS_LEDGER
        if self.resume and b"\n" not in file.read_bytes():
            file.unlink()  # a first line that was not written whole: nobody was asked after it
        goes_on = file.exists() and (self.resume or done > 0)
        run = run_of(file, done) if goes_on else uuid.uuid4().hex
        self._ledgers = LedgerFiles(where, run, durable=self._durable, message=_LOG.warning)
        if file.exists():
            self._go_on(done, source)
        return self._ledgers.open(SERVER)

    def begin(self, run: str, delta: float) -> None:
        """Write the framework's id of the run into the first line of the server's ledger, before any client is asked."""
        self.run, self._delta = run, delta
        if not self._finished:
            (self.path / SUMMARY).unlink(missing_ok=True)  # it covers only the rounds before
            figures = self.path / METRICS_FILE
            if figures.exists():  # a folder without a ledger line stays one to begin in
                lines = [json.dumps(row) + "\n" for row in self._rows]
                write_atomic(figures, "".join(lines).encode())
        self._ledgers.begin(opening_of_server(self._method, delta, self._engine, run), [SERVER])
        self._ledgers.flush()

    def _go_on(self, done: int, source: Source) -> None:
        """Read the ledger and the figures of the done rounds; later ledger lines stay charged."""
        found = None
        if self.resume:
            fresh = self._method.server.init(self._layout.size, self._layout.dtype)
            found = read_standing(self.path, fresh, self._bound)
        recorded: dict[str, int] = {}
        if found is not None:
            self.standing, recorded[SERVER] = found
            done = self.standing.round
        self._ledgers.resume(recorded)
        book = self._ledgers.books[SERVER]
        _require_source(book, source)
        field = "folder" if self.resume else "done"
        lacking = lacking_rounds(book, done)
        if lacking:
            accepted = f"its ledger lacks round {lacking[0]}: give the folder in which all rounds before were done"
            raise FieldError(field, done, accepted)
        figures = self.path / METRICS_FILE
        self._rows = rows_of(figures)[:done]
        if [row["round"] for row in self._rows] != [*range(1, done + 1)]:
            raise FieldError(field, done, f"{figures} lacks one of these rounds: restore the file")
        self._finished = self.resume and done == self._planned and (self.path / SUMMARY).exists()

    @property
    def _bound(self) -> dict[str, Any]:
        """Values that must not change when the run continues; the ledger's first line binds the others."""
        shapes = {name: list(shape) for name, shape in self._layout.shapes.items()}
        return {"method": self._method.name, "rounds": self._planned, "layout": shapes}

    def record(self, broadcast: Broadcast, replies: Mapping[int, Releases], models: Tensor) -> None:
        """Store the requested parts of a round: models, updates or shares."""
        write_round(self.path, self._keep, broadcast, replies, models)

    def finish_round(
        self,
        log: Round,
        metrics: Mapping[str, float],
        standing: Standing,
    ) -> None:
        """Store a round: its ledger line, its figures, and last its models and the server's state."""
        self._ledgers.flush()
        record = RoundRecord(log, dict(metrics), [], {}, perf_counter() - self._began)
        self._began = perf_counter()
        self._rows.append(row_of(record, self._method, self._layout, {}))
        append(self.path / METRICS_FILE, json.dumps(self._rows[-1]) + "\n")
        write_atomic(self.path / METRICS_CSV, rows_csv(self._rows))
        self.keep(standing)

    def keep(self, standing: Standing) -> None:
        """Replace the checkpoint: released models, and the server's state if it follows from released models alone."""
        if not self._method.keeps_released:
            fresh = self._method.server.init(self._layout.size, self._layout.dtype)
            standing = replace(standing, state=fresh)
        self._ledgers.flush()
        said = self._said(unprotected(), self._delta, len(standing.partitions))
        write_standing(
            self.path,
            standing,
            self._bound,
            self._ledgers.books[SERVER].lines,
            said,
        )

    def finish(
        self,
        models: Tensor,
        serving: Serving,
        stopped: str,
        clients: int,
    ) -> None:
        """Write the last released model and the summary, and unlock the folder."""
        self._ledgers.flush()
        if not self._finished:
            named = [self._layout.views(model) for model in models]
            best = None
            if serving.best.models is not None:
                best = [self._layout.views(model) for model in serving.best.models]
            summary = self._summary(serving, stopped, clients)
            write_result(self.path, named, summary, self.about, best)
        self.leave()

    def leave(self) -> None:
        """Unlock the folder."""
        if self.opened:
            self._lock.release()

    def _summary(self, serving: Serving, stopped: str, clients: int) -> dict[str, Any]:
        promise = serving.guarantee
        party = SERVER if self._method.client.trust == "central" else OF_QUOTES
        failed = serving.always_failed()
        return {
            **self._said(promise, serving.delta, clients),
            "guarantees": {party: guarantee_values(promise, serving.delta)},
            "stopped": stopped,
            "always_failed": {str(partition): why for partition, why in failed.items()},
        }

    def _said(self, promise: Guarantee, delta: float, clients: int) -> dict[str, Any]:
        """Return the summary without the promises of single parties and the end of the run."""
        return {
            **core_of(
                self._method.name,
                self._method,
                self._layout,
                self._rows,
                promise,
                delta,
            ),
            "name": self.path.name,
            "run": self.run,
            "rounds_planned": self._planned,
            "clients": clients,
            "source": "secure" if self._durable else REPRODUCIBLE,
            "engine": self._engine,
        }


def _require_source(book: Ledger, source: Source) -> None:
    """Refuse to continue with another kind of source than the earlier rounds had."""
    kinds = {entry.source for entry in book.entries} - {source.kind, "none", ""}
    if kinds:
        accepted = f"its rounds before were noised by a {kinds.pop()} source: give the same seed, or none, as then"
        raise FieldError("seed", source.kind, accepted)


def require_resumable(path: Path, method: Method) -> None:
    """Refuse to continue without a server's run in the folder, or with a method whose state is private.

    Raises
    ------
    FieldError
        If it cannot continue; the text names the argument to give.
    """
    if not method.keeps_released:
        accepted = "its server's state is not noised, so that no checkpoint may hold it: resume a method with "
        accepted += "order='formal', or declare keeps_released = True in your own"
        raise FieldError("resume", method.name, accepted)
    if not (path / SERVERS_LEDGER).exists():
        accepted = "holds no ledger of a server's run to go on from: leave resume out to begin one, or give its folder"
        raise FieldError("resume", str(path), accepted)


def run_of(ledger: Path, done: int) -> str:
    """Read the id of the run from a server's ledger.

    Raises
    ------
    FieldError
        If there is no such ledger.
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
