"""The command line. Everything that needs PyTorch is imported by the command that uses it: ``--help`` is fast."""

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any

import click
import typer
import typer.core

from fedveil import __version__
from fedveil.cli import advise, audit, data, home, report, running, shared, site
from fedveil.errors import FedVeilError, FieldError
from fedveil.registry import Registry

typer.core.HAS_RICH = False  # with Rich at hand, plain help would read "\\[required]"

STUDIES = "reproduce"
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}
ANYWHERE = ("-q", "--quiet", "--json")


class Commands(typer.core.TyperGroup):
    """The commands; options that are for all of them may stand behind the command too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put those options first; what follows ``--`` is left alone."""
        end = args.index("--") if "--" in args else len(args)
        first = sorted(args[:end], key=lambda a: a not in ANYWHERE)  # stable
        return super().parse_args(ctx, [*first, *args[end:]])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, whoever brings it; what it refuses is a line each."""
        with shared.refusals():
            return super().invoke(ctx)


app = typer.Typer(
    name="fedveil",
    cls=Commands,
    suggest_commands=False,  # Click does
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


def join_packages(app: typer.Typer) -> None:
    """Add the commands of other packages, entry points; one that is absent or broken says so when it is called."""
    commands: Registry[Callable[..., None]] = Registry("command", {}, group="fedveil.commands")
    for name in sorted({STUDIES, *commands}):
        try:
            if name not in commands:
                needed = "pip install fedveil-studies (in a checkout: pip install ./studies)"
                raise FedVeilError(f"the studies of papers are a package of their own: {needed}")
            app.command(name)(commands[name])
        except FedVeilError as error:
            app.command(name, context_settings=ANYTHING)(_refusing(name, error))


def _refusing(name: str, error: FedVeilError) -> Callable[[], None]:
    def command() -> None:
        with shared.refusals():
            raise error

    command.__doc__ = str(error) if isinstance(error, FieldError) else f"Not installed: {error}"
    return command


for command in (running.init, running.run, running.compare, running.plan, running.presets, advise.advise):
    app.command()(command)
join_packages(app)
app.command()(audit.audit)
app.command()(report.report)
app.command()(data.apply)
app.command()(home.export)
app.command()(home.predict)
app.command()(home.threshold)
app.command()(audit.verify)
app.add_typer(data.app, name="data")
app.add_typer(site.ledger, name="ledger")
app.add_typer(site.keys, name="keys")
app.add_typer(site.node, name="node")


def main() -> None:
    """Entry point of the command ``fedveil``."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a letter that the terminal's encoding lacks is a "?"
    app()
