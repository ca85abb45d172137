"""Folder of a run: configuration, metrics, ledgers, checkpoint, model, summary."""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedveil.engines import Federation
from fedveil.errors import FieldError, LedgerError, damaged
from fedveil.evidence import METRICS_CSV, METRICS_FILE, Row, parse_row, rows_csv, write_result
from fedveil.files import (
    CONFIG,
    RUN,
    RUN_ID,
    FolderLock,
    LedgerFiles,
    Ledgers,
    append,
    make_folder,
    refuse_used,
    remedy,
    require_begun,
    write_atomic,
)
from fedveil.home import Description
from fedveil.reading import json_of
from fedveil_lab.config.experiment import Config
from fedveil_lab.config.loading import load
from fedveil_lab.runs.checkpoint import Checkpoint
from fedveil_lab.runs.deal import data_digest


def new_run_id(config: Config) -> str:
    """Make the id for every ledger line: from the configuration if the run can be repeated to the bit, else random."""
    if config.source.kind == "reproducible":
        return config.fingerprint()[:16]
    return uuid.uuid4().hex


# What carries no noise, whatever the run promises of its models: the experimenter's view, not to be handed on.
UNNOISED = {
    "metrics.jsonl": "private: accuracies, losses, norms, texts of failures, each client's own noise",
    "metrics.csv": "private: as metrics.jsonl",
    "table*": "private: figures measured without noise, hospitals by their names",
    "summary.json": "private: its metrics, last_rounds, test_metrics and noise are measured without noise",
    "checkpoint": "private: the state of every client",
    "ledger": "private where a heuristic's scale follows a client's own values",
}
PRIVATE = "PRIVATE.txt"


def mark_private(folder: Path, what: Mapping[str, str]) -> None:
    """Write ``PRIVATE.txt``, which lists the files in a folder without noise."""
    if not (folder / PRIVATE).exists():
        write_atomic(
            folder / PRIVATE, "".join(f"{name}: {why}\n" for name, why in what.items()).encode()
        )


class RunFolder:
    """Folder of one run, with its ledgers, metrics and checkpoint.

    Parameters
    ----------
    path : Path
        New or empty folder; with `resume`, that of a run with the same configuration, or with fewer rounds.
    config : Config
        The run's configuration.
    resume : bool
        Whether to continue the run in the folder.
    message : callable
        Receives messages for the user.

    Attributes
    ----------
    rows : list of dict
        Metrics of each finished round.
    ledgers : Ledgers
        Ledgers of all parties.
    checkpoint : Checkpoint or None
        State from which the run continues; None for a new run.

    Raises
    ------
    FieldError
        If the folder is not empty and `resume` is not set, or it holds a different run.
    LedgerError
        If a ledger was edited or shortened.
    """

    def __init__(
        self, path: Path, config: Config, *, resume: bool, message: Callable[[str], None]
    ) -> None:
        self.path, self.config, self._message = path, config, message
        self.rows: list[Row] = []
        self.checkpoint: Checkpoint | None = None
        self._lock, self._durable, self._resumed = (
            FolderLock(path),
            config.source.kind == "secure",
            resume,
        )
        self._longer, self._fingerprint = False, config.fingerprint()
        try:
            if resume:
                self._reopen()
            else:
                refuse_used(path)
                self.run_id = new_run_id(config)
            self.ledgers: Ledgers = LedgerFiles(
                path / "ledger", self.run_id, durable=self._durable, message=message
            )
            if resume:
                self._verify()
        except LedgerError as error:
            self.close()
            raise LedgerError(f"{path}: {error}") from error
        except BaseException:
            self.close()
            raise

    def create(self, opening: Mapping[str, Any]) -> None:
        """Make the folder of a new run, or clean that of a resumed one; nothing is written before.

        The run's ledgers begin with its opening (`fedveil_lab.runs.opening`).
        """
        if not self._resumed:
            make_folder(self.path)
            self._lock.take()
            refuse_used(self.path)  # by another process, while this one prepared
        for folder in (self.path, self.path / "ledger", self.path / "checkpoint"):
            make_folder(folder)
            for part in folder.glob(
                ".*.part"
            ):  # of a process that was killed while it replaced a file
                part.unlink()
        metrics = self.path / METRICS_FILE
        if metrics.exists():  # without what lies beyond the checkpoint
            lines = [json.dumps(row) + "\n" for row in self.rows]
            write_atomic(metrics, "".join(lines).encode())
        if self._longer:
            (self.path / "summary.json").unlink(missing_ok=True)  # by which it was finished
        if self._longer or not (self.path / CONFIG).exists():
            write_atomic(self.path / RUN_ID, json.dumps({"run_id": self.run_id}).encode())
            write_atomic(self.path / CONFIG, self.config.to_toml().encode())
        mark_private(self.path, UNNOISED)
        self.ledgers.begin(opening, opening["parties"])

    def close(self) -> None:
        """Unlock the folder for other processes."""
        self._lock.release()

    def finish_round(self, federation: Federation, row: Row) -> None:
        """Write a finished round to disk: first its ledger lines, then its metrics, then the checkpoint."""
        self.ledgers.flush()
        self.rows.append(row)
        append(self.path / METRICS_FILE, json.dumps(row) + "\n")
        lines = self.ledgers.counts()
        data = data_digest(self.config.data)
        done = Checkpoint.of(federation, self.run_id, self._fingerprint, lines, data)
        done.write(self.path / "checkpoint")

    def leave(self) -> None:
        """Write the files for other programs; called whether the run finished or failed."""
        if self.rows:
            write_atomic(self.path / METRICS_CSV, rows_csv(self.rows))

    def finish(
        self,
        state_dicts: Sequence[Mapping[str, Tensor]],
        summary: Mapping[str, Any],
        about: Description | None = None,
        best: Sequence[Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Write the last released model, its description, the best model if there is one, and the summary."""
        self.ledgers.flush()
        write_result(self.path, state_dicts, summary, about, best)

    def _reopen(self) -> None:
        require_begun(self.path, RUN)
        self._lock.take()
        stored = load(self.path)
        if self.config.rounds > stored.rounds:
            stored, self._longer = _longer(stored, self.config), True
        if stored.fingerprint() != self._fingerprint:
            named = ", ".join(differences(stored.to_dict(), self.config.to_dict()))
            raise FieldError(
                "--resume",
                str(self.path),
                f"holds a run with another configuration (see {named}); "
                "leave what differs as it was, or start anew with another --out",
            )
        try:
            self.run_id = str(json_of((self.path / RUN_ID).read_bytes())["run_id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged("--resume", self.path / RUN_ID, error, remedy(self.path)) from error
        self.checkpoint = Checkpoint.read(self.path / "checkpoint")
        if self.checkpoint is not None and self.checkpoint.run_id != self.run_id:
            mixed = f"the checkpoint belongs to run {self.checkpoint.run_id!r}, not {self.run_id!r}"
            raise LedgerError(f"{mixed}; restore the files or start a new run")
        if self.checkpoint is not None:
            _require_same_data(self.path, self.config, self.checkpoint)

    def _verify(self) -> None:
        done, lines = 0, dict[str, int]()
        if self.checkpoint is not None:
            done, lines = self.checkpoint.round, dict(self.checkpoint.lines)
        if isinstance(self.ledgers, LedgerFiles):
            self.ledgers.resume(lines)
        books = self.ledgers.books
        rounds = [0]
        for book in books.values():
            rounds += [entry.key[0] for entry in book.entries]
        last = max(rounds)
        if last > done:
            stands = "the first model stands"
            if done:
                stands = f"the model of round {done} stands"
            again = "to the same bits"
            if self._durable:
                again = "and drawn anew; what is recorded of it stays counted"
            self._message(
                f"the ledgers hold round {last}, which has no checkpoint: {stands}, it is done {again}"
            )
        released = 0
        if "server" in books:
            released = max((entry.key[0] for entry in books["server"].entries), default=0)
        path = self.path / METRICS_FILE
        if path.exists():
            text = path.read_text(encoding="utf-8", errors="replace")
        else:
            text = ""
        for line in text.splitlines():
            try:
                row = parse_row(line)
            except (ValueError, KeyError):  # the last may be half-written: its round is done again
                continue
            if row["round"] > released:
                lacks = f"the ledger of 'server' lacks round {row['round']}, of which metrics.jsonl has the figures"
                raise LedgerError(f"{lacks}; restore the file or start a new run")
            if row["round"] == len(self.rows) + 1 <= done:
                self.rows.append(row)
        if len(self.rows) < done:
            lost = ValueError(f"this line is missing or damaged, and round {done} was finished")
            raise damaged("--resume", f"{path}, line {len(self.rows) + 1}", lost, remedy(self.path))


def _require_same_data(path: Path, config: Config, checkpoint: Checkpoint) -> None:
    """Refuse to continue a run with other examples or inputs than at its start."""
    columns = list(config.data.options.get("columns", ()))
    if checkpoint.data:
        other = checkpoint.data != data_digest(config.data)
        why = "the run began with other examples or inputs: restore the data"
    else:  # written when a table's inputs came in the alphabetical order of their names
        other = columns != sorted(columns)
        why = "the run may have begun with its columns in alphabetical order"
    if other:
        accepted = f"{why}, or start anew with another --out (--resume {path})"
        raise FieldError("data", config.data.name, accepted)


def _longer(stored: Config, config: Config) -> Config:
    """Return the stored configuration with more rounds, if neither promise nor noise depends on their number."""
    planned = stored.privacy.options.get("rounds") or config.rounds
    if planned < config.rounds or config.privacy.build(config.aggregator).client.composed:
        made = f"the noise was made for {min(planned, stored.rounds)} rounds, and more would exceed its promise"
        accepted = f"{made}: start anew with another --out, planned for all of them"
        raise FieldError("rounds", config.rounds, accepted)
    return stored.model_copy(update={"rounds": config.rounds})


def differences(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List the dotted keys whose values differ between two tables."""
    found: list[str] = []
    for key in sorted({*a, *b}):
        one, other = a.get(key), b.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other, f"{prefix}{key}.")
        elif one != other:
            found.append(f"{prefix}{key}")
    return found
