"""`fedveil verify`: every guarantee against an adversary who plays the worst case."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedveil.cli.shared import console_for, fail, told
from fedveil.cli.shared import folder as checked


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(verify)


def verify(
    runs: Annotated[int, typer.Option("--runs", metavar="N", help="Runs of each world; 2,000 prove mu 4.9.")] = 2000,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", callback=checked, help="Where to write; default: runs/guarantees."),
    ] = None,
) -> None:
    """Play the distinguishing game on every method's path. Exit code 1 if a claim is beaten."""
    with told():
        import json

        from fedveil.audit.guarantees import DIMENSIONS
        from fedveil.audit.guarantees import verify as play
        from fedveil.errors import require_count
        from fedveil.report.table import Table
        from fedveil.runs.provenance import provenance
        from fedveil.runs.runner import one_thread

        require_count("--runs", runs, least=8)
        console, folder = console_for(), out or Path("runs/guarantees")
        folder.mkdir(parents=True, exist_ok=True)
        with one_thread():
            rows = play(runs, lambda row: console.print("  ".join(_cells(row)), markup=False, highlight=False))
        table = Table(("method", "d", "claim", "mu, lower bound", "claim held"), [_cells(row) for row in rows])
        record = {"provenance": provenance("none: worst-case vectors", DIMENSIONS), "runs": runs, "rows": rows}
        (folder / "game.json").write_text(json.dumps(record, indent=1) + "\n")
        (folder / "game.md").write_text("\n".join(table.markdown()).strip() + "\n")
        console.print(table)
        console.print(f"written to {folder}: game.json, game.md", markup=False, highlight=False, soft_wrap=True)
        if not any(row["mu_lower"] > 0 for row in rows):
            few = f"{runs} runs show nothing: no lower bound is above 0, so no claim was tested; raise --runs"
            console.print(few, markup=False, highlight=False)
        beaten = [row for row in rows if row.get("held") is False]
        if beaten:
            fail(f"{len(beaten)} of {len(rows)} claims are beaten, first that of {beaten[0]['method']}", 1)


def _cells(row: dict[str, Any]) -> list[str]:
    mark = {True: "yes", False: "**NO**", None: "no claim to hold"}[row["held"]]
    from fedveil.gdp import rounded_down

    found = rounded_down(row["mu_lower"])
    if row["claim"].startswith("epsilon"):
        found += f" (epsilon {rounded_down(row['epsilon_lower_at_delta_0'])})"
    return [row["method"], str(row["dimension"]), row["claim"], found, mark]
