"""`fedveil keys`: a site's key for the secure sums of one study."""

from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.shared import refusals

app = typer.Typer(help="A site's key for the secure sums of one study.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(metavar="FILE", help="The key's file, mode 0600; it never leaves the site.")]


@app.command()
def new(path: File) -> None:
    """Make a key, once for a study. Its public half goes into the policies of the other sites, as `peers`."""
    with refusals():
        from fedveil.engines.sites import make_key

        _show(make_key(path).public)


@app.command()
def show(path: File) -> None:
    """Print the public half of a key."""
    with refusals():
        from fedveil.engines.sites import read_key

        _show(read_key(path).public)


@app.command()
def end(path: File) -> None:
    """Destroy a key when its study is over. Whoever gets it later unmasks the shares that were recorded."""
    with refusals():
        from fedveil.engines.sites import end_key

        key = end_key(path)
        typer.echo(f"ended: {key.public.hex()}. Remove copies and backups of the file as well.")


def _show(public: bytes) -> None:
    from fedveil.secure import fingerprint

    typer.echo(f"public key:  {public.hex()}")
    typer.echo(f"fingerprint: {fingerprint([public])} (compare it by telephone)")
