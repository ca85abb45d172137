"""Command line of the library: ledgers, keys, nodes, and plans from numbers. Other packages add commands.

A command imports PyTorch only when it runs, so that ``--help`` is fast.
"""

import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from io import TextIOWrapper
from typing import Any

import click

from fedveil import __version__
from fedveil.cli import numbers, shared, site
from fedveil.errors import FedVeilError, FieldError
from fedveil.registry import Registry, optional

GROUP = "fedveil.commands"
ANYTHING = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
}
ANYWHERE = ("-q", "--quiet", "--json")
# order of `fedveil --help`; commands of other packages follow `advise`
EARLY = ("init", "run", "compare", "plan", "presets", "advise")
LATE = (
    "audit",
    "report",
    "apply",
    "export",
    "predict",
    "threshold",
    "verify",
    "data",
    "ledger",
    "keys",
    "node",
)
# commands that tell what to install if they are absent
STUDIES = ("reproduce",)
ELSEWHERE = {**dict.fromkeys((*EARLY, *LATE), "lab"), **dict.fromkeys(STUDIES, "studies")}
WHAT = {
    "lab": "experiments, attacks and reports are a package of their own",
    "studies": "the studies of papers are a package of their own",
}


def of_typer(name: str, thing: Any) -> click.Command:
    """Convert a function with Typer's annotations, or a Typer app, to a Click command."""
    typer = optional("typer", f"the command {name} is written for Typer", "typer")
    optional(
        "typer.core", "", "typer"
    ).HAS_RICH = False  # with Rich at hand, plain help would read "\\[required]"
    if isinstance(thing, typer.Typer):
        command: click.Command = typer.main.get_group(thing)
    else:
        app = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        app.command(name)(thing)
        command = typer.main.get_command(app)
    command.name = name
    return command


def refusing(name: str, error: FedVeilError) -> click.Command:
    """Make a command that only reports why it is missing or broken."""

    def refuse() -> None:
        raise error

    absent = not isinstance(error, FieldError)
    text = f"Not installed: {error}" if absent else str(error)
    short = f"Not installed: fedveil-{ELSEWHERE[name]}." if absent else None
    return click.Command(
        name, callback=refuse, help=text, short_help=short, context_settings=ANYTHING
    )


class Commands(click.Group):
    """Group of all commands; the group's own options may also follow a command's name.

    Parameters
    ----------
    own : mapping of str to click.Command
        Commands of this package. Other packages add commands by entry points of the group `fedveil.commands`: a
        `click.Command`, or a function or app for Typer. Each is imported only when the command or its help is called.
    """

    def __init__(self, own: Mapping[str, click.Command], **options: Any) -> None:
        super().__init__(commands=dict(own), **options)
        self._own = dict(own)

    def list_commands(self, ctx: click.Context) -> list[str]:
        others = {*Registry[Any]("command", self._own, group=GROUP), *ELSEWHERE}
        between = sorted(others - {*EARLY, *LATE})
        return [*EARLY, *between, *LATE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = self.commands.get(cmd_name)
        if found is None:
            found = self._of_others(cmd_name)
            if found is not None:
                self.commands[cmd_name] = found
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; an unknown name is answered by the nearest one, loaded or not."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            near = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def _of_others(self, name: str) -> click.Command | None:
        known = Registry[Any]("command", self._own, group=GROUP)
        try:
            if name in known:
                thing = known[name]
                return thing if isinstance(thing, click.Command) else of_typer(name, thing)
            if name in ELSEWHERE:
                package = ELSEWHERE[name]
                needed = f"pip install fedveil-{package} (in a checkout: pip install ./{package})"
                raise FedVeilError(f"{WHAT[package]}: {needed}")
        except FedVeilError as error:
            return refusing(name, error)
        return None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the group's options to the front; arguments after ``--`` stay where they are."""
        end = args.index("--") if "--" in args else len(args)
        first = sorted(args[:end], key=lambda a: a not in ANYWHERE)  # stable
        return super().parse_args(ctx, [*first, *args[end:]])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and print a refusal as one line."""
        with shared.refusals():
            return super().invoke(ctx)


def _version(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"fedveil {__version__}")
        ctx.exit()


def _options(quiet: bool, json: bool) -> None:
    shared.OUTPUT.quiet, shared.OUTPUT.json = quiet, json


def command_line(own: Mapping[str, click.Command] | None = None) -> Commands:
    """Make the group of all available commands."""
    show_version: Callable[..., None] = _version
    return Commands(
        {
            "plan": numbers.plan,
            "advise": numbers.advise,
            "ledger": site.ledger,
            "keys": site.keys,
            "node": site.node,
        }
        if own is None
        else own,
        name="fedveil",
        help="Train a model over several parties with calibrated noise, and say what the noise promises.",
        no_args_is_help=True,
        callback=_options,
        params=[
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=show_version,
                help="Show the version and exit.",
            ),
            click.Option(
                ["-q", "--quiet"],
                is_flag=True,
                help="Print nothing but refusals; the files hold the rest.",
            ),
            click.Option(
                ["--json"],
                is_flag=True,
                help="Print each table as a line of JSON, all else on stderr.",
            ),
        ],
    )


app = command_line()


def main() -> None:
    """Entry point of the command ``fedveil``."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(
            errors="replace"
        )  # a letter that the terminal's encoding lacks is a "?"
    app()
