"""Options that several of the laboratory's commands share, and the choice of free folders."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedveil.cli.shared import INTERRUPTED as INTERRUPTED
from fedveil.cli.shared import NO_REPLY as NO_REPLY
from fedveil.cli.shared import OUTPUT as OUTPUT
from fedveil.cli.shared import PIPE as PIPE
from fedveil.cli.shared import REFUSED as REFUSED
from fedveil.cli.shared import STOPPED as STOPPED
from fedveil.cli.shared import fail as fail
from fedveil.cli.shared import refusals as refusals
from fedveil.cli.shared import say as say
from fedveil.cli.shared import show as show
from fedveil.cli.shared import stop_early as stop_early
from fedveil.cli.shared import width as width

if TYPE_CHECKING:
    from rich.console import Console

    from fedveil_lab.grid.jobs import Factory

Device = Literal["auto", "cpu", "cuda"]
ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A TOML file, a run folder, or a preset's name.")
]
Assign = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the file, for example local.epochs=2; repeatable. docs/configuration.md has all keys.",
    ),
]


def folder(value: Path | None) -> Path | None:
    """Refuse a folder's name that looks like an option, such as ``--help`` in ``--out --help``."""
    if value is not None and str(value).startswith("-"):
        raise typer.BadParameter(
            f"{str(value)!r} looks like an option: name a folder, as in --out runs/mine"
        )
    return value


Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        callback=folder,
        help="Folder to write; default: one below runs/, named at the end.",
    ),
]
Reach = Annotated[
    float | None,
    typer.Option(
        metavar="SCORE",
        help="Score that is possible without privacy, as published for such data; the forecast assumes it.",
    ),
]
EngineOption = Annotated[
    Literal["local", "flower"] | None,
    typer.Option(help="Who moves the messages: the embedded engine, or Flower."),
]
DeviceOption = Annotated[Device | None, typer.Option(help="Device on which clients train.")]
Seed = Annotated[
    int | None, typer.Option(help="Seed of data split, models, training and reproducible noise.")
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue a stopped run in its folder; with --set rounds=N, to more rounds.",
    ),
]


Jobs = Annotated[
    int,
    typer.Option(metavar="N", help="Runs at a time, each in a process of its own with one thread."),
]
Executor = Annotated[
    str,
    typer.Option(
        metavar="MODULE:FACTORY",
        help="Function of yours that makes the concurrent.futures.Executor for the runs.",
    ),
]


def console_for() -> "Console":
    """Make the console; outside a terminal it is wide enough to keep table rows on one line.

    With ``--quiet`` it prints nothing, with ``--json`` on stderr.
    """
    from rich.console import Console

    chosen = Console(quiet=OUTPUT.quiet, stderr=OUTPUT.json)
    if chosen.is_terminal:
        return chosen
    return Console(width=max(chosen.width, PIPE), quiet=chosen.quiet, stderr=chosen.stderr)


def executor_of(name: str) -> "Factory | None":
    """Return the factory of the named executor."""
    from fedveil_lab.grid.jobs import EXECUTORS

    return EXECUTORS.find(name) if name else None


def folder_of(config: str, name: str) -> Path:
    """Return `config` if it is a folder, else runs/<name>."""
    from fedveil.files import CONFIG

    path = Path(config)
    if (path / CONFIG).is_file():
        return path
    return Path("runs") / name


def numbered(path: Path) -> Iterator[Path]:
    """Yield path, path-2, path-3, and so on."""
    yield path
    for number in count(2):
        yield path.with_name(f"{path.name}-{number}")


def fresh(path: Path) -> Path:
    """Return the first of path, path-2, path-3, ... that is empty or does not exist."""
    return next(
        one
        for one in numbered(path)
        if not one.exists() or (one.is_dir() and not any(one.iterdir()))
    )


def fresh_file(path: Path) -> Path:
    """Return the first of path, path-2, ... that does not exist; the number comes before the file's ending."""
    named = (one.with_suffix(path.suffix) for one in numbered(path.with_suffix("")))
    return next(one for one in named if not one.exists())
