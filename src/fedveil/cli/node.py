"""`fedveil node`: a Flower node whose policy no uploaded app can weaken."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.shared import REFUSED, refusals, show

app = typer.Typer(help="A node that runs what its operator allows, and protects what leaves.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The node's own: policy.toml, ledgers/, bin/.")]
App = Annotated[Path, typer.Argument(metavar="APP", help="A .fab file, or an app's folder, which is built.")]
Key = Annotated[Path, typer.Argument(metavar="FILE", help="The key's file, mode 0600.")]


@app.command()
def init(
    folder: Folder,
    head: Annotated[Path, typer.Option(metavar="FOLDER", help="On another disk: for the ledger's head and its key.")],
    dataset: Annotated[str, typer.Option(metavar="NAME", help="Names the ledger: one a data set.")],
    by: Annotated[str, typer.Option(metavar="WHO", help="Who begins it, and why; recorded in the ledger.")],
) -> None:
    """Write policy, ledger, head, key and commands, and say what is still to decide."""
    with refusals():
        from fedveil.node.site import begin_site

        policy = begin_site(folder, head, dataset, by)
        typer.echo(f"written: {policy}, with a ledger and its head. Nothing leaves yet. Still to decide, in that file:")
        typer.echo("  [total]  what all releases together may cost: the kinds of cost that may leave at all")
        typer.echo("  [sum]    where a secure sum is allowed: whose keys, and on what terms")
        typer.echo("  [node]   client (your own code), or apps or signers (whose code may run here)")
        typer.echo("  [node]   projects, federations, accounts, runs: who may use the node")
        typer.echo(f"Then: fedveil node check {folder}; fedveil node start {folder} flower-supernode ...")


@app.command()
def check(folder: Folder) -> None:
    """Say what binds on this machine and what does not; exit code 2 if something needed is missing."""
    with refusals():
        from fedveil.node.site import check_site
        from fedveil.report.table import Table

        findings = check_site(folder)
        show([Table(("what", "binds", "why"), [(f.what, f.binds, f.why) for f in findings], str(folder))])
        if any(f.binds == "no" and f.needed for f in findings):
            raise typer.Exit(REFUSED)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def start(
    folder: Folder,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="flower-supernode --superlink ...")],
) -> None:
    """Become flower-supernode (or flower-superexec) with this node's commands in the place of Flower's."""
    with refusals():
        from fedveil.node.site import start as begin

        begin(folder, command)


@app.command(name="hash")
def hash_(app: App) -> None:
    """Print the SHA-256 of an app's bundle, for policy.node.apps."""
    with refusals():
        typer.echo(_sha256(app))


@app.command()
def key(path: Key) -> None:
    """Make a key that approves apps; its public half goes into policy.node.signers."""
    with refusals():
        from fedveil.node.bundle import make_signer

        typer.echo(make_signer(path))


@app.command()
def sign(
    app: App,
    path: Annotated[Path, typer.Option("--key", metavar="FILE", help="Made by `fedveil node key`.")],
    until: Annotated[datetime, typer.Option(formats=["%Y-%m-%d"], help="The last day (UTC) it holds.")],
) -> None:
    """Approve an app's bundle; the line goes into the run's configuration."""
    with refusals():
        from fedveil.node.bundle import APPROVAL, approve

        typer.echo(f'{APPROVAL}="{approve(path, _sha256(app), until.date())}"')


def _sha256(app: Path) -> str:
    """Of a bundle's file, or of the bundle that Flower builds of a folder."""
    import hashlib

    content = app.read_bytes() if app.is_file() else b""
    if not content:
        from flwr.cli.build import build_fab_from_disk

        content = build_fab_from_disk(app)
    return hashlib.sha256(content).hexdigest()
