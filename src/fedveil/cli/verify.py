"""`fedveil verify`: every guarantee against an adversary who plays the worst case."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil.cli.shared import Out, console_for, fail, refusals, say

if TYPE_CHECKING:
    from fedveil.attacks.verdict import Verdict
    from fedveil.games.guarantees.game import PartyGame
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
    with refusals():
        from fedveil.games import guarantees

        folder = out or Path("runs/guarantees")
        if canaries:
            _canaries(guarantees.canary_game(canaries), folder)
            return
        noise = guarantees.noise_game()
        head = ("method", "d", "claim", "mu, lower bound", "claim held")
        played = _part(guarantees.guarantees_game(runs), folder, "game", head, "none: worst-case vectors", _claim)
        if not any(verdict.point > 0 for verdict in played):
            few = f"{runs} runs show nothing: no lower bound is above 0, so no claim was tested; raise --runs"
            say(console_for(), few)
        head = ("method", "d", "noise as declared", "p", "fits least")
        drawn = _part(noise, folder, "noise", head, "none: known vectors", _noise)
        if beaten := _broken(played):
            fail(f"{len(beaten)} of {len(played)} claims are beaten, first that of {beaten[0].setting}", 1)
        if faults := _broken(drawn):
            first = f"{faults[0].setting}: {faults[0].notes[0]}"
            fail(f"the noise of {len(faults)} methods is not what their ledgers declare; first {first}", 1)


Line = tuple[list[str], dict[str, Any]]  # of a table, and of its JSON


def _part(
    game: "PartyGame", folder: Path, name: str, head: tuple[str, ...], data: str, line: "Callable[[Verdict], Line]"
) -> "Sequence[Verdict]":
    """Play a game with one verdict a cell, and keep its table and rows."""
    from fedveil.games.guarantees import DIMENSIONS
    from fedveil.report.table import Table

    verdicts = _played(game, lambda verdict: line(verdict)[0])
    lines = [line(verdict) for verdict in verdicts]
    rows = [{"method": one.setting, **row} for one, (_, row) in zip(verdicts, lines, strict=True)]
    _keep(folder, name, Table(head, [shown for shown, _ in lines]), data, DIMENSIONS, {**game.question(), "rows": rows})
    return verdicts


def _played(game: "PartyGame", line: Callable[..., list[str]]) -> "Sequence[Verdict]":
    """Play a game, and show a line a cell as it ends."""
    from fedveil.games import play
    from fedveil.runs.runner import Silent

    class Shown(Silent):
        def advance(self, row: dict[str, Any]) -> None:
            say(console_for(), "  ".join(line(*row["verdicts"])))

    return play(game, progress=Shown()).verdicts


def _broken(verdicts: "Sequence[Verdict]") -> "list[Verdict]":
    return [verdict for verdict in verdicts if verdict.details.get("broken")]


def _keep(folder: Path, name: str, table: "Table", data: str, seeds: Sequence[int], values: dict[str, Any]) -> None:
    """Write a part's table and figures, and show the table."""
    import json

    from fedveil.runs.provenance import provenance

    console = console_for()
    folder.mkdir(parents=True, exist_ok=True)
    record = {"provenance": provenance(data, seeds), **values}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / f"{name}.md").write_text("\n".join(table.markdown()).strip() + "\n")
    console.print(table)
    say(console, f"written to {folder}: {name}.json, {name}.md", whole=True)


def _claim(verdict: "Verdict") -> Line:
    from fedveil.gdp import rounded_down

    broken, d, claim = verdict.details.get("broken"), int(verdict.details["dimension"]), verdict.notes[0]
    pure, found = verdict.details["epsilon at delta 0"], rounded_down(verdict.point)
    if claim.startswith("epsilon"):
        found += f" (epsilon {rounded_down(pure)})"
    mark = {0.0: "yes", 1.0: "**NO**", None: "no claim to hold"}[broken]
    lower, epsilon = (float(rounded_down(value, 3)) for value in (verdict.point, pure))
    row = {"dimension": d, "claim": claim, "mu_lower": lower, "epsilon_lower_at_delta_0": epsilon}
    row |= {"ceiling_mu": round(verdict.details["ceiling"], 2), "held": None if broken is None else not broken}
    return [verdict.setting, str(d), claim, found, mark], row


def _noise(verdict: "Verdict") -> Line:
    fault, d, p = bool(verdict.details["broken"]), int(verdict.details["dimension"]), f"{verdict.point:.2g}"
    row = {"dimension": d, "least": verdict.notes[0], "kind": verdict.attack, "p": float(p), "as_declared": not fault}
    return [verdict.setting, str(d), "**NO**" if fault else "yes", p, verdict.notes[0]], row


NOTE = """measured: lower bound at 95% from one run, whatever the mechanism does to the canaries together; at most: \
the bound if every guess were right; independent: a bound on mu that loses less, where scores are \
independent given the coins; bugs: the larger bound, and whether what is declared is exceeded (an epsilon at any delta \
of its curve, by the independent rates)"""


def _canaries(game: "PartyGame", folder: Path) -> None:
    """One table: declared, measured, and measured with planted bugs."""
    from fedveil.games.guarantees.canaries import EVERY
    from fedveil.report.table import NOTHING, Table

    def line(found: "Verdict", *bugs: "Verdict") -> list[str]:
        figures = [found.details.get("declared"), found.point, found.details["ceiling"]]
        figures.append(found.details["independent mu"] if found.figure.startswith("mu") else None)
        shown = [found.setting, found.figure.split(",")[0], *(NOTHING if v is None else f"{v:.2f}" for v in figures)]
        by_bug = {bug.setting.removeprefix(f"{found.setting}: "): _found(bug) for bug in bugs}
        return [*shown, *(by_bug.get(bug, NOTHING) for bug in EVERY)]

    verdicts = _played(game, line)
    methods = [one for one in verdicts if not one.setting.endswith(EVERY)]
    rows = [line(*(one for one in verdicts if one.setting.split(": ")[0] == m.setting)) for m in methods]
    head = ("method", "figure", "declared", "measured", "at most", "independent", *EVERY)
    values = {**game.question(), "verdicts": [verdict.to_dict() for verdict in verdicts]}
    _keep(folder, "canaries", Table(head, rows, notes=[NOTE]), "none: crafted", (), values)
    if beaten := _broken(methods):
        fail(f"{len(beaten)} of {len(rows)} promises are broken, first that of {beaten[0].setting}", 1)


def _found(verdict: "Verdict") -> str:
    largest = max(verdict.point, verdict.details["independent mu"] if verdict.figure.startswith("mu") else 0.0)
    return f"{largest:.2f}, {'found' if verdict.details.get('broken') else 'not found'}"
