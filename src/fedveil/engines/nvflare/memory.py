"""What a site remembers through a job, in the process that runs it."""

from pathlib import Path
from typing import Any

from nvflare.apis.fl_context import FLContext

from fedveil.accounting import Ledger
from fedveil.engines.node import ClientMemory
from fedveil.errors import FieldError
from fedveil.methods import Releases


class RunMemory(ClientMemory):
    """One site's memory of one job; FLARE keeps one process a job, and its filters, to the job's end.

    Parameters
    ----------
    marker : Path
        A file of the job's folder: it says that another process kept a ledger of the run, which is lost.

    Raises
    ------
    FieldError
        If there was one.
    """

    def __init__(self, marker: Path) -> None:
        if marker.exists():
            accepted = "the job's process was replaced, its ledger is lost: give PrivacyFilter a ledger folder, or the"
            raise FieldError("run", marker.name, f"{accepted} simulator a thread for each client")
        self._marker = marker
        self.lines = []
        self._partition: int | None = None
        self._state: Any = None
        self._kept: tuple[int, Releases] = (0, ())

    def ledger(self, run: str, partition: int) -> Ledger:
        """The ledger of this run alone; a site keeps its partition."""
        if self._partition not in (None, partition):
            raise FieldError("partition", partition, f"this site was partition {self._partition} before")
        self._partition = partition
        return super().ledger(run, partition)

    def store(self, line: str) -> None:
        self._marker.touch()
        super().store(line)

    def load(self, fresh: Any) -> Any:
        return fresh if self._state is None else self._state

    def kept(self) -> tuple[int, Releases]:
        return self._kept

    def save(self, state: Any, kept: tuple[int, Releases] = (0, ())) -> None:
        self._state, self._kept = state, kept


def marker_of(fl_ctx: FLContext, site: str) -> Path:
    """The file that says that a site keeps a ledger of this job alone."""
    folder = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id()))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"fedveil-{site}"
