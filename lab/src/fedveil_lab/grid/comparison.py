"""Run several privacy settings with the same seeds and compare them."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedveil.errors import FieldError, NoReplyError, require_count
from fedveil.files import (
    CELLS,
    COMPARISON,
    CONFIG,
    make_folder,
    refuse_used,
    require_begun,
    write_atomic,
)
from fedveil.reading import toml_of
from fedveil_lab.config import Config, load
from fedveil_lab.config.variants import Variant, configure, variants_of
from fedveil_lab.grid.cell import Cell, Finished
from fedveil_lab.grid.jobs import Factory
from fedveil_lab.grid.store import Store
from fedveil_lab.runs import Progress, Summary
from fedveil_lab.runs.folder import mark_private
from fedveil_lab.runs.prepare import check

RESULT = "comparison.json"
UNNOISED = {
    RESULT: "private: metrics and noise of every run are measured without noise",
    "*.png": "private: curves of the same",
    "table*": "private: figures of the same",
    CELLS: "private: see PRIVATE.txt of each run",
    "audit": "private: attacks that know the data",
}


@contextmanager
def named(label: str) -> Iterator[None]:
    """Add the setting's name to error messages inside the block."""
    try:
        yield
    except FieldError as error:
        raise FieldError(
            f"settings[{label!r}]: {error.field}", error.value, error.accepted
        ) from error


def cells_of(config: Config, seeds: int) -> list[tuple[Variant, Cell]]:
    """List the runs of ``[compare]``: setting by setting, seed by seed."""
    cells: dict[tuple[str, int], tuple[Variant, Cell]] = {}
    for variant in variants_of(config):
        matches = variant.setting.match_sigma_of
        single = configure(config, variant.label, variant.setting)
        for seed in range(config.seed, config.seed + seeds):
            if matches:
                source = cells[matches, seed][1]
            else:
                source = None
            cell = Cell(variant.label, single.model_copy(update={"seed": seed}), sigma_of=source)
            cells[variant.label, seed] = (variant, cell)
    return list(cells.values())


def compare(
    config: Config,
    out: str | Path | None = None,
    *,
    seeds: int = 1,
    resume: bool = False,
    progress: Progress | None = None,
    jobs: int = 1,
    executor: Factory | None = None,
    declare: Callable[[Path, int], None] | None = None,
) -> list[Summary]:
    """Run every setting of ``[compare]`` with the same seeds, and return the summaries.

    Parameters
    ----------
    config : Config
        Configuration with the settings and their common keys.
    out : path, optional
        Folder for the runs (below ``cells``), the comparison's ``config.toml``, and its list of summaries,
        ``comparison.json``.
    seeds : int
        Number of repetitions, with the configuration's seed and the following ones. Each divides the data anew.
    resume : bool
        Whether to keep finished runs and continue the others. `seeds` must be at least the number in the folder.
    progress : Progress, optional
        Receives the progress.
    jobs, executor
        Number of runs at once, and their executor; see `Store.run`.
    declare : callable, optional
        Called with the folder and the number of seeds before the first run; see `fedveil_lab.grid.gate`.

    Returns
    -------
    list of Summary
        Setting by setting, seed by seed.

    Raises
    ------
    NoReplyError
        If a round of a run had no usable reply; the other runs are finished first.
    """
    require_count("--seeds", seeds)
    if out is None:
        path = None
    else:
        path = Path(out)
    if path is not None:
        _require(path, config, resume)
        seeds = max(seeds, _begun(path, config.seed)) if resume else seeds
    planned, store = cells_of(config, seeds), Store(path)
    for variant, cell in planned[
        ::seeds
    ]:  # all settings, before the first of them runs for an hour
        if store.state(cell) != "done":
            with named(variant.label):
                check(cell.config)
    if path is not None and not resume:
        make_folder(path)
    if path is not None and declare is not None:
        declare(path, seeds)
    if path is not None and not resume:
        write_atomic(path / CONFIG, config.to_toml().encode())
    if path is not None:
        mark_private(path, UNNOISED)
    finished = store.run([cell for _, cell in planned], progress, jobs, executor=executor)
    for why in finished.failed.values():
        raise NoReplyError(why)
    summaries = _placed(planned, finished)
    if path is not None:
        write(path, [summary.values for summary in summaries])
    return summaries


def finished_of(config: Config, folder: Path, seeds: int = 1) -> list[Summary]:
    """Read the finished runs of a comparison from a folder; nothing is run."""
    planned = cells_of(config, seeds)
    return _placed(planned, Store(folder).collect([cell for _, cell in planned]))


def _placed(planned: list[tuple[Variant, Cell]], finished: Finished) -> list[Summary]:
    """Return the summaries with the labels of their settings."""
    placed = []
    for variant, cell in planned:
        if cell.key in finished.outcomes:
            summary = finished.outcomes[cell.key].summary
            place = {"setting": variant.label, "base": variant.base, "swept": dict(variant.swept)}
            placed.append(Summary({**summary.values, **place}, summary.rows))
    return placed


def write(folder: Path, values: list[Mapping[str, Any]]) -> None:
    """Write ``comparison.json``: the list of summaries."""
    write_atomic(folder / RESULT, (json.dumps([dict(v) for v in values], indent=2) + "\n").encode())


def _require(path: Path, config: Config, resume: bool) -> None:
    if not resume:
        refuse_used(path)
        return
    require_begun(path, COMPARISON)
    if load(path).fingerprint() != config.fingerprint():
        raise FieldError(
            "--resume",
            str(path),
            "holds a comparison with another configuration; give another --out",
        )


def _begun(path: Path, first: int) -> int:
    """Count the seeds for which a folder has runs."""
    files = (path / CELLS).glob(f"*/{CONFIG}")
    return (
        1
        + max((int(toml_of(file.read_text()).get("seed", 0)) for file in files), default=first)
        - first
    )
