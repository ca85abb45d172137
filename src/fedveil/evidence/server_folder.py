"""What the server of a deployed run leaves behind: ledger, one line a round, model, summary."""

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from fedveil.accounting import Ledger, guarantee_values
from fedveil.engines import RoundRecord
from fedveil.engines.party import SERVER, LineStore, lacking_rounds
from fedveil.engines.server import Round
from fedveil.engines.serving import Serving
from fedveil.errors import FieldError, LedgerError, require_a
from fedveil.evidence.opening import opening_of_server
from fedveil.evidence.rows import METRICS_CSV, METRICS_FILE, Row, parse_row, row_of, rows_csv
from fedveil.evidence.summary import REPRODUCIBLE, core_of, write_result
from fedveil.files import FolderLock, LedgerFiles, append, make_folder, refuse_used, write_atomic
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

    Attributes
    ----------
    run : str
        The framework's id of the run, by which clients' own ledgers know it.
    """

    def __init__(self, path: str | Path, about: Description | None = None) -> None:
        if about is not None:
            require_a("about", about, Description, "must be a Description: fedveil.home.describe(...)")
        self.path, self.about, self.opened, self.run = Path(path), about, False, ""

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
        where = self.path / "ledger"
        if done:
            run = run_of(where / f"{SERVER}.jsonl", done)
        else:
            refuse_used(self.path)
            run = uuid.uuid4().hex
            make_folder(self.path)
        self.opened = True
        self._engine, self._durable = engine, source.deployable
        self._method, self._layout, self._planned = method, layout, rounds
        self._began, self._rows = perf_counter(), list[Row]()
        self._lock = FolderLock(self.path)
        self._lock.take()
        make_folder(where)
        self._ledgers = LedgerFiles(where, run, durable=self._durable, message=_LOG.warning)
        if done:
            try:
                self._go_on(done)
            except BaseException:
                self._lock.release()
                raise
        return self._ledgers.open(SERVER)

    def begin(self, run: str, delta: float) -> None:
        """Bind the run, by the framework's id, in the first line of the server's ledger."""
        self.run = run
        self._ledgers.begin(opening_of_server(self._method, delta, self._engine, run), [SERVER])

    def _go_on(self, done: int) -> None:
        """Read the ledger and the figures of the rounds that are done; what lies beyond them stays charged."""
        self._ledgers.resume({})
        if lacking := lacking_rounds(self._ledgers.books[SERVER], done):
            accepted = f"its ledger lacks round {lacking[0]}: give the folder in which all rounds before were done"
            raise FieldError("done", done, accepted)
        figures = self.path / METRICS_FILE
        self._rows = rows_of(figures)[:done]
        if [row["round"] for row in self._rows] != [*range(1, done + 1)]:
            raise FieldError("done", done, f"{figures} lacks one of these rounds: restore the file")
        (self.path / "summary.json").unlink(missing_ok=True)  # it would be that of the rounds before alone
        write_atomic(figures, "".join(json.dumps(row) + "\n" for row in self._rows).encode())

    def finish_round(self, log: Round, metrics: Mapping[str, float]) -> None:
        """Make a round durable."""
        self._ledgers.flush()
        record = RoundRecord(log, dict(metrics), [], {}, perf_counter() - self._began)
        self._began = perf_counter()
        self._rows.append(row_of(record, self._method, self._layout, {}))
        append(self.path / METRICS_FILE, json.dumps(self._rows[-1]) + "\n")
        write_atomic(self.path / METRICS_CSV, rows_csv(self._rows))

    def finish(self, models: Tensor, serving: Serving, stopped: str, clients: int) -> None:
        """Write the last released model and the summary, and let go of the folder."""
        self._ledgers.flush()
        state_dicts = [self._layout.views(model) for model in models]
        write_result(self.path, state_dicts, self._summary(serving, stopped, clients), self.about)
        self._lock.release()

    def _summary(self, serving: Serving, stopped: str, clients: int) -> dict[str, Any]:
        promise, central = serving.guarantee, self._method.client.trust == "central"
        party = SERVER if central else "a client of every round, by its quotes"
        return {
            **core_of(self._method.name, self._method, self._layout, self._rows, promise, serving.delta),
            "name": self.path.name,
            "run": self.run,
            "guarantees": {party: guarantee_values(promise, serving.delta)},
            "rounds_planned": self._planned,
            "stopped": stopped,
            "always_failed": {str(p): why for p, why in serving.always_failed().items()},
            "clients": clients,
            "source": "secure" if self._durable else REPRODUCIBLE,
            "engine": self._engine,
        }


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


def rows_of(file: Path) -> list[Row]:
    """Figures of a run's rounds, up to the first line that is damaged or missing."""
    rows: list[Row] = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else ():
        try:
            rows.append(parse_row(line))
        except (ValueError, KeyError):
            break
    return rows
