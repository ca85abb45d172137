"""Finished cells: their folders, and locks that decide which driver may run the unfinished ones."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedveil.errors import FieldError
from fedveil.evidence import METRICS_FILE
from fedveil.files import CELLS, CONFIG, STUDY, FolderLock, kind_of, make_folder, refuse_others
from fedveil_lab.grid.cell import ABSENT, Cell, Finished, Outcome
from fedveil_lab.runs import Summary

CLAIMS = ".claims"  # a lock a cell, for drivers that share a folder


class Kept:
    """Cells in a folder, or in memory; see `fedveil_lab.grid.Store`, which runs them."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._kept: dict[str, Outcome] = {}

    def path(self, cell: Cell) -> Path | None:
        """Find the folder of a cell, even if it was run under another label.

        If the data are not on this machine, the store must have runs of this cell on one data set only.
        """
        if self.folder is None or cell.make is not None:
            return None
        folders = sorted((self.folder / CELLS).glob(f"*-{cell.key}"))
        if len(folders) > 1 and cell.key.endswith(ABSENT):
            raise FieldError(
                "data.name",
                cell.config.data.name,
                f"is not here, and {len(folders)} versions of it were run",
            )
        if folders:
            return folders[0]
        return self.folder / CELLS / cell.folder

    def state(self, cell: Cell) -> str:
        """Return ``"done"``, ``"begun"`` or ``"to run"``."""
        path = self.path(cell)
        if path is None:
            if cell.key in self._kept:
                return "done"
            return "to run"
        if (path / "summary.json").is_file():
            return "done"
        if (path / CONFIG).is_file():
            return "begun"
        return "to run"

    def rounds_done(self, cell: Cell) -> int:
        """Count the finished rounds of a cell."""
        if cell.key in self._kept:
            return len(self._kept[cell.key].rows)
        path = self.path(cell)
        if path is None:
            metrics = None
        else:
            metrics = path / METRICS_FILE
        if metrics is not None and metrics.is_file():
            return len(metrics.read_bytes().splitlines())
        return 0

    def find(self, cell: Cell) -> Outcome | None:
        """Find the outcome of a finished cell, or None.

        Raises
        ------
        FieldError
            If its files are damaged.
        """
        if cell.key not in self._kept:
            path = self.path(cell)
            if path is None or self.state(cell) != "done":
                return None
            self._kept[cell.key] = Outcome(cell, Summary.read(path), path)
        return self._kept[cell.key]

    def collect(self, cells: Sequence[Cell]) -> Finished:
        """Collect the finished cells among some; nothing is run."""
        outcomes = ((cell.key, self.find(cell)) for cell in cells)
        return Finished({key: outcome for key, outcome in outcomes if outcome is not None})

    @contextmanager
    def claim(self, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
        """Lock the unfinished cells that no other driver has, until the block ends.

        A cell is left out if another driver has it, or a cell whose sigma it uses. Locks of killed drivers do not
        count.
        """
        if self.folder is None:
            yield list(cells)
            return
        make_folder(self.folder / CLAIMS)
        mine: list[Cell] = []
        with ExitStack() as held:
            locks: dict[str, bool] = {}
            for cell in cells:
                for one in (*cell.sources, cell):
                    lock = FolderLock(self.folder / CLAIMS, f"{one.key}.lock")
                    if one.key not in locks:
                        locks[one.key] = lock.try_take()
                        held.callback(lock.release)
                if all(locks[one.key] for one in (*cell.sources, cell)) and self.find(cell) is None:
                    mine.append(cell)
            yield mine

    def _claimed(self, cell: Cell) -> bool:
        """Whether another driver has locked an unfinished cell."""
        with self.claim([cell]) as mine:
            return not mine and self.find(cell) is None

    def _remember(self, cell: Cell, summary: Summary, path: Path | None = None) -> Outcome:
        self._kept[cell.key] = Outcome(cell, summary, path)
        return self._kept[cell.key]

    def refuse_others(self, kind: str = STUDY) -> None:
        """Refuse a folder that holds something else than cells of this kind of study.

        Raises
        ------
        FieldError
            If it holds something else, or tables of a study without its runs, which new tables would replace.
        """
        if self.folder is None:
            return
        if any(self.folder.glob("table-*.json")) and not (self.folder / CELLS).is_dir():
            lost = f"holds tables of a study, and not its runs ({CELLS}/); restore them, or give another --out"
            raise FieldError("--out", str(self.folder), lost)
        refuse_others(self.folder, kind)

    @contextmanager
    def opened(self, kind: str = STUDY, *, shared: bool = False) -> Iterator[None]:
        """Open the folder, and make it if it does not exist; several drivers may run cells in it.

        Parameters
        ----------
        kind : str
            Kind of folder; see `fedveil.files.folders`.
        shared : bool
            Whether only finished runs are read.

        Raises
        ------
        FieldError
            If the folder holds something else than cells, or there are none to read.
        """
        self.refuse_others(kind)
        if self.folder is None:
            yield
            return
        if shared:
            if kind_of(self.folder) != kind:
                raise FieldError("--out", str(self.folder), "holds no runs yet: leave --no-run out")
            yield
            return
        make_folder(self.folder / CELLS)
        yield
