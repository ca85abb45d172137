"""What a reproduction writes beside its cells: one JSON file a table, and what became of the paper's claims."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fedveil.experiments.ledgers import replace
from fedveil.experiments.summary import versions
from fedveil.reproduce.measure import Result, to_json
from fedveil.reproduce.metric_privacy.page import claims_page
from fedveil.reproduce.study import Study


def write_table(
    folder: Path, study: Study, table: str, results: Sequence[Result], choices: dict[str, object], suffix: str = ""
) -> Path:
    """Write a table's figures, ours beside the paper's.

    Parameters
    ----------
    folder : Path
        Of the study.
    study : Study
        The paper.
    table : str
        Its number.
    results : sequence of Result
        Row by row.
    choices : dict
        Scale, seeds and readings, for who reads the file.
    suffix : str
        Keeps other readings of the paper apart.

    Returns
    -------
    Path
        ``table-<number>.json``.
    """
    values = {
        "study": study.name,
        "table": table,
        "title": study.tables[table],
        **choices,
        "notes": study.notes([table]),
        "versions": versions(),
        "rows": to_json(results),
    }
    path = folder / f"table-{table}{suffix}.json"
    replace(path, (json.dumps(values, indent=1) + "\n").encode())
    return path


def write_claims(folder: Path) -> Path:
    """Write ``claims.md`` from the table and audit files below a folder."""
    path = folder / "claims.md"
    replace(path, claims_page(folder).encode())
    return path
