"""`fedveil audit`: what a client learns about the participation of another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil.cli.shared import Assign, DeviceOption, Seed, console_for, told
from fedveil.cli.shared import folder as checked
from fedveil.errors import FieldError

if TYPE_CHECKING:
    from rich.console import Console

    from fedveil.audit import Audit, Game, InversionGame


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
    game: Annotated[
        str, typer.Option("--game", metavar="NAME", help="participation, inversion, membership, or one of yours.")
    ] = "participation",
    replicates: Annotated[
        int | None,
        typer.Option(
            "--replicates",
            metavar="N",
            help="Runs with the target, and as many without; default: 30. From 6 on they can prove anything.",
        ),
    ] = None,
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
        str | None,
        typer.Option(
            "--out-world",
            metavar="KIND",
            help="In the target's place: replace (by anybody), twin (by one like it), remove, empty, itself (a check). "
            "Default: what the guarantee's relation stands for.",
        ),
    ] = None,
    images: Annotated[
        int, typer.Option("--images", metavar="N", help="For inversion: images that each attacked client trains on.")
    ] = 1,
    double: Annotated[bool, typer.Option("--double", help="For inversion: clients train and send float64.")] = False,
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
    By the server, on one round's releases; --replicates is then the number of clients:
      inversion (those that fit)  analytic  dlg  idlg  cosine  estimated-statistics
      local-steps  see-through  spear
    """  # noqa: D301 - the control character itself, by which click leaves the lines below it alone
    with told() as going:
        from fedveil.config import load

        spec = load(where, assign or [], device=device, seed=seed)

        from fedveil import audit as audits
        from fedveil.attacks.inversion import INVERSIONS
        from fedveil.report.progress import progress_for

        folder = out or _folder(where, spec.name)
        going.folder, going.command = folder, "the same command"
        console = console_for()
        if game not in ("participation", "inversion"):
            chosen: dict[str, Any] = {"attacks": tuple(attack or ())}
            chosen |= {} if replicates is None else {"replicates": replicates}
            _play(audits.GAMES.choose(game).build(spec, compare, chosen), folder, console)
            return
        replicates = 30 if replicates is None else replicates
        if game == "inversion" and not attack:
            attack = [game]
        if asked := {"inversion", *INVERSIONS} & set(attack or ()):
            if other := set(attack or ()) - asked:
                raise FieldError("--attack", sorted(other)[0], "is of another game than inversion: audit apart")
            names = tuple(name for name in attack or () if name != "inversion")
            _invert(audits.InversionGame(spec, compare, names, replicates, images, double), folder, console)
            return
        found = audits.audit(
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
            progress=progress_for(console),
        )
        _show(found, folder, console)


def _play(game: Game, folder: Path, console: Console) -> None:
    """Play any game, and print its verdicts."""
    from fedveil.audit import play
    from fedveil.audit.game import RESULT, verdict_rows
    from fedveil.report.progress import progress_for
    from fedveil.report.table import Table

    found = play(game, folder, progress_for(console))
    header = ("attack", "setting", "figure", "point", "95%", "n", "without defence", "valid")
    console.print(Table(header, verdict_rows(found), wraps=("figure",)))
    for refused in found.refused:
        line = f"{refused.attack}, {refused.setting}: {refused.reason}"
        console.print(line, markup=False, highlight=False)
    console.print(f"written to {folder}: {RESULT}", markup=False, highlight=False, soft_wrap=True)


def _invert(game: InversionGame, folder: Path, console: Console) -> None:
    """Play the game of inversion, print its table and draw its pictures."""
    from fedveil.audit import play
    from fedveil.audit.game import RESULT
    from fedveil.audit.inversion import InversionAudit
    from fedveil.report.inversion_figure import draw_inversion
    from fedveil.report.inversion_table import inversion_table
    from fedveil.report.progress import progress_for

    found = play(game, folder, progress_for(console))
    assert isinstance(found, InversionAudit)
    drawn = []
    if found.inverted is not None and found.verdicts:
        table = inversion_table(found.inverted)
        console.print(table)
        for note in table.notes:
            console.print(note, markup=False, highlight=False)
        for name in dict.fromkeys(v.attack for v in found.verdicts):
            drawn.append(draw_inversion(found.inverted, name, folder / f"inversion-{name}.png", found.pixels).name)
    seconds = f"{found.values['seconds']:.0f} s"
    names = ", ".join([RESULT, *drawn])
    console.print(f"written to {folder}: {names} ({seconds})", markup=False, highlight=False, soft_wrap=True)


def _show(found: Audit, folder: Path, console: Console) -> None:
    """Print what was found, in tables and notes, and draw it."""
    from fedveil.audit.game import RESULT
    from fedveil.report.audit_figures import draw_audit, draw_evidence
    from fedveil.report.audit_headline import compared, headline
    from fedveil.report.audit_tables import audit_notes, audit_tables, paper_notes, paper_table

    judged = found.judged.verdicts or found.judged.refused
    first = headline(found)
    tables = [t for t in (first, *(audit_tables(found) if judged else []), paper_table(found)) if t is not None]
    notes = [*(first.notes if first else []), *(audit_notes(found) if judged else []), *paper_notes(found)]
    notes += compared(found)
    for table in tables:
        console.print(table)
        console.print()
    for note in notes:
        console.print(note, markup=False, highlight=False)
    pages = [line for table in tables for line in replace(table, notes=()).markdown()]
    (folder / "audit.md").write_text("\n".join([*pages, *(f"* {note}" for note in notes), ""]), encoding="utf-8")
    drawn = [draw_audit(found, folder / "audit.png"), draw_evidence(found, folder / "evidence.png")]
    names = ", ".join([RESULT, "audit.md", *(file.name for file in drawn if file is not None)])
    seconds = f"{found.values['seconds']:.0f} s"
    console.print(f"written to {folder}: {names} ({seconds})", markup=False, highlight=False, soft_wrap=True)


def _folder(where: str, name: str) -> Path:
    """Inside the run folder that was named, or runs/<name>-audit."""
    from fedveil.config.folders import AUDIT, CONFIG, kind_of

    path = Path(where)
    if kind_of(path) == AUDIT:
        return path
    return path / "audit" if (path / CONFIG).is_file() else Path("runs") / f"{name}-audit"
