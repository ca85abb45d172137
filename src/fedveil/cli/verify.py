"""`fedveil verify`: every guarantee against an adversary who plays the worst case."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil.cli.shared import Out, console_for, fail, refusals, say

if TYPE_CHECKING:
    from rich.console import Console

    from fedveil.attacks.verdict import Verdict
    from fedveil.report.table import Table


def verify(
    runs: Annotated[int, typer.Option("--runs", metavar="N", help="Runs of each world; 2,000 prove mu 4.9.")] = 2000,
    canaries: Annotated[
        int, typer.Option("--canaries", metavar="M", help="Audit with M canaries in one run instead; 1,000 are usual.")
    ] = 0,
    out: Out = None,
) -> None:
    """Play the distinguishing game on every method's path, and test its noise over ten rounds.

    Exit code 1 if a claim is beaten, or noise is not what the ledger declares.

    With --canaries: crafted clients and records, in or out by a coin, in one run of each method, and again with
    planted bugs, which the audit has to find.
    """
    if canaries:
        _canaries(canaries, out or Path("runs/guarantees"))
        return
    with refusals():
        from fedveil.errors import require_count
        from fedveil.games.guarantees import DIMENSIONS
        from fedveil.games.guarantees import verify as play
        from fedveil.report.table import Table
        from fedveil.runs.runner import one_thread

        require_count("--runs", runs, least=8)
        console, folder = console_for(), out or Path("runs/guarantees")
        with one_thread():
            rows = play(runs, lambda row: say(console, "  ".join(_cells(row))))
        table = Table(("method", "d", "claim", "mu, lower bound", "claim held"), [_cells(row) for row in rows])
        _keep(console, folder, "game", table, "none: worst-case vectors", DIMENSIONS, {"runs": runs, "rows": rows})
        if not any(row["mu_lower"] > 0 for row in rows):
            few = f"{runs} runs show nothing: no lower bound is above 0, so no claim was tested; raise --runs"
            say(console, few)
        faults = _noise(folder, console)
        beaten = [row for row in rows if row.get("held") is False]
        if beaten:
            fail(f"{len(beaten)} of {len(rows)} claims are beaten, first that of {beaten[0]['method']}", 1)
        if faults:
            first = f"{faults[0]['method']}: {faults[0]['least']}"
            fail(f"the noise of {len(faults)} methods is not what their ledgers declare; first {first}", 1)


def _keep(
    console: "Console", folder: Path, name: str, table: "Table", data: str, seeds: Sequence[int], values: dict[str, Any]
) -> None:
    """Write a part's table and figures, and show the table."""
    from fedveil.runs.provenance import provenance

    folder.mkdir(parents=True, exist_ok=True)
    record = {"provenance": provenance(data, seeds), **values}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / f"{name}.md").write_text("\n".join(table.markdown()).strip() + "\n")
    console.print(table)
    say(console, f"written to {folder}: {name}.json, {name}.md", whole=True)


def _noise(folder: Path, console: "Console") -> list[dict[str, Any]]:
    """One table: whether every method's noise is as declared, over rounds and coordinates; the rows where it is not."""
    from fedveil.games.guarantees import DIMENSIONS, LEVEL, examine_all
    from fedveil.mechanisms import ReproducibleSource
    from fedveil.report.table import Table
    from fedveil.runs.runner import one_thread

    def cells(row: dict[str, Any]) -> list[str]:
        return [
            row["method"],
            str(row["dimension"]),
            "yes" if row["as_declared"] else "**NO**",
            f"{row['p']:.2g}",
            row["least"],
        ]

    with one_thread():
        rows = examine_all(DIMENSIONS, ReproducibleSource(0), lambda row: say(console, "  ".join(cells(row)[:4])))
    head = ("method", "d", "noise as declared", "p", "fits least")
    table = Table(head, [cells(row) for row in rows])
    _keep(console, folder, "noise", table, "none: known vectors", DIMENSIONS, {"level": LEVEL, "rows": rows})
    return [row for row in rows if not row["as_declared"]]


NOTE = """measured: lower bound at 95% from one run, whatever the mechanism does to the canaries together; at most: \
the bound if every guess were right; independent: a bound on mu that loses less, where scores are \
independent given the coins; bugs: the larger bound, and whether it exceeds what is declared"""


def _canaries(m: int, folder: Path) -> None:
    """One table: declared, measured, and measured with planted bugs."""
    with refusals():
        from fedveil.attacks.membership.methods import EVERY, audits
        from fedveil.errors import require_count
        from fedveil.report.table import NOTHING, Table
        from fedveil.runs.runner import one_thread

        require_count("--canaries", m, least=10)
        console, verdicts, cells, beaten = console_for(), [], [], []
        with one_thread():
            for name, audit in audits(m).items():
                found = audit.honest(name)
                bugs = {bug: audit.planted(name, bug, 0) for bug in audit.bugs}
                verdicts += [found.to_dict(), *(one.to_dict() for one in bugs.values())]
                beaten += [name] if found.details.get("broken") else []
                figures = [found.details.get("declared"), found.point, found.details["ceiling"]]
                figures.append(found.details["independent mu"] if found.figure.startswith("mu") else None)
                row = [name, found.figure.split(",")[0], *(NOTHING if v is None else f"{v:.2f}" for v in figures)]
                cells.append([*row, *(_found(bugs[bug]) if bug in bugs else NOTHING for bug in EVERY)])
                say(console, "  ".join(cells[-1]))
        table = Table(
            ("method", "figure", "declared", "measured", "at most", "independent", *EVERY), cells, notes=[NOTE]
        )
        _keep(console, folder, "canaries", table, "none: crafted", (), {"canaries": m, "verdicts": verdicts})
        if beaten:
            fail(f"{len(beaten)} of {len(cells)} promises are broken, first that of {beaten[0]}", 1)


def _found(verdict: "Verdict") -> str:
    largest = max(verdict.point, verdict.details["independent mu"] if verdict.figure.startswith("mu") else 0.0)
    return f"{largest:.2f}, {'found' if verdict.details.get('broken') else 'not found'}"


def _cells(row: dict[str, Any]) -> list[str]:
    mark = {True: "yes", False: "**NO**", None: "no claim to hold"}[row["held"]]
    from fedveil.gdp import rounded_down

    found = rounded_down(row["mu_lower"])
    if row["claim"].startswith("epsilon"):
        found += f" (epsilon {rounded_down(row['epsilon_lower_at_delta_0'])})"
    return [row["method"], str(row["dimension"]), row["claim"], found, mark]
