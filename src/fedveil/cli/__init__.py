"""The command line. Everything that needs PyTorch is imported by the command that uses it: ``--help`` is fast."""

from __future__ import annotations

import ctypes
from typing import Annotated

import click
import typer
import typer.core

from fedveil import __version__
from fedveil.cli import advise, audit, data, keys, ledger, packages, running, shared, verify

typer.core.HAS_RICH = False  # with Rich at hand, plain help would read "\\[required]"

ANYWHERE = ("-q", "--quiet", "--json")


class Commands(typer.core.TyperGroup):
    """The commands; options that are for all of them may stand behind the command too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put those options first; what follows ``--`` is left alone."""
        end = args.index("--") if "--" in args else len(args)
        first = sorted(args[:end], key=lambda a: a not in ANYWHERE)  # stable
        return super().parse_args(ctx, [*first, *args[end:]])


app = typer.Typer(
    name="fedveil",
    cls=Commands,
    help="Privacy-preserving federated learning with calibrated noise, and a truthful account of what it bought.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedveil {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print refusals alone; files tell the rest.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Each table as a line of JSON, the rest on stderr.")] = False,
) -> None:
    shared.OUTPUT.quiet, shared.OUTPUT.json = quiet, json


running.register(app)
app.command()(advise.advise)
packages.register(app)
audit.register(app)
verify.register(app)
app.add_typer(data.app, name="data")
app.add_typer(ledger.app, name="ledger")
app.add_typer(keys.app, name="keys")


def main() -> None:
    """Entry point of the command ``fedveil``."""
    _keep_freed_memory()
    app()


def _keep_freed_memory() -> None:
    """Ask glibc to keep freed blocks: training returns the same megabytes at every step and gets them back as zeros.

    Worth 1.2 times in a small CNN's step. A library must not do this to its host; a command may.
    """
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    try:
        tune = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library
        return
    tune(mmap_threshold, 1 << 30)
    tune(trim_threshold, (1 << 31) - 1)
