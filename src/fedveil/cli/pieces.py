"""Click commands whose arguments have help texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any] | click.Command)


class Argument(click.Argument):
    """Click argument with a help text.

    Parameters
    ----------
    declared : sequence of str
        Name of the argument.
    help : str
        Help text.
    options
        Options of `click.Argument`.
    """

    def __init__(self, declared: list[str], help: str = "", **options: Any) -> None:
        super().__init__(declared, **options)
        self.help = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return the argument's name and help."""
        needed = "  [required]" if self.required else ""
        return str(self.metavar), f"{self.help}{needed}"


class Command(click.Command):
    """Click command whose help lists arguments before options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = arguments if isinstance(parameter, Argument) else options
                kind.append(record)
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        with formatter.section("Options"):
            formatter.write_dl(options)


def argument(name: str, metavar: str, help: str, **options: Any) -> Callable[[F], F]:
    """Return a decorator that adds an argument to a command."""
    return click.argument(name, cls=Argument, metavar=metavar, help=help, **options)


def path_argument(name: str, metavar: str, help: str) -> Callable[[F], F]:
    """Return a decorator that adds a path argument to a command."""
    return argument(name, metavar, help, type=click.Path(path_type=Path))


def path_option(name: str, metavar: str, help: str, **options: Any) -> Callable[[F], F]:
    """Return a decorator that adds a path option to a command."""
    return click.option(
        name, metavar=metavar, help=help, type=click.Path(path_type=Path), **options
    )
