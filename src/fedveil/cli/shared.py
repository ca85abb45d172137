"""What the commands share: options, refusals as one line and an exit code, folders."""

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from fedveil.errors import cleaned
from fedveil.logs import LONGEST
from fedveil.tables import broken_lines

if TYPE_CHECKING:
    from rich.console import Console

    from fedveil.grid.jobs import Factory
    from fedveil.tables import Table

REFUSED, STOPPED, NO_REPLY, INTERRUPTED = 2, 3, 4, 130

Device = Literal["auto", "cpu", "cuda"]
ConfigArgument = Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file, a run folder, or a preset's name.")]
Assign = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key, local.epochs=2 say; docs/configuration.md marks what touches the promise.",
    ),
]


def folder(value: Path | None) -> Path | None:
    """Check a folder's name: `--out --help` would write a run into a folder called --help."""
    if value is not None and str(value).startswith("-"):
        raise typer.BadParameter(f"{str(value)!r} looks like an option: name a folder, as in --out runs/mine")
    return value


Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", callback=folder, help="Where to write; default: below runs/, said at the end."),
]
EngineOption = Annotated[Literal["local", "flower"] | None, typer.Option(help="Who moves the messages.")]
DeviceOption = Annotated[Device | None, typer.Option(help="Where clients train.")]
Seed = Annotated[int | None, typer.Option(help="Of data split, models, training and reproducible noise.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the folder's run; --set rounds=N: for more.")]


Jobs = Annotated[int, typer.Option(metavar="N", help="Runs at once, each in its own process on one thread.")]
Executor = Annotated[
    str,
    typer.Option(metavar="MODULE:FACTORY", help="What runs them: makes a concurrent.futures.Executor of yours."),
]


class Resumption:
    """How to go on after an interruption."""

    folder: Path | None = None
    command = ""
    mark = "config.toml"  # in the folder once there is something to go on with

    def __str__(self) -> str:
        begun = self.folder is not None and (self.folder / self.mark).exists()
        return f"; go on with: {self.command}" if begun else ""


@contextmanager
def refusals() -> Iterator[Resumption]:
    """Turn refusals into one clear line each on stderr, and an exit code; Flower's own log says its warnings alone."""
    from fedveil.errors import FedVeilError, NoReplyError

    logging.getLogger("flwr").setLevel(logging.WARNING)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it says where it keeps its fonts if not in HOME
    again = Resumption()
    try:
        yield again
    except NoReplyError as error:
        fail(f"{error}{again}", NO_REPLY)
    except FedVeilError as error:
        fail(str(error), REFUSED)
    except OSError as error:
        fail(f"{error.filename or 'file'}: {error.strerror or error}", REFUSED)
    except KeyboardInterrupt:
        fail(f"interrupted{again}", INTERRUPTED)


def fail(text: str, code: int) -> None:
    """Print each line on stderr and exit."""
    for line in text.split("\n"):
        sys.stderr.write(f"fedveil: {cleaned(line, LONGEST)}\n")
    raise typer.Exit(code)


def stop_early(reasons: list[str]) -> None:
    """Exit with the code of a run that a budget or early stopping ended, if one was."""
    for reason in filter(None, reasons):
        fail(f"stopped early: {reason.removeprefix('stopped early: ')}", STOPPED)


@dataclass
class Output:
    """How commands answer: ``fedveil -q ...``, ``fedveil --json ...``."""

    quiet: bool = False
    json: bool = False


OUTPUT = Output()
PIPE = 1000  # columns where nobody reads line by line: words and rows stay whole


def terminal() -> TextIO:
    """Where words for people go: standard output, or standard error if tables go to programs."""
    return sys.stderr if OUTPUT.json else sys.stdout


def width() -> int:
    """Columns of the terminal, or as many as it takes where output goes elsewhere."""
    columns = get_terminal_size().columns
    return columns if terminal().isatty() else max(columns, PIPE)


def console_for() -> "Console":
    """The terminal, or a page as wide as it takes when output goes elsewhere; silent, or stderr, if asked for."""
    from rich.console import Console

    chosen = Console(quiet=OUTPUT.quiet, stderr=OUTPUT.json)
    return (
        chosen
        if chosen.is_terminal
        else Console(width=max(chosen.width, PIPE), quiet=chosen.quiet, stderr=chosen.stderr)
    )


def executor_of(name: str) -> "Factory | None":
    """The function that makes the executor of that name."""
    from fedveil.grid.jobs import EXECUTORS

    return EXECUTORS.find(name) if name else None


def say(*lines: str, whole: bool = False) -> None:
    """Print lines as they stand; a whole one is not broken, so that a path in it can be copied."""
    if OUTPUT.quiet:
        return
    for line in lines:
        line = cleaned(line, len(line), keep="\n")
        terminal().write("\n".join([line] if whole else broken_lines(line, width())) + "\n")


def show(tables: "Iterable[Table]", notes: Iterable[str] = (), whole: bool = False) -> None:
    """Print tables, each as a line of JSON on standard output if asked for, and below them what has to be said."""
    for table in tables:
        if OUTPUT.json:
            sys.stdout.write(json.dumps(table.values()) + "\n")
        elif not OUTPUT.quiet:
            terminal().write(table.text(width(), "─" if _writes("─") else "-") + "\n")
    say(*notes, whole=whole)


def _writes(letter: str) -> bool:
    """Whether the terminal's encoding has a letter."""
    try:
        letter.encode(terminal().encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def folder_of(config: str, name: str) -> Path:
    """The folder that was named as the configuration, or runs/<name>."""
    from fedveil.files import CONFIG

    path = Path(config)
    return path if (path / CONFIG).is_file() else Path("runs") / name


def numbered(path: Path) -> Iterator[Path]:
    """Yield path, path-2, path-3, and so on."""
    yield path
    for number in count(2):
        yield path.with_name(f"{path.name}-{number}")


def fresh(path: Path) -> Path:
    """The first of path, path-2, path-3, ... that holds nothing."""
    return next(one for one in numbered(path) if not one.exists() or (one.is_dir() and not any(one.iterdir())))


def fresh_file(path: Path) -> Path:
    """The first of path, path-2, ... (before its ending) that does not exist."""
    named = (one.with_suffix(path.suffix) for one in numbered(path.with_suffix("")))
    return next(one for one in named if not one.exists())
