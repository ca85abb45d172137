"""Shared parts of commands: refusals as one line with an exit code, and output for people and for programs."""

import json
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, TextIO

import click

from fedveil.errors import cleaned
from fedveil.logs import LONGEST
from fedveil.tables import broken_lines

if TYPE_CHECKING:
    from fedveil.tables import Table

_LESS_MEMORY = (
    "lower local.batch_size or privacy.rate, train less of the model (model.train, model.lora), "
    "or take a smaller model or smaller images"
)
REFUSED, STOPPED, NO_REPLY, INTERRUPTED = 2, 3, 4, 130


class Resumption:
    """Text with the command that resumes an interrupted run."""

    folder: Path | None = None
    command = ""
    mark = "config.toml"  # in the folder once there is something to resume

    def __str__(self) -> str:
        begun = self.folder is not None and (self.folder / self.mark).exists()
        return f"; go on with: {self.command}" if begun else ""


@contextmanager
def refusals() -> Iterator[Resumption]:
    """Turn errors in this context into one line on stderr and an exit code; of Flower's log show only warnings."""
    from fedveil.errors import FedVeilError, NoReplyError, lacks_memory

    logging.getLogger("flwr").setLevel(logging.WARNING)
    logging.getLogger("matplotlib").setLevel(
        logging.ERROR
    )  # it logs the place of its fonts if they are not in HOME
    again = Resumption()
    try:
        yield again
    except NoReplyError as error:
        fail(f"{error}{again}", NO_REPLY)
    except FedVeilError as error:
        fail(str(error), REFUSED)
    except OSError as error:
        fail(f"{error.filename or 'file'}: {error.strerror or error}", REFUSED)
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        fail(f"memory is not enough ({error}): {_LESS_MEMORY}{again}", REFUSED)
    except KeyboardInterrupt:
        fail(f"interrupted{again}", INTERRUPTED)


def warn(text: str) -> None:
    """Print each line on stderr, also with ``-q``."""
    for line in text.split("\n"):
        sys.stderr.write(f"fedveil: {cleaned(line, LONGEST)}\n")


def fail(text: str, code: int) -> None:
    """Print each line on stderr and exit."""
    warn(text)
    raise click.exceptions.Exit(code)


def stop_early(reasons: list[str]) -> None:
    """If a run ended early by a budget or early stopping, exit with the code for that."""
    for reason in filter(None, reasons):
        fail(f"stopped early: {reason.removeprefix('stopped early: ')}", STOPPED)


@dataclass
class Output:
    """Form of the output: quiet (``fedveil -q``), JSON (``fedveil --json``), or tables."""

    quiet: bool = False
    json: bool = False


OUTPUT = Output()
PIPE = 1000  # columns if output goes to a program, so that words and rows stay whole


def terminal() -> TextIO:
    """Stream for people: standard output, or standard error if tables go to a program."""
    return sys.stderr if OUTPUT.json else sys.stdout


def width() -> int:
    """Number of terminal columns; without a terminal at least `PIPE`."""
    columns = get_terminal_size().columns
    return columns if terminal().isatty() else max(columns, PIPE)


def say(*lines: str, whole: bool = False) -> None:
    """Print lines; a `whole` line is never broken, so that a path in it can be copied."""
    if OUTPUT.quiet:
        return
    for line in lines:
        line = cleaned(line, len(line), keep="\n")
        terminal().write("\n".join([line] if whole else broken_lines(line, width())) + "\n")


def show(tables: "Iterable[Table]", notes: Iterable[str] = (), whole: bool = False) -> None:
    """Print tables (with ``--json`` each as a line of JSON on standard output), and the notes below them."""
    for table in tables:
        if OUTPUT.json:
            sys.stdout.write(json.dumps(table.values()) + "\n")
        elif not OUTPUT.quiet:
            terminal().write(table.text(width(), "─" if _writes("─") else "-") + "\n")
    say(*notes, whole=whole)


def _writes(letter: str) -> bool:
    """Whether the terminal's encoding has this character."""
    try:
        letter.encode(terminal().encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
