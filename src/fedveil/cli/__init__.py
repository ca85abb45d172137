"""The command line. Everything that needs PyTorch is imported by the command that uses it: ``--help`` is fast."""

from __future__ import annotations

import typer

from fedveil.cli import data, running

app = typer.Typer(
    name="fedveil",
    help="Privacy-preserving federated learning with calibrated noise, and a truthful account of what it bought.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
running.register(app)
app.add_typer(data.app, name="data")


def main() -> None:
    """Entry point of the command ``fedveil``."""
    app()
