"""What a reproduction writes beside its cells: one JSON file a table, and what became of the paper's claims."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from fedveil.errors import FieldError, damaged
from fedveil.experiments.ledgers import replace
from fedveil.experiments.summary import versions
from fedveil.reproduce.cells import Runs
from fedveil.reproduce.evidence import WRITTEN_AGAIN
from fedveil.reproduce.measure import Result, measured, to_json
from fedveil.reproduce.metric_privacy.page import claims_page
from fedveil.reproduce.study import Progressed, Selection, Study, cells_of, run_cells


def refuse_other_scale(folder: Path, study: Study) -> None:
    """Refuse a folder whose tables are of another scale: they would be replaced.

    Raises
    ------
    FieldError
        Naming that scale.
    """
    scale = study.choices["scale"]
    for path in sorted(folder.glob("table-*.json")):
        try:
            stored = json.loads(path.read_bytes())["scale"]
        except (ValueError, KeyError, TypeError):  # damaged; named when it is written again
            continue
        if stored != scale:
            raise FieldError("--out", str(folder), f"holds tables of the scale {stored!r}; give another folder")


def keep_table(folder: Path, study: Study, table: str, suffix: str = "") -> Path:
    """Write a table of everything that is finished: what is asked for now, and what its file held before.

    A look at one rule or one seed so loses nothing of a table of all of them.

    Parameters
    ----------
    folder : Path
        Of the study.
    study : Study
        The paper.
    table : str
        Its number.
    suffix : str
        Keeps other readings of the paper apart.

    Returns
    -------
    Path
        ``table-<number><suffix>.json``.
    """
    path, done = folder / f"table-{table}{suffix}.json", Progressed()
    if path.is_file():
        try:
            study = study.with_stored(json.loads(path.read_bytes()))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged("table", path, error, WRITTEN_AGAIN) from error
    run_cells(cells_of(study, Selection((table,), ())), Runs(folder), None, done)
    return write_table(path, study, table, [measured(entry, done.finished) for entry in study.entries(table)])


def write_table(path: Path, study: Study, table: str, results: Sequence[Result]) -> Path:
    """Write a table's figures, ours beside the paper's; returns the path."""
    values = {
        "study": study.name,
        "table": table,
        "title": study.tables[table],
        **study.choices,
        "notes": study.notes([table]),
        "versions": versions(),
        "rows": to_json(results),
    }
    replace(path, (json.dumps(values, indent=1) + "\n").encode(), _writer())
    return path


def write_claims(folder: Path) -> Path:
    """Write ``claims.md`` from the table and audit files below a folder."""
    path = folder / "claims.md"
    replace(path, claims_page(folder).encode(), _writer())
    return path


def _writer() -> str:
    """Who only looks at finished runs takes no lock, and may write while others do."""
    return f".{os.getpid()}"
