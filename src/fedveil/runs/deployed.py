"""What the server of a deployed run leaves behind: ledger, one line a round, model, summary."""

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from fedveil.accounting import Ledger, guarantee_values
from fedveil.config.folders import refuse_used
from fedveil.engines import RoundRecord
from fedveil.engines.party import SERVER, LineStore
from fedveil.engines.server import Round
from fedveil.engines.serving import Serving
from fedveil.layout import Layout
from fedveil.logs import logger
from fedveil.mechanisms import Source
from fedveil.methods import Method
from fedveil.runs.disk import FolderLock, LedgerFiles, append, make_folder, write_atomic, write_result
from fedveil.runs.rows import METRICS_CSV, METRICS_FILE, Row, row_of, rows_csv
from fedveil.runs.summary import REPRODUCIBLE, core_of

_LOG = logger("flwr")


class ServerFolder:
    """The folder of a server under Flower or NVIDIA FLARE; `fedveil.runs.Summary.read` reads it like that of any run.

    Parameters
    ----------
    path : str or Path
        New or empty.

    Attributes
    ----------
    run : str
        The framework's id of the run, by which clients' own ledgers know it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.opened, self.run = Path(path), False, ""

    def open(
        self, method: Method, layout: Layout, rounds: int, source: Source, engine: str
    ) -> tuple[Ledger, LineStore]:
        """Make the folder, for a run that this process alone writes.

        With a source that is deployable each ledger line is on the disk before its release is handed over.

        Raises
        ------
        FieldError
            If the folder holds anything.
        """
        refuse_used(self.path)
        self.opened = True
        self._engine, self._durable = engine, source.deployable
        self._method, self._layout, self._planned = method, layout, rounds
        self._began, self._rows = perf_counter(), list[Row]()
        make_folder(self.path)
        self._lock = FolderLock(self.path)
        self._lock.take()
        where = self.path / "ledger"
        make_folder(where)
        self._ledgers = LedgerFiles(where, uuid.uuid4().hex, durable=self._durable, message=_LOG.warning)
        return self._ledgers.open(SERVER)

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
        write_result(self.path, state_dicts, self._summary(serving, stopped, clients))
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
