"""`fedveil reproduce`: a paper's tables and figures, ours beside the published ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil.cli.shared import NO_REPLY, Device, console_for, fail, folder, told

if TYPE_CHECKING:
    from rich.console import Console

    from fedveil.reproduce import MetricPrivacyStudy, Progressed, Runs, Selection


class Scale(StrEnum):
    """Sizes of the experiments."""

    SMALL = "small"
    PAPER = "paper"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(reproduce)


def reproduce(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="metric-privacy.")],
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="N", help="A table, e.g. 5 or A14; repeatable. Default: all.")
    ] = None,
    figure: Annotated[
        list[str] | None, typer.Option("--figure", metavar="N", help="A figure, e.g. D4; repeatable. Default: all.")
    ] = None,
    scale: Annotated[Scale, typer.Option("--scale", help="Shrunk to minutes, or the paper's own.")] = Scale.SMALL,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="Repetitions under successive seeds.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="The first seed.")] = 0,
    draws: Annotated[
        int, typer.Option("--draws", metavar="N", help="Noise draws on one training, for tables of a single round.")
    ] = 10,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", help="Only this aggregation rule, e.g. fedavg; repeatable.")
    ] = None,
    reading: Annotated[
        list[str] | None, typer.Option("--reading", help="Another reading of the paper; repeatable; see --list.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", help="Clients trained side by side; default: one a core, at most 4."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", metavar="N", help="Runs at once, each in its own process on one thread (--workers 1)."),
    ] = 1,
    device: Annotated[Device, typer.Option("--device", help="Where clients train.")] = Device.CPU,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", callback=folder, help="Keeps the runs; default: runs/<study>-<scale>."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List tables, figures, rules and readings.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the runs that are needed, and do nothing.")] = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Show what finished runs give, and run nothing.")] = False,
) -> None:
    """Reproduce a paper's tables and figures. Finished runs are kept: the same command goes on where it stopped."""
    with told() as going:
        from fedveil.errors import require_choice, require_count
        from fedveil.report.progress import progress_for
        from fedveil.reproduce import STUDIES, MetricPrivacyStudy, Progressed, Runs, Selection, cells_of, run_cells
        from fedveil.reproduce.files import refuse_other_scale
        from fedveil.reproduce.metric_privacy import Choices

        require_choice("STUDY", study, STUDIES)
        require_count("--jobs", jobs)
        chosen = Choices(
            scale=scale.value,
            seeds=seeds,
            seed=seed,
            draws=draws,
            rules=tuple(rule or ()),
            readings=tuple(reading or ()),
            workers=(1 if jobs > 1 else min(4, os.cpu_count() or 1)) if workers is None else workers,
            device=device.value,
        )
        paper = MetricPrivacyStudy(chosen)
        console = console_for()
        if list_:
            _list(console, paper)
            return
        paper.refuse_other_rules(table or (), figure or ())
        selection = Selection.of(paper, table or (), figure or ())
        runs = Runs(out or Path("runs") / f"{study}-{scale.value}")
        cells, done = cells_of(paper, selection), Progressed()
        if dry_run:
            runs.refuse_others()
            run_cells(cells, runs, None, done)
            _dry_run(console, paper, selection, runs, done, jobs)
            return
        with runs.alone(shared=no_run):
            refuse_other_scale(runs.folder, paper)
            for note in paper.notes(selection.names):
                console.print(note, markup=False, highlight=False)
            going.folder, going.command, going.mark = runs.folder, "the same command", "cells"
            run_cells(cells, runs, None if no_run else progress_for(console), done, jobs)
            _show(console, paper, selection, runs.folder, done)
        if done.failed:
            fail(f"{len(done.failed)} of {len(cells)} runs ended without a model; see above", NO_REPLY)


def _list(console: Console, paper: MetricPrivacyStudy) -> None:
    from fedveil.report.reproduction import contents_table
    from fedveil.report.tables import facts
    from fedveil.reproduce.metric_privacy import described, scales

    console.print(contents_table(paper))
    rules = [
        (n, r["label"], _parameters(r["aggregator"]), "pre-trained" if r.get("pretrained") else "random")
        for n, r in described()["rules"].items()
    ]
    console.print(facts(rules, ("--rule", "name", "parameters", "first model")))
    console.print(facts([(n, r["what"]) for n, r in described()["readings"].items()], ("--reading", "what it changes")))
    console.print(facts([(s.name, s.what) for s in scales().values()], ("--scale", "what it is")))


def _parameters(aggregator: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in aggregator.items() if name != "name")


def _dry_run(
    console: Console, paper: MetricPrivacyStudy, selection: Selection, runs: Runs, done: Progressed, jobs: int
) -> None:
    from fedveil.report.reproduction import cells_table

    shown, text = cells_table(paper, selection, runs, done, jobs)
    console.print(shown)
    console.print(text, markup=False, highlight=False)


def _seeds(seeds: Sequence[int]) -> str:
    """In the name of a figure, so that one of some rules or seeds replaces none of others; seed 0 alone has none."""
    first, last = seeds[0], seeds[-1]
    if first == last:
        return f"-seed-{first}" if first else ""
    return f"-seeds-{first}-{last}"


def _show(console: Console, paper: MetricPrivacyStudy, selection: Selection, folder: Path, done: Progressed) -> None:
    """Print tables with their notes, write tables and figures, and say where they are.

    What is damaged keeps nobody from the rest; it is refused at the end.
    """
    from fedveil.errors import FedVeilError, FieldError
    from fedveil.report.plots import draw_plot
    from fedveil.report.reproduction import result_notes, result_table
    from fedveil.reproduce import measured
    from fedveil.reproduce.files import keep_table, write_claims

    suffix = "".join(f"-{name}" for name in paper.plan.choices.readings)
    which = "".join(f"-{name}" for name in paper.plan.choices.rules) + _seeds(paper.plan.seeds)
    written: list[str] = []
    refused: dict[str, None] = {}

    def keep(write: Callable[[], Path]) -> None:
        try:
            written.append(write().name)
        except FieldError as error:
            refused[str(error)] = None

    for table in selection.tables:
        results = [measured(entry, done.finished) for entry in paper.entries(table)]
        console.print()
        console.print(result_table(f"{table}: {paper.tables[table]}", results, paper.settings))
        for note in [*result_notes(results, paper.settings), *paper.advice(results)]:
            console.print(note, markup=False, highlight=False)
        keep(partial(keep_table, folder, paper, table, suffix))
    for figure in selection.figures:
        drawn = draw_plot(paper.plot(figure), done.finished)
        if drawn is None:
            console.print(f"figure {figure}: no finished run, so it is not drawn", markup=False, highlight=False)
            continue
        written.append(f"figure-{figure}{which}{suffix}.png")
        drawn.savefig(folder / written[-1], dpi=150)
    keep(partial(write_claims, folder))
    if written:
        console.print(f"written to {folder}: {', '.join(written)}", markup=False, highlight=False, soft_wrap=True)
    if refused:
        raise FedVeilError("\n".join(refused))
