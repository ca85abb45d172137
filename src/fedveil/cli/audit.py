"""`fedveil audit`: what a client learns about the participation of another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedveil.cli.shared import Assign, DeviceOption, Seed, console_for, told
from fedveil.cli.shared import folder as checked

if TYPE_CHECKING:
    from rich.console import Console

    from fedveil.experiments import Audit


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(audit)


def audit(
    where: Annotated[
        str, typer.Argument(metavar="RUN_DIR_OR_CONFIG", help="A run folder, a TOML file, or a preset's name.")
    ],
    assign: Assign = None,
    attack: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="NAME", help="One of those above; repeatable. Default: all of them."),
    ] = None,
    replicates: Annotated[
        int,
        typer.Option(
            "--replicates",
            metavar="N",
            help="Runs with the target, and as many without. From 6 on they can prove anything.",
        ),
    ] = 30,
    target: Annotated[
        int | None, typer.Option("--target", metavar="I", help="Client that is asked about; default: the last.")
    ] = None,
    attacker: Annotated[
        int | None, typer.Option("--attacker", metavar="I", help="Client that asks; default: the first.")
    ] = None,
    colluders: Annotated[
        int | None,
        typer.Option("--colluders", metavar="K", help="Clients that pool what they sent, the asking one included."),
    ] = None,
    shadow: Annotated[
        str, typer.Option("--shadow", metavar="KIND", help="What it holds: clean, noisy, partial or public.")
    ] = "clean",
    out_world: Annotated[
        str,
        typer.Option(
            "--out-world",
            metavar="KIND",
            help="In the target's place: replace (by anybody), twin (by one like it), remove, empty, itself (a check).",
        ),
    ] = "replace",
    compare: Annotated[
        bool, typer.Option("--compare", help="Every setting of [compare], instead of the one of [privacy].")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            callback=checked,
            help="Where to write; default: RUN_DIR/audit, or runs/<name>-audit.",
        ),
    ] = None,
    device: DeviceOption = None,
    seed: Seed = None,
) -> None:
    """Audit: retrain with and without one client, and let others guess.

    Called again in its folder, it goes on: finished runs are not played again, and attacks and replicates that are
    there are kept.

    \b
    Attacks:
      loss  calibrated-loss  likelihood-ratio  side-channel  own-update  adaptive
      informed  colluding  noise-size  active
      paper-single-shot  paper-multi-round (as printed, not for inference)
    """  # noqa: D301 - the control character itself, by which click leaves the lines below it alone
    with told() as going:
        from fedveil import experiments
        from fedveil.report.audit_progress import audit_progress_for

        spec = experiments.load(where, assign or [], device=device, seed=seed)
        folder = out or _folder(where, spec.name)
        going.folder, going.command = folder, "the same command"
        console = console_for()
        found = experiments.audit(
            spec,
            folder,
            attacks=attack or (),
            replicates=replicates,
            target=target,
            attacker=attacker,
            colluders=colluders,
            shadow=shadow,
            world=out_world,
            compare=compare,
            progress=audit_progress_for(console),
        )
        _show(found, folder, console)


def _show(found: Audit, folder: Path, console: Console) -> None:
    """Print what was found, in sentences, tables and notes, and draw it."""
    from fedveil.experiments.audit_folder import EVIDENCE, FIGURE, RESULT
    from fedveil.report.audit_figures import draw_audit, draw_evidence
    from fedveil.report.audit_headline import headline
    from fedveil.report.audit_tables import audit_notes, audit_tables, paper_notes, paper_table

    judged = found.judged.verdicts or found.judged.refused
    for line in headline(found):
        console.print(f"{line}\n", markup=False, highlight=False)
    for table in audit_tables(found) if judged else []:
        console.print(table)
    printed = paper_table(found)
    if printed is not None:
        console.print(printed)
    for note in [*(audit_notes(found) if judged else []), *paper_notes(found)]:
        console.print(note, markup=False, highlight=False)
    drawn = [draw_audit(found, folder / FIGURE), draw_evidence(found, folder / EVIDENCE)]
    names = ", ".join([RESULT, *(file.name for file in drawn if file is not None)])
    seconds = f"{found.values['seconds']:.0f} s"
    console.print(f"written to {folder}: {names} ({seconds})", markup=False, highlight=False, soft_wrap=True)


def _folder(where: str, name: str) -> Path:
    """Inside the run folder that was named, or runs/<name>-audit."""
    from fedveil.experiments.folders import AUDIT, CONFIG, kind_of

    path = Path(where)
    if kind_of(path) == AUDIT:
        return path
    return path / "audit" if (path / CONFIG).is_file() else Path("runs") / f"{name}-audit"
