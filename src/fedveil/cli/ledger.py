"""`fedveil ledger`: begin the lifetime ledger of a data set, and read what was spent from it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedveil.cli.shared import refusals
from fedveil.cli.shared import show as show_tables

if TYPE_CHECKING:
    from fedveil.accounting.ledger import Ledger
    from fedveil.engines.heads import Head
    from fedveil.report.table import Table

By = Annotated[str, typer.Option(metavar="WHO", help="Who begins or makes it, and why; recorded in it.")]
app = typer.Typer(help="The lifetime ledger of a data set: what was ever released from it.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(metavar="PATH", help="FOLDER/DATASET.jsonl; the file's name is the data set's.")]
HeadFolder = Annotated[Path, typer.Option(metavar="FOLDER", help="On another disk: for the head and its key.")]


@app.command()
def begin(path: File, by: By, head: HeadFolder) -> None:
    """Begin a ledger, once. A file that exists is refused: what was spent stays spent."""
    with refusals():
        from fedveil.engines.lifetime import begin_ledger

        typer.echo(f"begun: {begin_ledger(_named(path).parent, path.stem, by, head=head)}")


@app.command()
def head(path: File, by: By, head: HeadFolder) -> None:
    """Make the head of a ledger that has none: one of an earlier version, or one whose second place was lost.

    What lies in the ledger is taken as whole: look first, with `fedveil ledger show`.
    """
    with refusals():
        from fedveil.engines.lifetime import make_head

        typer.echo(f"made: {_of_head(make_head(_named(path).parent, path.stem, by, head=head))}")


@app.command()
def show(
    path: File,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="The policy: shows what it leaves.")] = None,
    delta: Annotated[float, typer.Option(help="For record-level epsilon, without a policy.")] = 1e-5,
    head: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where its head lies: checks it.")] = None,
) -> None:
    """Check a ledger's chain and head; show its runs and what was spent, kind by kind. Nothing is written."""
    with refusals():
        from fedveil.accounting import Policy
        from fedveil.engines.lifetime import read_head, read_ledger, read_policy
        from fedveil.errors import FieldError
        from fedveil.report.planning import spent_of

        rule = read_policy(policy) or Policy(distance=1.0, delta=delta)
        if path.is_dir():
            held = ", ".join(str(p) for p in sorted(path.rglob("*.jsonl")) if p.parent.name.startswith("ledger"))
            raise FieldError("PATH", str(path), f"is a folder; name a ledger in it: {held or 'it has none'}")
        ledger, lines, _ = read_ledger(path)
        unlooked = "head: not looked at (--head FOLDER): whether lines are missing at the end is not known"
        spent, of_head = spent_of(ledger, rule), unlooked if head is None else _of_head(read_head(path, head))
        show_tables([runs_of(ledger, lines), spent], [*spent.notes, of_head])


def _named(path: Path) -> Path:
    from fedveil.errors import FieldError

    if path.suffix != ".jsonl":
        raise FieldError("PATH", str(path), "must end in .jsonl")
    return path


def _of_head(head: "Head") -> str:
    lines = f"{head.count} line{'' if head.count == 1 else 's'}"
    return f"head: agrees, {lines} of {head.checksum[:16]}...; begun {head.begun} by: {head.by}"


def runs_of(ledger: "Ledger", lines: list[str]) -> "Table":
    """A line a run."""
    import json

    from fedveil.accounting import OPEN
    from fedveil.report.table import Table

    head, latest = json.loads(ledger.head or "{}"), {}
    for values in map(json.loads, lines):
        if "budget" not in values:
            latest[values["run"], values["round"], values["purpose"], values["attempt"]] = values
    rows = []
    for run in dict.fromkeys(key[0] for key in latest):
        own = [values for key, values in latest.items() if key[0] == run]
        unfinished = sum(values["digest"] == OPEN for values in own)
        rounds = [values["round"] for values in own]
        sources = ", ".join(sorted({values.get("source", "") or "not said" for values in own}))
        rows.append((run, f"{min(rounds)} to {max(rounds)}", len(own), unfinished, sources))
    title = f"data set {head['dataset']}, begun {head['begun']} by: {head['by']}"
    numbers = ("releases", "begun, not closed")
    return Table(("run", "rounds", *numbers, "source of noise"), rows, title, numbers)
