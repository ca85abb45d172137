"""Figures of a comparison, as PNG and PDF files; matplotlib is imported when the first one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedveil.report.canvas import keep
from fedveil.report.curves import curves
from fedveil.report.pareto import pareto
from fedveil.runs.summary import Summary


def draw(summaries: Sequence[Summary], folder: Path) -> list[Path]:
    """Write ``curves.png`` and ``pareto.png``, and the same as PDF.

    Returns
    -------
    list of Path
        The files.
    """
    files = [folder / "curves.png", folder / "pareto.png"]
    for file, figure in zip(files, (curves(summaries), pareto(summaries)), strict=True):
        keep(figure, file, 150)
    return files
