"""`fedveil report`: a page to sign, its check elsewhere, and what is used of budgets."""

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
            help="Folders of runs, comparisons and audits; Flower's and FLARE's too.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", callback=folder, help="Default: RUN/report.")
    ] = None,
    ledgers: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="A ledger or folder; repeatable.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The policy in force.")
    ] = None,
    people: Annotated[
        Path | None, typer.Option(metavar="TOML", help="What only people know: approved_by, ...")
    ] = None,
    setting: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Whose release the card is about.")
    ] = None,
    pictures: Annotated[
        bool, typer.Option("--pictures", help="Put in reconstructions: clients' images.")
    ] = False,
    head: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Second place of heads; to verify.")
    ] = None,
    verify: Annotated[
        Path | None, typer.Option(metavar="REPORT.json", help="Check it against --ledgers.")
    ] = None,
    budget: Annotated[
        bool, typer.Option("--budget", help="Say how much --ledgers used of --policy's totals.")
    ] = False,
) -> None:
    """Write a page to sign: who is protected from whom, what was measured, what nobody covered. Or check one.

    Exit codes of --verify: 1, something does not agree; 5, a promise was not checked; 6, the page or the card was not.
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
