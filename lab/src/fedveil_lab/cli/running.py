"""`fedveil init`, `run`, `compare`, `plan` and `presets`."""

import re
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedveil.errors import cleaned
from fedveil_lab.cli import shared


def init(
    data: Annotated[
        str | None,
        typer.Option(
            help="Your data: a folder of images, a table, an .npz file, or a data set's name."
        ),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients (hospitals).")] = None,
    protect: Annotated[
        str | None,
        typer.Option(
            help="What to protect: client (hospital), person (patient), record (row, image) or nothing."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Total epsilon of the promise; default: settings for 8, 4 and 1."),
    ] = None,
    target: Annotated[str, typer.Option(help="Column to predict; default: the last.")] = "",
    person: Annotated[
        str, typer.Option(help="Where the person's id stands: a column, an array, or `folder`.")
    ] = "",
    site: Annotated[str, typer.Option(help="Column that names the client of a row.")] = "",
    missing: Annotated[
        str,
        typer.Option(
            help="Missing inputs of a table: `indicator` marks them in an input of their own."
        ),
    ] = "",
    decimal: Annotated[
        str, typer.Option(help="Decimal sign of a CSV file; default: guessed from the file.")
    ] = "",
    thousands: Annotated[
        str, typer.Option(help="Sign between groups of digits in a CSV file; default: guessed.")
    ] = "",
    encoding: Annotated[str, typer.Option(help="Encoding of a CSV file; default: utf-8.")] = "",
    positive: Annotated[
        str, typer.Option(help="Positive one of two classes; default: the second.")
    ] = "",
    sum_: Annotated[
        str,
        typer.Option(
            "--sum",
            help="Rows and persons: none (nobody is trusted), or trusted (steps are summed; less noise).",
        ),
    ] = "none",
    reach: shared.Reach = None,
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="File to write.")] = Path(
        "my.toml"
    ),
) -> None:
    """Write a first configuration for your data.

    It asks for what you leave out.
    """
    from fedveil.checks import require_unit
    from fedveil.errors import FieldError
    from fedveil_lab.config import load
    from fedveil_lab.config.first import PROTECTS, first_config, require_there
    from fedveil_lab.runs.foreseen import foreseen

    if file.exists():
        raise FieldError(
            "FILE",
            str(file),
            "is there already: FILE is the configuration to write, as in other.toml; name your data by --data",
        )
    data = data or _asked(
        "--data", "Your data: a folder of images, a CSV or NPZ file, or a name", "digits"
    )
    require_there(data)
    if clients is None and not site:
        clients = _asked("--clients", "How many clients (hospitals, or other parties)", 10)
    kinds = "What to protect: client (all it has), person, record (one row or image), nothing"
    said = protect or _asked("--protect", kinds, "client")
    protect = require_unit("--protect", said, PROTECTS)
    if protect != said:
        typer.echo(f"--protect {said}: taken as {protect}, {PROTECTS[protect]}")
    if protect == "person" and not person:
        person = _asked("--person", "Where the person's id stands: a column, an array, or folder")
    name = re.sub(r"[^\w.-]", "-", file.stem)
    how: dict[str, Any] = {"epsilon": epsilon, "target": target, "person": person, "site": site}
    how |= {"missing": missing, "decimal": decimal, "thousands": thousands, "encoding": encoding}
    how["positive"] = positive or (_asked_positive if sys.stdin.isatty() else "")
    text, said = first_config(name, data, clients, protect, sum_=sum_, **how)
    file.write_text(text, encoding="utf-8")
    for line in said:
        typer.echo(line)
    for line in foreseen(load(str(file)), reach):
        typer.echo(line)
    typer.echo(f"written to {file}; go on with: fedveil compare {shlex.quote(str(file))}")


def _asked_positive(names: Sequence[str]) -> str:
    """Ask which of two classes counts as positive."""
    return str(
        _asked("--positive", f"Which class counts as positive: {' or '.join(names)}", names[1])
    )


def _asked(option: str, question: str, default: Any = None) -> Any:
    """Ask a person, and return the answer in the default's type; without a terminal, refuse and name the option."""
    try:
        return typer.prompt(question, default=default)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        from fedveil.errors import FieldError

        typer.echo()
        raise FieldError(option, None, f"nobody is there to be asked. {question}") from None


def run(
    config: shared.ConfigArgument,
    assign: shared.Assign = None,
    out: shared.Out = None,
    engine: shared.EngineOption = None,
    device: shared.DeviceOption = None,
    seed: shared.Seed = None,
    resume: shared.Resume = False,
) -> None:
    """Run one experiment.

    Exit codes: 2, refused; 3, a budget or early stopping ended it; 4, no client replied.
    """
    with shared.refusals() as again:
        from fedveil_lab.config import load

        spec = load(config, assign or [], engine=engine, device=device, seed=seed)

        from fedveil.tables import write
        from fedveil_lab import runs
        from fedveil_lab.report.classified import classified_tables
        from fedveil_lab.report.progress import Display
        from fedveil_lab.report.tables import run_table

        folder = out or shared.folder_of(config, spec.name)
        again.folder, again.command = folder, f"fedveil run {shlex.quote(str(folder))} --resume"
        summary = runs.run(spec, folder, resume=resume, progress=Display(shared.console_for()))
        tables = [run_table(summary), *classified_tables(summary)]
        write(folder, "table", tables)
        tables = tables[:1] if shared.OUTPUT.json else tables  # whose data hold the others
        notes = dict.fromkeys(note for table in tables for note in table.notes)
        shared.show(tables, [*notes, f"written to {folder}"], whole=True)
        shared.stop_early([summary.stopped])


def compare(
    config: Annotated[
        str,
        typer.Argument(
            metavar="[CONFIG]",
            help="A TOML file, a run folder, or a preset's name.",
            show_default=True,
        ),
    ] = "digits-record",
    assign: shared.Assign = None,
    out: shared.Out = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Repetitions, under successive seeds.")
    ] = 1,
    engine: shared.EngineOption = None,
    device: shared.DeviceOption = None,
    seed: shared.Seed = None,
    audit: Annotated[
        int,
        typer.Option(
            metavar="N", help="Attack each setting in N runs with a client and N without."
        ),
    ] = 0,
    jobs: shared.Jobs = 1,
    executor: shared.Executor = "",
    resume: shared.Resume = False,
    gate: Annotated[
        Path | None,
        typer.Option(
            metavar="TOML",
            help="File of limits that a setting has to meet, declared before the first run.",
        ),
    ] = None,
    reach: shared.Reach = None,
    choose: Annotated[
        Literal["rehearsal", "public"] | None,
        typer.Option(
            help="Choose among private settings on made-up or public rows, and run that one alone."
        ),
    ] = None,
) -> None:
    """Compare privacy settings side by side.

    The result is a table, curves, and accuracy against attacks, noise and epsilon.

    Exit code 6: a setting does not pass the gate.
    """
    with shared.refusals() as again:
        from fedveil_lab.config import load

        spec = load(config, assign or [], engine=engine, device=device, seed=seed)

        from fedveil.errors import require_count
        from fedveil.tables import write
        from fedveil_lab import grid
        from fedveil_lab.cli.gate import gate_of, through
        from fedveil_lab.games.participation import attack_settings, check_audit, with_attacks
        from fedveil_lab.grid.search import only, search
        from fedveil_lab.report.classified import compared_table
        from fedveil_lab.report.figures import draw
        from fedveil_lab.report.progress import Display
        from fedveil_lab.report.tables import WIDE, comparison_notes, comparison_tables
        from fedveil_lab.runs.foreseen import foreseen

        if choose is not None:
            chosen = search(spec, choose, reach=reach)
            shared.say(str(chosen))
            spec = only(spec, chosen.label)
        usual = shared.folder_of(config, spec.name)
        folder = out or (usual if resume else shared.fresh(usual))
        asked = f" --seeds {seeds}" * (seeds > 1) + f" --audit {audit}" * (audit > 0)
        asked += f" --gate {shlex.quote(str(gate))}" if gate is not None else ""
        again.folder, again.command = (
            folder,
            f"fedveil compare {shlex.quote(str(folder))} --resume{asked}",
        )
        console = shared.console_for()
        check_audit(spec, audit)
        require_count("--jobs", jobs)
        asking = gate_of(gate, spec, folder)
        if resume:
            lines = []
        else:
            lines = foreseen(spec, reach)
        for line in lines:
            shared.say(line)
        try:
            how: dict[str, Any] = {"jobs": jobs, "executor": shared.executor_of(executor)}
            if asking is not None:
                how["declare"] = partial(asking.declare, config=spec, audit=audit)
            summaries = grid.compare(
                spec, folder, seeds=seeds, resume=resume, progress=Display(console), **how
            )
        except KeyboardInterrupt:
            finished = grid.finished_of(spec, folder, seeds)
            if finished:
                shared.show(comparison_tables(finished, console.width))
            raise
        if audit:
            attack_settings(spec, folder, audit, Display(console))
        summaries = with_attacks(summaries, folder)
        files = draw(summaries, folder)
        measured, notes = compared_table(summaries), comparison_notes(summaries)
        beside = [] if shared.OUTPUT.json else measured  # the first table's data hold them
        shared.show([*comparison_tables(summaries, console.width), *beside], notes)
        written = write(folder, "table", [*comparison_tables(summaries, WIDE), *measured], notes)
        names = ", ".join(
            [
                "comparison.json",
                *written,
                *(f.stem + kind for f in files for kind in (".png", ".pdf")),
            ]
        )
        shared.say(f"written to {folder}: {names}", whole=True)
        if asking is not None:
            through(asking.check(summaries), folder)
        shared.stop_early([s.stopped for s in summaries])


def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Preset to print.")] = None,
) -> None:
    """List the packaged configurations, or print one."""
    from fedveil.tables import Table
    from fedveil_lab.config.loading import presets, text_of

    if name is not None:
        text, _ = text_of(name)
        typer.echo(cleaned(text, len(text), keep="\n\t"), nl=False)  # of a file, it is anybody's
        return
    known = list(presets().items())
    shared.show([Table(("preset", "what it is"), known, wraps=("what it is",))])
