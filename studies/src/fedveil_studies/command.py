"""`fedveil reproduce`: make a paper's tables and figures, and set them beside the published ones."""

import os
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil_lab.cli.shared import (
    NO_REPLY,
    Device,
    Executor,
    Jobs,
    console_for,
    executor_of,
    fail,
    folder,
    refusals,
    say,
    show,
)

if TYPE_CHECKING:
    from rich.console import Console

    from fedveil.tables import Table
    from fedveil_lab.grid import Finished
    from fedveil_studies.frame.files import Pages
    from fedveil_studies.frame.reproduction import Reproduction, Selection


def reproduce(
    study: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="Name of the study; --list shows all.")
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="N",
            help="Table to make, such as 5 or A14; repeatable; default: all.",
        ),
    ] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure", metavar="N", help="Figure to draw, such as D4; repeatable; default: all."
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            "--scale", help="Scale of the study; default: its first, which takes minutes."
        ),
    ] = "",
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", help="Repetitions, under successive seeds.")
    ] = 1,
    seed: Annotated[int, typer.Option("--seed", help="The first seed.")] = 0,
    draws: Annotated[
        int,
        typer.Option(
            "--draws",
            metavar="N",
            help="Draws of the noise on one training, for tables of a single round.",
        ),
    ] = 10,
    row: Annotated[
        list[str] | None,
        typer.Option("--row", help="Row of the tables to make; repeatable; default: all."),
    ] = None,
    reading: Annotated[
        list[str] | None,
        typer.Option("--reading", help="Another reading of the paper; repeatable."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            help="Clients trained side by side; default: one for each core, at most 4.",
        ),
    ] = None,
    jobs: Jobs = 1,
    executor: Executor = "",
    device: Annotated[
        Device, typer.Option("--device", help="Device on which clients train.")
    ] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            callback=folder,
            help="Folder of the runs; default: runs/<study>.",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into",
            metavar="DIR",
            callback=folder,
            help="Folder for tables, figures and claims; default: --out.",
        ),
    ] = None,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", help="List the studies, or the tables, rows, readings and scales of one."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs that are needed, and run nothing.")
    ] = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Show what finished runs give, and run nothing.")
    ] = False,
) -> None:
    """Reproduce a paper's tables and figures.

    Finished runs are kept: the same command goes on where it stopped.
    """
    with refusals() as again:
        if list_ and study is None:
            show([_listed()])
            return
        from fedveil.errors import require_count
        from fedveil_lab.grid import Store
        from fedveil_lab.report.progress import Display
        from fedveil_studies.frame import Choices, Reproduction, Selection, find, names
        from fedveil_studies.frame.files import Pages, refuse_another
        from fedveil_studies.frame.tables import cells_table, contents_tables, cost, studies_table

        console = console_for()
        if study is None or (list_ and study not in names()):
            show([studies_table({name: find(name) for name in names()})])
            return
        if list_:
            show(contents_tables(find(study)))
            return
        require_count("--jobs", jobs)
        asked = Reproduction(
            find(study),
            Choices(
                scale=scale,
                seeds=seeds,
                seed=seed,
                draws=draws,
                rows=tuple(row or ()),
                readings=tuple(reading or ()),
                workers=(1 if jobs > 1 else min(4, os.cpu_count() or 1))
                if workers is None
                else workers,
                device=device,
            ),
        )
        selection = Selection.of(asked, table or (), figure or ())
        store = Store(out or Path("runs") / study)
        store.refuse_others()  # before what is planned: that may take seconds
        refuse_another(into or out or Path("runs") / study, study)
        cells = asked.cells(selection)
        if dry_run:
            needed = cells_table(cells, store)
            takes = cost(cells, store, asked.seconds(selection))
            show([needed], [*needed.notes, *takes], whole=True)
            return
        with store.opened(shared=no_run):
            say(*asked.notes(selection.names), whole=True)
            if not no_run:
                say(*cost(cells, store, asked.seconds(selection)), whole=True)
            again.folder, again.command, again.mark = store.folder, "the same command", "cells"
            if no_run:
                done = store.collect(cells)
            else:
                done = store.run(cells, Display(console), jobs, executor=executor_of(executor))
            assert store.folder is not None
            _show(console, asked, selection, Pages(into or store.folder, asked, store), done)
        if done.failed:
            fail(
                f"{len(done.failed)} of {len(cells)} runs ended without a model; see above",
                NO_REPLY,
            )


def _listed() -> "Table":
    """List every study by its package's study.toml; a study of this process without the file is loaded."""
    from importlib.metadata import entry_points

    from fedveil.tables import Table

    files = {one.name: _described(one.module) for one in entry_points(group="fedveil.studies")}
    loaded = sys.modules.get("fedveil_studies.frame.checking")
    if None in files.values() or (loaded and {*loaded.STUDIES} - {*files}):
        from fedveil_studies.frame import find, names
        from fedveil_studies.frame.tables import studies_table

        return studies_table({name: find(name) for name in names()})
    rows = [(name, spec["title"], spec["source"]) for name, spec in sorted(files.items()) if spec]
    return Table(("study", "what it is", "source"), rows, wraps=("what it is", "source"))


def _described(package: str) -> dict[str, Any] | None:
    """Read a package's study.toml without importing the package; None without the file."""
    from importlib.util import find_spec

    spec = find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(place) / "study.toml"
        if file.is_file():
            return tomllib.loads(file.read_text(encoding="utf-8"))
    return None


def _show(
    console: "Console",
    asked: "Reproduction",
    selection: "Selection",
    pages: "Pages",
    done: "Finished",
) -> None:
    """Print tables with their notes, write tables and figures, and say where they are.

    Damaged files do not stop the others; they are refused at the end.
    """
    from fedveil.errors import FedVeilError, FieldError
    from fedveil_studies.frame.measure import measured
    from fedveil_studies.frame.tables import result_table

    written: list[str] = []
    refused: dict[str, None] = {}

    def keep(write: Callable[[], list[Path] | Path | None]) -> None:
        try:
            paths = write()
        except FieldError as error:
            refused[str(error)] = None
            return
        written.extend(
            str(p.relative_to(pages.root))
            for p in (paths if isinstance(paths, list) else [paths])
            if p
        )

    for table in selection.tables:
        results = [measured(one, done.outcomes) for one in asked.measurements(table)]
        shown = result_table(f"{table}: {asked.tables[table]}", results, asked.study)
        say("")
        show([shown], shown.notes, whole=True)
        keep(partial(pages.table, table))
    for figure in selection.figures:
        keep(partial(pages.figure, figure))
    keep(pages.together)
    if written:
        say(f"written to {pages.root}: {', '.join(written)}", whole=True)
    if refused:
        raise FedVeilError("\n".join(refused))
