"""`fedveil apply`: what a trained model finds on pages of one's own."""

from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.shared import console_for, folder, refusals, say


def apply(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run on documents.")],
    pages: Annotated[Path, typer.Argument(metavar="PAGES", help="A scan, or a folder of scans.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", callback=folder, help="A new folder; default: RUN/applied."),
    ] = None,
    threshold: Annotated[float, typer.Option(metavar="P", help="Probability from which a pixel counts.")] = 0.5,
) -> None:
    """Draw what the model of a run finds on scans: tampered pixels in red, masks, and boxes in found.json.

    The files show the scans: they are as private as these.
    """
    with refusals():
        from fedveil.report.applied import apply_model
        from fedveil.report.table import Table

        where = out or run / "applied"
        rows = []
        for found in apply_model(run, pages, where, threshold):
            share = f"{float((found.score >= threshold).mean()):.2%}"
            best = f"{found.boxes[0][-1]:.3f}" if found.boxes else "-"
            rows.append((found.name, share, str(len(found.boxes)), best))
        console_for().print(Table(("page", "of its pixels", "places", "surest"), rows))
        say(console_for(), f"written to {where}: a drawing and a mask a page, found.json", whole=True)
