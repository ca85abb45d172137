"""Attacks on a federation: `fedveil audit`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedveil_lab.cli import shared
from fedveil_lab.cli.shared import console_for, refusals, say, show
from fedveil_lab.cli.verify import (
    verify as verify,
)  # entry points of checkouts that were installed earlier

if TYPE_CHECKING:
    from fedveil_lab.games import Game, Judgement

REPLICATES = """Runs with the target, and as many without (default: 30; fewer than 6 prove nothing). \
For membership: runs of each setting (3). For inversion: attacked clients (30); for regions 3."""
COLLUDERS = "Number of clients that attack together; default: 2, if there are enough clients."
SHADOW = "Attacker's copy of the target's data: clean (default), noisy, partial or public."
OUT_WORLD = """What replaces an absent target: replace (another client), twin (one like it), remove, empty, itself (a check). \
Default: by the relation of the guarantee."""
RECORDED = """Attack the files in a run's folder, without new training; --attack: membership, participation, inversion."""
CONFIGURED = """With --recorded on a server's folder: the configuration whose [data] and [model] belong to it. \
--set and --seed apply to this file."""
IMAGES = "For inversion: images of each client; default: 1."
GLYPH = "For regions: rows and columns of a glyph, in pixels; default: 10x7."


def audit(
    where: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR_OR_CONFIG", help="A run folder, a TOML file, or a preset's name."
        ),
    ],
    assign: shared.Assign = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An attack of the list above; repeatable."),
    ] = None,
    game: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Question: participation, inversion, membership, region, or a game of yours; default: by the attacks.",
        ),
    ] = None,
    replicates: Annotated[int | None, typer.Option(metavar="N", help=REPLICATES)] = None,
    target: Annotated[
        int | None,
        typer.Option(
            metavar="I", help="Client whose participation is in question; default: the last."
        ),
    ] = None,
    attacker: Annotated[
        int | None, typer.Option(metavar="I", help="Client that attacks; default: the first.")
    ] = None,
    colluders: Annotated[int | None, typer.Option(metavar="K", help=COLLUDERS)] = None,
    shadow: Annotated[str | None, typer.Option(metavar="KIND", help=SHADOW)] = None,
    out_world: Annotated[str | None, typer.Option(metavar="KIND", help=OUT_WORLD)] = None,
    images: Annotated[int | None, typer.Option(metavar="N", help=IMAGES)] = None,
    glyph: Annotated[str | None, typer.Option(metavar="ROWSxCOLUMNS", help=GLYPH)] = None,
    recorded: Annotated[bool, typer.Option("--recorded", help=RECORDED)] = False,
    config: Annotated[str | None, typer.Option(metavar="FILE", help=CONFIGURED)] = None,
    double: Annotated[
        bool, typer.Option("--double", help="For inversion: clients train and send float64.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Attack every setting of [compare] in place of [privacy]'s."
        ),
    ] = False,
    out: shared.Out = None,
    device: shared.DeviceOption = None,
    seed: shared.Seed = None,
    executor: shared.Executor = "",
) -> None:
    """Attack a federation, with its defence and without.

    Repeat the command to continue in its folder: finished runs are kept.

    \b
    Attacks of one client on the participation of another, over runs with and without it:
      loss  calibrated-loss  likelihood-ratio  side-channel  own-update  adaptive
      informed  colluding  noise-size  active
    By the server, on the images behind one round's releases:
      inversion (those that fit)  analytic  dlg  idlg  cosine  estimated-statistics
      running-statistics  local-steps  see-through  spear
    By the server, on the glyphs of marked content (unit = "region"):
      region (both)  distance  direction
    By the server, on the records that clients trained on:
      membership (those without shadow models)  loss  loss-trajectory  fedmia
      fedmia-by-class  fedmia-same-classes  source
      person-loss  person-loss-trajectory (all records of a person, in or out)
      calibrated-loss  lira-online  lira-offline  rmia-online  rmia-offline
      bavaria-online  bavaria-offline  bavaria-n-online
      calibrated-loss, lira-*, rmia-* and bavaria-* also as person-NAME, NAME-update, NAME-trajectory
      (loss or calibrated-loss alone attacks participation, unless --game membership is given)
    With --recorded, on what the folder of a run or of a deployed server holds:
      membership  participation  inversion (each as far as what is stored allows it)
    With the package fedveil-studies, as the metric privacy paper prints them (they prove nothing):
      paper-single-shot  paper-multi-round
    """  # noqa: D301 - the control character itself, by which click leaves the lines below it alone
    with refusals() as again:
        from fedveil_lab.config import load

        spec = None
        if not recorded:
            _require_recorded(config)
            spec = load(where, assign or [], device=device, seed=seed)

        from fedveil_lab.games import game_of, play
        from fedveil_lab.report import audits
        from fedveil_lab.report.progress import Display

        options: dict[str, object] = {
            "replicates": replicates,
            "target": target,
            "attacker": attacker,
        }
        options |= {"colluders": colluders, "shadow": shadow, "world": out_world, "images": images}
        options |= {"double": double or None, "compare": compare or None, "glyph": glyph}
        asked: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None
        }
        built: Game[Judgement]
        if spec is None:
            asked |= {} if game is None else {"game": game}
            how: dict[str, Any] = {"assign": assign or [], "device": device, "seed": seed}
            built = _recorded(where, config, attack or (), asked, how)
        else:
            built = game_of(spec, game, attack or (), **asked)
        folder = out or (Path(where) / "recorded" if recorded else _folder(where, built))
        again.folder, again.command = folder, "the same command"
        judgement = play(
            built, folder, Display(console_for()), executor=shared.executor_of(executor)
        )
        shown = audits.show(judgement, folder)
        say(*([shown.answer, ""] if shown.answer else []))
        for table in shown.tables:
            show([table], [""])
        say(*shown.notes)
        line = f"written to {folder}: {', '.join(shown.write(folder))} ({judgement.values['seconds']:.0f} s)"
        say(line, whole=True)


def _recorded(
    where: str,
    config: str | None,
    attacks: Sequence[str],
    asked: Mapping[str, Any],
    how: Mapping[str, Any],
) -> "Game[Judgement]":
    """The game on what a folder holds.

    Raises
    ------
    FieldError
        For options of games that train anew.
    """
    from fedveil.errors import FieldError
    from fedveil.files import CONFIG
    from fedveil_lab.config import load
    from fedveil_lab.games.game import FLAGS
    from fedveil_lab.games.recorded import RecordedGame

    for name in asked.keys() - {"replicates"}:
        accepted = "is an option of games that train anew: leave it out, or --recorded"
        raise FieldError(FLAGS.get(name, f"--{name}"), asked[name], accepted)
    source = config
    if source is None and (Path(where) / CONFIG).is_file():
        source = where
    configured = None
    if source is not None:
        assign = how["assign"]
        configured = load(source, assign, device=how["device"], seed=how["seed"])
    return RecordedGame(Path(where), configured, tuple(attacks), **asked)


def _require_recorded(config: str | None) -> None:
    """Refuse a configuration beside the one that is attacked."""
    from fedveil.errors import FieldError

    if config is not None:
        accepted = "describes a recorded run: give --recorded, or the configuration in the place of RUN_DIR_OR_CONFIG"
        raise FieldError("--config", config, accepted)


def _folder(where: str, game: "Game[Judgement]") -> Path:
    """Inside the run folder that was named, or runs/<name>-audit; with a number where that holds another audit."""
    from fedveil.files import AUDIT, CONFIG, kind_of
    from fedveil_lab.games.folder import differing
    from fedveil_lab.games.game import spec_of

    path = Path(where)
    if kind_of(path) == AUDIT:
        return path
    if (path / CONFIG).is_file():
        usual = path / "audit"
    else:
        usual = Path("runs") / f"{game.config.name}-audit"
    return next(
        one for one in shared.numbered(usual) if not differing(one, spec_of(game), game.config)
    )
