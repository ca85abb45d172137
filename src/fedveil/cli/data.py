"""`fedveil data`: what there is, and how to prepare it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedveil.cli.shared import Assign, console_for, told

app = typer.Typer(help="Data sets: what there is, and how to prepare it.", no_args_is_help=True)


@app.command("list")
def data_list() -> None:
    """List the data sets, and whether they can be loaded on this machine."""
    with told():
        from fedveil.data import SOURCES
        from fedveil.report.tables import facts

        rows = [
            (name, info.description, info.size, info.licence, "yes" if info.available else f"no: needs {info.file}")
            for name, info in SOURCES.items()
        ]
        console_for().print(facts(rows, ("name", "what it is", "size", "licence", "here")))


@app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set of `fedveil data list`.")],
    assign: Assign = None,
) -> None:
    """Decode a data set and keep the copy, so that runs start faster."""
    with told():
        from fedveil.data import prepare
        from fedveil.experiments.loading import assign as put

        options: dict[str, Any] = {}
        for assignment in assign or []:
            put(options, assignment)
        path = prepare(name, **options)
        text = f"prepared: {path}" if path else f"{name} needs no preparation"
        console_for().print(text, markup=False, highlight=False, soft_wrap=True)
