"""`fedveil report`: write a page to sign, check one elsewhere, or print what is used of budgets."""

from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.checked import show_checked
from fedveil_lab.cli.shared import folder, say, show


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Folders of runs, comparisons and audits, also of Flower and FLARE servers.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", callback=folder, help="Folder to write; default: RUN/report."),
    ] = None,
    ledgers: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="A ledger, or a folder of ledgers; repeatable."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Policy file of the node.")
    ] = None,
    people: Annotated[
        Path | None,
        typer.Option(
            metavar="TOML", help="File with entries that a person has to make, such as approved_by."
        ),
    ] = None,
    setting: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Setting that the card describes.")
    ] = None,
    pictures: Annotated[
        bool,
        typer.Option(
            "--pictures", help="Include pictures of reconstructions, which show clients' images."
        ),
    ] = False,
    head: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the ledgers' heads, to verify with."),
    ] = None,
    verify: Annotated[
        Path | None, typer.Option(metavar="REPORT.json", help="Report to check against --ledgers.")
    ] = None,
    budget: Annotated[
        bool,
        typer.Option("--budget", help="Say how much of --policy's totals the --ledgers have used."),
    ] = False,
) -> None:
    """Write a page to sign, or check one.

    It says who is protected from whom, what was measured, and what is not covered.

    Exit codes of --verify: 1, something does not agree; 5, a promise was not checked; 6, the page or the card was not checked.
    """
    from fedveil.errors import FieldError

    if verify is not None and (budget or runs):
        raise FieldError("--verify", str(verify), "takes --ledgers alone")
    if verify is not None:
        from fedveil_lab.report.statement.check import check

        show_checked(verify, check(verify, ledgers or [], head))
    elif budget:
        _budget([*(runs or []), *(ledgers or [])], policy)
    elif not runs:
        raise FieldError("RUN", None, "name the folder of a run, comparison or audit")
    else:
        from fedveil_lab.report.statement.gather import gather
        from fedveil_lab.report.statement.page import refuse_another, write_report

        subject = gather(runs, ledgers or [], policy, people, setting=setting, pictures=pictures)
        where = out or runs[0] / "report"
        refuse_another(where, subject)
        written = write_report(subject, where)
        names = ", ".join(path.name for path in written)
        say(f"written to {where}: {names}", whole=True)


def _budget(paths: list[Path], policy: Path | None) -> None:
    from fedveil.engines import read_policy
    from fedveil.errors import FieldError
    from fedveil.evidence import read_books, used_of

    rule = read_policy(policy)
    if rule is None:
        raise FieldError("--policy", None, "says what may be spent in total: a share needs a whole")
    sets = read_books(paths).sets
    if not sets:
        raise FieldError("--ledgers", [str(path) for path in paths], "hold no data set's ledger")
    table = used_of([book.ledger for book in sets.values()], rule)
    show([table], table.notes)
