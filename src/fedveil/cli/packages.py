"""Commands that other installed packages bring by entry points, and what to install for the one that is not there."""

from __future__ import annotations

from collections.abc import Callable

import typer

from fedveil.cli.shared import told
from fedveil.errors import FedVeilError, FieldError
from fedveil.registry import Registry

STUDIES = "reproduce"
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}


def register(app: typer.Typer) -> None:
    """Add every command of the group ``fedveil.commands``; one that is absent or broken says so when it is called."""
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
        with told():
            raise error

    command.__doc__ = str(error) if isinstance(error, FieldError) else f"Not installed: {error}"
    return command
