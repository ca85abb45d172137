"""What a run leaves behind: configuration, metrics, ledgers, checkpoint, model, summary."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedveil.engines import Federation
from fedveil.errors import FieldError, LedgerError
from fedveil.experiments.checkpoint import Checkpoint
from fedveil.experiments.config import Config
from fedveil.experiments.ledgers import LedgerFiles, Ledgers, append, make_folder, replace
from fedveil.experiments.loading import load

Row = dict[str, Any]

# What `RunFolder.create` makes before config.toml, with which a run begins.
BEFORE_A_RUN = {"ledger", "checkpoint", "checkpoint/.run.json.part", "checkpoint/run.json", ".config.toml.part"}


def new_run_id(config: Config) -> str:
    """The id in every ledger line: of the configuration where the run can be repeated to the bit, else a random one."""
    return config.fingerprint()[:16] if config.source.kind == "reproducible" else uuid.uuid4().hex


class RunFolder:
    """The folder of one run.

    Parameters
    ----------
    path : Path
        New or empty, or (`resume`) that of a run with the same configuration.
    config : Config
        Of the run.
    resume : bool
        Go on where the run stopped.
    message : callable
        Takes what the user should know.

    Attributes
    ----------
    rows : list of dict
        One a finished round.
    ledgers : Ledgers
        Of all parties.
    checkpoint : Checkpoint or None
        To go on from.

    Raises
    ------
    FieldError
        If the folder holds something and `resume` is not set, or the run in it is another one.
    LedgerError
        If a ledger was edited or shortened.
    """

    def __init__(self, path: Path, config: Config, *, resume: bool, message: Callable[[str], None]) -> None:
        self.path, self.config, self._message = path, config, message
        self.rows: list[Row] = []
        self.checkpoint: Checkpoint | None = None
        if resume:
            self._reopen()
        else:
            refuse_used(path)
            self.run_id = new_run_id(config)
        self.ledgers: Ledgers = LedgerFiles(
            path / "ledger", self.run_id, durable=config.source.kind == "secure", message=message
        )
        if resume:
            self._verify()

    def create(self) -> None:
        """Make the folder of a new run, tidy that of a resumed one; nothing is written before this."""
        for folder in (self.path, self.path / "ledger", self.path / "checkpoint"):
            make_folder(folder)
            for left in folder.glob(".*.part"):  # by a process that was killed while it replaced a file
                left.unlink()
        if not (self.path / "config.toml").exists():
            replace(self.path / "checkpoint" / "run.json", json.dumps({"run_id": self.run_id}).encode())
            replace(self.path / "config.toml", self.config.to_toml().encode())

    def finish_round(self, federation: Federation, row: Row) -> None:
        """Make a round durable: its ledger lines first, then its metrics, then the checkpoint."""
        self.ledgers.flush()
        self.rows.append(row)
        append(self.path / "metrics.jsonl", json.dumps(row) + "\n")
        lines = self.ledgers.counts()
        Checkpoint.of(federation, self.run_id, self.config.fingerprint(), lines).write(self.path / "checkpoint")

    def finish(self, state_dicts: Sequence[Mapping[str, Tensor]], summary: Mapping[str, Any]) -> None:
        """Write the last released model and the summary."""
        self.ledgers.flush()
        single = len(state_dicts) == 1
        arrays = {
            name if single else f"hypothesis.{j}.{name}": value.detach().cpu().contiguous().clone()
            for j, named in enumerate(state_dicts)
            for name, value in named.items()
        }
        replace(self.path / "model.safetensors", save(arrays, metadata={"format": "pt"}))
        replace(self.path / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())

    def _reopen(self) -> None:
        if not (self.path / "config.toml").is_file():
            raise FieldError("--resume", str(self.path), "holds no run to go on with; leave --resume out")
        stored = load(self.path / "config.toml")
        if stored.fingerprint() != self.config.fingerprint():
            named = ", ".join(_differences(stored.to_dict(), self.config.to_dict()))
            raise FieldError("--resume", str(self.path), f"holds a run with another configuration (see {named})")
        try:
            self.run_id = str(json.loads((self.path / "checkpoint" / "run.json").read_bytes())["run_id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FieldError("--resume", str(self.path), f"checkpoint/run.json cannot be read ({error})") from error
        self.checkpoint = Checkpoint.read(self.path / "checkpoint")
        if self.checkpoint is not None and self.checkpoint.run_id != self.run_id:
            mixed = f"the checkpoint belongs to run {self.checkpoint.run_id!r}, not {self.run_id!r}"
            raise LedgerError(f"{mixed}; restore the files or start a new run")

    def _verify(self) -> None:
        done = self.checkpoint.round if self.checkpoint else 0
        if isinstance(self.ledgers, LedgerFiles):
            self.ledgers.resume(self.checkpoint.lines if self.checkpoint else {})
        path = self.path / "metrics.jsonl"
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with suppress(ValueError):  # the last line may be half-written; its round is done again
                row = json.loads(line)
                if isinstance(row, dict) and row.get("round", 0) == len(self.rows) + 1 <= done:
                    self.rows.append(row)
        if len(self.rows) < done:
            accepted = f"holds fewer rounds than the checkpoint, {done}; restore the file"
            raise FieldError("metrics.jsonl", len(self.rows), accepted)
        if path.exists():
            replace(path, "".join(json.dumps(row) + "\n" for row in self.rows).encode())


def refuse_used(path: Path) -> None:
    """Refuse to write where something already is.

    Raises
    ------
    FieldError
        If the path is a file or a folder that holds anything.
    """
    if path.exists() and not path.is_dir():
        raise FieldError("--out", str(path), "is a file; give the path of a folder")
    if path.is_dir() and not _unused(path):
        what = "holds a run already" if (path / "config.toml").exists() else "is not empty"
        raise FieldError("--out", str(path), f"{what}; go on with it by --resume, or give another --out")


def _unused(path: Path) -> bool:
    """Whether a folder holds nothing, or no more than a run leaves that was killed before it began."""
    return all(str(inner.relative_to(path)) in BEFORE_A_RUN for inner in path.rglob("*"))


def _differences(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key in sorted({*a, *b}):
        left, right = a.get(key), b.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += _differences(left, right, f"{prefix}{key}.")
        elif left != right:
            found.append(f"{prefix}{key}")
    return found
